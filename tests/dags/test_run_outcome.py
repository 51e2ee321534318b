"""What the tasks at the end make of the states of all others."""

import datetime as dt
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.xcom import XCOM_RETURN_KEY
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tests.written_nights import Nights, Record, Tool
from toolformer_ops.airflow_tasks.kubernetes import pods
from toolformer_ops.airflow_tasks.nights import notifying
from toolformer_ops.airflow_tasks.run_ends import run_outcome, stopped_runs
from toolformer_ops.airflow_tasks.run_ends.run_outcome import (
    REASON,
    REFUSED,
    FinishRun,
    choices_of,
    failed_tasks,
    note_what_it_takes,
    note_why_failed,
    note_why_not_started,
)
from toolformer_ops.airflow_tasks.run_ids import KEEPS_PARAMETERS
from toolformer_ops.config import load_settings
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.owners import DagRun
from toolformer_ops.stages import run_setup

BEFORE = ("ingest", "start_run", "QA.annotate", "MT.annotate")
TASKS = (*BEFORE, "check", "release", "finish_run")


@dataclass
class Instance:
    """A task instance of a run whose tasks are all well, but for `changed`, with what others have pushed."""

    changed: dict[str, str]
    pushed: dict[str, Any]
    dag_id: str = "annotate_corpus"
    run_id: str = "night-1"
    task_id: str = "QA.filter"

    def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
        states = {**dict.fromkeys(TASKS, "success"), "finish_run": "running", **self.changed}
        return {run_id: states for run_id in run_ids if dag_id == self.dag_id}

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        pushed = self.pushed.get(task_ids)
        if key == REFUSED:
            return pushed if task_ids == "check" and isinstance(pushed, dict) else None
        return pushed if (key == XCOM_RETURN_KEY) == isinstance(pushed, dict) else None

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def context(changed: dict[str, str] | None = None, clear_number: int = 0, **pushed: Any) -> Any:
    """Airflow's context of such a run; `pushed` by task."""
    return {
        "ti": Instance(changed or {}, pushed),
        "dag": SimpleNamespace(task_ids=TASKS),
        "dag_run": SimpleNamespace(clear_number=clear_number),
    }


@pytest.fixture(autouse=True)
def notes(monkeypatch):
    """The notes that were set, of a run with both tools."""
    found: list[str] = []
    choices = RunChoices(corpus="c", model="m", tools=("QA", "MT"))
    monkeypatch.setattr(run_outcome, "choices_of", lambda context: choices)
    monkeypatch.setattr(run_outcome, "set_note", lambda context, text: found.append(text))
    return found


@contextmanager
def ending(message: str, *, is_failure: bool) -> Iterator[None]:
    """The block fails for good, or is skipped, with a message that starts so; if that is empty it passes."""
    if not message:
        yield
        return
    with pytest.raises(AirflowFailException if is_failure else AirflowSkipException) as caught:
        yield
    assert str(caught.value).startswith(message)


def finish(context: Any, arguments_file: Path, summary: str = "", **changed: Any) -> None:
    """Run the last task, whose program writes down its arguments and prints a summary."""
    program = f"import json, pathlib, sys; pathlib.Path({str(arguments_file)!r}).write_text(json.dumps(sys.argv[1:]))"
    program += f"; print(json.dumps({{'summary': {summary!r}}}))" if summary else ""
    tasks = {
        "opened_by": "start_run",
        "checked_by": "check",
        "made_by": "release",
        "product": "release",
    }
    task = FinishRun(command=[sys.executable, "-c", program], **tasks | changed)
    task.arguments = ["stage", "finish-run", "--run", "night-1"]
    task.execute(context)


NO_CORPUS = "corpus: expected files at /nowhere, found nothing. Correct it, or put the files there."
NOT_STARTED = {
    "ingest": "failed",
    "start_run": "upstream_failed",
    "check": "skipped",
    "release": "skipped",
}
NONE_PASSED = {"check": "failed", "release": "upstream_failed"}
NOTHING_CHECKED = NONE_PASSED | {"QA.annotate": "failed", "MT.annotate": "failed"}
WRONG = "1 of 9 checks of MT failed."
OUT = "The release is out, without what these would have given."
RUNS: list[tuple[dict[str, str], dict[str, Any], str | None]] = [
    ({}, {}, ""),
    (dict.fromkeys(BEFORE, "skipped"), {}, None),  # the night was missed
    ({"MT.annotate": "failed"}, {}, f"failed: MT.annotate. {OUT}"),
    ({}, {"check": {"MT": WRONG}}, f"failed: check of MT: {WRONG} {OUT}"),
    (NONE_PASSED, {"check": {"MT": WRONG}}, f"failed: check of MT: {WRONG} There is no release."),
    (NOTHING_CHECKED, {"check": {}}, "failed: QA.annotate, MT.annotate. There is no release."),
    (NONE_PASSED, {"check": "No answer."}, "failed: check: No answer. There is no release."),
    (NOT_STARTED, {"ingest": NO_CORPUS}, f"failed: ingest: {NO_CORPUS} There is no release."),
]
"""By what happened: states other than success, what tasks pushed, and the problem that finish-run writes: "" of a
success, None if it is not started."""


