"""Find annotation runs that Airflow does not continue, and end them.

Airflow's scheduler looks only at runs of DAGs that are there and not paused (3.3:
`DagRun.get_running_dag_runs_to_examine`). A run whose schedule file is deleted, or whose DAG is paused, stays
`running` for ever, past its time limit too; and a DAG run that is deleted leaves its row in `annotation_runs`
as `running`. `send_notifications` ends such runs, and `toolformer-ops doctor` names them. Asks Airflow's REST
API and imports nothing of Airflow.
"""

import datetime
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from toolformer_ops.airflow_tasks.airflow_client import (
    ENDED_STATES,
    AirflowClient,
    DagState,
    RunState,
    TaskState,
)
from toolformer_ops.airflow_tasks.run_ids import annotation_run_id, dag_run_of, is_ours
from toolformer_ops.config import Settings
from toolformer_ops.errors import AirflowError, ToolformerError
from toolformer_ops.runs.owners import DagRun
from toolformer_ops.runs.self_check import Finding

logger = logging.getLogger(__name__)

TAG = "toolformer"
"""Each DAG of this project has this tag."""
QUEUED = "queued"
FAILED = "failed"
SUCCESS = "success"
AT_WORK = frozenset({"running", "queued", "restarting", "deferred"})
"""States of tasks that end without Airflow's scheduler looking at the run."""
WAITS_FOR_A_PERSON = "awaiting_input"
DONE_WELL = frozenset({"success", "skipped", "removed"})
PATIENCE: Mapping[str, datetime.timedelta] = MappingProxyType(
    {
        # A file may be gone for a moment while an editor saves it, or until its mistake is corrected.
        "deleted": datetime.timedelta(minutes=10),
        # A person may pause a DAG to let other work through.
        "paused": datetime.timedelta(hours=1),
    }
)
"""How long nothing works at a run before it is ended, by what happened to its DAG."""
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "deleted": (
            "Its DAG {dag_id} is gone: its file was deleted, or cannot be read. Airflow did not continue the "
            "run. Put the file back and clear the run, if it is to go on: what was committed is not done "
            "again."
        ),
        "paused": (
            "Its DAG {dag_id} is paused. Airflow did not continue the run. Switch the DAG on and clear the "
            "run, if it is to go on: what was committed is not done again."
        ),
    }
)
QUIET = datetime.timedelta(hours=1)
"""How long nothing is committed for a run that this Airflow does not know, before it is closed."""
RUN_DELETED = "Its DAG run was deleted in Airflow."


@dataclass(frozen=True)
class HaltedRun:
    """A run that Airflow does not continue, and at which no task works."""

    run: RunState
    cause: str
    """`deleted` or `paused`: what happened to its DAG."""
    since: datetime.datetime
    """When Airflow's scheduler looked at it last, its last task ended, or its DAG was there."""
    is_done: bool
    """Whether all of its tasks had ended well, so that only the run's end is lacking."""

    @property
    def reason(self) -> str:
        """What is told of it, with the remedy."""
        return REASONS[self.cause].format(dag_id=self.run.dag_id)

    def is_due(self, now: datetime.datetime) -> bool:
        """Whether it has halted for so long that it is ended."""
        return now - self.since >= PATIENCE[self.cause]


def halted_runs(airflow: AirflowClient) -> list[HaltedRun]:
    """Return the annotation runs that Airflow has begun and does not continue, and queued ones of deleted DAGs.

    Raises:
        AirflowError: Airflow does not answer, or refuses.
    """
    dags: dict[str, DagState] = {}
    halted = []
    for run in airflow.open_runs():
        if not is_ours(run.dag_id):
            continue
        if run.dag_id not in dags:
            dags[run.dag_id] = airflow.dag(run.dag_id)
        dag = dags[run.dag_id]
        if dag.is_stale or (dag.is_paused and run.state != QUEUED):
            cause = "deleted" if dag.is_stale else "paused"
            tasks = airflow.tasks(run.dag_id, run.run_id)
            if not any(_is_at_work(task, cause) for task in tasks):
                halted.append(_halted(run, dag, cause, tasks))
    return halted


def _is_at_work(task: TaskState, cause: str) -> bool:
    return task.state in AT_WORK or (cause == "paused" and task.state == WAITS_FOR_A_PERSON)


def _halted(run: RunState, dag: DagState, cause: str, tasks: list[TaskState]) -> HaltedRun:
    signs = [run.looked_at or run.run_after]
    signs += [datetime.datetime.fromisoformat(task.ended_at) for task in tasks if task.ended_at]
    if cause == "deleted" and dag.last_parsed_at is not None:
        signs.append(dag.last_parsed_at)  # the scheduler has not looked yet at a run that is queued
    is_done = bool(tasks) and all(task.state in DONE_WELL for task in tasks)
    return HaltedRun(run=run, cause=cause, since=max(signs), is_done=is_done)


