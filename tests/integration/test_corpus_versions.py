"""Versions of a corpus: what an ingestion of the changed files alone makes is what reading all files anew would find."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from pydantic import SecretStr
from sqlalchemy import Engine

from toolformer_ops.config import Settings
from toolformer_ops.records import corpus_id_of, normal_uri
from toolformer_ops.stages import ingestion
from toolformer_ops.stages.ingestion import IngestReport, ingest_corpus
from toolformer_ops.storage import database

Line = dict[str, Any] | None
"""A record, or a line that is no JSON."""


@pytest.fixture
def settings(postgres_dsn: str) -> Settings:
    return Settings(_env_file=None, database_dsn=SecretStr(postgres_dsn))  # type: ignore[call-arg]


@pytest.fixture
def engine(settings: Settings) -> Engine:
    return database.connect(settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "corpus"
    path.mkdir()
    return path


def _write(path: Path, lines: Iterable[Line]) -> None:
    path.write_text("".join("{broken\n" if line is None else json.dumps(line) + "\n" for line in lines))


def _rows(engine: Engine, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sqlalchemy.text(statement), parameters)]


def _numbers(report: IngestReport) -> dict[str, int]:
    return {name: getattr(report, name) for name in ("version", "added", "removed", "corrected", "changed", "kept")}


# The reference: every file is read anew each time


@dataclass
class Reference:
    """The versions of a corpus, from whole files, by the rules in plain words."""

    uri: str
    newest: dict[str, Any] = field(default_factory=dict)
    """The row of corpus_versions."""
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By text, in the newest version."""
    of_ids: dict[str, str] = field(default_factory=dict)
    """The text of each id, in the newest version."""
    intervals: set[tuple[Any, ...]] = field(default_factory=set)
    """Those that ended: text, ordinal, first and left version, url, date, title."""
    ordinals: int = 0

    def add_version(self, files: dict[str, list[Line]]) -> None:
        places = [(f"{self.uri}/{name}", n, line) for name in sorted(files) for n, line in enumerate(files[name], 1)]
        refused = [(uri, n, "corrupt_json") for uri, n, line in places if line is None]
        refused += [(f"{self.uri}/{name}", 0, "empty_file") for name, lines in files.items() if not lines]
        records = [(uri, n, line) for uri, n, line in places if line is not None]
        last_of_id = {line["id"]: (uri, n) for uri, n, line in records if "id" in line}
        replaced = [(uri, n) for uri, n, line in records if "id" in line and last_of_id[line["id"]] != (uri, n)]
        members: dict[str, dict[str, Any]] = {}
        of_ids: dict[str, str] = {}
        duplicates = 0
        for uri, n, line in records:
            if (uri, n) in replaced:
                continue
            if "id" in line:
                of_ids[line["id"]] = line["text"]
            if line["text"] in members:
                duplicates += 1
            else:
                members[line["text"]] = {"file_uri": uri, "line": n, **line}
        rejected = sorted(refused + [(uri, n, "same_id_later") for uri, n in replaced])
        version = self.newest.get("version", 0) + 1
        corrected = [
            text
            for text in members
            if text in self.members
            and any(members[text].get(name) != self.members[text].get(name) for name in ("url", "date", "title"))
        ]
        row = {
            "documents": len(members),
            "added": len(members.keys() - self.members.keys()),
            "removed": len(self.members.keys() - members.keys()),
            "corrected": len(corrected),
            "changed": sum(of_ids[id_] != self.of_ids[id_] for id_ in of_ids.keys() & self.of_ids.keys()),
            "kept": len(members.keys() & self.members.keys()) - len(corrected),
            "files": len(files),
            "records": len(records) + len(refused),
            "duplicates": duplicates,
            "rejected": len(rejected),
        }
        is_new = any(row[name] for name in ("added", "removed", "corrected", "changed")) or any(
            row[name] != self.newest.get(name) for name in ("files", "records", "duplicates", "rejected")
        )
        # Ordinals: of what stays as they were, of what is new the next ones in the order of the files.
        for text, member in members.items():
            if text in self.members:
                before = self.members[text]
                member |= {"ordinal": before["ordinal"], "first_version": before["first_version"]}
            else:
                member |= {"ordinal": self.ordinals, "first_version": version}
                self.ordinals += 1
        for text, before in self.members.items():
            if text not in members or text in corrected:
                fields = (before.get(name) for name in ("url", "date", "title"))
                self.intervals.add((text, before["ordinal"], before["first_version"], version, *fields))
        for text in corrected:
            members[text]["first_version"] = version
        self.members, self.of_ids, self.rejected = members, of_ids, rejected
        if is_new:
            self.newest = {"version": version, **row}

    def check(self, engine: Engine) -> None:
        corpus_id = corpus_id_of(self.uri)
        columns = ", ".join(self.newest)
        [newest] = _rows(
            engine,
            f"select {columns} from corpus_versions where corpus_id = :c order by version desc limit 1",
            c=corpus_id,
        )
        assert dict(zip(self.newest, newest, strict=True)) == self.newest
        held = _rows(
            engine,
            """select first.text, c.ordinal, c.first_version, c.left_version, seen.url, cast(seen.document_date as text), c.title,
                      c.file_uri, c.line, c.record_id, seen.text = first.text
               from corpus_documents c
               join documents first on first.document_id = c.document_id
               join documents seen on seen.document_id = coalesce(c.variant_id, c.document_id)
               where c.corpus_id = :c""",
            c=corpus_id,
        )
        assert all(row[-1] for row in held)
        assert {row[:7] for row in held if row[3] is not None} == self.intervals
        open_fields = ("ordinal", "first_version", "url", "date", "title", "file_uri", "line", "id")
        assert {row[:3] + row[4:10] for row in held if row[3] is None} == {
            (text, *(member.get(name) for name in open_fields)) for text, member in self.members.items()
        }
        rejected = "select file_uri, line, reason from rejected_documents where corpus_id = :c"
        assert sorted(_rows(engine, rejected, c=corpus_id)) == self.rejected
        # Each file's own counts, against its rows.
        counted = """
            select f.file_uri, f.records, f.accepted, f.duplicates, f.rejected,
                   (select count(*) from corpus_documents c
                    where c.corpus_id = f.corpus_id and c.file_uri = f.file_uri and c.left_version is null),
                   (select count(*) from rejected_documents r where r.corpus_id = f.corpus_id and r.file_uri = f.file_uri)
            from corpus_files f where f.corpus_id = :c"""
        for _, records, accepted, duplicates, refused, rows, refusals in _rows(engine, counted, c=corpus_id):
            assert (accepted, refused) == (rows, refusals)
            assert records == accepted + duplicates + refused


