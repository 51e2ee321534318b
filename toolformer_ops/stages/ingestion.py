"""Read a corpus into `documents`, and make its next version from what has changed.

Owns `corpora`, `corpus_versions`, `corpus_version_files`, `corpus_files`, `corpus_documents`,
`corpus_spare_records` and `rejected_documents`. An ingestion reads the files whose bytes have changed
(`storage/corpora/reading.py`), writes new texts in micro-batches, and collects the records in temporary
tables. One transaction then compares them with the newest version and makes the next one (`compare` and
`apply` of sql/queries/ingestion.sql): until its end readers see the version before. A killed ingestion
leaves the texts that it wrote; the next one reads the changed files again. Two ingestions of one corpus wait
for each other.

Which records count, over all files in the order of their names and lines: of those with the same id the last
one, then of those with the same text the first one. If the address of the corpus says so, a text that nearly
repeats one with a lesser id does not count, either. The others are kept in `corpus_spare_records`: one of
them counts when the record that counts now disappears.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, DatabaseError
from toolformer_ops.storage.corpora import reading as corpus_reading
from toolformer_ops.storage.corpora.addresses import CorpusAddress, corpus_id_of
from toolformer_ops.storage.corpora.files import find_files
from toolformer_ops.storage.corpora.reading import ACCEPT_SHRINK, Reading
from toolformer_ops.storage.postgres import database, queries, sessions

logger = logging.getLogger(__name__)

RECORDS_PER_TRANSACTION = 5000


@dataclass(frozen=True)
class IngestReport:
    """What a corpus holds after its ingestion, over all its files, and what that changed.

    records = documents + duplicates + rejected, and documents = added + corrected + kept.
    """

    corpus_id: str
    uri: str
    """The address as `corpus_addresses.corpus_uri_of` writes it."""
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
    near_duplicates: int
    """Duplicates that only nearly repeat another text."""
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
    """Ingest a file or folder of JSON Lines or Parquet from a path, file:// or s3://.

    The same files again make no new version.

    Args:
        settings: of the deployment.
        corpus_uri: the file or folder, with the names of its fields (`corpus_addresses.CorpusAddress`).
        accept_shrink: take a file that breaks off or holds too much, or files or a corpus that lost more than
        half, as they are.
        records_per_transaction: records whose texts are written at once; decides no row.

    Raises:
        CorpusError: there is no such file, folder or bucket, it cannot be read as a whole, or it has shrunk
        too much.
        ObjectStoreError: the connection to S3 broke; what was read is kept, and the next ingestion continues
        there.
        InfrastructureError: a text of the corpus was forgotten while it was read.
        DatabaseError: Postgres refuses, or the tables do not add up.
    """
    address = CorpusAddress.parse(corpus_uri).normal()
    uri = str(address)
    corpus_id, files = corpus_id_of(uri), find_files(settings, address.files)
    # The session holds the lock over all transactions, and the temporary tables; both end with the process.
    engine = database.connect(settings)
    with database.session(engine) as session:
        lock = f"ingestion of {uri}"
        with database.transaction(session) as connection:
            attempt = database.fetch_one(connection, queries.locks.try_session, name=lock)
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
            names=address.names,
            near_duplicates=address.near_duplicates,
            records_per_transaction=records_per_transaction,
            accept_shrink=accept_shrink,
        )
        reading.read_changed(uri, files)
        with database.transaction(session) as connection:
            reading.require_whole(connection)
            report = make_version(connection, uri, reading)
    engine.dispose()
    by_reason = ", ".join(f"{count} {reason}" for reason, count in report.rejected_by_reason.items())
    near = f" ({report.near_duplicates} of them nearly)" if report.near_duplicates else ""
    logger.info(
        "ingested %s: %s version %d of %d documents: %d added, %d removed, %d corrected, %d kept, %d ids "
        "with another text; %d duplicates%s, %d rejected%s; %d of %d files unchanged",
        *(uri, "new" if report.is_new else "still", report.version, report.documents),
        *(report.added, report.removed, report.corrected, report.kept, report.changed),
        *(report.duplicates, near, report.rejected, f" ({by_reason})" if by_reason else ""),
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
        database.execute(
            connection, queries.ingestion.compare, corpus_id=corpus_id, share=reading.near_duplicates
        )
        counts = database.fetch_one(connection, queries.ingestion.counts, corpus_id=corpus_id)
        database.execute(
            connection,
            queries.ingestion.apply,
            corpus_id=corpus_id,
            version=version,
            read_as=corpus_reading.READING_VERSION,
        )
    sums = database.fetch_one(connection, queries.ingestion.file_sums, corpus_id=corpus_id)
    report_sums = sums._asdict()
    version_sums = {name: value for name, value in report_sums.items() if name != "near_duplicates"}
    if newest is None or reading.read_files:
        # 2. Documents that were forgotten since the newest version are no longer in the tables, and have
        #    left, too.
        documents_before = 0 if newest is None else newest.documents
        changes = counts._asdict() | {"removed": documents_before + counts.added - sums.documents}
        if changes["removed"] < counts.removed:
            most_documents = documents_before + counts.added - counts.removed
            raise DatabaseError(
                f"{uri}: expected {most_documents} documents or fewer in its files, found {sums.documents}. "
                "Was a table changed by hand? Try again."
            )
        if (
            sums.documents * 2 < documents_before - (changes["removed"] - counts.removed)
            and not reading.accept_shrink
        ):
            raise CorpusError(
                f"{uri}: expected at least half of the {documents_before} documents of version "
                f"{version - 1}, found {sums.documents}. No version is made. Look at what wrote the files, "
                f"{ACCEPT_SHRINK}."
            )
        # 3. The version, unless its files say the same in other bytes.
        is_new = (
            newest is None
            or any(changes.values())
            or any(getattr(newest, name) != value for name, value in version_sums.items())
        )
        if is_new:
            database.execute(
                connection,
                queries.corpora.insert_version,
                corpus_id=corpus_id,
                version=version,
                **changes,
                **version_sums,
            )
    reasons = database.fetch_all(connection, queries.corpora.rejection_counts, corpus_id=corpus_id)
    return IngestReport(
        corpus_id=corpus_id,
        uri=uri,
        version=version if is_new else version - 1,
        is_new=is_new,
        **changes,
        kept=sums.documents - changes["added"] - changes["corrected"],
        **report_sums,
        unchanged_files=reading.unchanged_files,
        rejected_by_reason={row.reason: row.records for row in reasons},
        ignored_fields=dict(reading.ignored_fields),
    )
