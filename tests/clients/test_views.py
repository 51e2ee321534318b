"""What analysts read Postgres with reads the views, as the read-only role."""

from typing import Any

import pytest
from sqlalchemy import Connection, TextClause, text

from tests.clients.conftest import TEXTS
from toolformer_ops.storage.postgres import database

VIEWS = (
    "annotation_progress",
    "candidates",
    "kept_calls",
    "scored_calls",
    "threshold_counts",
    "yield_by_stage",
)


@pytest.fixture
def reader(released, reader_dsn):
    engine = database.connect_dsn(reader_dsn, "TOOLFORMER_READER_DSN")
    yield engine
    engine.dispose()


def frame_of(query: TextClause, connection: Connection) -> Any:
    import polars as pl

    return pl.read_database(query, connection, infer_schema_length=None)


@pytest.mark.parametrize("view", VIEWS)
def test_polars_reads_a_view_whole(released, reader, view):
    with reader.connect() as connection:
        counted = text(f"select count(*) from {view} where run_id = :run")
        rows = connection.execute(counted, {"run": released.run_id}).scalar_one()
        query = text(f"select * from {view} where run_id = '{released.run_id}'")
        frame = frame_of(query, connection)
    assert frame.height == rows > 0


def test_a_kept_call_is_the_same_in_a_frame(released, reader):
    query = text("select tool, call_text, result, loss_reduction from kept_calls order by call_text")
    with reader.connect() as connection:
        frame = frame_of(query, connection)
    assert frame.rows() == [
        ("Calculator", "Calculator(400 / 1400)", "0.29", pytest.approx(1.5)),
        ("Calculator", "Calculator(520 - 187)", "333", pytest.approx(1.5)),
    ]
    assert len(TEXTS) == frame.height
