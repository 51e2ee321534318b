"""Ask the history: DuckDB, in this process, over copies of the files that a question reads.

The views and functions of `sql/history` have the names and columns of Postgres'; the questions of
`sql/examples` that read them alone are made from the same files. DuckDB itself never asks the network: the
files are fetched by our own client into a folder of the cache, each compared with its hash, and a query may
read these files and nothing else, load no extension, and write nothing.
"""

import contextlib
import functools
import re
import shutil
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolformer_ops.config import SHIPPED, Settings
from toolformer_ops.errors import (
    ConfigurationError,
    CorruptObjectError,
    HistoryError,
    InfrastructureError,
    ObjectNotFoundError,
    UsageError,
)
from toolformer_ops.storage.history.files import (
    OF_STAGE,
    TABLES,
    WRITE,
    HistoryFile,
    read_manifest,
    registered_manifest,
)
from toolformer_ops.storage.machine.shared_files import remember, verified_sha256
from toolformer_ops.storage.machine.temporary_folders import remove_left, temporary_folder
from toolformer_ops.storage.objects.s3 import PARTS_AT_ONCE, Objects
from toolformer_ops.storage.postgres import database, queries

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from sqlalchemy import Engine

GIB = 2**30
MOST_MEMORY_GIB = 8.0
"""Memory of one question: all columns of the candidates of a run of a million texts take more than 4."""
HISTORY_THREADS = 2
"""CPU threads of one question."""
MANIFESTS_TRIED = 5
"""Manifests in a row that may be replaced while a query fetches their files."""
EXAMPLES = (
    "02_how_many_calls_are_kept",
    "04_where_do_calls_get_lost",
    "12_what_became_of_the_candidates",
    "16_what_does_each_week_yield",
    "17_does_the_text_go_on_with_the_result",
    "18_does_the_rate_by_chance_drift",
    "19_what_is_a_tool_asked_most",
    "20_which_texts_yield_nothing",
)
"""The questions of `sql/examples` that ask of the history's tables and views alone."""
_FOLDER = SHIPPED / "sql" / "history"
QUERY_SECONDS = 300.0
"""Longest run of a query, as for the role of people in Postgres (sql/reader_limits.sql)."""
_EXAMPLE = re.compile(
    r"create function (?P<name>\w+)\((?P<arguments>[^)]*)\)\s+returns table \(.*?\)\s+language sql \w+\n"
    r"as \$\$\n(?P<body>.*)\n\$\$;",
    re.DOTALL,
)
"""A question of `sql/examples`: its arguments with their defaults, and its statement."""
_MADE = re.compile(r"^create (?:macro|view) (\w+)", re.MULTILINE)


class UnknownNameError(UsageError):
    """A query names a table or function that the history has not."""


