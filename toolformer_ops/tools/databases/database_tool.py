"""The tool of a database: the model writes a SELECT, and its rows become a line of text.

A call's input is the query as it is, `Shop(SELECT stock FROM products WHERE name = 'kettle')`. It runs in a
process of its own, reading only (`sqlite_queries.py`, `postgres_queries.py`). A single value is the result
as it is, `667`; the values of a row have commas between them, and rows semicolons: `kettle, 667; cup, 12`. NULL among
other values is written; a query that finds nothing else has no result.

When the tool is opened, its tables are compared with those that are recorded. The content of an SQLite file
is part of the version, so that calls are executed anew when it changes; of a Postgres `revision` says that.
"""

import contextlib
import functools
import itertools
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import RejectedInputError, ToolError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.local_paths import local_path
from toolformer_ops.storage.corpora.record_rules import escape_control_characters
from toolformer_ops.storage.machine.shared_files import verified_sha256
from toolformer_ops.tools.databases import reasons
from toolformer_ops.tools.databases.cell_proposals import PROPOSAL_VERSION, CellIndex
from toolformer_ops.tools.databases.database_file import (
    ENGINES,
    DatabaseToolFile,
    RecordedTables,
    postgres_address,
)
from toolformer_ops.tools.databases.requests import DatabaseOpening, DescribedDatabase
from toolformer_ops.tools.databases.table_rows import PAGE_SECONDS, ROWS_A_PAGE, read_cells
from toolformer_ops.tools.databases.table_texts import tables_text
from toolformer_ops.tools.files.process_tool import ProcessTool
from toolformer_ops.tools.files.tool_file import read_tool_file, recorded_part, short_hash
from toolformer_ops.tools.files.tool_process import Opening, ToolProcess
from toolformer_ops.tools.retrieval.sentences import count_tokens, cut_at_sentence_end

logger = logging.getLogger(__name__)

CODE_VERSION = 2
"""Raised when the same query would get another result."""
ROWS_SLOT = "{rows}"
"""Where a prompt file has the rows that the tool file shows."""
QUERY = "query"
"""The one argument of a call."""
GRACE_SECONDS = 2.0
"""Given to a query beyond its limit, so that its database says so itself.

What goes on within one step, such as a search for half a megabyte in a whole one, ends with its process.
"""
ANSWERING = {
    "sqlite": ("toolformer_ops.tools.databases.sqlite_queries", "SqliteQueries"),
    "postgresql": ("toolformer_ops.tools.databases.postgres_queries", "PostgresQueries"),
}
"""By engine, what its process runs."""
PAGES = ("toolformer_ops.tools.databases.requests", "RowPages")
"""What the process runs that reads whole tables."""


