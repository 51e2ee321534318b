"""Checks of the history: its manifest, the bytes and rows of its files, and the documents in them.

A file is read whole and hashed. Its calls, losses and placebos are compared with the hash of each document's
rows in the ledger. That no other documents are in it than are registered with it shows that every forgotten
text is out. A document whose rows retention dropped has to be registered with a file.
"""

import itertools
import json
import math
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from toolformer_ops.audit.auditing import Auditing, Check, Kind, Page
from toolformer_ops.errors import CorruptObjectError, HistoryError, ObjectNotFoundError
from toolformer_ops.runs.run_tools import RECIPE_OF_STAGE
from toolformer_ops.storage.history.files import MANIFEST_KEY, OF_STAGE, PREFIX, WRITE, registered_manifest
from toolformer_ops.storage.machine.temporary_folders import temporary_folder
from toolformer_ops.storage.postgres import database, queries

MANIFEST_POSITION = ""
"""The first page, which looks at the manifest and at what no row names; each other one looks at a file."""

REGISTER = (
    "If the objects are in the bucket, `toolformer-ops history register` registers them again. If not, put "
    "them back from a version of the bucket or a copy first."
)
UNREGISTERED = (
    "It may be the only copy of its rows: `toolformer-ops history register` registers it again, or says why "
    "not; what it refuses may be deleted."
)


def history(auditing: Auditing, _: str, position: str) -> Page:
    """One page of the history: the manifest, or the file after a position, which is a key."""
    files = {row.file_key: row for row in _whole_files(auditing)}
    page = Page()
    if position == MANIFEST_POSITION:
        _check_manifest(auditing, page, set(files))
    elif position in files:  # else it was replaced meanwhile
        _check_file(auditing, page, files[position])
    page.position = next((key for key in sorted(files) if key > position), None)
    return page


def _whole_files(auditing: Auditing) -> list[Row[Any]]:
    rows = database.fetch_all(auditing.engine, queries.history.files)
    return [row for row in rows if row.state in ("whole", "stale")]


def _check_manifest(auditing: Auditing, page: Page, keys: set[str]) -> None:
    store = auditing.store
    uri = store.uri(MANIFEST_KEY)
    remedy = f"Write it anew: {WRITE}."
    page.items += 1
    try:
        registered_manifest(store, auditing.engine)
    except HistoryError as error:
        is_gone = isinstance(error.__cause__, ObjectNotFoundError)
        if not is_gone or _settled(auditing):  # else the first write ended before its manifest
            kind: Kind = "lost" if is_gone else "changed"
            page.add(kind, "object", uri, str(error), remedy)
    registered = {row.file_key for row in database.fetch_all(auditing.engine, queries.history.files)}
    for file in store.list_objects(f"{PREFIX}/"):
        key = store.key_of(file.uri)
        if key not in registered and key not in keys and key != MANIFEST_KEY:
            page.items += 1
            what = "expected a row of history_files for each file, found none"
            page.add("orphaned", "object", file.uri, what, UNREGISTERED)


def _settled(auditing: Auditing) -> set[str]:
    """The keys of files that the manifest has to name.

    What a write has just registered is not in it yet; if it was killed, the next write puts it there.
    """
    latest = datetime.now(UTC) - auditing.orphans_after
    rows = database.fetch_all(auditing.engine, queries.history.files)
    return {row.file_key for row in rows if row.state == "whole" and row.written_at < latest}


def _check_file(auditing: Auditing, page: Page, row: Row[Any]) -> None:
    page.items += 1
    with temporary_folder(auditing.settings.state_dir, "audit") as folder:
        copy = folder / "file.parquet"
        try:
            sha256 = auditing.store.sha256(row.file_key, copy)
        except ObjectNotFoundError:
            sha256 = "nothing"
        except CorruptObjectError:
            sha256 = "bytes that are not those of its checksum"
        if row.file_key not in {now.file_key for now in _whole_files(auditing)}:
            return  # a write replaced it meanwhile
        uri = auditing.store.uri(row.file_key)
        if sha256 != row.sha256:
            kind: Kind = "lost" if sha256 == "nothing" else "changed"
            what = f"expected {row.size_bytes} bytes with the hash {row.sha256}, found {sha256}"
            page.add(kind, "object", uri, what, _remedy(auditing, row))
        else:
            _check_rows(auditing, page, row, copy)


