"""Read a corpus into `documents` (owns `documents`, `corpora`, `corpus_files`, `corpus_documents`, `rejected_documents`).

Every line that is not blank is accepted, a duplicate of an earlier text, or refused with a reason, so that for each file records =
accepted + duplicates + rejected; the tables are compared with it. Each micro-batch is a transaction: ingestion may be killed and
run again. A file whose bytes have not changed is not read again, and two ingestions of one corpus wait for each other. Documents
never leave a corpus and never change their ordinal: new texts of a changed file are added at the end, and a text that it no longer
contains stays, without a line.
"""

import datetime
import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine

from toolformer_ops.config import Settings
from toolformer_ops.corpus.files import CorpusFile, content_sha256, find_files, read_lines
from toolformer_ops.corpus.records import Record, Rejection, read_record
from toolformer_ops.errors import DatabaseError
from toolformer_ops.records import corpus_id_of, normal_uri
from toolformer_ops.storage import database

logger = logging.getLogger(__name__)

RECORDS_PER_TRANSACTION = 2000
BYTES_PER_TRANSACTION = 32_000_000


@dataclass(frozen=True)
class DocumentRow(database.TableRow):
    """A new text."""

    table = "documents"
    document_id: uuid.UUID
    text: str
    url: str | None
    document_date: datetime.date | None
    title: str | None
    escaped_characters: int


@dataclass(frozen=True)
class CorpusDocumentRow(database.TableRow):
    """A text of the corpus, and the line in which it was found first."""

    table = "corpus_documents"
    corpus_id: str
    document_id: uuid.UUID
    ordinal: int
    file_uri: str
    line: int
    first_version: int
    record_id: str | None
    title: str | None


@dataclass(frozen=True)
class RejectedDocumentRow(database.TableRow):
    """A line that is refused."""

    table = "rejected_documents"
    corpus_id: str
    file_uri: str
    line: int
    reason: str
    detail: str


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
class FileTally:
    """What one file held when it was read now."""

    counts: Counter[str] = field(default_factory=Counter)
    """records, accepted, duplicates and rejected."""
    new_documents: int = 0
    ignored_fields: Counter[str] = field(default_factory=Counter)


def ingest_corpus(
    settings: Settings, corpus_uri: str, *, records_per_transaction: int = RECORDS_PER_TRANSACTION
) -> IngestReport:
    """Ingest a file or folder of JSON Lines from a path, file:// or s3://; ingesting again changes nothing.

    Raises:
        CorpusError: there is no such file, folder or bucket, or it cannot be read.
        ObjectStoreError: the connection to S3 broke; what was read is kept, and the next ingestion continues there.
        DatabaseError: Postgres refuses, or the tables do not add up.
    """
    uri = normal_uri(corpus_uri)
    corpus_id = corpus_id_of(uri)
    files = find_files(settings, uri)
    engine = database.connect(settings)
    lock = f"ingestion of {uri}"
    # A session that is in no transaction holds the lock: it is kept over all transactions, and ends with the process.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as session:
        [attempt] = database.fetch_all(session, "try_session_lock", name=lock)
        if not attempt.locked:
            logger.info("another ingestion of %s is at work: waiting for its end", uri)
            database.fetch_all(session, "session_lock", name=lock)
        try:
            with database.transaction(engine) as connection:
                database.execute(connection, "insert_corpus", corpus_id=corpus_id, uri=uri)
                newest = database.fetch_all(connection, "newest_corpus_version", corpus_id=corpus_id)
            version = newest[0].version + 1 if newest else 1
            tallies = [
                ingest_file(engine, corpus_id, version, file, settings.max_line_bytes, records_per_transaction)
                for file in files
            ]
            with database.transaction(engine) as connection:
                if not newest or any(tallies):
                    database.execute(connection, "insert_corpus_version", corpus_id=corpus_id, version=version)
                [sums] = database.fetch_all(connection, "corpus_sums", corpus_id=corpus_id)
                reasons = database.fetch_all(connection, "rejection_counts", corpus_id=corpus_id)
        finally:
            database.fetch_all(session, "session_unlock", name=lock)
    read_now = [tally for tally in tallies if tally is not None]
    report = IngestReport(
        corpus_id=corpus_id,
        uri=uri,
        **sums._asdict(),
        unchanged_files=len(tallies) - len(read_now),
        rejected_by_reason={row.reason: row.records for row in reasons},
        new_documents=sum(tally.new_documents for tally in read_now),
        ignored_fields=dict(sum((tally.ignored_fields for tally in read_now), Counter())),
    )
    by_reason = ", ".join(f"{count} {reason}" for reason, count in report.rejected_by_reason.items())
    logger.info(
        "ingested %s: %d records in %d files (%d unchanged): %d accepted (%d new), %d duplicates, %d rejected%s",
        *(uri, report.records, report.files, report.unchanged_files, report.accepted, report.new_documents),
        *(report.duplicates, report.rejected, f" ({by_reason})" if by_reason else ""),
    )
    if report.accepted == 0:
        logger.warning("%s holds no document: nothing can be annotated. Table rejected_documents says why.", uri)
    if report.ignored_fields:
        logger.warning("fields left out: %s", ", ".join(f"{n} {name}" for name, n in report.ignored_fields.items()))
    return report


