"""What people build on our views: by which role, where, and that a migration makes it again."""

import shutil
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg2
import psycopg2.errors
import pytest

from tests.run_sql import run_sql
from toolformer_ops.errors import BlockedMigrationError
from toolformer_ops.local import postgres
from toolformer_ops.storage.postgres import database, queries, schema

AsRole = Callable[..., list[tuple[Any, ...]]]


def signed_in(dsn: str) -> AsRole:
    """A function that runs statements, each committed, and returns the rows of the last."""

    def run(*statements: str) -> list[tuple[Any, ...]]:
        with closing(psycopg2.connect(dsn)) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
                connection.commit()
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def as_analyst(engine, postgres_server, database_name):
    schema.migrate(engine)  # rights on a database are not copied with it
    return signed_in(postgres_server.dsn(database_name, postgres.ANALYST))


@pytest.fixture
def as_superuser(postgres_server, database_name):
    return signed_in(postgres_server.address.dsn(database_name))


@pytest.fixture
def changed_views(tmp_path):
    """The files of SQL with another view, so that a migration makes all views anew."""
    folder = shutil.copytree(database.SQL_DIR, tmp_path / "sql")
    view = folder / "views" / "10_run_failed_documents.sql"
    view.write_text(view.read_text() + "-- changed\n")
    return folder


MINE = "create view analysts.mine as select run_id, tool, count(*) as calls from kept_calls group by run_id, tool"


@pytest.mark.parametrize(
    "statement",
    [
        "create table analysts.notes (run_id text, note text)",
        "create table without_a_schema (n int)",
        "create temporary table mine as select * from run_work",
        MINE,
        "create materialized view analysts.stored as select * from kept_calls",
        "create materialized view analysts.stored as select * from kept_calls_of('')",
    ],
)
def test_an_analyst_builds_in_the_schema_of_analysts(as_analyst, statement):
    as_analyst(statement)
    assert as_analyst("select count(*) from pg_class where relnamespace = 'public'::regnamespace and relowner = "
                      "'toolformer_analyst'::regrole") == [(0,)]  # fmt: skip


@pytest.mark.parametrize(
    "statement",
    [
        "create table public.mine (n int)",
        "create view public.mine as select 1",
        "insert into runs_not_started (run_id, problem) values ('r', 'p')",
        "delete from documents",
        "drop view kept_calls",
        "create schema another",
        "select pg_advisory_lock(1)",
    ],
)
def test_an_analyst_writes_nothing_of_the_factory(as_analyst, statement):
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        as_analyst(statement)


def test_a_dashboard_reads_what_an_analyst_built(engine, as_analyst):
    as_analyst(MINE)
    rights = "has_table_privilege('toolformer_reader', 'analysts.mine', 'select')"
    assert run_sql(engine, f"select {rights} as may")[0].may


BUILT: dict[str, tuple[str, ...]] = {
    "a view": (MINE,),
    "a view on a view": (MINE, "create view analysts.above as select sum(calls) as calls from analysts.mine"),
    "a view that dbt replaces": (
        MINE.replace("analysts.mine", '"analysts"."mine__dbt_tmp"'),
        'alter view "analysts"."mine__dbt_tmp" rename to "mine"',
    ),
    "a view with options": (MINE.replace(" as select", " with (security_barrier=true) as select"),),
    "a materialized view": (
        "create materialized view analysts.mine as select run_id, tool, call_id from kept_calls",
        "create unique index mine_by_call on analysts.mine (run_id, call_id)",
    ),
    "a function": (
        "create function analysts.of_run(run text) returns bigint language sql begin atomic "
        "select count(*) from kept_calls where run_id = run; end",
        "create view analysts.mine as select run_id, analysts.of_run(run_id) as calls from run_work",
    ),
    "a view on a question": (
        "create view analysts.mine as select tool, threshold, calls from how_many_calls_are_kept('night-1')",
    ),
    "a view on a function about a run": (
        "create view analysts.mine as select run_id, call_id from kept_calls_of('r1')",
    ),
    "comments and grants": (
        MINE,
        "comment on view analysts.mine is 'Ours''s'",
        "comment on column analysts.mine.calls is 'How many'",
        "grant select on analysts.mine to toolformer_reviewer",
    ),
}
DESCRIBED = """
select c.relname, c.relkind, pg_get_userbyid(c.relowner) as owner,
       array(select cast(acl as text) from unnest(c.relacl) acl order by 1) as acl,
       c.reloptions,
       pg_get_viewdef(c.oid) as definition, obj_description(c.oid, 'pg_class') as comment,
       array(select col_description(c.oid, a.attnum) from pg_attribute a where a.attrelid = c.oid and a.attnum > 0) as comments,
       array(select pg_get_indexdef(i.indexrelid) from pg_index i where i.indrelid = c.oid) as indexes
from pg_class c
where c.relnamespace = 'analysts'::regnamespace and c.relkind in ('v', 'm')
order by c.relname
"""


