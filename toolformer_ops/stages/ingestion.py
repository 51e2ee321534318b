"""Read a corpus into `documents`, and make its next version from what has changed.

Owns `documents`, `corpora`, `corpus_versions`, `corpus_version_files`, `corpus_files`, `corpus_documents`,
`corpus_spare_records` and `rejected_documents`. An ingestion reads the files whose bytes have changed, writes
new texts in micro-batches, and collects the records in temporary tables. One transaction then compares them
with the newest version and makes the next one (`compare` and `apply` of sql/queries/ingestion.sql): until its
end everybody sees the version before. A killed ingestion leaves the texts that it wrote; the next one reads
the changed files again. Two ingestions of one corpus wait for each other.

Which records count, over all files in the order of their names and lines: of those with the same id the last
one, then of those with the same text the first one. The others are kept in `corpus_spare_records`: one of
them counts when the one that counts now disappears.
"""

import json
import logging
import struct
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, DatabaseError
from toolformer_ops.records import variant_id_of
from toolformer_ops.storage import database, queries, sessions
from toolformer_ops.storage.copy_format import copy_text
from toolformer_ops.storage.corpus_addresses import corpus_id_of, normal_uri
from toolformer_ops.storage.corpus_files import CorpusFile, OpenedFile, UnpackingLimits, find_files
from toolformer_ops.storage.corpus_records import Record, Rejection, read_records

logger = logging.getLogger(__name__)

READING_VERSION = 2
"""Raised where other records would be read from the same bytes: every file is then read again once."""
REFUSED_ROWS = 100
"""Of a file and a reason, so many refused records have a row in `rejected_documents`, the first ones; all are
counted."""
RECORDS_PER_TRANSACTION = 5000
CHARACTERS_PER_TRANSACTION = 32_000_000
Numbered = tuple[int, Record | Rejection, int | None]
"""A line or row, its record, and the hash of the line."""
ACCEPT_SHRINK = "or accept it: --accept-shrink on the command line, accept_shrink in the form of ingest_corpus or in the schedule"
FORGOTTEN = "this text was forgotten (toolformer-ops forget)"
_RECORD_COLUMNS = ("file", "line", "document_id", "record_id", "url", "document_date", "title", "line_hash")
_REJECTION_COLUMNS = ("file", "line", "kind", "reason", "detail")
_DOCUMENT_COLUMNS = (
    "document_id",
    "text",
    "url",
    "document_date",
    "title",
    "escaped_characters",
    "record_hash",
)


@dataclass(frozen=True)
class IngestReport:
    """What a corpus holds after its ingestion, over all its files, and what that changed.

    records = documents + duplicates + rejected, and documents = added + corrected + kept.
    """

    corpus_id: str
    uri: str
    """As `corpus_addresses.normal_uri` writes it."""
    version: int
    """The newest version of the corpus."""
    is_new: bool
    """Whether this ingestion made it; otherwise the five numbers of what changed are 0, 0, 0, 0 and all
    documents."""
    added: int
    removed: int
    corrected: int
    changed: int
    kept: int
    documents: int
    files: int
    unchanged_files: int
    """Files that have the bytes of their last ingestion: not read again."""
    records: int
    duplicates: int
    rejected: int
    rejected_by_reason: Mapping[str, int]
    ignored_fields: Mapping[str, int]
    """Optional fields left out, by reason, of the files read now."""


