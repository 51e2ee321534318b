import io
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis
import psycopg2
import psycopg2.extras
import pytest
from hypothesis import strategies as st
from pydantic import SecretStr
from sqlalchemy import Engine, make_url, text
from typer.testing import CliRunner

from tests.run_sql import run_sql
from tests.servers import RunningPostgres, copied_database
from toolformer_ops.cli import stages
from toolformer_ops.cli.command_line import app
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, DatabaseError, DatabaseUnreachableError
from toolformer_ops.local import postgres
from toolformer_ops.runs.self_check import findings
from toolformer_ops.storage import artifacts, database, queries, schema
from toolformer_ops.storage.copy_format import copy_text
from toolformer_ops.storage.publication import ObjectStore

RECIPE = "0123456789abcdef"
DOCUMENT_COLUMNS = ("document_id", "text", "url", "document_date", "title", "escaped_characters")


def _settings(dsn: str) -> Settings:
    return Settings(_env_file=None, database_dsn=SecretStr(dsn))  # type: ignore[call-arg]


def _document(number: int, content: str) -> tuple[object, ...]:
    return uuid.UUID(int=number), content, None, None, None, 0


def _value(engine: Engine, statement: str) -> object:
    return run_sql(engine, statement)[0][0]


# Connecting


@pytest.mark.parametrize(
    ("dsn", "error", "says"),
    [
        ("postgresql://someone:s3cret@127.0.0.1:1/toolformer", DatabaseUnreachableError,
         r"someone@127\.0\.0\.1:1/toolformer \(TOOLFORMER_DATABASE_DSN\)"),
        *((dsn, ConfigurationError, "TOOLFORMER_DATABASE_DSN")
          for dsn in ("", "mysql://u:s3cret@h/d", "postgresql://u:s3cret@h:port/d")),
    ],
)  # fmt: skip
def test_an_unreachable_database_is_named_without_its_password(dsn: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        database.connect(_settings(dsn))
    assert "s3cret" not in str(caught.value)


def test_a_login_that_postgres_refuses_is_a_wrong_request_and_no_outage(postgres_dsn: str) -> None:
    for says, changes in (
        ('database "nothing_here" does not exist', {"database": "nothing_here"}),
        ("nobody_here", {"username": "nobody_here", "password": "s3cret"}),
    ):
        dsn = make_url(postgres_dsn).set(**changes).render_as_string(hide_password=False)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=says) as caught:
            database.connect(_settings(dsn))
        assert "s3cret" not in str(caught.value)


def test_a_connection_that_postgres_ends_is_an_outage_and_a_refused_statement_is_not(postgres_dsn: str) -> None:
    engine = database.connect(_settings(postgres_dsn))
    with (
        pytest.raises(DatabaseUnreachableError, match="Postgres cannot serve now"),
        database.transaction(engine) as connection,
    ):
        connection.execute(text("select pg_terminate_backend(pg_backend_pid())"))
    with pytest.raises(DatabaseError, match="division by zero") as caught, database.transaction(engine) as connection:
        connection.execute(text("select 1 / 0"))
    assert not isinstance(caught.value, DatabaseUnreachableError)


def test_all_usual_spellings_of_the_address_connect(postgres_dsn: str) -> None:
    for prefix in ("postgresql://", "postgres://", "postgresql+psycopg2://"):
        engine = database.connect(_settings(postgres_dsn.replace("postgresql://", prefix)))
        assert _value(engine, "select 1") == 1


def test_new_migrations_are_applied_once_and_a_failing_one_leaves_nothing_behind(
    engine: Engine, sql_folder: Path
) -> None:
    migrations = sql_folder / "migrations"
    (migrations / "9997_one.sql").write_text("create table one (n int);")
    assert schema.migrate(engine, sql_folder) == ["migrations/9997_one.sql"]
    assert schema.migrate(engine, sql_folder) == []
    (migrations / "9998_good.sql").write_text("create table good (n int);")
    (migrations / "9999_bad.sql").write_text("create table bad (n no_such_type);")
    with pytest.raises(DatabaseError, match=r"9999_bad\.sql: Postgres refused"):
        schema.migrate(engine, sql_folder)
    (migrations / "9999_bad.sql").write_text("create table never (); select pg_sleep(60);")
    with pytest.raises(DatabaseError, match=r"9999_bad\.sql.*TOOLFORMER_MIGRATION_STATEMENT_SECONDS \(now 0\.2\)"):
        schema.migrate(engine, sql_folder, statement_seconds=0.2)
    assert _value(engine, "select coalesce(to_regclass('good'), to_regclass('never')) is null") is True