def end_halted_runs(settings: Settings, airflow: AirflowClient, *, at_once: bool = False) -> list[HaltedRun]:
    """End the halted runs whose time is up, or all `at_once`; returns them.

    The end is written to `annotation_runs` before Airflow is told, whose listener then knows no cause. A run
    that Airflow refuses to end is logged, and the others are ended all the same.

    Raises:
        AirflowError: Airflow does not answer, or refuses.
        DatabaseError: Postgres does not answer.
    """
    from toolformer_ops.stages.run_setup import close_run

    now = datetime.datetime.now(datetime.UTC)
    ended = []
    for halted in halted_runs(airflow):
        run = halted.run
        if at_once or halted.is_due(now):
            owner = DagRun(run.dag_id, run.run_after)
            name = annotation_run_id(run.dag_id, run.run_id)
            close_run(settings, name, is_failure=not halted.is_done, problem=halted.reason, dag_run=owner)
            state = SUCCESS if halted.is_done else FAILED
            try:
                airflow.end_run(run.dag_id, run.run_id, state, "" if halted.is_done else halted.reason)
            except AirflowError as error:
                logger.warning("the run %s could not be ended in Airflow: %s", name, error)
                continue
            logger.warning("ended the run %s: %s", name, halted.reason)
            ended.append(halted)
    return ended


def close_lost_runs(settings: Settings, airflow: AirflowClient, *, at_once: bool = False) -> list[str]:
    """Close the runs in `annotation_runs` whose DAG run was deleted, or is over in Airflow.

    Returns their ids. Not before nothing was committed for an hour (but `at_once`): another Airflow may have
    the run.

    Raises:
        AirflowError: Airflow does not answer, or refuses.
        DatabaseError: Postgres does not answer.
    """
    from toolformer_ops.stages.run_setup import ENDED, close_run
    from toolformer_ops.storage.postgres import database, queries

    closed = []
    quiet_since = datetime.datetime.now(datetime.UTC) - (datetime.timedelta(0) if at_once else QUIET)
    rows = database.fetch_all(
        database.connect(settings), queries.runs.running_of_dags, quiet_since=quiet_since
    )
    for row in rows:
        run = airflow.find_run(row.dag_id, dag_run_of(row.run_id, row.dag_id))
        if run is None or run.run_after != row.dag_run_after:
            problem = RUN_DELETED
        elif run.state in ENDED_STATES:
            problem = ENDED
        else:
            continue
        close_run(settings, row.run_id, problem=problem)
        closed.append(row.run_id)
    return closed


def findings_of_runs(settings: Settings, airflow: AirflowClient, *, end: bool) -> Iterator[Finding]:
    """A line for each run that Airflow does not continue, or that waits in a paused DAG.

    `end` ends the former.
    """
    try:
        if end:
            ended = end_halted_runs(settings, airflow, at_once=True)
            for halted in ended:
                yield Finding(
                    "ok", f"run {halted.run.run_id} of {halted.run.dag_id}", f"was ended. {halted.reason}"
                )
            for run_id in close_lost_runs(settings, airflow, at_once=True):
                yield Finding(
                    "ok", f"run {run_id}", "was closed: it is over in Airflow, or was deleted there"
                )
        halted_now = halted_runs(airflow)
        waiting = [run for run in airflow.open_runs() if run.state == QUEUED]
        dag_ids = {run.dag_id for run in waiting}
        dags = {dag_id: airflow.dag(dag_id) for dag_id in dag_ids}
    except ToolformerError as error:
        yield Finding("unknown" if isinstance(error, AirflowError) else "missing", "runs", str(error))
        return
    for halted in halted_now:
        detail = f"halted since {halted.since:%Y-%m-%d %H:%M} UTC. {halted.reason} `toolformer-ops doctor --end-halted` ends it."
        yield Finding("missing", f"run {halted.run.run_id} of {halted.run.dag_id}", detail)
    paused = [run for run in waiting if dags[run.dag_id].is_paused and TAG in dags[run.dag_id].tags]
    for run in paused:
        detail = f"waits, since the DAG is paused. Switch it on in the UI, or by `airflow dags unpause {run.dag_id}`."
        yield Finding("missing", f"run {run.run_id} of {run.dag_id}", detail)
    if not halted_now and not paused:
        yield Finding("ok", "runs", "Airflow continues each that is open")
