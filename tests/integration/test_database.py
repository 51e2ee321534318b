import contextlib
import io
import json
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import hypothesis
import psycopg2
import psycopg2.extras
import pytest
from hypothesis import strategies as st
from sqlalchemy import Engine, make_url, text
from typer.main import get_command
from typer.testing import CliRunner

from tests.run_sql import run_sql
from tests.servers import settings_of
from toolformer_ops.cli import stages
from toolformer_ops.cli.command_line import app
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.errors import ConfigurationError, DatabaseError, DatabaseUnreachableError
from toolformer_ops.local import postgres
from toolformer_ops.runs import self_check
from toolformer_ops.runs.self_check import Finding, findings
from toolformer_ops.storage.objects import artifacts
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, partitions, queries, schema
from toolformer_ops.storage.postgres.copy_format import copy_text

RECIPE = "0123456789abcdef"
DOCUMENT_COLUMNS = ("document_id", "text", "url", "document_date", "title", "escaped_characters")


def _document(number: int, content: str) -> tuple[object, ...]:
    return uuid.UUID(int=number), content, None, None, None, 0


def _value(engine: Engine, statement: str) -> object:
    return run_sql(engine, statement)[0][0]


# Connecting


def test_an_unreachable_database_is_named_without_its_password(postgres_dsn):
    here = make_url(postgres_dsn)
    nobody = here.set(username="nobody_here", password="s3cret").render_as_string(hide_password=False)
    for dsn, says in (
        ("postgresql://someone:s3cret@127.0.0.1:1/toolformer", r"someone@127\.0\.0\.1:1/toolf"),
        *(
            (dsn, "TOOLFORMER_DATABASE_DSN")
            for dsn in ("", "mysql://u:s3cret@h/d", "postgresql://u:s3cret@h:port/d")
        ),
        # A login that Postgres refuses is a wrong request and no outage.
        (
            here.set(database="nothing_here").render_as_string(hide_password=False),
            '"nothing_here" does not exist',
        ),
        (nobody, "nobody_here"),
    ):
        with pytest.raises(
            DatabaseUnreachableError if ":1/" in dsn else ConfigurationError, match=says
        ) as caught:
            database.connect(settings_of(dsn))
        assert "s3cret" not in str(caught.value)
    for prefix in ("postgres://", "postgresql+psycopg2://"):
        engine = database.connect(settings_of(postgres_dsn.replace("postgresql://", prefix)))
        assert _value(engine, "select 1") == 1


def test_that_too_many_are_connected_names_the_limit_as_the_remedy(
    postgres_server, database_name, postgres_dsn
):
    with contextlib.closing(psycopg2.connect(postgres_server.address.dsn("postgres"))) as connection:
        connection.autocommit = True
        connection.cursor().execute(f"alter database {database_name} connection limit 0")
    with pytest.raises(DatabaseUnreachableError, match=r"too many connections.*raise the limit") as caught:
        database.connect(settings_of(postgres_dsn))
    assert "toolformer-ops up" not in str(caught.value)


@pytest.mark.parametrize(
    "said",
    [
        "sorry, too many clients already",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'too many connections for role "toolformer"',
        "no more connections allowed (max_client_conn)",
    ],
)
def test_each_way_to_say_that_too_many_are_connected_is_recognised(said):
    assert database._TOO_MANY.search(said)


def test_a_connection_that_postgres_ends_is_an_outage_but_not_a_refused_statement(engine):
    for statement, error in (
        ("select pg_terminate_backend(pg_backend_pid())", DatabaseUnreachableError),
        ("select 1 / 0", DatabaseError),
    ):
        with pytest.raises(DatabaseError) as caught, database.transaction(engine) as connection:
            connection.execute(text(statement))
        assert type(caught.value) is error


def test_every_table_or_view_says_what_its_columns_hold(settings):
    silent = """
        select c.relname, a.attname
        from pg_class c
        left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v') and c.relname <> 'schema_files'
          and (col_description(c.oid, a.attnum) is null or obj_description(c.oid, 'pg_class') is null)
    """
    assert run_sql(settings, silent) == []


