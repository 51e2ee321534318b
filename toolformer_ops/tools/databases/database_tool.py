"""The tool of a database: the model writes a SELECT, and its rows become a line of text.

A call's input is the query as it is, `Shop(SELECT stock FROM products WHERE name = 'kettle')`. It runs in a
process of its own, reading only (`query_process.py`, `worker.py`). A single value is the result as it is,
`667`; the values of a row have commas between them, and rows semicolons: `kettle, 667; cup, 12`. NULL among
other values is written; a query that finds nothing else has no result.

When the tool is opened, its tables are compared with those that are recorded. The content of an SQLite file
is part of the version, so that calls are executed anew when it changes; of a Postgres `revision` says that.
"""

import atexit
import functools
import itertools
import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import InfrastructureError, RejectedInputError, ToolError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.local_paths import local_path
from toolformer_ops.storage.corpora.record_rules import escape_control_characters
from toolformer_ops.storage.machine.file_hashes import verified_sha256
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.databases import reasons
from toolformer_ops.tools.databases.database_file import (
    ENGINES,
    DatabaseToolFile,
    RecordedTables,
    postgres_address,
)
from toolformer_ops.tools.databases.query_process import GRACE_SECONDS, START_SECONDS, QueryProcess
from toolformer_ops.tools.databases.requests import AwayError, Opened, Opening, WrongDatabaseError
from toolformer_ops.tools.databases.table_texts import tables_text
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.secret_values import without_secrets
from toolformer_ops.tools.files.tool_file import read_tool_file, recorded_part, short_hash
from toolformer_ops.tools.retrieval.sentences import count_tokens, cut_at_sentence_end

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

logger = logging.getLogger(__name__)

CODE_VERSION = 2
"""Raised when the same query would get another result."""
ROWS_SLOT = "{rows}"
"""Where a prompt file has the rows that the tool file shows."""
QUERY = "query"
"""The one argument of a call."""


