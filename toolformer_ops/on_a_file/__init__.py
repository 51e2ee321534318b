"""The whole method in one process, on a file, without Airflow or Postgres: annotate, explain one call, measure."""
