"""Bring a database to this code's tables and views (owns the table `schema_files`).

Numbered files of `sql/migrations` are applied once, in order, and never change afterwards; the views of `sql/views` are made anew
whenever one of their files changes; `sql/reader_role.sql` runs each time. All in one transaction, under a lock.
"""

import hashlib
import logging
from pathlib import Path

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection, Engine

from toolformer_ops.errors import DatabaseError
from toolformer_ops.storage import database

logger = logging.getLogger(__name__)


def migrate(engine: Engine, folder: Path = database.SQL_DIR) -> list[str]:
    """Apply what is missing and return the names of the files applied, such as `migrations/0001_corpora.sql`.

    Raises:
        DatabaseError: a migration was changed after it was applied, the database is ahead of this code, or Postgres refuses.
    """
    applied: list[str] = []
    with database.transaction(engine) as connection:
        database.execute(connection, "lock_name", name="schema")
        database.execute(connection, "create_schema_files")
        known = {row.name: row.sha256 for row in database.fetch_all(connection, "schema_files")}
        # 1. Migrations: each once.
        migrations = _files(folder, "migrations")
        ahead = [name for name in known if name.startswith("migrations/") and name not in migrations]
        if ahead:
            raise DatabaseError(
                f"expected a database that this code made, found {', '.join(ahead)} of a newer one. Use the newer code."
            )
        for name, path in migrations.items():
            if name not in known:
                _apply(connection, name, path)
                applied.append(name)
            elif known[name] != _sha256(path):
                raise DatabaseError(
                    f"{name}: expected the content that was applied ({known[name][:12]}), found {_sha256(path)[:12]}. "
                    f"Put the old content back and write the change as a new numbered migration."
                )
        # 2. Views: all anew where one has changed, dropped in the reverse of the order in which they use each other.
        views = _files(folder, "views")
        old = {name: sha256 for name, sha256 in known.items() if name.startswith("views/")}
        if old != {name: _sha256(path) for name, path in views.items()}:
            with database.raw_cursor(connection) as cursor:
                for name in sorted(old, reverse=True):
                    try:
                        cursor.execute(sql.SQL("drop view if exists {}").format(sql.Identifier(view_name(Path(name)))))
                    except psycopg2.Error as error:
                        raise DatabaseError(f"{name}: the old view cannot be replaced: {error}") from error
            database.execute(connection, "forget_views")
            for name, path in views.items():
                _apply(connection, name, path)
                applied.append(name)
        # 3. The read-only role's rights, on all that there is now.
        _run_script(connection, folder / "reader_role.sql")
        notices = list(database.raw_cursor(connection).connection.notices)
    for notice in notices:
        if notice.startswith("WARNING"):
            logger.warning("database: %s", notice.removeprefix("WARNING:").strip())
    logger.info("database: %d schema files applied (%s)", len(applied), ", ".join(applied) or "nothing new")
    return applied


def view_name(path: Path) -> str:
    """The view that a file makes: `02_scored_calls.sql` makes `scored_calls`."""
    return path.stem.split("_", 1)[1]


def _files(folder: Path, kind: str) -> dict[str, Path]:
    """The SQL files of one kind by their names in `schema_files`, in order."""
    return {f"{kind}/{path.name}": path for path in sorted((folder / kind).glob("*.sql"))}


def _apply(connection: Connection, name: str, path: Path) -> None:
    _run_script(connection, path)
    database.execute(connection, "insert_schema_file", name=name, sha256=_sha256(path))


def _run_script(connection: Connection, path: Path) -> None:
    with database.raw_cursor(connection) as cursor:
        try:
            cursor.execute(path.read_text(encoding="utf-8"))
        except psycopg2.Error as error:
            raise DatabaseError(f"{path.name}: Postgres refused: {error}") from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
