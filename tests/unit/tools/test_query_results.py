"""What a query of an SQLite file gets: values as a text writes them, or the database's own words."""

import sqlite3

import pytest

from tests.hostile_queries import ask, database_tool, opened
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.files.number_text import number_text

TABLES = """
create table people (name text, phone text, city text);
insert into people values ('Ada', null, 'Paris');
create table sums (total real);
insert into sums values (12345678901234567.0), (0.1 + 0.2), (1763668414.5);
create table old (name text);
insert into old values (cast(x'436166e9' as text));
"""


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    connection = sqlite3.connect(folder / "people.db")
    connection.executescript(TABLES)
    connection.create_collation("LOCALIZED", lambda one, other: (one > other) - (one < other))
    connection.execute("create table songs (title text collate LOCALIZED, seconds integer)")
    connection.execute("insert into songs values ('Blu', 187)")
    connection.commit()
    connection.close()
    opened_tool = opened(database_tool(folder, "sqlite:///people.db"))
    yield opened_tool
    opened_tool.close()


@pytest.mark.parametrize(
    ("query", "result"),
    [
        ("select name, phone, city from people", "Ada, NULL, Paris"),
        ("select total from sums order by total desc", "12345678901234568; 1763668414.5; 0.3"),
        ("select seconds from songs where title = 'Blu' collate binary", "187"),
    ],
)
def test_a_query_gets_the_values_as_a_text_writes_them(runner, query, result):
    assert ask(runner, query) == result


@pytest.mark.parametrize(
    ("query", "output"),
    [
        ("select prise from people", ToolOutput.none("query_invalid", "no such column: prise")),
        ("select nme from persons", ToolOutput.none("query_invalid", "no such table: persons")),
        (
            "select name from old",
            ToolOutput.none("result_not_text", "expected texts in UTF-8, found the bytes b'Caf\\xe9'"),
        ),
        (
            "select seconds from songs where title = 'Blu'",
            ToolOutput.none("query_needs_collation", "no such collation sequence: LOCALIZED"),
        ),
        ("select date('now')", ToolOutput.none("query_not_repeatable")),
        ("select x'00'", ToolOutput.none("result_not_text", "a value is a blob")),
    ],
)
def test_a_query_without_result_has_what_the_database_says(runner, query, output):
    assert runner.run([query]) == [output]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (667.0, "667"),
        (-0.0, "0"),
        (0.1 + 0.2, "0.3"),
        (37 / 3, "12.3333333333333"),
        (12345678901234567.0, "12345678901234568"),
        (1.25e-7, "0.000000125"),
        (1e300, "1e+300"),
        (float("inf"), "inf"),
    ],
)
def test_a_number_has_no_exponent_where_a_text_has_none(value, text):
    assert number_text(value) == text
