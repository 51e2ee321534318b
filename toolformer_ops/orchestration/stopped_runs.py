"""Close the annotation run of a DAG run that a person ended: Airflow then starts no further task, nor a callback of the DAG.

A listener of Airflow, which calls it in the API server, where a person sets a run to failed or success, and in the scheduler for
every other end. A run that its last task has closed is left as it is. Where Postgres cannot be reached, the audit finds the run.
"""

import logging
import threading
from typing import TYPE_CHECKING

from airflow.listeners import hookimpl

from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolformerError
from toolformer_ops.orchestration.run_ids import annotation_run_id, is_ours

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

logger = logging.getLogger(__name__)


@hookimpl
def on_dag_run_failed(dag_run: "DagRun", msg: str) -> None:
    """A run is over, and it failed or somebody ended it."""
    close_in_background(dag_run.dag_id, dag_run.run_id, is_failure=True)


@hookimpl
def on_dag_run_success(dag_run: "DagRun", msg: str) -> None:
    """A run is over; where somebody said that it is a success, it was not finished all the same."""
    close_in_background(dag_run.dag_id, dag_run.run_id, is_failure=False)


def close_in_background(dag_id: str, run_id: str, *, is_failure: bool) -> threading.Thread | None:
    """Close the annotation run of this DAG run in a thread, so that neither the scheduler nor a person's request waits for it.

    Returns the thread; None for a DAG that has no annotation runs.
    """
    if not is_ours(dag_id):
        return None

    def close() -> None:
        from toolformer_ops.stages.run_setup import close_run

        name = annotation_run_id(dag_id, run_id)
        try:
            close_run(load_settings(), name, is_failure=is_failure)
        except ToolformerError as error:
            logger.warning("run %s could not be closed: %s", name, error)

    thread = threading.Thread(target=close, daemon=True, name="close-run")
    thread.start()
    return thread