def test_every_file_that_a_comment_names_is_there(engine):
    comments = run_sql(
        engine,
        "select d.description from pg_description d join pg_class c on c.oid = d.objoid "
        "where c.relnamespace = current_schema()::regnamespace",
    )
    named = {name for (comment,) in comments for name in re.findall(r"[a-z_/]+/[a-z_]+\.py", comment)}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (REPOSITORY / "toolformer_ops" / name).exists()] == []


def test_new_migrations_are_applied_once(engine, sql_folder):
    migrations = sql_folder / "migrations"
    (migrations / "9997_one.sql").write_text("create table one (n int);")
    assert schema.migrate(engine, sql_folder) == ["migrations/9997_one.sql"]
    assert schema.migrate(engine, sql_folder) == []


def test_a_failing_migration_leaves_nothing_behind(engine, sql_folder):
    migrations = sql_folder / "migrations"
    (migrations / "9998_good.sql").write_text("create table good (n int);")
    (migrations / "9999_bad.sql").write_text("create table bad (n no_such_type);")
    with pytest.raises(DatabaseError, match=r"9999_bad\.sql: Postgres refused"):
        schema.migrate(engine, sql_folder)
    (migrations / "9999_bad.sql").write_text("create table never (); select pg_sleep(60);")
    with pytest.raises(DatabaseError, match=r"9999_bad\.sql.*may take 0\.2 s; .*--statement-seconds"):
        schema.migrate(engine, sql_folder, statement_seconds=0.2)
    assert _value(engine, "select coalesce(to_regclass('good'), to_regclass('never')) is null") is True


def test_neither_a_changed_file_of_tables_nor_a_database_without_the_baseline_is_taken(engine, sql_folder):
    path = sql_folder / "schema" / "01_corpora.sql"
    path.write_text(path.read_text() + "-- changed\n")
    with pytest.raises(DatabaseError, match=r"01_corpora\.sql: expected the content that was applied"):
        schema.migrate(engine, sql_folder)
    run_sql(
        engine, "update schema_files set name = 'migrations/0001_corpora.sql' where name like 'schema/01%'"
    )
    run_sql(engine, "delete from schema_files where name not like 'migrations/0001%'")
    with pytest.raises(
        ConfigurationError, match=r"found those of an older development version.*`make clean`"
    ):
        schema.migrate(engine)


# Schema


@pytest.fixture
def sql_folder(tmp_path):
    folder = shutil.copytree(database.SQL_DIR, tmp_path / "sql")
    (folder / "migrations").mkdir(exist_ok=True)
    return folder


@pytest.fixture
def newer_database(settings):
    """A database that a newer version has migrated; `settings` and the environment name it."""
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        database.execute(
            connection, queries.schema.insert_file, name="migrations/9999_more.sql", sha256="0" * 64
        )
    return engine


CORPUS = str(Path(__file__))
CHOICES = json.dumps({"corpus": CORPUS, "model": "MODEL", "tools": ["Calculator"]})
OPTIONS = {
    "--run": "r",
    "--tool": "Calculator",
    "--corpus": CORPUS,
    "--source": CORPUS,
    "--release": "0" * 16,
}
OPTIONS |= {"--suite": "math", "--publish": ""}
WRITING = (
    "audit; retention --yes; retry-failed --run r; publish-model MODEL; migrate; forget --yes --corpus "
    + CORPUS
)
"""Commands that write besides the stages, which are asked with what they require."""


def test_a_command_that_writes_refuses_the_database_of_newer_code(newer_database, tiny_model_dir):
    commands = [command.split() for command in WRITING.split("; ")]
    for name, stage in get_command(stages.app).commands.items():  # type: ignore[attr-defined]
        options = OPTIONS | {"--parameters": "{}" if name == "start-finetuning" else CHOICES}
        asked = [one.opts[0] for one in stage.params if one.required or one.name == "publish"]
        commands.append(["stage", name, *(word for one in asked for word in (one, options[one]) if word)])
    for command in commands:
        found = CliRunner().invoke(app, [word.replace("MODEL", str(tiny_model_dir)) for word in command])
        assert isinstance(found.exception, ConfigurationError), (command, found)
        assert "found migrations/9999_more.sql of a newer version" in str(found.exception)


