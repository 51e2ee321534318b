"""A small database, filled from `data/small_annotation.sql`, for the tests of views, queries and examples; a scripted model."""

from pathlib import Path

import pytest

from tests.fake_language_model import loaded_by_stages
from tests.written_nights import RELEASED_CALLS_WERE_CHOSEN, Nights
from toolformer_ops.storage.postgres import database


@pytest.fixture
def annotated(engine):
    """Two runs over four documents, as the owner."""
    with database.transaction(engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute((Path(__file__).parent / "data" / "small_annotation.sql").read_text())
        cursor.execute(RELEASED_CALLS_WERE_CHOSEN)
    return engine


@pytest.fixture
def nights(engine):
    return Nights(engine)


@pytest.fixture
def use_model(monkeypatch):
    """Puts a scripted model where the stages load theirs."""
    return loaded_by_stages(monkeypatch)
