"""Schedules: their files, the DAG that each becomes, when DAGs start by the clock, and who is told how a night went."""
