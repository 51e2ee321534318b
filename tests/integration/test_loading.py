"""What workers wrote into a folder is loaded into Postgres: the rows of a run over the same texts, and its release."""

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.annotated_runs import release
from tests.fake_language_model import FakeLanguageModel, loaded_by_stages
from tests.run_sql import run_sql
from toolformer_ops.audit.auditing import findings_of
from toolformer_ops.audit.checking import check_tool
from toolformer_ops.audit.running import audit
from toolformer_ops.cli.on_a_file import app
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, CorruptObjectError, DeviceMemoryError, UsageError
from toolformer_ops.on_a_file.annotate.call_parts import ledger_of
from toolformer_ops.on_a_file.annotate.workers import HEADER, Worker
from toolformer_ops.on_a_file.loading import load_prefix
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import RunModel
from toolformer_ops.runs.summary import list_runs
from toolformer_ops.stages.annotating import annotate_stage, annotate_until_kept
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import start_run
from toolformer_ops.storage.history.forgetting import forget
from toolformer_ops.storage.postgres import database

TOOL = "Calculator"
TEXTS = [f"Box {n} holds {n} pens and 1 cap, a total of {n + 1} things." for n in range(3, 15)]
LONG = "\n\n".join(TEXTS)
SCRIPT = (
    *(f"Calculator({n} + 1)" for n in range(3, 15)),
    "Calculator(1 / 0)",
    "Calculator(7",
    "WikiSearch(pens)",
)
VALUES: dict[str, Any] = {
    "model": "fake", "tools": [TOOL], "max_positions": 2, "samples_per_position": 16, "prune_below": 0.5,
}  # fmt: skip
ROWS = {
    "filter_decisions": "*",
    "candidate_calls": "*",
    "pruned_positions": "*",
    "lost_samples": "*",
    "call_results": "tool, tool_version, input_key, input, results, reason, message",
    "call_losses": "*",
    "placebo_pools": "placebo_recipe_id, scoring_recipe_id, corpus_id, placebos, placebo_sample, documents, calls, sample_share",
    "placebo_pool_results": "*",
    "placebo_losses": "*",
    "call_information": "*",
    "stage_ledger": "stage, recipe_id, document_id, rows_hash, case when stage <> 'execute' then counts end as counts",
}
"""The tables that the stages write, and what is compared of them: all but times, and which text asked an input first."""


def scripted_model(monkeypatch: pytest.MonkeyPatch) -> FakeLanguageModel:
    """The model that stages and workers load."""
    fake = loaded_by_stages(monkeypatch)(FakeLanguageModel(SCRIPT, sure_words=frozenset({"things"})))
    monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotator.load_scoring_model", fake.load)
    return fake


@pytest.fixture
def model(monkeypatch):
    return scripted_model(monkeypatch)


def write_corpus(path: Path) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in (*TEXTS, LONG, "No number.")))


@pytest.fixture
def corpus(tmp_path):
    write_corpus(tmp_path / "c.jsonl")
    return tmp_path / "c.jsonl"


def work(settings: Settings, corpus: Path | str, out: Path, shards: int = 2, **changes: Any) -> None:
    """Workers annotate the corpus."""
    choices = RunChoices.parse({**VALUES, **changes, "corpus": str(corpus)})
    Worker.of(settings, choices, f"{out}/", shards, 3).work()


def run(settings: Settings, corpus: Path | str, run_id: str = "run-1", **changes: Any) -> None:
    """The stages of a DAG annotate it."""
    ingest_corpus(settings, str(corpus))
    start_run(settings, run_id, RunChoices.parse({**VALUES, **changes, "corpus": str(corpus)}))
    filter_stage(settings, run_id, TOOL)
    annotate_stage(settings, run_id, TOOL, "0/1")


def rows_of_stages(settings: Settings) -> dict[str, list[str]]:
    rows = {}
    for table, columns in ROWS.items():
        stored = run_sql(
            settings, f"select to_jsonb(t) - 'created_at' - 'drawn_at' from (select {columns} from {table}) t"
        )
        rows[table] = sorted(json.dumps(row[0], sort_keys=True) for row in stored)
    return rows


def delete_rows(settings: Settings) -> None:
    run_sql(
        settings, f"truncate {', '.join(ROWS)}, micro_batches, run_tools, annotation_runs, recipes cascade"
    )


CHOICES: list[dict[str, Any]] = [
    {},
    {"keep_rule": "probability", "prune_below": 0.1},
    {"max_text_tokens": 64},
    {"proposer": "tool"},
    {"placebos": 0, "placebo_sample": 0},
]