def test_a_file_of_tables_that_was_changed_and_a_database_without_the_baseline_are_refused(
    engine: Engine, sql_folder: Path
) -> None:
    path = sql_folder / "schema" / "01_corpora.sql"
    path.write_text(path.read_text() + "-- changed\n")
    with pytest.raises(DatabaseError, match=r"01_corpora\.sql: expected the content that was applied"):
        schema.migrate(engine, sql_folder)
    run_sql(engine, "update schema_files set name = 'migrations/0001_corpora.sql' where name like 'schema/01%'")
    run_sql(engine, "delete from schema_files where name not like 'migrations/0001%'")
    with pytest.raises(ConfigurationError, match=r"found those of a development version.*`make clean`"):
        schema.migrate(engine)


# Schema


def test_every_table_view_and_column_says_what_it_holds(engine: Engine) -> None:
    silent = """
        select string_agg(c.relname || coalesce('.' || a.attname, ''), ', ')
        from pg_class c
        left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v') and c.relname <> 'schema_files'
          and (col_description(c.oid, a.attnum) is null or obj_description(c.oid, 'pg_class') is null)
    """
    assert _value(engine, silent) is None


@pytest.fixture
def sql_folder(tmp_path: Path) -> Path:
    for folder in ("schema", "migrations", "functions", "views"):
        (tmp_path / folder).mkdir()
        for path in (database.SQL_DIR / folder).glob("*.sql"):
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    for name in ("reader_role.sql", "reviewer_role.sql"):
        (tmp_path / name).write_bytes((database.SQL_DIR / name).read_bytes())
    return tmp_path


@pytest.fixture
def newer_database(settings: Settings) -> Engine:
    """A database that a newer version has migrated; `settings` and the environment name it."""
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        database.execute(connection, queries.schema.insert_file, name="migrations/9999_more.sql", sha256="0" * 64)
    return engine


RUN, CORPUS = ("--run", "r"), str(Path(__file__))
OF_A_RUN = "tools-to-do release check-release finetune publish report-evaluation finish-run"
OF_A_TOOL = "filter plan annotate sample execute score placebo check"
WRITING = {
    **{("stage", name): RUN for name in OF_A_RUN.split()},
    **{("stage", name): (*RUN, "--tool", "Calculator") for name in OF_A_TOOL.split()},
    ("stage", "ingest"): ("--corpus", CORPUS),
    ("stage", "build-index"): ("--publish", "--source", CORPUS),
    ("stage", "start-run"): (
        *RUN,
        "--parameters",
        json.dumps({"corpus": CORPUS, "model": "MODEL", "tools": ["Calculator"]}),
    ),
    ("stage", "start-finetuning"): (*RUN, "--release", "0" * 16, "--parameters", "{}"),
    ("stage", "evaluate"): (*RUN, "--suite", "math"),
    ("stage", "audit"): (),
    ("audit",): (),
    ("forget",): ("--corpus", CORPUS, "--yes"),
    ("retention",): ("--yes",),
    ("retry-failed",): RUN,
    ("placebo",): ("r",),
    ("publish-model",): ("MODEL",),
    ("migrate",): (),
}


def test_a_command_that_writes_refuses_the_database_of_newer_code(newer_database: Engine, tiny_model_dir: Path) -> None:
    of_stages = {name[1] for name in WRITING if len(name) == 2}
    assert {command.name for command in stages.app.registered_commands} == of_stages
    for command, options in WRITING.items():
        words = [word.replace("MODEL", str(tiny_model_dir)) for word in (*command, *options)]
        found = CliRunner().invoke(app, words)
        assert isinstance(found.exception, ConfigurationError), (command, found)
        assert "found migrations/9999_more.sql of a newer version" in str(found.exception)


