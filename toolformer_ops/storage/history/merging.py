"""Merge small files of the history: each night adds some, and a question opens each of them.

The small files of a recipe become one, of at most `DOCUMENTS_PER_FILE` documents; those of a corpus become
one for all of its versions. Rows do not change. The files that were merged go as others do: the manifest names
them no more, and then they are deleted.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import HistoryError
from toolformer_ops.storage.history.files import OF_STAGE
from toolformer_ops.storage.history.history import (
    CORPUS_TABLES,
    DOCUMENTS_PER_FILE,
    Writer,
    content_of,
    writing,
)
from toolformer_ops.storage.postgres import database, queries

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

FEWEST_FILES = 8
"""Small files that are merged: with fewer of them a merge would write more than it saves."""


def small_files(settings: Settings) -> list[list[Row[Any]]]:
    """The groups of files that `merge` would make one file of."""
    rows = database.fetch_all(database.connect(settings), queries.history.mergeable_files)
    tables = (*OF_STAGE.values(), *CORPUS_TABLES)
    by_owner: dict[tuple[str, str], list[Row[Any]]] = defaultdict(list)
    for row in rows:
        if row.table_name in tables and row.documents <= DOCUMENTS_PER_FILE // 2:
            by_owner[row.table_name, row.owner_id].append(row)
    groups = []
    for files in by_owner.values():
        groups += [group for group in _groups(files) if len(group) >= FEWEST_FILES]
    return groups


def _groups(files: Sequence[Row[Any]]) -> Iterator[list[Row[Any]]]:
    """Files in their order, of which each group has the documents of one file at most."""
    group: list[Row[Any]] = []
    for file in files:
        if sum(row.documents for row in group) + file.documents > DOCUMENTS_PER_FILE:
            yield group
            group = []
        group.append(file)
    yield group


def merge(settings: Settings) -> int:
    """Merge the small files; returns by how many their number fell. May be killed and called again.

    Raises:
        HistoryError: a file is not in the bucket as it was written; the files before it are merged.
        ObjectStoreError, DatabaseError: likewise.
    """
    if not small_files(settings):
        return 0
    engine = database.connect(settings)
    with writing(engine):
        merger = _Merger(settings, engine, None)
        merger.mend()
        merged = 0
        for group in small_files(settings):
            merger.merge(group)
            merged += len(group) - 1
        if merged:
            merger.conclude()
    return merged


class _Merger(Writer):
    """A writer of the history that makes one file of several."""

    def merge(self, rows: Sequence[Row[Any]]) -> None:
        """Write one file with the rows of these, in their order, and have them leave."""
        versions = [row.version for row in rows if row.version is not None]
        version = max(versions, default=None)
        with self._folder() as folder:
            copies = []
            for number, row in enumerate(rows):
                copies.append(folder / f"{number}.parquet")
                content = content_of(self._objects, row.file_key, copies[-1])
                if content != row.sha256:
                    uri = self._objects.uri(row.file_key)
                    raise HistoryError(
                        f"{uri}: expected content {row.sha256}, found {content}: it is merged with no other "
                        "file. `toolformer-ops audit` says what to do about it."
                    )
            path = folder / "merged.parquet"
            file = self._file(rows[0].table_name, rows[0].owner_id, path, _row_groups(copies), version)
            self._send(file, path, version)
        with database.transaction(self._engine) as connection:
            for row in rows:
                moved = {"old_key": row.file_key, "new_key": file.file_key}
                database.execute(connection, queries.history.move_documents, **moved)
            self._set_state("leaving", *(row.file_key for row in rows), on=connection)
            self._set_state("whole", file.file_key, on=connection)


def _row_groups(paths: Sequence[Path]) -> Iterator["pyarrow.Table"]:
    import pyarrow.parquet as pq

    for path in paths:
        file = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            yield file.read_row_group(number).replace_schema_metadata(None)