@pytest.fixture
def development(engine):
    """A database as the last development version left it: the same tables, made by its schema and migrations."""
    run_sql(engine, "update schema_files set sha256 = repeat('0', 64) where name like 'schema/%'")
    for name in ("migrations/0001_rooms_of_writers.sql", database.BASELINE):
        insert = "insert into schema_files (name, sha256) values (:name, repeat('0', 64))"
        run_sql(engine, insert, name=name)
    return engine


@pytest.fixture
def baseline_folder(sql_folder):
    """The files without migrations: those of `development` are made, as everywhere in these tests."""
    for path in (sql_folder / "migrations").glob("*.sql"):
        path.unlink()
    return sql_folder


def test_a_database_of_the_last_development_version_is_taken_as_the_baseline(development, baseline_folder):
    schema.migrate(development, baseline_folder)
    files = "select name from schema_files where name like 'schema/%' or name like 'migrations/%' order by 1"
    schema_files = sorted(f"schema/{path.name}" for path in (database.SQL_DIR / "schema").glob("*.sql"))
    assert [name for (name,) in run_sql(development, files)] == schema_files


def test_a_database_that_was_taken_as_the_baseline_is_migrated_no_more(development, baseline_folder):
    schema.migrate(development, baseline_folder)
    assert schema.migrate(development, baseline_folder) == []


def test_a_database_of_an_older_development_version_is_sent_by_the_commit_that_migrates_it(development):
    run_sql(development, "delete from schema_files where name = :name", name=database.BASELINE)
    with pytest.raises(ConfigurationError, match=f"check out {database.BASELINE_COMMIT}, run"):
        schema.migrate(development)


def test_functions_with_their_views_are_made_anew_when_one_changes(engine, sql_folder):
    path, answer = sql_folder / "functions" / "02_losses.sql", sql_folder / "views" / "99_answer.sql"
    path.write_text(path.read_text().replace("gain >= keep_threshold", "gain > keep_threshold"))
    answer.write_text("create view answer as select 42 as n;")
    made = {"functions/02_losses.sql", "views/05_kept_calls.sql", "views/99_answer.sql"}
    assert made <= set(schema.migrate(engine, sql_folder))
    assert _value(engine, "select is_kept(null, 1.0, 1.0)") is False
    assert schema.migrate(engine, sql_folder) == []
    answer.write_text("create view answer as select 'forty-two' as word;")
    schema.migrate(engine, sql_folder)
    assert _value(engine, "select word from answer") == "forty-two"
    answer.unlink()
    schema.migrate(engine)
    assert _value(engine, "select is_kept(null, 1.0, 1.0)") is True


def test_a_migration_that_gives_up_its_wait_for_a_lock_says_who_has_it(engine, sql_folder, monkeypatch):
    with (sql_folder / "views" / "01_run_documents.sql").open("a") as file:
        file.write("-- changed\n")
    reader = engine.connect()
    reader.execute(
        text("select count(*) from kept_calls")
    )  # an open transaction, which keeps the view locked
    process = reader.execute(text("select pg_backend_pid()")).scalar_one()
    with pytest.raises(DatabaseError, match=rf"toolformer.* \(process {process} of .*pg_terminate_backend"):
        schema.migrate(engine, sql_folder, lock_seconds=0.4)
    # Nothing was changed, and nobody waits behind the migration.
    assert _value(engine, "select count(*) from kept_calls") == 0
    # It tries again until the lock is free.
    pauses = iter([lambda: None, reader.close])
    monkeypatch.setattr(schema.time, "sleep", lambda _: next(pauses)())
    assert "views/01_run_documents.sql" in schema.migrate(engine, sql_folder, lock_seconds=0.4)
    assert list(pauses) == []


