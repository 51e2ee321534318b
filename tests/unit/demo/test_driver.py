"""Watching a run: until it ends, not too often, and with the cause of a failure."""

import io
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console
from sqlalchemy import create_engine

from toolformer_ops.airflow_tasks.airflow_client import TaskState
from toolformer_ops.config import Settings
from toolformer_ops.errors import AirflowError, AirflowNotReadyError, ToolformerError
from toolformer_ops.local.demo import driver
from toolformer_ops.local.demo.driver import watch
from toolformer_ops.local.demo.progress import Snapshot


class ScriptedAirflow:
    """Gives states and logs in turn; an error among them is raised."""

    def __init__(self, states: list[str | Exception], failed: list[TaskState] | None = None) -> None:
        self.states = states
        self.failed = failed or []
        self.running = TaskState("QA.annotate", 0, "running", 1, "")
        self.logs: list[list[str] | Exception] = []

    def run_state(self, _dag_id: str, _run_id: str) -> str:
        state = self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        return state

    def tasks(self, _dag_id: str, _run_id: str, state: str) -> list[TaskState]:
        return self.failed if state == "failed" else [self.running]

    def log_tail(self, _dag_id: str, _run_id: str, task: TaskState, lines: int) -> list[str]:
        if self.logs:
            log = self.logs.pop(0)
            if isinstance(log, Exception):
                raise log
            return log[-lines:]
        return [f"{task.name} said something", "CorpusError: expected a file, found nothing"][-lines:]

    def task_url(self, dag_id: str, run_id: str, task: TaskState) -> str:
        return f"http://airflow/{dag_id}/{run_id}/{task.task_id}"


def failed(name: str, ended: str = "1", map_index: int = -1) -> TaskState:
    return TaskState(name, map_index, "failed", 3, ended)


def test_it_looks_until_the_run_ends_and_after_a_long_look_waits_four_times_its_length() -> None:
    shown: list[Snapshot] = []
    slept: list[float] = []
    looks = iter([Snapshot((), 1), Snapshot((), 2), Snapshot((), 3)])
    clock = iter((0.0, 0.1, 10.0, 15.0, 40.0)).__next__  # looks of 0.1 s and 5 s, and the last
    airflow = ScriptedAirflow(["queued", "running", "failed"])
    assert watch(airflow, "d", "r", looks.__next__, shown.append, sleep=slept.append, clock=clock) == "failed"
    assert [snapshot.calls for snapshot in shown] == [1, 2, 3]
    assert {snapshot.running for snapshot in shown} == {("QA.annotate [0]",)}
    assert slept == [3.0, 20.0]


def test_a_training_shows_its_newest_step() -> None:
    shown: list[Snapshot] = []
    airflow = ScriptedAirflow(["running", "running", "success"])
    airflow.running = TaskState("finetune", -1, "running", 1, "")
    airflow.logs = [AirflowError("there is no log yet"), ["x INFO step 1 of 12: loss 3.6, 6 min left", "uploading"]]
    watch(airflow, "d", "r", None, shown.append, sleep=lambda _: None)
    assert [snapshot.line for snapshot in shown[:2]] == [
        "running: finetune (before the first step)",
        "running: finetune (step 1 of 12: loss 3.6, 6 min left)",
    ]


QA, MT, FINISH = failed("QA.annotate", "1", 1), failed("MT.annotate", "2"), failed("finish_run", "3")


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (
            [QA, FINISH],
            ["Failed: QA.annotate [1]\n", "CorpusError: expected", "http://airflow/annotate_corpus/run-1/QA.annotate"],
        ),
        # Tasks that only stand behind a failure are named only if nothing else failed.
        ([MT, failed("gather_tools"), FINISH], ["Failed: MT.annotate\n"]),
        ([QA, MT], ["Failed: QA.annotate [1], MT.annotate", "QA.annotate [1] said something"]),  # the log of the first
        ([], ["none of its tasks did"]),
    ],
)
def test_a_failure_names_its_tasks_the_last_words_of_the_first_and_where_the_log_is(
    console: Console, tasks: list[TaskState], said: list[str]
) -> None:
    with pytest.raises(ToolformerError, match="annotate_corpus run-1 ended as failed"):
        run_dag(console, ScriptedAirflow(["failed"], tasks), "annotate_corpus")
    assert [part for part in said if part not in written(console)] == []


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A console whose text is kept, and a database that says nothing new, and that calls were kept."""
    monkeypatch.setattr(driver.database, "connect", lambda _: create_engine("sqlite://"))
    monkeypatch.setattr(driver.database, "fetch_all", lambda *_, **__: [SimpleNamespace(kept_nothing=False)])
    monkeypatch.setattr(driver, "read_progress", lambda *_: Snapshot((), 1))
    monkeypatch.setattr(driver, "SECONDS_BETWEEN_LOOKS", 0.0)
    return Console(file=io.StringIO(), width=200)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def run_dag(console: Console, airflow: ScriptedAirflow, dag_id: str) -> bool:
    """Whether the run of a DAG succeeded."""
    airflow.open_dag = airflow.trigger = airflow.run_url = lambda *_: ""  # type: ignore[attr-defined]
    return driver._watch(console, airflow, Settings(_env_file=None), dag_id, "run-1", {})  # type: ignore[arg-type, call-arg]


def test_a_run_whose_release_alone_failed_has_ended_where_no_call_was_kept(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_dag(console, ScriptedAirflow(["success"]), "annotate_corpus")
    with pytest.raises(ToolformerError):
        run_dag(console, ScriptedAirflow(["failed"], [failed("release"), FINISH]), "annotate_corpus")
    monkeypatch.setattr(driver.database, "fetch_all", lambda *_, **__: [SimpleNamespace(kept_nothing=True)])
    assert not run_dag(console, ScriptedAirflow(["failed"], [failed("release"), FINISH]), "annotate_corpus")
    with pytest.raises(ToolformerError):
        run_dag(console, ScriptedAirflow(["failed"], [failed("release"), QA]), "annotate_corpus")


def test_how_to_watch_a_run_again_is_said_when_it_starts_and_when_airflow_does_not_answer(console: Console) -> None:
    attach = "toolformer-ops run --attach run-1"
    with pytest.raises(AirflowNotReadyError):
        run_dag(console, ScriptedAirflow([AirflowNotReadyError("no answer")]), "annotate_corpus")
    assert f"To watch it again: {attach}" in written(console)
    assert f"or watch it again: {attach}" in written(console)


def test_a_run_that_is_watched_again_starts_nothing_and_ends_with_its_report(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = ScriptedAirflow(["running", "running", "success"])  # it has no `trigger`: asked to start a run, it fails
    airflow.run_url = lambda *_: ""  # type: ignore[attr-defined]
    reported: list[tuple[str, bool]] = []
    monkeypatch.setattr(driver, "start_all", lambda console, settings, with_model: settings)
    monkeypatch.setattr(driver, "AirflowClient", SimpleNamespace(of=lambda *_, **__: nullcontext(airflow)))
    monkeypatch.setattr(driver, "_report", lambda *arguments, kept: reported.append((arguments[2], kept)))
    driver.attach(console, Settings(_env_file=None), "run-1")  # type: ignore[call-arg]
    assert reported == [("run-1", True)]