def test_the_run_is_closed_by_what_failed(tmp_path, notes):
    for number, (changed, pushed, problem) in enumerate(RUNS):
        arguments, is_closed = tmp_path / str(number), problem is not None
        notes.clear()
        with ending(problem or ("" if is_closed else "the run was skipped."), is_failure=is_closed):
            finish(context(changed, **pushed), arguments)
        assert arguments.exists() == is_closed
        if is_closed:
            state = ["--state", "failed" if problem else "success", "--problem", problem]
            state += ["--not-opened"] if changed == NOT_STARTED else []
            assert json.loads(arguments.read_text()) == ["stage", "finish-run", "--run", "night-1", *state]
        assert [note.removesuffix(f" {KEEPS_PARAMETERS}") for note in notes] == ([problem] if problem else [])


def test_a_suite_that_failed_makes_the_run_red_under_the_summary_as_note(tmp_path, notes):
    finish(context(), tmp_path / "argv", "3 documents are new.")
    for failed, said in (
        ("QA.annotate", "failed: QA.annotate. The model is out"),
        ("release", "There is no model"),
    ):
        with pytest.raises(AirflowFailException, match=said):
            finish(
                context({failed: "failed"}),
                tmp_path / "argv",
                "It failed.",
                checked_by=None,
                product="model",
            )
    assert notes == ["3 documents are new.", "It failed.", "It failed."]


def test_why_a_run_did_not_start_is_its_note_at_once_as_at_its_end(notes):
    first = context()
    note_why_not_started(first | {"exception": AirflowFailException(NO_CORPUS)})
    assert notes == [f"The run did not start. {NO_CORPUS} {KEEPS_PARAMETERS}"]
    assert first["ti"].pushed == {REASON: NO_CORPUS}


def test_the_note_of_a_cleared_run_says_that_it_was_cleared(notes):
    note_why_not_started(context(clear_number=1) | {"exception": AirflowFailException(NO_CORPUS)})
    assert notes == [f"The cleared run did not start. {NO_CORPUS} {KEEPS_PARAMETERS}"]


def test_the_end_of_a_cleared_run_does_not_deny_an_earlier_release(tmp_path, notes):
    with pytest.raises(AirflowFailException, match="There is no new release"):
        finish(context(NOT_STARTED, clear_number=1, ingest=NO_CORPUS), tmp_path / "argv")


def test_a_run_that_did_not_start_says_that_clearing_it_changes_no_parameter(tmp_path, notes):
    with pytest.raises(AirflowFailException, match=KEEPS_PARAMETERS):
        finish(context(NOT_STARTED, ingest=NO_CORPUS), tmp_path / "argv")
    assert notes == [f"failed: ingest: {NO_CORPUS} There is no release. {KEEPS_PARAMETERS}"]


def test_a_run_that_has_started_says_at_once_how_many_documents_it_takes(notes):
    started = {"tools": ["QA", "MT"], "takes": "1 of 64 texts (document limit 1)"}
    note_what_it_takes(context(), started)
    assert notes == ["Takes 1 of 64 texts (document limit 1), with QA, MT."]


def test_the_note_of_a_run_that_has_started_keeps_what_a_person_should_mind(notes):
    looked = context()
    looked["ti"].pushed["ingest"] = ["mind  records: 1 of 3 are refused"]
    note_what_it_takes(looked, {"tools": ["QA"], "takes": "2 texts"})
    assert notes == ["Takes 2 texts, with QA.\nmind  records: 1 of 3 are refused"]


def test_why_a_task_failed_is_the_note_at_once_without_what_only_a_log_needs(notes):
    failing = context()
    error = AirflowFailException("stage filter: exit status 2: 13:53:21 ERROR ToolError: QA is gone.")
    note_why_failed(failing | {"exception": error})
    assert notes == ["QA.filter failed: QA is gone. What does not need it goes on."]
    assert failing["ti"].pushed == {REASON: "QA is gone."}


