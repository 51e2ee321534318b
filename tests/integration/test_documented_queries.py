"""The queries that the pages of the documentation show are asked, as the read-only role, of data/small_annotation.sql."""

import re

import pytest
from sqlalchemy import text

from tests.documentation import PAGES, queries
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.storage import database

QUESTIONS = REPOSITORY / "docs" / "questions.md"


def _rows(settings: Settings, statement: str) -> list[tuple[object, ...]]:
    dsn = settings.reader_dsn.get_secret_value()
    with database.connect_dsn(dsn, "TOOLFORMER_READER_DSN").connect() as connection:
        return [tuple(row) for row in connection.execute(text(statement.replace(":", r"\:")))]


@pytest.mark.usefixtures("annotated")
def test_each_query_of_a_page_is_answered(settings: Settings) -> None:
    asked = [(page, statement) for page in PAGES for statement in queries(page)]
    assert len(asked) >= 12
    for _, statement in asked:
        _rows(settings, re.sub(r"'(night-1|my-run|run)'", "'r1'", statement))


def test_there_are_ten_questions_and_each_has_a_query() -> None:
    chapters = re.findall(r"^## (.*?\?)\n(.*?)(?=^## |\Z)", QUESTIONS.read_text(), re.MULTILINE | re.DOTALL)
    assert len(chapters) == 10
    for question, chapter in chapters:
        files = re.findall(r"`(sql/examples/\w+\.sql)`", chapter)
        assert [name for name in files if not (REPOSITORY / name).is_file()] == []
        assert files or "```sql" in chapter, question


@pytest.mark.usefixtures("annotated")
def test_the_queries_of_the_ten_questions_find_what_is_there(settings: Settings) -> None:
    statements = [statement.replace("run_or_newest('')", "run_or_newest('r1')") for statement in queries(QUESTIONS)]
    why_not, by_chance, errors, left_out, one_text = statements
    assert ("Calculator(400 / 1400)", "kept") in {(row[0], row[2]) for row in _rows(settings, why_not)}
    assert {row[1] for row in _rows(settings, by_chance)} == {"Calculator"}
    assert _rows(settings, errors) == [("Calculator", "divides_by_zero", 1)]
    reasons = [row[:2] for row in _rows(settings, left_out)]
    assert reasons.count(("Calendar", "no_url")) == 2
    assert reasons.count(("Calculator", "fewer_than_3_numbers")) == 1
    assert isinstance(_rows(settings, one_text), list)
