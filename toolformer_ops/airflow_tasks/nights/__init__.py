"""Schedules: their files, the DAG of each, when DAGs start by the clock, and who is told of a night."""
