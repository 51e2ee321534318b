"""What is done while Airflow makes a run: one that cannot start is refused, and tasks that nobody asked for are left out.

A cluster policy of Airflow (entry point `airflow.policy`). Airflow's form validates each field by itself and takes fields that
it does not know; it has no place for what two fields say together, or for an address where nothing is. But Airflow makes the tasks
of a run in the request that makes the run, and calls the policy for each: an error there is the answer to the form, the API and
`airflow dags trigger`, and no run exists. The run's first task checks the same, for runs that are made elsewhere: by a schedule, or
by another DAG.

A task that is left out has the state `removed`, as one that its DAG does not have: it is grey, nobody waits for it, and it starts
no process. Clearing it lets it run, and then the task before it skips it.

Light: Airflow loads policies while it is being imported itself, in all its processes.
"""

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow import settings as airflow_settings
from airflow.policies import hookimpl

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

MANUAL = "manual"
QUEUED = "queued"
LEFT_OUT = "removed"

# Airflow calls the hook for new tasks only where this is false, and itself sets it for a policy in airflow_local_settings alone.
airflow_settings.task_instance_mutation_hook.is_noop = False  # type: ignore[attr-defined]

_left_out: "weakref.WeakKeyDictionary[DagRun, frozenset[str]]" = weakref.WeakKeyDictionary()
"""Of the runs that are being made, the tasks that nobody asked for."""


@hookimpl
def task_instance_mutation_hook(task_instance: "TaskInstance", dag_run: "DagRun | None") -> None:
    """Called by Airflow for each task of a run: while the run is made, and later, when this does nothing.

    Raises:
        ValueError: a run that somebody asked for cannot start; the message says what was expected, what was found, the remedy.
    """
    if dag_run is None or dag_run.state != QUEUED or dag_run.start_date is not None or dag_run.clear_number:
        return
    if dag_run not in _left_out:
        _left_out[dag_run] = _judged(dag_run)
    if task_instance.task_id in _left_out[dag_run]:
        task_instance.state = LEFT_OUT


def _judged(dag_run: "DagRun") -> frozenset[str]:
    """The tasks to leave out of a run that can start.

    Raises:
        ValueError: it cannot, and somebody asked for it, who reads this. Of all others the first task is red, and says why.
    """
    from toolformer_ops.config import load_settings
    from toolformer_ops.errors import UsageError
    from toolformer_ops.orchestration.requests import check_request, tasks_left_out
    from toolformer_ops.tools.registry import forget_tools

    # This process lives for months, and the form is of a DAG that was parsed a minute ago: it may name a tool of a new file.
    load_settings.cache_clear()
    forget_tools()
    dag = dag_run.get_dag()
    sent: Mapping[str, Any] = dag.params.deep_merge(dag_run.conf).dump()
    try:
        choices = check_request(dag.dag_id, sent)
    except UsageError as error:
        if dag_run.run_type == MANUAL:
            raise ValueError(str(error)) from error
        return frozenset()
    return frozenset() if choices is None else frozenset(tasks_left_out(dag.task_ids, choices))
