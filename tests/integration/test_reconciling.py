"""Runs that are left open are found, ended and told of; those that Airflow continues are left alone."""

import datetime as dt
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.fake_language_model import FakeLanguageModel
from tests.run_sql import run_sql
from toolformer_ops.airflow_tasks.airflow_client import AirflowClient, DagState, RunState, TaskState
from toolformer_ops.airflow_tasks.run_ends.reconciling import (
    RUN_DELETED,
    findings_of_runs,
    reconcile,
    runs_left_open,
)
from toolformer_ops.config import Settings
from toolformer_ops.errors import AirflowError
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.owners import DagRun
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import ENDED, start_run

DAG_ID = "nightly_posts"
RUN_ID = f"{DAG_ID}.night-1"
NOW = dt.datetime.now(dt.UTC)
LIVE = DagState(is_paused=False, is_stale=False)
PAUSED = DagState(is_paused=True, is_stale=False, tags=("toolformer",))
OF_OTHERS = DagState(is_paused=True, is_stale=False, tags=("sales",))
DELETED = DagState(is_paused=False, is_stale=True)


@pytest.fixture(autouse=True)
def _the_time_of_the_test(monkeypatch):
    """Not that of the module's import, which may be many minutes before."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", dt.datetime.now(dt.UTC))


def minutes_ago(minutes: float) -> dt.datetime:
    return NOW - dt.timedelta(minutes=minutes)


def task(state: str, ended_at: dt.datetime | None = None) -> TaskState:
    return TaskState("Calculator.annotate", -1, state, 1, ended_at.isoformat() if ended_at else "")


def run_of(state: str = "running", *, looked_at: float = 120, dag_id: str = DAG_ID) -> RunState:
    """A run that began three hours ago, and that Airflow's scheduler looked at so many minutes ago."""
    return RunState(dag_id, "night-1", state, minutes_ago(180), minutes_ago(looked_at))


@dataclass
class FakeAirflow:
    """An Airflow with one run, and what it was told."""

    dag_state: DagState
    run: RunState | None = field(default_factory=run_of)
    run_tasks: list[TaskState] = field(default_factory=list)
    ended: list[tuple[str, str, str, str]] = field(default_factory=list)
    is_away: bool = False

    def open_runs(self) -> list[RunState]:
        if self.is_away:
            raise AirflowError("Airflow refused GET: 401.")
        return [self.run] if self.run and self.run.state in ("queued", "running") else []

    def ended_runs(self, prefix: str, since: dt.datetime) -> list[RunState]:
        return []

    def find_run(self, dag_id: str, run_id: str) -> RunState | None:
        assert (dag_id, run_id) == (DAG_ID, "night-1")
        return self.run

    def dag(self, dag_id: str) -> DagState:
        return self.dag_state

    def tasks(self, dag_id: str, run_id: str) -> list[TaskState]:
        return self.run_tasks

    def end_run(self, *end: str) -> None:
        self.ended.append(cast("tuple[str, str, str, str]", end))
        self.run = None

    @property
    def client(self) -> AirflowClient:
        return cast(AirflowClient, self)


Start = Callable[[FakeAirflow], None]


@pytest.fixture
def start(settings, use_model, tmp_path):
    """Opens the annotation run of an Airflow's run."""
    use_model(FakeLanguageModel())
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"text": "2 cats and 3 dogs, a total of 5 animals."}) + "\n")
    ingest_corpus(settings, str(path))
    chosen = RunChoices.parse({"corpus": str(path), "model": "fake", "tools": ["Calculator"]})

    def start(airflow: FakeAirflow) -> None:
        assert airflow.run is not None
        start_run(settings, RUN_ID, chosen, "posts", DagRun(DAG_ID, airflow.run.run_after))

    return start


def states(settings: Settings) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run_sql(settings, "select run_id, state, problem from annotation_runs")]


class RefusingAirflow(FakeAirflow):
    """An Airflow with a run that it refuses to end, and behind it another."""

    def open_runs(self) -> list[RunState]:
        return [run_of(dag_id="nightly_refused"), run_of()]

    def end_run(self, *end: str) -> None:
        if end[0] == "nightly_refused":
            raise AirflowError("Airflow refused PATCH: 404.")
        super().end_run(*end)


