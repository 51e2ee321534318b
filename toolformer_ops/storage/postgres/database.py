"""Postgres: connect, run named SQL, load by COPY.

Statements are those of `queries.py`, with bound parameters; nothing here builds SQL from values. The tables
are in `sql/schema`, which `schema.py` applies; `partitions.py` makes their partitions. Every function raises
`DatabaseError` if Postgres refuses, `DatabaseUnreachableError` if it does not answer; docstrings name what
else there is. Owns no table.
"""

import itertools
import re
import shutil
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, cast

import psycopg2
import psycopg2.errorcodes
import psycopg2.errors
from psycopg2 import sql
from psycopg2.errors import LockNotAvailable
from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class
from psycopg2.extensions import parse_dsn
from psycopg2.extras import Json
from sqlalchemy import Connection, Engine, Row, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from toolformer_ops import termination
from toolformer_ops.config import SHIPPED, Settings, state_dir
from toolformer_ops.errors import (
    ConfigurationError,
    DatabaseError,
    DatabaseLockedError,
    DatabaseUnreachableError,
    ToolformerError,
    causes,
)
from toolformer_ops.storage.postgres import queries, sessions
from toolformer_ops.storage.postgres.copy_format import copy_text
from toolformer_ops.storage.postgres.queries import Statement

SQL_DIR = SHIPPED / "sql"
APPLIED_ONCE = ("schema/", "migrations/")
"""Folders of the files that make and change the tables, as `schema_files` names them."""
DSN_SETTING = "TOOLFORMER_DATABASE_DSN"
BASELINE = "migrations/0090_means_and_choices_are_stored.sql"
"""The last migration of the development versions: their database has the tables of `sql/schema` from it on."""
BASELINE_COMMIT = "0961d962"
"""The last commit that has the migrations up to the baseline."""
_DEVELOPMENT = "migrations/0001_rooms_of_writers.sql"
"""The first migration of the development versions."""

ROWS_PER_COPY = 10_000
"""Rows formatted and sent at once: bounds memory, and larger pieces are no faster."""

TABLE_KEYS: Mapping[str, tuple[str, ...]] = {
    "documents": ("document_id",),
    "corpora": ("corpus_id",),
    "corpus_documents": ("corpus_id", "document_id", "first_version"),
    "rejected_documents": ("corpus_id", "file_uri", "line"),
    "text_sketches": ("document_id",),
    "text_bands": ("band", "document_id"),
    "recipes": ("recipe_id",),
    "run_tools": ("run_id", "tool"),
    "filter_decisions": ("document_id", "paragraph"),  # in each partition
    "chained_texts": ("release_id", "document_id"),
    "candidate_calls": ("document_id", "call_id"),  # in each partition
    "pruned_positions": ("sampling_recipe_id", "document_id", "paragraph", "position_token"),
    "lost_samples": ("sampling_recipe_id", "document_id", "sample_key"),
    "call_results": ("tool", "tool_version", "input_key"),
    "call_losses": ("document_id", "call_id"),  # in each partition
    "placebo_pool_results": ("placebo_recipe_id", "source"),
    "placebo_losses": ("document_id", "call_id", "number"),  # in each partition
    "call_information": ("document_id", "call_id", "placebo_recipe_id"),
    "stage_ledger": ("document_id", "stage"),  # in each partition
    "failed_documents": ("recipe_id", "document_id", "stage"),
    "quality_results": ("run_id", "subject", "check_name"),
    "dataset_releases": ("release_id",),
    "release_calls": ("release_id", "call_id"),
    "release_choices": ("release_id", "call_id"),
    "run_overlaps": ("run_id", "document_id", "suite", "data_set", "question"),
    "finetuned_models": ("model_id",),
    "checked_texts": ("document_id",),  # temporary tables of audit/checking.py
    "checked_calls": ("call_id",),
}
"""The tables that take loads, with their primary keys."""

