"""Stages after which tasks may not be needed: the stage's task says which and why, and Airflow's scheduler skips them.

A task that skips itself starts a process to do so; one that the scheduler skips starts none, and has no log. So the reasons are in
the log of the task that says so, and in its XCom `skipped`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import DownstreamTasksSkipped

from toolformer_ops.airflow_tasks.local_process import StageProcess

if TYPE_CHECKING:
    from airflow.sdk import Context

SKIPPED = "skipped"
"""Key of the XCom with the reason by skipped task."""

NotNeeded = Callable[["Context", Any], Mapping[str, str]]
"""From Airflow's context and what the stage printed: by the id of each task that is not needed, the reason."""


class ChoosingStage(StageProcess, SkipMixin):
    """Runs a stage on the worker, and skips the tasks directly behind it that are not needed then.

    Args:
        not_needed: which tasks those are.
    """

    inherits_from_skipmixin = True

    def __init__(self, *, not_needed: NotNeeded, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "returns_result": True})
        self.not_needed = not_needed

    def execute(self, context: "Context") -> Any:
        """Run the stage, and say which tasks are not needed; returns what the stage printed."""
        result = super().execute(context)
        skip_not_needed(self, context, result)
        return result


def skip_not_needed(task: Any, context: "Context", result: Any) -> None:
    """Skip the tasks directly behind `task` that are not needed after its `result`; `task` is a SkipMixin with `not_needed`."""
    reasons = dict(task.not_needed(context, result))
    for task_id, reason in reasons.items():
        task.log.info("skipped: %s: %s", task_id, reason)
    context["ti"].xcom_push(key=SKIPPED, value=reasons)
    try:
        task.skip(context["ti"], [context["dag"].get_task(task_id) for task_id in reasons])
    except DownstreamTasksSkipped:
        # It would end the task here, and Airflow would not store what the task returns. The XCom that `skip` has pushed is
        # enough: the scheduler reads it before it starts a task directly behind this one (NotPreviouslySkippedDep).
        task.log.info("%d tasks are not needed", len(reasons))
