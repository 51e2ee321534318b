"""What the fixtures of `tests/conftest.py` promise to every other test."""

import os
from contextlib import closing

import psycopg2
import pytest

from tests.servers import RunningPostgres
from toolformer_ops.config import Settings, load_settings

COUNT_CORPORA = "select count(*) from corpora"
INSERT_CORPUS = "insert into corpora (corpus_id, uri) values ('0123456789abcdef', 'file:///a')"


@pytest.mark.parametrize("round_", [1, 2])
def test_each_test_starts_with_empty_migrated_tables(postgres_dsn: str, round_: int) -> None:
    with closing(psycopg2.connect(postgres_dsn)) as connection:
        cursor = connection.cursor()
        cursor.execute(COUNT_CORPORA)
        assert cursor.fetchone() == (0,), f"round {round_} sees rows of another test"
        cursor.execute(INSERT_CORPUS)
        connection.commit()


def test_reader_reads_the_tables_of_a_fresh_database(postgres_dsn: str, reader_dsn: str) -> None:
    with closing(psycopg2.connect(postgres_dsn)) as owner:
        owner.cursor().execute(INSERT_CORPUS)
        owner.commit()
    with closing(psycopg2.connect(reader_dsn)) as reader:
        cursor = reader.cursor()
        cursor.execute(COUNT_CORPORA)
        assert cursor.fetchone() == (1,)


def test_settings_hold_the_database_and_an_empty_bucket(settings: Settings, postgres_dsn: str, reader_dsn: str) -> None:
    assert settings.database_dsn.get_secret_value() == postgres_dsn
    assert settings.reader_dsn.get_secret_value() == reader_dsn
    assert settings.s3_endpoint_url is not None
    assert settings.s3_bucket.startswith("test-")


def test_a_process_that_a_test_starts_has_the_same_settings(settings: Settings) -> None:
    assert os.environ["TOOLFORMER_DATABASE_DSN"] == settings.database_dsn.get_secret_value()
    assert load_settings() == settings


def test_a_transaction_that_a_killed_scheduler_left_open_ends_by_itself(postgres_server: RunningPostgres) -> None:
    with (
        closing(psycopg2.connect(postgres_server.address.dsn("postgres"))) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("select rolconfig from pg_roles where rolname = 'airflow'")
        assert cursor.fetchone() == (["idle_in_transaction_session_timeout=2min"],)
