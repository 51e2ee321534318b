"""What an Airflow task runs: one module a stage. Stages never import each other; they meet in Postgres."""