@dataclass(frozen=True)
class Answer:
    """What a query returned."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def ask(settings: Settings, query: str, run: str = "") -> Answer:
    """Answer one query from the history.

    `run` is what the questions of `sql/examples` are about if they name none.

    Raises:
        HistoryError: the history is missing, damaged, of another version, or unlike what Postgres
        registers.
        DatabaseError: the settings name a Postgres that does not answer.
        UnknownNameError: the query names what the history has not.
        UsageError: it is not one query, is wrong, takes longer than `QUERY_SECONDS`, or needs more memory than
        `MOST_MEMORY_GIB`.
        ConfigurationError: DuckDB is not installed.
        InfrastructureError: S3 does not answer, or there is no room for the files.
    """
    duckdb = _duckdb()
    try:
        with opened(settings, tables_of(query), run) as connection:
            statements = connection.extract_statements(query)
            kinds = [statement.type for statement in statements]
            if len(kinds) != 1 or kinds[0] not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
                raise UsageError(
                    "expected one query that reads, found "
                    f"{', '.join(kind.name for kind in kinds) or 'nothing'}: the history is only read."
                )
            with _ended_after(connection, QUERY_SECONDS):
                connection.execute(statements[0])
                columns = tuple(column[0] for column in connection.description)
                return Answer(columns, connection.fetchall())
    except duckdb.InterruptException as error:
        raise UsageError(
            f"expected a query that takes at most {QUERY_SECONDS:g} s, found a longer one: ask about "
            "one run, or read fewer columns."
        ) from error
    except duckdb.OutOfMemoryException as error:
        raise UsageError(
            f"expected a query that takes at most {MOST_MEMORY_GIB:g} GiB, found one that needs more: ask "
            "about one run, or read fewer columns."
        ) from error
    except duckdb.CatalogException as error:
        raise UnknownNameError(f"the history: {_first_line(error)}") from error
    except duckdb.IOException as error:
        raise HistoryError(
            "expected the files of the history as they were fetched, found other ones: "
            f"{_first_line(error)} Ask again."
        ) from error
    except duckdb.Error as error:
        raise UsageError(f"the history: {_first_line(error)}") from error


@contextlib.contextmanager
def _ended_after(connection: "DuckDBPyConnection", seconds: float) -> Iterator[None]:
    """Within the block the connection's query is interrupted after so many seconds."""
    timer = threading.Timer(seconds, connection.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def as_text(answer: Answer) -> str:
    """The answer as a table, as psql prints it."""
    rows = [answer.columns, *(tuple(map(_shown, row)) for row in answer.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        lines.append(" | ".join(map(str.ljust, row, widths)).rstrip())
    lines.insert(1, "-+-".join("-" * width for width in widths))
    count = len(answer.rows)
    lines.append(f"({count} row{'' if count == 1 else 's'})")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "t" if value else "f"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def opened(settings: Settings, tables: Collection[str], run: str = "") -> Iterator["DuckDBPyConnection"]:
    """A connection of DuckDB with all views, over the rows of these tables; the other tables are empty.

    Raises as `ask`.
    """
    paths = _copies(settings, tables)
    connection = _duckdb().connect(
        config={
            "memory_limit": f"{MOST_MEMORY_GIB}GiB",
            "threads": HISTORY_THREADS,
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
        }
    )
    with contextlib.closing(connection):
        # 1. The tables, the views, and the questions.
        for table in TABLES:
            table_paths = [str(path) for file, path in paths.items() if file.table_name == table]
            if table_paths:
                connection.read_parquet(table_paths, union_by_name=True).create_view(table)
            else:
                connection.execute(empty_table(table))
        connection.execute("set variable run = ?", [run])
        for statement in _made_statements().values():
            connection.execute(statement)
        # 2. From here on nothing but these files can be read, and nothing be written.
        connection.execute("set allowed_paths = ?", [[str(path) for path in paths.values()]])
        connection.execute("set enable_external_access = false")
        connection.execute("set lock_configuration = true")
        yield connection


def runs_of(settings: Settings) -> list[str]:
    """The runs that the history holds, the oldest first."""
    return [row[0] for row in ask(settings, "select run_id from annotation_runs order by finished_at").rows]


def tables_of(query: str) -> set[str]:
    """The tables whose rows a query may read.

    It names them, or it names a view or question that reads them. By the words of the query: a name in a
    string counts, too.
    """
    statements = _made_statements()
    names, read_names = [*_words(query)], set()
    while names:
        name = names.pop()
        if name not in read_names and (name in statements or name in TABLES):
            read_names.add(name)
            names += _words(statements.get(name, ""))
    return read_names & {*TABLES}


def where_older_rows_are(engine: "Engine", query: str, run: str = "") -> str:
    """A sentence for a query of Postgres that asks for calls which the history alone has by now.

    They are empty if it asks for none. It is about the runs that `run` or the query names; about all such
    runs if the query names no run.
    """
    if not tables_of(query) & {*OF_STAGE.values()}:
        return ""
    rows = database.fetch_all(engine, queries.history.runs_dropped, table_of_stage=dict(OF_STAGE))
    named = [row for row in rows if row.run_id == run or row.run_id in query]
    if not named and (run or "run_id" in query):
        return ""
    runs = named or rows
    if not runs:
        return ""
    others = f" and of {len(runs) - 1} more runs" if len(runs) > 1 else ""
    return (
        f"Postgres lacks calls of run {runs[0].run_id}{others}: retention dropped them on "
        f"{runs[0].dropped_at:%Y-%m-%d}. They are in the history: `toolformer-ops sql --history`, or `make "
        "sql HISTORY=1`."
    )


def remove_from_cache(settings: Settings, files: Iterable[HistoryFile]) -> None:
    """Remove the copies on this machine that are of none of these files: what they hold may be forgotten.

    So is what killed processes had fetched by then; what living ones fetch stays.

    Raises:
        ConfigurationError: the folder cannot be written to.
    """
    names = {file.name for file in files}
    folder = _cache_folder(settings)
    try:
        remove_left(folder)
        # An earlier version fetched into files with such names.
        for path in (*folder.glob("*.parquet"), *folder.glob("*.part")):
            if path.name not in names:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise _no_folder(folder, error) from error


def empty_table(table: str) -> str:
    """The statement that makes a table of the history without rows.

    DuckDB takes ten times as long to make it from the empty table of Arrow that has the same types.
    """
    other_names = {"time": "timestamptz", "texts": "text[]", "reals": "real[][]"}
    columns = []
    for column in TABLES[table].split():
        name, kind = column.split("=")
        columns.append(f'"{name}" {other_names.get(kind, kind)}')
    return f"create table {table} ({', '.join(columns)})"


def _words(sql: str) -> list[str]:
    return re.findall(r"\w+", sql.lower())


@functools.lru_cache(maxsize=1)
def _made_statements() -> dict[str, str]:
    """What makes the functions, views and questions, by their names, in an order that works."""
    statements: dict[str, str] = {}
    for path in sorted(_FOLDER.glob("*.sql")):
        parts = re.split(r"^(?=create )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for part in parts[1:]:
            [name] = _MADE.findall(part)
            statements[name] = part
    for example in EXAMPLES:
        match = _EXAMPLE.search((SHIPPED / "sql" / "examples" / f"{example}.sql").read_text(encoding="utf-8"))
        if match is None:
            raise ValueError(f"sql/examples/{example}.sql: expected one function in SQL, found another form.")
        arguments = re.sub(r"(\w+) text default", r"\1 :=", match["arguments"])
        statements[match["name"]] = f"create macro {match['name']}({arguments}) as table\n{match['body']}"
    return statements


def _manifest(settings: Settings) -> list[HistoryFile]:
    """The files of the history: as Postgres registers them, if the settings name one."""
    objects = Objects(settings)
    if not settings.database_dsn.get_secret_value():
        return read_manifest(objects)
    return registered_manifest(objects, database.connect(settings, writes=False))


def _copies(settings: Settings, tables: Collection[str]) -> dict[HistoryFile, Path]:
    """The local copies of all files of these tables; no other file of an earlier manifest has one then.

    The manifest may be replaced while its files are fetched: one may be gone from S3, and another come into
    the cache after `forget` has removed it there. So it is read again when files were fetched.

    Raises:
        HistoryError: a file is not there, or has other bytes than the manifest names.
        InfrastructureError: there is no room for them.
    """
    folder = _cache_folder(settings)
    manifest = _manifest(settings)
    for _ in range(MANIFESTS_TRIED):
        remove_from_cache(settings, manifest)
        files = [file for file in manifest if file.table_name in tables]
        missing = [file for file in files if not _is_whole(settings, folder / file.name, file)]
        if not missing:
            return {file: folder / file.name for file in files}
        before = manifest
        try:
            _fetch(settings, folder, missing)
        except HistoryError:
            manifest = _manifest(settings)
            if manifest == before:
                raise
        else:
            manifest = _manifest(settings)
            if manifest == before:
                return {file: folder / file.name for file in files}
    remove_from_cache(settings, manifest)
    raise HistoryError(
        f"expected a history that stays while its files are fetched, found {MANIFESTS_TRIED} other manifests "
        "in a row. Ask again."
    )


def _fetch(settings: Settings, folder: Path, files: Sequence[HistoryFile]) -> None:
    """Fetch files into the folder, each whole; those of equal bytes once.

    Raises as `_copies`.
    """
    by_name = {file.name: file for file in files}
    size = sum(file.size_bytes for file in by_name.values())
    with contextlib.ExitStack() as holding:
        try:
            parts = holding.enter_context(temporary_folder(folder, "part"))
        except OSError as error:
            raise _no_folder(folder, error) from error
        if (free := shutil.disk_usage(folder).free) < size:
            raise InfrastructureError(
                f"expected {size / GIB:.3f} GiB of room in {folder} for the files that this query reads, "
                f"found {free / GIB:.3f} GiB. Set TOOLFORMER_CACHE_DIR to a larger disk."
            )
        threads = holding.enter_context(ThreadPoolExecutor(PARTS_AT_ONCE))
        download = functools.partial(_download, settings, Objects(settings), parts)
        list(threads.map(download, by_name.values()))


def _no_folder(folder: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"expected a folder for the history at {folder}, found {error}. Set TOOLFORMER_CACHE_DIR to a "
        "folder that can be written to."
    )


def _is_whole(settings: Settings, path: Path, file: HistoryFile) -> bool:
    try:
        return path.stat().st_size == file.size_bytes and verified_sha256(settings, path) == file.sha256
    except FileNotFoundError:
        return False


def _download(settings: Settings, objects: Objects, parts: Path, file: HistoryFile) -> None:
    """Fetch a file into the folder `parts`, and move it into the folder above once it is whole."""
    part, path = parts / file.name, parts.parent / file.name
    try:
        try:
            content = objects.sha256(file.file_key, part)
        except ObjectNotFoundError:
            content = "nothing"
        except CorruptObjectError:
            content = "bytes that are not those of its checksum"
        if content != file.sha256:
            uri = objects.uri(file.file_key)
            again = "Ask again; if it stays so" if content == "nothing" else "Remove it; then"
            raise HistoryError(
                f"{uri}: expected content {file.sha256}, found {content}: the history is damaged. {again} "
                f"{WRITE} writes it again from Postgres. If retention has dropped its rows there, the "
                "command says so: put an older version of the object back."
            )
        part.replace(path)
        remember(settings, path, file.sha256)
    except FileNotFoundError as error:
        raise HistoryError(
            f"expected the copy {path} as it was fetched, found none: it was removed meanwhile. Ask again."
        ) from error


def _cache_folder(settings: Settings) -> Path:
    return settings.cache_folder.expanduser() / "history"


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise ConfigurationError(
            "expected the package duckdb, which asks the history, found none. Install the extra "
            "toolformer-ops[history]."
        ) from error
    return duckdb


def _first_line(error: Exception) -> str:
    """What DuckDB says, in one line."""
    return str(error).splitlines()[0].strip() if str(error) else type(error).__name__
