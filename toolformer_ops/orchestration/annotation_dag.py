"""The tasks that annotate a corpus, release the calls that help and finetune on them: of `annotate_corpus`, and of every schedule.

What a night with nothing new costs is the number of tasks that start at all. So one task asks Postgres which tools have work, and
the tasks of the others are skipped by Airflow's scheduler without a process of theirs.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup, chain
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowSkipException

from toolformer_ops.orchestration.defaults import CPU_POOL, DATASET_RELEASE, GPU_POOL, RUN_ID, TIME_LIMITS
from toolformer_ops.orchestration.local_process import StageProcess
from toolformer_ops.orchestration.model_tasks import evaluation_group, model_tasks
from toolformer_ops.orchestration.run_outcome import TO_DO, finish_run, gather_tools
from toolformer_ops.orchestration.schedules import Schedule
from toolformer_ops.orchestration.stage_tasks import RUN_PARAMETERS, execution_pool, mapped_stage, stage
from toolformer_ops.tools.registry import get_tool, tool_names

if TYPE_CHECKING:
    from airflow.sdk import Context

SCHEDULED = "scheduled"
MANUAL = "manual"


class ToolsToDo(StageProcess, SkipMixin):
    """Asks which tools have work, and skips the tasks of all others.

    Args:
        first_tasks: by tool, the id of its first task.
    """

    inherits_from_skipmixin = True

    def __init__(self, *, first_tasks: dict[str, str], **kwargs: Any) -> None:
        super().__init__(returns_result=True, **kwargs)
        self.first_tasks = first_tasks

    def execute(self, context: "Context") -> None:
        """Run the stage, and tell the task that gathers the tools which it named.

        Raises:
            DownstreamTasksSkipped: how Airflow is told what to skip; the task is a success.
        """
        to_do = super().execute(context)
        context["ti"].xcom_push(key=TO_DO, value=to_do)
        self.log.info("tools with work: %s", ", ".join(to_do) or "none")
        self.skip_all_except(context["ti"], [self.first_tasks[tool] for tool in to_do])


def annotation_tasks(schedule: Schedule | None = None) -> None:
    """Put all tasks into the DAG that is being made; without a schedule, those of a DAG that is started by hand."""
    ingest = stage(
        "ingest",
        arguments=("--corpus", "{{ params.corpus }}", *(("--accept-shrink",) if schedule and schedule.accept_shrink else ())),
        before=skip_missed_night if schedule else None,
    )  # fmt: skip
    of_schedule = ("--schedule", schedule.name) if schedule else ()
    start_run = stage("start-run", arguments=("--run", RUN_ID, "--parameters", RUN_PARAMETERS, *of_schedule))
    tools_to_do = ToolsToDo(
        task_id="tools_to_do",
        arguments=["stage", "tools-to-do", "--run", RUN_ID],
        first_tasks={tool: f"{tool}.filter" for tool in tool_names()},
        pool=CPU_POOL,
        execution_timeout=TIME_LIMITS["tools-to-do"],
    )
    ingest >> start_run >> tools_to_do

    checks = {}
    for tool in tool_names():
        with TaskGroup(tool, tooltip=get_tool(tool).spec.purpose):
            filtered = stage("filter", tool=tool, only_where={"tools": tool})
            plan = stage("plan", tool=tool, returns_result=True)
            pools = {"annotate": GPU_POOL}
            if get_tool(tool).spec.executes_apart:
                pools = {"sample": GPU_POOL, "execute": execution_pool(tool), "score": GPU_POOL}
            shards = [mapped_stage(name, tool=tool, shards=plan.output, pool=pool) for name, pool in pools.items()]
            checks[tool] = stage("check", tool=tool)
            chain(tools_to_do, filtered, plan, *shards, checks[tool])

    gathered = gather_tools(checks, opened_by=start_run, chosen_by=tools_to_do)
    release = stage("release", returns_result=True)
    check_release = stage(
        "check-release",
        outlets=[DATASET_RELEASE],
        asset_extra={"run_id": RUN_ID, "release_id": "{{ ti.xcom_pull('release')['release_id'] }}"},
        before=skip_without_release if schedule else None,
    )
    publish, publish_without_calls = model_tasks(
        check_release,
        only_where={"finetune": True},
        before=partial(skip_small_change, schedule.finetune.min_changed_examples) if schedule else None,
    )
    report = evaluation_group([publish, publish_without_calls])
    finish = finish_run(
        opened_by=start_run, gathered_by=gathered, made_by=release, product="release", schedule=schedule
    )
    gathered >> release >> check_release
    [publish, report] >> finish


# Before a task: whether it is needed


def skip_missed_night(context: "Context") -> None:
    """Skip a scheduled run that started so late that the next one was due: that one does the work of both.

    Airflow makes a run for the date that was due when its scheduler stopped, and one for the last date that passed meanwhile.

    Raises:
        AirflowSkipException: the next run is due. Never where somebody cleared the run, nor for a retry.
    """
    run = context["dag_run"]
    if run.run_type != SCHEDULED or run.start_date is None or run.clear_number or context["ti"].try_number > 1:
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
        raise AirflowSkipException(
            f"the run for {date} started when {following.run_after} was due, too: its run does the work of both."
        )


def skip_without_release(context: "Context") -> None:
    """Skip where no call was kept, so that the night has no release.

    Raises:
        AirflowSkipException: there is no release.
    """
    if context["ti"].xcom_pull("release")["release_id"] is None:
        raise AirflowSkipException("no call was kept, so there is no release to check, and nothing to finetune on.")


def skip_small_change(min_changed_examples: int, context: "Context") -> None:
    """Skip a night's finetuning where the release hardly differs from the one that was finetuned on last.

    Raises:
        AirflowSkipException: fewer examples changed. Never in a run that was started by hand.
    """
    changed = context["ti"].xcom_pull("release")["changed_examples"]
    if changed < min_changed_examples and context["dag_run"].run_type != MANUAL:
        raise AirflowSkipException(
            f"{changed} examples differ from the release that was finetuned on last; the schedule asks for {min_changed_examples}."
        )
