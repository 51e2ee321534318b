"""End the annotation runs that are left open: `annotation_runs` is reconciled with the runs of Airflow.

    in Airflow                                    in annotation_runs      how it is ended
    over                                          open                    failed, at once
    failed, of a schedule                         none: never started     recorded as not started, at once
    none, or another run of its id                open                    failed, after an hour without a commit
    open, its DAG deleted or paused, no task      open, or none           in both: failed, or a success if all of
    at work                                                               its tasks ended well; after an hour

Airflow's scheduler looks only at runs of DAGs that are there and not paused (3.3:
`DagRun.get_running_dag_runs_to_examine`). So a run whose schedule file is deleted, or whose DAG is paused,
stays `running` for ever, past its time limit too. `send_notifications` ends such runs, and
`toolformer-ops doctor` names them. Asks Airflow's REST API and imports nothing of Airflow.
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
from toolformer_ops.airflow_tasks.run_ids import NIGHTLY, annotation_run_id, dag_run_of, is_ours
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
PATIENCE = datetime.timedelta(hours=1)
"""How long nothing works at a run before it is ended: a file may be gone until its mistake is corrected, a
person may pause a DAG to let other work through, and another Airflow may have the run."""
ENDED_SINCE = datetime.timedelta(days=3)
"""For how long runs of schedules that failed before they started are looked for."""
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
"""What is told of a run that Airflow does not continue, by what happened to its DAG."""
RUN_DELETED = "Its DAG run was deleted in Airflow."


@dataclass(frozen=True)
class LeftOpen:
    """A run that is open, and that nothing continues."""

    dag_run_id: str
    owner: DagRun
    problem: str
    """What is told of it, with the remedy."""
    since: datetime.datetime | None
    """When something worked at it last; None: it is over in Airflow, and is ended at once."""
    airflow_state: str = ""
    """The state in which it is ended in Airflow; empty: it is not open there."""

    @property
    def run_id(self) -> str:
        """The id of the annotation run."""
        return annotation_run_id(self.owner.dag_id, self.dag_run_id)

    def is_due(self, now: datetime.datetime) -> bool:
        """Whether it has been left for so long that it is ended."""
        return self.since is None or now - self.since >= PATIENCE


def runs_left_open(settings: Settings, airflow: AirflowClient) -> list[LeftOpen]:
    """The runs that are open and that nothing continues.

    Raises:
        AirflowError: Airflow does not answer, or refuses.
        DatabaseError: Postgres does not answer.
    """
    from toolformer_ops.stages.run_setup import ENDED
    from toolformer_ops.storage.postgres import database, queries

    left_open = []
    # 1. Runs that are open in Airflow, which does not look at them.
    dags: dict[str, DagState] = {}
    for run in airflow.open_runs():
        if not is_ours(run.dag_id):
            continue
        if run.dag_id not in dags:
            dags[run.dag_id] = airflow.dag(run.dag_id)
        dag = dags[run.dag_id]
        if dag.is_stale or (dag.is_paused and run.state != QUEUED):
            tasks = airflow.tasks(run.dag_id, run.run_id)
            at_work = AT_WORK if dag.is_stale else AT_WORK | {WAITS_FOR_A_PERSON}
            if not any(task.state in at_work for task in tasks):
                left_open.append(_halted(run, dag, tasks))
    # 2. Runs that are open here, and over or unknown there.
    for row in database.fetch_all(database.connect(settings), queries.runs.running_of_dags):
        owner = DagRun(row.dag_id, row.dag_run_after)
        dag_run_id = dag_run_of(row.run_id, row.dag_id)
        known_run = airflow.find_run(row.dag_id, dag_run_id)
        if known_run is None or known_run.run_after != row.dag_run_after:
            left_open.append(LeftOpen(dag_run_id, owner, RUN_DELETED, row.quiet_since))
        elif known_run.state in ENDED_STATES:
            left_open.append(LeftOpen(dag_run_id, owner, ENDED, None))
    return left_open


def _halted(run: RunState, dag: DagState, tasks: list[TaskState]) -> LeftOpen:
    signs = [run.looked_at or run.run_after]
    signs += [datetime.datetime.fromisoformat(task.ended_at) for task in tasks if task.ended_at]
    if dag.is_stale and dag.last_parsed_at is not None:
        signs.append(dag.last_parsed_at)  # the scheduler has not looked yet at a run that is queued
    is_done = bool(tasks) and all(task.state in DONE_WELL for task in tasks)
    return LeftOpen(
        dag_run_id=run.run_id,
        owner=DagRun(run.dag_id, run.run_after),
        problem=REASONS["deleted" if dag.is_stale else "paused"].format(dag_id=run.dag_id),
        since=max(signs),
        airflow_state=SUCCESS if is_done else FAILED,
    )


def reconcile(settings: Settings, airflow: AirflowClient, *, at_once: bool = False) -> list[LeftOpen]:
    """End the runs that are left open and whose time is up, or all `at_once`; returns them.

    The end is written to `annotation_runs` before Airflow is told, whose listener then knows no cause. A run
    that cannot be ended is logged, and the others are ended all the same.

    Raises:
        AirflowError: Airflow does not answer, or refuses.
        DatabaseError: Postgres does not answer.
    """
    from toolformer_ops.stages.run_setup import close_run

    now = datetime.datetime.now(datetime.UTC)
    due = [left for left in runs_left_open(settings, airflow) if at_once or left.is_due(now)]
    ended = []
    for left in due:
        is_failure = left.airflow_state != SUCCESS
        try:
            close_run(settings, left.run_id, is_failure=is_failure, problem=left.problem, dag_run=left.owner)
            if left.airflow_state:
                note = left.problem if is_failure else ""
                airflow.end_run(left.owner.dag_id, left.dag_run_id, left.airflow_state, note)
        except ToolformerError as error:
            logger.warning("the run %s could not be ended: %s", left.run_id, error)
            continue
        logger.warning("ended the run %s: %s", left.run_id, left.problem)
        ended.append(left)
    # Of a night that never started people are told, too.
    for run in airflow.ended_runs(NIGHTLY, now - ENDED_SINCE):
        name, owner = annotation_run_id(run.dag_id, run.run_id), DagRun(run.dag_id, run.run_after)
        close_run(settings, name, is_failure=run.state == FAILED, dag_run=owner)
    return ended


def findings_of_runs(settings: Settings, airflow: AirflowClient, *, end: bool) -> Iterator[Finding]:
    """A line for each run that is left open, or that waits in a paused DAG; `end` ends the former."""
    try:
        ended = reconcile(settings, airflow, at_once=True) if end else []
        left_open = runs_left_open(settings, airflow)
        waiting = [run for run in airflow.open_runs() if run.state == QUEUED]
        dags = {dag_id: airflow.dag(dag_id) for dag_id in {run.dag_id for run in waiting}}
    except ToolformerError as error:
        yield Finding("unknown" if isinstance(error, AirflowError) else "missing", "runs", str(error))
        return
    for left in ended:
        yield Finding("ok", f"run {left.run_id}", f"was ended. {left.problem}")
    for left in left_open:
        since = f" since {left.since:%Y-%m-%d %H:%M} UTC" if left.since else ""
        detail = f"is left open{since}. {left.problem} `toolformer-ops doctor --end-halted` ends it."
        yield Finding("missing", f"run {left.run_id}", detail)
    paused = [run for run in waiting if dags[run.dag_id].is_paused and TAG in dags[run.dag_id].tags]
    for run in paused:
        detail = f"waits, since the DAG is paused. Switch it on in the UI, or by `airflow dags unpause {run.dag_id}`."
        yield Finding("missing", f"run {run.run_id} of {run.dag_id}", detail)
    if not left_open and not paused:
        yield Finding("ok", "runs", "Airflow continues each that is open")
