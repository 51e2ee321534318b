"""Partitions: each recipe's rows of a stage are a table by themselves, which retention drops whole.

A partition is named by its table and the recipe's id, and is in the schema `partitions`, so that who lists
the tables does not see it. Makes, locks and drops partitions, and makes the statistics of what the stages
write. Owns no table.
"""

import itertools
import re
from collections.abc import Mapping, Sequence

from psycopg2 import sql
from psycopg2.errors import LockNotAvailable
from sqlalchemy import Connection, Engine

from toolformer_ops.errors import DatabaseError
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import (
    TABLE_KEYS,
    execute,
    execute_composed,
    fetch_all,
    raw_cursor,
    transaction,
)

TABLES_OF_STAGE: Mapping[str, tuple[str, ...]] = {
    "filter": ("filter_decisions", "stage_ledger"),
    "sample": ("candidate_calls", "pruned_positions", "stage_ledger"),
    "execute": ("stage_ledger",),
    "score": ("call_losses", "stage_ledger"),
    "placebo": ("placebo_losses", "call_information", "stage_ledger"),
}
"""The tables that have a partition for each recipe of a stage."""
PARTITIONED_TABLES = tuple(dict.fromkeys(itertools.chain.from_iterable(TABLES_OF_STAGE.values())))
GROWING_TABLES = (*PARTITIONED_TABLES, "call_results")
"""What the stages write into."""

SCHEMA = "partitions"
"""The schema of the partitions, as migration 0089 and the function `partition_of` name it."""
_ATTACH = "alter table {table} attach partition {partition} for values in ({recipe_id})"
_RECIPE_ID = re.compile(r"[0-9a-f]{16}")


def ensure_partitions(connection: Connection, stage: str, recipe_id: str) -> None:
    """Make the partitions in which a stage writes its rows and its ledger rows under a recipe.

    Partitions that exist stay, and those that were detached are attached again. If retention has dropped the
    rows and kept the ledger, the ledger goes now, with the marks that the work is finished: it would say that
    documents are done whose rows are gone.
    """
    rows, *others = TABLES_OF_STAGE[stage]
    for table in TABLES_OF_STAGE[stage]:
        attach_detached(connection, table, recipe_id)
    if others and not has_partition(connection, rows, recipe_id):
        execute(connection, queries.retention.delete_work, recipe_id=recipe_id)
        for table in others:
            drop_partition(connection, table, recipe_id)
    for table in TABLES_OF_STAGE[stage]:
        ensure_partition(connection, table, recipe_id)


def has_partition(connection: Connection, table: str, recipe_id: str) -> bool:
    """Whether a recipe has its partition of a table.

    No other transaction makes or drops it until the end of this one.
    """
    lock_partition(connection, table, recipe_id)
    tables = fetch_all(connection, queries.schema.partition, table=table, recipe_id=recipe_id)
    return bool(tables) and bool(tables[0].is_attached)


def ensure_partition(connection: Connection, table: str, recipe_id: str) -> None:
    """Make the partition of one of `PARTITIONED_TABLES` for a recipe unless it exists.

    Several processes may try at once. Made as a separate table and then attached, which unlike CREATE TABLE
    ... PARTITION OF blocks no stage that reads or writes the other partitions.
    """
    if has_partition(connection, table, recipe_id):
        return
    # Its rows are never updated: frozen when they are vacuumed first, they are not read again to be frozen.
    statements = [
        "create table {partition} (like {table} including all) with (autovacuum_freeze_min_age = 0)"
    ]
    if not any(column.endswith("_recipe_id") for column in TABLE_KEYS[table]):  # else it is the parent's key
        statements.append("create unique index on {partition} ({key})")
    if "call_id" in TABLE_KEYS[table]:
        # LIKE does not copy it. Without, a join by document and call is expected to find a row or two.
        statements.append("alter table {partition} alter column call_id set (n_distinct = 4)")
    statements.append(_ATTACH)
    _execute(connection, statements, table, recipe_id)


def attach_detached(connection: Connection, table: str, recipe_id: str) -> None:
    """Attach the partition of a recipe again if it was detached.

    What was forgotten meanwhile goes: the rows of documents that are there no more.
    """
    lock_partition(connection, table, recipe_id)
    tables = fetch_all(connection, queries.schema.partition, table=table, recipe_id=recipe_id)
    if tables and not tables[0].is_attached:
        forgets = (
            "delete from {partition} where not exists "
            "(select from documents where documents.document_id = {partition}.document_id)"
        )
        _execute(connection, [forgets, _ATTACH], table, recipe_id)


def _execute(connection: Connection, statements: Sequence[str], table: str, recipe_id: str) -> None:
    """Execute statements with the names of a table, its partition, its key and the recipe."""
    partition = f"{table}_{recipe_id}"
    names = {
        "table": sql.Identifier(table),
        "partition": sql.Identifier(SCHEMA, partition),
        "key": sql.SQL(", ").join(map(sql.Identifier, TABLE_KEYS[table])),
        "recipe_id": sql.Literal(recipe_id),
    }
    for statement in statements:
        execute_composed(connection, f"partition {partition}", sql.SQL(statement).format(**names))


def lock_partition(connection: Connection, table: str, recipe_id: str) -> None:
    """Wait until no other transaction makes or drops this partition, which need not be there."""
    if table not in PARTITIONED_TABLES or not _RECIPE_ID.fullmatch(recipe_id):
        raise DatabaseError(
            f"expected one of {', '.join(PARTITIONED_TABLES)} and a recipe id of 16 hex digits, found "
            f"{table}, {recipe_id!r}."
        )
    execute(connection, queries.locks.name, name=f"partition {table}_{recipe_id}")


def drop_partition(connection: Connection, table: str, recipe_id: str) -> None:
    """Drop the partition of a recipe with all of its rows; no partition is no error."""
    lock_partition(connection, table, recipe_id)
    _execute(connection, ["drop table if exists {partition}"], table, recipe_id)


def analyze_grown(engine: Engine) -> list[str]:
    """Make statistics of the stages' tables, partitions and partitioned parents that have grown by a tenth.

    Returns their names. Without them Postgres takes a table that was just filled for an empty one, and joins
    row by row. A table that another process holds is passed over: this never waits for more than a second.
    """
    analysed: list[str] = []
    for row in fetch_all(engine, queries.schema.grown_tables, tables=list(GROWING_TABLES)):
        try:
            with transaction(engine) as connection, raw_cursor(connection) as cursor:
                # Before Postgres 18 a partitioned parent is analysed with its partitions.
                only = "only " if row.is_parent and cursor.connection.server_version >= 180_000 else ""
                name = sql.Identifier(row.schema, row.relation)
                cursor.execute("set local lock_timeout = '1s'")
                cursor.execute(sql.SQL("analyze " + only + "{}").format(name))
        except LockNotAvailable:
            continue
        analysed.append(row.relation)
    return analysed
