"""Which DAG an annotation run belongs to, and what the run is called there and in `annotation_runs`.

The id of an annotation run is that of its DAG run; a schedule's runs have the schedule's name before it,
since all that start at the same minute have the same id in Airflow, one in each DAG.
"""

KEEPS_PARAMETERS = (
    "A run that is cleared keeps its parameters: if one is wrong, trigger a new run; "
    "else mend the cause, and clear this one."
)
"""What to do with a run that did not start."""
ANNOTATE = "annotate_corpus"
FINETUNE = "finetune_release"
RUN_ID_PATTERN = "^[A-Za-z0-9_.~:+-]{1,200}$"
"""Airflow's setting `[scheduler] allowed_run_id_pattern`: what its API and command line take as the id of a
run. The folder of a run's logs has its id; file systems take names of 255 bytes. Without its folder no task
of the run can start, and each is tried as often as its policy says."""
NIGHTLY = "nightly_"
"""How the ids of the DAGs begin that are made from schedule files."""
RUN_ID = f"{{{{ dag.dag_id ~ '.' ~ run_id if dag.dag_id.startswith('{NIGHTLY}') else run_id }}}}"
"""The id of the annotation run, templated: as `annotation_run_id`."""
OF_DAG_RUN = ("--dag-run", "{{ dag.dag_id }}@{{ dag_run.run_after.isoformat() }}")
"""Says to a stage which DAG run asks (`runs/owners.py`: DagRun), templated."""


def is_ours(dag_id: str) -> bool:
    """Whether the runs of this DAG are annotation runs."""
    return dag_id in (ANNOTATE, FINETUNE) or dag_id.startswith(NIGHTLY)


def dag_of(schedule: str | None, *, annotates: bool) -> str:
    """The DAG that a run belongs to.

    A run that was started by the command line belongs to the DAG that does the same.
    """
    return f"{NIGHTLY}{schedule}" if schedule else ANNOTATE if annotates else FINETUNE


def annotation_run_id(dag_id: str, dag_run_id: str) -> str:
    """The id of the annotation run of a DAG run."""
    return f"{dag_id}.{dag_run_id}" if dag_id.startswith(NIGHTLY) else dag_run_id


def dag_run_of(run_id: str, dag_id: str) -> str:
    """Airflow's id of the DAG run of an annotation run: `annotation_run_id` backwards."""
    return run_id.removeprefix(f"{dag_id}.") if dag_id.startswith(NIGHTLY) else run_id