def _remedy(auditing: Auditing, row: Row[Any]) -> str:
    """What to do about a file that is not as it was written."""
    lacking = database.fetch_one(
        auditing.engine,
        queries.history.documents_nowhere_else,
        file_key=row.file_key,
        table=row.table_name,
        recipe_id=row.owner_id,
    )
    if lacking.documents:
        return (
            "Put the object back from a version of the bucket or a copy: of "
            f"{lacking.documents} of its documents Postgres has no rows any more."
        )
    return f"Delete the object if it exists; then {WRITE} writes it again from Postgres."


def _check_rows(auditing: Auditing, page: Page, row: Row[Any], copy: Path) -> None:
    """Compare the rows of a file whose bytes are those that Postgres registers."""
    import pyarrow.parquet as pq

    uri = auditing.store.uri(row.file_key)
    file = pq.ParquetFile(copy)
    if file.metadata.num_rows != row.rows:
        what = f"expected {file.metadata.num_rows} rows, as the file has, found {row.rows} in history_files"
        page.add("changed", "history_files", row.file_key, what, "Restore the row from a backup.")
    if row.table_name not in OF_STAGE.values() or row.state != "whole":
        return
    # 1. Whose rows they are.
    in_file = set(file.read(["document_id"])["document_id"].to_pylist())
    registered = database.fetch_all(auditing.engine, queries.history.documents_of_file, file_key=row.file_key)
    if others := in_file - {document.document_id for document in registered}:
        what = f"expected documents of history_documents, found {len(others)} others, such as {min(others)}"
        page.add("orphaned", "object", uri, what, _remedy(auditing, row))
        return
    # 2. The rows themselves; those of a document are in one row group.
    changed: list[str] = []
    for number in range(file.num_row_groups):
        rows = _as_json(file.read_row_group(number).to_pylist())
        compared = database.fetch_all(
            auditing.engine,
            queries.audited_history[row.table_name],
            recipe_id=row.owner_id,
            rows=json.dumps(rows),
        )
        page.items += len(compared)
        page.unprovable += sum(document.differs is None for document in compared)
        changed += [document.document_id for document in compared if document.differs]
    if changed:
        what = (
            "expected rows whose hash the ledger keeps, found others of "
            f"{len(changed)} documents, such as {changed[0]}"
        )
        page.add("changed", "object", uri, what, _remedy(auditing, row))


def _as_json(value: Any) -> Any:
    """A value of Arrow as Postgres reads it from JSON, which has no infinity and no date."""
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, date) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value


def unregistered(auditing: Auditing, recipe_id: str, _: str) -> Page:
    """Documents of a recipe whose rows retention dropped, and that no file of the history holds."""
    tools_of_stages = itertools.product(auditing.subjects.tools, OF_STAGE)
    stage = next(
        stage for tool, stage in tools_of_stages if getattr(tool, RECIPE_OF_STAGE[stage]) == recipe_id
    )
    page = Page(items=1)
    rows = database.fetch_all(
        auditing.engine, queries.audited_history.unregistered, recipe_id=recipe_id, stage=stage
    )
    if rows:
        what = (
            "expected a file of the history for each document, since its rows were dropped from Postgres, "
            f"found none for {len(rows)}, such as {rows[0].document_id}"
        )
        page.add("lost", OF_STAGE[stage], f"{stage} under {recipe_id}", what, REGISTER)
    return page


HISTORY_CHECKS = (
    Check(
        "history",
        lambda auditing: ["history"] if auditing.subjects.scope == "all" else [],
        history,
    ),
    Check(
        "rows in the history alone",
        lambda auditing: sorted(auditing.in_history_alone()) if auditing.subjects.has_rows else [],
        unregistered,
    ),
)