class DatabaseTool(ProcessTool):
    """The tool of a database. Opening it starts the process that asks the database."""

    input_argument = QUERY

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ToolError: the file cannot be used.
        """
        self.file = file = read_tool_file(path, DatabaseToolFile)
        self.recorded: RecordedTables = recorded_part(path, file.recorded, "the tables of the database")
        self.connections = (file.database.connection,) if file.database.connection else ()
        super().__init__(path, file, takes_input=True)

    @property
    def parameters(self) -> dict[str, Any]:
        """One text, the query, with what may be asked."""
        said = query_described(self.recorded, tables_text(self.recorded)[0])
        return {
            "type": "object",
            "properties": {QUERY: {"type": "string", "description": said}},
            "required": [QUERY],
        }

    @functools.cached_property
    def prompt(self) -> str:
        """The text of the prompt file, with the rows that the tool file shows."""
        return self.prompt_file_text.replace(ROWS_SLOT, self.file.database.shown_rows)

    @property
    def prompt_to_send(self) -> str:
        """The text of the prompt file without rows: no content of the database leaves with it."""
        return re.sub(rf"\s?{re.escape(ROWS_SLOT)}", "", self.prompt_file_text)

    def arguments(self, call_input: str) -> dict[str, Any]:
        """The query."""
        return {QUERY: call_input}

    def effective_input(self, call_input: str, document: Document) -> str | None:
        """The query as it is: white space within its texts is part of what is asked."""
        return call_input.strip()

    def version(self, settings: Settings, model_identity: str) -> str:
        """Database, its tables, the content of an SQLite file, and what of the tool file decides answers.

        Raises:
            ToolError: an SQLite file is not there.
        """
        limits = self.file.limits
        deciding = [CODE_VERSION, self._which, limits.rows, limits.bytes, limits.result_tokens]
        return f"{self._content(settings)} file={short_hash(json.dumps(deciding, sort_keys=True))}"

    @property
    def _which(self) -> dict[str, Any]:
        """Which database it is, and what of it may be read."""
        return self.file.database.model_dump(include={"url", "connection", "tables"})

    def _content(self, settings: Settings) -> str:
        """Names the schema and the content of the database, as far as it is known."""
        file = self.file
        content = ""
        if file.database.engine == "sqlite":
            path = sqlite_file(file, self.path.parent)
            files = (path, path.with_name(f"{path.name}-wal"))
            hashes = [
                verified_sha256(settings, part) for part in files if part.exists() and part.stat().st_size
            ]
            content = f" content={short_hash(' '.join(hashes))}"
        return (
            f"{file.name} revision={file.revision} engine={self.recorded.engine} "
            f"schema={self.recorded.schema_hash}{content}"
        )

    @property
    def can_propose(self) -> bool:
        """Whether the tool file names cells to propose."""
        return bool(self.file.proposals.cells)

    def proposer_version(self, settings: Settings) -> str:
        """Content of the database, and what of the tool file decides which cells are proposed.

        Raises:
            ToolError: an SQLite file is not there.
        """
        deciding = [
            PROPOSAL_VERSION,
            self._which,
            list(self.file.proposals.cells.items()),
            self.file.proposals.common,
        ]
        return f"{self._content(settings)} cells={short_hash(json.dumps(deciding, sort_keys=True))}"

    def open_proposer(self, settings: Settings) -> CellIndex:
        """Read the cells that the tool file names; errors as `read_cells`."""
        return read_cells(self.file, database_process(self.file, self.path.parent, reads_tables=True))

    def process(self) -> ToolProcess:
        """The process that has the database open."""
        return database_process(self.file, self.path.parent)

    def recorded_now(self, described: Any) -> RecordedTables:
        """The tables as the database says them; what its role may do beyond reading is logged."""
        database = DescribedDatabase.of(described)
        for warning in database.warnings:
            logger.warning("tool %s: %s", self.file.name, warning)
        return recorded_tables(self.file, database)

    def result(self, answer: Any) -> str:
        """Rows as one line."""
        return rows_text(answer, self.file.limits.result_tokens)


def database_process(file: DatabaseToolFile, folder: Path, *, reads_tables: bool = False) -> ToolProcess:
    """The process of a database, which is not started yet; `folder` is the tool file's.

    With `reads_tables` it answers with the rows of whole tables, page by page (`RowPages`).

    Raises:
        ToolError: a secret is not set, or the file of an SQLite may not be read.
    """
    secrets: dict[str, str] = {}
    if file.database.engine == "sqlite":
        address = {"path": str(sqlite_file(file, folder))}
    else:
        address, secrets = postgres_address(file.database, file.name)
    limits = file.limits
    opening = DatabaseOpening(
        address=address,
        tables=file.database.tables,
        seconds=max(limits.seconds, PAGE_SECONDS) if reads_tables else limits.seconds,
        rows=ROWS_A_PAGE if reads_tables else limits.rows,
        bytes=limits.bytes,
    )
    answering = ANSWERING[file.database.engine]
    return ToolProcess(
        Opening(
            tool=file.name,
            table="database",
            answering=PAGES if reads_tables else answering,
            arguments=asdict(opening) | ({"answering": answering} if reads_tables else {}),
            seconds=opening.seconds + GRACE_SECONDS,
            timed_out=reasons.TIMED_OUT,
            ended=reasons.PROCESS_ENDED,
            secrets=secrets,
        )
    )


def rows_text(rows: Sequence[Sequence[str | None]], tokens: int) -> str:
    """Rows as one line of at most `tokens` words and punctuation marks: as many whole rows as have room.

    A single value is a text, and ends with its last sentence that has room.

    Raises:
        RejectedInputError: there is no row, no value, or no room for the first row.
    """
    if not rows:
        raise RejectedInputError(reasons.NO_ROWS)
    if not any(value and not value.isspace() for value in itertools.chain.from_iterable(rows)):
        raise RejectedInputError(reasons.NO_VALUE)
    lines = []
    for row in rows:
        line = ", ".join("NULL" if value is None else " ".join(value.split()) for value in row)
        lines.append(escape_control_characters(line)[0])
    if len(lines) == len(rows[0]) == 1:
        text = cut_at_sentence_end(lines[0], tokens)
    else:
        # A row brings its own tokens, and the semicolon before it.
        sizes = itertools.accumulate(count_tokens(line) + 1 for line in lines)
        text = "; ".join(line for line, size in zip(lines, sizes, strict=True) if size - 1 <= tokens)
    if not text:
        raise RejectedInputError(reasons.TOO_LONG)
    return text


def query_described(recorded: RecordedTables, tables: str) -> str:
    """What the argument of a call is, for a prompt and for function calling."""
    return f"one SELECT of {recorded.engine} on the tables {tables}"


def recorded_tables(file: DatabaseToolFile, database: DescribedDatabase) -> RecordedTables:
    """What is recorded of an open database."""
    tables = {table.name: table.columns for table in database.tables}
    return RecordedTables(engine=ENGINES[file.database.engine], tables=json.dumps(tables, ensure_ascii=False))


def look_at_database(file: DatabaseToolFile, folder: Path) -> DescribedDatabase:
    """What a database says of itself; it is opened and closed for it.

    Raises:
        ToolError: it has no table that a query may name; else as `DatabaseTool.open`.
    """
    with contextlib.closing(database_process(file, folder)) as process:
        database = DescribedDatabase.of(process.open())
    if not any(table.columns for table in database.tables):
        raise ToolError(
            f"tool {file.name}: expected a table that a query may read, found none in "
            f"{file.database.name}. Is it the right database, and may the role read its tables?"
        )
    return database


def record_database(path: Path) -> tuple[RecordedTables | None, RecordedTables]:
    """What the file of a database's tool has recorded, and the tables of the database now.

    Raises:
        ToolError, InfrastructureError: the file cannot be read, or the database not be used.
    """
    file = read_tool_file(path, DatabaseToolFile)
    return file.recorded, recorded_tables(file, look_at_database(file, path.parent))


def sqlite_file(file: DatabaseToolFile, folder: Path) -> Path:
    """The absolute path of an SQLite file; relative to the tool file's folder.

    Raises:
        ToolError: it is missing, or this deployment allows no reading there.
    """
    try:
        path = local_path(load_settings(), str(folder / file.database.sqlite_path), "url", within=folder)
    except UsageError as error:
        raise ToolError(f"tool {file.name}: {error}") from error
    if not path.is_file():
        raise ToolError(f"tool {file.name}: expected a file of SQLite at {path}, found none.")
    return path
