"""Partitions are in a schema of their own: who sees them, and how those of an older database get there."""

import pytest
from sqlalchemy import text

from tests.run_sql import run_sql
from toolformer_ops.storage.history import history_queries
from toolformer_ops.storage.postgres import database, partitions, schema

RECIPE = "0123456789abcdef"
TABLES = sorted({*partitions.PARTITIONED_TABLES} - {"call_information"})
"""Those that were there when the schema was made."""
PARTITIONS = [f"{table}_{RECIPE}" for table in TABLES]
ROW = (
    "insert into stage_ledger (recipe_id, document_id, stage, rows_written, batch_id) "
    f"values ('{RECIPE}', gen_random_uuid(), 'sample', 1, 1)"
)
WHERE_PARTITIONS_ARE = (
    "select relnamespace::regnamespace::text as schema, relname from pg_class "
    f"where relkind = 'r' and relname like '%{RECIPE}' order by relname"
)


@pytest.fixture
def filled(engine):
    """A database with a partition of each table, and a row in that of the ledger."""
    with database.transaction(engine) as connection:
        for table in TABLES:
            partitions.ensure_partition(connection, table, RECIPE)
        connection.execute(text(ROW))
    return engine


@pytest.fixture
def old(filled):
    """The same database as it was before the partitions had a schema; one is detached."""
    for partition in PARTITIONS:
        run_sql(filled, f"alter table partitions.{partition} set schema public")
    run_sql(filled, "drop schema partitions")
    run_sql(filled, f"alter table candidate_calls detach partition candidate_calls_{RECIPE}")
    run_sql(filled, "create table call_losses_of_mine (n int)")
    run_sql(filled, "delete from schema_files where name = 'migrations/0089_partitions_have_a_schema.sql'")
    return filled


def test_the_list_of_tables_shows_a_reader_no_partition(filled, reader_dsn):
    reader = database.connect_dsn(reader_dsn, "TOOLFORMER_READER_DSN")
    # As \d of psql asks.
    listed = run_sql(
        reader, "select relname from pg_class where relkind in ('r', 'p') and pg_table_is_visible(oid)"
    )
    names = [row.relname for row in listed]
    assert "stage_ledger" in names
    assert [name for name in names if name.endswith(RECIPE)] == []


def test_a_reader_reads_the_rows_of_partitions_through_their_tables(filled, reader_dsn):
    reader = database.connect_dsn(reader_dsn, "TOOLFORMER_READER_DSN")
    assert run_sql(reader, "select recipe_id from stage_ledger") == [(RECIPE,)]


def test_a_reader_is_told_which_rows_the_history_alone_has(filled, reader_dsn):
    """The question looks for partitions, in whose schema the reader has no rights."""
    reader = database.connect_dsn(reader_dsn, "TOOLFORMER_READER_DSN")
    assert history_queries.where_older_rows_are(reader, "select count(*) from call_losses") == ""
    [[partition]] = run_sql(reader, f"select partition_of('stage_ledger', '{RECIPE}') is not null")
    assert partition


def test_a_migration_moves_the_partitions_of_an_older_database(old):
    schema.migrate(old)
    moved = run_sql(old, WHERE_PARTITIONS_ARE)
    assert [tuple(row) for row in moved] == [("partitions", partition) for partition in PARTITIONS]


def test_a_migration_keeps_the_rows_of_the_partitions(old):
    schema.migrate(old)
    assert run_sql(old, "select recipe_id, rows_written from stage_ledger") == [(RECIPE, 1)]


def test_a_migration_leaves_a_table_of_another_name_where_it_is(old):
    schema.migrate(old)
    assert run_sql(old, "select n from public.call_losses_of_mine") == []


def test_a_partition_that_was_detached_in_an_older_database_is_attached_again(old):
    schema.migrate(old)
    with database.transaction(old) as connection:
        partitions.attach_detached(connection, "candidate_calls", RECIPE)
        assert partitions.has_partition(connection, "candidate_calls", RECIPE)


def test_a_schema_that_a_superuser_made_is_used(old):
    """An owner may not create schemas in each database."""
    run_sql(old, "create schema partitions")
    schema.migrate(old)
    assert {row.schema for row in run_sql(old, WHERE_PARTITIONS_ARE)} == {"partitions"}


def test_a_dropped_partition_is_gone_with_its_rows(filled):
    with database.transaction(filled) as connection:
        partitions.drop_partition(connection, "stage_ledger", RECIPE)
    assert run_sql(filled, "select count(*) from stage_ledger") == [(0,)]
