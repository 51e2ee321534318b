"""Versions of a corpus: what an ingestion of the changed files alone makes is what reading all files anew would find."""

import gzip
import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import hypothesis
import pytest
import zstandard
from hypothesis import strategies as st
from sqlalchemy import Engine

from tests.run_sql import run_sql
from tests.servers import settings_of
from toolformer_ops.errors import EXIT_USAGE, CorpusError, exit_code
from toolformer_ops.records import content_uuid, document_id_of
from toolformer_ops.stages import ingestion
from toolformer_ops.stages.ingestion import IngestReport, ingest_corpus
from toolformer_ops.storage.corpora import files as corpus_files
from toolformer_ops.storage.corpora import reading as corpus_reading
from toolformer_ops.storage.corpora import records as corpus_records
from toolformer_ops.storage.corpora.addresses import corpus_id_of, normal_uri
from toolformer_ops.storage.corpora.reading import Reading
from toolformer_ops.storage.corpora.records import read_record
from toolformer_ops.storage.history.forgetting import forget

Line = dict[str, Any] | None
"""A record, or a line that is no JSON."""


@pytest.fixture
def settings(postgres_dsn):
    return settings_of(postgres_dsn)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "corpus").mkdir()
    return tmp_path / "corpus"


def _write(path: Path, lines: Iterable[Line]) -> None:
    path.write_text("".join("{broken\n" if line is None else json.dumps(line) + "\n" for line in lines))


def _numbers(report: IngestReport) -> dict[str, int]:
    return {
        name: getattr(report, name)
        for name in ("version", "added", "removed", "corrected", "changed", "kept")
    }


def _random_line(source: random.Random) -> Line:
    if source.random() < 0.05:
        return None
    choices = {"id": ["", "", "p1", "p2", "p3"], "url": ["", "https://x/1", "https://x/2"]}
    choices |= {"date": ["", "2014-05-06", "2015-01-02"], "title": ["", "T", "U"]}
    fields = {name: source.choice(values) for name, values in choices.items()}
    return {"text": f"text {source.randrange(9)}"} | {name: value for name, value in fields.items() if value}


def _change(source: random.Random, files: dict[str, list[Line]]) -> None:
    """One change of the kind that happens to corpora."""
    name = source.choice("abc") + ".jsonl"
    lines = files.setdefault(name, [])
    match source.choice(["insert", "append", "remove", "edit", "correct", "move", "drop", "nothing"]):
        case "insert":
            lines.insert(source.randrange(len(lines) + 1), _random_line(source))
        case "append":
            lines.extend(_random_line(source) for _ in range(3))
        case "remove" if lines:
            lines.pop(source.randrange(len(lines)))
        case "edit" if lines:
            lines[source.randrange(len(lines))] = _random_line(source)
        case "correct" if any(lines):
            place = source.choice([n for n, line in enumerate(lines) if line])
            lines[place] = {**(lines[place] or {}), source.choice(["url", "title"]): "corrected"}
        case "move" if lines:
            files.setdefault(source.choice("abc") + ".jsonl", []).append(
                lines.pop(source.randrange(len(lines)))
            )
        case "drop" if len(files) > 1:
            del files[name]


MEMBERS = """
from corpus_documents c
join documents first on first.document_id = c.document_id
join documents seen on seen.document_id = coalesce(c.variant_id, c.document_id)
where c.corpus_id = :c and """

CONTENTS = (
    "select substr(c.file_uri, :n), c.line, c.record_id, c.title, first.text, seen.text, seen.url, seen.document_date "
    f"{MEMBERS} c.left_version is null",
    "select substr(file_uri, :n), line, reason from rejected_documents where corpus_id = :c",
    "select substr(file_uri, :n), records, accepted, duplicates, rejected from corpus_files where corpus_id = :c",
    "select documents, files, records, duplicates, rejected from corpus_versions where corpus_id = :c "
    "order by version desc limit 1",
)


def _contents(engine: Engine, uri: str) -> list[list[tuple[Any, ...]]]:
    """The newest version of a corpus: its members, refused records and counts."""
    of_corpus = {"c": corpus_id_of(uri), "n": len(uri) + 2}
    return [sorted(map(tuple, run_sql(engine, statement, **of_corpus)), key=str) for statement in CONTENTS]


