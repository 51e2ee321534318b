"""What the tasks at the end make of the states of all others."""

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tests.written_nights import Nights, Record, Tool
from toolformer_ops.config import load_settings
from toolformer_ops.orchestration import notifying, run_outcome, stopped_runs
from toolformer_ops.orchestration.run_outcome import (
    REASON,
    FinishRun,
    GatherTools,
    choices_of,
    failed_tasks,
    note_why_not_started,
)
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages import run_setup
from toolformer_ops.storage import database

TASKS = [
    "ingest",
    "start_run",
    "QA.annotate",
    "QA.check",
    "MT.annotate",
    "MT.check",
    "gather_tools",
    "release",
    "finish_run",
]
ALL_WELL = dict.fromkeys(TASKS, "success") | {"finish_run": "running"}


def context(to_do: list[str] | None = None, reason: str | None = None, **changes: str) -> Any:
    """Airflow's context for a run whose tasks are all well, but for these.

    `to_do`: the tools with work; `reason`: why the first task failed.
    """
    pushed: dict[str, Any] = {}
    states = ALL_WELL | {name.replace("__", "."): state for name, state in changes.items()}
    instance = SimpleNamespace(
        dag_id="annotate_corpus",
        run_id="night-1",
        pushed=pushed,
        xcom_push=lambda key, value: pushed.update({key: value}),
        xcom_pull=lambda task_ids, key: {"tools_to_do": to_do, "ingest": reason}.get(task_ids),
        get_task_states=lambda dag_id, run_ids: {run_id: states for run_id in run_ids if dag_id == "annotate_corpus"},
    )
    return {"ti": instance, "dag": SimpleNamespace(task_ids=TASKS)}


@pytest.fixture(autouse=True)
def _stored_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was started with both tools."""
    choices = RunChoices(corpus="c", model="m", tools=("QA", "MT"))
    monkeypatch.setattr(run_outcome, "choices_of", lambda context: choices)


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notes that were set."""
    found: list[str] = []
    monkeypatch.setattr(run_outcome, "set_note", lambda context, text: found.append(text))
    return found


def gather() -> GatherTools:
    return GatherTools(
        task_id="gather_tools",
        checks={"QA": "QA.check", "MT": "MT.check"},
        opened_by="start_run",
        chosen_by="tools_to_do",
    )


def finish(arguments_file: Path, summary: str = "") -> FinishRun:
    """The last task, with a program that writes down its arguments, and prints a summary."""
    program = f"import json, pathlib, sys; pathlib.Path({str(arguments_file)!r}).write_text(json.dumps(sys.argv[1:]))"
    program += f"; print(json.dumps({{'summary': {summary!r}}}))" if summary else ""
    return FinishRun(
        task_id="finish_run",
        arguments=["stage", "finish-run", "--run", "night-1"],
        opened_by="start_run",
        gathered_by="gather_tools",
        made_by="release",
        product="release",
        command=[sys.executable, "-c", program],
    )


