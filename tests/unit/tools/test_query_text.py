"""What the text of a query says before Postgres reads it: which are refused and why, and which are let through."""

import pytest

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.databases.query_text import (
    Names,
    Token,
    check_postgres_query,
    first_word,
    postgres_tokens,
    without_last_semicolon,
)

NAMES = Names(
    functions={"age", "count", "date", "format", "lower", "lpad", "min"},
    own_functions={"seize", "filter"},
)
REFUSED = {
    "": "query_not_a_select",
    "( ( ": "query_not_a_select",
    '"select" 1': "query_not_a_select",
    "+ select 1": "query_not_a_select",
    "0 select 1": "query_not_a_select",
    "delete from products": "query_not_a_select",
    ";": "query_not_a_select",
    "select 1; select 2": "query_of_several_statements",
    "select 1 ; -- \n select 2": "query_of_several_statements",
    "select 'a' ; select 'b'": "query_of_several_statements",
    "select seize(1)": "query_function_refused",
    "select upper('a')": "query_function_refused",
    "select upper /* ( */ ('a')": "query_function_refused",
    'select "upper"(1)': "query_function_refused",
    'select "count(1)"(1)': "query_function_refused",
    "select public.lower('A')": "query_function_refused",
    'select public . "lower" (1)': "query_function_refused",
    "select t.seize from products t": "query_function_refused",
    "select (t).Seize from products t": "query_function_refused",
    "select distinct on (1) seize(1)": "query_function_refused",
    "select 1e5, seize(1)": "query_function_refused",
    "select .5 + seize(1)": "query_function_refused",
    "select 'it''s', seize(1)": "query_function_refused",
    "select '\\', seize(1), ''": "query_function_refused",
    "select $$a$$, seize(1)": "query_function_refused",
    "select $a$ $b$ $a$, seize(1)": "query_function_refused",
    "select a$b$ from seize(1)": "query_function_refused",
    "select 1 /* /* */ */ , seize(1)": "query_function_refused",
    "select 1 --\r, seize(1)": "query_function_refused",
    "select * from seize(a) as (b int)": "query_function_refused",
    "select * from seize(a) as (values int)": "query_function_refused",
    'select * from seize(a) as "b" (select int)': "query_function_refused",
    "with seize(a) as (select 1) select seize(1)": "query_function_refused",
    "select pg_sleep from products": "query_table_refused",
    'select * from "pg_class"': "query_table_refused",
    "select * from information_schema.tables": "query_table_refused",
    "select now()": "query_not_repeatable",
    'select "now" ()': "query_not_repeatable",
    "select clock_timestamp()": "query_not_repeatable",
    "select random()": "query_not_repeatable",
    "select gen_random_uuid()": "query_not_repeatable",
    "select CURRENT_DATE": "query_not_repeatable",
    "select name from products where day > current_date - 7": "query_not_repeatable",
    "select current_timestamp(0)": "query_not_repeatable",
    "select localtime": "query_not_repeatable",
    "select user": "query_not_repeatable",
    "select name from products tablesample bernoulli (50)": "query_not_repeatable",
    "select age(day) from products": "query_not_repeatable",
    "select age(lower(',')::date) from products": "query_not_repeatable",
    "select date('now')": "query_not_repeatable",
    "select 'Today'::date": "query_not_repeatable",
    "select $$ tomorrow 12:00 UTC $$::timestamptz": "query_not_repeatable",
    "select cast('today'::text as \"date\")": "query_not_repeatable",
    "select 'now'::text::pg_catalog.date": "query_table_refused",
    "select '12:00'::time with time zone": "query_not_repeatable",
    "select '12:00'::time(3)\nwith time zone": "query_not_repeatable",
    "select time '12:00' at time zone 'UTC'": "query_not_repeatable",
    "select xmin from products": "query_not_repeatable",
    "select filter(1)": "query_function_refused",
    "select lpad('a', 10001)": "query_function_refused",
    "select lpad('a', 5 * 10000)": "query_function_refused",
    "select lpad('a', n) from products": "query_function_refused",
    "select lpad('a')": "query_function_refused",
    "select format('%99999s', 'a')": "query_function_refused",
    "select format('%1$-99999s', 'a')": "query_function_refused",
    "select format('%*s', 99999, 'a')": "query_function_refused",
    "select format(name, 'a') from products": "query_function_refused",
    "select 'staff'::regclass": "query_table_refused",
    "select \u212ain_not_lower('A'), \u212aount(1)": "query_function_refused",
    "select e'a'": "query_invalid",
    "select 1E'a'": "query_invalid",
    "select u&'a'": "query_invalid",
    'select U&"a"': "query_invalid",
    "select 'a": "query_invalid",
    'select "a': "query_invalid",
    "select $$a": "query_invalid",
    "select $a$ $b$": "query_invalid",
    "select /* a": "query_invalid",
    "select /* /* */": "query_invalid",
    "select '\x00'": "query_invalid",
}
LET_THROUGH = (
    "select age(date '2024-01-01', date '2023-01-01'), date('2024-01-01')",
    "select name from products where name like 'Now and then%' or name = 'todays'",
    "select t.user, name as current_role, \"current_date\", 'select now()' from products t",
    "select now, random from products",
    "select name from products where name in ('(', ',', ';', '.')",
    "select 1",
    "SELECT 1 ;; ",
    "(select 1)",
    "table products",
    "values (1), (2)",
    "with p as (select 1) select * from p",
    "with p(n) as (select 1) select * from p",
    "with p(n, m) as not materialized (with q as (select 1) select * from q) select * from p",
    "select lower(name), count(*) from products where (stock > 1) and name in ('a', 'b')",
    "select cast(price as numeric(10, 2)), price::varchar(5) from products",
    "select n from (values (1)) as v(n)",
    "select 'seize(1); staff' as \"seize; (1)\"",
    "select $$ seize(1); $$, $a$ staff; $a$ -- seize(1);",
    "select 1 /* seize(1); /* staff */ */",
    "select seize, staffs from products",
    "select exists (select 1), not (true), case when (true) then (1) else (2) end",
    "select ue'a', u + 1",
    "select - -1 * (2)",
    "select lpad('a', 10000, (select 'b, c')), format('%s of %5s, 20000', 'a', 'b')",
    "select name from products where name = 'today' and day = date '2020-01-01'",
    "select timestamp '2020-01-01' at time zone 'UTC', t.time at time zone 'UTC' from products t",
    "select min(x) as xmin from products",
    'select "." lower(name) from products',
)


