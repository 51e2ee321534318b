"""Queries of somebody who wants to get out of an SQLite file: each has its reason, and the file stays as it is."""

import hashlib
import os
import sqlite3
from pathlib import Path

import pytest

from tests.hostile_queries import ask, database_tool, opened, sqlite_shop
from toolformer_ops.errors import InfrastructureError, ToolError
from toolformer_ops.tools.base import run_tool
from toolformer_ops.tools.databases.requests import DatabaseOpening
from toolformer_ops.tools.databases.sqlite_dates import asks_the_clock
from toolformer_ops.tools.databases.sqlite_queries import SqliteQueries
from toolformer_ops.tools.files.answering import WrongError

LONG = "replace(printf('%%%dd', 1), ' ', 'a')"
ENDLESS = "with recursive t(n) as (select 1 union all select n + 1 from t)"
HOSTILE = {
    # Writing
    "insert into products values ('cup', 1, 1)": "query_not_a_select",
    "delete from products": "query_not_a_select",
    "drop table products": "query_not_a_select",
    "create table t as select 1": "query_not_a_select",
    "with t as (select 1) insert into products select 'x', 1, 1 from t": "query_writes",
    "with t as (select 1) delete from products where exists (select 1 from t)": "query_writes",
    "with t as (select 1) update staff set salary = 1": "query_writes",
    "values (1) returning 1": "query_invalid",
    "/* select */ delete from products": "query_not_a_select",
    "replace into products values ('cup', 1, 1)": "query_not_a_select",
    "insert into notes(notes) values ('delete-all')": "query_not_a_select",
    # Several statements
    "select 1; delete from products": "query_of_several_statements",
    "select 1;; vacuum": "query_of_several_statements",
    "select 1; -- \n drop table products": "query_of_several_statements",
    # Settings, other files, code
    "pragma writable_schema = 1": "query_not_a_select",
    "pragma query_only = 0": "query_not_a_select",
    "select * from pragma_query_only": "query_table_refused",
    "select * from pragma_database_list": "query_table_refused",
    "attach database '/etc/passwd' as other": "query_not_a_select",
    "attach database 'file:new.db?mode=rwc' as other": "query_not_a_select",
    "vacuum into '/tmp/copy-of-shop.db'": "query_not_a_select",
    "select load_extension('/tmp/evil.so')": "query_function_refused",
    "select fts3_tokenizer('simple', x'4141414141414141')": "query_function_refused",
    "select readfile('/etc/passwd')": "query_invalid",
    "select writefile('/tmp/x', 'y')": "query_invalid",
    "explain query plan select * from staff": "query_not_a_select",
    "begin exclusive": "query_not_a_select",
    # What is not offered
    "select * from staff": "query_table_refused",
    "select count(*) from staff": "query_table_refused",
    "select (select salary from staff) from products": "query_table_refused",
    "select name from products union select name from staff": "query_table_refused",
    "select sql from sqlite_master": "query_table_refused",
    "select count(*) from sqlite_master": "query_table_refused",
    "select count(*) from sqlite_temp_master": "query_table_refused",
    "select count(*) from pragma_table_info('staff')": "query_table_refused",
    # A query of WITH that passes for what is offered
    "with products as (select salary from staff) select * from products": "query_table_refused",
    "with cheap as (select salary from staff) select * from cheap": "query_table_refused",
    "with cheap as materialized (select salary from staff) select * from cheap, products": "query_table_refused",
    "select * from (with cheap as (select salary from staff) select * from cheap)": "query_table_refused",
    "WITH [cheap] AS (select salary from staff) select * from cheap": "query_table_refused",
    "with notes as (select sql from sqlite_master) select group_concat(sql) from notes": "query_table_refused",
    "with json_each as (select salary from staff) select * from json_each": "query_table_refused",
    "select * from (select salary from staff) as cheap": "query_table_refused",
    "select * from sqlite_schema": "query_table_refused",
    "select * from dbstat": "query_table_refused",
    "select * from sqlite_stmt": "query_table_refused",
    "select sqlite_source_id()": "query_function_refused",
    # Chance and the clock have another answer each time
    "select random()": "query_not_repeatable",
    "select name from products order by random()": "query_not_repeatable",
    "select hex(randomblob(4))": "query_not_repeatable",
    "select current_timestamp": "query_not_repeatable",
    "select CURRENT_DATE": "query_not_repeatable",
    "select date('now')": "query_not_repeatable",
    "select date()": "query_not_repeatable",
    "select datetime('NOW', '-1 day')": "query_not_repeatable",
    "select unixepoch('subsec')": "query_not_repeatable",
    "select strftime('%Y', 'now')": "query_not_repeatable",
    "select strftime('%Y')": "query_not_repeatable",
    "select julianday('2023-01-30') - julianday('n' || 'ow')": "query_not_repeatable",
    "select date(x'6e6f77')": "query_not_repeatable",
    "select date('now' || char(0) || 'here')": "query_not_repeatable",
    "select name from products where date(lower('NOW')) > name": "query_not_repeatable",
    "select datetime('2023-01-30 12:00', 'localtime')": "query_not_repeatable",
    "select datetime('2023-01-30 12:00', 'utc')": "query_not_repeatable",
    "select \"Date\"('now')": "query_not_repeatable",
    "select replace(printf('%900000d', 1), ' ', 'a') like '" + "%a" * 40 + "%b'": "0",
    # Rows, bytes, memory
    f"{ENDLESS} select n from t": "query_too_many_rows",
    f"{ENDLESS} select n from t limit 1000000000": "query_too_many_rows",
    "select * from json_each('[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21]')": "query_too_many_rows",
    "select randomblob(1000000000)": "query_not_repeatable",
    "select zeroblob(1000000000)": "query_function_refused",
    "select length(printf('%1000000000d', 1))": "query_without_value",
    "select replace(printf('%900000d', 1), ' ', 'ab')": "query_result_too_large",
    "select printf('%900000d', 1)": "query_result_too_large",
    f"select group_concat(printf('%9000d', n)) from ({ENDLESS} select n from t limit 1000)": (
        "query_result_too_large"
    ),
    "with recursive t(s) as (select 'x' union all select s || s from t) select max(length(s)) from t": (
        "query_result_too_large"
    ),
    "select x'00ff'": "result_not_text",
    # Deep, long, and no SQL at all
    "select " + "(" * 200 + "1" + ")" * 200: "query_invalid",
    "select 1" + " union select 1" * 60: "query_invalid",
    "select 'it": "query_invalid",
    "": "query_not_a_select",
    "--": "query_not_a_select",
    "select \x00 1": "query_invalid",
}
JSON_OF_2000 = "json_each('[' || replace(printf('%2000d', 1), ' ', '1,') || ']')"
TOO_LONG = (
    f"{ENDLESS} select count(*) from t",
    f"{ENDLESS} select max(n) from t where n < 0",
    f"select count(*) from ({ENDLESS} select n from t limit 1000000000)",
    f"select sum(1) from {JSON_OF_2000} a, {JSON_OF_2000} b, {JSON_OF_2000} c",
    # Within one step of SQLite, which only the end of the process ends
    f"select instr({LONG % 900_000}, {LONG % 450_000} || 'b')",
)
HARMLESS = {
    "select stock from products where name = 'kettle'": "667",
    "SELECT stock FROM products WHERE name = 'kettle';": "667",
    "-- how many\nselect stock from products where name = 'kettle'": "667",
    "select price from products where name = 'kettle'": "24.5",
    "select name, stock from products where name = 'cup'": "cup, 12",
    "select name, stock from products order by name": "cup, 12; jug, NULL; kettle, 667",
    "select sum(stock) from products": "679",
    "select 0.1 + 0.2": "0.3",
    "select 'a;b -- c'": "a;b -- c",
    "select name from cheap order by name": "cup; jug",
    "select body from notes where notes match 'boils'": "The kettle boils",
    "with recursive t(n) as (select 1 union all select n + 1 from t where n < 5) select sum(n) from t": "15",
    "with p as (select * from products) select count(*) from p": "3",
    "select date('2023-01-30', '+1 month', '-1 day')": "2023-03-01",
    "select datetime(1092941466, 'unixepoch')": "2004-08-19 18:51:06",
    "select julianday('2023-01-30') - julianday('2023-01-01')": "29",
    "select strftime('%Y: now', '2023-01-30')": "2023: now",
    "select unixepoch('2023-01-30')": "1675036800",
    "select date('tomorrow')": "query_without_value",
    "select date(null)": "query_without_value",
    "select name from products where name = 'now'": "query_without_rows",
    "select name from products where stock > 1000": "query_without_rows",
    "select stock from products where name = 'jug'": "query_without_value",
    "select colour from products": "query_invalid",
    "selec stock": "query_not_a_select",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="module")