_COLUMN = re.compile(r"[a-z][a-z0-9_]*")
_WRONG_LOGIN = re.compile(
    r"authentication failed|does not exist|no pg_hba\.conf entry|permission denied|not permitted"
)
_TOO_MANY = re.compile(r"too many (clients|connections)|connection slots are reserved|no more connections")
"""What Postgres says for all, for a role or a database, and of pgbouncer: a connection that is refused has no
SQLSTATE."""
_MORE_CONNECTIONS = (
    "Start fewer stages at once (slots of Airflow's pools), or raise the limit that this names: "
    "max_connections of Postgres, or the connection limit of the role or of the database"
)
_NOT_THERE_NOW = ("08", "53", "57P01", "57P02", "57P03", "57P05", "58")
"""SQLSTATE classes: connection lost, no disk, memory or connection left, shutting down or starting, an error
of the system."""
_LOCK_SECONDS = "lock_seconds"
"""Name of an engine's execution option."""
_FULL_BYTES = 2**24
"""A disk with less space than a segment of Postgres's log is full for it."""
_NOT_MIGRATED = (
    psycopg2.errors.UndefinedTable,
    psycopg2.errors.UndefinedColumn,
    psycopg2.errors.UndefinedFunction,
)


def connect(settings: Settings, *, writes: bool = True) -> Engine:
    """An engine on the factory's database, after one successful connection.

    Args:
        settings: they name the database.
        writes: False for a command that only reads; such a command also works on the tables of a newer
        version.

    Raises:
        ConfigurationError: `TOOLFORMER_DATABASE_DSN` is empty or is no Postgres address, the login is
        refused, there is no such
            database, or a newer version has migrated it.
        DatabaseUnreachableError: no server answers there, or no connection is free. No message shows the
        password.
    """
    dsn = settings.database_dsn.get_secret_value()
    engine = connect_dsn(dsn, DSN_SETTING, lock_seconds=settings.lock_seconds)
    if writes:
        require_known_tables(applied_once(engine))
    return engine


def applied_once(engine: Engine) -> set[str]:
    """Names of the files that made the database's tables, such as `schema/01_corpora.sql`.

    None before the first `migrate`.
    """
    try:
        return {
            row.name for row in fetch_all(engine, queries.schema.files) if row.name.startswith(APPLIED_ONCE)
        }
    except DatabaseError as error:
        if isinstance(getattr(error.__cause__, "orig", None), psycopg2.errors.UndefinedTable):
            return set()
        raise


def require_known_tables(applied: Collection[str], folder: Path = SQL_DIR) -> None:
    """Refuse (`ConfigurationError`) tables that this version does not know.

    What it would write may be wrong there.
    """
    if BASELINE in applied:
        return
    if applied and (_DEVELOPMENT in applied or not any(name.startswith("schema/") for name in applied)):
        raise ConfigurationError(
            f"expected tables of version 0.1.0 or of commit {BASELINE_COMMIT}, found those of an older development "
            f"version: check out {BASELINE_COMMIT}, run `toolformer-ops migrate` there, and then here. "
            "`make clean` instead deletes the embedded database with all that is in it."
        )
    unknown = [name for name in applied if not (folder / name).is_file()]
    if unknown:
        raise ConfigurationError(
            f"expected a database of this version or an older one, found {max(unknown)} of a newer version, "
            f"so nothing is written: use that version, or set {DSN_SETTING} to another database."
        )


