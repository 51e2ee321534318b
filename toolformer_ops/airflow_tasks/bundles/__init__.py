"""Airflow's DAG bundles: a run keeps the DAG files and the tools that it started with."""