def test_a_migration_names_only_the_session_that_it_waits_for(
    engine, sql_folder, postgres_dsn, reader_dsn, monkeypatch
):
    monkeypatch.setattr(schema, "LOCK_TRIES", 1)
    with (sql_folder / "views" / "01_run_documents.sql").open("a") as file:
        file.write("-- changed\n")
    look = "select count(*) from kept_calls"
    with (
        contextlib.closing(psycopg2.connect(reader_dsn)) as holder,
        contextlib.closing(psycopg2.connect(postgres_dsn)) as waiter,
    ):
        holder.cursor().execute(look)

        def look_behind() -> None:
            cursor = waiter.cursor()
            end = time.monotonic() + 20
            while time.monotonic() < end:  # until the migration waits
                cursor.execute("select exists (select from pg_locks where not granted)")
                if cursor.fetchone() == (True,):
                    break
            cursor.execute(look)

        behind = threading.Thread(target=look_behind)
        behind.start()
        with pytest.raises(DatabaseError) as caught:
            schema.migrate(engine, sql_folder, lock_seconds=2.0)
        behind.join()
        process = holder.info.backend_pid
        assert f"(process {process} of Postgres, user {postgres.PAGE})" in str(caught.value)
        assert f"process {waiter.info.backend_pid} " not in str(caught.value)
        assert " 0 s" not in str(caught.value)  # another role's times are not seen


# Loading


SPECIAL = st.sampled_from("\t\n\r\\\b\f\v\"'{},.N\u2400\U0001d11e%:")
TEXTS = st.text(SPECIAL | st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
REAL = st.floats(width=32, allow_nan=False)
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXTS | st.sampled_from(["\\N", "\\.", "NULL", "\\x41"]),
    "text[]": st.lists(TEXTS | st.sampled_from(["NULL", "{}", ""]) | st.none(), max_size=4),
    "jsonb": st.dictionaries(TEXTS, st.integers(-(2**53), 2**53) | TEXTS | st.none(), max_size=3),
    "boolean": st.booleans(),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double precision": st.floats(allow_nan=False),
    "real[]": st.lists(
        st.lists(REAL, min_size=2, max_size=2) | st.just([None, None]), max_size=3
    ),  # of two tokens
    "uuid": st.uuids(),
}


@hypothesis.seed(0)
@hypothesis.settings(derandomize=True, max_examples=60, deadline=None, database=None)
@hypothesis.given(rows=st.lists(st.tuples(*(st.none() | values for values in COLUMNS.values())), max_size=6))
def test_what_is_copied_is_what_postgres_then_holds(postgres_server, rows):
    """The rows of all stages go by COPY's text format; Postgres itself says what it read."""
    opened = contextlib.closing(psycopg2.connect(postgres_server.dsn("postgres")))
    with opened as connection, connection.cursor() as cursor:
        columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(COLUMNS))
        cursor.execute(f"create temporary table copied (row_number serial, {columns})")
        psycopg2.extras.register_uuid(conn_or_curs=connection)
        names = ", ".join(f"c{n}" for n in range(len(COLUMNS)))
        cursor.copy_expert(f"copy copied ({names}) from stdin", io.StringIO(copy_text(rows)))
        exact = [
            f"c{n}::double precision[]" if kind == "real[]" else f"c{n}" for n, kind in enumerate(COLUMNS)
        ]
        cursor.execute(f"select {', '.join(exact)} from copied order by row_number")
        assert cursor.fetchall() == rows


def _load(engine: Engine, rows: Iterable[tuple[object, ...]], table: str = "documents", *columns: str) -> int:
    with database.transaction(engine) as connection:
        return database.copy_insert(connection, table, columns or DOCUMENT_COLUMNS, rows)


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """What each returns, all started together."""
    start = threading.Barrier(len(work))
    with ThreadPoolExecutor(len(work)) as threads:
        return list(threads.map(lambda task: (start.wait(), task())[1], work))


def test_a_row_that_is_loaded_twice_stays_as_it_was_counted_once(engine):
    assert _load(engine, [_document(1, "old")]) == 1
    assert _load(engine, [_document(1, "new"), _document(2, "two"), _document(2, "two again")]) == 1
    assert _value(engine, "select array_agg(text order by document_id) from documents") == ["old", "two"]


def test_two_who_load_the_same_rows_at_once_count_each_once(engine):
    rows = [_document(number, "x") for number in range(10, 210)]  # in opposite order both end
    assert sum(at_once(lambda: _load(engine, rows), lambda: _load(engine, rows[::-1]))) == 200


