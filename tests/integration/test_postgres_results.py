"""What a query of a Postgres gets: the same for every role, and values as a text writes them."""

from contextlib import closing

import psycopg2
import pytest

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.databases.postgres_queries import PostgresQueries
from toolformer_ops.tools.databases.requests import DatabaseOpening

TABLES = """
create table events (at timestamptz, local_at timestamp, took interval);
insert into events values ('2021-10-13 23:30:00+00', '2021-10-13 08:05:00.5', '90 minutes');
create table amounts (plain numeric, scaled numeric(38, 18), wide double precision);
insert into amounts values (12345678901234567.89, 1.123456789012345678, 12345678901234567);
create table people (id int primary key, name text, salary numeric);
insert into people values (1, 'Ada', 5);
create table teams (people text);
insert into teams values ('Ada with Bob');
create role clerk login password 'c';
create table "Order Items" (id int primary key, at_id int references people(id), twice int generated always as (id * 2) stored);
grant select on events, amounts, teams, "Order Items" to clerk;
grant select (id, name) on people to clerk;
alter role clerk set timezone = 'Asia/Tokyo';
alter role clerk set datestyle = 'German';
alter role clerk set intervalstyle = 'iso_8601';
"""


@pytest.fixture(scope="module")
def clerk(postgres_server):
    """A database as a role whose settings are others, and that may read two columns of a table."""
    with closing(psycopg2.connect(postgres_server.dsn("postgres"))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("create database office")
            with closing(psycopg2.connect(postgres_server.dsn("office"))) as inside:
                inside.cursor().execute(TABLES)
                inside.commit()
            port = str(postgres_server.address.port)
            address = {
                "host": "127.0.0.1",
                "port": port,
                "user": "clerk",
                "password": "c",
                "dbname": "office",
            }
            yield PostgresQueries(DatabaseOpening(address, (), 5.0, 20, 10_000))
            cursor.execute("drop database office with (force)")
            cursor.execute("drop role clerk")


@pytest.mark.parametrize(
    ("query", "row"),
    [
        ("select at::date from events", ["2021-10-13"]),
        ("select at, local_at from events", ["2021-10-13 23:30:00", "2021-10-13 08:05:00.5"]),
        ("select took from events", ["01:30:00"]),
        ("select date '02/01/2023'", ["2023-02-01"]),
        ("select plain, scaled from amounts", ["12345678901234567.89", "1.123456789012345678"]),
        ("select wide, 'NaN'::double precision from amounts", ["12345678901234568", "NaN"]),
        ("select 37::numeric / 3, avg(x) from (values (1), (2)) as v(x)", ["12.3333333333333", "1.5"]),
        ("select 1::numeric / 3, 12345678901::numeric / 7", ["0.333333333333333", "1763668414.42857"]),
        ("select name, null, true from people", ["Ada", None, "true"]),
    ],
)
def test_a_query_gets_the_values_as_a_text_writes_them(clerk, query, row):
    assert clerk.answer(query) == [row]


def test_a_table_of_which_columns_are_granted_is_offered_with_these(clerk):
    columns = {table.name: list(table.columns) for table in clerk.describe().tables}
    assert columns["people"] == ["id", "name"]


def test_a_column_may_have_the_name_of_a_table_that_is_not_offered(clerk, postgres_server):
    address = {"host": "127.0.0.1", "port": str(postgres_server.address.port), "user": "clerk"}
    address |= {"password": "c", "dbname": "office"}
    one_table = PostgresQueries(DatabaseOpening(address, ("teams",), 5.0, 20, 10_000))
    assert one_table.answer("select people from teams") == [["Ada with Bob"]]


def test_a_table_has_its_keys_with_generated_columns(clerk):
    tables = {table.name: table for table in clerk.describe().tables}
    items = tables["Order Items"]
    assert list(items.columns) == ["id", "at_id", "twice"]
    assert items.keys == {"id": "primary key", "at_id": "references people(id)"}


def test_a_query_without_result_has_what_the_server_says(clerk):
    with pytest.raises(RejectedInputError) as refused:
        clerk.answer("select prise from amounts")
    assert (refused.value.reason, refused.value.message) == ("query_invalid", 'column "prise" does not exist')
