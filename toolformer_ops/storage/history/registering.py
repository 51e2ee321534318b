"""Register files of the history again that Postgres no longer knows, from the bucket alone.

After Postgres was restored from an older backup, or rows of `history_files` were deleted, a file of calls,
losses or placebos may be the only copy of its rows. Its key names its table, its recipe and its content, and
it holds the ids of its documents: nothing else is needed. Small tables, corpora and releases are not
registered, since a write makes them from Postgres.
"""

import dataclasses
import logging
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from toolformer_ops.config import Settings
from toolformer_ops.storage.history import history
from toolformer_ops.storage.history.files import OF_STAGE, PREFIX, HistoryFile, arrow_schema
from toolformer_ops.storage.machine.temporary_folders import temporary_folder
from toolformer_ops.storage.objects.s3 import Objects
from toolformer_ops.storage.postgres import database, queries

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

logger = logging.getLogger(__name__)


@dataclass
class Registered:
    """What was registered, by key."""

    files: list[str] = dataclasses.field(default_factory=list)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    """Files that were left as they are, each with the reason."""


def register(settings: Settings) -> Registered:
    """Register the files of calls, losses and placebos that the bucket has and `history_files` lacks.

    Forgotten texts are taken out of them at once.

    Raises:
        ObjectStoreError: S3 refuses, or does not answer.
    """
    engine, objects = database.connect(settings), Objects(settings)
    registered = Registered()
    with history.writing(engine):
        rows = {row.file_key for row in database.fetch_all(engine, queries.history.files)}
        recipes = {row.recipe_id for row in database.fetch_all(engine, queries.history.catalog_recipes)}
        for listed in objects.list_objects(f"{PREFIX}/"):
            key = objects.key_of(listed.uri)
            _, table, *others = key.split("/")
            if key in rows or table not in OF_STAGE.values() or len(others) != 2:
                continue
            with temporary_folder(settings.state_dir, "history") as folder:
                copy = folder / "old.parquet"
                file = HistoryFile(
                    file_key=key,
                    table_name=table,
                    owner_id=others[0],
                    sha256=objects.sha256(key, copy),
                    size_bytes=copy.stat().st_size,
                    rows=0,
                )
                reason = _register(engine, file, copy, recipes)
            if reason:
                logger.warning("%s is not registered: %s", listed.uri, reason)
                registered.refused[key] = reason
            else:
                registered.files.append(key)
        history.take_out_forgotten(settings, engine)
    return registered


def _register(engine: Engine, file: HistoryFile, copy: Path, recipes: set[str]) -> str:
    """Register one file; returns why not, or nothing."""
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(copy)
    if reason := _wrong_in_file(file, parquet, recipes):
        return reason
    names = sorted(set(parquet.read(["document_id"])[0].to_pylist()))
    documents = {"document_ids": [uuid.UUID(name) for name in names]}
    key = {"recipe_id": file.owner_id, "file_key": file.file_key}
    with database.transaction(engine) as connection:
        others = database.fetch_all(connection, queries.history.registered_elsewhere, **key, **documents)
        if others:
            return (
                f"expected documents of no other file, found {len(others)} that are in {others[0].file_key}"
            )
        unknown = database.fetch_all(connection, queries.history.unknown_documents, **documents)
        if unknown:
            return (
                f"expected documents of Postgres, found {len(unknown)} that it lacks, such as "
                f"{unknown[0].document_id}: ingest their corpus first; if they are variants of a forgotten "
                "text, delete the object"
            )
        columns = dataclasses.asdict(file) | {"rows": parquet.metadata.num_rows}
        database.execute(connection, queries.history.add_file, **columns, version=None)
        database.execute(connection, queries.history.add_documents, **key, **documents)
        database.execute(connection, queries.history.set_registered, file_key=file.file_key)
    return ""


def _wrong_in_file(file: HistoryFile, parquet: "ParquetFile", recipes: set[str]) -> str:
    """What of a file is not as a write makes it, in words; nothing if all is."""
    if not file.is_named_by_its_content:
        return f"expected a file that is named by its content, found the content {file.sha256}"
    if file.owner_id not in recipes:
        return f"expected a recipe of Postgres, found {file.owner_id}: restore its row first"
    schema = arrow_schema(file.table_name)
    if parquet.schema_arrow.remove_metadata() != schema:
        return f"expected the columns {', '.join(schema.names)}, found others"
    owners = set(parquet.read([schema.names[0]])[0].to_pylist())
    if owners - {file.owner_id}:
        return f"expected rows of the recipe {file.owner_id}, found those of {max(owners)}"
    return ""