@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_the_rows_that_are_loaded_are_those_of_a_run(settings, model, corpus, tmp_path, changes):
    work(settings, corpus, tmp_path / "calls", **changes)
    load_prefix(settings, f"{tmp_path}/calls")
    loaded = rows_of_stages(settings)
    delete_rows(settings)
    run(settings, corpus, **changes)
    of_run = rows_of_stages(settings)
    assert loaded == of_run
    assert len(of_run["call_losses"]) > len(TEXTS)


def test_the_texts_of_the_comparison_have_rows_of_all_tables(settings, model, corpus, tmp_path):
    work(settings, corpus, tmp_path / "calls")
    load_prefix(settings, f"{tmp_path}/calls")
    assert [table for table, rows in rows_of_stages(settings).items() if not rows] == []


def test_the_release_of_a_loaded_run_is_that_of_a_run(settings, model, corpus, tmp_path):
    work(settings, corpus, tmp_path / "calls")
    loaded = load_prefix(settings, f"{tmp_path}/calls")
    check_tool(settings, loaded.run_id, TOOL)
    of_loaded = release(settings, loaded.run_id)
    delete_rows(settings)
    run(settings, corpus)
    check_tool(settings, "run-1", TOOL)
    assert release(settings, "run-1") == of_loaded


def test_the_release_of_a_prefix_until_enough_calls_are_kept_is_that_of_such_a_run(
    settings, model, corpus, tmp_path
):
    work(settings, corpus, tmp_path / "calls", shards=1, until_kept=2)
    loaded = load_prefix(settings, f"{tmp_path}/calls")
    check_tool(settings, loaded.run_id, TOOL)
    of_loaded = release(settings, loaded.run_id)
    delete_rows(settings)
    ingest_corpus(settings, str(corpus))
    start_run(settings, "run-1", RunChoices.parse({**VALUES, "until_kept": 2, "corpus": str(corpus)}))
    annotate_until_kept(settings, "run-1", TOOL, RunModel(settings))
    check_tool(settings, "run-1", TOOL)
    assert release(settings, "run-1") == of_loaded


def test_the_release_of_what_is_kept_is_that_of_all(settings, model, corpus, tmp_path):
    work(settings, corpus, tmp_path / "calls", placebo_sample=0)
    released = []
    for only_kept in (False, True):
        loaded = load_prefix(settings, f"{tmp_path}/calls", only_kept=only_kept)
        check_tool(settings, loaded.run_id, TOOL)
        released.append(release(settings, loaded.run_id))
    assert released[0] == released[1]


def test_of_what_is_kept_the_other_texts_are_not_loaded(settings, model, corpus, tmp_path):
    work(settings, corpus, tmp_path / "calls", placebo_sample=0)
    load_prefix(settings, f"{tmp_path}/calls", only_kept=True)
    without = """select count(*) from documents
                 where document_id not in (select document_id::uuid from kept_calls)"""
    assert run_sql(settings, without) == [(0,)]
    assert 0 < run_sql(settings, "select count(*) from documents")[0][0] <= len(TEXTS) + 1


def test_a_load_that_is_repeated_changes_nothing(settings, model, corpus, tmp_path):
    work(settings, corpus, tmp_path / "calls")
    load_prefix(settings, f"{tmp_path}/calls")
    before = rows_of_stages(settings)
    again = load_prefix(settings, f"{tmp_path}/calls")
    assert (rows_of_stages(settings), again.texts) == (before, 0)


def test_a_load_that_was_killed_is_continued(settings, model, corpus, tmp_path, monkeypatch):
    work(settings, corpus, tmp_path / "calls")
    puts = iter(range(2))
    with monkeypatch.context() as patch:
        patch.setattr(
            "toolformer_ops.on_a_file.loading.ledger_of",
            lambda name, content: next(puts) and ledger_of(name, content),
        )
        with pytest.raises((StopIteration, TypeError)):
            load_prefix(settings, f"{tmp_path}/calls")
    load_prefix(settings, f"{tmp_path}/calls")
    continued = rows_of_stages(settings)
    delete_rows(settings)
    load_prefix(settings, f"{tmp_path}/calls")
    assert rows_of_stages(settings) == continued


def test_a_run_of_the_same_choices_has_nothing_left_to_compute(settings, model, corpus, tmp_path):
    work(settings, corpus, tmp_path / "calls")
    load_prefix(settings, f"{tmp_path}/calls")
    model.seen.clear()
    run(settings, corpus)
    assert model.seen == []


