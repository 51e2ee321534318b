"""Read the changed files of a corpus: new texts into `documents`, their records into temporary tables.

`stages/ingestion.py` compares the tables with the newest version of the corpus. A file with the bytes of its
last ingestion is not read, and of a file that is read only the lines that the newest version does not hold
are written. Owns `documents`, `text_sketches` and `text_bands`.
"""

import itertools
import logging
import struct
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, InfrastructureError
from toolformer_ops.records import variant_id_of
from toolformer_ops.storage.corpora.addresses import FieldNames
from toolformer_ops.storage.corpora.files import PARQUETS, CorpusFile, OpenedFile
from toolformer_ops.storage.corpora.record_rules import Record, Rejection
from toolformer_ops.storage.corpora.records import read_records
from toolformer_ops.storage.corpora.text_sketches import sketch_of
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.copy_format import copy_text
from toolformer_ops.storage.postgres.in_use import keep_texts

logger = logging.getLogger(__name__)

READING_VERSION = 3
"""Raised where other records would be read from the same bytes: every file is then read again once."""
REFUSED_ROWS = 100
"""For each file and reason, so many refused records have a row in `rejected_documents`, the first ones; all
are counted."""
CHARACTERS_PER_TRANSACTION = 32_000_000
HELD_LINES_A_PIECE = 1_000_000
"""Lines of a file that one value of Postgres holds, 12 bytes each: 89 million would be more than it may be
long."""
FILES_PER_TRANSACTION = 5000
HELD_RECORDS = 1_000_000
"""For files with so many records in all, the lines that the newest version holds are fetched at once, 12
bytes each; of a larger file all are."""
PROGRESS_SECONDS = 60.0
"""After so many seconds the log says again how far an ingestion is."""
ACCEPT_SHRINK = "or accept it: --accept-shrink on the command line, accept_shrink in the form of ingest_corpus or in the schedule"
LACKS_FORGOTTEN = -1
"""The `read_as` of a file that lost a text (`forget`): it is read again."""
FORGOTTEN = "this text was forgotten (toolformer-ops forget)"
_RECORD_COLUMNS = ("file", "line", "document_id", "record_id", "url", "document_date", "title", "line_hash")
_REJECTION_COLUMNS = ("file", "line", "kind", "reason", "detail")
_FILE_COLUMNS = (
    "file",
    "file_uri",
    "change",
    "content_sha256",
    "size_bytes",
    "stamp",
    "records",
    "usable",
    "refused",
    "compared",
)
_DOCUMENT_COLUMNS = (
    "document_id",
    "text",
    "url",
    "document_date",
    "title",
    "escaped_characters",
    "record_hash",
)


class HeldLines:
    """The lines of a file as its newest version holds them: which of them the file has still, and which are gone.

    Args:
        pieces: 12 bytes for each line, in order: its number and its hash, as ingestion.held_lines returns
        them.
    """

    def __init__(self, pieces: Iterable[bytes] = ()) -> None:
        self._lines = itertools.chain.from_iterable(struct.iter_unpack(">iq", piece) for piece in pieces)
        self._next: tuple[int, int] | None = next(self._lines, None)
        self._gone: list[int] = []
        self.known = 0
        """Lines that the file has still."""

    def is_known(self, line: int, line_hash: int) -> bool:
        """Whether this line of the file has the same content; asked for each line in order."""
        held_line = self._next
        while held_line is not None and held_line[0] < line:
            self._gone.append(held_line[0])
            held_line = self._next = next(self._lines, None)
        if held_line != (line, line_hash):
            return False
        self._next = next(self._lines, None)
        self.known += 1
        return True

    def gone(self) -> list[int]:
        """The lines that the file has no longer, or with another content; asked after the last line."""
        while self._next is not None:
            self._gone.append(self._next[0])
            self._next = next(self._lines, None)
        return self._gone


