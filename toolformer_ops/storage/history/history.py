"""Write what finished runs have computed as Parquet files on S3, and take forgotten texts out of them.

Rows of a recipe and a document never change. So a run's end writes the documents that no file holds yet; the
small tables are written whole each time. `history/files.py` says what the files hold.

Owns the tables `history_files`, `history_documents`, `history_work` and `history_runs`. A file's row is
committed before the file is sent, and deleted after the file: what a killed process leaves is found and
deleted by the next one. Of a file from which rows are to go (`stale`: a text was forgotten, or is tried
again) a new one is made from the old one, since Postgres may hold its rows no more. One process writes at a
time; whatever deletes rows that the history holds takes the same lock (`writing`), so that nothing is written
that goes.
"""

import contextlib
import dataclasses
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    BusyError,
    CorruptObjectError,
    HistoryError,
    ObjectNotFoundError,
    ToolformerError,
    UsageError,
)
from toolformer_ops.storage.history.files import (
    CATALOG,
    CATALOG_TABLES,
    MANIFEST_KEY,
    OF_STAGE,
    PREFIX,
    HistoryFile,
    arrow_schema,
    key_of,
    manifest_bytes,
    read_manifest,
)
from toolformer_ops.storage.machine.shared_files import file_sha256
from toolformer_ops.storage.machine.temporary_folders import temporary_folder
from toolformer_ops.storage.objects.s3 import Objects
from toolformer_ops.storage.postgres import database, queries, sessions
from toolformer_ops.storage.postgres.queries import Statement

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

LOCK = "history"
SECONDS_AT_END = 120.0
"""Longest that the end of a run writes: a night is not kept open by an S3 that is slow."""
DOCUMENTS_PER_FILE = 20_000
DOCUMENTS_PER_QUERY = 500
"""Documents whose rows are in memory at a time: some 15,000 calls."""
ROWS_PER_PAGE = 50_000
CORPUS_TABLES = ("corpus_joined", "corpus_left")
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


@dataclass
class Written:
    """What a write did."""

    runs: list[str] = dataclasses.field(default_factory=list)
    """The runs that are whole in the history since."""
    left: int = 0
    """Runs that are not, as the time was over."""
    files: int = 0
    """Files that were written, those of small tables included."""
    rows: int = 0
    bytes: int = 0
    lost: list[str] = dataclasses.field(default_factory=list)
    """Keys of files that were not there as they were written; what Postgres still has of them was written
    again."""
    only_copies: list[str] = dataclasses.field(default_factory=list)
    """Keys of files that were not there, and whose rows Postgres has no more: they stay registered."""


def write(
    settings: Settings,
    run_id: str | None = None,
    *,
    seconds: float | None = None,
    gives_up_lost: bool = False,
) -> Written:
    """Write the finished runs that are not in the history, the oldest first, or this one alone.

    Args:
        settings: of the deployment.
        run_id: the run; None for all.
        seconds: after which no further file is begun; None: no limit.
        gives_up_lost: whether a file that is not there is given up although Postgres has not all of its rows.

    Returns:
        what was written. May be killed and called again.

    Raises:
        UsageError: there is no such run, or it is not finished.
        ObjectStoreError, DatabaseError: what was written by then stays.
    """
    engine = database.connect(settings)
    if run_id is not None:
        runs = database.fetch_all(engine, queries.runs.by_id, run_id=run_id)
        if not runs or runs[0].finished_at is None:
            state = "a run that has not ended" if runs else "none of this id"
            raise UsageError(
                f"--run: expected a finished run, found {state}: {run_id}. `toolformer-ops runs` lists them."
            )
    with writing(engine):
        return Writer(settings, engine, seconds, gives_up_lost=gives_up_lost).write(run_id)


def write_at_end(settings: Settings, run_id: str) -> None:
    """Write what the history lacks when a run has ended; takes `SECONDS_AT_END` at most, and never raises.

    What is not written, as S3 is away, the time is over or another process writes, is written at the next
    run's end.
    """
    try:
        engine = database.connect(settings)
        with writing(engine, waits=False):
            written = Writer(settings, engine, SECONDS_AT_END).write(None)
    except ToolformerError as error:
        logger.warning("run %s is not in the history yet, the next end of a run writes it: %s", run_id, error)
        return
    except Exception:  # a mistake of ours must not fail a run that has ended
        logger.exception("run %s is not in the history yet, the next end of a run writes it", run_id)
        return
    if written.only_copies:
        logger.error("the history lacks %d files that Postgres cannot replace", len(written.only_copies))
    left = f"; {written.left} runs are left for the next end of a run" if written.left else ""
    logger.info(
        "history: %d runs, %d rows in %d files%s", len(written.runs), written.rows, written.files, left
    )


