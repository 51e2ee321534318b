"""The tasks of `annotate_corpus` and of every schedule: annotate a corpus, release the calls that help, finetune on them.

What a night with nothing new costs is the number of tasks that start at all. So one task asks Postgres which
tools have work, and the tasks of the others are skipped by Airflow's scheduler without a process of theirs.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow.sdk import Context, TaskGroup, TriggerRule, chain
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowSkipException

from toolformer_ops.airflow_tasks.bundles.dag_tools import DagTool
from toolformer_ops.airflow_tasks.defaults import CPU_POOL, GPU_POOL, RELEASES, TIME_LIMITS, release_asset
from toolformer_ops.airflow_tasks.local_process import StageProcess
from toolformer_ops.airflow_tasks.model_tasks import (
    MODEL_TASKS,
    model_tasks,
    not_asked_for,
)
from toolformer_ops.airflow_tasks.nights.schedules import Schedule
from toolformer_ops.airflow_tasks.requests import check_before_first_task
from toolformer_ops.airflow_tasks.run_ends.run_outcome import (
    FinishRun,
    choices_of,
    hand_on_refused,
    note_what_it_takes,
    note_why_not_started,
    require_opened,
)
from toolformer_ops.airflow_tasks.run_ids import OF_DAG_RUN, RUN_ID
from toolformer_ops.airflow_tasks.run_notes import set_note
from toolformer_ops.airflow_tasks.stage_tasks import OF_CORPUS, RUN_PARAMETERS, mapped_stage, stage
from toolformer_ops.tools.registry import BUILT_IN_TOOLS

SCHEDULED = "scheduled"
MANUAL = "manual"
CHECK_RELEASE = "check_release"


class ToolsToDo(StageProcess):
    """Asks which tools have work, so that the tasks of all others are skipped.

    Returns the shards of the filters that remain.
    """

    def execute(self, context: Context) -> list[str]:
        """Run the stage."""
        shards: list[str] = super().execute(context)["filter_shards"]
        return shards


def annotation_tasks(tools: Sequence[DagTool], schedule: Schedule | None = None) -> None:
    """Put all tasks into the DAG that is being made, with those of these tools.

    Without a schedule they are those of a DAG that is started by hand.
    """
    ingest = stage(
        "ingest",
        arguments=(*OF_CORPUS, *(("--accept-shrink",) if schedule and schedule.accept_shrink else ())),
        pre_execute=check_or_skip if schedule else check_before_first_task,
        on_failure_callback=note_why_not_started,
    )  # fmt: skip
    schedule_words = ("--schedule", schedule.name) if schedule else ()
    start_run = stage(
        "start-run",
        arguments=("--run", RUN_ID, "--parameters", RUN_PARAMETERS, *schedule_words, *OF_DAG_RUN),
        tells=note_what_it_takes,
        on_failure_callback=note_why_not_started,
    )
    tools_to_do = ToolsToDo(
        task_id="tools_to_do",
        arguments=["stage", "tools-to-do", "--run", RUN_ID],
        not_needed=partial(tools_without_work, [tool.name for tool in tools]),
        pool=CPU_POOL,
        execution_timeout=TIME_LIMITS["tools-to-do"],
    )
    ingest >> start_run >> tools_to_do

    check = stage(
        "check",
        trigger_rule=TriggerRule.ALL_DONE,
        pre_execute=partial(require_opened, start_run.task_id),
        tells=hand_on_refused,
    )
    release = stage(
        "release",
        arguments=("--run", RUN_ID, "--accept-none"),
        not_needed=partial(
            not_needed_after_release, schedule.finetune.min_changed_examples if schedule else None
        ),
    )
    check_release = stage(
        "check-release",
        outlets=[release_asset(schedule=schedule.name), release_asset(corpus=schedule.run.corpus_address)]
        if schedule
        else [RELEASES],
        asset_extra={"run_id": RUN_ID, "release_id": "{{ ti.xcom_pull('release')['release_id'] }}"},
    )
    published, report = model_tasks(check_release, chosen_by=release)
    finish = FinishRun(
        opened_by=start_run.task_id,
        checked_by=check.task_id,
        made_by=release.task_id,
        product="release",
        tools=[tool.name for tool in tools],
    )
    [tasks_of_tool(dag_tool, tools_to_do) for dag_tool in tools] >> check >> release >> check_release
    [check_release, *published, report] >> finish


def tasks_of_tool(dag_tool: DagTool, tools_to_do: ToolsToDo) -> MappedOperator:
    """Put the tasks of one tool into the DAG, from its filter on; returns the last one."""
    tool = dag_tool.name
    with TaskGroup(tool, tooltip=dag_tool.purpose):
        filtered = mapped_stage("filter", tool=tool, shards=tools_to_do.output)
        plan = stage("plan", tool=tool, returns_result=True)
        pools = {"annotate": GPU_POOL}
        if dag_tool.executes_apart:
            pools = {
                "sample": GPU_POOL,
                "execute": GPU_POOL if dag_tool.needs_device else CPU_POOL,
                "score": GPU_POOL,
            }
        # A person waits for the first calls of a tool of his own. Of the others what takes longest starts first,
        # else it works alone at the end: tools that search have no filter, so the most texts; a tool with a
        # model of its own loads that, too.
        priority = 1
        if tool not in BUILT_IN_TOOLS:
            priority = 4
        elif dag_tool.needs_index:
            priority = 3
        elif dag_tool.needs_device:
            priority = 2
        shards = [
            mapped_stage(name, tool=tool, shards=plan.output, pool=pool, priority_weight=priority)
            for name, pool in pools.items()
        ]
        # Draws from the results of all shards. Starts nothing if the processes before have scored all
        # placebos.
        placebos = mapped_stage("placebo", tool=tool, shards=plan.output, pool=GPU_POOL)
        chain(filtered, plan, *shards, placebos)
    return placebos


# Before a task: whether it is needed


def check_or_skip(context: Context) -> None:
    """Skip a night that was missed; else check the run's choices. Raises what the two raise."""
    skip_missed_night(context)
    check_before_first_task(context)