def ingest_corpus(
    settings: Settings,
    corpus_uri: str,
    *,
    accept_shrink: bool = False,
    records_per_transaction: int = RECORDS_PER_TRANSACTION,
) -> IngestReport:
    """Ingest a file or folder of JSON Lines or Parquet from a path, file:// or s3://; the same files again make no new version.

    Args:
        settings: of the deployment.
        corpus_uri: the file or folder.
        accept_shrink: take a file that breaks off or holds too much, or files or a corpus that lost more than
        half, as they are.
        records_per_transaction: records whose texts are written at once; decides no row.

    Raises:
        CorpusError: there is no such file, folder or bucket, it cannot be read as a whole, or it has shrunk
        too much.
        ObjectStoreError: the connection to S3 broke; what was read is kept, and the next ingestion continues
        there.
        DatabaseError: Postgres refuses, or the tables do not add up.
    """
    uri = normal_uri(corpus_uri)
    corpus_id, files = corpus_id_of(uri), find_files(settings, uri)
    # The session holds the lock over all transactions, and the temporary tables; both end with the process.
    engine = database.connect(settings)
    with database.session(engine) as session:
        lock = f"ingestion of {uri}"
        with database.transaction(session) as connection:
            [attempt] = database.fetch_all(connection, queries.locks.try_session, name=lock)
        if not attempt.locked:
            logger.info("another ingestion of %s is at work: waiting for its end", uri)
            with database.transaction(session) as connection:
                database.fetch_all(
                    connection, queries.locks.session, name=lock, seconds=sessions.OTHERS_SECONDS
                )
        reading = Reading(
            session=session,
            settings=settings,
            corpus_id=corpus_id,
            records_per_transaction=records_per_transaction,
            accept_shrink=accept_shrink,
        )
        reading.read_changed(files)
        with database.transaction(session) as connection:
            report = make_version(connection, uri, reading)
    engine.dispose()
    by_reason = ", ".join(f"{count} {reason}" for reason, count in report.rejected_by_reason.items())
    logger.info(
        "ingested %s: %s version %d of %d documents: %d added, %d removed, %d corrected, %d kept, %d ids with another text; "
        "%d duplicates, %d rejected%s; %d of %d files unchanged",
        *(uri, "new" if report.is_new else "still", report.version, report.documents),
        *(report.added, report.removed, report.corrected, report.kept, report.changed),
        *(report.duplicates, report.rejected, f" ({by_reason})" if by_reason else ""),
        *(report.unchanged_files, report.files),
    )
    if report.documents == 0:
        logger.warning(
            "%s holds no document: nothing can be annotated. Table rejected_documents says why.", uri
        )
    if report.ignored_fields:
        logger.warning(
            "fields left out: %s", ", ".join(f"{n} {name}" for name, n in report.ignored_fields.items())
        )
    return report