def take_out_forgotten(settings: Settings, engine: Engine) -> int:
    """Write the files anew that hold rows of forgotten texts; returns how many those were.

    The lock is held (`writing`). Does the rest, too, of a call that was killed. Asks nothing of S3 without a
    history.

    Raises:
        HistoryError: a file that is the only copy of other rows is not there, and may hold forgotten texts.
    """
    if not database.fetch_all(engine, queries.history.files):
        return 0
    writer = Writer(settings, engine, None)
    count = writer.mend()
    writer.conclude()
    if left := database.fetch_all(engine, queries.history.stale_files):
        raise HistoryError(
            f"expected {len(left)} files of the history that hold forgotten texts, found none in the bucket, such "
            f"as {left[0].file_key}. Put them back, and `toolformer-ops forget` again; or, if they are lost for "
            "good, `toolformer-ops history write --all --give-up-lost`."
        )
    return count


def lacks_of_recipe(settings: Settings, engine: Engine, stage: str, recipe_id: str) -> str:
    """Compare the files of a recipe with Postgres.

    Returns what is wrong in words, or nothing if all of its rows are there. The lock is held (`writing`).
    Each file is read from S3 and compared with its hash.

    Raises:
        ObjectStoreError: S3 refuses, or does not answer.
    """
    objects = Objects(settings)
    files = [row for row in database.fetch_all(engine, queries.history.files) if row.owner_id == recipe_id]
    stored = database.fetch_one(engine, queries.history.rows_of_recipe, stage=stage, recipe_id=recipe_id)
    rows = sum(row.rows for row in files if row.state == "whole")
    if stored.unwritten or rows != stored.rows or any(row.state != "whole" for row in files):
        return f"expected the {stored.rows:,} rows of Postgres in whole files, found {rows:,}"
    listed = {file.file_key for file in read_manifest(objects)}
    with temporary_folder(settings.state_dir, "history") as folder:
        for row in files:
            content = content_of(objects, row.file_key, folder / "copy.parquet")
            if content != row.sha256 or row.file_key not in listed:
                where = "" if row.file_key in listed else ", which the manifest lacks"
                return (
                    f"expected {objects.uri(row.file_key)} with content {row.sha256}, found {content}{where}"
                )
    return ""


@contextlib.contextmanager
def writing(engine: Engine, *, waits: bool = True) -> Iterator[None]:
    """Hold the lock of the history in the block.

    Raises:
        BusyError: another process has it, and this does not wait.
        DatabaseLockedError: another process has had it for an hour.
    """
    with database.session(engine) as session:
        with database.transaction(session) as connection:
            attempt = database.fetch_one(connection, queries.locks.try_session, name=LOCK)
        if not attempt.locked:
            if not waits:
                raise BusyError("expected no other process that writes the history, found one.")
            logger.info("another process writes the history: waiting for its end")
            with database.transaction(session) as connection:
                database.fetch_all(
                    connection, queries.locks.session, name=LOCK, seconds=sessions.OTHERS_SECONDS
                )
        yield