def write(settings: Settings) -> list[str]:
    """What the command `load` says; twice, since a load may be repeated."""
    # Beside the state folder, in which no run reads a corpus.
    corpus, calls = settings.state_dir.with_name("loaded.jsonl"), settings.state_dir.with_name("loaded")
    write_corpus(corpus)
    with pytest.MonkeyPatch.context() as patch:
        scripted_model(patch)
        patch.setattr("toolformer_ops.cli.on_a_file.load_settings", lambda: settings)
        work(settings, corpus, calls)
        loads = [CliRunner().invoke(app, ["load", f"{calls}"], catch_exceptions=False) for _ in range(2)]
    assert [load.exit_code for load in loads] == [0, 0]
    return [load.output for load in loads]


def test_an_audit_finds_nothing_in_loaded_rows(written, settings):
    outcome = audit(settings, orphans_after=timedelta(0))
    assert list(findings_of(database.connect(settings), outcome.audit_id)) == []


def test_a_load_releases_its_run_once(written, settings):
    with database.transaction(database.connect(settings)) as connection:
        [run] = list_runs(connection, 9)
    assert run.release_id is not None
    assert release(settings, run.run_id) == run.release_id


def test_a_repeated_load_says_that_the_texts_were_there(written):
    assert " 0 texts loaded as run loaded-" in written.value[1]
    assert "texts were there already, or are not in the run" in written.value[1]


def test_a_forgotten_text_is_not_loaded(settings, model, corpus, tmp_path):
    work(settings, corpus, tmp_path / "calls")
    ingest_corpus(settings, str(corpus))
    [(document_id,)] = run_sql(
        settings, "select document_id from documents where text = :text", text=TEXTS[0]
    )
    forget(settings, [str(document_id)])
    load_prefix(settings, f"{tmp_path}/calls")
    query = "select count(*) from {} where document_id = :id"
    tables = ("candidate_calls", "call_losses", "placebo_pool_results", "stage_ledger")
    assert [run_sql(settings, query.format(table), id=document_id) for table in tables] == [[(0,)]] * 4
    assert run_sql(settings, "select count(*) from candidate_calls") > [(0,)]


class SmallMemory(FakeLanguageModel):
    """Has too little memory for the first text."""

    def find_positions(self, prompt: object, texts: Sequence[str], **numbers: Any) -> Any:
        if TEXTS[0] in texts:
            raise DeviceMemoryError("too little")
        return super().find_positions(prompt, texts, **numbers)


def test_a_text_that_was_set_apart_is_a_failed_document(settings, model, corpus, tmp_path, monkeypatch):
    small = SmallMemory(SCRIPT)
    monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotator.load_scoring_model", small.load)
    work(settings, corpus, tmp_path / "calls")
    load_prefix(settings, f"{tmp_path}/calls")
    query = "select stage, reason from failed_documents join documents using (document_id) where text = :text"
    assert run_sql(settings, query, text=TEXTS[0]) == [("sample", "out_of_memory")]


def test_an_unfinished_prefix_is_refused(settings, model, corpus, tmp_path):
    work(settings, corpus, tmp_path / "calls")
    (tmp_path / "calls/ledger/0001.json").unlink()
    with pytest.raises(UsageError, match=r"expected 2 finished shards in .*, found 1"):
        load_prefix(settings, f"{tmp_path}/calls")


def test_calls_of_another_model_are_refused(settings, model, corpus, tmp_path):
    work(settings, corpus, tmp_path / "calls")
    model.identity = "another"
    with pytest.raises(ConfigurationError, match=r"Calculator: expected the recipe .* the model, the tool"):
        load_prefix(settings, f"{tmp_path}/calls")


def test_a_folder_of_something_else_is_refused(settings, tmp_path):
    with pytest.raises(UsageError, match="expected calls of `toolformer-ops annotate --out` in"):
        load_prefix(settings, str(tmp_path))


def test_a_newer_prefix_is_refused(settings, tmp_path):
    (tmp_path / HEADER).write_text('{"format": "toolformer-ops/calls/9"}')
    with pytest.raises(UsageError, match="found 'toolformer-ops/calls/9'"):
        load_prefix(settings, str(tmp_path))


@pytest.mark.parametrize("folder", ["calls", "pools"])
def test_a_damaged_file_is_refused(settings, model, corpus, tmp_path, folder):
    work(settings, corpus, tmp_path / "out")
    [file, *_] = sorted(path for path in (tmp_path / "out" / folder).rglob("*") if path.is_file())
    damaged = file.read_bytes().replace(b"0.5", b"0.6").replace(b'"4"', b'"9"')
    file.write_bytes(damaged if folder == "pools" else damaged[:-9])
    with pytest.raises(CorruptObjectError):
        load_prefix(settings, f"{tmp_path}/out")