def test_a_database_of_the_baseline_is_migrated_without_losing_a_row(
    postgres_server: RunningPostgres, sql_folder: Path
) -> None:
    with copied_database(postgres_server, "template1", postgres.OWNER) as name:
        engine = database.connect_dsn(postgres_server.dsn(name, postgres.OWNER), database.DSN_SETTING)
        # 1. The baseline with rows in each table. Today's functions and views may need later migrations.
        for folder in ("migrations", "functions", "views"):
            for path in (sql_folder / folder).glob("*.sql"):
                path.unlink()
        schema.migrate(engine, sql_folder)
        with database.transaction(engine) as connection, database.raw_cursor(connection) as cursor:
            cursor.execute((Path(__file__).parent / "data" / "small_annotation.sql").read_text())
        tables = "documents annotation_runs candidate_calls call_losses stage_ledger run_releases release_calls evaluation_scores"
        before = [_value(engine, f"select count(*) from {table}") for table in tables.split()]
        losses = _value(engine, "select array_agg(loss_reduction order by call_id) from call_losses")
        assert all(before)
        # 2. Today's code.
        schema.migrate(engine)
        assert [_value(engine, f"select count(*) from {table}") for table in tables.split()] == before
        assert _value(engine, "select array_agg(loss_reduction order by call_id) from call_losses") == losses
        assert _value(engine, "select count(*) from kept_calls") == 6
        assert schema.migrate(engine) == []
        engine.dispose()


def test_functions_and_views_are_made_anew_when_one_changes(engine: Engine, sql_folder: Path) -> None:
    path, answer = sql_folder / "functions" / "02_losses.sql", sql_folder / "views" / "99_answer.sql"
    path.write_text(path.read_text().replace("loss_reduction >= keep_threshold", "loss_reduction > keep_threshold"))
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


def test_a_migration_does_not_wait_for_ever_for_a_lock_and_says_who_holds_it(
    engine: Engine, sql_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (sql_folder / "views" / "01_run_documents.sql").open("a") as file:
        file.write("-- changed\n")
    reader = engine.connect()
    reader.execute(text("select count(*) from kept_calls"))  # an open transaction, which keeps the view locked
    process = reader.execute(text("select pg_backend_pid()")).scalar_one()
    with pytest.raises(DatabaseError, match=rf"process {process} of .*toolformer-ops.* on .*kept_calls.*LOCK_SECONDS"):
        schema.migrate(engine, sql_folder, lock_seconds=0.05)
    # Nothing was changed, and nobody waits behind the migration.
    assert _value(engine, "select count(*) from kept_calls") == 0
    # It tries again until the lock is free.
    pauses = iter([lambda: None, reader.close])
    monkeypatch.setattr(schema.time, "sleep", lambda _: next(pauses)())
    assert "views/01_run_documents.sql" in schema.migrate(engine, sql_folder, lock_seconds=0.05)
    assert list(pauses) == []


# Loading


TEXTS = st.text(
    st.one_of(
        st.sampled_from("\t\n\r\\\b\f\v\"'{},.N\u2400\U0001d11e%:"),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    )
)
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
    ),  # a line of two tokens each
    "uuid": st.uuids(),
}


@hypothesis.seed(0)
@hypothesis.settings(derandomize=True, max_examples=60, deadline=None, database=None)
@hypothesis.given(rows=st.lists(st.tuples(*(st.none() | values for values in COLUMNS.values())), max_size=6))
def test_what_is_copied_is_what_postgres_then_holds(postgres_server: RunningPostgres, rows: list[Any]) -> None:
    """The rows of all stages go by COPY's text format; Postgres itself says what it read."""
    with closing(psycopg2.connect(postgres_server.dsn("postgres"))) as connection, connection.cursor() as cursor:
        columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(COLUMNS))
        cursor.execute(f"create temporary table copied (row_number serial, {columns})")
        psycopg2.extras.register_uuid(conn_or_curs=connection)
        cursor.copy_expert(f"copy copied ({', '.join(f'c{n}' for n in range(len(COLUMNS)))}) from stdin",
                           io.StringIO(copy_text(rows)))  # fmt: skip
        exact = [f"c{n}::double precision[]" if kind == "real[]" else f"c{n}" for n, kind in enumerate(COLUMNS)]
        cursor.execute(f"select {', '.join(exact)} from copied order by row_number")
        assert cursor.fetchall() == rows


