"""How a run ends: whether anything failed.

A tool that fails does not stop the others, and the release comes out without it; nor does a suite that cannot
be evaluated stop the others. So that this is seen, the last task closes the run in `annotation_runs` and is
red with the list of what failed, though the release or the model exists and can be used.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow.models.xcom import XCOM_RETURN_KEY
from airflow.sdk import Context, TriggerRule
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from toolformer_ops.airflow_tasks.defaults import CPU_POOL, TIME_LIMITS
from toolformer_ops.airflow_tasks.first_look import LOOK
from toolformer_ops.airflow_tasks.local_process import StageProcess
from toolformer_ops.airflow_tasks.run_ids import KEEPS_PARAMETERS, OF_DAG_RUN, RUN_ID, annotation_run_id
from toolformer_ops.airflow_tasks.run_notes import set_note
from toolformer_ops.config import load_settings
from toolformer_ops.runs.choices import RunChoices

SUCCESS = "success"
FAILED = "failed"
SKIPPED = "skipped"
FIRST_TASK = "ingest"
"""Id of the task that looks at what a form names (`first_look.py`)."""
REFUSED = "refused"
"""Key of the XCom with the tools that a check refused."""
REASON = "reason"
"""Key of the XCom with the reason why a task failed."""
FROM_A_LOG = re.compile(r"^stage [a-z-]+: exit status \d+: (\S+ )?ERROR \w+: ")
"""What is before the sentence of a stage's error in the message of its task."""

GONE = (
    "this version of the DAG has no such tool. Put its file back into {folder}, or install its package "
    "again, and clear the run with the newest version of the DAG."
)
"""Why a run lacks a tool that it was started with."""


def task_states(context: Context) -> dict[str, str | None]:
    """The state of each task of this DAG run; mapped tasks as `task_id_index`."""
    instance = context["ti"]
    states = instance.get_task_states(dag_id=instance.dag_id, run_ids=[instance.run_id])
    return dict(states.get(instance.run_id, {}))


def choices_of(context: Context) -> RunChoices:
    """The choices that a run was started with, as `annotation_runs` holds them, not as the form or a file says by now.

    Raises:
        UsageError: the run has not started.
        DatabaseError: Postgres does not answer.
    """
    from toolformer_ops.runs.run_tools import require_run
    from toolformer_ops.storage.postgres import database

    instance = context["ti"]
    run = require_run(database.connect(load_settings()), annotation_run_id(instance.dag_id, instance.run_id))
    return RunChoices.of_run(run.parameters)


def failed_tasks(states: Mapping[str, str | None], task_ids: Iterable[str]) -> list[str]:
    """Tasks that failed themselves, not those that only waited for one, in the order of `task_ids`.

    It comes with the number of shards.
    """
    failed = []
    for task_id in task_ids:
        shard = re.compile(rf"{re.escape(task_id)}_\d+")
        shards = sum(state == FAILED for key, state in states.items() if shard.fullmatch(key))
        if shards:
            failed.append(f"{task_id} ({shards} shard{'s' if shards > 1 else ''})")
        elif states.get(task_id) == FAILED:
            failed.append(task_id)
    return failed


def is_cleared(context: Context) -> bool:
    """Return whether a person has cleared tasks of the run, which may have started, and made something, before."""
    return bool(context["dag_run"].clear_number)


def note_what_it_takes(context: Context, started: Mapping[str, Any]) -> None:
    """Set how many documents a run takes, and its tools, as its note: a form may have changed what a person typed.

    What the first task saw that a person should mind is below.
    """
    looks = context["ti"].xcom_pull(task_ids=FIRST_TASK, key=LOOK) or []
    set_note(context, "\n".join([f"Takes {started['takes']}, with {', '.join(started['tools'])}.", *looks]))


def note_why_not_started(context: Context) -> None:
    """Set why a task failed without which no run starts as the run's note, which Airflow's UI shows while other tasks still end.

    The last task says it again, in `runs_not_started` too.
    """
    run = "The cleared run" if is_cleared(context) else "The run"
    set_note(context, f"{run} did not start. {_push_reason(context)} {KEEPS_PARAMETERS}")


def note_why_failed(context: Context) -> None:
    """Set why a task failed as the run's note, at once.

    The last task says it again beside what else happened.
    """
    reason = _push_reason(context)
    set_note(context, f"{context['ti'].task_id} failed: {reason} What does not need it goes on.")


def _push_reason(context: Context) -> str:
    """Hand why a task failed to the last task; returns it without what only a log needs."""
    reason = FROM_A_LOG.sub("", str(context["exception"]))
    context["ti"].xcom_push(key=REASON, value=reason)
    return reason