def _version(engine: Engine, uri: str, version: int) -> dict[str, tuple[Any, ...]]:
    """The texts of a version in their order, with their ordinal, url, date and title."""
    columns = "select first.text, c.ordinal, seen.url, seen.document_date, c.title"
    at = f"{columns} {MEMBERS} first_version <= :v and (left_version is null or left_version > :v) order by ordinal"
    return {text: tuple(fields) for text, *fields in run_sql(engine, at, c=corpus_id_of(uri), v=version)}


@hypothesis.seed(0)
@hypothesis.settings(
    derandomize=True,
    max_examples=8,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(source=st.randoms(use_true_random=False))
def test_any_sequence_of_changes_makes_the_versions_that_whole_files_would(folder, settings, engine, source):
    write = Reading.write_batch
    # All in one database: other corpora have the same texts with other urls and dates.
    corpus = folder / str(len(list(folder.iterdir())))
    uri = normal_uri(str(corpus))
    files: dict[str, list[Line]] = {"a.jsonl": [_random_line(source) for _ in range(6)]}
    before: dict[str, list[Line]] = {}
    versions: list[dict[str, tuple[Any, ...]]] = [{}]
    texts_of_ids: dict[str, str] = {}
    ordinals = 0
    for step in range(8):
        for _ in range(source.randrange(1, 4)):
            _change(source, files)
        shutil.rmtree(corpus, ignore_errors=True)
        corpus.mkdir()
        for name, lines in files.items():
            _write(corpus / name, lines)
        size, earlier = source.choice([1, 2, 3, 1000]), _contents(engine, uri)
        if source.random() < 0.2:
            with pytest.MonkeyPatch.context() as patch:
                _break_off_after(patch, write, batches=source.randrange(3))
                with pytest.raises(KeyboardInterrupt):
                    ingest_corpus(settings, str(corpus), accept_shrink=True, records_per_transaction=size)
            assert _contents(engine, uri) == earlier  # texts alone were written
        report = ingest_corpus(settings, str(corpus), accept_shrink=True, records_per_transaction=size)
        # 1. The newest version is that of another corpus with these files, which is read as a whole.
        anew = corpus.with_name(f"{corpus.name}-{step}")
        shutil.copytree(corpus, anew)
        ingest_corpus(settings, str(anew), accept_shrink=True)
        assert _contents(engine, uri) == _contents(engine, normal_uri(str(anew)))
        # 2. A text that stays keeps its ordinal, and new ones have the next in the order of the files.
        old, now = versions[-1], _version(engine, uri, report.version)
        added = [text for text in _version(engine, normal_uri(str(anew)), 1) if text not in old]
        places = {text: old[text][0] for text in old if text in now}
        places |= {text: ordinal for ordinal, text in enumerate(added, ordinals)}
        assert {text: fields[0] for text, fields in now.items()} == places
        ordinals += len(added)
        # 3. The report says what changed, and the versions before are as they were.
        ids = {
            line["id"]: line["text"]
            for name in sorted(files)
            for line in files[name]
            if line and "id" in line
        }
        corrected = sum(now[text] != old[text] for text in now.keys() & old.keys())
        told = {
            "added": len(added),
            "removed": len(old.keys() - now.keys()),
            "corrected": corrected,
            "changed": sum(ids[one] != texts_of_ids[one] for one in ids.keys() & texts_of_ids.keys()),
            "kept": len(now) - len(added) - corrected,
        }
        assert report.is_new == (any(list(told.values())[:4]) or _contents(engine, uri)[-1] != earlier[-1])
        assert _numbers(report) == {"version": len(versions) - 1 + report.is_new, **told}
        assert report.unchanged_files == sum(before.get(name) == lines for name, lines in files.items())
        versions += [now] * report.is_new
        assert [_version(engine, uri, number) for number in range(len(versions))] == versions
        texts_of_ids, before = ids, {name: list(lines) for name, lines in files.items()}
    assert not ingest_corpus(settings, str(corpus)).is_new


def _break_off_after(monkeypatch: pytest.MonkeyPatch, write: Callable[..., Any], batches: int) -> None:
    """An ingestion ends in the middle: after so many micro-batches, or before its version is made."""
    left = iter(range(batches))

    def write_some(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(Reading, "write_batch", write_some)
    monkeypatch.setattr(ingestion, "make_version", Mock(side_effect=KeyboardInterrupt))


# Single changes, by hand


def _texts(*texts: str, **fields: Any) -> list[Line]:
    return [{"text": text, **fields} for text in texts]


def test_a_corrected_date_is_a_variant_until_the_first_date_comes_again(folder, settings, engine):
    url = "https://x/caf\u00e9\U0001f600?a=1"
    for date in ("2014-05-06", "1999-12-31", "2014-05-06"):
        _write(folder / "a.jsonl", [{"text": "one", "url": url, "date": date}])
        report = ingest_corpus(settings, str(folder))
    assert _numbers(report) == {
        "version": 3,
        "added": 0,
        "removed": 0,
        "corrected": 1,
        "changed": 0,
        "kept": 0,
    }
    variant = content_uuid(str(document_id_of("one")), url, "1999-12-31")  # as in SQL
    variants = "select first_version, ordinal, variant_id from corpus_documents order by first_version"
    assert run_sql(engine, variants) == [(1, 0, None), (2, 0, variant), (3, 0, None)]
    of_variant = """select text, cast(document_date as text), variant_of from documents
                    where document_id = :v and document_id = variant_id_of(variant_of, url, document_date)"""
    changes = "select version, change, records from corpus_version_files order by 1"
    assert run_sql(engine, changes) == [(1, "added", 1), (2, "changed", 1), (3, "changed", 1)]
    assert run_sql(engine, of_variant, v=variant) == [("one", "1999-12-31", document_id_of("one"))]


def test_a_file_that_changed_a_moment_ago_is_compared_by_its_bytes(folder, settings):
    _write(folder / "a.jsonl", _texts("one"))
    [found] = corpus_files.find_files(settings, normal_uri(str(folder)))
    assert (found.size, found.stamp) == (len('{"text": "one"}\n'), None)
    ingest_corpus(settings, str(folder))
    _write(folder / "a.jsonl", _texts("two"))  # as many bytes, perhaps in the same tick of the clock
    report = ingest_corpus(settings, str(folder))
    assert (report.added, report.removed) == (1, 1)


def test_the_lines_of_a_long_file_are_fetched_in_pieces(folder, settings, monkeypatch):
    monkeypatch.setattr(corpus_reading, "HELD_LINES_A_PIECE", 3)
    lines: list[Line] = [{"text": f"text {number}"} for number in range(10)]
    _write(folder / "a.jsonl", lines)
    ingest_corpus(settings, str(folder))
    parsed: list[bytes] = []
    read = corpus_records.read_record

    def counted(content: bytes, *names: Any) -> Any:
        parsed.append(content)
        return read(content, *names)

    monkeypatch.setattr(corpus_records, "read_record", counted)
    _write(folder / "a.jsonl", [*lines[:7], {"text": "another"}, *lines[8:], {"text": "one more"}])
    ingest_corpus(settings, str(folder))
    assert [json.loads(content)["text"] for content in parsed] == ["another", "one more"]


def test_of_a_changed_file_only_the_lines_that_changed_are_parsed(folder, settings, monkeypatch):
    parsed: list[bytes] = []

    def read(content: bytes, *names: Any) -> Any:
        parsed.append(content)
        return read_record(content, *names)

    _write(folder / "a.jsonl", [*_texts("one", "two", "one"), None, *_texts("four", "five")])
    ingest_corpus(settings, str(folder))
    monkeypatch.setattr(corpus_records, "read_record", read)
    _write(folder / "a.jsonl", [*_texts("one", "other", "one"), None, *_texts("four", "five", "six")])
    report = ingest_corpus(settings, str(folder))
    assert parsed == [b'{"text": "other"}', b"{broken", b'{"text": "six"}']  # what is refused has no hash
    assert (report.added, report.removed, report.kept, report.duplicates, report.rejected) == (2, 1, 3, 1, 1)


# Shrinking


def _state(engine: Engine) -> list[list[tuple[Any, ...]]]:
    tables = "corpora corpus_versions corpus_files corpus_documents corpus_spare_records rejected_documents"
    return [sorted(run_sql(engine, f"select cast({table} as text) from {table}")) for table in tables.split()]


ONE, TWO = b'{"text": "one"}\n', b'{"text": "two"}\n'


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("b.jsonl", ONE + TWO + b'{"text": "\xc3', "breaks off: byte 11"),
        ("b.jsonl.gz", gzip.compress(ONE + TWO)[:-4], "breaks off: after [012] lines"),
        ("b.jsonl", ONE + b'{"txt": "one"}\n' * 2, "at least half of the 3 usable records .*, found 1"),
    ],
    ids=["half a character", "packed", "less than half"],
)
def test_a_known_file_that_is_cut_makes_no_version_unless_accepted(
    folder, settings, engine, name, content, found
):
    _write(folder / "a.jsonl", _texts(*map(str, range(10))))
    whole = ONE + TWO + b'{"text": "three"}\n'
    (folder / name).write_bytes(gzip.compress(whole) if name.endswith(".gz") else whole)
    ingest_corpus(settings, str(folder))
    before = _state(engine)
    (folder / name).write_bytes(content)
    with pytest.raises(
        CorpusError, match=f"{name}: expected .*{found}.*--accept-shrink.*accept_shrink"
    ) as caught:
        ingest_corpus(settings, str(folder))
    assert exit_code(caught.value) == EXIT_USAGE
    assert _state(engine) == before
    assert ingest_corpus(settings, str(folder), accept_shrink=True).version == 2


