"""Queries of SQLite, which only read.

The file is opened `mode=ro`, and an authorizer allows what reads the offered tables. Bounds: one statement;
functions of a list; time by a progress handler, and by the end of the process for what runs on within one
step (`tool_process.py`); the length of every value, of the answer, and the memory of the process
(`requests.py`).
Sources: https://www.sqlite.org/security.html, https://www.sqlite.org/c3ref/set_authorizer.html
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.databases import reasons, sqlite_dates
from toolformer_ops.tools.databases.query_text import first_word
from toolformer_ops.tools.databases.requests import DatabaseOpening, DescribedDatabase, Queries, Table
from toolformer_ops.tools.databases.table_texts import PRIMARY_KEY, references
from toolformer_ops.tools.files.answering import AwayError, WrongError
from toolformer_ops.tools.files.number_text import number_text

_FUNCTIONS = """
-> ->> abs acos acosh asin asinh atan atan2 atanh avg bm25 ceil ceiling char coalesce concat concat_ws cos cosh
count cume_dist date datetime degrees dense_rank exp first_value floor format glob group_concat hex highlight
ifnull iif instr json json_array json_array_length json_each json_extract json_group_array json_group_object
json_object json_quote json_type json_valid julianday lag last_value lead length like ln log log10 log2 lower
ltrim match max min mod nth_value ntile nullif octet_length percent_rank pi pow power printf quote radians rank
replace round row_number rtrim sign sin sinh snippet sqrt strftime string_agg substr substring sum tan tanh time
timediff total trim trunc typeof unicode unixepoch upper
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""What a query may call: what computes a value from its arguments alone, and reads or loads nothing."""
CHANGING_FUNCTIONS = frozenset({"current_date", "current_time", "current_timestamp", "random", "randomblob"})
"""What has another answer each time; of functions of dates `sqlite_dates.py` says when."""
TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})
MOST_BYTES_A_VALUE = 1_000_000
"""Longest text or blob, also where it is only a step to the answer."""
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MOST_BYTES_A_VALUE,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 100_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
STEPS_A_LOOK = 1000
"""Steps of SQLite's machine between two looks at the clock."""
_COLUMNS = "select name, type, pk from pragma_table_xinfo(?) where hidden <> 1"
"""The hidden columns of a virtual table are none."""
_REFERENCES = 'select "from", "table", "to" from pragma_foreign_key_list(?)'
_WRITING = frozenset(
    getattr(sqlite3, name)
    for name in dir(sqlite3)
    if name.startswith(
        ("SQLITE_INSERT", "SQLITE_UPDATE", "SQLITE_DELETE", "SQLITE_CREATE_", "SQLITE_DROP_", "SQLITE_ALTER_")
    )
)
_REASONS = {
    sqlite3.SQLITE_INTERRUPT: reasons.TIMED_OUT,
    sqlite3.SQLITE_TOOBIG: reasons.TOO_LARGE,
    sqlite3.SQLITE_NOMEM: reasons.MEMORY,
    sqlite3.SQLITE_FULL: reasons.MEMORY,
}
"""By SQLite's result of a query."""
_AWAY = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""Results of SQLite that say something of the file, and nothing of the query."""


class SqliteQueries(Queries):
    """A file of SQLite, opened for reading."""

    def __init__(self, opening: DatabaseOpening) -> None:
        """Open it.

        Raises:
            WrongError: there is no such file, or it is no database.
        """
        self._opening = opening
        self._path = path = Path(opening.address["path"])
        self._deadline = 0.0
        self._refused: str | None = None
        if not path.is_file():
            raise WrongError(f"expected a file of SQLite at {path}, found none")
        _require_a_readable_log(path)
        try:
            self._is_immutable = _has_an_empty_log(path)
            address = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if self._is_immutable else ''}"
            self._as_opened = _state(path)
            self._connection = connection = sqlite3.connect(
                address, uri=True, timeout=opening.seconds, isolation_level=None
            )
            connection.text_factory = _utf8
            # A view that calls what no view may call has no columns below, and cannot be offered.
            for pragma in ("query_only = 1", "temp_store = MEMORY", "trusted_schema = 0"):
                connection.execute(f"pragma {pragma}")
            self._objects = self._read_objects()
        except (sqlite3.Error, RejectedInputError) as error:
            said = error.message if isinstance(error, RejectedInputError) else error
            raise WrongError(f"expected a file of SQLite at {path}, found: {said}") from error
        self._columns: dict[str, dict[str, str]] = {}
        self._primary_keys: dict[str, dict[str, str]] = {}
        self._references: dict[str, list[tuple[str, str, str | None]]] = {}
        self._prepare()
        offered = opening.tables or tuple(name for name in self._tables_to_name() if name in self._columns)
        self._tables = tuple(offered)
        self._allowed = {name.lower() for name in offered} | TABLE_FUNCTIONS
        self._allowed |= {
            name.lower()
            for name, kind in self._objects.items()
            if kind.startswith("part of ") and kind.removeprefix("part of ") in self._allowed
        }
        self._views = {name.lower() for name in offered if self._objects.get(name) == "view"}
        self._trusts_views = False
        # Tables that are in no file, such as dbstat, have names, too.
        modules = {name.lower() for (name,) in connection.execute("select name from pragma_module_list")}
        self._all_names = {name.lower() for name in self._objects} | (modules - TABLE_FUNCTIONS)
        for limit, most in LIMITS.items():
            connection.setlimit(limit, most)
        sqlite_dates.replace_functions(connection, self._refuse_clock)
        # SQLite would refuse these functions to views. From here on the authorizer sees what a view calls.
        connection.execute("pragma trusted_schema = 1")
        connection.set_authorizer(self._allows)
        connection.set_progress_handler(lambda: time.monotonic() > self._deadline, STEPS_A_LOOK)

    def describe(self) -> DescribedDatabase:
        """Its tables."""
        tables = []
        for name in self._tables:
            if name not in self._objects:
                there = ", ".join(self._tables_to_name()) or "none"
                raise WrongError(f"expected a table {name} in {self._path}, found {there}")
            if name not in self._columns:
                raise WrongError(
                    f"expected a table or view {name} that SQLite can read, found one that calls what it may "
                    "not"
                )
            tables.append(Table(name, self._columns[name], self._keys_of(name), self._foreign_keys_of(name)))
        return DescribedDatabase(tables)

    def _keys_of(self, table: str) -> dict[str, str]:
        """The words of its columns that are keys; a table that is not offered is not named."""
        offered = {name.lower() for name in self._tables}
        words = {}
        for column, target, target_column in self._references.get(table, ()):
            if target.lower() in offered:
                words[column] = references(target, target_column, "SQLite")
        return words | self._primary_keys.get(table, {})

    def _foreign_keys_of(self, table: str) -> dict[str, tuple[str, str]]:
        """The offered tables that its columns refer to; a reference without a column is one to the primary key."""
        offered = {name.lower(): name for name in self._tables}
        foreign_keys = {}
        for column, target, target_column in self._references.get(table, ()):
            name = offered.get(target.lower(), "")
            key = target_column or next(iter(self._primary_keys.get(name, ())), "")
            if name and key:
                foreign_keys[column] = (name, key)
        return foreign_keys

    def pages(self, query: str) -> Iterator[list[list[str | None]]]:
        """All rows of a query, as `Queries` says."""
        self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
        self._refused, self._trusts_views = None, True  # the query is ours, and has no WITH
        self._deadline = time.monotonic() + self._opening.seconds
        try:
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(self._opening.rows):
                self._require_unchanged()
                yield [[None if isinstance(value, bytes) else _text(value) for value in row] for row in rows]
                self._deadline = time.monotonic() + self._opening.seconds
        except (sqlite3.Error, sqlite3.Warning, MemoryError, ValueError) as error:
            raise self._what_happened(error) from error

    def answer(self, query: str) -> list[list[str | None]]:
        """The rows of a query, as `Queries` says."""
        if first_word(query) not in {"select", "with", "values"}:
            raise RejectedInputError(reasons.NOT_A_SELECT)
        self._refused = None
        # SQLite names a query of WITH as it names a view, so that one could pass for the other.
        self._trusts_views = "with" not in query.lower()
        self._deadline = time.monotonic() + self._opening.seconds
        try:
            cursor = self._connection.execute(query)
            rows = cursor.fetchmany(self._opening.rows + 1)
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning, MemoryError, ValueError) as error:
            raise self._what_happened(error) from error
        self._require_unchanged()
        if len(rows) > self._opening.rows:
            raise RejectedInputError(reasons.MANY_ROWS, f"more than {self._opening.rows} rows")
        shown = [[*map(_text, row)] for row in rows]
        values = filter(None, chain.from_iterable(shown))
        if sum(len(value.encode()) for value in values) > self._opening.bytes:
            raise RejectedInputError(reasons.TOO_LARGE)
        return shown

    def _require_unchanged(self) -> None:
        """Raise an AwayError if another program has written to a file that is read without locks."""
        if self._is_immutable and _state(self._path) != self._as_opened:
            raise AwayError(f"{self._path} was changed while it was read; give the tool a copy of the file")

    def _prepare(self) -> None:
        """Read the columns and keys of all tables; generated columns are among them.

        A virtual table is declared when it is first named, by a statement that no query may run.
        """
        for name in self._objects:
            with contextlib.suppress(sqlite3.Error):  # a view that calls what no view may call
                listed = self._connection.execute(_COLUMNS, (name,)).fetchall()
                self._columns[name] = {column: kind for column, kind, _ in listed}
                primary = [column for column, _, place in listed if place]
                self._primary_keys[name] = dict.fromkeys(primary, PRIMARY_KEY) if len(primary) == 1 else {}
                self._references[name] = self._connection.execute(_REFERENCES, (name,)).fetchall()
        self._connection.execute("select count(*) from json_each('[]'), json_tree('[]')").fetchall()

    def _allows(
        self, action: int, first: str | None, second: str | None, _: str | None, view: str | None
    ) -> int:
        """SQLite's answer to whether a step of a statement is allowed.

        The first step that is not allowed gives the reason.
        """
        reason: str | None = None
        if action in {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE}:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            function = (second or "").lower()
            reason = None if function in FUNCTIONS else reasons.FUNCTION
            if function in CHANGING_FUNCTIONS:
                reason = reasons.NOT_REPEATABLE
        elif action == sqlite3.SQLITE_READ:
            reason = None if self._may_read(first or "", second or "", view or "") else reasons.TABLE
        elif action == sqlite3.SQLITE_PRAGMA:
            # FTS asks for the version before it reads its own tables.
            reason = None if (first, second) == ("data_version", None) else reasons.NOT_A_SELECT
        elif action in _WRITING:
            # SQLite declares a table of its own, such as dbstat, by a write of the schema.
            is_declaration = (first or "").startswith("sqlite_")
            reason = reasons.TABLE if is_declaration else reasons.WRITES
        else:
            reason = reasons.NOT_A_SELECT
        if reason is None:
            return sqlite3.SQLITE_OK
        self._refused = self._refused or reason
        return sqlite3.SQLITE_DENY

    def _refuse_clock(self) -> None:
        """Give the query that is running its reason."""
        self._refused = self._refused or reasons.NOT_REPEATABLE

    def _may_read(self, table: str, column: str, view: str) -> bool:
        """Whether a query, or the view that it names, may read a table."""
        name = table.lower()
        if self._trusts_views and view.lower() in self._views:
            return True
        if name in self._allowed:
            return True
        # Without a column it may be a query of WITH, which has no table's name.
        is_unknown = name not in self._all_names and not name.startswith(("sqlite_", "pragma_"))
        return is_unknown and not column

    def _what_happened(self, error: Exception) -> Exception:
        """The reason that there is no answer, or that the file cannot be read."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        said = str(error)
        if self._refused is not None:
            # Of a function of ours SQLite says only that it raised an exception.
            return RejectedInputError(self._refused, "" if self._refused == reasons.NOT_REPEATABLE else said)
        if "one statement" in said:
            return RejectedInputError(reasons.SEVERAL)
        if code in _AWAY:
            return AwayError(f"{self._path}: {said}")
        if isinstance(error, MemoryError):
            return RejectedInputError(reasons.MEMORY)
        if said.startswith("no such collation sequence"):
            return RejectedInputError(reasons.COLLATION, said)
        return RejectedInputError(_REASONS.get(code, reasons.INVALID), said)

    def _read_objects(self) -> dict[str, str]:
        """Tables and views by name; the tables in which a virtual table keeps its rows are `part of` it."""
        listed = self._connection.execute(
            "select name, type from sqlite_master where type in ('table', 'view') order by rowid"
        )
        kinds = {name: kind for name, kind in listed if not name.lower().startswith("sqlite_")}
        # SQLite's own word for such tables; a table of another kind may have a name that looks like theirs.
        for _, name, kind, *_ in self._connection.execute("pragma main.table_list").fetchall():
            if kind == "shadow" and name in kinds:
                kinds[name] = f"part of {name.rpartition('_')[0].lower()}"
        return kinds

    def _tables_to_name(self) -> list[str]:
        return [name for name, kind in self._objects.items() if not kind.startswith("part of ")]


