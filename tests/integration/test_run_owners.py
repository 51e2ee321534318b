"""A run's row belongs to the DAG run that opened it: another DAG run of the same run id writes nothing to it."""

import datetime as dt
import json
from typing import Any

import pytest

from tests.fake_language_model import FakeLanguageModel
from tests.run_sql import run_sql
from toolformer_ops.audit.auditing import findings_of
from toolformer_ops.audit.running import audit
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.owners import DagRun
from toolformer_ops.stages import run_setup
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import close_run, finish_run, start_run
from toolformer_ops.storage.postgres import database, queries

AT_TWO = dt.datetime(2026, 11, 26, 2, tzinfo=dt.UTC)
OWNER = DagRun("annotate_corpus", AT_TWO)
OF_ANOTHER_DAG = DagRun("finetune_release", AT_TWO)
OF_THE_ID_AGAIN = DagRun("annotate_corpus", AT_TWO + dt.timedelta(hours=1))
"""After the owner was deleted in Airflow."""
OTHERS = [OF_ANOTHER_DAG, OF_THE_ID_AGAIN]
THEIR_PROBLEM = "failed: start_run: expected a run id of its own."


@pytest.fixture
def chosen(settings, use_model, tmp_path):
    """Choices over a corpus of one text, which is ingested."""
    use_model(FakeLanguageModel())
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"text": "2 cats and 3 dogs, a total of 5 animals."}) + "\n")
    ingest_corpus(settings, str(path))
    return RunChoices.parse({"corpus": str(path), "model": "fake", "tools": ["Calculator"]})


def ends(settings: Settings) -> list[tuple[Any, ...]]:
    """State, problem and end of the run, with when its numbers were stored."""
    return [
        tuple(row)
        for row in run_sql(
            settings, "select state, problem, finished_at, numbers_stored_at from annotation_runs"
        )
    ]


@pytest.fixture
def finished(settings, chosen):
    """How the run r of the owner ended."""
    start_run(settings, "r", chosen, dag_run=OWNER)
    finish_run(settings, "r", "success", dag_run=OWNER)
    return ends(settings)


@pytest.mark.parametrize("other", OTHERS)
def test_a_run_that_belongs_to_another_dag_run_is_not_opened(settings, chosen, finished, other):
    with pytest.raises(
        ConfigurationError, match=r"found r, which belongs to the DAG run annotate_corpus@2026-11-26T02"
    ):
        start_run(settings, "r", chosen, dag_run=other)


@pytest.mark.parametrize("other", OTHERS)
def test_a_finished_run_is_not_ended_by_another_dag_run(settings, finished, other):
    finish_run(settings, "r", "failed", THEIR_PROBLEM, dag_run=other)
    assert ends(settings) == finished
    assert run_sql(settings, "select run_id from runs_not_started") == []


@pytest.mark.parametrize("other", OTHERS)
def test_a_running_run_is_not_closed_when_another_dag_run_ends(settings, chosen, other):
    start_run(settings, "r", chosen, dag_run=OWNER)
    close_run(settings, "r", dag_run=other)
    assert [state for state, *_ in ends(settings)] == ["running"]


def test_a_cleared_dag_run_opens_its_run_again(settings, chosen, finished):
    assert start_run(settings, "r", chosen, dag_run=OWNER) == ["Calculator"]


def test_a_dag_run_ends_its_own_run_again(settings, finished):
    finish_run(settings, "r", "failed", "failed: release.", dag_run=OWNER)
    assert ends(settings)[0][:2] == ("failed", "failed: release.")


def test_a_finished_run_keeps_its_end_when_its_own_dag_run_is_cleared_with_a_start_that_is_refused(
    settings, finished
):
    finish_run(settings, "r", "failed", "failed: start_run.", dag_run=OWNER, was_opened=False)
    assert ends(settings) == finished


