"""What the fixtures of `tests/conftest.py` promise to every other test."""

import os
from contextlib import closing

import psycopg2
import pytest

from toolformer_ops.config import Settings, load_settings


@pytest.mark.parametrize("round_", [1, 2])
def test_each_test_starts_with_empty_migrated_tables(postgres_dsn: str, round_: int) -> None:
    with closing(psycopg2.connect(postgres_dsn)) as connection:
        cursor = connection.cursor()
        cursor.execute("select count(*) from corpora")
        assert cursor.fetchone() == (0,), f"round {round_} sees rows of another test"
        cursor.execute("insert into corpora (corpus_id, uri) values ('0123456789abcdef', 'file:///a')")
        connection.commit()


def test_settings_hold_the_database_and_an_empty_bucket_for_a_process_that_a_test_starts_too(
    settings: Settings, postgres_dsn: str, reader_dsn: str
) -> None:
    assert os.environ["TOOLFORMER_DATABASE_DSN"] == settings.database_dsn.get_secret_value() == postgres_dsn
    assert settings.reader_dsn.get_secret_value() == reader_dsn
    assert settings.s3_endpoint_url is not None
    assert settings.s3_bucket.startswith("test-")
    assert load_settings() == settings