def test_a_transaction_takes_several_loads_of_any_size_or_none_of_them(engine):
    number = database.ROWS_PER_COPY + 5  # more than one piece
    for fails in (True, False):
        with contextlib.suppress(KeyError), database.transaction(engine) as connection:
            many = (_document(n, "x") for n in range(2, number + 2))
            for rows, expected in (([], 0), ([_document(1, "x")], 1), (many, number)):
                assert database.copy_insert(connection, "documents", DOCUMENT_COLUMNS, rows) == expected
            if fails:
                raise KeyError
        assert _value(engine, "select count(*) from documents") == (0 if fails else number + 1)


def test_neither_texts_nor_names_that_postgres_cannot_store_reach_it(engine):
    for content in ("a\x00b", "a\ud800b"):
        with pytest.raises(DatabaseError, match=r"U\+0000|surrogate"):
            _load(engine, [_document(1, content)])
    for table, column in (
        ("pg_authid", "rolname"), ("documents; drop table documents", "text"), ("documents", 'text") from x; --'),
    ):  # fmt: skip
        with pytest.raises(DatabaseError, match="expected a table of"):
            _load(engine, [("x",)], table, column)
    for table, recipe in (("documents", RECIPE), ("candidate_calls", "x'); drop table documents")):
        with engine.connect() as connection, pytest.raises(DatabaseError, match="16 hex digits"):
            partitions.ensure_partition(connection, table, recipe)


# Partitions


def test_many_threads_that_want_the_same_partition_make_it_once_while_another_stage_writes(engine):
    def ensure() -> None:
        with database.transaction(engine) as connection:
            connection.execute(text("set local lock_timeout = '20s'"))
            partitions.ensure_partition(connection, "candidate_calls", RECIPE)

    with database.transaction(engine) as writing:
        database.fetch_all(writing, queries.corpora.by_id, corpus_id=RECIPE)
        writing.execute(
            text("select count(*) from candidate_calls")
        )  # holds a lock on the parent until the end
        at_once(*[ensure] * 4)
    assert (
        _value(engine, "select count(*) from pg_inherits where inhparent = 'candidate_calls'::regclass") == 1
    )


# Finding work


def test_only_inputs_with_a_row_of_this_version_of_the_tool_are_known(annotated):
    keys = [uuid.UUID(f"0{number}000000-0000-0000-0000-000000000000") for number in (1, 3, 9)]
    for version, expected in (("1", [([], "divides_by_zero"), (["0.29"], None)]), ("2", [])):
        with database.transaction(annotated) as connection:
            asked = {"tool": "Calculator", "tool_version": version, "input_keys": keys}
            found = database.fetch_all(connection, queries.undone.known_results, **asked)
        assert sorted((row.results, row.reason) for row in found) == expected


def test_remaining_work_counts_unscored_documents_at_measured_seconds_a_token(annotated):
    run_sql(
        annotated,
        "insert into micro_batches (run_id, tool, stage, recipe_id, documents, tokens, rows_written, seconds) values "
        "('r2', 'Calculator', 'sample', '51', 2, 20, 6, 5), ('r1', 'Calculator', 'sample', '51', 1, 10, 1, 4), "
        "('r2', 'Calculator', 'execute', 'e1', 2, 20, 7, 1), ('r1', 'Calculator', 'score', 'a1', 9, null, 9, 99), "
        "('r2', 'Calculator', 'score', 'a1', 3, 30, 7, 9), ('r1', 'Calculator', 'score', 'a1', 0, 0, 0, 0)",
    )
    other = "f" * 16  # a recipe that nothing was done under
    members = {"corpus_id": "c" + "0" * 15, "at_version": 1}
    members |= {"base_version": 0, "base_ordinal": 0, "reads_record": False}  # nothing is finished
    asked = {"filter_recipe_id": "f1", "execution_recipe_id": "e1"}
    # (5 + 4) / (20 + 10) + 1 / 20 + 9 / 30; a micro-batch from before tokens were counted says nothing
    for below, sampling, scoring, expected in (
        (9, "51", "a1", (0, 0, pytest.approx(0.65))),
        (9, "51", other, (3, 37, pytest.approx(0.35))),
        (3, other, other, (2, ANY, None)),
    ):
        asked |= {"sampling_recipe_id": sampling, "scoring_recipe_id": scoring}
        with database.transaction(annotated) as connection:
            work = database.fetch_all(
                connection,
                queries.planning.remaining_work,
                members=members | {"below_ordinal": below},
                **asked,
            )
        assert [(one.documents, one.tokens, one.seconds_per_token) for one in work] == [expected]


