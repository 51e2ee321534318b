"""Queries of somebody who wants to get out of a Postgres, by a role that may do all: each has its reason, and nothing changes."""

import logging
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from tests.hostile_queries import ROWS, SCHEMA, ask, database_tool, opened
from tests.servers import RunningPostgres
from toolformer_ops.errors import InfrastructureError, RejectedInputError, ToolError
from toolformer_ops.tools.databases import postgres_queries
from toolformer_ops.tools.databases.postgres_queries import PostgresQueries
from toolformer_ops.tools.databases.requests import DatabaseOpening

PASSWORD = "s3cret of the /shop@1"
ENDLESS = "with recursive t(n) as (select 1 union all select n + 1 from t)"
REFUSED_FUNCTIONS = {
    f"select {call}": "query_function_refused"
    for call in (
        "nextval('numbers')",
        "setval('numbers', 9)",
        "pg_sleep(100)",
        '"pg_sleep"(100)',
        "pg_sleep/* a */(100)",
        "pg_sleep -- a \n (100)",
        "PG_SLEEP(100)",
        "pg_read_file('/etc/passwd')",
        "pg_read_binary_file('/etc/passwd')",
        "pg_ls_dir('/')",
        "pg_stat_file('/etc/passwd')",
        "lo_import('/etc/passwd')",
        "lo_export(1, '/tmp/x')",
        "lo_create(0)",
        "lo_from_bytea(0, 'x')",
        "dblink('host=elsewhere', 'select 1')",
        "dblink_exec('dbname=shop', 'drop table products')",
        "query_to_xml('delete from products', true, true, '')",
        "ts_stat('select 1')",
        "set_config('transaction_read_only', 'off', false)",
        "set_config('statement_timeout', '0', false)",
        "current_setting('data_directory')",
        "pg_advisory_lock(1)",
        "pg_try_advisory_lock(1)",
        "pg_notify('channel', 'text')",
        "pg_terminate_backend(1)",
        "pg_reload_conf()",
        "pg_export_snapshot()",
        "pg_logical_emit_message(true, 'a', 'b')",
        "wipe()",
        "public.wipe()",
        "public.lower('A')",
        "repeat('x', 1000000000)",
        "lpad('x', 1000000000)",
        "format('%1000000000s', 1)",
        "format('%*s', 1000000000, 'x')",
        "format(string_agg(name, ''), 1) from products",
        "rpad('x', 100 * 1000000)",
        "array_fill(0, array_append(null, 100000000))",
    )
}
CHANGING = dict.fromkeys(
    (
        "select random()",
        "select now()",
        "select clock_timestamp()",
        "select current_date",
        "select localtimestamp(0)",
        "select current_user",
        "select age(timestamp '2023-01-30')",
        "select 'today'::date",
        "select date('now')",
        "select 1 where date '2023-01-30' < 'tomorrow'",
        "select 'today monday'::date",
        "select 'now BC'::timestamp",
        "select 'tomorrow allballs'::timestamptz",
        "select date 'yesterday'",
        "select timestamp with time zone 'now'",
        "select '[now,infinity)'::tstzrange",
        "select '{2023-01-30,today}'::date[]",
        "select cast('today' as date)",
        "select 'today'::text::date",
        "select date(x) from (values ('now')) as v(x)",
        "select coalesce(null, 'today', date '2023-01-30')",
        "select date '2023-01-30' union select 'today'",
        "select extract(year from timestamp 'now')",
        "select ('today', 1) > (date '2023-01-30', 1)",
        "select time '12:00' at time zone 'Europe/Berlin'",
        "select '12:00 Europe/Berlin'::timetz",
        "select '12:00 Europe/Berlin'::time with time zone",
        "select cast('12:00 Europe/Berlin' as time (0) with time zone)",
        "select ctid from products",
        "select max(p.xmin::text) from products p",
        "select name from products tablesample system (50)",
        "select day from recent",
        "select day from days_of_recent",
    ),
    "query_not_repeatable",
)
HOSTILE = {
    **REFUSED_FUNCTIONS,
    **CHANGING,
    "select * from dblink('host=x', 'select 1') as t(id int)": "query_function_refused",
    "select * from dblink(host, text) as (values int)": "query_function_refused",
    "select distinct on (name) pg_sleep(100) from products": "query_function_refused",
    "select 'a' || pg_sleep(100)::text || 'b'": "query_function_refused",
    "select $$ harmless $$, pg_sleep(100), $a$ harmless $a$": "query_function_refused",
    "with wipe(x) as (select 1) select wipe(1) from wipe": "query_function_refused",
    # What follows a row and a dot may be a function that takes the row
    "select t.seize from (select 1) t": "query_function_refused",
    "select (t).seize from (select 1) t": "query_function_refused",
    'select (t) . "seize" from (select 1) t': "query_function_refused",
    # A text with escapes goes on behind a line break, and would hide what follows from a plain reader
    "select e'a'\n'\\'' || pg_sleep(100)::text || ''": "query_invalid",
    "select u&'\\0061'": "query_invalid",
    'select u&"pg\\005fsleep"(100)': "query_invalid",
    "select pg_catalog.pg_sleep(100)": "query_table_refused",
    # Writing
    "insert into products values ('x', 1, 1)": "query_not_a_select",
    "delete from products": "query_not_a_select",
    "truncate products": "query_not_a_select",
    "drop table products": "query_not_a_select",
    "copy products to '/tmp/out'": "query_not_a_select",
    "copy products from program 'id'": "query_not_a_select",
    "copy (select 1) to program 'id'": "query_not_a_select",
    "do $$ begin delete from products; end $$": "query_not_a_select",
    "call wipe()": "query_not_a_select",
    "explain analyze delete from products": "query_not_a_select",
    "prepare p as delete from products": "query_not_a_select",
    "with gone as (delete from products returning *) select * from gone": "query_writes",
    "with new as (insert into products values ('x', 1, 1) returning *) select * from new": "query_writes",
    "with t as (select 1) update products set stock = 1": "query_invalid",
    "select * into copied from products": "query_invalid",
    "select * from products for update": "query_writes",
    "select * from products for share": "query_writes",
    "select wipe from (select 1) t": "query_invalid",
    # Several statements, and leaving the brackets that the query is put into
    "select 1; delete from products": "query_of_several_statements",
    "select 1; -- \n delete from products": "query_of_several_statements",
    "select 1;; commit; delete from products": "query_of_several_statements",
    "select 1) t; delete from products; select * from (select 1": "query_of_several_statements",
    "select 1) t union all select (select 2": "query_invalid",
    "select 1) t --": "query_invalid",
    "select 1 /* ": "query_invalid",
    "select /* /* */ 1": "query_invalid",
    # Session and locks
    "set transaction read write": "query_not_a_select",
    "set role postgres": "query_not_a_select",
    "reset all": "query_not_a_select",
    "begin": "query_not_a_select",
    "commit": "query_not_a_select",
    "lock table products": "query_not_a_select",
    "listen channel": "query_not_a_select",
    "notify channel": "query_not_a_select",
    "load '/tmp/evil.so'": "query_not_a_select",
    "show data_directory": "query_not_a_select",
    # What is not offered
    "select * from staff": "query_table_refused",
    'select * from "staff"': "query_table_refused",
    "select * from public.staff": "query_table_refused",
    "table staff": "query_table_refused",
    "select (select max(salary) from staff) from products": "query_table_refused",
    "select name from products union select name from Staff": "query_table_refused",
    "select * from private.products": "query_table_refused",
    "select rolname, rolpassword from pg_authid": "query_table_refused",
    "select * from pg_catalog.pg_shadow": "query_table_refused",
    "select query from pg_stat_activity": "query_table_refused",
    "select * from information_schema.tables": "query_table_refused",
    # Time, rows, bytes
    f"{ENDLESS} select n from t": "query_too_many_rows",
    f"{ENDLESS} select n from t limit 1000000000": "query_too_many_rows",
    "select generate_series(1, 1000000000)": "query_too_many_rows",
    "select replace(replace(replace('"
    + "a" * 1000
    + "', 'a', '"
    + "a" * 1000
    + "'), 'a', 'aa'), 'a', 'b')": ("query_result_too_large"),
    "select '" + "x" * 3900 + "' || '" + "y" * 20 + "', * from products, products p, products q limit 5": (
        "query_result_too_large"
    ),
    "select 10 ^ 1000": "query_invalid",
    # No SQL
    "select 'it": "query_invalid",
    "select $1": "query_invalid",
    "select " + "(" * 1500 + "1" + ")" * 1500: "1",
    "": "query_not_a_select",
    "select \x00": "query_invalid",
}
TOO_LONG = (f"{ENDLESS} select count(*) from t", f"{ENDLESS} select n from t order by n")
HARMLESS = {
    "select stock from products where name = 'kettle'": "667",
    "SELECT stock FROM products WHERE name = 'kettle';": "667",
    "select price from products where name = 'cup'": "3.00",
    "select name, stock from products order by name": "cup, 12; jug, NULL; kettle, 667",
    "select count(*) from products": "3",
    "select avg(price) from products": "11.9166666666667",
    "select round(avg(price), 2) from products": "11.92",
    "select max(price) > 20 from products": "true",
    "select 'a;b -- c /* d'": "a;b -- c /* d",
    "select $$it's; fine$$": "it's; fine",
    "select cast(price as numeric(10, 1)) from products where name in ('jug')": "8.3",
    "select date '2023-01-30' - 1": "2023-01-29",
    "select string_agg(name, '/' order by name) from products": "cup/jug/kettle",
    "select name from cheap order by 1": "cup; jug",
    "select n from (values (1), (2)) as v(n) where n > 1": "2",
    "with recursive t(n) as (select 1 union all select n + 1 from t where n < 5) select sum(n) from t": "15",
    "with p as materialized (select * from products) select count(*) from p": "3",
    "select rank() over (partition by 1 order by stock) from products where stock is not null": "1; 2",
    "select extract(year from date '2023-01-30')": "2023",
    "select extract(year from age(date '2023-01-30', date '2020-01-30'))": "3",
    "select month from months": "1",
    "(select 1) union (select 2) order by 1": "1; 2",
    "select name from products where stock > 1000": "query_without_rows",
    "select stock from products where name = 'jug'": "query_without_value",
    "select colour from products": "query_invalid",
    "select array_position(string_to_array('a,b', ','), 'b')": "2",
    "select array_agg(name order by name) from products": "cup, jug, kettle",
    "select json_agg(stock order by name) from products where stock > 1": "12, 667",
    "select count(*) from generate_series(1, 5)": "5",
    "select lpad(name, 5, '.') from products where stock = 12": "..cup",
    "select format('%s has %s', name, stock) from products where stock = 12": "cup has 12",
    "select sum(stock) from products where stock > 1 group by rollup (name) order by 1": "12; 667; 679",
    "select stock from products where name = 'today'": "query_without_rows",
    "select 'open now'": "open now",
    "select case when stock > 100 then 'now' else 'later' end from products where name = 'cup'": "later",
    "select name from products where to_tsvector('english', name) @@ to_tsquery('english', 'now & cup')": "cup",
    "select timestamp '2023-01-30 12:00' at time zone 'Asia/Tokyo'": "2023-01-30 03:00:00",
}