def connect_dsn(
    dsn: str,
    setting: str,
    connections: int = 3,
    options: Mapping[str, str] | None = None,
    lock_seconds: float | None = None,
) -> Engine:
    """Connect as `connect` does, to the address in the setting of this name.

    Args:
        dsn: the address.
        setting: what names it.
        connections: that are kept open; a stage reads, writes and keeps its claims at once. Three more are
        opened when needed.
        options: settings of every session, such as {"statement_timeout": "8s"}.
        lock_seconds: longest wait of a statement for a lock; None: as Postgres has it.
    """
    # 1. The address.
    if not dsn.strip():
        raise ConfigurationError(
            f"expected Postgres's address in {setting}, found nothing. "
            f"Run `toolformer-ops up`, or set {setting}=postgresql://user:password@host:port/database."
        )
    try:
        parts = parse_dsn(re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", dsn.strip()))
        port = int(parts.pop("port")) if "port" in parts else None
    except (psycopg2.ProgrammingError, ValueError):
        raise ConfigurationError(  # without its cause, which would show the password
            f"expected postgresql://user:password@host:port/database in {setting}, found something else "
            f"({len(dsn)} characters, not shown as it may hold a password)."
        ) from None
    names = {"username": "user", "password": "password", "host": "host", "database": "dbname"}
    fields: dict[str, Any] = {ours: parts.pop(theirs, None) for ours, theirs in names.items()}
    url = URL.create("postgresql+psycopg2", port=port, query=parts, **fields)
    # 2. The engine, and one connection.
    connect_args = {"connect_timeout": 10, "application_name": sessions.session_name(), **sessions.KEEPALIVES}
    engine = create_engine(
        url, pool_size=connections, max_overflow=3, pool_pre_ping=True, connect_args=connect_args
    )
    own_settings = dict(options or {})
    if lock_seconds is not None:
        engine.update_execution_options(**{_LOCK_SECONDS: lock_seconds})
        own_settings["lock_timeout"] = f"{lock_seconds * 1000:.0f}ms"
    words, named = engine.dialect.create_connect_args(url)

    def connect_again() -> Any:
        return psycopg2.connect(*words, **{**named, **connect_args})

    def begin_session(connection: Any, _: object) -> None:
        with translating("session"):
            _open_connections[connection] = sessions.begin(connection, own_settings, connect_again)

    event.listen(engine, "connect", begin_session, insert=True)  # before SQLAlchemy asks anything
    try:
        with engine.connect():
            return engine
    except DBAPIError as error:
        engine.dispose()
        place = f"{url.username or ''}@{url.host or 'local socket'}:{url.port or 5432}/{url.database or ''}"
        reason = str(error.orig).strip().splitlines()[0].rstrip(".") if error.orig else str(error)
        # psycopg2 gives no error code if a connection is refused: the server's sentence is all there is.
        if "FATAL:" in reason and _WRONG_LOGIN.search(reason):
            raise ConfigurationError(
                f"expected to sign in to Postgres at {place} ({setting}), found: {reason}. Correct {setting}."
            ) from error
        remedy = (
            _MORE_CONNECTIONS
            if _TOO_MANY.search(reason)
            else f"{_full_disk()}Start it by `toolformer-ops up`, or set {setting} to where it is"
        )
        raise DatabaseUnreachableError(
            f"expected Postgres at {place} ({setting}), found: {reason}. {remedy}."
        ) from error


@contextmanager
def session(engine: Engine) -> Iterator[Connection]:
    """A connection for several transactions.

    Its temporary tables and session locks last until the end of the block.
    """
    try:
        with engine.connect() as connection:
            connection.detach()  # closed at the end, and not used again with what the session left
            yield connection
    except DBAPIError as error:
        raise _translated("session", error.orig or error) from error


@contextmanager
def transaction(on: Engine | Connection, *, lock_seconds: float | None = None) -> Iterator[Connection]:
    """A connection whose statements are committed together, or not at all if the block raises.

    On an engine the connection is another each time, on a `session` it is that of the session. While it waits
    for a lock, the log says who has it, and a session of ours that is silent is ended (`sessions.py`).

    Args:
        on: an engine or a session.
        lock_seconds: how long its statements wait for a lock, if not as long as those of its engine; then no
        session is ended.

    Raises:
        DatabaseLockedError: a statement has waited as long as it may; the message names who has the lock.
    """
    try:
        if isinstance(on, Connection):
            with on.begin(), _watched(on, lock_seconds):
                yield on
            return
        with on.begin() as connection, _watched(connection, lock_seconds):
            yield connection
    except DBAPIError as error:
        raise _translated("transaction", error.orig or error) from error


@contextmanager
def _watched(connection: Connection, lock_seconds: float | None) -> Iterator[None]:
    """Within the block it is seen who keeps the connection waiting.

    An error of a wait that was too long names them.
    """
    seconds = lock_seconds or connection.get_execution_options().get(_LOCK_SECONDS)
    if seconds is None:
        yield
        return
    if lock_seconds is not None:
        limit = f"{lock_seconds * 1000:.0f}ms"
        fetch_all(connection, queries.locks.lock_time_limit, limit=limit)
    process = _open_connections[connection.connection.dbapi_connection]
    ends_silent = lock_seconds is None
    with sessions.LockWatch(connection.engine, process, seconds, ends_silent=ends_silent) as watch:
        try:
            yield
        except DatabaseError as error:
            if not isinstance(error, DatabaseLockedError) and not isinstance(
                error.__cause__, LockNotAvailable
            ):
                raise
            who = "; ".join(map(str, watch.holders)) or "a session that has ended by now"
            raise DatabaseLockedError(
                f"{error} The lock belongs to {who}. Wait for its end, or end its process, which its name "
                "says with its machine; then try again: what is committed stays."
            ) from error.__cause__


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Within the block, any error that an error of psycopg2 led to becomes this project's.

    Others are raised as they are.
    """
    try:
        yield
    except ToolformerError:
        raise
    except Exception as error:
        for cause in causes(error):
            if isinstance(cause, (DBAPIError, psycopg2.Error)):
                raise _translated(what, getattr(cause, "orig", None) or cause) from error
        raise


def fetch_all(on: Engine | Connection, statement: Statement, /, **parameters: object) -> list[Row[Any]]:
    """The rows that the statement returns with these parameters; columns are attributes.

    Mappings are bound as JSON, lists and tuples as arrays. On an engine it is a transaction of this one
    statement.
    """
    if isinstance(on, Engine):
        with transaction(on) as connection:
            return fetch_all(connection, statement, **parameters)
    with translating(statement.name):
        return list(on.execute(statement.clause, _bound(parameters)).all())


def fetch_one(on: Engine | Connection, statement: Statement, /, **parameters: object) -> Row[Any]:
    """The one row that the statement returns, as `fetch_all`.

    Raises:
        DatabaseError: it returns none, or several.
    """
    rows = fetch_all(on, statement, **parameters)
    if len(rows) != 1:
        raise DatabaseError(
            f"{statement.name}: expected one row, found {len(rows)}. Was a table changed by hand? "
            "`toolformer-ops audit` looks."
        )
    return rows[0]


def execute(on: Engine | Connection, statement: Statement, /, **parameters: object) -> int:
    """Run the statement with these parameters, as `fetch_all`, and return the number of rows it wrote."""
    if isinstance(on, Engine):
        with transaction(on) as connection:
            return execute(connection, statement, **parameters)
    with translating(statement.name):
        return int(on.execute(statement.clause, _bound(parameters)).rowcount)


def copy_insert(
    connection: Connection, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> int:
    """Load rows by COPY; those whose key exists already stay as they are.

    Returns the number of rows inserted.

    The rows go into a temporary table and from there by INSERT ... ON CONFLICT DO NOTHING, in the order of
    the table's key, so that two transactions that write equal keys wait for each other and do not deadlock.
    No rows: nothing is sent.
    """
    key = TABLE_KEYS.get(table)
    if key is None or not all(_COLUMN.fullmatch(column) for column in columns):
        raise DatabaseError(
            f"expected a table of {', '.join(TABLE_KEYS)} and its columns, found {table} {list(columns)}."
        )
    remaining = iter(rows)
    piece = list(itertools.islice(remaining, ROWS_PER_COPY))
    if not piece:
        return 0
    names = {
        "table": sql.Identifier(table),
        "stage": sql.Identifier(f"load_{table}"),
        "columns": sql.SQL(", ").join(map(sql.Identifier, columns)),
        "key": sql.SQL(", ").join(sql.Identifier(column) for column in key if column in columns),
    }
    create = "create temporary table {stage} on commit drop as select {columns} from {table} with no data"
    insert = (
        "insert into {table} ({columns}) select {columns} from {stage} order by {key} on conflict do nothing"
    )
    what = f"load of {table}"
    execute_composed(connection, what, sql.SQL(create).format(**names))
    while piece:
        copy_rows(connection, f"load_{table}", columns, copy_text(piece))
        piece = list(itertools.islice(remaining, ROWS_PER_COPY))
    inserted = execute_composed(connection, what, sql.SQL(insert).format(**names))
    execute_composed(connection, what, sql.SQL("drop table {stage}").format(**names))
    return inserted


def copy_rows(connection: Connection, table: str, columns: Sequence[str], rows: str) -> None:
    """Load rows in COPY's text format (`copy_format.copy_text`) into a temporary table without a key."""
    names = {"table": sql.Identifier(table), "columns": sql.SQL(", ").join(map(sql.Identifier, columns))}
    with raw_cursor(connection) as cursor, translating(f"load of {table.removeprefix('load_')}"):
        cursor.copy_expert(sql.SQL("copy {table} ({columns}) from stdin").format(**names), StringIO(rows))


def execute_composed(connection: Connection, what: str, statement: sql.Composable) -> int:
    """Run a statement with names of tables in it; returns the number of rows it wrote.

    `what` is for messages.
    """
    with raw_cursor(connection) as cursor, translating(what):
        cursor.execute(statement)
        return int(cursor.rowcount)


@dataclass(frozen=True)
class TableRow:
    """A row to be written."""

    table: str
    values: Mapping[str, Any]
    """By column."""

    @classmethod
    def of(cls, table: str, record: object | None = None, /, **columns: object) -> "TableRow":
        """The row of a record whose fields are columns.

        `columns` are its keys, and values instead of fields.
        """
        return cls(table, {**({} if record is None else vars(record)), **columns})


def insert_rows(connection: Connection, rows: Iterable[TableRow]) -> int:
    """`copy_insert` of rows of any tables, table by table in the order of their first row.

    Returns the number of rows inserted.
    """
    by_columns: dict[tuple[str, ...], list[TableRow]] = {}
    for row in rows:
        by_columns.setdefault((row.table, *row.values), []).append(row)
    inserted = 0
    for (table, *columns), alike in by_columns.items():
        inserted += copy_insert(connection, table, columns, (list(row.values.values()) for row in alike))
    return inserted


def raw_cursor(connection: Connection) -> Cursor:
    """A psycopg2 cursor in the connection's own transaction.

    It does what SQLAlchemy cannot do: COPY and whole scripts.
    """
    return cast(Cursor, connection.connection.cursor())


def _bound(parameters: Mapping[str, object]) -> dict[str, object]:
    """Mappings as JSON, tuples as lists."""
    bound = dict(parameters)
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            bound[name] = Json(value)
        elif isinstance(value, tuple):
            bound[name] = list(value)
    return bound


def _cancel_queries() -> None:
    """Cancel what this process's connections are at: the main thread leaves a query of minutes no earlier."""
    for connection in [*_open_connections]:
        if not connection.closed:
            connection.cancel()


_open_connections: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
"""The connections of this process, each with the number of its process in Postgres."""
termination.on_delay(_cancel_queries)


def _translated(what: str, error: BaseException) -> DatabaseError:
    message = " ".join(str(error).split())[:1000].rstrip(".")
    if isinstance(error, _NOT_MIGRATED):
        message += ". The database is not at this code's tables and views: `toolformer-ops migrate`, or `up`, brings it there"
    code = getattr(error, "pgcode", None)
    if code == psycopg2.errorcodes.LOCK_NOT_AVAILABLE:
        return DatabaseLockedError(
            f"{what}: expected a lock in time, found it taken for too long: {message}."
        )
    # Without a code the server did not answer: the connection is gone.
    lost = isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError)) and code is None
    if not lost and not (code or "").startswith(_NOT_THERE_NOW):
        return DatabaseError(f"{what}: Postgres refused: {message}.")
    if code == psycopg2.errorcodes.DISK_FULL:
        remedy = "Free space on the disk of Postgres"
    elif code == psycopg2.errorcodes.TOO_MANY_CONNECTIONS:
        remedy = _MORE_CONNECTIONS
    else:
        remedy = f"{_full_disk()}Its log says why it ended, if it did (`toolformer-ops logs postgres`; a full disk ends it, too)"
    return DatabaseUnreachableError(
        f"{what}: Postgres cannot serve now: {message}. {remedy}. Then try again: what is committed stays."
    )


def _full_disk() -> str:
    """A sentence if the state folder is on a disk without space.

    `toolformer-ops up` keeps its Postgres there.
    """
    folder = next(path for path in (state_dir(), *state_dir().parents) if path.exists())
    return (
        f"The disk of {folder} is full: free space there. "
        if shutil.disk_usage(folder).free < _FULL_BYTES
        else ""
    )
