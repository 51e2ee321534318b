"""Watching a run: until it ends, not too often, and with the cause of a failure."""

import io
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace, TracebackType

import pytest
from rich.console import Console
from sqlalchemy import create_engine

from toolformer_ops.config import Settings
from toolformer_ops.demo import driver
from toolformer_ops.demo.driver import failed_causes, print_failure, watch
from toolformer_ops.demo.progress import Snapshot
from toolformer_ops.errors import AirflowError, AirflowNotReadyError, RunFailedError, ToolformerError
from toolformer_ops.local_services.airflow_client import TaskState


class ScriptedAirflow:
    def __init__(self, states: list[str], failed: list[TaskState] | None = None, running: str = "QA.annotate") -> None:
        self.states = states
        self.failed = failed or []
        self.running = TaskState(running, 0 if running == "QA.annotate" else -1, "running", 1, "")
        self.logs: list[list[str] | Exception] = []

    def run_state(self, _dag_id: str, _run_id: str) -> str:
        return self.states.pop(0)

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


class Shown(list[Snapshot]):
    def show(self, snapshot: Snapshot) -> None:
        self.append(snapshot)

    def __enter__(self) -> "Shown":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def failed(name: str, ended: str = "1", map_index: int = -1) -> TaskState:
    return TaskState(name, map_index, "failed", 3, ended)


def report_of(*tasks: TaskState) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_failure(console, ScriptedAirflow([], list(tasks)), "annotate_corpus", "run-1")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def ticks(*times: float) -> Callable[[], float]:
    return iter(times).__next__


def test_it_looks_until_the_run_ends_and_shows_the_end_too() -> None:
    shown = Shown()
    looks = iter([Snapshot((), 1), Snapshot((), 2), Snapshot((), 3)])
    airflow = ScriptedAirflow(["queued", "running", "success"])
    assert watch(airflow, "d", "r", looks.__next__, shown, sleep=lambda _: None) == "success"
    assert [snapshot.calls for snapshot in shown] == [1, 2, 3]
    assert {snapshot.running for snapshot in shown} == {("QA.annotate [0]",)}


def test_a_run_that_fails_ends_the_watch() -> None:
    assert watch(ScriptedAirflow(["failed"]), "d", "r", None, Shown(), sleep=lambda _: None) == "failed"


def test_a_look_that_takes_long_is_followed_by_four_times_its_length() -> None:
    slept: list[float] = []
    airflow = ScriptedAirflow(["running", "running", "success"])
    clock = ticks(0.0, 0.1, 10.0, 15.0, 40.0)  # looks of 0.1 s and 5 s, and the last
    watch(airflow, "d", "r", None, Shown(), sleep=slept.append, clock=clock)
    assert slept == [3.0, 20.0]


def test_a_training_shows_its_newest_step() -> None:
    shown = Shown()
    airflow = ScriptedAirflow(["running", "running", "running", "success"], running="finetune")
    started = ["Pre Execute", "01:56:05 INFO training m on release r: 12 sequences"]
    stepped = [*started, "01:56:40 INFO step 1 of 12: loss 3.5958, 14 tokens/s, 6 min left"]
    measured = [*stepped, "01:58:40 INFO step 12 of 12: development perplexity 9.250, the best so far", "uploading"]
    airflow.logs = [AirflowError("there is no log yet"), started, stepped, measured]
    watch(airflow, "d", "r", None, shown, sleep=lambda _: None)
    assert [snapshot.line for snapshot in shown] == [
        *["running: finetune (before the first step)"] * 2,
        "running: finetune (step 1 of 12: loss 3.5958, 14 tokens/s, 6 min left)",
        "running: finetune (step 12 of 12: development perplexity 9.250, the best so far)",
    ]


def test_a_failure_names_the_task_its_last_words_and_where_the_log_is() -> None:
    said = report_of(failed("QA.annotate", map_index=1), failed("finish_run", "2"))
    assert "Failed: QA.annotate [1]\n" in said
    assert "CorpusError: expected a file, found nothing" in said
    assert "http://airflow/annotate_corpus/run-1/QA.annotate" in said