def test_a_gate_reads_what_the_run_was_started_with_whatever_its_form_holds_by_now(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", postgres_dsn)
    load_settings.cache_clear()
    nights = Nights(database.connect_dsn(postgres_dsn, database.DSN_SETTING))
    nights.ingest(Record("a text"))
    nights.start("nightly_posts.night-1", Tool("Calendar"), corpus="c", model="m", tools=["Calendar"], finetune=False)
    run = {"ti": SimpleNamespace(dag_id="nightly_posts", run_id="night-1"), "params": {"finetune": True}}
    choices = choices_of(run)  # type: ignore[arg-type]
    assert (choices.tools, choices.finetune) == (("Calendar",), False)


def test_failed_tasks_come_in_the_order_of_the_dag_with_their_shards_counted() -> None:
    states = {
        "MT.annotate_0": "failed",
        "MT.annotate_1": "success",
        "MT.annotate_12": "failed",
        "QA.check": "upstream_failed",
    }
    assert failed_tasks(states | {"start_run": "failed"}, TASKS) == ["start_run", "MT.annotate (2 shards)"]


def test_a_task_is_not_taken_for_the_shard_of_another() -> None:
    assert failed_tasks({"check_release": "failed"}, ["check", "check_release"]) == ["check_release"]


def test_all_tools_are_gathered_where_all_are_done() -> None:
    assert gather().execute(context()) == ["QA", "MT"]


def test_a_tool_that_was_not_chosen_is_no_failure() -> None:
    assert gather().execute(context(MT__check="skipped")) == ["QA"]


def test_a_tool_without_work_is_done_though_its_tasks_were_skipped() -> None:
    skipped = {"QA__check": "skipped", "MT__check": "skipped"}
    assert gather().execute(context(to_do=[], **skipped)) == ["QA", "MT"]
    assert gather().execute(context(to_do=["MT"], QA__check="skipped")) == ["QA", "MT"]


def test_a_tool_with_work_whose_tasks_were_skipped_is_not_done() -> None:
    assert gather().execute(context(to_do=["MT"], MT__check="skipped", QA__check="skipped")) == ["QA"]


def test_a_night_that_was_skipped_gathers_nothing_and_is_not_closed(tmp_path: Path, notes: list[str]) -> None:
    skipped = dict.fromkeys(("ingest", "start_run", "QA__check", "MT__check"), "skipped")
    with pytest.raises(AirflowSkipException):
        gather().execute(context(**skipped))
    with pytest.raises(AirflowSkipException):
        finish(tmp_path / "argv").execute(context(**skipped))
    assert not (tmp_path / "argv").exists()
    assert notes == []


def test_the_summary_is_the_note(tmp_path: Path, notes: list[str]) -> None:
    finish(tmp_path / "argv", "3 documents are new.").execute(context())
    with pytest.raises(AirflowFailException):
        finish(tmp_path / "argv").execute(context(MT__annotate="failed"))
    assert notes == [
        "3 documents are new.", "failed: MT.annotate. The release is out, without what these would have given.",
    ]  # fmt: skip


def test_one_tool_is_enough_for_a_release() -> None:
    assert gather().execute(context(QA__check="upstream_failed", QA__annotate="failed")) == ["MT"]


def test_without_any_tool_there_is_nothing_to_release() -> None:
    with pytest.raises(AirflowFailException, match=r"found none: nothing to release\. Tasks that failed: QA\.check"):
        gather().execute(context(QA__check="failed", MT__check="skipped"))


def test_a_run_without_failures_is_closed_as_a_success(tmp_path: Path) -> None:
    finish(tmp_path / "argv").execute(context())
    assert json.loads((tmp_path / "argv").read_text()) == [
        "stage", "finish-run", "--run", "night-1", "--state", "success", "--problem", "",
    ]  # fmt: skip


def test_skipped_tasks_do_not_make_a_run_red(tmp_path: Path) -> None:
    finish(tmp_path / "argv").execute(context(MT__check="skipped", MT__annotate="skipped"))
    assert json.loads((tmp_path / "argv").read_text())[-3] == "success"


def test_a_failed_tool_makes_the_run_red_though_the_release_is_out(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match=r"failed: MT\.annotate\. The release is out"):
        finish(tmp_path / "argv").execute(context(MT__annotate="failed", MT__check="upstream_failed"))
    *_, state, _, problem = json.loads((tmp_path / "argv").read_text())
    assert (state, problem.partition(".")[0]) == ("failed", "failed: MT")


def test_the_task_that_only_gathers_is_not_named_as_a_cause(tmp_path: Path) -> None:
    changes = {"QA__check": "failed", "MT__check": "failed", "gather_tools": "failed", "release": "upstream_failed"}
    with pytest.raises(AirflowFailException, match=r"failed: QA\.check, MT\.check\. There is no release"):
        finish(tmp_path / "argv").execute(context(**changes))


def test_a_run_that_never_started_is_recorded_with_what_failed(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match=r"failed: start_run\. There is no release"):
        finish(tmp_path / "argv").execute(context(start_run="failed", release="upstream_failed"))
    *_, state, _, problem = json.loads((tmp_path / "argv").read_text())
    assert (state, problem) == ("failed", "failed: start_run. There is no release.")


NO_CORPUS = "corpus: expected files at /nowhere, found nothing. Correct it, or put the files there."


def test_why_a_run_did_not_start_is_its_note_at_once_and_again_at_its_end(tmp_path: Path, notes: list[str]) -> None:
    first = context()
    note_why_not_started(first | {"exception": AirflowFailException(NO_CORPUS)})
    assert notes == [f"The run did not start. {NO_CORPUS}"]
    reason = first["ti"].pushed[REASON]

    at_the_end = {"ingest": "failed", "start_run": "upstream_failed", "release": "skipped"}
    with pytest.raises(AirflowSkipException, match="did not start"):
        gather().execute(context(**at_the_end))
    with pytest.raises(AirflowFailException):
        finish(tmp_path / "argv").execute(context(reason=reason, gather_tools="skipped", **at_the_end))
    problem = f"failed: ingest: {NO_CORPUS} There is no release."
    assert json.loads((tmp_path / "argv").read_text())[-1] == problem  # what finish-run writes into runs_not_started
    assert notes[1:] == [problem]


def test_a_suite_that_failed_makes_the_run_red_though_the_model_is_out(tmp_path: Path) -> None:
    task = finish(tmp_path / "argv")
    task.gathered_by, task.made_by, task.product = None, "release", "model"
    with pytest.raises(AirflowFailException, match=r"failed: QA\.check\. The model is out, without what these"):
        task.execute(context(QA__check="failed"))
    with pytest.raises(AirflowFailException, match=r"There is no model"):
        task.execute(context(release="failed"))


def test_the_end_of_a_run_of_pods_ends_what_outlived_its_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from toolformer_ops.orchestration import pods

    ended: list[tuple[str, str]] = []
    monkeypatch.setattr(pods, "end_pods_of_run", lambda _, *, dag_id, run_id: ended.append((dag_id, run_id)))
    finish(tmp_path / "arguments").execute(context())
    assert ended == []
    monkeypatch.setenv("TOOLFORMER_RUNNER", "kubernetes")
    load_settings.cache_clear()
    finish(tmp_path / "arguments").execute(context())
    assert ended == [("annotate_corpus", "night-1")]


def test_a_run_that_is_over_is_closed_and_of_a_night_people_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[tuple[str, bool, str]] = []
    told: list[str] = []
    monkeypatch.setattr(
        run_setup, "close_run", lambda _, name, *, is_failure, problem: closed.append((name, is_failure, problem))
    )
    monkeypatch.setattr(notifying, "start_sending", told.append)
    for dag_id in ("annotate_corpus", "finetune_release", "nightly_posts", "audit", "somebody_elses"):
        run: Any = SimpleNamespace(dag_id=dag_id, run_id="night-1")
        before = set(threading.enumerate())
        if dag_id == "finetune_release":
            stopped_runs.on_dag_run_success(run, "")
        else:
            stopped_runs.on_dag_run_failed(run, "timed_out" if dag_id == "nightly_posts" else "")
        for thread in set(threading.enumerate()) - before:
            thread.join()
    assert closed == [
        ("night-1", True, run_setup.ENDED),
        ("night-1", False, run_setup.ENDED),
        ("nightly_posts.night-1", True, stopped_runs.OUT_OF_TIME),
    ]
    assert told == ["nightly_posts.night-1"]