def runner(folder):
    """The shop's products, its view and its notes; its staff is not offered."""
    url = f"sqlite:///{sqlite_shop(folder).name}"
    limits = "seconds = 30\nrows = 20\nbytes = 10000"
    runner = opened(database_tool(folder, url, tables=("products", "cheap", "notes"), limits=limits))
    yield runner
    runner.close()


@pytest.mark.parametrize("query", HOSTILE, ids=lambda query: f"{query:.60}")
def test_a_hostile_query_has_its_reason(runner, query):
    assert ask(runner, query) == HOSTILE[query]


@pytest.mark.parametrize(("rows", "reason"), [(20, None), (21, "query_too_many_rows")])
def test_as_many_rows_as_the_limit_are_a_result(runner, rows, reason):
    [output] = run_tool(runner, [f"{ENDLESS} select n from t limit {rows}"], 30.0)
    assert output.reason == reason


@pytest.mark.parametrize("query", TOO_LONG, ids=lambda query: f"{query:.60}")
def test_a_query_without_end_is_ended(tmp_path, query):
    sqlite_shop(tmp_path)
    runner = opened(database_tool(tmp_path, "sqlite:///shop.db", limits="seconds = 0.2"))
    assert ask(runner, query) == "query_timed_out"
    assert ask(runner, "select stock from products where name = 'cup'") == "12"
    runner.close()