def _log_of(path: Path) -> Path:
    """The write-ahead log of a file."""
    return path.with_name(f"{path.name}-wal")


def _state(path: Path) -> tuple[int, int, int]:
    """What is another after a write: time and length of the file, and the length of its log."""
    log = _log_of(path)
    return path.stat().st_mtime_ns, path.stat().st_size, log.stat().st_size if log.exists() else 0


def _has_an_empty_log(path: Path) -> bool:
    """Whether all of a file with a write-ahead log is in the file, and no other program has it open.

    SQLite would make a log and an index of it beside the file to read it, and leave them there, or refuse
    where the folder may not be written. Opened as immutable it needs neither.
    Sources: https://www.sqlite.org/wal.html#readonly, https://www.sqlite.org/fileformat.html#file_format_version_numbers
    """
    with path.open("rb") as file:
        writes_a_log = file.read(20)[18:] == b"\x02\x02"
    return writes_a_log and _state(path)[2] == 0 and not path.with_name(f"{path.name}-shm").exists()


def _require_a_readable_log(path: Path) -> None:
    """Raise a WrongError if the log has content that SQLite cannot read without a write to the folder."""
    log, index = _log_of(path), path.with_name(f"{path.name}-shm")
    if _state(path)[2] and not index.exists() and not os.access(path.parent, os.W_OK):
        raise WrongError(
            f"expected {path} with all of its content, found some in {log.name}, which SQLite reads only in a "
            "folder that it may write. Copy both files to such a folder, or write the log back: "
            f"sqlite3 {path.name} 'pragma wal_checkpoint(truncate)'"
        )


def _utf8(text: bytes) -> str:
    """A text of the file; SQLite takes bytes of any other encoding for one, too."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        said = f"expected texts in UTF-8, found the bytes {text[:40]!r}"
        raise RejectedInputError(reasons.NOT_TEXT, said) from error


def _text(value: object) -> str | None:
    """A value of SQLite as a text says it."""
    if isinstance(value, bytes):
        raise RejectedInputError(reasons.NOT_TEXT, "a value is a blob")
    if isinstance(value, float):
        return number_text(value)
    return None if value is None else str(value)