@pytest.fixture(scope="module")
def shop(postgres_server):
    """The name of a database with products, staff, and a role `shopkeeper` that reads products."""
    name = "shop"
    with closing(psycopg2.connect(postgres_server.dsn("postgres"))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"create database {name}")
            cursor.execute("create role shopkeeper login password %s", (PASSWORD,))
            with closing(psycopg2.connect(postgres_server.dsn(name))) as inside, inside.cursor() as filling:
                filling.execute(SCHEMA + ROWS)
                filling.execute(
                    "create sequence numbers; create schema private; create table private.products (x int);"
                    "create view recent as select day from (values (date '2023-01-30')) as v(day) where day > now();"
                    "create view days_of_recent as select day from recent;"
                    "create view months as select extract(month from date '2023-01-30') as month;"
                    "create function wipe() returns int language sql as 'delete from products; select 1';"
                    "create function seize(anyelement) returns int language sql as 'delete from products; select 1';"
                    "create function public.lower(int) returns text language sql as $$select 'x'$$;"
                    "grant select on products, cheap to shopkeeper"
                )
                inside.commit()
            yield name
            cursor.execute(f"drop database {name} with (force)")
            cursor.execute("drop role shopkeeper")


@pytest.fixture(scope="module")
def environment():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def superuser(shop, postgres_server, environment, tmp_path_factory):
    """The shop as the superuser of its server, the worst role of all."""
    address = postgres_server.address
    environment.setenv("SHOP_PASSWORD", address.superuser_password)
    url = f"postgresql+psycopg2://postgres:{{SHOP_PASSWORD}}@127.0.0.1:{address.port}/{shop}"
    path = database_tool(
        tmp_path_factory.mktemp("superuser"),
        url,
        tables=("products", "cheap", "recent", "days_of_recent", "months"),
        secrets=("SHOP_PASSWORD",),
        limits="seconds = 30\nrows = 20\nbytes = 10000",
    )
    runner = opened(path)
    yield runner
    runner.close()


