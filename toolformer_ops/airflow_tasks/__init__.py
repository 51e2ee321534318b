"""Airflow's side: default arguments, forms, assets, and tasks that start a stage as a local process or as a pod.

Only this package and `dags/` import airflow. A task knows the arguments of `python -m toolformer_ops`, and
nothing of the work.
"""
