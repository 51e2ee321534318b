"""Airflow's DAG bundles: the DAG files and the tools that a run started with stay its own while files and tools change."""