@pytest.mark.parametrize("query", HARMLESS, ids=lambda query: f"{query:.60}")
def test_a_query_that_reads_has_its_result(runner, query):
    assert ask(runner, query) == HARMLESS[query]


def test_no_hostile_query_changes_the_file_or_leaves_another(folder, runner):
    before = hashlib.sha256((folder / "shop.db").read_bytes()).hexdigest()
    files = sorted(folder.iterdir())
    for query in HOSTILE:
        ask(runner, query)
    assert hashlib.sha256((folder / "shop.db").read_bytes()).hexdigest() == before
    assert sorted(folder.iterdir()) == files


def test_a_query_that_grows_without_end_meets_the_bound_of_memory(folder, runner):
    endless = opened(database_tool(folder, "sqlite:///shop.db", limits="seconds = 100"))
    query = (
        "with recursive t(n, s) as (select 1, printf('%900000d', 1) union select n + 1, printf('%900000d', n) "
        "from t) select count(*) from t"
    )
    assert ask(endless, query) == "query_out_of_memory"
    assert ask(endless, "select stock from products where name = 'cup'") == "12"
    endless.close()


def test_a_table_with_a_name_like_those_of_an_index_of_words_is_not_part_of_it(tmp_path):
    path = sqlite_shop(tmp_path)
    connection = sqlite3.connect(path)
    connection.executescript("create table notes_private (a); insert into notes_private values ('secret')")
    connection.close()
    runner = opened(database_tool(tmp_path, "sqlite:///shop.db", tables=("notes",)))
    assert ask(runner, "select a from notes_private") == "query_table_refused"
    assert ask(runner, "select body from notes where notes match 'boils'") == "The kettle boils"
    runner.close()


def test_a_write_ahead_log_is_read(tmp_path):
    path = sqlite_shop(tmp_path)
    writer = sqlite3.connect(path)
    writer.execute("pragma journal_mode = wal")
    writer.execute("update products set stock = 1 where name = 'cup'")
    writer.commit()
    runner = opened(database_tool(tmp_path, "sqlite:///shop.db"))
    assert ask(runner, "select stock from products where name = 'cup'") == "1"
    runner.close()
    writer.close()


def logged_shop(folder: Path) -> Path:
    """The shop with a write-ahead log, whose content is in the file."""
    path = sqlite_shop(folder)
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode = wal")
    connection.execute("update products set stock = 1")
    connection.commit()
    connection.close()
    return path