def test_a_row_that_is_there_already_stays_and_is_not_counted(engine: Engine) -> None:
    with database.transaction(engine) as connection:
        assert database.copy_insert(connection, "documents", DOCUMENT_COLUMNS, [_document(1, "old")]) == 1
    with database.transaction(engine) as connection:
        rows = [_document(1, "new"), _document(2, "two"), _document(2, "two again")]
        assert database.copy_insert(connection, "documents", DOCUMENT_COLUMNS, rows) == 1
    assert _value(engine, "select array_agg(text order by document_id) from documents") == ["old", "two"]


def test_a_transaction_takes_several_loads_of_any_size_or_none_of_them(engine: Engine) -> None:
    number = database.ROWS_PER_COPY + 5  # more than one piece

    def load(fails: bool) -> None:
        with database.transaction(engine) as connection:
            for rows in ([], [_document(1, "x")], (_document(n, "x") for n in range(2, number + 2))):
                expected = number if isinstance(rows, Iterator) else len(rows)
                assert database.copy_insert(connection, "documents", DOCUMENT_COLUMNS, rows) == expected
            if fails:
                raise KeyError

    with pytest.raises(KeyError):
        load(fails=True)
    assert _value(engine, "select count(*) from documents") == 0
    load(fails=False)
    assert _value(engine, "select count(*) from documents") == number + 1


@pytest.mark.parametrize("content", ["a\x00b", "a\ud800b"])
def test_text_that_postgres_cannot_store_is_refused_by_name(engine: Engine, content: str) -> None:
    with pytest.raises(DatabaseError, match=r"U\+0000|surrogate"), database.transaction(engine) as connection:
        database.copy_insert(connection, "documents", DOCUMENT_COLUMNS, [_document(1, content)])


@pytest.mark.parametrize(
    ("table", "column"),
    [("pg_authid", "rolname"), ("documents; drop table documents", "text"), ("documents", 'text") from x; --')],
)
def test_names_that_are_no_tables_or_columns_never_reach_postgres(engine: Engine, table: str, column: str) -> None:
    with engine.connect() as connection, pytest.raises(DatabaseError, match="expected a table of"):
        database.copy_insert(connection, table, [column], [("x",)])


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """What each returns, all started together."""
    start = threading.Barrier(len(work))

    def begin(task: Callable[[], Any]) -> Any:
        start.wait()
        return task()

    with ThreadPoolExecutor(len(work)) as threads:
        return list(threads.map(begin, work))


def test_two_loads_of_equal_keys_in_opposite_order_both_end(engine: Engine) -> None:
    rows = [_document(number, "x") for number in range(200)]

    def load(ordered: list[tuple[object, ...]]) -> int:
        with database.transaction(engine) as connection:
            return database.copy_insert(connection, "documents", DOCUMENT_COLUMNS, ordered)

    assert sum(at_once(lambda: load(rows), lambda: load(rows[::-1]))) == 200


# Partitions


def test_many_threads_that_want_the_same_partition_make_it_once(engine: Engine) -> None:
    def ensure() -> None:
        with database.transaction(engine) as connection:
            database.ensure_partition(connection, "candidate_calls", RECIPE)

    at_once(*[ensure] * 4)
    assert _value(engine, "select count(*) from pg_inherits where inhparent = 'candidate_calls'::regclass") == 1


def test_a_partition_is_made_while_another_stage_writes(engine: Engine) -> None:
    with database.transaction(engine) as writing:
        database.fetch_all(writing, queries.corpora.by_id, corpus_id=RECIPE)
        writing.execute(text("select count(*) from candidate_calls"))  # holds a lock on the parent until the end
        with database.transaction(engine) as other:
            other.execute(text("set local lock_timeout = '2s'"))
            database.ensure_partition(other, "candidate_calls", RECIPE)


