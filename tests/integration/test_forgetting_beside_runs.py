"""Forgetting while runs start: no run works on a text that is about to be deleted."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.annotated_runs import release
from tests.fake_language_model import FakeLanguageModel, UseModel
from tests.integration.test_finetuning import annotated_run
from tests.run_sql import run_sql
from toolformer_ops.config import Settings
from toolformer_ops.errors import InfrastructureError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages import run_setup
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import start_finetuning, start_run
from toolformer_ops.storage import database, forgetting, queries
from toolformer_ops.storage.forgetting import forget

SECRET = Document.of("Ms Secret earned 2 crowns and 3 crowns, a total of 5 crowns.").document_id
OTHER = Document.of("2 cats and 3 dogs, a total of 5 animals.").document_id
TEXTS = {
    SECRET: "Ms Secret earned 2 crowns and 3 crowns, a total of 5 crowns.",
    OTHER: "2 cats and 3 dogs, a total of 5 animals.",
}
LOCK_IS_FREE = (
    f"select pg_try_advisory_xact_lock(hashtextextended('toolformer {forgetting.TEXTS_IN_USE}', 0)) as free"
)
REFUSAL = "expected texts that stay, found some that are being forgotten"


@pytest.fixture
def corpus(tmp_path: Path, settings: Settings, use_model: UseModel) -> str:
    """The address of an ingested corpus with both texts."""
    use_model(FakeLanguageModel())
    return ingested(settings, tmp_path / "corpus.jsonl", SECRET, OTHER)


def ingested(settings: Settings, path: Path, *document_ids: object) -> str:
    lines = [json.dumps({"text": TEXTS[document_id]}) for document_id in TEXTS if document_id in document_ids]
    path.write_text("\n".join(lines) + "\n")
    ingest_corpus(settings, str(path))
    return str(path)


def choices(corpus: str) -> RunChoices:
    return RunChoices.parse({"corpus": corpus, "model": "fake", "tools": ["Calculator"]})


@pytest.fixture
def before_deletion(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Takes what happens after texts are marked, and before the first is deleted."""

    def set_step(step: Callable[[], object]) -> None:
        @contextlib.contextmanager
        def writing(engine: Engine) -> Iterator[None]:
            step()
            yield

        monkeypatch.setattr(forgetting.history, "writing", writing)

    return set_step


def test_no_run_starts_over_a_text_that_is_being_forgotten(
    settings: Settings, corpus: str, before_deletion: Callable[[Callable[[], object]], None]
) -> None:
    def start() -> None:
        with pytest.raises(InfrastructureError, match=REFUSAL):
            start_run(settings, "night", choices(corpus))

    before_deletion(start)
    assert forget(settings, [SECRET]).texts == 1
    assert run_sql(settings, "select run_id from annotation_runs") == []


def test_a_run_starts_once_the_text_is_forgotten(settings: Settings, corpus: str) -> None:
    forget(settings, [SECRET])
    assert start_run(settings, "night", choices(corpus)) == ["Calculator"]


def test_a_run_starts_over_a_corpus_that_does_not_hold_the_text_that_is_being_forgotten(
    settings: Settings,
    corpus: str,
    tmp_path: Path,
    before_deletion: Callable[[Callable[[], object]], None],
) -> None:
    others = ingested(settings, tmp_path / "others.jsonl", OTHER)
    before_deletion(lambda: start_run(settings, "night", choices(others)))
    assert forget(settings, [SECRET]).texts == 1
    assert run_sql(settings, "select run_id, state from annotation_runs") == [("night", "running")]


def test_a_failed_run_is_not_opened_again_over_a_text_that_is_being_forgotten(
    settings: Settings, corpus: str, before_deletion: Callable[[Callable[[], object]], None]
) -> None:
    start_run(settings, "night", choices(corpus))
    run_setup.finish_run(settings, "night", "failed")

    def start() -> None:
        with pytest.raises(InfrastructureError, match=REFUSAL):
            start_run(settings, "night", choices(corpus))

    before_deletion(start)
    assert forget(settings, [SECRET]).texts == 1


def test_no_run_finetunes_on_a_release_of_a_text_that_is_being_forgotten(
    settings: Settings, tiny_gpt2_dir: Path, before_deletion: Callable[[Callable[[], object]], None]
) -> None:
    annotated = annotated_run(settings, tiny_gpt2_dir)
    release_id = release(settings, annotated.run_id)
    run_setup.finish_run(settings, annotated.run_id, "success")

    def start() -> None:
        with pytest.raises(InfrastructureError, match=REFUSAL):
            start_finetuning(settings, "tuned", release_id, '{"finetune_steps": 2}')

    before_deletion(start)
    released = annotated.rows("select distinct document_id from release_calls")
    assert forget(settings, [released[0].document_id]).texts == 1


def test_texts_are_marked_while_no_run_can_be_registered(
    settings: Settings, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[bool] = []
    execute = database.execute

    def at_mark(on: object, statement: queries.Statement, /, **parameters: object) -> int:
        if statement is queries.forgetting.mark:
            free.extend(row.free for row in run_sql(settings, LOCK_IS_FREE))
        return execute(on, statement, **parameters)  # type: ignore[arg-type]

    monkeypatch.setattr(database, "execute", at_mark)
    forget(settings, [SECRET])
    assert free == [False]


def test_a_run_is_registered_while_no_text_can_be_marked(
    settings: Settings, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[bool] = []
    require = run_setup.require_whole_texts

    def required(*arguments: object) -> None:
        require(*arguments)  # type: ignore[arg-type]
        free.extend(row.free for row in run_sql(settings, LOCK_IS_FREE))

    monkeypatch.setattr(run_setup, "require_whole_texts", required)
    start_run(settings, "night", choices(corpus))
    assert free == [False]


def test_a_corpus_keeps_the_texts_of_others_if_a_run_over_it_starts_while_it_is_forgotten(
    settings: Settings,
    corpus: str,
    tmp_path: Path,
    before_deletion: Callable[[Callable[[], object]], None],
) -> None:
    others = ingested(settings, tmp_path / "others.jsonl", OTHER)
    before_deletion(lambda: start_run(settings, "night", choices(others)))
    with pytest.raises(UsageError, match="expected texts that no unfinished run uses, found night"):
        forget(settings, corpus=others)
    members = "select count(*) from corpus_documents join corpora using (corpus_id) where uri like :uri"
    assert run_sql(settings, members, uri=f"%{others}") == [(1,)]
