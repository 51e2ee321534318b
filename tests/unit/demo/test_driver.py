"""Watching a run: until it ends, not too often, and with the cause of a failure."""

import datetime
import io
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console
from rich.text import Text
from sqlalchemy import create_engine

from toolformer_ops.airflow_tasks.airflow_client import TaskState
from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    EXIT_FAILED,
    EXIT_USAGE,
    AirflowError,
    AirflowNotReadyError,
    ToolformerError,
    UsageError,
    exit_code,
)
from toolformer_ops.local.demo import driver
from toolformer_ops.local.demo.driver import seconds_by_phase, watch
from toolformer_ops.runs.progress import Progress


def scripted_airflow(states: Sequence[str | Exception], failed: Sequence[TaskState] = ()) -> Any:
    """Gives states in turn; an error among them is raised."""
    airflow = Mock()
    airflow.run_state.side_effect = states
    running = [TaskState("QA.annotate", 0, "running", 1, "")]
    airflow.tasks.side_effect = lambda _dag, _run, state: failed if state == "failed" else running
    airflow.log_tail.side_effect = lambda *_: [
        "said something",
        "CorpusError: expected a file, found nothing",
    ]
    airflow.task_url.side_effect = lambda dag_id, run_id, task: (
        f"http://airflow/{dag_id}/{run_id}/{task.task_id}"
    )
    airflow.run_url.return_value = ""
    return airflow


def test_until_the_run_ends_it_waits_four_times_the_length_of_a_look():
    shown: list[Progress] = []
    slept: list[float] = []
    looks = iter([Progress(counts="1 call"), Progress(counts="2 calls"), Progress(counts="3 calls")])
    clock = iter((0.0, 0.1, 10.0, 15.0, 40.0, 40.1)).__next__  # looks of 0.1 s and 5 s, and the last
    airflow = scripted_airflow(["queued", "running", "failed"])
    assert watch(airflow, "d", "r", looks.__next__, shown.append, sleep=slept.append, clock=clock) == "failed"
    assert [progress.counts for progress in shown] == ["1 call", "2 calls", "3 calls"]
    assert {progress.phase for progress in shown} == {"QA.annotate [0]"}
    assert slept == [3.0, 20.0]


def test_airflow_is_not_asked_for_tasks_while_processes_are_at_work_on_texts():
    shown: list[Progress] = []
    airflow = scripted_airflow(["success"])
    watch(airflow, "d", "r", lambda: Progress(phase="sampling for QA"), shown.append)
    assert (shown[0].phase, airflow.tasks.called) == ("sampling for QA", False)


def test_a_training_shows_its_newest_step():
    shown: list[Progress] = []
    airflow = scripted_airflow(["running", "running", "success"])
    airflow.tasks.side_effect = lambda *_: [TaskState("finetune", -1, "running", 1, "")]
    log = ["x INFO step 1 of 12: loss 3.6, 6 min left", "uploading"]
    airflow.log_tail.side_effect = [AirflowError("there is no log yet"), log, log]
    watch(airflow, "d", "r", None, shown.append, sleep=lambda _: None)
    assert [progress.phase for progress in shown[:2]] == [
        "finetune (before the first step)",
        "finetune (step 1 of 12: loss 3.6, 6 min left)",
    ]


QA, MT = TaskState("QA.annotate", 1, "failed", 3, "1"), TaskState("MT.annotate", -1, "failed", 3, "2")
CHECK, RELEASE, FINISH = (
    TaskState(name, -1, "failed", 3, "3") for name in ("check", "release", "finish_run")
)


def test_a_failure_names_its_tasks_with_the_last_words_of_the_first(console):
    for tasks, said in (
        ([QA, FINISH], "Failed: QA.annotate [1]\n"),
        # Tasks that only stand behind a failure are named only if nothing else failed.
        ([MT, CHECK, FINISH], "Failed: MT.annotate\n"),
        ([QA, MT], "Failed: QA.annotate [1], MT.annotate"),
        ([], "none of its tasks did"),
    ):
        with pytest.raises(ToolformerError, match="annotate_corpus run-1 ended as failed"):
            run_dag(console, scripted_airflow(["failed"], tasks))
        assert said in written(console)
    for words in (
        "said something",
        "CorpusError: expected",
        "http://airflow/annotate_corpus/run-1/QA.annotate",
    ):
        assert words in written(console)


@pytest.fixture
def console(monkeypatch):
    """A console whose text is kept, and a database that says nothing new, and that there is a release."""
    monkeypatch.setattr(driver.database, "connect", lambda _: create_engine("sqlite://"))
    monkeypatch.setattr(
        driver.database, "fetch_all", lambda *_, **__: [SimpleNamespace(release_uri="s3://r", model_uri=None)]
    )
    monkeypatch.setattr(driver, "read_progress", lambda *_: Progress())
    monkeypatch.setattr(driver, "best_call", lambda *_: None)
    monkeypatch.setattr(driver, "SECONDS_BETWEEN_LOOKS", 0.0)
    return Console(file=io.StringIO(), width=200)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def run_dag(console: Console, airflow: Any) -> bool:
    """Whether the run of a DAG succeeded."""
    return driver._watch(console, airflow, Settings(), "annotate_corpus", "run-1", {})