def test_the_end_says_why_the_first_failed_task_failed(tmp_path, notes):
    failed = {"QA.annotate_0": "failed", "QA.annotate_1": "failed"}
    with pytest.raises(AirflowFailException):
        finish(context(failed, **{"QA.annotate": [None, "QA is gone."]}), tmp_path / "argv")
    assert notes == [f"failed: QA.annotate (2 shards): QA is gone. {OUT}"]


def test_a_run_without_a_kept_call_that_lacks_a_tool_is_not_said_to_have_a_release(tmp_path, notes):
    with pytest.raises(AirflowFailException):
        finish(context({"MT.annotate": "failed"}, release={"release_id": None}), tmp_path / "argv")
    assert notes == ["failed: MT.annotate. There is no release."]


def test_a_chosen_tool_that_the_dag_lacks_makes_the_run_red(tmp_path, notes):
    with pytest.raises(AirflowFailException):
        finish(context(), tmp_path / "argv", tools=["QA"])
    [note] = notes
    assert note.startswith("failed: MT: this version of the DAG has no such tool. Put its file back into ")


def test_a_tool_of_the_dag_that_the_run_did_not_choose_is_not_missed(tmp_path, notes):
    finish(context(), tmp_path / "argv", tools=["QA", "MT", "Echo"])
    assert notes == []


def test_failed_tasks_come_in_the_order_of_the_dag_with_their_shards_counted():
    states: Any = {"MT.annotate_0": "failed", "MT.annotate_1": "success", "MT.annotate_12": "failed"}
    states |= {"QA.annotate_3": "failed", "check": "upstream_failed", "start_run": "failed"}
    assert failed_tasks(states, TASKS) == ["start_run", "QA.annotate (1 shard)", "MT.annotate (2 shards)"]
    # It is no shard of a task whose name it begins with.
    assert failed_tasks({"check_release": "failed"}, ["check", "check_release"]) == ["check_release"]


def test_a_gate_reads_what_the_run_was_started_with_whatever_its_form_holds_by_now(
    postgres_dsn, engine, monkeypatch
):
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", postgres_dsn)
    load_settings.cache_clear()
    nights = Nights(engine)
    nights.ingest(Record("a text"))
    nights.start(
        "nightly_posts.night-1", Tool("Calendar"), corpus="c", model="m", tools=["Calendar"], finetune=False
    )
    run: Any = {"ti": SimpleNamespace(dag_id="nightly_posts", run_id="night-1"), "params": {"finetune": True}}
    choices = choices_of(run)
    assert (choices.tools, choices.finetune) == (("Calendar",), False)


def test_the_end_of_a_run_of_pods_ends_what_outlived_its_task(monkeypatch, tmp_path):
    ended: list[tuple[str, str]] = []
    monkeypatch.setattr(pods, "end_pods_of_run", lambda _, *, dag_id, run_id: ended.append((dag_id, run_id)))
    for runner, expected in (("local", []), ("kubernetes", [("annotate_corpus", "night-1")])):
        monkeypatch.setenv("TOOLFORMER_RUNNER", runner)
        load_settings.cache_clear()
        finish(context(), tmp_path / "argv")
        assert ended == expected


def test_a_run_that_is_over_is_closed_while_people_are_told_of_a_night(monkeypatch):
    closed: list[tuple[str, bool, str, DagRun]] = []
    told: list[str] = []
    at_two = dt.datetime(2026, 11, 26, 2, tzinfo=dt.UTC)

    def close(_: object, run_id: str, *, is_failure: bool, problem: str, dag_run: DagRun) -> None:
        closed.append((run_id, is_failure, problem, dag_run))

    monkeypatch.setattr(run_setup, "close_run", close)
    monkeypatch.setattr(notifying, "start_sending", told.append)
    before = set(threading.enumerate())
    for dag_id, end, said in (
        ("annotate_corpus", stopped_runs.on_dag_run_failed, ""),
        ("finetune_release", stopped_runs.on_dag_run_success, ""),
        ("nightly_posts", stopped_runs.on_dag_run_failed, "timed_out"),
        ("audit", stopped_runs.on_dag_run_failed, ""),
    ):
        end(SimpleNamespace(dag_id=dag_id, run_id="night-1", run_after=at_two), said)
        for thread in set(threading.enumerate()) - before:
            thread.join()
    assert closed == [
        ("night-1", True, run_setup.ENDED, DagRun("annotate_corpus", at_two)),
        ("night-1", False, run_setup.ENDED, DagRun("finetune_release", at_two)),
        ("nightly_posts.night-1", True, stopped_runs.OUT_OF_TIME, DagRun("nightly_posts", at_two)),
    ]
    assert told == ["nightly_posts.night-1"]