class HeldLines:
    """The lines of a file as its newest version holds them: which of them the file has still, and which are gone.

    Args:
        lines: 12 bytes for each, in order: its number and its hash, as ingestion.held_lines returns them.
    """

    def __init__(self, lines: bytes) -> None:
        self._lines = struct.iter_unpack(">iq", lines)
        self._next: tuple[int, int] | None = next(self._lines, None)
        self._gone: list[int] = []
        self.known = 0
        """Lines that the file has still."""

    def is_known(self, line: int, line_hash: int) -> bool:
        """Whether this line of the file has the same content; asked for each line in order."""
        held = self._next
        while held is not None and held[0] < line:
            self._gone.append(held[0])
            held = self._next = next(self._lines, None)
        if held != (line, line_hash):
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
class Reading:
    """Reads the changed files of a corpus into the temporary tables of a session, and their new texts into `documents`."""

    session: Connection
    settings: Settings
    corpus_id: str
    records_per_transaction: int
    accept_shrink: bool
    read_files: int = 0
    """Files read, and files that are gone."""
    unchanged_files: int = 0
    ignored_fields: Counter[str] = field(default_factory=Counter)

    def read_changed(self, files: Sequence[CorpusFile]) -> None:
        """Read those of the corpus's files whose bytes have changed, and note which are gone.

        Raises:
            CorpusError: a file breaks off or holds too much, or a known one lost more than half of its
            records.
        """
        with database.transaction(self.session) as connection:
            database.execute(connection, queries.ingestion.begin)
            rows = database.fetch_all(connection, queries.ingestion.known_files, corpus_id=self.corpus_id)
        known = {row.file_uri: row for row in rows}
        for number, file in enumerate(files):
            before = known.pop(file.uri, None)
            if before is not None and before.read_as == READING_VERSION and self._is_unchanged(file, before):
                self.unchanged_files += 1
            else:
                self._read(number, file, before)
                self.read_files += 1
        with database.transaction(self.session) as connection:
            for number, file_uri in enumerate(known, len(files)):
                database.execute(connection, queries.ingestion.file_removed, file=number, file_uri=file_uri)
                self.read_files += 1

    def _is_unchanged(self, file: CorpusFile, before: Row[Any]) -> bool:
        """Whether a file has the bytes of its last ingestion: by what its source says of them, else by their hash."""
        if file.stamp is not None and file.stamp == before.stamp:
            return True
        if file.size != (before.size_bytes if before.size_bytes is not None else file.size):
            return False
        with OpenedFile(file, UnpackingLimits.of(self.settings)) as opened:
            if opened.sha256() != before.content_sha256:
                return False
        with database.transaction(self.session) as connection:
            database.execute(
                connection,
                queries.corpora.stamp_file,
                corpus_id=self.corpus_id,
                file_uri=file.uri,
                size_bytes=file.size,
                stamp=file.stamp,
            )
        return True

    def _read(self, number: int, file: CorpusFile, before: Row[Any] | None) -> None:
        usable_now, refused = 0, Counter[str]()
        batch: list[Numbered] = []
        size = 0
        with OpenedFile(file, UnpackingLimits.of(self.settings)) as opened:
            held = HeldLines(b"")
            compared = before is not None and before.read_as == READING_VERSION and not opened.is_parquet
            if compared:
                with database.transaction(self.session) as connection:
                    [row] = database.fetch_all(
                        connection, queries.ingestion.held_lines, corpus_id=self.corpus_id, file_uri=file.uri
                    )
                held = HeldLines(row.lines or b"")
            # 1. Read and write.
            for line, record, line_hash in read_records(opened, self.settings.max_line_bytes, held.is_known):
                batch.append((line, record, line_hash))
                if isinstance(record, Record):
                    size += len(record.text)
                elif record.cut and not self.accept_shrink:
                    held_before = (
                        f", as it was at the newest version with {before.usable} usable records"
                        if before
                        else ""
                    )
                    found = "holds too much" if record.reason == "expands_too_far" else "breaks off"
                    raise CorpusError(
                        f"{file.uri}: expected a whole file{held_before}, found that it {found}: {record.detail}. "
                        f"No version is made. Copy the file again, {ACCEPT_SHRINK}."
                    )
                if len(batch) >= self.records_per_transaction or size >= CHARACTERS_PER_TRANSACTION:
                    usable_now += self.write_batch(number, batch, refused)
                    batch.clear()
                    size = 0
            usable_now += self.write_batch(number, batch, refused)
            sha256 = opened.sha256()
        # 2. Compare with what it held.
        usable = usable_now + held.known
        usable_before = 0 if before is None else before.usable
        if (usable + refused["forgotten"]) * 2 < usable_before and not self.accept_shrink:
            raise CorpusError(
                f"{file.uri}: expected at least half of the {usable_before} usable records of the newest version, found {usable}. "
                f"No version is made. Look at what wrote the file, {ACCEPT_SHRINK}."
            )
        with database.transaction(self.session) as connection:
            gone = copy_text((number, line, "gone") for line in held.gone())
            database.copy_rows(connection, "read_lines", ("file", "line", "kind"), gone)
            database.execute(
                connection,
                queries.ingestion.file_read,
                file=number,
                file_uri=file.uri,
                change="added" if before is None else "changed",
                content_sha256=sha256,
                size_bytes=file.size,
                stamp=file.stamp,
                records=usable + refused.total(),
                usable=usable,
                refused=json.dumps(refused),
                compared=compared,
            )

    def write_batch(self, number: int, batch: Sequence[Numbered], refused: Counter[str]) -> int:
        """Write one micro-batch of numbered records; returns how many are usable, and adds the others to `refused`, by reason."""
        if not batch:
            return 0
        ids = {line: record.document_id for line, record, _ in batch if isinstance(record, Record)}
        asked = list(ids.values())
        records: list[tuple[Any, ...]] = []
        texts: dict[uuid.UUID, Record] = {}  # the first record with a text gives its row url and date
        rejections: list[tuple[Any, ...]] = []
        with database.transaction(self.session) as connection:
            missing, forgotten = (
                {row.document_id for row in database.fetch_all(connection, statement, document_ids=asked)}
                for statement in (queries.ingestion.missing_documents, queries.corpora.forgotten_documents)
            )
            for line, found, line_hash in batch:
                record = Rejection("forgotten", FORGOTTEN) if ids.get(line) in forgotten else found
                if isinstance(record, Rejection):
                    refused[record.reason] += 1
                    if refused[record.reason] <= REFUSED_ROWS:
                        quote = f": {record.quote}" if self.settings.quote_rejected and record.quote else ""
                        rejections.append((number, line, "refused", record.reason, record.detail + quote))
                    continue
                self.ignored_fields.update(record.ignored)
                document_id = ids[line]
                fields = (record.record_id, record.url, record.document_date, record.title)
                records.append((number, line, document_id, *fields, line_hash))
                if document_id in missing:
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
        return len(records)