def test_a_run_that_airflow_refuses_to_end_leaves_no_other_halted(settings):
    airflow = RefusingAirflow(DELETED)
    ended = reconcile(settings, airflow.client)
    assert [left.owner.dag_id for left in ended] == [DAG_ID]
    assert [end[0] for end in airflow.ended] == [DAG_ID]


# Which runs have halted


@pytest.mark.parametrize(
    ("dag", "run", "tasks", "has_halted"),
    [
        (DELETED, run_of(), [], True),
        (DELETED, run_of("queued"), [], True),  # it waited for the night before
        (PAUSED, run_of(), [task("success", minutes_ago(90)), task("scheduled")], True),
        (DELETED, run_of(), [task("up_for_retry")], True),
        (DELETED, run_of(), [task("awaiting_input")], True),  # an answer would start nothing
        (LIVE, run_of(), [], False),
        (PAUSED, run_of("queued"), [], False),  # it waits for the person who paused the DAG
        (PAUSED, run_of(), [task("awaiting_input")], False),
        (DELETED, run_of(), [task("running")], False),
        (PAUSED, run_of(), [task("deferred")], False),
        (DELETED, run_of(dag_id="a_dag_of_others"), [], False),
    ],
)
def test_a_run_has_halted_if_airflow_does_not_look_at_it_while_no_task_works(
    settings, dag, run, tasks, has_halted
):
    assert bool(runs_left_open(settings, FakeAirflow(dag, run, tasks).client)) == has_halted


@pytest.mark.parametrize(
    ("dag", "looked_at", "last_end", "is_ended"),
    [
        (DELETED, 61, 61, True),
        (DELETED, 59, 61, False),  # the file may come back: a mistake is corrected
        (DELETED, 61, 59, False),
        (PAUSED, 61, 61, True),
        (PAUSED, 59, 61, False),
    ],
)
def test_a_run_is_ended_once_it_has_halted_for_so_many_minutes(settings, dag, looked_at, last_end, is_ended):
    tasks = [task("success", minutes_ago(last_end)), task("scheduled")]
    airflow = FakeAirflow(dag, run_of(looked_at=looked_at), tasks)
    reconcile(settings, airflow.client)
    assert bool(airflow.ended) == is_ended


@pytest.mark.parametrize(("last_parsed", "is_ended"), [(61, True), (59, False)])
def test_a_queued_run_has_halted_since_its_dag_was_there(settings, last_parsed, is_ended):
    dag = DagState(is_paused=False, is_stale=True, last_parsed_at=minutes_ago(last_parsed))
    airflow = FakeAirflow(dag, RunState(DAG_ID, "night-1", "queued", minutes_ago(180)))
    reconcile(settings, airflow.client)
    assert bool(airflow.ended) == is_ended


# How they are ended


@pytest.mark.parametrize(
    ("dag", "words"),
    [(DELETED, "Its DAG nightly_posts is gone"), (PAUSED, "Its DAG nightly_posts is paused")],
)
def test_a_halted_run_is_failed_with_its_cause(settings, start, dag, words):
    airflow = FakeAirflow(dag)
    start(airflow)
    reconcile(settings, airflow.client)
    [(dag_id, dag_run_id, state, note)] = airflow.ended
    assert (dag_id, dag_run_id, state) == (DAG_ID, "night-1", "failed")
    assert note.startswith(words)
    assert states(settings) == [(RUN_ID, "failed", note)]


def test_a_halted_run_that_never_started_is_recorded(settings):
    airflow = FakeAirflow(DELETED)
    reconcile(settings, airflow.client)
    [(run_id, problem)] = run_sql(settings, "select run_id, problem from runs_not_started")
    assert run_id == RUN_ID
    assert problem.startswith("Its DAG nightly_posts is gone")