@dataclass
class ReadFile:
    """A changed file while it is read."""

    number: int
    """Its place among the files of the corpus, from 0."""
    file: CorpusFile
    before: Row[Any] | None
    """Its row of `corpus_files`; None if the newest version does not have it."""
    stored_lines: HeldLines
    is_compared: bool = False
    """Whether lines that the newest version holds are left out."""
    sha256: str = ""
    usable: int = 0
    """Records that are written by now."""
    refused: Counter[str] = field(default_factory=Counter)
    """How many records are refused by now, by reason."""

    @property
    def may_be_compared(self) -> bool:
        """Whether the newest version holds hashes of its lines."""
        return (
            self.before is not None
            and self.before.read_as == READING_VERSION
            and not self.file.uri.lower().endswith(PARQUETS)
        )

    @property
    def all_usable(self) -> int:
        """Records that are usable, with those that the newest version has in the same line.

        It is complete at its end.
        """
        return self.usable + self.stored_lines.known

    def row(self) -> tuple[Any, ...]:
        """Its row of `read_files`, once all its records are written."""
        return (
            self.number,
            self.file.uri,
            "added" if self.before is None else "changed",
            self.sha256,
            self.file.size,
            self.file.stamp,
            self.all_usable + self.refused.total(),
            self.all_usable,
            dict(self.refused),
            self.is_compared,
        )


class NumberedRecord(NamedTuple):
    """A record with its place."""

    file: ReadFile
    line: int
    """Line, or row of Parquet."""
    record: Record | Rejection
    line_hash: int | None
    document_id: uuid.UUID | None
    """The id of its text; None if it is refused."""


