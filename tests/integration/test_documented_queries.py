"""The queries that the pages of the documentation show are asked, as the read-only role, of data/small_annotation.sql."""

import re

import pytest
from sqlalchemy import text

from tests.documentation import PAGES, queries
from toolformer_ops.config import Settings
from toolformer_ops.storage import database


@pytest.mark.usefixtures("annotated")
def test_each_query_of_a_page_is_answered(settings: Settings) -> None:
    asked = [statement for page in PAGES for statement in queries(page)]
    assert len(asked) >= 12
    reader = database.connect_dsn(settings.reader_dsn.get_secret_value(), "TOOLFORMER_READER_DSN")
    with reader.connect() as connection:
        for statement in asked:
            of_run = re.sub(r"'(night-1|my-run|run)'", "'r1'", statement)
            connection.execute(text(of_run.replace(":", r"\:"))).all()
