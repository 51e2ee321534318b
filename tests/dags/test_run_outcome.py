"""What the tasks at the end make of the states of all others."""

import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tests.written_nights import Nights, Record, Tool
from toolformer_ops.airflow_tasks import notifying, run_outcome, stopped_runs
from toolformer_ops.airflow_tasks.kubernetes import pods
from toolformer_ops.airflow_tasks.run_outcome import REASON, FinishRun, GatherTools, failed_tasks, note_why_not_started
from toolformer_ops.config import load_settings
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages import run_setup
from toolformer_ops.storage import database

BEFORE = ("ingest", "start_run", "QA.annotate", "QA.check", "MT.annotate", "MT.check")
TASKS = (*BEFORE, "gather_tools", "release", "finish_run")


@dataclass
class Instance:
    """A task instance of a run whose tasks are all well, but for `changed`, with what others have pushed."""

    changed: dict[str, str]
    pushed: dict[str, Any]
    dag_id: str = "annotate_corpus"
    run_id: str = "night-1"

    def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
        states = {**dict.fromkeys(TASKS, "success"), "finish_run": "running", **self.changed}
        return {run_id: states for run_id in run_ids if dag_id == self.dag_id}

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        return self.pushed.get(task_ids)

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def context(changed: dict[str, str] | None = None, **pushed: Any) -> Any:
    """Airflow's context of such a run; `pushed` by task."""
    return {"ti": Instance(changed or {}, pushed), "dag": SimpleNamespace(task_ids=TASKS)}


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notes that were set."""
    found: list[str] = []
    monkeypatch.setattr(run_outcome, "set_note", lambda context, text: found.append(text))
    return found


@pytest.fixture
def _with_both_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = RunChoices(corpus="c", model="m", tools=("QA", "MT"))
    monkeypatch.setattr(run_outcome, "choices_of", lambda context: choices)


def gather(context: Any) -> list[str]:
    checks = {"QA": "QA.check", "MT": "MT.check"}
    task = GatherTools(task_id="gather_tools", checks=checks, opened_by="start_run", chosen_by="tools_to_do")
    return task.execute(context)


def finish(context: Any, arguments_file: Path, summary: str = "", **changed: Any) -> None:
    """Run the last task, whose program writes down its arguments and prints a summary."""
    program = f"import json, pathlib, sys; pathlib.Path({str(arguments_file)!r}).write_text(json.dumps(sys.argv[1:]))"
    program += f"; print(json.dumps({{'summary': {summary!r}}}))" if summary else ""
    tasks = {"opened_by": "start_run", "gathered_by": "gather_tools", "made_by": "release", "product": "release"}
    FinishRun(
        task_id="finish_run",
        arguments=["stage", "finish-run", "--run", "night-1"],
        command=[sys.executable, "-c", program],
        **tasks | changed,
    ).execute(context)


NO_CORPUS = "corpus: expected files at /nowhere, found nothing. Correct it, or put the files there."
BOTH = ["QA", "MT"]
NOTHING_MADE = "expected at least one tool to come through, found none: nothing to release. Tasks that failed: "
NOT_STARTED = {"ingest": "failed", "start_run": "upstream_failed", "gather_tools": "skipped", "release": "skipped"}
RUNS: dict[str, tuple[dict[str, str], dict[str, Any], list[str] | str, str | None]] = {
    "all is well": ({}, {}, BOTH, ""),
    "a tool was not chosen": ({"MT.annotate": "skipped", "MT.check": "skipped"}, {}, ["QA"], ""),
    "no tool has work": ({"QA.check": "skipped", "MT.check": "skipped"}, {"tools_to_do": []}, BOTH, ""),
    "one has work": ({"QA.check": "skipped"}, {"tools_to_do": ["MT"]}, BOTH, ""),
    "with work, and skipped": ({"QA.check": "skipped", "MT.check": "skipped"}, {"tools_to_do": ["MT"]}, ["QA"], ""),
    "the night was missed": (dict.fromkeys(BEFORE, "skipped"), {}, "the run did not start.", None),
    "a tool failed": (
        {"MT.annotate": "failed", "MT.check": "upstream_failed"}, {}, ["QA"],
        "failed: MT.annotate. The release is out, without what these would have given.",
    ),
    "all tools failed": (
        {"QA.check": "failed", "MT.check": "failed", "gather_tools": "failed", "release": "upstream_failed"}, {},
        f"{NOTHING_MADE}QA.check, MT.check, gather_tools.", "failed: QA.check, MT.check. There is no release.",
    ),
    "the only tool failed": (
        {"QA.check": "failed", "MT.check": "skipped"}, {},
        f"{NOTHING_MADE}QA.check.", "failed: QA.check. The release is out, without what these would have given.",
    ),
    "it never started": (
        {"start_run": "failed", "release": "upstream_failed"}, {},
        "the run did not start.", "failed: start_run. There is no release.",
    ),
    "it never started, and why": (
        NOT_STARTED, {"ingest": NO_CORPUS},
        "the run did not start.", f"failed: ingest: {NO_CORPUS} There is no release.",
    ),
}  # fmt: skip
"""By what happened: states other than success, what tasks pushed, the tools that are gathered or why none is, and the problem that
finish-run writes: "" of a success, None if it is not started."""


@pytest.mark.usefixtures("_with_both_tools")
@pytest.mark.parametrize(("changed", "pushed", "gathered", "problem"), RUNS.values(), ids=RUNS)
def test_which_tools_are_gathered_and_how_the_run_is_closed(
    tmp_path: Path,
    notes: list[str],
    changed: dict[str, str],
    pushed: dict[str, Any],
    gathered: list[str] | str,
    problem: str | None,
) -> None:
    if isinstance(gathered, list):
        assert gather(context(changed, **pushed)) == gathered
    else:
        kind = AirflowFailException if gathered.startswith(NOTHING_MADE) else AirflowSkipException
        with pytest.raises(kind) as caught:
            gather(context(changed, **pushed))
        assert str(caught.value).startswith(gathered)
    if problem:
        with pytest.raises(AirflowFailException) as failed:
            finish(context(changed, **pushed), tmp_path / "argv")
        assert str(failed.value).startswith(f"{problem} Open the log of the first")
    elif problem is None:
        with pytest.raises(AirflowSkipException):
            finish(context(changed, **pushed), tmp_path / "argv")
        assert not (tmp_path / "argv").exists()
    else:
        finish(context(changed, **pushed), tmp_path / "argv")
    if problem is not None:
        state = "failed" if problem else "success"
        assert json.loads((tmp_path / "argv").read_text()) == [
            "stage", "finish-run", "--run", "night-1", "--state", state, "--problem", problem,
        ]  # fmt: skip
    assert notes == ([problem] if problem else [])


def test_the_summary_that_the_stage_prints_is_the_note(tmp_path: Path, notes: list[str]) -> None:
    finish(context(), tmp_path / "argv", "3 documents are new.")
    with pytest.raises(AirflowFailException):
        finish(context({"MT.annotate": "failed"}), tmp_path / "argv", "failed: MT.annotate. 3 documents are new.")
    assert notes == ["3 documents are new.", "failed: MT.annotate. 3 documents are new."]


def test_why_a_run_did_not_start_is_its_note_at_once_and_kept_for_its_end(notes: list[str]) -> None:
    first = context()
    note_why_not_started(first | {"exception": AirflowFailException(NO_CORPUS)})
    assert notes == [f"The run did not start. {NO_CORPUS}"]
    assert first["ti"].pushed == {REASON: NO_CORPUS}


@pytest.mark.parametrize(
    ("failed", "said"),
    [("QA.check", "failed: QA.check. The model is out, without what these"), ("release", "There is no model")],
)
def test_a_suite_that_failed_makes_the_run_red_though_the_model_is_out(tmp_path: Path, failed: str, said: str) -> None:
    with pytest.raises(AirflowFailException, match=said):
        finish(context({failed: "failed"}), tmp_path / "argv", gathered_by=None, product="model")


@pytest.mark.parametrize(
    ("states", "tasks", "expected"),
    [
        (
            {"MT.annotate_0": "failed", "MT.annotate_1": "success", "MT.annotate_12": "failed",
             "QA.check": "upstream_failed", "start_run": "failed"},
            TASKS, ["start_run", "MT.annotate (2 shards)"],
        ),
        ({"QA.annotate_3": "failed"}, TASKS, ["QA.annotate (1 shard)"]),
        ({"check_release": "failed"}, ["check", "check_release"], ["check_release"]),
    ],
    ids=["in the order of the DAG", "one shard", "no shard of a task whose name it begins with"],
)  # fmt: skip
def test_failed_tasks_come_with_their_shards_counted(states: Any, tasks: Any, expected: list[str]) -> None:
    assert failed_tasks(states, tasks) == expected


def test_a_gate_reads_what_the_run_was_started_with_whatever_its_form_holds_by_now(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", postgres_dsn)
    load_settings.cache_clear()
    nights = Nights(database.connect_dsn(postgres_dsn, database.DSN_SETTING))
    nights.ingest(Record("a text"))
    nights.start("nightly_posts.night-1", Tool("Calendar"), corpus="c", model="m", tools=["Calendar"], finetune=False)
    run: Any = {"ti": SimpleNamespace(dag_id="nightly_posts", run_id="night-1"), "params": {"finetune": True}}
    choices = run_outcome.choices_of(run)
    assert (choices.tools, choices.finetune) == (("Calendar",), False)


@pytest.mark.parametrize(("runner", "expected"), [("local", []), ("kubernetes", [("annotate_corpus", "night-1")])])
def test_the_end_of_a_run_of_pods_ends_what_outlived_its_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runner: str, expected: list[tuple[str, str]]
) -> None:
    ended: list[tuple[str, str]] = []
    monkeypatch.setattr(pods, "end_pods_of_run", lambda _, *, dag_id, run_id: ended.append((dag_id, run_id)))
    monkeypatch.setenv("TOOLFORMER_RUNNER", runner)
    load_settings.cache_clear()
    finish(context(), tmp_path / "argv")
    assert ended == expected


OF_A_PERSON = run_setup.ENDED
ENDS = [
    ("annotate_corpus", "failed", "", ("night-1", True, OF_A_PERSON), []),
    ("finetune_release", "success", "", ("night-1", False, OF_A_PERSON), []),
    ("nightly_posts", "failed", "timed_out",
     ("nightly_posts.night-1", True, stopped_runs.OUT_OF_TIME), ["nightly_posts.night-1"]),
    ("audit", "failed", "", None, []),
    ("somebody_elses", "failed", "", None, []),
]  # fmt: skip
"""DAG, how its run ended, what the scheduler says; how the annotation run is closed, and of which run people are told."""


@pytest.mark.parametrize(("dag_id", "state", "said", "closed", "told"), ENDS)
def test_a_run_that_is_over_is_closed_and_of_a_night_people_are_told(
    monkeypatch: pytest.MonkeyPatch, dag_id: str, state: str, said: str, closed: Any, told: list[str]
) -> None:
    found: list[tuple[str, bool, str]] = []
    of_whom: list[str] = []
    monkeypatch.setattr(
        run_setup, "close_run", lambda _, name, *, is_failure, problem: found.append((name, is_failure, problem))
    )
    monkeypatch.setattr(notifying, "start_sending", of_whom.append)
    end = {"failed": stopped_runs.on_dag_run_failed, "success": stopped_runs.on_dag_run_success}[state]
    before = set(threading.enumerate())
    end(SimpleNamespace(dag_id=dag_id, run_id="night-1"), said)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert found == ([closed] if closed else [])
    assert of_whom == told
