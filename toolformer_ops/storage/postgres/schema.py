"""Bring a database to this code's tables and views (owns the table `schema_files`).

The tables are those of `sql/schema`, a file a topic; numbered files of `sql/migrations` change them. Each
file of both is applied once, in order, and never changes afterwards. The functions of `sql/functions`, the
views of `sql/views` and the functions of `sql/examples` are made anew whenever one of their files changes,
and what people built on them is made again (`dependent_views.py`); `sql/reader_role.sql`,
`sql/analysts_role.sql` and `sql/reviewer_role.sql` run each time. All in one transaction, under a lock. Who
asks for a table waits behind a migration that waits for it. So a migration waits a few seconds, rolls back,
and tries again.
"""

import hashlib
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import psycopg2
import psycopg2.errors
from psycopg2 import sql
from sqlalchemy import Connection, Engine

from toolformer_ops.errors import DatabaseError, DatabaseLockedError
from toolformer_ops.storage.postgres import database, dependent_views, queries

logger = logging.getLogger(__name__)

MADE_ANEW = ("functions/", "views/", "examples/")
"""Folders of the files that are made anew if one of them changes, in this order."""
STATEMENT_SECONDS = 600.0
"""Longest statement of a migration, which keeps others from the table that it changes."""
LOCK_TRIES = 6
"""Tries of a migration that finds a table locked, with a pause as long as its wait between them."""


def migrate(
    engine: Engine,
    folder: Path = database.SQL_DIR,
    *,
    lock_seconds: float = 5.0,
    statement_seconds: float = STATEMENT_SECONDS,
) -> list[str]:
    """Apply what is missing and return the names of the files applied, such as `schema/01_corpora.sql`.

    Waits at most `lock_seconds` for a lock, several times; a statement may take `statement_seconds` (0: any
    time).

    Raises:
        ConfigurationError: another version has made or migrated the database.
        BlockedMigrationError: people built something on our views that cannot be made again.
        DatabaseError: a file was changed after it was applied, other sessions keep a table locked, a
        statement takes too
            long, or Postgres refuses.
    """
    tries = 0
    while True:
        tries += 1
        try:
            return _migrate(engine, folder, lock_seconds, statement_seconds)
        except DatabaseError as error:
            if isinstance(error.__cause__, psycopg2.errors.QueryCanceled):
                raise DatabaseError(
                    f"{error} Nothing was changed. A statement may take {statement_seconds:g} s; "
                    "`toolformer-ops migrate --statement-seconds` allows more, and with 0 any time."
                ) from error
            if not isinstance(error, DatabaseLockedError):
                raise
            if tries == LOCK_TRIES:
                raise DatabaseLockedError(
                    f"{error} Nothing was changed. `select pg_terminate_backend(PROCESS)` ends a session."
                ) from error
            logger.warning("%s Trying again in %g s", error, lock_seconds)
            time.sleep(lock_seconds)


def not_applied(engine: Engine) -> list[str]:
    """Names of the files of tables that the database lacks; `migrate` applies them."""
    applied = database.applied_once(engine)
    return [name for name in _files(database.SQL_DIR, *database.APPLIED_ONCE) if name not in applied]


def _migrate(engine: Engine, folder: Path, lock_seconds: float, statement_seconds: float) -> list[str]:
    with database.transaction(engine, lock_seconds=lock_seconds) as connection:
        # Waits for another migration as long as that takes.
        database.execute(connection, queries.locks.name, name="schema")
        database.fetch_all(
            connection,
            queries.locks.statement_time_limit,
            milliseconds=f"{statement_seconds * 1000:.0f}ms",
        )
        database.execute(connection, queries.schema.create_files)
        # 1. The files that the database has, and those that it gets.
        hashes = {row.name: row.sha256 for row in database.fetch_all(connection, queries.schema.files)}
        if database.BASELINE in hashes:
            hashes = _take_as_baseline(connection, hashes, folder)
        database.require_known_tables(
            [name for name in hashes if name.startswith(database.APPLIED_ONCE)], folder
        )
        table_files = _files(folder, *database.APPLIED_ONCE)
        old_hashes = {name: sha256 for name, sha256 in hashes.items() if name.startswith(MADE_ANEW)}
        new_files = _files(folder, *MADE_ANEW)
        is_missing_table = not table_files.keys() <= hashes.keys()
        is_other = old_hashes != {name: _sha256(path) for name, path in new_files.items()}
        # 2. What people built on ours is set aside.
        dependents: list[dependent_views.DependentView] = []
        if is_missing_table or is_other:
            dependents = _set_aside(connection, {*old_hashes, *new_files}, with_tables=is_missing_table)
        # 3. Tables and migrations: each file once.
        applied = _apply_once(connection, table_files, hashes)
        # 4. Functions, views and examples: all anew if one has changed.
        if is_other:
            applied += _make_anew(connection, old_hashes, new_files)
        # 5. The rights of the roles that read, on all that there is now, of analysts and of the reviewer.
        _run_script(connection, folder / "reader_role.sql")
        _run_script(connection, folder / "analysts_role.sql")
        _run_script(connection, folder / "reviewer_role.sql")
        # 6. What people built on ours is made again.
        dependent_views.make_again(connection, dependents)
        notices = list(database.raw_cursor(connection).connection.notices)
    for notice in notices:
        if notice.startswith("WARNING"):
            logger.warning("database: %s", notice.removeprefix("WARNING:").strip())
    logger.info(
        "database: %d schema files applied, %s",
        len(applied),
        f"the last {applied[-1]}" if applied else "nothing new",
    )
    return applied


