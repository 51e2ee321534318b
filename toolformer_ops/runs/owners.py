"""Whose run it is: the DAG run that opened its row in `annotation_runs`, or the command line.

A run's id alone does not say so: two DAGs may have runs of one id, and Airflow gives the id of a deleted run
again. The owner alone opens the run again and ends it. Knows nothing of Airflow.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from sqlalchemy import Row

from toolformer_ops.errors import UsageError

COMMAND_LINE = ""
"""`annotation_runs.dag_id` of a run that a person opened by `toolformer-ops stage`."""


@dataclass(frozen=True)
class DagRun:
    """What tells a DAG run from every other one of the same run id."""

    dag_id: str
    run_after: datetime
    """When Airflow may start it: of a run by hand the moment, in microseconds, at which it was triggered.
    Airflow shows it to tasks, listeners and its REST API, and keeps it when the run is cleared."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the DAG run of a text such as `annotate_corpus@2026-11-26T02:00:00+00:00`.

        Raises:
            UsageError: the text is no DAG and time.
        """
        dag_id, _, run_after = text.rpartition("@")
        try:
            when = datetime.fromisoformat(run_after)
        except ValueError:
            when = None
        if not dag_id or when is None or when.tzinfo is None:
            raise UsageError(
                "--dag-run: expected DAG@TIME, such as annotate_corpus@2026-11-26T02:00:00+00:00, found "
                f"{text!r}."
            )
        return cls(dag_id, when)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.dag_id}@{self.run_after.isoformat()}"

    def owns(self, run: Row[Any]) -> bool:
        """Whether it opened the run of this row of `annotation_runs`, or may have: old rows do not say who did."""
        return run.dag_id is None or (run.dag_id, run.dag_run_after) == (self.dag_id, self.run_after)


def owner_of(run: Row[Any]) -> str:
    """Return who opened the run of a row of `annotation_runs`, for messages."""
    if run.dag_id == COMMAND_LINE:
        return "the command line"
    return f"the DAG run {DagRun(run.dag_id, run.dag_run_after)}"
