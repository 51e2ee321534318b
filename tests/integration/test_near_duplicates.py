"""Corpora that leave out texts which nearly repeat another: which these are follows from the texts alone, night by night."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine

from tests.run_sql import run_sql
from tests.servers import settings_of
from toolformer_ops.on_a_file.look.near_duplicates import near_duplicates
from toolformer_ops.records import Document, document_id_of
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.storage.corpora.text_sketches import estimated_share, sketch_of
from toolformer_ops.storage.history.forgetting import forget

SHARE = 0.8


@pytest.fixture
def settings(postgres_dsn):
    return settings_of(postgres_dsn)


def address(folder: Path, share: float = SHARE) -> str:
    return f"{folder} --field near_duplicates={share}"


def write(folder: Path, name: str, texts: Iterable[str]) -> None:
    (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def members(engine: Engine) -> set[str]:
    """The texts of the newest version of the only corpus."""
    rows = run_sql(
        engine,
        "select text from corpus_documents join documents using (document_id) where left_version is null",
    )
    return {row.text for row in rows}


def family(source: random.Random, size: int) -> list[str]:
    """Texts of which each has some words of the first replaced."""
    words = [f"w{source.randrange(1000)}" for _ in range(120)]
    texts = []
    for _ in range(size):
        changed = list(words)
        for _ in range(source.randrange(8)):
            changed[source.randrange(len(words))] = f"x{source.randrange(1000)}"
        texts.append(" ".join(changed))
    return texts


def kept_by_plain_comparison(texts: Iterable[str]) -> set[str]:
    """Each text but those that resemble one with a lesser id, by comparing all pairs."""
    sketches = {text: sketch_of(text) for text in texts}

    def resembles(text: str, other: str) -> bool:
        own, others = sketches[text], sketches[other]
        share = estimated_share(np.array(own.numbers), np.array(others.numbers))
        return bool({*own.bands} & {*others.bands}) and share >= SHARE

    def is_repeated(text: str) -> bool:
        earlier = (other for other in sketches if document_id_of(other) < document_id_of(text))
        return any(resembles(text, other) for other in earlier)

    return {text for text in sketches if not is_repeated(text)}


@pytest.mark.parametrize("seed", range(4))
def test_texts_are_left_out_as_all_pairs_say_night_by_night(settings, engine, tmp_path, seed):
    source = random.Random(seed)  # noqa: S311 - no secret
    families = [family(source, 6) for _ in range(4)]
    texts = [text for each in families for text in each]
    for night in range(5):
        held: set[str] = set()
        for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
            of_file = source.sample(texts, source.randrange(4, 12))
            write(tmp_path, name, of_file)
            held.update(of_file)
        ingest_corpus(settings, address(tmp_path), accept_shrink=True)
        assert members(engine) == kept_by_plain_comparison(held), night


def repeated(tmp_path: Path) -> tuple[str, str]:
    """A file with a text and one that nearly repeats it; returns the one that stays, and the other."""
    words = [f"word{number}" for number in range(200)]
    pair = [" ".join(words), " ".join([*words[:-1], "end"])]
    write(tmp_path, "a.jsonl", [pair[0]])
    write(tmp_path, "b.jsonl", [pair[1]])
    stays, repeats = sorted(pair, key=document_id_of)
    return stays, repeats


def test_a_text_that_is_left_out_names_the_text_that_it_resembles(settings, engine, tmp_path):
    stays, repeats = repeated(tmp_path)
    ingest_corpus(settings, address(tmp_path))
    [spare] = run_sql(engine, "select document_id, why, resembles from corpus_spare_records")
    assert spare == (document_id_of(repeats), "near_duplicate", document_id_of(stays))


def test_texts_that_are_left_out_are_counted_among_the_duplicates(settings, tmp_path):
    repeated(tmp_path)
    report = ingest_corpus(settings, address(tmp_path))
    assert (report.records, report.documents, report.duplicates, report.near_duplicates) == (2, 1, 1, 1)


def test_a_corpus_without_the_choice_leaves_out_equal_texts_alone(settings, engine, tmp_path):
    repeated(tmp_path)
    ingest_corpus(settings, str(tmp_path))
    assert len(members(engine)) == 2


def test_a_text_comes_back_when_the_one_that_it_resembles_is_gone(settings, engine, tmp_path):
    stays, repeats = repeated(tmp_path)
    ingest_corpus(settings, address(tmp_path))
    for name in ("a.jsonl", "b.jsonl"):
        if stays in (tmp_path / name).read_text():
            write(tmp_path, name, ["Another text."])
    ingest_corpus(settings, address(tmp_path))
    assert members(engine) == {repeats, "Another text."}


def test_a_text_comes_back_when_the_one_that_it_resembles_is_forgotten(settings, engine, tmp_path):
    stays, repeats = repeated(tmp_path)
    ingest_corpus(settings, address(tmp_path))
    forget(settings, [document_id_of(stays)])
    ingest_corpus(settings, address(tmp_path), accept_shrink=True)
    assert members(engine) == {repeats}


def test_postgres_estimates_shares_as_the_package_does(engine):
    text, other = (sketch_of(text).numbers for text in family(random.Random(3), 2))  # noqa: S311 - no secret
    [row] = run_sql(
        engine,
        "select share_of_sketches(cast(:text as integer[]), cast(:other as integer[])) as share",
        text=text,
        other=other,
    )
    assert row.share == estimated_share(np.array(text), np.array(other))


@pytest.mark.parametrize("seed", range(3))
def test_the_look_at_files_leaves_out_what_the_ingestion_does(settings, engine, tmp_path, seed):
    source = random.Random(seed)  # noqa: S311 - no secret
    texts = [text for _ in range(3) for text in family(source, 8)]
    write(tmp_path, "a.jsonl", texts)
    ingest_corpus(settings, address(tmp_path))
    spare = run_sql(
        engine, "select document_id, resembles from corpus_spare_records where why = 'near_duplicate'"
    )
    looked_at = near_duplicates([("", Document.of(text)) for text in sorted(set(texts))], SHARE)
    assert {*spare} == {
        (repeats.document_id, original.document_id) for (_, repeats), (_, original) in looked_at
    }