def make_version(connection: Connection, uri: str, reading: Reading) -> IngestReport:
    """Compare what was read with the newest version of the corpus, and make the next one unless they are the same.

    Raises:
        CorpusError: the corpus would lose more than half of its documents.
        DatabaseError: the tables do not add up.
    """
    corpus_id = reading.corpus_id
    versions = database.fetch_all(connection, queries.corpora.versions, corpus_id=corpus_id, at_most=1)
    newest = versions[0] if versions else None
    version = 1 if newest is None else newest.version + 1
    changes = {"added": 0, "removed": 0, "corrected": 0, "changed": 0}
    is_new = False
    if newest is None or reading.read_files:
        # 1. What has changed, and the tables as they are now.
        database.execute(connection, queries.corpora.insert, corpus_id=corpus_id, uri=uri)
        database.execute(connection, queries.ingestion.compare, corpus_id=corpus_id)
        [counts] = database.fetch_all(connection, queries.ingestion.counts, corpus_id=corpus_id)
        database.execute(
            connection, queries.ingestion.apply, corpus_id=corpus_id, version=version, read_as=READING_VERSION
        )
    [sums] = database.fetch_all(connection, queries.ingestion.file_sums, corpus_id=corpus_id)
    if newest is None or reading.read_files:
        # 2. Documents that were forgotten since the newest version are no longer in the tables, and have
        #    left, too.
        held = 0 if newest is None else newest.documents
        changes = counts._asdict() | {"removed": held + counts.added - sums.documents}
        if changes["removed"] < counts.removed:
            raise DatabaseError(
                f"{uri}: expected {held + counts.added - counts.removed} documents or fewer in its files, found {sums.documents}. "
                "Was a table changed by hand? Try again."
            )
        if sums.documents * 2 < held - (changes["removed"] - counts.removed) and not reading.accept_shrink:
            raise CorpusError(
                f"{uri}: expected at least half of the {held} documents of version {version - 1}, found {sums.documents}. "
                f"No version is made. Look at what wrote the files, {ACCEPT_SHRINK}."
            )
        # 3. The version, unless its files say the same in other bytes.
        is_new = (
            newest is None
            or any(changes.values())
            or any(getattr(newest, name) != value for name, value in sums._asdict().items())
        )
        if is_new:
            database.execute(
                connection,
                queries.corpora.insert_version,
                corpus_id=corpus_id,
                version=version,
                **changes,
                **sums._asdict(),
            )
            database.execute(
                connection, queries.corpora.insert_version_files, corpus_id=corpus_id, version=version
            )
    reasons = database.fetch_all(connection, queries.corpora.rejection_counts, corpus_id=corpus_id)
    return IngestReport(
        corpus_id=corpus_id,
        uri=uri,
        version=version if is_new else version - 1,
        is_new=is_new,
        **changes,
        kept=sums.documents - changes["added"] - changes["corrected"],
        **sums._asdict(),
        unchanged_files=reading.unchanged_files,
        rejected_by_reason={row.reason: row.records for row in reasons},
        ignored_fields=dict(reading.ignored_fields),
    )