@pytest.mark.parametrize("built", BUILT)
def test_a_migration_makes_again_what_analysts_built(engine, as_analyst, changed_views, built):
    as_analyst(*BUILT[built])
    before = run_sql(engine, DESCRIBED)
    assert "views/10_run_failed_documents.sql" in schema.migrate(engine, changed_views)
    assert run_sql(engine, DESCRIBED) == before
    assert run_sql(engine, "select * from lost_views") == []
    assert run_sql(engine, "select oid from pg_class where relname = 'kept_calls'") != []


def test_a_view_on_a_table_that_a_migration_changes_is_made_again(engine, as_analyst, changed_views):
    as_analyst("create view analysts.titles as select title from documents")
    migration = "alter table documents alter column title type varchar"
    # The views of this version stand on the column, too.
    for file in [*changed_views.glob("views/*.sql"), *changed_views.glob("examples/*.sql")]:
        file.unlink()
    (changed_views / "migrations").mkdir(exist_ok=True)
    (changed_views / "migrations" / "9999_titles.sql").write_text(migration)
    views = run_sql(engine, "select name from schema_files where name like 'views/%' order by 1 desc")
    for view in views:
        run_sql(engine, f"drop view if exists {view.name.split('_', 1)[1].removesuffix('.sql')} cascade")
    schema.migrate(engine, changed_views)
    [column] = run_sql(
        engine,
        "select format_type(atttypid, atttypmod) as type from pg_attribute "
        "where attrelid = 'analysts.titles'::regclass and attnum = 1",
    )
    assert column.type == "character varying"


def test_a_view_that_cannot_be_made_again_is_kept_as_text_with_what_is_wrong(
    engine, as_analyst, changed_views, caplog
):
    as_analyst("create view analysts.reasons as select reason from run_failed_documents", MINE)
    view = changed_views / "views" / "10_run_failed_documents.sql"
    view.write_text(view.read_text().replace("failed.reason,", ""))
    schema.migrate(engine, changed_views)
    [lost] = run_sql(engine, "select name, owner, statements, problem from lost_views")
    assert (lost.name, lost.owner) == ("analysts.reasons", postgres.ANALYST)
    assert lost.statements.startswith("create view analysts.reasons as  SELECT reason")
    assert "reason" in lost.problem
    assert "view analysts.reasons of toolformer_analyst cannot be made again" in caplog.text
    assert as_analyst("select * from analysts.mine") == []


def test_a_view_that_a_person_made_again_is_lost_no_more(engine, as_analyst):
    insert = (
        "insert into lost_views (name, owner, statements, problem) values ('analysts.mine', 'a', 's', 'p')"
    )
    run_sql(engine, insert)
    assert [row.name for row in database.fetch_all(engine, queries.schema.lost_views)] == ["analysts.mine"]
    as_analyst(MINE)
    assert database.fetch_all(engine, queries.schema.lost_views) == []


def test_a_migration_changes_nothing_where_something_cannot_be_made_again(engine, as_analyst, changed_views):
    as_analyst(MINE, "create table analysts.rows_of_calls (one kept_calls)")
    before = run_sql(engine, "select oid from pg_class where relname = 'mine'")
    with pytest.raises(BlockedMigrationError, match=r"found table analysts\.rows_of_calls"):
        schema.migrate(engine, changed_views)
    assert run_sql(engine, "select oid from pg_class where relname = 'mine'") == before


def test_a_view_of_a_person_whom_the_owner_cannot_name_goes_to_the_analysts(
    engine, as_analyst, changed_views, as_superuser
):
    as_superuser("create role anna in role toolformer_analyst")
    try:
        as_superuser("set role anna", MINE)
        schema.migrate(engine, changed_views)
        [view] = run_sql(engine, DESCRIBED)
        assert view.owner == postgres.ANALYST
    finally:
        as_superuser("drop role anna")


def test_a_view_in_a_schema_of_others_stops_the_migration_that_would_drop_it(
    engine, changed_views, as_superuser
):
    as_superuser("create schema others", MINE.replace("analysts.", "others."))
    with pytest.raises(BlockedMigrationError, match=r"found view others\.mine, which cannot be made again"):
        schema.migrate(engine, changed_views)
    assert len(run_sql(engine, "select from pg_class where relname = 'mine'")) == 1
