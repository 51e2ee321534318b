"""The tool file of a database: what names its version, what is compared when it is opened, and what a wrong one says."""

import contextlib
import json
import os
import signal
import sqlite3
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.hostile_queries import ask, database_tool, opened, sqlite_shop
from toolformer_ops.config import Settings
from toolformer_ops.errors import InfrastructureError, RejectedInputError, ToolError
from toolformer_ops.records import Document
from toolformer_ops.tools.databases.database_file import DatabasePart, postgres_address
from toolformer_ops.tools.databases.database_tool import DatabaseTool, rows_text
from toolformer_ops.tools.files.kinds import refresh_tool, tool_of_file
from toolformer_ops.tools.files.process_tool import ProcessRunner


def changed(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def end_process_of(runner: ProcessRunner) -> None:
    process_id = runner.process.process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)


@pytest.fixture
def shop(tmp_path):
    """The tool file of an SQLite file beside it."""
    sqlite_shop(tmp_path)
    return database_tool(tmp_path, "sqlite:///shop.db", tables=("products",))


def test_the_tool_of_the_file_is_one_of_a_database(shop):
    tool = tool_of_file(shop)
    assert isinstance(tool, DatabaseTool)
    assert tool.parameters["properties"]["query"]["description"] == (
        "one SELECT of SQLite on the tables products(name text, stock integer, price numeric(10, 2))"
    )


def test_white_space_within_a_query_is_part_of_the_input(shop):
    query = "select stock from products where name = 'a  b' "
    assert DatabaseTool(shop).effective_input(query, Document.of("")) == query.strip()


def test_another_content_of_the_file_is_another_version(shop):
    first = DatabaseTool(shop).version(Settings(), "model")
    assert DatabaseTool(shop).version(Settings(), "model") == first
    changed(shop.with_name("shop.db"), "update products set stock = 1")
    assert DatabaseTool(shop).version(Settings(), "model") != first


def test_what_is_only_in_the_log_of_the_file_is_another_version(shop):
    database = shop.with_name("shop.db")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma wal_checkpoint(truncate)")
        content, first = database.read_bytes(), DatabaseTool(shop).version(Settings(), "model")
        with connection:
            connection.execute("update products set stock = 1")
        assert database.read_bytes() == content
        assert DatabaseTool(shop).version(Settings(), "model") != first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('prompt = "shop.txt"', 'prompt = "shop.txt"\nrevision = "2"'),
        ("[limits]", "[limits]\nrows = 5"),
        ("[limits]", "[limits]\nbytes = 50"),
        ('tables = ["products"]', 'tables = ["products", "staff"]'),
    ],
)
def test_what_decides_answers_is_another_version(shop, before, after):
    first = DatabaseTool(shop).version(Settings(), "model")
    shop.write_text(shop.read_text().replace(before, after, 1))
    assert DatabaseTool(shop).version(Settings(), "model") != first


def test_a_longer_time_is_no_other_version(shop):
    first = DatabaseTool(shop).version(Settings(), "model")
    shop.write_text(shop.read_text().replace("[limits]", "[limits]\nseconds = 60"))
    assert DatabaseTool(shop).version(Settings(), "model") == first


def test_another_column_is_refused_until_it_is_recorded(shop):
    changed(shop.with_name("shop.db"), "alter table products add column colour text")
    with pytest.raises(ToolError, match=r"expected what is recorded in .* refresh-tool"):
        opened(shop)
    refresh_tool(shop)
    runner = opened(shop)
    assert ask(runner, "select count(colour) from products") == "0"
    runner.close()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('url = "sqlite:///shop.db"', "", "expected a `url` or a `connection`, found both or neither"),
        ("sqlite:///shop.db", "postgresql://a:b@db/shop", "expected no password in `url`, found one"),
        ("sqlite:///shop.db", "oracle://db/shop", "found 'oracle'"),
        ("[database]", '[database]\nsecrets = ["TOOLFORMER_DATABASE_DSN"]', "is of this deployment itself"),
        ("[database]", "[database]\ncolour = 1", r"database\.colour"),
        ("[database]", '[server]\nurl = "http://x"\n[database]', r"found \[database\] and \[server\]"),
        ("[database]", "[databse]", "found none"),
        ("tables = '{", "tables = '", "expected JSON"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(shop, before, after, said):
    shop.write_text(shop.read_text().replace(before, after, 1))
    with pytest.raises(ToolError, match=said):
        tool_of_file(shop)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"no database at all, but text", "file is not a database"), (None, "expected a file of SQLite")],
)
def test_a_file_that_is_no_database_is_named(shop, content, said):
    database = shop.with_name("shop.db")
    database.unlink()
    if content is not None:
        database.write_bytes(content)
    with pytest.raises(ToolError, match=said):
        opened(shop)