class Writer:
    """One process that writes the history; it holds the lock."""

    def __init__(
        self, settings: Settings, engine: Engine, seconds: float | None, *, gives_up_lost: bool = False
    ) -> None:
        self._settings = settings
        self._gives_up_lost = gives_up_lost
        self._engine = engine
        self._objects = Objects(settings)
        self._ends_at = None if seconds is None else time.monotonic() + seconds
        self._written = Written()

    def write(self, run_id: str | None) -> Written:
        """See the function `write`."""
        # 1. What a killed process left, and what is not there any more.
        self._objects.require_bucket()
        # Have files written again whose object is not there with its size.
        sizes = {
            self._objects.key_of(file.uri): file.size for file in self._objects.list_objects(f"{PREFIX}/")
        }
        for row in self._files("whole", "stale"):
            if sizes.get(row.file_key) != row.size_bytes:
                self._lose(row, "nothing" if row.file_key not in sizes else f"{sizes[row.file_key]} bytes")
        self.mend()
        # 2. The runs, the oldest first.
        runs = database.fetch_all(self._engine, queries.history.unwritten_runs, run_id=run_id)
        for number, run in enumerate(runs):
            if self._is_over() or not self._write_run(run):
                self._written.left = len(runs) - number
                break
        # 3. The small tables, and the manifest.
        self.conclude()
        return self._written

    def _is_over(self) -> bool:
        return self._ends_at is not None and time.monotonic() > self._ends_at

    # What exists

    def _files(self, *states: str) -> list[Row[Any]]:
        rows = database.fetch_all(self._engine, queries.history.files)
        return [row for row in rows if row.state in states]

    def _lose(self, row: Row[Any], instead: str) -> None:
        """Have a file written again from Postgres, unless nothing else has its rows.

        The bucket may be the wrong one, or be away in part.
        """
        uri = self._objects.uri(row.file_key)
        lacking = database.fetch_one(
            self._engine,
            queries.history.documents_nowhere_else,
            file_key=row.file_key,
            table=row.table_name,
            recipe_id=row.owner_id,
        )
        if lacking.documents and not self._gives_up_lost:
            logger.error(
                "%s: expected %d bytes, found %s. Postgres has no rows of %d of its documents: the file stays "
                "registered. Look whether TOOLFORMER_S3_BUCKET is right, or put the object back from a version "
                "of the bucket or a copy. If it is lost: `toolformer-ops history write --all --give-up-lost`.",
                uri, row.size_bytes, instead, lacking.documents,
            )  # fmt: skip
            if row.file_key not in self._written.only_copies:
                self._written.only_copies.append(row.file_key)
            return
        logger.warning(
            "%s: expected %d bytes, found %s: what Postgres has of its rows is written again",
            uri, row.size_bytes, instead,
        )  # fmt: skip
        database.execute(self._engine, queries.history.lose_file, file_key=row.file_key)
        self._written.lost.append(row.file_key)

    def mend(self) -> int:
        """Delete what a killed process left, and write stale files anew; returns how many those were."""
        self._delete_leaving()  # first: a file that was not sent may have the key of a new one
        stale = self._files("stale")
        for row in stale:
            self._write_without_leaving_rows(row)
        self._delete_leaving()
        return len(stale)

    def _delete_leaving(self) -> None:
        """Delete files that do not count, if there are any; the manifest goes without them first."""
        rows = self._files("leaving", "writing")
        if not rows:
            return
        if any(row.state == "leaving" for row in rows):
            self._put_manifest()
        for row in rows:
            self._objects.delete(row.file_key)
        keys = [row.file_key for row in rows]
        database.execute(self._engine, queries.history.delete_files, file_keys=keys)

    def _write_without_leaving_rows(self, row: Row[Any]) -> None:
        """Make the file that takes the place of a stale one.

        Of its recipe it holds the documents that are registered with it. Of a corpus all but those that are
        forgotten.
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        is_of_corpus = row.table_name in CORPUS_TABLES
        statement = queries.history.forgotten if is_of_corpus else queries.history.documents_of_file
        documents = database.fetch_all(self._engine, statement, file_key=row.file_key)
        named = pa.array([document.document_id for document in documents], pa.string())

        def staying(table: "pyarrow.Table") -> "pyarrow.Table":
            is_named = pc.is_in(table["document_id"], value_set=named)
            return table.filter(pc.invert(is_named) if is_of_corpus else is_named)

        with self._folder() as folder:
            old, new = folder / "old.parquet", folder / "new.parquet"
            if (content := content_of(self._objects, row.file_key, old)) != row.sha256:
                self._lose(row, content)
                return
            file = None
            if is_of_corpus or len(named):
                groups = pq.ParquetFile(old)
                tables = (staying(groups.read_row_group(number)) for number in range(groups.num_row_groups))
                file = self._file(row.table_name, row.owner_id, new, tables, row.version)
                if file.file_key == row.file_key:  # nothing of it had to go
                    self._set_state("whole", row.file_key)
                    return
                self._send(file, new, row.version)
        with database.transaction(self._engine) as connection:
            if file is not None:
                database.execute(
                    connection, queries.history.move_documents, old_key=row.file_key, new_key=file.file_key
                )
                self._set_state("whole", file.file_key, on=connection)
            self._set_state("leaving", row.file_key, on=connection)

    # A run

    def _write_run(self, run: Row[Any]) -> bool:
        """Write what the history lacks of a run; whether that is all of it."""
        for recipe in database.fetch_all(self._engine, queries.history.recipes_of_run, run_id=run.run_id):
            if not self._write_recipe(run, recipe):
                return False
        for table in CORPUS_TABLES:
            key = (table, run.corpus_id)
            written = [file for file in self._files("whole") if (file.table_name, file.owner_id) == key]
            after = max((file.version for file in written), default=0)
            if run.corpus_version > after:
                bounds = {"after_version": after, "version": run.corpus_version}
                self._write_pages(table, run.corpus_id, bounds)
        if run.release_id is not None:
            # The calls and the choices of its release, unless the history has as many.
            counted = database.fetch_one(
                self._engine, queries.history.rows_of_release, release_id=run.release_id
            )
            for table, number in counted._mapping.items():
                key = (table, run.release_id)
                files = [file for file in self._files("whole") if (file.table_name, file.owner_id) == key]
                if [file.rows for file in files] != [number]:
                    self._set_state("leaving", *(file.file_key for file in files))
                    self._write_pages(table, run.release_id, {})
        database.execute(
            self._engine, queries.history.add_run, run_id=run.run_id, numbers_stored_at=run.numbers_stored_at
        )
        self._written.runs.append(run.run_id)
        return True

    def _write_recipe(self, run: Row[Any], recipe: Row[Any]) -> bool:
        """Write the documents of a run that have rows of a recipe which no file holds.

        Returns whether that was all of them.
        """
        bounds = {
            "corpus_id": run.corpus_id,
            "at_version": run.corpus_version,
            "below_ordinal": run.below_ordinal,
        }
        bases = database.fetch_all(self._engine, queries.history.base, recipe_id=recipe.recipe_id, **bounds)
        base = bases[0] if bases else None
        members = bounds | {
            "base_version": base.version if base else 0,
            "base_ordinal": base.ordinal_limit if base else 0,
            "reads_record": recipe.reads_record,
        }
        rows = database.fetch_all(
            self._engine,
            queries.history.unwritten_documents,
            members=members,
            recipe_id=recipe.recipe_id,
            stage=recipe.stage,
            table=OF_STAGE[recipe.stage],
        )
        documents = [row.document_id for row in rows]
        for start in range(0, len(documents), DOCUMENTS_PER_FILE):
            if self._is_over():
                return False
            self._write_documents(recipe, documents[start : start + DOCUMENTS_PER_FILE])
        database.execute(self._engine, queries.history.add_work, recipe_id=recipe.recipe_id, **bounds)
        return True

    def _write_documents(self, recipe: Row[Any], documents: Sequence[uuid.UUID]) -> None:
        """Write one file with the rows of these documents under a recipe."""
        table = OF_STAGE[recipe.stage]
        pieces = (
            documents[start : start + DOCUMENTS_PER_QUERY]
            for start in range(0, len(documents), DOCUMENTS_PER_QUERY)
        )
        with self._folder() as folder:
            path = folder / "new.parquet"
            rows = (
                database.fetch_all(
                    self._engine,
                    queries.history[table],
                    document_ids=list(piece),
                    **recipe._mapping,
                )
                for piece in pieces
            )
            file = self._file(table, recipe.recipe_id, path, (_arrow_table(table, page) for page in rows))
            self._send(file, path, None)
        with database.transaction(self._engine) as connection:
            database.execute(
                connection,
                queries.history.add_documents,
                recipe_id=recipe.recipe_id,
                document_ids=list(documents),
                file_key=file.file_key,
            )
            self._set_state("whole", file.file_key, on=connection)

    def _write_pages(self, table: str, owner_id: str, bounds: dict[str, int]) -> None:
        """Write one file with all rows of an owner within bounds; an empty one says that there are none."""
        statement = queries.history[table]
        with self._folder() as folder:
            path = folder / "new.parquet"
            pages = self._pages(statement, owner_id, bounds)
            version = bounds.get("version", 1)
            file = self._file(table, owner_id, path, (_arrow_table(table, page) for page in pages), version)
            self._send(file, path, version)
            self._set_state("whole", file.file_key)

    def _pages(self, statement: Statement, owner_id: str, bounds: dict[str, int]) -> Iterator[list[Row[Any]]]:
        after: dict[str, object] = {"after_id": _FIRST_ID, "after_number": 0}
        while True:
            page = database.fetch_all(
                self._engine, statement, owner_id=owner_id, rows=ROWS_PER_PAGE, **bounds, **after
            )
            yield page
            if len(page) < ROWS_PER_PAGE:
                return
            last = page[-1]._mapping
            after = {
                "after_id": last.get("call_id", last["document_id"]),
                "after_number": last.get("first_version", 0),
            }

    # The end of a write

    def conclude(self) -> None:
        """Write the small tables and then the manifest, and delete what it no longer names, here too."""
        from toolformer_ops.storage.history.history_queries import remove_from_cache

        # 1. The small tables, unless they are as they were written last.
        for table in CATALOG_TABLES:
            owner = (table, CATALOG)
            earlier = [row for row in self._files("whole") if (row.table_name, row.owner_id) == owner]
            rows = database.fetch_all(self._engine, queries.history[f"catalog_{table}"])
            with self._folder() as folder:
                path = folder / "new.parquet"
                file = self._file(table, CATALOG, path, [_arrow_table(table, rows)])
                if [row.file_key for row in earlier] == [file.file_key]:
                    continue
                self._send(file, path, None)
            with database.transaction(self._engine) as connection:
                self._set_state("leaving", *(row.file_key for row in earlier), on=connection)
                self._set_state("whole", file.file_key, on=connection)
        # 2. The manifest.
        self._put_manifest()
        # 3. Files that it no longer names.
        self._delete_leaving()
        remove_from_cache(self._settings, [HistoryFile.of_row(row) for row in self._files("whole", "stale")])

    def _put_manifest(self) -> None:
        """Write the manifest of the files that count, over the one before."""
        manifest = manifest_bytes([HistoryFile.of_row(row) for row in self._files("whole", "stale")])
        self._objects.put(MANIFEST_KEY, manifest, "application/json")

    # A file

    def _folder(self) -> contextlib.AbstractContextManager[Path]:
        return temporary_folder(self._settings.state_dir, "history")

    def _file(
        self,
        table: str,
        owner_id: str,
        path: Path,
        pages: "Iterator[pyarrow.Table] | list[pyarrow.Table]",
        version: int | None = None,
    ) -> HistoryFile:
        """Write pages of rows to a local file, a row group each."""
        import pyarrow.parquet as pq

        rows = 0
        # Two versions of a corpus that changed nothing are two files all the same.
        schema = arrow_schema(table).with_metadata({"table": table, "version": str(version or "")})
        with pq.ParquetWriter(path, schema, compression="zstd") as file:
            for page in pages:
                if page.num_rows:
                    file.write_table(page)
                rows += page.num_rows
        sha256 = file_sha256(path)
        return HistoryFile(
            file_key=key_of(table, owner_id, sha256),
            table_name=table,
            owner_id=owner_id,
            sha256=sha256,
            size_bytes=path.stat().st_size,
            rows=rows,
        )

    def _send(self, file: HistoryFile, path: Path, version: int | None) -> None:
        """Register a file and send it; it does not count yet.

        A file that is registered already has been sent, with the same bytes: `mend` has deleted all others.
        """
        columns = dataclasses.asdict(file)
        if not database.execute(self._engine, queries.history.add_file, **columns, version=version):
            return
        self._objects.delete(file.file_key)  # a damaged one of this name would stay
        self._objects.put_if_absent(file.file_key, path)
        self._written.files += 1
        self._written.rows += file.rows
        self._written.bytes += file.size_bytes

    def _set_state(self, state: str, *keys: str, on: Connection | None = None) -> None:
        database.execute(on or self._engine, queries.history.set_state, state=state, file_keys=list(keys))


def content_of(objects: Objects, key: str, path: Path) -> str:
    """Fetch an object; returns the hash of its bytes, or what was found instead."""
    try:
        return objects.sha256(key, path)
    except ObjectNotFoundError:
        return "nothing"
    except CorruptObjectError:
        return "bytes that are not those of its checksum"


def _arrow_table(table: str, rows: Sequence[Row[Any]]) -> "pyarrow.Table":
    import pyarrow as pa

    schema = arrow_schema(table)
    columns = []
    for number, field in enumerate(schema):
        columns.append(pa.array([row[number] for row in rows], field.type))
    return pa.Table.from_arrays(columns, schema=schema)
