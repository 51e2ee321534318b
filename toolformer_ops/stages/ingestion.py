"""Read a corpus into `documents` (owns `documents`, `corpora`, `corpus_files`, `corpus_documents`, `rejected_documents`).

Every line that is not blank is accepted, a duplicate of an earlier text, or refused with a reason, so that for each file records =
accepted + duplicates + rejected; the tables are compared with it. Micro-batches are transactions: ingestion may be killed and run
again. A file whose bytes have not changed is not read again, and two ingestions of one corpus wait for each other. Documents never
leave a corpus and never change their ordinal: what a changed file adds comes last; what it holds no longer stays, without a line.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, Row

from toolformer_ops.config import Settings
from toolformer_ops.corpus.files import CorpusFile, Line, content_sha256, find_files, read_lines
from toolformer_ops.corpus.records import Record, Rejection, read_record
from toolformer_ops.errors import DatabaseError
from toolformer_ops.records import corpus_id_of, normal_uri
from toolformer_ops.storage import database

logger = logging.getLogger(__name__)

RECORDS_PER_TRANSACTION = 2000
BYTES_PER_TRANSACTION = 32_000_000
DOCUMENT_COLUMNS = ("document_id", "text", "url", "document_date", "title", "escaped_characters")
MEMBER_COLUMNS = ("corpus_id", "document_id", "ordinal", "file_uri", "line")
REJECTION_COLUMNS = ("corpus_id", "file_uri", "line", "reason", "detail")


@dataclass(frozen=True)
class IngestReport:
    """What a corpus holds after its ingestion, over all its files: records = accepted + duplicates + rejected."""

    corpus_id: str
    uri: str
    """As `records.normal_uri` writes it."""
    files: int
    unchanged_files: int
    """Files that were ingested before and have the same bytes: not read again."""
    records: int
    accepted: int
    duplicates: int
    rejected: int
    rejected_by_reason: Mapping[str, int]
    new_documents: int
    """Documents that the corpus did not hold before."""
    ignored_fields: Mapping[str, int]
    """Optional fields left out, by reason, of the files read now."""


@dataclass
class _Tally:
    """What was done in this process; the rest is counted in the tables."""

    unchanged_files: int = 0
    new_documents: int = 0
    ignored_fields: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Item:
    """One line and what it reads as."""

    number: int
    read: Record | Rejection


@dataclass(frozen=True)
class _Place:
    """Where a document of the corpus was met first."""

    file_uri: str
    line: int | None


def ingest_corpus(
    settings: Settings, corpus_uri: str, *, records_per_transaction: int = RECORDS_PER_TRANSACTION
) -> IngestReport:
    """Ingest a file or folder of JSON Lines from a path, file:// or s3://; ingesting again changes nothing.

    Raises:
        CorpusError: there is no such file, folder or bucket, or it cannot be read.
        ObjectStoreError: S3 broke off; what was read is kept, and the next ingestion goes on there.
        DatabaseError: Postgres refuses, or the tables do not add up.
    """
    uri = normal_uri(corpus_uri)
    corpus_id = corpus_id_of(uri)
    files = find_files(settings, uri)
    engine = database.connect(settings)
    tally = _Tally()
    with _sole_ingestion(engine, uri):
        with database.transaction(engine) as connection:
            database.execute(connection, "insert_corpus", corpus_id=corpus_id, uri=uri)
        for file in files:
            _FileIngestion(engine, corpus_id, file, tally, records_per_transaction).run(settings.max_line_bytes)
        report = _report(engine, corpus_id, uri, tally)
    reasons = ", ".join(f"{count} {reason}" for reason, count in report.rejected_by_reason.items())
    logger.info(
        "ingested %s: %d records in %d files (%d unchanged): %d accepted (%d new), %d duplicates, %d rejected%s",
        *(uri, report.records, report.files, report.unchanged_files, report.accepted, report.new_documents),
        *(report.duplicates, report.rejected, f" ({reasons})" if reasons else ""),
    )
    if report.accepted == 0:
        logger.warning("%s holds no document: nothing can be annotated. Table rejected_documents says why.", uri)
    if report.ignored_fields:
        logger.warning("fields left out: %s", ", ".join(f"{n} {name}" for name, n in report.ignored_fields.items()))
    return report


@dataclass(frozen=True)
class _FileIngestion:
    """The ingestion of one file."""

    engine: Engine
    corpus_id: str
    file: CorpusFile
    tally: _Tally
    records_per_transaction: int

    def run(self, max_line_bytes: int) -> None:
        """Read the file unless its bytes are those of its last ingestion."""
        sha256 = content_sha256(self.file)
        with database.transaction(self.engine) as connection:
            if self._is_ingested(connection, sha256):
                self.tally.unchanged_files += 1
                return
        counts: Counter[str] = Counter()
        for batch in self._batches(max_line_bytes):
            with database.transaction(self.engine) as connection:
                counts.update(self._write(connection, batch))
        with database.transaction(self.engine) as connection:
            self._finish(connection, counts)

    def _is_ingested(self, connection: Connection, sha256: str) -> bool:
        """Whether these bytes were read to their end; where other bytes were read, makes ready for the new ones."""
        known = self._rows(connection, "corpus_file")
        if known and known[0].content_sha256 == sha256:
            return known[0].ingested_at is not None
        if known:
            logger.warning(
                "%s has changed since it was ingested: new documents are added, none is removed", self.file.uri
            )
            self._execute(connection, "forget_corpus_lines")
            self._execute(connection, "forget_rejected_documents")
        self._execute(connection, "begin_corpus_file", content_sha256=sha256)
        return False

    def _batches(self, max_line_bytes: int) -> Iterator[list[_Item]]:
        batch: list[_Item] = []
        size = 0
        for line in read_lines(self.file, max_line_bytes):
            batch.append(_read(line))
            size += len(line.content)
            if len(batch) >= self.records_per_transaction or size >= BYTES_PER_TRANSACTION:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _write(self, connection: Connection, batch: Sequence[_Item]) -> Counter[str]:
        """Write one micro-batch; returns the number of records by what became of them."""
        counts = Counter(records=len(batch))
        refused = [(item.number, item.read) for item in batch if isinstance(item.read, Rejection)]
        records = [(item.number, item.read.document_id, item.read) for item in batch if isinstance(item.read, Record)]
        places = self._places(connection, [document_id for _, document_id, _ in records])
        [last] = self._rows(connection, "next_ordinal", by_file=False)
        documents: list[tuple[Any, ...]] = []
        members: list[tuple[Any, ...]] = []
        for number, document_id, record in records:
            self.tally.ignored_fields.update(record.ignored)
            place, here = places.get(document_id), _Place(self.file.uri, number)
            if place not in (None, here, _Place(self.file.uri, None)):
                counts["duplicates"] += 1
                continue
            counts["accepted"] += 1
            places[document_id] = here
            if place is None:
                ordinal = last.ordinal + len(members)
                members.append((self.corpus_id, document_id, ordinal, self.file.uri, number))
                documents.append(_document_row(document_id, record))
            elif place.line is None:
                self._execute(connection, "place_corpus_document", document_id=document_id, line=number)
        database.copy_insert(connection, "documents", DOCUMENT_COLUMNS, documents)
        self.tally.new_documents += database.copy_insert(connection, "corpus_documents", MEMBER_COLUMNS, members)
        counts["rejected"] = len(refused)
        rejections = [(self.corpus_id, self.file.uri, number, item.reason, item.detail) for number, item in refused]
        database.copy_insert(connection, "rejected_documents", REJECTION_COLUMNS, rejections)
        return counts

    def _finish(self, connection: Connection, counts: Counter[str]) -> None:
        [stored] = self._rows(connection, "corpus_file_rows")
        expected = (counts["accepted"], counts["rejected"])
        if expected != (stored.accepted, stored.rejected) or counts["records"] != sum(expected) + counts["duplicates"]:
            raise DatabaseError(
                f"{self.file.uri}: expected {dict(counts)} in corpus_documents and rejected_documents, found "
                f"{stored.accepted} accepted and {stored.rejected} rejected. Was the file or a table changed meanwhile? Try again."
            )
        numbers = {name: counts[name] for name in ("records", "accepted", "duplicates", "rejected")}
        self._execute(connection, "finish_corpus_file", **numbers)

    def _places(self, connection: Connection, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, _Place]:
        rows = self._rows(connection, "places_of_documents", by_file=False, document_ids=list(ids))
        return {row.document_id: _Place(row.file_uri, row.line) for row in rows}

    def _rows(self, connection: Connection, name: str, *, by_file: bool = True, **values: object) -> list[Row[Any]]:
        place = {"file_uri": self.file.uri} if by_file else {}
        return database.fetch_all(connection, name, corpus_id=self.corpus_id, **place, **values)

    def _execute(self, connection: Connection, name: str, **values: object) -> None:
        database.execute(connection, name, corpus_id=self.corpus_id, file_uri=self.file.uri, **values)


def _read(line: Line) -> _Item:
    if line.reason is not None:
        return _Item(line.number, Rejection(line.reason, line.detail))
    return _Item(line.number, read_record(line.content))


def _document_row(document_id: uuid.UUID, record: Record) -> tuple[Any, ...]:
    return document_id, record.text, record.url, record.document_date, record.title, record.escaped_characters


def _report(engine: Engine, corpus_id: str, uri: str, tally: _Tally) -> IngestReport:
    with database.transaction(engine) as connection:
        [sums] = database.fetch_all(connection, "corpus_sums", corpus_id=corpus_id)
        reasons = database.fetch_all(connection, "rejection_counts", corpus_id=corpus_id)
    return IngestReport(
        corpus_id,
        uri,
        sums.files,
        tally.unchanged_files,
        sums.records,
        sums.accepted,
        sums.duplicates,
        sums.rejected,
        {row.reason: row.records for row in reasons},
        tally.new_documents,
        dict(tally.ignored_fields),
    )


@contextmanager
def _sole_ingestion(engine: Engine, uri: str) -> Iterator[None]:
    """Hold the corpus's lock in a session of its own, so that it outlives transactions and ends with the process."""
    name = f"ingestion of {uri}"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        [attempt] = database.fetch_all(connection, "try_session_lock", name=name)
        if not attempt.locked:
            logger.info("another ingestion of %s is at work: waiting for its end", uri)
            database.fetch_all(connection, "session_lock", name=name)
        try:
            yield
        finally:
            database.fetch_all(connection, "session_unlock", name=name)