def test_a_file_of_sqlite_that_may_not_be_read_is_refused(shop, monkeypatch):
    shop.write_text(shop.read_text().replace("sqlite:///shop.db", "sqlite:////etc/shop.db"))
    with pytest.raises(ToolError, match=r"expected files that may be read, found /etc/shop\.db"):
        opened(shop)


EXTRA = '{"sslmode": "verify-full", "options": "-c x=1", "nested": {"a": 1}}'


@pytest.mark.parametrize(
    "value",
    [
        "postgres://u:p%40%20%2Fx%7BA%7D@h:5432/shop?sslmode=verify-full&cursor=dict",
        f"postgres://u:p%40%20%2Fx%7BA%7D@h:5432/shop?__extra__={quote(EXTRA)}",
        f'{{"conn_type": "postgres", "login": "u", "password": "p@ /x{{A}}", "host": "h", "port": 5432, "schema": "shop", '
        f'"extra": {EXTRA}}}',
        f'{{"conn_type": "postgres", "login": "u", "password": "p@ /x{{A}}", "host": "h", "port": "5432", "schema": "shop", '
        f'"extra": {json.dumps(EXTRA)}}}',
    ],
    ids=["parameters", "extra", "JSON", "JSON with extra as text"],
)
def test_a_connection_has_its_address_with_what_libpq_needs_of_the_rest(monkeypatch, value):
    monkeypatch.setenv("AIRFLOW_CONN_THE_SHOP", value)
    address, secrets = postgres_address(DatabasePart(connection="the_shop"), "Shop")
    assert address == {
        "host": "h",
        "port": "5432",
        "user": "u",
        "password": "p@ /x{A}",
        "dbname": "shop",
        "sslmode": "verify-full",
    }
    assert "p@ /x{A}" in secrets.values()


@pytest.mark.parametrize(
    "value",
    ["mysql://u:secret@h/shop", "secret", '{"login": "secret"', "postgres://u:secret@h/shop?__extra__=[1]"],
)
def test_what_is_no_connection_of_a_postgres_is_refused_without_its_text(monkeypatch, value):
    monkeypatch.setenv("AIRFLOW_CONN_THE_SHOP", value)
    with pytest.raises(
        ToolError, match="expected the address of a Postgres in AIRFLOW_CONN_THE_SHOP"
    ) as refused:
        postgres_address(DatabasePart(connection="the_shop"), "Shop")
    assert "secret" not in str(refused.value)


def test_a_connection_without_its_address_names_the_variable(shop):
    shop.write_text(shop.read_text().replace('url = "sqlite:///shop.db"', 'connection = "the_shop"'))
    with pytest.raises(
        ToolError, match="the Connection the_shop in the variable AIRFLOW_CONN_THE_SHOP, found nothing"
    ):
        opened(shop)


def test_after_a_process_that_is_gone_the_next_query_starts_another(shop):
    runner = opened(shop)
    end_process_of(runner)
    assert ask(runner, "select 1") == "query_ended_its_process"
    assert ask(runner, "select 1") == "1"
    runner.close()


def test_a_file_that_is_gone_while_the_tool_is_open_is_an_outage(shop):
    runner = opened(shop)
    end_process_of(runner)
    ask(runner, "select 1")
    shop.with_name("shop.db").unlink()
    with pytest.raises(InfrastructureError, match="tool Shop: expected a file of SQLite"):
        ask(runner, "select 1")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([["667"]], "667"),
        ([["kettle", "667"]], "kettle, 667"),
        ([["Ada", None, "Paris"]], "Ada, NULL, Paris"),
        ([["Ada", "", "Paris"]], "Ada, , Paris"),
        ([["kettle"], [None], ["cup"]], "kettle; NULL; cup"),
        ([["a\nb\x1b[31m"]], "a b␛[31m"),
        ([["one two three four five six"]], "one two three four five"),
        ([["Acme Intl. Foods", "3"], ["Bolt Intl. Steel", "4"]], "Acme Intl. Foods, 3"),
        ([["ab", "1"], ["cd", "2"], ["ef", "3"]], "ab, 1"),
    ],
)
def test_rows_are_one_line_within_the_budget(rows, line):
    assert rows_text(rows, 6 if "Intl." in str(rows) else 5) == line


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "query_without_rows"),
        ([[None, None], [" ", None]], "query_without_value"),
        ([["Acme Intl. Foods of the North", "3"]], "result_too_long"),
    ],
)
def test_rows_that_are_no_result_have_their_reason(rows, reason):
    with pytest.raises(RejectedInputError, match=reason):
        rows_text(rows, 5)
