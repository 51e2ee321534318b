"""What closes an annotation run, of a schedule or started by hand, whatever ended it.

`run_outcome.py` is its last task. If Airflow starts no further task, `stopped_runs.py` closes it as Airflow
ends it. `reconciling.py` ends what both missed, and what Airflow itself forgot.
"""