def test_no_file_is_left_beside_one_with_a_write_ahead_log(tmp_path):
    logged_shop(tmp_path)
    runner = opened(database_tool(tmp_path, "sqlite:///shop.db"))
    files = {file.name for file in tmp_path.iterdir()}
    assert ask(runner, "select stock from products where name = 'cup'") == "1"
    runner.close()
    assert files == {"shop.db", "shop.toml", "shop.txt"}


def test_a_file_that_is_changed_while_it_is_read_without_a_lock_is_an_outage(tmp_path):
    path = logged_shop(tmp_path)
    runner = opened(database_tool(tmp_path, "sqlite:///shop.db"))
    writer = sqlite3.connect(path)
    writer.execute("update products set stock = 2")
    writer.commit()
    with pytest.raises(InfrastructureError, match="was changed while it was read; give the tool a copy"):
        ask(runner, "select stock from products where name = 'cup'")
    writer.close()


def test_a_log_that_cannot_be_read_is_told_with_the_remedy(tmp_path, monkeypatch):
    path = logged_shop(tmp_path)
    path.with_name("shop.db-wal").write_bytes(b"content")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(WrongError, match=r"sqlite3 shop\.db 'pragma wal_checkpoint\(truncate\)'"):
        SqliteQueries(DatabaseOpening({"path": str(path)}, (), 5.0, 20, 10_000))


def test_a_file_whose_view_calls_what_no_query_may_call_is_no_way_around(tmp_path):
    path = sqlite_shop(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("create view evil as select load_extension('/tmp/evil.so') as x")
    connection.execute("create view pay as select salary from staff")
    connection.commit()
    connection.close()
    with pytest.raises(
        ToolError, match="view evil that SQLite can read, found one that calls what it may not"
    ):
        database_tool(tmp_path, "sqlite:///shop.db", tables=("products", "evil"))
    runner = opened(database_tool(tmp_path, "sqlite:///shop.db", tables=("products", "pay")))
    assert ask(runner, "select x from evil") == "query_invalid"
    assert ask(runner, "select salary from staff") == "query_table_refused"
    assert ask(runner, "select salary from pay") == "5200"  # what is offered is offered
    runner.close()


@pytest.fixture
def dated_shop(tmp_path):
    """Orders with a computed column, an index on a date, and views with and without the clock."""
    path = sqlite_shop(tmp_path)
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        create table orders (day text, due text generated always as (date(day, '+14 days')) virtual);
        create index orders_by_month on orders (strftime('%m', day));
        insert into orders values ('2023-01-30'), ('2023-02-01');
        create view months as select strftime('%Y-%m', day) as month from orders;
        create view recent as select day from orders where day > date('now', '-7 days');
        """
    )
    connection.close()
    runner = opened(database_tool(tmp_path, "sqlite:///shop.db"))
    yield runner
    runner.close()


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("select due from orders where day = '2023-01-30'", "2023-02-13"),
        ("select day from orders where strftime('%m', day) = '02'", "2023-02-01"),
        ("select month from months order by month", "2023-01; 2023-02"),
        ("select day from recent", "query_not_repeatable"),
    ],
)
def test_tables_with_dates_are_read_without_the_clock(dated_shop, query, answer):
    assert ask(dated_shop, query) == answer


ARGUMENTS = (
    ("2023-01-30",),
    ("now",),
    ("NOW",),
    (" now",),
    ("2023-01-30", "localtime"),
    ("2023-01-30", "utc"),
    ("2023-01-30", "now"),
    (2460000.5,),
    ("1675036800", "unixepoch"),
)


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_a_date_is_refused_if_sqlite_itself_takes_it_for_one_that_changes(arguments):
    """SQLite refuses such a date in a computed column."""
    connection = sqlite3.connect(":memory:")
    places = ("a", "a, b")[len(arguments) - 1]
    connection.execute(f"create table t ({places}, day as (date({places})) stored)")
    try:
        connection.execute(f"insert into t values ({', '.join('?' * len(arguments))})", arguments)
        changes = False
    except sqlite3.OperationalError as error:
        changes = "non-deterministic" in str(error)
    assert asks_the_clock("date", arguments) is changes