def test_the_index_is_built_while_airflow_starts(console, monkeypatch, tmp_path):
    steps: list[Any] = []

    class Worker:
        def submit(self, work: Any, *_: Any, **__: Any) -> Any:
            steps.append(work.__name__)
            return Mock()

    monkeypatch.setattr(driver, "up", lambda settings, only=None: steps.append(only) or settings)
    monkeypatch.setattr(driver, "another_process", lambda: nullcontext(Worker()))
    monkeypatch.setattr(driver, "wikipedia", lambda _: tmp_path)
    driver.start_all(console, Settings(state_dir=tmp_path, default_model="m"), with_index=True)
    assert steps == ["prepare_demo_model", ("postgres", "object_store"), "build_index", None]


def test_a_run_that_succeeded_has_made_what_it_is_for(console):
    assert run_dag(console, scripted_airflow(["success"]))


def test_the_first_kept_call_is_said_once(console, monkeypatch):
    kept = iter([None, Text("saves 2.02 nats: so [Calculator(2 + 2) -> 4] 4"), *[Text("a better one")] * 2])
    monkeypatch.setattr(driver, "best_call", lambda *_: next(kept))
    run_dag(console, scripted_airflow(["running", "running", "running", "success"]))
    said = [line for line in written(console).splitlines() if "first kept call" in line]
    assert said == ["A first kept call, saves 2.02 nats: so [Calculator(2 + 2) -> 4] 4"]


def test_a_run_that_succeeded_without_a_release_kept_no_call(console, monkeypatch):
    monkeypatch.setattr(
        driver.database, "fetch_all", lambda *_, **__: [SimpleNamespace(release_uri=None, model_uri=None)]
    )
    assert not run_dag(console, scripted_airflow(["success"]))


def test_a_run_whose_release_failed_has_failed(console):
    with pytest.raises(ToolformerError):
        run_dag(console, scripted_airflow(["failed"], [RELEASE, FINISH]))


def test_how_to_watch_a_run_again_is_said_at_its_start_as_where_airflow_does_not_answer(console):
    attach = "toolformer-ops run --attach run-1"
    with pytest.raises(AirflowNotReadyError):
        run_dag(console, scripted_airflow([AirflowNotReadyError("no answer")]))
    assert f"; to watch it again: {attach})" in written(console)
    assert f"or watch it again: {attach}" in written(console)


def failed_at(task_id: str, try_number: int = 1) -> TaskState:
    return TaskState(task_id, -1, "failed", try_number, "1")


@pytest.mark.parametrize(
    ("failed", "is_refused"),
    [
        ([failed_at("ingest"), FINISH], True),
        ([failed_at("start_run"), FINISH], True),
        ([failed_at("build_index")], True),
        ([failed_at("ingest", 3), FINISH], False),  # an error of its own, or Postgres was away
        ([failed_at("ingest")], False),  # a person ended the run
        ([QA, FINISH], False),
        ([], False),
    ],
)
def test_a_run_whose_first_task_was_not_tried_again_was_a_wrong_request(console, failed, is_refused):
    with pytest.raises(ToolformerError) as caught:
        run_dag(console, scripted_airflow(["failed"], failed))
    assert exit_code(caught.value) == (EXIT_USAGE if is_refused else EXIT_FAILED)


def test_a_run_that_is_not_there_is_a_wrong_request(console, monkeypatch):
    airflow = scripted_airflow([])
    airflow.find_run.return_value = None
    monkeypatch.setattr(driver, "start_all", lambda console, settings, with_model: settings)
    monkeypatch.setattr(driver, "AirflowClient", SimpleNamespace(of=lambda *_, **__: nullcontext(airflow)))
    with pytest.raises(UsageError, match="expected a run of annotate_corpus, found none called nothing"):
        driver.attach(console, Settings(), "nothing")


def test_a_run_that_is_watched_again_ends_with_its_report_without_a_start(console, monkeypatch):
    airflow = scripted_airflow(["running", "success"])
    reported: list[tuple[str, bool]] = []
    monkeypatch.setattr(driver, "start_all", lambda console, settings, with_model: settings)
    monkeypatch.setattr(driver, "AirflowClient", SimpleNamespace(of=lambda *_, **__: nullcontext(airflow)))
    monkeypatch.setattr(driver, "_report", lambda *arguments, kept: reported.append((arguments[2], kept)))
    driver.attach(console, Settings(), "run-1")
    assert reported == [("run-1", True)]
    airflow.trigger.assert_not_called()


BEGAN = datetime.datetime(2026, 11, 28, 20, 0, tzinfo=datetime.UTC)


def ended(task_id: str, minute: int, state: str = "success") -> TaskState:
    return TaskState(task_id, -1, state, 1, f"2026-11-28T20:{minute:02}:00+00:00")


def test_a_phase_ends_with_its_last_task():
    tasks = [ended("check", 2), ended("release", 3), ended("check_release", 4), ended("finish_run", 9)]
    assert seconds_by_phase(tasks, BEGAN) == {"annotation": 120.0, "release": 120.0, "training": 300.0}


def test_a_phase_that_was_skipped_is_part_of_the_next():
    tasks = [ended("check", 2), ended("check_release", 4, "skipped"), ended("finish_run", 9)]
    assert seconds_by_phase(tasks, BEGAN) == {"annotation": 120.0, "training": 420.0}


def test_the_best_call_so_far_is_shown_beside_the_progress(console, monkeypatch):
    shown_calls: list[Text | None] = []
    monkeypatch.setattr(driver, "best_call", lambda *_: Text("gains"))
    monkeypatch.setattr(
        driver, "watch", lambda *arguments: shown_calls.append(arguments[3]().best) or "success"
    )
    run_dag(console, scripted_airflow([]))
    assert shown_calls == [Text("gains")]