def skip_missed_night(context: Context) -> None:
    """Skip a scheduled run that started so late that the next one was due: that one does the work of both.

    Its note says so.

    Airflow makes a run for the date that was due when its scheduler stopped, and one for the last date that
    passed meanwhile.

    Raises:
        AirflowSkipException: the next run is due. Never if a person cleared the run, nor for a retry.
    """
    run = context["dag_run"]
    if (
        run.run_type != SCHEDULED
        or run.start_date is None
        or run.clear_number
        or context["ti"].try_number > 1
    ):
        return
    import pendulum
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.base import DataInterval, TimeRestriction

    date = pendulum.instance(run.run_after)
    following = coerce_to_core_timetable(context["dag"].timetable).next_dagrun_info(
        last_automated_data_interval=DataInterval(date, date),
        restriction=TimeRestriction(earliest=None, latest=None, catchup=True),
    )
    if following is not None and following.run_after <= run.start_date:
        reason = f"the run for {date} started when {following.run_after} was due, too: its run does the work of both."
        set_note(context, f"Skipped: {reason}")
        raise AirflowSkipException(reason)


# After a task: what is not needed


def tools_without_work(tools: Sequence[str], context: Context, counts: Mapping[str, Any]) -> dict[str, str]:
    """The first tasks of those tools of the DAG that were not chosen, or for which everything is done."""
    chosen_tools = choices_of(context).tools
    reasons = {}
    for tool in tools:
        if tool not in chosen_tools:
            reasons[f"{tool}.filter"] = f"not asked for: tools does not name {tool}"
        elif tool not in counts["tools"]:
            reasons[f"{tool}.filter"] = "everything is done and checked"
    return reasons


def not_needed_after_release(
    min_changed_examples: int | None, context: Context, release: Mapping[str, Any]
) -> dict[str, str]:
    """The tasks without which a run is whole: it has no release, is not to be finetuned on, or not to be evaluated.

    A night's finetuning is not needed if the release hardly differs from the release that was finetuned on
    last: by fewer than `min_changed_examples`, which a run that was started by hand does not count
    (None: nor does any other). A release that was made and checked by an earlier run is not checked again.
    """
    choices = choices_of(context)
    if release["release_id"] is None:
        reason = "no call was kept, so there is no release to check, and nothing to finetune on"
        return dict.fromkeys((CHECK_RELEASE, *MODEL_TASKS), reason)
    reasons = {}
    if earlier := release["unchanged_since"]:
        reasons[CHECK_RELEASE] = (
            f"nothing changed since run {earlier}: its release {release['release_id']} was checked then"
        )
    changed = release["changed_examples"]
    if not choices.finetune:
        return reasons | dict.fromkeys(MODEL_TASKS, "not asked for: finetune is false")
    if (
        min_changed_examples is not None
        and changed < min_changed_examples
        and context["dag_run"].run_type != MANUAL
    ):
        return reasons | dict.fromkeys(
            MODEL_TASKS,
            f"{changed} examples differ from the release that was finetuned on last; the schedule asks for "
            f"{min_changed_examples}",
        )
    return reasons | not_asked_for(choices)
