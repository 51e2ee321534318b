"""Forgetting while runs start and corpora are ingested: neither takes a text that is about to be deleted, or is."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.annotated_runs import release
from tests.fake_language_model import FakeLanguageModel
from tests.integration.test_finetuning import annotated_run
from tests.run_sql import run_sql
from toolformer_ops.config import Settings
from toolformer_ops.errors import InfrastructureError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages import run_setup
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import start_finetuning, start_run
from toolformer_ops.storage.corpora.reading import READING_VERSION, Reading
from toolformer_ops.storage.history import forgetting
from toolformer_ops.storage.history.forgetting import forget
from toolformer_ops.storage.postgres import database, queries

SECRET = Document.of("Ms Secret earned 2 crowns and 3 crowns, a total of 5 crowns.").document_id
OTHER = Document.of("2 cats and 3 dogs, a total of 5 animals.").document_id
TEXTS = {
    SECRET: "Ms Secret earned 2 crowns and 3 crowns, a total of 5 crowns.",
    OTHER: "2 cats and 3 dogs, a total of 5 animals.",
}
LOCK_IS_FREE = "select pg_try_advisory_xact_lock(hashtextextended('toolformer texts in use', 0)) as free"
SHARE_IS_FREE = LOCK_IS_FREE.replace("xact_lock", "xact_lock_shared")
REFUSAL = "expected texts that stay, found some that are being forgotten"


@pytest.fixture
def corpus(tmp_path, settings, use_model):
    """The address of an ingested corpus with both texts."""
    use_model(FakeLanguageModel())
    return ingested(settings, tmp_path / "corpus.jsonl", SECRET, OTHER)


def ingested(settings: Settings, path: Path, *document_ids: object) -> str:
    lines = [json.dumps({"text": TEXTS[document_id]}) for document_id in TEXTS if document_id in document_ids]
    path.write_text("\n".join(lines) + "\n")
    ingest_corpus(settings, str(path))
    return str(path)


def answers_at(
    step: queries.Statement, question: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> list[bool]:
    """What another session is told whenever `step` is about to run; filled later."""
    answers: list[bool] = []
    for name in ("execute", "fetch_all"):
        original = getattr(database, name)

        def watched(
            on: object, statement: queries.Statement, /, original: Any = original, **parameters: object
        ) -> Any:
            if statement is step:
                answers.extend(row.free for row in run_sql(settings, question))
            return original(on, statement, **parameters)

        monkeypatch.setattr(database, name, watched)
    return answers


def choices(corpus: str) -> RunChoices:
    return RunChoices.parse({"corpus": corpus, "model": "fake", "tools": ["Calculator"]})


@pytest.fixture
def before_deletion(monkeypatch):
    """Takes what happens after texts are marked, and before the first is deleted."""

    def set_step(step: Callable[[], object]) -> None:
        @contextlib.contextmanager
        def writing(engine: Engine) -> Iterator[None]:
            step()
            yield

        monkeypatch.setattr(forgetting.history, "writing", writing)

    return set_step


def test_no_run_starts_over_a_text_that_is_being_forgotten(settings, corpus, before_deletion):
    def start() -> None:
        with pytest.raises(InfrastructureError, match=REFUSAL):
            start_run(settings, "night", choices(corpus))

    before_deletion(start)
    assert forget(settings, [SECRET]).texts == 1
    assert run_sql(settings, "select run_id from annotation_runs") == []


def test_a_run_starts_once_the_text_is_forgotten(settings, corpus):
    forget(settings, [SECRET])
    assert start_run(settings, "night", choices(corpus)) == ["Calculator"]


def test_a_run_starts_over_a_corpus_that_does_not_hold_the_text_that_is_being_forgotten(
    settings, corpus, tmp_path, before_deletion
):
    others = ingested(settings, tmp_path / "others.jsonl", OTHER)
    before_deletion(lambda: start_run(settings, "night", choices(others)))
    assert forget(settings, [SECRET]).texts == 1
    assert run_sql(settings, "select run_id, state from annotation_runs") == [("night", "running")]


def test_a_failed_run_is_not_opened_again_over_a_text_that_is_being_forgotten(
    settings, corpus, before_deletion
):
    start_run(settings, "night", choices(corpus))
    run_setup.finish_run(settings, "night", "failed")

    def start() -> None:
        with pytest.raises(InfrastructureError, match=REFUSAL):
            start_run(settings, "night", choices(corpus))

    before_deletion(start)
    assert forget(settings, [SECRET]).texts == 1


def test_no_run_finetunes_on_a_release_of_a_text_that_is_being_forgotten(
    settings, tiny_gpt2_dir, before_deletion
):
    annotated = annotated_run(settings, tiny_gpt2_dir)
    release_id = release(settings, annotated.run_id)
    run_setup.finish_run(settings, annotated.run_id, "success")

    def start() -> None:
        with pytest.raises(InfrastructureError, match=REFUSAL):
            start_finetuning(settings, "tuned", release_id, '{"finetune_steps": 2}')

    before_deletion(start)
    released = annotated.rows("select distinct document_id from release_calls")
    assert forget(settings, [released[0].document_id]).texts == 1


@pytest.mark.parametrize("step", ["mark", "delete"])
def test_texts_are_taken_while_no_run_or_corpus_takes_them(settings, corpus, monkeypatch, step):
    free = answers_at(queries.forgetting[step], SHARE_IS_FREE, settings, monkeypatch)
    forget(settings, [SECRET])
    assert free == [False]


def test_a_run_is_registered_while_no_text_can_be_marked(settings, corpus, monkeypatch):
    free: list[bool] = []
    require = run_setup.require_whole_texts

    def required(*arguments: object) -> None:
        require(*arguments)  # type: ignore[arg-type]
        free.extend(row.free for row in run_sql(settings, LOCK_IS_FREE))

    monkeypatch.setattr(run_setup, "require_whole_texts", required)
    start_run(settings, "night", choices(corpus))
    assert free == [False]


def test_a_corpus_keeps_the_texts_of_others_if_a_run_over_it_starts_while_it_is_forgotten(
    settings, corpus, tmp_path, before_deletion
):
    others = ingested(settings, tmp_path / "others.jsonl", OTHER)
    before_deletion(lambda: start_run(settings, "night", choices(others)))
    with pytest.raises(UsageError, match="expected texts that no unfinished run uses, found night"):
        forget(settings, corpus=others)
    members = "select count(*) from corpus_documents join corpora using (corpus_id) where uri like :uri"
    assert run_sql(settings, members, uri=f"%{others}") == [(1,)]


@pytest.fixture
def before_version(monkeypatch):
    """Takes what happens once, after the files of an ingestion are read, and before its version is made."""

    def set_step(step: Callable[[], object]) -> None:
        read_changed = Reading.read_changed

        def read_then_step(reading: Reading, uri: str, files: Any) -> None:
            read_changed(reading, uri, files)
            monkeypatch.setattr(Reading, "read_changed", read_changed)
            step()

        monkeypatch.setattr(Reading, "read_changed", read_then_step)

    return set_step


def versions(settings: Settings) -> list[tuple[int, int]]:
    """The versions of all corpora, each with its number of documents."""
    rows = run_sql(
        settings, "select version, documents from corpus_versions order by made_at, corpus_id, version"
    )
    return [tuple(row) for row in rows]


def test_no_version_counts_a_text_that_is_forgotten_while_its_changed_file_is_read(
    settings, corpus, before_version
):
    with Path(corpus).open("a") as file:
        file.write(json.dumps({"text": "A third text about nothing."}) + "\n")
    before_version(lambda: forget(settings, [SECRET]))
    with pytest.raises(InfrastructureError, match="0 records and texts of 1 files"):
        ingest_corpus(settings, corpus)
    assert versions(settings) == [(1, 2)]
    assert run_sql(settings, "select read_as from corpus_files") == [(-1,)]


def test_the_next_ingestion_makes_the_version_without_the_forgotten_text(settings, corpus, before_version):
    with Path(corpus).open("a") as file:
        file.write(json.dumps({"text": "A third text about nothing."}) + "\n")
    before_version(lambda: forget(settings, [SECRET]))
    with pytest.raises(InfrastructureError):
        ingest_corpus(settings, corpus)
    report = ingest_corpus(settings, corpus)
    assert (report.version, report.documents, report.rejected_by_reason) == (2, 2, {"forgotten": 1})
    assert run_sql(settings, "select read_as from corpus_files") == [(READING_VERSION,)]


def test_no_corpus_takes_a_text_that_is_forgotten_after_it_was_read(
    settings, corpus, tmp_path, before_version
):
    before_version(lambda: forget(settings, [SECRET]))
    with pytest.raises(InfrastructureError, match="1 records and texts of 0 files"):
        ingested(settings, tmp_path / "copy.jsonl", SECRET, OTHER)
    assert run_sql(settings, "select document_id from corpus_documents") == [(OTHER,)]


def test_a_text_of_another_corpus_is_forgotten_while_a_corpus_is_ingested(
    settings, corpus, tmp_path, before_version
):
    before_version(lambda: forget(settings, [SECRET]))
    ingested(settings, tmp_path / "others.jsonl", OTHER)
    assert versions(settings) == [(1, 2), (1, 1)]


@pytest.mark.parametrize("step", ["texts_there", "compare"])
def test_a_corpus_takes_texts_while_none_can_be_marked(settings, tmp_path, monkeypatch, step):
    free = answers_at(queries.ingestion[step], LOCK_IS_FREE, settings, monkeypatch)
    ingested(settings, tmp_path / "corpus.jsonl", SECRET)
    assert free == [False]