class Progress:
    """Says in the log each minute how far an ingestion is.

    Args:
        uri: of the corpus.
        files: how many files it has.
    """

    def __init__(self, uri: str, files: int) -> None:
        self._uri = uri
        self._files = files
        self._next = time.monotonic() + PROGRESS_SECONDS

    def at(self, number: int, file: CorpusFile, line: int = 0) -> None:
        """The ingestion is at this line of this file, the files before are done."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PROGRESS_SECONDS
        logger.info(
            "ingesting %s: %d of %d files done, at line %d of %s",
            *(self._uri, number, self._files, line, file.uri),
        )


@dataclass
class Reading:
    """Reads the changed files of a corpus into the temporary tables of a session, and their new texts into `documents`.

    Files share micro-batches: thousands of small ones go through one transaction.
    """

    session: Connection
    settings: Settings
    corpus_id: str
    names: FieldNames
    near_duplicates: float | None
    """A text that shares so much with another one is left out; None: none is."""
    records_per_transaction: int
    accept_shrink: bool
    read_files: int = 0
    """Files read, and files that are gone."""
    unchanged_files: int = 0
    ignored_fields: Counter[str] = field(default_factory=Counter)
    unwritten: list[NumberedRecord] = field(default_factory=list)
    """Records of the next micro-batch."""
    unwritten_characters: int = 0
    ended: list[ReadFile] = field(default_factory=list)
    """Files whose last records are in the next micro-batch."""
    incomplete_files: set[str] = field(default_factory=set)
    """Files that had lost a forgotten text before they were read."""
    restamped: list[CorpusFile] = field(default_factory=list)
    """Unchanged files of which the source says something else than before."""

    def read_changed(self, uri: str, files: Sequence[CorpusFile]) -> None:
        """Read those of the corpus's files whose bytes have changed, and note which are gone.

        Raises:
            CorpusError: a file breaks off or holds too much, or a known one lost more than half of its
            records.
        """
        with database.transaction(self.session) as connection:
            database.execute(connection, queries.ingestion.begin)
            rows = database.fetch_all(connection, queries.ingestion.known_files, corpus_id=self.corpus_id)
        known_files = {row.file_uri: row for row in rows}
        self.incomplete_files = {row.file_uri for row in rows if row.read_as == LACKS_FORGOTTEN}
        progress = Progress(uri, len(files))
        changed: list[ReadFile] = []
        held_records = 0
        for number, file in enumerate(files):
            progress.at(number, file)
            before = known_files.pop(file.uri, None)
            if before is not None and before.read_as == READING_VERSION and self._is_unchanged(file, before):
                self.unchanged_files += 1
                continue
            usable_before = 0 if before is None else before.usable
            if len(changed) >= FILES_PER_TRANSACTION or held_records + usable_before > HELD_RECORDS:
                self._read_all(changed, progress)
                changed = []
                held_records = 0
            changed.append(ReadFile(number, file, before, stored_lines=HeldLines()))
            held_records += usable_before
        self._read_all(changed, progress)
        self.write_batch()
        with database.transaction(self.session) as connection:
            removed = [
                (number, file_uri, "removed") for number, file_uri in enumerate(known_files, len(files))
            ]
            database.copy_rows(connection, "read_files", _FILE_COLUMNS[:3], copy_text(removed))
        self.read_files += len(removed)

    def _is_unchanged(self, file: CorpusFile, before: Row[Any]) -> bool:
        """Whether a file has the bytes of its last ingestion: by what its source says of them, else by their hash."""
        if file.stamp is not None and file.stamp == before.stamp:
            return True
        if file.size != (before.size_bytes if before.size_bytes is not None else file.size):
            return False
        with OpenedFile(file, UnpackingLimits()) as opened:
            if opened.sha256() != before.content_sha256:
                return False
        self.restamped.append(file)
        if len(self.restamped) >= FILES_PER_TRANSACTION:
            self.write_batch()
        return True

    def _read_all(self, changed: Sequence[ReadFile], progress: Progress) -> None:
        """Read these files, whose lines of the newest version are fetched at once."""
        compared = {file.file.uri: file for file in changed if file.may_be_compared}
        if compared:
            with database.transaction(self.session) as connection:
                rows = database.fetch_all(
                    connection,
                    queries.ingestion.held_lines,
                    corpus_id=self.corpus_id,
                    file_uris=list(compared),
                    piece_lines=HELD_LINES_A_PIECE,
                )
            pieces: dict[str, list[bytes]] = defaultdict(list)
            for row in rows:
                pieces[row.file_uri].append(row.lines)
            for uri, file_pieces in pieces.items():
                compared[uri].stored_lines = HeldLines(file_pieces)
        for file in changed:
            self._read(file, progress)
            self.read_files += 1

    def _read(self, file: ReadFile, progress: Progress) -> None:
        def is_known(line: int, line_hash: int) -> bool:
            progress.at(file.number, file.file, line)
            return file.stored_lines.is_known(line, line_hash)

        progress.at(file.number, file.file)
        with OpenedFile(file.file, UnpackingLimits()) as opened:
            if opened.is_parquet:
                file.stored_lines = HeldLines()
            else:
                file.is_compared = file.may_be_compared
            records = read_records(opened, is_known, self.names)
            for line, record, line_hash in records:
                progress.at(file.number, file.file, line)
                document_id = None
                if isinstance(record, Record):
                    document_id = record.document_id
                    self.unwritten_characters += len(record.text)
                elif record.cut and not self.accept_shrink:
                    raise _not_whole(file, record)
                self.unwritten.append(NumberedRecord(file, line, record, line_hash, document_id))
                if (
                    len(self.unwritten) >= self.records_per_transaction
                    or self.unwritten_characters >= CHARACTERS_PER_TRANSACTION
                ):
                    self.write_batch()
            file.sha256 = opened.sha256()
        self.ended.append(file)
        if len(self.ended) >= FILES_PER_TRANSACTION:
            self.write_batch()

    def write_batch(self) -> None:
        """Write what was read since the last micro-batch in one transaction.

        Raises:
            CorpusError: one of the files lost more than half of its records.
        """
        if not (self.unwritten or self.ended or self.restamped):
            return
        with database.transaction(self.session) as connection:
            keep_texts(connection)
            if self.unwritten:
                self._write_records(connection)
            self._write_files(connection)
        self.unwritten.clear()
        self.unwritten_characters = 0
        self.ended.clear()
        self.restamped.clear()

    def _write_records(self, connection: Connection) -> None:
        """Write the texts and records; those of forgotten texts are refused."""
        # 1. Which texts have no row yet, and which were forgotten: a text whose control characters were replaced
        #    when it was forgotten has the id of then.
        former_ids: dict[uuid.UUID, uuid.UUID | None] = {}
        for read in self.unwritten:
            if isinstance(read.record, Record) and read.document_id is not None:
                former_ids[read.document_id] = read.record.former_document_id
        rows = database.fetch_all(
            connection,
            queries.ingestion.texts_there,
            document_ids=[*former_ids, *filter(None, former_ids.values())],
        )
        missing = {row.document_id for row in rows if not row.has_row}
        forgotten_ids = {row.document_id for row in rows if row.is_forgotten}
        forgotten = forgotten_ids & former_ids.keys()
        for own_id, former_id in former_ids.items():
            if former_id in forgotten_ids:
                forgotten.add(own_id)
        # 2. The rows.
        records: list[tuple[Any, ...]] = []
        texts: dict[uuid.UUID, Record] = {}  # the first record with a text gives its row url and date
        rejections: list[tuple[Any, ...]] = []
        for file, line, readable, line_hash, document_id in self.unwritten:
            record = Rejection("forgotten", FORGOTTEN) if document_id in forgotten else readable
            if isinstance(record, Rejection):
                file.refused[record.reason] += 1
                if file.refused[record.reason] <= REFUSED_ROWS:
                    rejections.append((file.number, line, "refused", record.reason, record.detail))
                continue
            file.usable += 1
            self.ignored_fields.update(record.ignored)
            fields = (record.record_id, record.url, record.document_date, record.title)
            records.append((file.number, line, document_id, *fields, line_hash))
            if document_id is not None and document_id in missing:
                texts.setdefault(document_id, record)
        documents = (
            (
                document_id,
                record.text,
                record.url,
                record.document_date,
                record.title,
                record.escaped_characters,
                variant_id_of(document_id, record.url, record.document_date),
            )
            for document_id, record in texts.items()
        )
        database.copy_insert(connection, "documents", _DOCUMENT_COLUMNS, documents)
        database.copy_rows(connection, "read_lines", _RECORD_COLUMNS, copy_text(records))
        database.copy_rows(connection, "read_lines", _REJECTION_COLUMNS, copy_text(rejections))
        if self.near_duplicates is None:
            return
        # 3. The sketches of those of the texts that have none.
        to_sketch = {}
        for read in self.unwritten:
            if isinstance(read.record, Record) and read.document_id not in forgotten:
                to_sketch[read.document_id] = read.record.text
        rows = database.fetch_all(
            connection, queries.ingestion.texts_without_sketch, document_ids=list(to_sketch)
        )
        numbers: list[tuple[Any, ...]] = []
        bands: list[tuple[Any, ...]] = []
        for row in rows:
            sketch = sketch_of(to_sketch[row.document_id])
            numbers.append((row.document_id, sketch.numbers))
            bands.extend((band, row.document_id) for band in sketch.bands)
        database.copy_insert(connection, "text_sketches", ("document_id", "numbers"), numbers)
        database.copy_insert(connection, "text_bands", ("band", "document_id"), bands)

    def require_whole(self, connection: Connection) -> None:
        """Refuse what was read if one of its texts was forgotten since; until the transaction ends none is.

        Raises:
            InfrastructureError: one was.
        """
        keep_texts(connection)
        lost = database.fetch_one(
            connection,
            queries.ingestion.forgotten_meanwhile,
            corpus_id=self.corpus_id,
            incomplete_files=sorted(self.incomplete_files),
        )
        if lost.files or lost.records:
            raise InfrastructureError(
                "expected texts that stay while a corpus is read, found that `toolformer-ops forget` deleted "
                f"some: {lost.records} records and texts of {lost.files} files. No version is made. Ingest "
                "the corpus again."
            )

    def _write_files(self, connection: Connection) -> None:
        """Write which files were read to their end, which of their lines are gone, and what their source says of others."""
        gone: list[tuple[Any, ...]] = []
        for file in self.ended:
            usable_before = 0 if file.before is None else file.before.usable
            is_half = (file.all_usable + file.refused["forgotten"]) * 2 >= usable_before
            if not (self.accept_shrink or is_half):
                raise CorpusError(
                    f"{file.file.uri}: expected at least half of the {usable_before} usable records of the "
                    f"newest version, found {file.all_usable}. No version is made. Look at what wrote the "
                    f"file, {ACCEPT_SHRINK}."
                )
            gone.extend((file.number, line, "gone") for line in file.stored_lines.gone())
        database.copy_rows(connection, "read_lines", ("file", "line", "kind"), copy_text(gone))
        rows = copy_text(file.row() for file in self.ended)
        database.copy_rows(connection, "read_files", _FILE_COLUMNS, rows)
        if self.restamped:
            database.execute(
                connection,
                queries.corpora.stamp_files,
                corpus_id=self.corpus_id,
                file_uris=[file.uri for file in self.restamped],
                sizes=[file.size for file in self.restamped],
                stamps=[file.stamp for file in self.restamped],
            )


def _not_whole(file: ReadFile, refusal: Rejection) -> CorpusError:
    """What is raised of a file that breaks off or holds too much."""
    held_before = ""
    if file.before:
        held_before = f", as it was at the newest version with {file.before.usable} usable records"
    fault = "holds too much" if refusal.reason == "expands_too_far" else "breaks off"
    return CorpusError(
        f"{file.file.uri}: expected a whole file{held_before}, found that it {fault}: {refusal.detail}. "
        f"No version is made. Copy the file again, {ACCEPT_SHRINK}."
    )