def ingest_file(
    engine: Engine, corpus_id: str, version: int, file: CorpusFile, max_line_bytes: int, records_per_transaction: int
) -> FileTally | None:
    """Read one file in micro-batches; None where its bytes are those of its last ingestion.

    Raises:
        DatabaseError: Postgres refuses, or the tables do not add up.
    """
    place = {"corpus_id": corpus_id, "file_uri": file.uri}
    # 1. Compare the bytes. A file of which other bytes were read begins anew.
    sha256 = content_sha256(file)
    with database.transaction(engine) as connection:
        known = database.fetch_all(connection, "corpus_file", **place)
        if not known or known[0].content_sha256 != sha256:
            if known:
                logger.warning(
                    "%s has changed since it was ingested: new documents are added, none is removed", file.uri
                )
                database.execute(connection, "forget_corpus_lines", **place)
                database.execute(connection, "forget_rejected_documents", **place)
            database.execute(connection, "begin_corpus_file", **place, content_sha256=sha256)
        elif known[0].ingested_at is not None:
            return None
    # 2. Read and write.
    tally = FileTally()
    batch: list[tuple[int, Record | Rejection]] = []
    size = 0

    def flush() -> None:
        with database.transaction(engine) as connection:
            write_batch(connection, corpus_id, version, file.uri, batch, tally)
        batch.clear()

    for line in read_lines(file, max_line_bytes):
        refused = None if line.reason is None else Rejection(line.reason, line.detail)
        batch.append((line.number, refused or read_record(line.content)))
        size += len(line.content)
        if len(batch) >= records_per_transaction or size >= BYTES_PER_TRANSACTION:
            flush()
            size = 0
    if batch:
        flush()
    # 3. Compare with the tables.
    counts = {name: tally.counts[name] for name in ("records", "accepted", "duplicates", "rejected")}
    with database.transaction(engine) as connection:
        [stored] = database.fetch_all(connection, "corpus_file_rows", **place)
        adds_up = counts["records"] == counts["accepted"] + counts["duplicates"] + counts["rejected"]
        if not adds_up or (counts["accepted"], counts["rejected"]) != (stored.accepted, stored.rejected):
            raise DatabaseError(
                f"{file.uri}: expected {counts} in corpus_documents and rejected_documents, found {stored.accepted} accepted "
                f"and {stored.rejected} rejected. Was the file or a table changed meanwhile? Try again."
            )
        database.execute(connection, "finish_corpus_file", **place, **counts)
    return tally


def write_batch(
    connection: Connection,
    corpus_id: str,
    version: int,
    file_uri: str,
    batch: Sequence[tuple[int, Record | Rejection]],
    tally: FileTally,
) -> None:
    """Write one micro-batch of numbered lines and add it to the tally."""
    ids = [read.document_id for _, read in batch if isinstance(read, Record)]
    rows = database.fetch_all(connection, "places_of_documents", corpus_id=corpus_id, document_ids=ids)
    places: dict[uuid.UUID, tuple[str, int | None]] = {row.document_id: (row.file_uri, row.line) for row in rows}
    [last] = database.fetch_all(connection, "next_ordinal", corpus_id=corpus_id)
    documents: list[DocumentRow] = []
    members: list[CorpusDocumentRow] = []
    rejections: list[RejectedDocumentRow] = []
    for number, read in batch:
        if isinstance(read, Rejection):
            rejections.append(
                RejectedDocumentRow(
                    corpus_id=corpus_id, file_uri=file_uri, line=number, reason=read.reason, detail=read.detail
                )
            )
            continue
        tally.ignored_fields.update(read.ignored)
        document_id, here = read.document_id, (file_uri, number)
        place = places.get(document_id)
        # Not a duplicate: a new text, this very line of an interrupted ingestion, or a text of this file before it changed.
        if place not in (None, here, (file_uri, None)):
            tally.counts["duplicates"] += 1
            continue
        tally.counts["accepted"] += 1
        places[document_id] = here
        if place is None:
            members.append(
                CorpusDocumentRow(
                    corpus_id=corpus_id,
                    document_id=document_id,
                    ordinal=last.ordinal + len(members),
                    file_uri=file_uri,
                    line=number,
                    first_version=version,
                    record_id=read.record_id,
                    title=read.title,
                )
            )
            documents.append(
                DocumentRow(
                    document_id=document_id,
                    text=read.text,
                    url=read.url,
                    document_date=read.document_date,
                    title=read.title,
                    escaped_characters=read.escaped_characters,
                )
            )
        elif place != here:
            database.execute(
                connection,
                "place_corpus_document",
                corpus_id=corpus_id,
                file_uri=file_uri,
                document_id=document_id,
                line=number,
            )
    database.insert_rows(connection, [*documents, *rejections])
    tally.new_documents += database.insert_rows(connection, members)
    tally.counts.update(records=len(batch), rejected=len(rejections))