def shopkeeper_tool(folder: Path, shop: str, server: RunningPostgres, patch: pytest.MonkeyPatch) -> Path:
    patch.setenv("SHOPKEEPER", PASSWORD)
    url = f"postgresql://shopkeeper:{{SHOPKEEPER}}@127.0.0.1:{server.address.port}/{shop}"
    return database_tool(folder, url, secrets=("SHOPKEEPER",))


@pytest.mark.parametrize("query", HOSTILE, ids=lambda query: f"{query:.60}")
def test_a_hostile_query_has_its_reason(superuser, query):
    assert ask(superuser, query) == HOSTILE[query]


@pytest.mark.parametrize("query", TOO_LONG, ids=lambda query: f"{query:.60}")
def test_a_query_without_end_is_ended(shop, postgres_server, monkeypatch, tmp_path, query):
    path = shopkeeper_tool(tmp_path, shop, postgres_server, monkeypatch)
    path.write_text(path.read_text().replace("[limits]", "[limits]\nseconds = 0.3"))
    runner = opened(path)
    assert ask(runner, query) == "query_timed_out"
    runner.close()


@pytest.mark.parametrize("query", HARMLESS, ids=lambda query: f"{query:.60}")
def test_a_query_that_reads_has_its_result(superuser, query):
    assert ask(superuser, query) == HARMLESS[query]