def test_tasks_that_only_stand_behind_a_failure_are_named_only_where_nothing_else_failed() -> None:
    assert "Failed: MT.annotate\n" in report_of(failed("MT.annotate"), failed("gather_tools"), failed("finish_run"))
    assert "Failed: finish_run" in report_of(failed("finish_run"))


def test_the_log_shown_is_that_of_the_first_failure() -> None:
    said = report_of(failed("QA.annotate", "1"), failed("MT.annotate", "2"))
    assert "Failed: QA.annotate, MT.annotate" in said
    assert "QA.annotate said something" in said
    assert "MT.annotate said something" not in said


def test_a_run_that_failed_without_a_failed_task_is_told() -> None:
    assert "none of its tasks did" in report_of()


def test_a_run_with_nothing_to_release_fails_by_its_release_alone() -> None:
    airflow = ScriptedAirflow([], [failed("release"), failed("finish_run", "2")])
    assert failed_causes(airflow, "annotate_corpus", "run-1") == ["release"]  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["success", "failed"])
def test_a_run_that_succeeds_returns_and_one_that_fails_raises(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = ScriptedAirflow([state], [failed("build_index")] if state == "failed" else [])
    if state == "success":
        assert run_dag(airflow, "build_wiki_index", monkeypatch)[0]
    else:
        with pytest.raises(RunFailedError, match="build_wiki_index run-1 ended as failed"):
            run_dag(airflow, "build_wiki_index", monkeypatch)


def run_dag(airflow: ScriptedAirflow, dag_id: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    """Whether the run of a DAG succeeded, and what is said meanwhile; an error has that as a note."""
    airflow.open_dag = airflow.trigger = airflow.run_url = lambda *_: ""  # type: ignore[attr-defined]
    monkeypatch.setattr(driver.database, "connect", lambda _: create_engine("sqlite://"))
    monkeypatch.setattr(driver, "read_progress", lambda *_: Snapshot((), 1))
    console = Console(file=io.StringIO(), width=200)
    said = console.file
    assert isinstance(said, io.StringIO)
    try:
        return driver._run(console, airflow, Settings(_env_file=None), dag_id, "run-1", {}), said.getvalue()  # type: ignore[arg-type]
    except ToolformerError as error:
        error.add_note(said.getvalue())
        raise


def test_how_to_watch_a_run_again_is_said_when_it_starts_and_when_airflow_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attach = "toolformer-ops run --attach run-1"
    _, said = run_dag(ScriptedAirflow(["success"]), "annotate_corpus", monkeypatch)
    assert f"To watch it again: {attach}" in said

    airflow = ScriptedAirflow([])
    airflow.run_state = lambda *_: raises(AirflowNotReadyError("no answer"))  # type: ignore[assignment, method-assign]
    with pytest.raises(AirflowNotReadyError) as failure:
        run_dag(airflow, "annotate_corpus", monkeypatch)
    assert (
        f"The run continues without this window. Look at it: \nor watch it again: {attach}"
        in failure.value.__notes__[0]
    )


def raises(error: Exception) -> str:
    raise error


def test_a_run_that_is_watched_again_starts_nothing_and_ends_with_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = ScriptedAirflow(["running", "running", "success"])
    airflow.run_url = lambda *_: ""  # type: ignore[attr-defined]
    reported: list[tuple[str, bool]] = []
    monkeypatch.setattr(driver, "start_all", lambda console, settings, with_model: settings)
    monkeypatch.setattr(driver, "AirflowClient", SimpleNamespace(of=lambda *_, **__: nullcontext(airflow)))
    monkeypatch.setattr(driver.database, "connect", lambda _: create_engine("sqlite://"))
    monkeypatch.setattr(driver, "read_progress", lambda *_: Snapshot((), 1))
    monkeypatch.setattr(driver, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(driver, "_report", lambda *arguments, kept: reported.append((arguments[2], kept)))
    driver.attach(Console(file=io.StringIO()), Settings(_env_file=None), "run-1")
    assert reported == [
        ("run-1", True)
    ]  # an Airflow that is asked to start a run would have failed: it has no `trigger`
