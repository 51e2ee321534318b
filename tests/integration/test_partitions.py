"""Partitions are in a schema of their own: who sees them, and whose it is."""

import pytest
from sqlalchemy import text

from tests.run_sql import run_sql
from tests.servers import copied_database, settings_of
from toolformer_ops.local import postgres
from toolformer_ops.storage.history import history_queries
from toolformer_ops.storage.postgres import database, partitions, schema

RECIPE = "0123456789abcdef"
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
        for table in partitions.PARTITIONED_TABLES:
            partitions.ensure_partition(connection, table, RECIPE)
        connection.execute(text(ROW))
    return engine


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


def test_a_schema_that_a_superuser_made_is_used(postgres_server):
    """An owner may not create schemas in each database."""
    with copied_database(postgres_server, "template1", postgres.OWNER) as name:
        run_sql(settings_of(postgres_server.dsn(name)), "create schema partitions authorization toolformer")
        engine = database.connect_dsn(postgres_server.dsn(name, postgres.OWNER), database.DSN_SETTING)
        schema.migrate(engine)
        with database.transaction(engine) as connection:
            partitions.ensure_partition(connection, "stage_ledger", RECIPE)
        made = run_sql(engine, WHERE_PARTITIONS_ARE)
        engine.dispose()
    assert {row.schema for row in made} == {"partitions"}


def test_a_dropped_partition_is_gone_with_its_rows(filled):
    with database.transaction(filled) as connection:
        partitions.drop_partition(connection, "stage_ledger", RECIPE)
    assert run_sql(filled, "select count(*) from stage_ledger") == [(0,)]
