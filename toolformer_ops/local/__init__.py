"""Postgres, S3 and Airflow on one machine, without Docker and without being root: `lifecycle.up`, `down`, `status`.

Imports nothing here, since every stage passes by.
"""