def _take_as_baseline(connection: Connection, hashes: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Record a database of the last development version as one that `sql/schema` made: the tables are the same.

    Returns the files that the database has then, with their hashes.
    """
    made_once = {name: _sha256(path) for name, path in _files(folder, "schema/").items()}
    database.execute(connection, queries.schema.forget_tables)
    for name, sha256 in made_once.items():
        database.execute(connection, queries.schema.insert_file, name=name, sha256=sha256)
    others = {name: sha256 for name, sha256 in hashes.items() if not name.startswith(database.APPLIED_ONCE)}
    return others | made_once


def _set_aside(
    connection: Connection, names: Collection[str], *, with_tables: bool
) -> list[dependent_views.DependentView]:
    """Drop what people built on the views and functions of these files; returns how it is made again."""
    dependents = dependent_views.dependent_views(
        connection,
        views=sorted(made_name(name) for name in names if name.startswith("views/")),
        functions=sorted(_question(name) for name in names if name.startswith(("views/", "examples/"))),
        with_tables=with_tables,
    )
    dependent_views.drop(connection, dependents)
    return dependents


def _apply_once(connection: Connection, files: Mapping[str, Path], hashes: Mapping[str, str]) -> list[str]:
    """Apply the files of tables that the database lacks; returns their names.

    `hashes` are those of the files that were applied.

    Raises:
        DatabaseError: a file that was applied has another content now.
    """
    applied = []
    for name, path in files.items():
        if name not in hashes:
            _apply(connection, name, path)
            applied.append(name)
        elif hashes[name] != _sha256(path):
            raise DatabaseError(
                f"{name}: expected the content that was applied ({hashes[name][:12]}), found "
                f"{_sha256(path)[:12]}. Put the old content back and write the change as a new numbered "
                "file of sql/migrations."
            )
    return applied


def _make_anew(connection: Connection, old_names: Collection[str], files: Mapping[str, Path]) -> list[str]:
    """Make all functions, views and examples anew; returns the names of their files.

    Examples and views are dropped in the reverse of the order in which they use each other, and with them what
    is of people and was not set aside. Another function is replaced, so a function that takes or returns
    something else needs a migration that drops it.
    """
    for name in sorted((name for name in old_names if name.startswith("examples/")), reverse=True):
        _drop(connection, name, "function", _question(name))
    for name in sorted((name for name in old_names if name.startswith("views/")), reverse=True):
        _drop(connection, name, "view", made_name(name))
        _drop(connection, name, "function", _question(name))
    database.execute(connection, queries.schema.drop_functions_and_views)
    for name, path in files.items():
        _apply(connection, name, path)
    return list(files)


def made_name(name: str) -> str:
    """The view or function that a file makes: `views/04_scored_calls.sql` makes `scored_calls`."""
    return Path(name).stem.split("_", 1)[1]


def _question(name: str) -> str:
    """The function that a file makes, if it makes one.

    It is that of an example, or a view's about one run, such as `scored_calls_of`.
    """
    return made_name(name) if name.startswith("examples/") else f"{made_name(name)}_of"


def _drop(connection: Connection, name: str, kind: Literal["view", "function"], dropped: str) -> None:
    """Drop what the file `name` made, and what is of people on it."""
    statement = sql.SQL("drop {} if exists {} cascade").format(sql.SQL(kind), sql.Identifier(dropped))
    with database.raw_cursor(connection) as cursor:
        try:
            cursor.execute(statement)
        except psycopg2.Error as error:
            message = " ".join(str(error).split())
            raise DatabaseError(f"{name}: the old {kind} cannot be replaced: {message}.") from error


def _files(folder: Path, *kinds: str) -> dict[str, Path]:
    """The SQL files of these kinds, such as `views/`, by their names in `schema_files`, in order."""
    files: dict[str, Path] = {}
    for kind in kinds:
        files |= {f"{kind}{path.name}": path for path in sorted((folder / kind).glob("*.sql"))}
    return files


def _apply(connection: Connection, name: str, path: Path) -> None:
    _run_script(connection, path)
    database.execute(connection, queries.schema.insert_file, name=name, sha256=_sha256(path))


def _run_script(connection: Connection, path: Path) -> None:
    with database.raw_cursor(connection) as cursor, database.translating(path.name):
        cursor.execute(path.read_text(encoding="utf-8"))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