def test_no_hostile_query_changes_the_database(superuser, shop, postgres_server):
    for query in HOSTILE:
        ask(superuser, query)
    with closing(psycopg2.connect(postgres_server.dsn(shop))) as connection, connection.cursor() as cursor:
        cursor.execute("select name, stock from products order by name")
        assert cursor.fetchall() == [("cup", 12), ("jug", None), ("kettle", 667)]
        cursor.execute("select is_called from numbers")
        assert cursor.fetchall() == [(False,)]
        cursor.execute("select count(*) from pg_locks where locktype = 'advisory'")
        assert cursor.fetchall() == [(0,)]
        cursor.execute("select count(*) from pg_largeobject_metadata")
        assert cursor.fetchall() == [(0,)]


WITHOUT_THE_FIRST_BOUND = {
    "insert into products values ('x', 1, 1)": "query_invalid",
    "select nextval('numbers')": "query_writes",
    "select wipe()": "query_writes",
    "select lo_create(0)": "query_writes",
    "select set_config('transaction_read_only', 'off', false)": "query_invalid",
    "select 1; delete from products": "query_of_several_statements",
    "select 1) t; delete from products; select * from (select 1": "query_invalid",
    "with gone as (delete from products returning *) select * from gone": "query_writes",
    "copy products to program 'id'": "query_invalid",
    "select pg_sleep(100)": "query_timed_out",
    "select repeat('x', 2000000)": "query_result_too_large",
    "select generate_series(1, 1000000000)": "query_too_many_rows",
}
"""What the server says where the text of a query is not looked at: the second bound, without the first."""