def _random_line(source: random.Random) -> Line:
    if source.random() < 0.05:
        return None
    choices = {
        "id": [None, None, "p1", "p2", "p3"],
        "url": [None, "https://x/1", "https://x/2"],
        "date": [None, "2014-05-06", "2015-01-02"],
        "title": [None, "T", "U"],
    }
    fields = {name: source.choice(values) for name, values in choices.items()}
    return {"text": f"text {source.randrange(9)}"} | {
        name: value for name, value in fields.items() if value is not None
    }


def _change(source: random.Random, files: dict[str, list[Line]]) -> None:
    """One change of the kind that happens to corpora."""
    name = source.choice("abc") + ".jsonl"
    lines = files.setdefault(name, [])
    match source.choice(["insert", "append", "remove", "edit", "correct", "move", "swap", "drop", "nothing"]):
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
            files.setdefault(source.choice("abc") + ".jsonl", []).append(lines.pop(source.randrange(len(lines))))
        case "swap":
            source.shuffle(lines)
        case "drop" if len(files) > 1:
            del files[name]


@pytest.mark.parametrize("first_seed", range(0, 12, 3))
def test_any_sequence_of_changes_makes_the_versions_that_whole_files_would(
    folder: Path, settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch, first_seed: int
) -> None:
    write = ingestion.Reading.write_batch
    for seed in range(first_seed, first_seed + 3):
        source = random.Random(seed)  # noqa: S311 - a seeded sequence
        corpus = folder / str(seed)  # all in one database: other corpora have the same texts with other urls and dates
        corpus.mkdir()
        files: dict[str, list[Line]] = {"a.jsonl": [_random_line(source) for _ in range(6)]}
        reference = Reference(normal_uri(str(corpus)))
        for _ in range(10):
            for _ in range(source.randrange(1, 4)):
                _change(source, files)
            for path in corpus.iterdir():
                path.unlink()
            for name, lines in files.items():
                _write(corpus / name, lines)
            size = source.choice([1, 2, 3, 1000])
            if source.random() < 0.2:
                _break_off_after(monkeypatch, write, batches=source.randrange(3))
                with pytest.raises(KeyboardInterrupt):
                    ingest_corpus(settings, str(corpus), accept_shrink=True, records_per_transaction=size)
                monkeypatch.undo()
            report = ingest_corpus(settings, str(corpus), accept_shrink=True, records_per_transaction=size)
            reference.add_version(files)
            reference.check(engine)
            assert report.version == reference.newest["version"]
            assert report.documents == report.added + report.corrected + report.kept
        assert not ingest_corpus(settings, str(corpus)).is_new


def _break_off_after(monkeypatch: pytest.MonkeyPatch, write: Callable[..., Any], batches: int) -> None:
    """An ingestion ends in the middle: after so many micro-batches, or before its version is made."""
    written: list[int] = []

    def write_some(*arguments: Any) -> Any:
        if len(written) == batches:
            raise KeyboardInterrupt
        written.append(1)
        return write(*arguments)

    def never(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ingestion.Reading, "write_batch", write_some)
    monkeypatch.setattr(ingestion, "make_version", never)