def test_a_running_run_fails_when_its_own_dag_run_cannot_open_it_again(settings, chosen):
    start_run(settings, "r", chosen, dag_run=OWNER)
    finish_run(settings, "r", "failed", "failed: start_run.", dag_run=OWNER, was_opened=False)
    assert ends(settings)[0][0] == "failed"


def test_a_run_that_is_finished_while_it_is_closed_keeps_its_success(settings, chosen, monkeypatch):
    start_run(settings, "r", chosen, dag_run=OWNER)

    def finish_twice(*arguments: Any, **options: Any) -> str:
        finish_run(settings, "r", "success", dag_run=OWNER)
        return finish_run(*arguments, **options)

    monkeypatch.setattr(run_setup, "finish_run", finish_twice)
    close_run(settings, "r", dag_run=OWNER)
    assert ends(settings)[0][:2] == ("success", None)


def test_a_run_that_was_not_finished_is_closed_as_failed(settings, chosen):
    start_run(settings, "r", chosen, dag_run=OWNER)
    close_run(settings, "r", dag_run=OWNER, problem="the time was up.")
    assert ends(settings)[0][:2] == ("failed", "the time was up.")


def test_only_one_ends_a_run_at_a_time(settings, chosen, monkeypatch):
    start_run(settings, "r", chosen, dag_run=OWNER)
    free: list[list[Any]] = []
    fetch_all = database.fetch_all

    def watched(on: Any, statement: Any, /, **parameters: object) -> list[Any]:
        if statement is queries.runs.by_id:
            free.append(run_sql(settings, "select run_id from annotation_runs for update skip locked"))
        return fetch_all(on, statement, **parameters)

    monkeypatch.setattr(database, "fetch_all", watched)
    finish_run(settings, "r", "success", dag_run=OWNER)
    assert free[0] == []


def test_a_person_ends_every_run(settings, chosen):
    start_run(settings, "r", chosen, dag_run=OWNER)
    finish_run(settings, "r", "failed")
    assert ends(settings)[0][0] == "failed"


def test_a_run_of_the_command_line_is_not_taken_over_by_a_dag_run(settings, chosen):
    start_run(settings, "r", chosen)
    with pytest.raises(ConfigurationError, match="belongs to the command line"):
        start_run(settings, "r", chosen, dag_run=OWNER)


def test_a_run_from_before_owners_were_stored_is_ended_by_its_dag_run(settings, chosen):
    start_run(settings, "r", chosen)
    run_sql(settings, "update annotation_runs set dag_id = null")
    finish_run(settings, "r", "success", dag_run=OWNER)
    assert ends(settings)[0][0] == "success"


def found_by_audit(settings: Settings) -> list[tuple[str, str]]:
    outcome = audit(settings, sample=0)
    rows = findings_of(database.connect(settings), outcome.audit_id)
    return [(row.check_name, row.place) for row in rows]


def test_an_audit_finds_nothing_at_a_run_that_its_owner_ended(settings, finished):
    assert found_by_audit(settings) == []


@pytest.mark.parametrize(
    "forgery",
    [
        "state = 'failed', problem = 'failed: start_run.'",
        "finished_at = finished_at + interval '1 hour'",
        "state = 'running', finished_at = null, numbers_stored_at = null",
        "ended_hash = null",
    ],
)
def test_an_audit_finds_an_end_that_its_owner_did_not_write(settings, finished, forgery):
    run_sql(settings, f"update annotation_runs set {forgery}")
    assert found_by_audit(settings) == [("ends are those of their own run", "r")]


def test_an_audit_finds_a_run_that_was_given_to_another_dag_run(settings, chosen):
    start_run(settings, "r", chosen, dag_run=OWNER)
    run_sql(settings, "update annotation_runs set dag_id = 'finetune_release'")
    assert found_by_audit(settings) == [("runs are as registered", "r")]


def test_the_remedy_of_the_audit_mends_a_forged_end(settings, finished):
    run_sql(settings, "update annotation_runs set state = 'failed', problem = 'x'")
    finish_run(settings, "r", "success")
    assert found_by_audit(settings) == []