def test_a_halted_run_whose_tasks_have_all_ended_well_is_a_success(settings):
    airflow = FakeAirflow(
        DELETED, run_tasks=[task("success", minutes_ago(60)), task("skipped", minutes_ago(60))]
    )
    reconcile(settings, airflow.client)
    assert airflow.ended == [(DAG_ID, "night-1", "success", "")]
    assert run_sql(settings, "select run_id from runs_not_started") == []


# Runs that Airflow does not have any more


def test_a_run_whose_dag_run_was_deleted_is_closed(settings, start):
    airflow = FakeAirflow(LIVE)
    start(airflow)
    airflow.run = None
    reconcile(settings, airflow.client, at_once=True)
    assert states(settings) == [(RUN_ID, "failed", RUN_DELETED)]


def test_a_run_whose_id_another_dag_run_has_by_now_is_closed(settings, start):
    airflow = FakeAirflow(LIVE)
    start(airflow)
    airflow.run = RunState(DAG_ID, "night-1", "running", NOW)
    reconcile(settings, airflow.client, at_once=True)
    assert states(settings) == [(RUN_ID, "failed", RUN_DELETED)]


def test_a_run_that_is_over_in_airflow_is_closed(settings, start):
    airflow = FakeAirflow(LIVE)
    start(airflow)
    airflow.run = run_of("failed")
    reconcile(settings, airflow.client)
    assert states(settings) == [(RUN_ID, "failed", ENDED)]


def test_a_run_that_airflow_continues_is_not_closed(settings, start):
    airflow = FakeAirflow(LIVE)
    start(airflow)
    reconcile(settings, airflow.client, at_once=True)
    assert states(settings) == [(RUN_ID, "running", None)]


def test_a_run_that_this_airflow_does_not_know_is_left_alone_for_an_hour(settings, start):
    airflow = FakeAirflow(LIVE)
    start(airflow)
    airflow.run = None
    assert reconcile(settings, airflow.client) == []
    run_sql(settings, "update annotation_runs set started_at = now() - interval '61 minutes'")
    assert [left.run_id for left in reconcile(settings, airflow.client)] == [RUN_ID]


# What the doctor says


def said(settings: Settings, airflow: FakeAirflow, *, end: bool = False) -> list[str]:
    return [str(finding) for finding in findings_of_runs(settings, airflow.client, end=end)]


def test_the_doctor_names_a_halted_run_with_the_command_that_ends_it(settings):
    airflow = FakeAirflow(DELETED)
    [line] = said(settings, airflow)
    assert line.startswith(f"missing run {RUN_ID}: is left open since ")
    assert line.endswith("`toolformer-ops doctor --end-halted` ends it.")
    assert airflow.ended == []


def test_the_doctor_ends_a_halted_run_at_once_if_told(settings):
    airflow = FakeAirflow(PAUSED, run_of(looked_at=1))
    [ended, rest] = said(settings, airflow, end=True)
    assert ended.startswith(f"ok      run {RUN_ID}: was ended. Its DAG nightly_posts is paused.")
    assert rest == "ok      runs: Airflow continues each that is open"


@pytest.mark.parametrize("dag_id", [DAG_ID, "ingest_corpus"])
def test_the_doctor_names_a_run_that_waits_in_a_paused_dag(settings, dag_id):
    [line] = said(settings, FakeAirflow(PAUSED, run_of("queued", dag_id=dag_id)))
    assert line == (
        f"missing run night-1 of {dag_id}: waits, since the DAG is paused. Switch it on in the UI, or by "
        f"`airflow dags unpause {dag_id}`."
    )


def test_the_doctor_says_nothing_of_the_dags_of_others(settings):
    lines = said(settings, FakeAirflow(OF_OTHERS, run_of("queued", dag_id="sales")))
    assert lines == ["ok      runs: Airflow continues each that is open"]


def test_the_doctor_says_that_all_is_well(settings):
    assert said(settings, FakeAirflow(LIVE)) == ["ok      runs: Airflow continues each that is open"]


def test_the_doctor_does_not_know_where_airflow_refuses(settings):
    assert said(settings, FakeAirflow(LIVE, is_away=True)) == ["unknown runs: Airflow refused GET: 401."]
