"""Watch a DAG run to its end, and say what failed where one failed.

Asks Airflow for the run's state and Postgres for its progress; changes neither.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from rich.console import Console

from toolformer_ops.demo.progress import ProgressDisplay, Snapshot
from toolformer_ops.demo.report import say
from toolformer_ops.local_services.airflow_client import ENDED_STATES, TaskState

INDEX_DAG = "build_wiki_index"
ANNOTATION_DAG = "annotate_corpus"
SECONDS_BETWEEN_LOOKS = 3.0
LARGEST_SHARE_OF_LOOKING = 0.2
"""Looking takes at most this share of the time: the progress of a million documents is not counted every three seconds."""
LOG_LINES = 12
CONSEQUENT_TASKS = frozenset({"gather_tools", "finish_run"})
"""Red only because another task is."""


class Airflow(Protocol):
    """What watching needs of Airflow."""

    def run_state(self, dag_id: str, run_id: str) -> str:
        """`queued`, `running`, `success` or `failed`."""
        ...

    def tasks(self, dag_id: str, run_id: str, state: str) -> list[TaskState]:
        """The task instances in that state."""
        ...

    def log_tail(self, dag_id: str, run_id: str, task: TaskState, lines: int) -> list[str]:
        """The last lines of a task's newest try."""
        ...

    def task_url(self, dag_id: str, run_id: str, task: TaskState) -> str:
        """The address of a task instance in the UI."""
        ...


def watch(
    airflow: Airflow,
    dag_id: str,
    run_id: str,
    look: Callable[[], Snapshot] | None,
    display: ProgressDisplay,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Show the run's progress until it ends; returns the state it ended in.

    `look` gives the progress in Postgres; None for a DAG that has none.
    """
    with display:
        while True:
            began = clock()
            state = airflow.run_state(dag_id, run_id)
            snapshot = look() if look is not None else Snapshot((), None)
            running = tuple(task.name for task in airflow.tasks(dag_id, run_id, "running"))
            display.show(replace(snapshot, running=running))
            if state in ENDED_STATES:
                return state
            looking = clock() - began
            sleep(max(SECONDS_BETWEEN_LOOKS, looking / LARGEST_SHARE_OF_LOOKING - looking))


def print_failure(console: Console, airflow: Airflow, dag_id: str, run_id: str) -> None:
    """Which tasks failed themselves, the last log lines of the first, and where to look."""
    failed = airflow.tasks(dag_id, run_id, "failed")
    causes = [task for task in failed if task.task_id not in CONSEQUENT_TASKS] or failed
    if not causes:
        say(
            console,
            f"{dag_id} {run_id} failed, though none of its tasks did: it ran out of time, or was marked by hand.",
        )
        return
    first = causes[0]
    say(console, f"\nFailed: {', '.join(task.name for task in causes)}")
    say(console, f"The last lines of {first.name}, try {first.try_number}:\n")
    for line in airflow.log_tail(dag_id, run_id, first, LOG_LINES):
        say(console, f"  {line}")
    say(console, f"\nThe whole log: {airflow.task_url(dag_id, run_id, first)}")
    say(console, "Mend the cause, then run the same command again: what is done stays done.")