def require_opened(opened_by: str, context: Context) -> None:
    """Skip a task unless the task that opens the run has.

    Raises:
        AirflowSkipException: it has not.
    """
    if task_states(context).get(opened_by) != SUCCESS:
        raise AirflowSkipException("the run did not start.")


def hand_on_refused(context: Context, checked: Mapping[str, Any]) -> None:
    """Hand to the last task which tools a check refused, and why."""
    context["ti"].xcom_push(key=REFUSED, value=checked["refused"])


class FinishRun(StageProcess):
    """Closes the run in `annotation_runs`, or records that it never started, and is red if any task of the DAG run failed.

    The last task of its DAG. Sets the run's note: the summary that the stage prints, which begins with what
    failed.

    Args:
        opened_by: id of the task that opened the run; if it did not succeed the run never started.
        checked_by: id of the task that checks all tools; None of a DAG that annotates nothing.
        made_by: id of the task after which there is what the run is for.
        product: what that is, in one word.
        tools: names of the tools that the DAG has tasks for; None of a DAG that annotates nothing.
    """

    def __init__(
        self,
        *,
        opened_by: str,
        made_by: str,
        product: str,
        checked_by: str | None = None,
        tools: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            task_id="finish_run",
            arguments=["stage", "finish-run", "--run", RUN_ID, *OF_DAG_RUN],
            pool=CPU_POOL,
            execution_timeout=TIME_LIMITS["finish-run"],
            trigger_rule=TriggerRule.ALL_DONE,
            **kwargs,
        )
        self.opened_by = opened_by
        self.checked_by = checked_by
        self.made_by = made_by
        self.product = product
        self.tools = tools if tools is None else list(tools)

    def execute(self, context: Context) -> None:
        """Run `finish-run` with the state of the whole.

        Raises:
            AirflowSkipException: the run was skipped.
            AirflowFailException: a task failed; the message names it, and says whether the product exists
            all the same.
        """
        states = task_states(context)
        if states.get(self.opened_by) == SKIPPED:
            raise AirflowSkipException("the run was skipped.")
        if (settings := load_settings()).runner == "kubernetes":
            from toolformer_ops.airflow_tasks.kubernetes.pods import end_pods_of_run

            end_pods_of_run(settings, dag_id=context["ti"].dag_id, run_id=context["ti"].run_id)
        refused: dict[str, str] = {}
        if self.checked_by is not None:
            refused = context["ti"].xcom_pull(task_ids=self.checked_by, key=REFUSED) or {}
        failed = failed_tasks(
            states, [task_id for task_id in context["dag"].task_ids if task_id != self.task_id]
        )
        # The check itself fails if no tool comes through: what came before it is the cause.
        causes = [task for task in failed if task != self.checked_by]
        failed = causes + [f"check of {tool}" for tool in refused] or failed
        # A run that keeps no call has no release.
        result = context["ti"].xcom_pull(task_ids=self.made_by, key=XCOM_RETURN_KEY)
        made_nothing = isinstance(result, dict) and result.get(f"{self.product}_id", "") is None
        has_product = states.get(self.made_by) == SUCCESS and not made_nothing
        outcome = (
            f"The {self.product} is out, without what these would have given"
            if has_product
            else f"There is no {'new ' if is_cleared(context) else ''}{self.product}"
        )
        has_started = states.get(self.opened_by) == SUCCESS
        reason = None
        if failed:
            reason = context["ti"].xcom_pull(task_ids=failed[0].partition(" ")[0], key=REASON)
            if isinstance(reason, list):  # of shards the first that says so
                reason = next(filter(None, reason), None)
        reason = reason or next(iter(refused.values()), None)
        if has_started and self.tools is not None:
            # The run was cleared with a version of the DAG that came after these tools were gone.
            without_tasks = [tool for tool in choices_of(context).tools if tool not in self.tools]
            if without_tasks:
                failed += without_tasks
                reason = reason or GONE.format(folder=settings.tools_folder)
        problem = (
            f"failed: {', '.join(failed)}{f': {reason}' if reason else '.'} {outcome}." if failed else ""
        )
        state = SUCCESS if has_started and not failed else FAILED
        opened = () if has_started else ("--not-opened",)
        ending = self.run_stage([*self.arguments, "--state", state, "--problem", problem, *opened])
        note = json.loads(ending.last_output)["summary"] if ending.last_output else problem
        if note and not has_started:
            note = f"{note} {KEEPS_PARAMETERS}"
        if note:
            set_note(context, note)
        if failed:
            remedy = "Open the log of the first, mend its cause, and clear it together with what follows: what is done stays done."
            raise AirflowFailException(f"{problem} {remedy if has_started else KEEPS_PARAMETERS}")