def test_a_command_that_reads_works_on_the_database_of_newer_code(newer_database, settings):
    for command, says in (
        ("runs --json", "[]"),
        ("changes r", "expected the id of a run or a release, found 'r'"),
        (f"explain --run r --call-id {'0' * 32}", "expected"),
        (f"download {'0' * 16} folder", "nothing published at"),
    ):
        found = CliRunner().invoke(app, command.split())
        assert not isinstance(found.exception, ConfigurationError), command
        assert says in found.stdout + str(found.exception)


def test_nothing_is_published_from_code_older_than_its_database(settings, newer_database):
    with pytest.raises(ConfigurationError, match="of a newer version"):
        artifacts.publish(settings, "model", "m", "models/m", {"config.json": Path(__file__)}, source="m")
    assert list(ObjectStore(settings).list("models/")) == []


def test_the_doctor_names_a_database_of_newer_code(settings, newer_database):
    [doctor] = [finding for finding in findings(settings) if finding.subject == "Postgres"]
    assert (doctor.state, "migrations/9999_more.sql of a newer version" in doctor.detail) == ("missing", True)


def finding_about(subject: str, settings: Settings) -> Finding:
    [finding] = [finding for finding in findings(settings) if finding.subject == subject]
    return finding


def locks_finding(settings: Settings) -> Finding:
    return finding_about("Postgres locks", settings)


def test_the_doctor_says_how_large_the_buffers_of_postgres_are(settings):
    finding = finding_about("Postgres memory", settings)
    assert finding.state == "ok"
    assert re.fullmatch(
        r"0\.06 GiB of shared_buffers for 0\.0\d GiB of data; 4 MiB of work_mem for each sort of \d+ sessions",
        finding.detail,
    )


def test_the_doctor_names_buffers_that_are_too_small_for_the_database(settings, monkeypatch):
    monkeypatch.setattr(self_check, "BYTES_PER_BUFFER_BYTE", 0.001)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=16 * 2**30))
    finding = finding_about("Postgres memory", settings)
    assert finding.state == "missing"
    assert "Set shared_buffers to 2,048MB or more" in finding.detail


def test_the_doctor_names_sorts_that_take_more_than_half_of_the_memory(settings, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=2**29))
    finding = finding_about("Postgres memory", settings)
    assert finding.state == "missing"
    assert "Set work_mem to 2MB or less" in finding.detail


@pytest.mark.parametrize(("memory_gib", "buffers_mb"), [(2, 256), (24, 1536), (512, 8192)])
def test_the_buffers_of_the_embedded_postgres_follow_the_memory(memory_gib, buffers_mb):
    assert postgres.shared_buffers_mb(memory_gib * 2**30) == buffers_mb


def test_the_doctor_says_how_many_locks_a_question_about_all_runs_takes(settings):
    finding = locks_finding(settings)
    assert finding.state == "ok"
    assert re.search(r"[0-9,]+ locks; a question to the views takes up to [0-9]+", finding.detail)


def test_the_doctor_names_the_setting_where_sessions_would_fill_the_locks(settings, monkeypatch):
    monkeypatch.setattr(self_check, "SESSIONS_AT_ONCE", 1_000_000)
    finding = locks_finding(settings)
    assert finding.state == "missing"
    assert "Set max_locks_per_transaction to" in finding.detail


@pytest.mark.parametrize("rows", [0, 2])
def test_another_number_of_rows_than_the_one_that_is_expected_is_an_error(engine, rows):
    statement = queries.Statement("numbers", "select * from generate_series(1, :rows)")
    with pytest.raises(DatabaseError, match=f"numbers: expected one row, found {rows}"):
        database.fetch_one(engine, statement, rows=rows)