@pytest.mark.parametrize(("table", "recipe"), [("documents", RECIPE), ("candidate_calls", "x'); drop table documents")])
def test_only_partitioned_tables_and_recipe_ids_make_partitions(engine: Engine, table: str, recipe: str) -> None:
    with engine.connect() as connection, pytest.raises(DatabaseError, match="16 hex digits"):
        database.ensure_partition(connection, table, recipe)


# Finding work


def test_only_inputs_with_a_row_of_this_version_of_the_tool_are_known(annotated: Engine) -> None:
    keys = [uuid.UUID(f"0{number}000000-0000-0000-0000-000000000000") for number in (1, 3, 9)]
    found = {}
    with database.transaction(annotated) as connection:
        for version in ("1", "2"):
            asked = {"tool": "Calculator", "tool_version": version, "input_keys": keys}
            found[version] = database.fetch_all(connection, queries.undone.known_results, **asked)
    assert sorted((row.results, row.reason) for row in found["1"]) == [([], "divides_by_zero"), (["0.29"], None)]
    assert found["2"] == []


def test_remaining_work_counts_unscored_documents_and_averages_measured_seconds_a_token(annotated: Engine) -> None:
    run_sql(
        annotated,
        "insert into micro_batches (run_id, tool, stage, recipe_id, documents, tokens, rows_written, seconds) values "
        "('r2', 'Calculator', 'sample', '51', 2, 20, 6, 5), ('r1', 'Calculator', 'sample', '51', 1, 10, 1, 4), "
        "('r2', 'Calculator', 'execute', 'e1', 2, 20, 7, 1), ('r1', 'Calculator', 'score', 'a1', 9, null, 9, 99), "
        "('r2', 'Calculator', 'score', 'a1', 3, 30, 7, 9), ('r1', 'Calculator', 'score', 'a1', 0, 0, 0, 0)",
    )
    other = "f" * 16  # a recipe that nothing was done under

    def remaining(below_ordinal: int, sampling_recipe_id: str, scoring_recipe_id: str) -> tuple[object, ...]:
        members = {"corpus_id": "c" + "0" * 15, "at_version": 1, "below_ordinal": below_ordinal}
        members |= {"base_version": 0, "base_ordinal": 0, "reads_record": False}  # nothing is finished
        recipes = {"filter_recipe_id": "f1", "execution_recipe_id": "e1", "sampling_recipe_id": sampling_recipe_id}
        with database.transaction(annotated) as connection:
            [found] = database.fetch_all(
                connection,
                queries.planning.remaining_work,
                members=members,
                **recipes,
                scoring_recipe_id=scoring_recipe_id,
            )
        return found.documents, found.tokens, found.seconds_per_token

    # (5 + 4) / (20 + 10) + 1 / 20 + 9 / 30; a micro-batch from before tokens were counted says nothing
    assert remaining(9, "51", "a1") == (0, 0, pytest.approx(0.65))
    assert remaining(9, "51", other) == (3, 37, pytest.approx(0.35))
    assert remaining(3, other, other)[::2] == (2, None)


def test_a_command_that_reads_works_on_the_database_of_newer_code_and_nothing_is_published_unregistered(
    newer_database: Engine, settings: Settings
) -> None:
    for arguments, says in (
        (("runs", "--json"), "[]"),
        (("changes", "r"), "expected the id of a run or a release, found 'r'"),
        (("explain", *RUN, "--call-id", "0" * 32), "expected"),
        (("download", "0" * 16, "folder"), "nothing published at"),
    ):
        found = CliRunner().invoke(app, arguments)
        assert not isinstance(found.exception, ConfigurationError), arguments
        assert says in found.stdout + str(found.exception)
    with pytest.raises(ConfigurationError, match="of a newer version"):
        artifacts.publish(settings, "model", "m", "models/m", {"config.json": Path(__file__)}, source="m")
    assert list(ObjectStore(settings).list("models/")) == []
    [doctor] = [finding for finding in findings(settings) if finding.subject == "Postgres"]
    assert (doctor.state, "migrations/9999_more.sql of a newer version" in doctor.detail) == ("missing", True)