class DatabaseTool(FileTool):
    """The tool of a database. Opening it starts the process that asks the database."""

    input_argument = QUERY

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ToolError: the file cannot be used.
        """
        self.file = file = read_tool_file(path, DatabaseToolFile)
        self.recorded = recorded_part(path, file.recorded, "the tables of the database")
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
        file, limits = self.file, self.file.limits
        content = ""
        if file.database.engine == "sqlite":
            path = sqlite_file(file, self.path.parent)
            files = (path, path.with_name(f"{path.name}-wal"))
            hashes = [
                verified_sha256(settings, part) for part in files if part.exists() and part.stat().st_size
            ]
            content = f" content={short_hash(' '.join(hashes))}"
        database = file.database.model_dump(include={"url", "connection", "tables"})
        deciding = [CODE_VERSION, database, limits.rows, limits.bytes, limits.result_tokens]
        return (
            f"{file.name} revision={file.revision} engine={self.recorded.engine} "
            f"schema={self.recorded.schema_hash}{content} "
            f"file={short_hash(json.dumps(deciding, sort_keys=True))}"
        )

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> "DatabaseRunner":
        """Open the database, and compare its tables with those that are recorded.

        Raises:
            ToolError: it cannot be used, or its tables are others.
            InfrastructureError: it does not answer now.
        """
        runner = DatabaseRunner(self.file, self.path.parent)
        try:
            opened = runner.open()
            now = recorded_tables(self.file, opened)
            if now.schema_hash != self.recorded.schema_hash:
                raise ToolError(  # noqa: TRY301
                    f"tool {self.file.name}: expected the tables that are recorded in {self.path} "
                    f"({self.recorded.words}), found others ({now.words}). Take them over as another version "
                    f"of the tool, whose calls run anew: toolformer-ops refresh-tool {self.path}"
                )
        except BaseException:
            runner.close()
            raise
        for warning in opened.warnings:
            logger.warning("tool %s: %s", self.file.name, warning)
        return runner


class DatabaseRunner:
    """The open tool of a database."""

    def __init__(self, file: DatabaseToolFile, folder: Path) -> None:
        """Prepare it; `folder` is the tool file's.

        Raises:
            ToolError: a secret is not set, or the file of an SQLite may not be read.
        """
        self._file = file
        self._secrets: dict[str, str] = {}
        if file.database.engine == "sqlite":
            address = {"path": str(sqlite_file(file, folder))}
        else:
            address, self._secrets = postgres_address(file.database, file.name)
        limits = file.limits
        self.time_limit_seconds = 2 * (limits.seconds + GRACE_SECONDS + START_SECONDS)
        """Longest time of an input in a batch, with a start of the process; only what hangs reaches it."""
        self._process = QueryProcess(
            Opening(
                engine=file.database.engine,
                address=address,
                tables=file.database.tables,
                seconds=limits.seconds,
                rows=limits.rows,
                bytes=limits.bytes,
            )
        )
        atexit.register(self.close)

    def open(self) -> Opened:
        """Start the process; returns what the database says of itself.

        Raises:
            ToolError: it cannot be used.
            InfrastructureError: it does not answer now.
        """
        try:
            return self._process.open()
        except WrongDatabaseError as error:
            raise ToolError(self._told(error, "Look at [database] of the tool file")) from error
        except AwayError as error:
            raise InfrastructureError(
                self._told(error, "Is its server up, and its address right?")
            ) from error

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One output a query, in order.

        Raises:
            InfrastructureError: the database does not answer now, so that nothing may be said of the queries.
        """
        return [self._output(query) for query in inputs]

    def close(self) -> None:
        """End the process."""
        atexit.unregister(self.close)
        self._process.close()

    def _output(self, query: str) -> ToolOutput:
        try:
            rows = self._process.answer(query)
            return ToolOutput.of(rows_text(rows, self._file.limits.result_tokens))
        except RejectedInputError as error:
            return ToolOutput.none(error.reason, without_secrets(error.message, self._secrets))
        except (WrongDatabaseError, AwayError) as error:
            raise InfrastructureError(self._told(error, "Is its server up?")) from error

    def _told(self, error: Exception, remedy: str) -> str:
        """An error message: the tool, what was expected and found, the remedy; no secret is in it."""
        message = without_secrets(str(error).rstrip(".?"), self._secrets)
        said = (
            message
            if message.startswith("expected")
            else f"expected a database that answers, found: {message}"
        )
        return f"tool {self._file.name}: {said}. {remedy}{'' if remedy.endswith('?') else '.'}"


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
    lines = [escape_control_characters(_row_text(row))[0] for row in rows]
    if len(lines) == len(rows[0]) == 1:
        text = cut_at_sentence_end(lines[0], tokens)
    else:
        # A row brings its own tokens, and the semicolon before it.
        sizes = itertools.accumulate(count_tokens(line) + 1 for line in lines)
        text = "; ".join(line for line, size in zip(lines, sizes, strict=True) if size - 1 <= tokens)
    if not text:
        raise RejectedInputError(reasons.TOO_LONG)
    return text


def _row_text(row: Sequence[str | None]) -> str:
    """The values of a row with commas between them, on one line: `Ada, NULL, Paris`."""
    return ", ".join("NULL" if value is None else " ".join(value.split()) for value in row)


def query_described(recorded: RecordedTables, tables: str) -> str:
    """What the argument of a call is, for a prompt and for function calling."""
    return f"one SELECT of {recorded.engine} on the tables {tables}"


def recorded_tables(file: DatabaseToolFile, opened: Opened) -> RecordedTables:
    """What is recorded of an open database."""
    tables = {table.name: dict(table.columns) for table in opened.tables}
    return RecordedTables(engine=ENGINES[file.database.engine], tables=json.dumps(tables, ensure_ascii=False))


def look_at_database(file: DatabaseToolFile, folder: Path) -> Opened:
    """What a database says of itself; it is opened and closed for it.

    Raises:
        ToolError: it has no table that a query may name; else as `DatabaseTool.open`.
    """
    runner = DatabaseRunner(file, folder)
    try:
        opened = runner.open()
    finally:
        runner.close()
    if not any(table.columns for table in opened.tables):
        raise ToolError(
            f"tool {file.name}: expected a table that a query may read, found none in "
            f"{file.database.name}. Is it the right database, and may the role read its tables?"
        )
    return opened


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
