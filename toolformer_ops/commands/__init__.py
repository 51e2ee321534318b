"""Subcommands: `stages` for Airflow's tasks, `people` for a terminal. They parse and print; the work is elsewhere."""