@pytest.mark.parametrize("query", WITHOUT_THE_FIRST_BOUND, ids=lambda query: f"{query:.60}")
def test_the_server_refuses_what_the_look_at_the_text_would_miss(shop, postgres_server, monkeypatch, query):
    parameters = {
        "host": "127.0.0.1",
        "port": str(postgres_server.address.port),
        "user": "postgres",
        "password": postgres_server.address.superuser_password,
        "dbname": shop,
    }
    queries = PostgresQueries(DatabaseOpening(parameters, ("products",), 0.5, 20, 10_000))
    monkeypatch.setattr(postgres_queries, "check_postgres_query", lambda *_: [])
    with pytest.raises(RejectedInputError, match=WITHOUT_THE_FIRST_BOUND[query]):
        queries.answer(query)
    queries.answer("select count(*) from products")


def test_a_role_that_may_do_more_than_read_is_named(superuser, caplog):
    warnings = superuser.process.open()["warnings"]
    assert [warning.partition(". ")[0] for warning in warnings] == [
        "the role postgres is a superuser",
        "the role postgres may read files of the server, or run programs there",
        "the role postgres may write to cheap, days_of_recent, months, products, recent",
    ]


def test_a_role_that_only_reads_is_asked_without_a_warning_about_the_tables_that_it_may_read(
    tmp_path, shop, postgres_server, monkeypatch, caplog
):
    path = shopkeeper_tool(tmp_path, shop, postgres_server, monkeypatch)
    runner = opened(path)
    assert [table["name"] for table in runner.process.open()["tables"]] == ["cheap", "products"]
    assert ask(runner, "select stock from products where name = 'cup'") == "12"
    assert ask(runner, "select salary from staff") == "query_table_refused"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    runner.close()


def test_no_password_is_in_a_tool_file_or_an_error(tmp_path, shop, postgres_server, monkeypatch, caplog):
    path = shopkeeper_tool(tmp_path, shop, postgres_server, monkeypatch)
    assert PASSWORD not in path.read_text()
    monkeypatch.setenv("SHOPKEEPER", f"{PASSWORD}, a wrong one")
    with pytest.raises(ToolError, match="password authentication failed for user") as refused:
        opened(path)
    assert PASSWORD not in f"{refused.value}{caplog.text}"


def test_an_airflow_connection_has_the_address_of_the_database(tmp_path, shop, postgres_server, monkeypatch):
    path = shopkeeper_tool(tmp_path, shop, postgres_server, monkeypatch)
    text = path.read_text()
    url, secrets = [line for line in text.splitlines() if line.startswith(("url", "secrets"))]
    path.write_text(text.replace(url, 'connection = "the_shop"').replace(f"{secrets}\n", ""))
    port = postgres_server.address.port
    monkeypatch.setenv(
        "AIRFLOW_CONN_THE_SHOP",
        f"postgres://shopkeeper:s3cret%20of%20the%20%2Fshop%401@127.0.0.1:{port}/{shop}?sslmode=prefer",
    )
    runner = opened(path)
    assert ask(runner, "select count(*) from products") == "3"
    runner.close()
    monkeypatch.setenv(
        "AIRFLOW_CONN_THE_SHOP",
        f'{{"conn_type": "postgres", "login": "shopkeeper", "password": "{PASSWORD}", "host": "127.0.0.1", '
        f'"port": {port}, "schema": "{shop}"}}',
    )
    runner = opened(path)
    assert ask(runner, "select count(*) from products") == "3"
    runner.close()


def test_a_database_that_is_away_fails_the_batch_in_one_sentence(
    tmp_path, shop, postgres_server, monkeypatch
):
    path = shopkeeper_tool(tmp_path, shop, postgres_server, monkeypatch)
    path.write_text(path.read_text().replace(f":{postgres_server.address.port}/", ":1/"))
    with pytest.raises(
        InfrastructureError, match=r"tool Shop: expected a database that answers, found: .*refused"
    ) as away:
        opened(path)
    assert "\n" not in str(away.value)


def test_after_a_lost_connection_which_is_an_outage_the_next_query_has_another(
    tmp_path, shop, postgres_server, monkeypatch
):
    runner = opened(shopkeeper_tool(tmp_path, shop, postgres_server, monkeypatch))
    with closing(psycopg2.connect(postgres_server.dsn(shop))) as connection, connection.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'shopkeeper'")
        connection.commit()
    with pytest.raises(InfrastructureError, match="tool Shop: expected a database that answers"):
        ask(runner, "select count(*) from products")
    assert ask(runner, "select count(*) from products") == "3"
    runner.close()
