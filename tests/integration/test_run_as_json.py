"""`toolformer-ops run --json`: the last line on stdout says how a run ended, for a pipeline."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr

from tests.annotated_runs import AnnotatedRun, release
from toolformer_ops import __main__ as command_line
from toolformer_ops import config, termination
from toolformer_ops.config import Settings
from toolformer_ops.errors import NoKeptCallError, ToolformerError, UsageError
from toolformer_ops.local.demo import driver
from toolformer_ops.local.demo.outcome import outcome_line
from toolformer_ops.stages.run_setup import finish_run
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, queries

SUM = "It is late. We had 520 shirts and sold 187, so 333 are left. Good night."


@pytest.fixture
def annotated(settings):
    """The run run-1 with two calls, of which one saves enough."""
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    shirts = run.add_text(SUM)
    run.add_call("Calculator", shirts, " 333", "520 - 187", "333", saves=2.25)
    run.add_call("Calculator", shirts, " 187", "520 - 333", "187", saves=0.25)
    run.complete("Calculator")
    return run


def outcome(
    settings: Settings, run_id: str, exit_status: int = 0, reason: str | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(outcome_line(settings, run_id, exit_status, reason))
    return found


def test_a_run_that_ended_well_has_its_release_model_with_counts(annotated, settings):
    release_id = release(settings, "run-1")
    annotated.change(
        "insert into finetuned_models (model_id, release_id, run_id, uri, manifest_sha256) "
        f"values ('m1', '{release_id}', 'run-1', 's3://b/models/m1', 'x')"
    )
    annotated.change("insert into run_models (run_id, model_id) values ('run-1', 'm1')")
    finish_run(settings, "run-1", "success")
    found = outcome(settings, "run-1")
    assert found.pop("corpus")["version"] == 1
    data = ObjectStore(settings).list_uri(found["release"].pop("data"))
    assert [uri.rpartition("/")[2] for uri in data] == ["part-00000.parquet"]
    assert found == {
        "run": "run-1",
        "exit_status": 0,
        "state": "success",
        "reason": None,
        "release": {
            "id": release_id,
            "uri": f"s3://{settings.s3_bucket}/releases/{release_id}",
            "texts": 1,
            "calls": 1,
        },
        "model": {"id": "m1", "uri": "s3://b/models/m1"},
        "tools": {
            "Calculator": {
                "sampled_calls": 2,
                "scored_calls": 2,
                "keep_threshold": 0.5,
                "kept_calls": 1,
                "kept_texts": 1,
            }
        },
    }


def test_a_run_that_failed_has_its_reason(annotated, settings):
    finish_run(settings, "run-1", "failed", "failed: release. There is no release.")
    found = outcome(settings, "run-1", 1, "annotate_corpus run-1 ended as failed.")
    assert (found["state"], found["exit_status"]) == ("failed", 1)
    assert found["reason"] == "failed: release. There is no release."
    assert (found["release"], found["model"]) == (None, None)


def test_a_run_that_never_started_has_its_reason(settings):
    with database.transaction(database.connect(settings)) as connection:
        problem = "failed: ingest: corpus: expected files, found nothing."
        database.execute(connection, queries.runs.insert_not_started, run_id="r", problem=problem)
    found = outcome(settings, "r", 2, "annotate_corpus r could not start.")
    assert (found["state"], found["reason"]) == ("not_started", problem)


def test_without_postgres_the_line_has_the_reason_that_is_known(settings):
    away = settings.model_copy(update={"database_dsn": SecretStr("postgresql://nobody@127.0.0.1:9/none")})
    found = outcome(away, "r", 2, "--model: expected a language model.")
    assert (found["state"], found["reason"]) == (None, "--model: expected a language model.")


# The command


Run = Callable[[ToolformerError | None], tuple[int | str | None, list[str]]]


@pytest.fixture
def run(annotated, settings, monkeypatch, capsys):
    """`run --attach run-1 --json`, which ends with this error: the status and the lines of stdout."""
    monkeypatch.setattr(termination, "install", lambda: None)
    monkeypatch.setattr(config, "load_settings", lambda: settings)
    monkeypatch.setattr(sys, "argv", ["toolformer-ops", "run", "--attach", "run-1", "--json"])

    def made(error: ToolformerError | None) -> tuple[int | str | None, list[str]]:
        def attach(console: Any, *_: object) -> None:
            console.print("a table for people")
            if error:
                raise error

        monkeypatch.setattr(driver, "attach", attach)
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        return ended.value.code, capsys.readouterr().out.splitlines()

    return made


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, 0),
        (UsageError("the request is wrong."), 2),
        (NoKeptCallError("no call was kept."), 3),
        (ToolformerError("a task failed."), 1),
    ],
)
def test_stdout_is_one_line_whose_status_is_that_of_the_command(run, error, status):
    ended_with, [line] = run(error)
    found = json.loads(line)
    assert (ended_with, found["run"], found["exit_status"]) == (status, "run-1", status)
    assert found["reason"] == (str(error) if error else None)
