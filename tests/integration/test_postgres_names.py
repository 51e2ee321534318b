"""Queries of a Postgres that name what is not offered as the server reads names: each has its reason."""

from contextlib import closing

import psycopg2
import pytest

from tests.hostile_queries import ask, database_tool, opened

LONG = "a_table_whose_name_is_as_long_as_a_name_of_postgres_may_be_63_b"
SCHEMA = f"""
create schema hr;
create table orders (id int, category text, "Staff2" text);
create table staff2 (name text);
create table "Staff2" (name text, salary int);
create table category (name text);
create table {LONG} (salary int);
create table shifts (starts time);
create table hr.people (name text);
create table hr.orders (salary int);
create table hr.wages (salary int, name text);
create table "Größe" (salary int);
create sequence numbers;
create view grades as select name, salary / 1000 as grade from hr.wages;
create function {LONG}_f(anyelement) returns int language sql as 'select 7';
create function filter(int) returns int language sql as 'select 7';
insert into orders values (1, 'tea', 'blue');
insert into staff2 values ('Ada');
insert into "Staff2" values ('Ada', 5200);
insert into hr.people values ('Bo');
insert into hr.wages values (4100, 'Bo');
insert into hr.orders values (5200);
insert into {LONG} values (5200);
"""
OFFERED = ("orders", "staff2", "hr.people", "grades", "shifts")
HOSTILE = {
    # Longer than the server's names, which it cuts
    f"select salary from {LONG}": "query_table_refused",
    f"select salary from {LONG}xyz": "query_table_refused",
    f'select salary from "{LONG}xyz"': "query_table_refused",
    f"select salary from {LONG.upper()}XYZ": "query_table_refused",
    f"select o.{LONG}_f from orders o": "query_function_refused",
    f"select o.{LONG}_f_xyz from orders o": "query_function_refused",
    f"select {LONG}xyz(1)": "query_function_refused",
    # Of another schema, in other letters, below a view
    "select salary from hr.orders": "query_table_refused",
    'select salary from "hr"."orders"': "query_table_refused",
    "select salary from hr . orders as orders": "query_table_refused",
    'select salary from "Staff2"': "query_table_refused",
    'select s.salary from staff2 join "Staff2" s using (name)': "query_table_refused",
    "select salary from hr.wages": "query_table_refused",
    "select salary from grades join hr.wages using (name)": "query_table_refused",
    "select salary from shop_names.hr.wages": "query_table_refused",
    'select salary from "Größe"': "query_table_refused",
    "select salary from GRÖSSE": "query_invalid",
    "select name from category": "query_table_refused",
    "with c as (select * from category) select * from c": "query_table_refused",
    "with recursive orders as (select salary from hr.orders) select * from orders": "query_table_refused",
    "select exists (select from category)": "query_table_refused",
    "select 1 from orders where false and 1 in (select 1 from category)": "query_table_refused",
    # Sequences
    "select last_value from numbers": "query_table_refused",
    "select * from numbers": "query_table_refused",
    "table public.numbers": "query_table_refused",
    # Names by number
    "select 'category'::regclass": "query_table_refused",
    "select 16384::regclass": "query_table_refused",
    "select cast('hr.wages' as regclass)": "query_table_refused",
    "select regclass 'category'": "query_table_refused",
    "select 10::regrole": "query_table_refused",
    "select 'postgres'::\"regrole\"": "query_table_refused",
    "select 'filter(int)'::regprocedure": "query_table_refused",
    "select 'filter'::regproc": "query_table_refused",
    "select 'hr'::regnamespace": "query_table_refused",
    "select '{category}'::regclass[]": "query_table_refused",
    "select null::aclitem": "query_table_refused",
    "select tableoid from orders": "query_not_repeatable",
    # A keyword that is no reserved word is the name of a function
    "select filter(1)": "query_function_refused",
}
HARMLESS = {
    "select category from orders": "tea",
    "select o.category from orders o where category = 'tea'": "tea",
    'select "Staff2" from orders': "blue",
    "select name from staff2": "Ada",
    "select name from STAFF2": "Ada",
    "select name from hr.people": "Bo",
    "select orders.id from public.orders": "1",
    "select grade from grades": "4",
    "select g.grade from grades as g": "4",
    "with category as (select 5 as n) select n from category": "5",
    "select count(*) as a_very_long_name_that_a_model_gives_to_the_number_of_all_orders_of_the_shop from orders": "1",
}


@pytest.fixture(scope="module")
def runner(postgres_server, tmp_path_factory):
    """A database of which some tables are offered, as the superuser of its server."""
    name, address = "shop_names", postgres_server.address
    with (
        closing(psycopg2.connect(postgres_server.dsn("postgres"))) as connection,
        pytest.MonkeyPatch.context() as patch,
    ):
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"create database {name}")
            with closing(psycopg2.connect(postgres_server.dsn(name))) as inside, inside.cursor() as filling:
                filling.execute(SCHEMA)
                inside.commit()
            patch.setenv("SHOP_PASSWORD", address.superuser_password)
            url = f"postgresql://postgres:{{SHOP_PASSWORD}}@127.0.0.1:{address.port}/{name}"
            folder = tmp_path_factory.mktemp("names")
            runner = opened(database_tool(folder, url, tables=OFFERED, secrets=("SHOP_PASSWORD",)))
            yield runner
            runner.close()
            cursor.execute(f"drop database {name} with (force)")


@pytest.mark.parametrize("query", HOSTILE, ids=lambda query: f"{query:.60}")
def test_what_is_not_offered_is_refused_however_it_is_named(runner, query):
    assert ask(runner, query) == HOSTILE[query]


@pytest.mark.parametrize("query", HARMLESS, ids=lambda query: f"{query:.60}")
def test_what_is_offered_is_read_whatever_else_has_its_name(runner, query):
    assert ask(runner, query) == HARMLESS[query]


def test_a_time_of_day_of_a_table_has_no_time_zone(runner):
    assert ask(runner, "select starts at time zone 'Europe/Berlin' from shifts") == "query_not_repeatable"


def test_a_table_that_is_made_anew_under_its_name_is_still_offered(runner, postgres_server):
    with (
        closing(psycopg2.connect(postgres_server.dsn("shop_names"))) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("create table next (name text); insert into next values ('Ada'); drop table staff2")
        cursor.execute("alter table next rename to staff2")
        connection.commit()
    assert ask(runner, "select name from staff2") == "Ada"
