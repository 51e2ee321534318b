"""Checks of the history: its manifest, the bytes of its files, and whose rows are in them.

A file is read whole and hashed. What it holds is as it was written then, so that its rows are compared with
nothing; that no other documents are in it than are registered with it shows that every forgotten text is out.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row

from toolformer_ops.audit.auditing import Auditing, Check, Kind, Page
from toolformer_ops.errors import CorruptObjectError, HistoryError, ObjectNotFoundError
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.history_files import MANIFEST_KEY, OF_STAGE, PREFIX, WRITE, read_manifest
from toolformer_ops.storage.temporary_folders import temporary_folder

MANIFEST_POSITION = ""
"""The first page, which looks at the manifest and at what no row names; each other one looks at a file."""


def history(auditing: Auditing, _: str, position: str) -> Page:
    """One page of the history: the manifest, or the file behind a position, which is a key."""
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
        listed = {file.file_key for file in read_manifest(store)}
    except HistoryError as error:
        is_gone = isinstance(error.__cause__, ObjectNotFoundError)
        if is_gone and not _settled(auditing):
            return  # the first write ended before its manifest
        kind: Kind = "lost" if is_gone else "changed"
        page.add(kind, "object", uri, str(error), remedy)
        return
    registered = {row.file_key: row for row in database.fetch_all(auditing.engine, queries.history.files)}
    if unknown := listed - set(registered) - keys:
        what = f"expected files of history_files, found {len(unknown)} others, such as {min(unknown)}"
        page.add("changed", "object", uri, what, remedy)
    if lacking := (_settled(auditing) & set(registered)) - listed:
        what = f"expected all files of history_files, found {len(lacking)} lacking, such as {min(lacking)}"
        page.add("changed", "object", uri, what, remedy)
    for file in store.list_objects(f"{PREFIX}/"):
        key = store.key_of(file.uri)
        if key not in registered and key not in keys and key != MANIFEST_KEY:
            page.items += 1
            what = "expected a row of history_files for each file, found none"
            page.add("orphaned", "object", file.uri, what, "Delete the object.")


def _settled(auditing: Auditing) -> set[str]:
    """The keys of files that the manifest has to name.

    What a write has just registered is not in it yet; if it was killed, the next write puts it there.
    """
    latest = datetime.now(UTC) - auditing.orphans_after
    rows = database.fetch_all(auditing.engine, queries.history.files)
    return {row.file_key for row in rows if row.state == "whole" and row.written_at < latest}


def _check_file(auditing: Auditing, page: Page, row: Row[Any]) -> None:
    import pyarrow.parquet as pq

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
            remove = "" if kind == "lost" else "Delete the object; then "
            what = f"expected {row.size_bytes} bytes with the hash {row.sha256}, found {sha256}"
            page.add(
                kind, "object", uri, what, f"{remove}{WRITE} writes it again as far as Postgres has its rows."
            )
            return
        if row.table_name in OF_STAGE.values() and row.state == "whole":
            in_file = set(pq.read_table(copy, columns=["document_id"])["document_id"].to_pylist())
            rows = database.fetch_all(
                auditing.engine, queries.history.documents_of_file, file_key=row.file_key
            )
            if others := in_file - {document.document_id for document in rows}:
                what = f"expected documents of history_documents, found {len(others)} others, such as {min(others)}"
                page.add(
                    "orphaned",
                    "object",
                    uri,
                    what,
                    "Delete the object; then " + f"{WRITE} writes it without them.",
                )


HISTORY_CHECKS = (
    Check(
        "history",
        lambda auditing: ["history"] if auditing.subjects.scope == "all" and _whole_files(auditing) else [],
        history,
    ),
)