@pytest.mark.parametrize(
    ("name", "content", "reason", "found"),
    [
        ("a.jsonl", ONE + b'{"text": "tw', "corrupt_json", "breaks off: Unterminated string"),
        ("a.jsonl.gz", gzip.compress(ONE)[:-4], "unreadable_file", "breaks off: after 1 lines"),
        ("a.jsonl.zst", zstandard.compress(ONE + (b" " * 99 + b"\n") * 50_000), "expands_too_far",
         "holds too much: after 1 lines: .*times the packed size"),
    ],
    ids=["half a record", "packed", "blank lines"],
)  # fmt: skip
def test_a_file_that_is_not_whole_when_it_is_first_met_makes_no_version_unless_accepted(
    folder, settings, engine, name, content, reason, found
):
    before = _state(engine)
    (folder / name).write_bytes(content)
    with pytest.raises(
        CorpusError, match=f"{name}: expected a whole file, found that it {found}.*--accept-shrink"
    ):
        ingest_corpus(settings, str(folder))
    assert _state(engine) == before
    report = ingest_corpus(settings, str(folder), accept_shrink=True)
    assert (report.documents, report.rejected_by_reason) == (1, {reason: 1})


def test_a_corpus_that_would_lose_more_than_half_makes_no_version_unless_accepted(folder, settings, engine):
    for name, texts in (("a", "12"), ("b", "34"), ("c", "5")):
        _write(folder / f"{name}.jsonl", _texts(*texts))
    ingest_corpus(settings, str(folder))
    before = _state(engine)
    for name in "bc":
        (folder / f"{name}.jsonl").unlink()
    with pytest.raises(
        CorpusError, match=r"at least half of the 5 documents of version 1, found 2.*--accept-shrink"
    ):
        ingest_corpus(settings, str(folder))
    assert _state(engine) == before
    _write(folder / "c.jsonl", _texts("5"))
    assert ingest_corpus(settings, str(folder)).removed == 2  # 3 of 5 are more than half


# Forgetting


def test_forgotten_texts_are_refused_once_out_of_their_corpora(folder, settings, engine):
    _write(folder / "a.jsonl", [*_texts("one", "secret", "two", "secret"), *_texts("secret", "three", id=1)])
    _write(folder / "b.jsonl", _texts("one", "secret"))
    ingest_corpus(settings, str(folder))
    found = forget(settings, [document_id_of("secret")])
    assert (found.rows["corpus_documents"], found.rows["corpus_spare_records"]) == (1, 3)
    report = ingest_corpus(settings, str(folder))  # the files have the same bytes, and are read again
    assert _numbers(report) == {
        "version": 2,
        "added": 0,
        "removed": 1,
        "corrected": 0,
        "changed": 0,
        "kept": 3,
    }
    assert report.rejected_by_reason == {"forgotten": 4}
    assert "secret" not in {row[0] for row in run_sql(engine, "select text from documents")}
    again = ingest_corpus(settings, str(folder))
    assert (again.is_new, again.unchanged_files) == (False, 2)
    forget(settings, corpus=str(folder))
    report = ingest_corpus(settings, str(folder))
    assert (report.version, report.documents, report.removed) == (3, 0, 3)  # which needs no leave