@pytest.mark.parametrize("query", REFUSED)
def test_a_query_is_refused_with_its_reason(query):
    with pytest.raises(RejectedInputError, match=f"^{REFUSED[query]}$"):
        check_postgres_query(query, NAMES)


@pytest.mark.parametrize("query", LET_THROUGH)
def test_a_query_that_reads_is_let_through(query):
    check_postgres_query(query, NAMES)


def test_words_are_in_small_letters_beside_quoted_names_as_they_are():
    tokens = postgres_tokens('Select "Na""me", 12.5e3 -- comment')
    assert tokens == [
        Token("select", is_word=True),
        Token('Na"me', is_quoted_name=True),
        Token(","),
        Token("12.5e3"),
    ]


def test_a_name_is_cut_at_63_bytes_at_the_end_of_a_character():
    assert postgres_tokens("a" * 64 + ' "' + "é" * 32 + '"') == [
        Token("a" * 63, is_word=True),
        Token("é" * 31, is_quoted_name=True),
    ]


def test_texts_are_without_their_quotes():
    tokens = postgres_tokens("'it''s' $a$ A; $a$")
    assert tokens == [Token("it's", is_text=True), Token(" A; ", is_text=True)]


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("Select 1", "select"),
        (" \n-- delete\n/* insert */ with a", "with"),
        ("/* a ** b */select", "select"),
        ("'select'", ""),
        ("", ""),
        ("-- select", ""),
        ("/* select", ""),
    ],
)
def test_the_first_word_is_behind_comments(query, word):
    assert first_word(query) == word


def test_a_last_semicolon_is_no_part_of_a_query_within_another():
    assert without_last_semicolon("select 1 ; ;\n") == "select 1"
