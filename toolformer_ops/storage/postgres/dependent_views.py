"""Views of other people on ours: set aside by a migration, and made again after it.

Owns the table `lost_views`. Postgres drops no view that another view reads, and a migration drops all of
ours. So what reads them is dropped first and made again at the end, with its owner, grants and comments:
views, materialized views (empty, until they are refreshed), and functions whose body Postgres knows. What
cannot be made again, since what it read is gone, is kept as text in `lost_views` with what Postgres said.
What cannot be made again from its definition, such as a column of a table, is never dropped: it is named, and
nothing is migrated.

People build in the schema `analysts` (`sql/analysts_role.sql`); views elsewhere are treated alike.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg2
import psycopg2.errors
from psycopg2 import sql
from sqlalchemy import Connection, Engine

from toolformer_ops.errors import BlockedMigrationError, DatabaseError
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)

ANALYST = "toolformer_analyst"
"""Who owns a view whose own owner the migrating role cannot name: analysts are members of this role."""
TRY_AGAIN = (psycopg2.errors.LockNotAvailable, psycopg2.errors.QueryCanceled)
"""What ends a migration as a whole: it may succeed later."""


@dataclass(frozen=True)
class DependentView:
    """A view or function of people that reads ours."""

    object_id: int
    """Its number in Postgres, while it exists."""
    name: str
    """With its schema; of a function with its arguments."""
    kind: str
    """`view`, `materialized view`, `function` or `procedure`."""
    owner: str
    statements: Sequence[str]
    """What makes it again, with its indexes, comments and grants."""


def dependent_views(
    connection: Connection, *, views: Sequence[str], functions: Sequence[str], with_tables: bool
) -> list[DependentView]:
    """What depends on these views and functions of ours, each before those that depend on it.

    `with_tables`: also what depends on our tables and on any function of ours.

    Raises:
        BlockedMigrationError: something depends on our views that cannot be made again.
    """
    names = {"views": list(views), "functions": list(functions)}
    rows = database.fetch_all(connection, queries.schema.dependent_views, **names, with_tables=False)
    if others := [row.description for row in rows if row.kind is None]:
        raise BlockedMigrationError(
            "expected nothing but views and functions on the views of this version, found "
            f"{', '.join(others[:5])}, which cannot be made again. Nothing was changed. Drop it, migrate, "
            "and make it again; docs/database.md says where people may build."
        )
    if with_tables:
        rows = database.fetch_all(connection, queries.schema.dependent_views, **names, with_tables=True)
    return [
        DependentView(row.object_id, row.name, row.kind, row.owner, row.statements)
        for row in rows
        if row.kind is not None
    ]


def drop(connection: Connection, dependents: Sequence[DependentView]) -> None:
    """Drop what depends on our views, as far as this role may; the others go with what they depend on."""
    for dependent in reversed(dependents):
        statement = sql.SQL("drop {} {}").format(sql.SQL(dependent.kind), sql.SQL(dependent.name))
        try:
            _execute(connection, [statement])
        except psycopg2.errors.InsufficientPrivilege:
            logger.info(
                "%s %s is of %s, and goes with our views", dependent.kind, dependent.name, dependent.owner
            )


def make_again(connection: Connection, dependents: Sequence[DependentView]) -> None:
    """Make again what was dropped, and keep in `lost_views` what cannot be."""
    for dependent in dependents:
        if database.fetch_all(connection, queries.schema.has_relation, object_id=dependent.object_id):
            continue
        try:
            with connection.begin_nested():
                _execute(connection, [sql.SQL(statement) for statement in dependent.statements])
                _give_back(connection, dependent)
        except psycopg2.Error as error:
            problem = " ".join(str(error).split())
            database.execute(
                connection, queries.schema.insert_lost_view, name=dependent.name, owner=dependent.owner,
                statements=";\n".join(dependent.statements) + ";\n", problem=problem,
            )  # fmt: skip
            logger.warning(
                "%s %s of %s cannot be made again: %s. lost_views has its statements: correct and run them.",
                dependent.kind, dependent.name, dependent.owner, problem,
            )  # fmt: skip
        else:
            empty = ", and is empty until it is refreshed" if dependent.kind == "materialized view" else ""
            logger.info("%s %s of %s is made again%s", dependent.kind, dependent.name, dependent.owner, empty)


def lost_views(engine: Engine) -> list[str]:
    """Names of what is in the table `lost_views` and was not made again since."""
    return [row.name for row in database.fetch_all(engine, queries.schema.lost_views)]


def _give_back(connection: Connection, dependent: DependentView) -> None:
    """Make its owner that of before, or the role of analysts if this role may not name another."""
    own = database.fetch_all(connection, queries.schema.is_own_role, role=dependent.owner)
    if own:
        return
    for owner in (dependent.owner, ANALYST):
        kind, name = sql.SQL(dependent.kind), sql.SQL(dependent.name)
        statement = sql.SQL("alter {} {} owner to {}").format(kind, name, sql.Identifier(owner))
        try:
            _execute(connection, [statement])
        except psycopg2.errors.InsufficientPrivilege:
            if owner == ANALYST:
                raise
        else:
            return


def _execute(connection: Connection, statements: Sequence[sql.Composable]) -> None:
    """Execute statements, all or none; raises what psycopg2 raises, but for what ends a migration."""
    with connection.begin_nested(), database.raw_cursor(connection) as cursor:
        for statement in statements:
            try:
                cursor.execute(statement)
            except TRY_AGAIN as error:
                raise DatabaseError(f"views of people: {' '.join(str(error).split())}.") from error
