"""Close the annotation run of a DAG run that is over, and have people told of it.

A listener of Airflow, which calls it in the API server when a person sets a run to failed or success, and in
the scheduler for every other end, such as a time limit: Airflow then starts no further task. A run that its
last task has closed is left as it is. What is lost here, since the process was killed or Postgres was away,
the next run of `send_notifications` finds.
"""

import logging
import threading
from typing import TYPE_CHECKING

from airflow.listeners import hookimpl

from toolformer_ops.airflow_tasks.run_ids import NIGHTLY, annotation_run_id, is_ours
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolformerError
from toolformer_ops.runs.owners import DagRun as Owner

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

logger = logging.getLogger(__name__)

TIMED_OUT = "timed_out"
"""What the scheduler says of a run whose time was up."""
OUT_OF_TIME = (
    "The night took longer than its time limit, and was ended. What was committed is not done again."
)


@hookimpl
def on_dag_run_failed(dag_run: "DagRun", msg: str) -> None:
    """A run is over: it failed, its time was up, or a person ended it."""
    close_in_background(dag_run.run_id, _owner(dag_run), is_failure=True, is_timeout=msg == TIMED_OUT)


@hookimpl
def on_dag_run_success(dag_run: "DagRun", msg: str) -> None:
    """A run is over; if a person said that it is a success, it was not finished all the same."""
    close_in_background(dag_run.run_id, _owner(dag_run), is_failure=False)


def _owner(dag_run: "DagRun") -> Owner:
    return Owner(dag_run.dag_id, dag_run.run_after)


def close_in_background(run_id: str, owner: Owner, *, is_failure: bool, is_timeout: bool = False) -> None:
    """Close the annotation run of this DAG run in a thread, so that neither the scheduler nor a person's request waits for it.

    Of a schedule's run it then starts the DAG that tells people. Does nothing for a DAG that has no
    annotation runs.
    """
    dag_id = owner.dag_id
    if not is_ours(dag_id):
        return

    def close() -> None:
        from toolformer_ops.airflow_tasks.nights.notifying import start_sending
        from toolformer_ops.stages.run_setup import ENDED, close_run

        name = annotation_run_id(dag_id, run_id)
        problem = OUT_OF_TIME if is_timeout else ENDED
        try:
            close_run(load_settings(), name, is_failure=is_failure, problem=problem, dag_run=owner)
            if dag_id.startswith(NIGHTLY):
                start_sending(name)
        except ToolformerError as error:
            logger.warning("run %s could not be closed, or its message is not sent yet: %s", name, error)

    threading.Thread(target=close, daemon=True, name="close-run").start()
