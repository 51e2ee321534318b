import functools
import io
import json
import logging
import math
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
          for dsn in ("", "  ", "mysql://u:s3cret@h/d", "postgresql://u:s3cret@h:port/d")),
    ],
)  # fmt: skip
def test_an_unreachable_database_is_named_without_its_password(dsn: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        database.connect(_settings(dsn))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"database": "no_such_database"}, 'database "no_such_database" does not exist. Correct TOOLFORMER_DATABASE_DSN'),
        ({"username": "nobody_here", "password": "s3cret"}, "nobody_here"),
    ],
)  # fmt: skip
def test_a_login_that_postgres_refuses_is_a_wrong_request_and_no_outage(
    postgres_dsn: str, changes: dict[str, str], says: str
) -> None:
    dsn = make_url(postgres_dsn).set(**changes).render_as_string(hide_password=False)
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


@pytest.mark.parametrize("prefix", ["postgresql://", "postgres://", "postgresql+psycopg2://"])
def test_all_usual_spellings_of_the_address_connect(postgres_dsn: str, prefix: str) -> None:
    engine = database.connect(_settings(postgres_dsn.replace("postgresql://", prefix)))
    assert _value(engine, "select 1") == 1


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


def test_a_new_migration_is_applied_once(engine: Engine, sql_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (sql_folder / "migrations" / "9998_one.sql").write_text("create table one (n int);")
    (sql_folder / "migrations" / "9999_more.sql").write_text("create table more (n int);")
    assert schema.migrate(engine, sql_folder) == ["migrations/9998_one.sql", "migrations/9999_more.sql"]
    assert schema.migrate(engine, sql_folder) == []
    assert caplog.messages == [  # a number and one name, however many files a first start applies
        "database: 2 schema files applied, the last migrations/9999_more.sql",
        "database: 0 schema files applied, nothing new",
    ]


def test_a_file_of_tables_that_was_changed_is_refused(engine: Engine, sql_folder: Path) -> None:
    path = sql_folder / "schema" / "01_corpora.sql"
    path.write_text(path.read_text() + "-- changed\n")
    with pytest.raises(DatabaseError, match=r"01_corpora\.sql: expected the content that was applied"):
        schema.migrate(engine, sql_folder)


def test_a_database_without_the_baseline_is_refused_and_told_how_to_go_on(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("delete from schema_files"))
        database.execute(connection, queries.schema.insert_file, name="migrations/0001_corpora.sql", sha256="0" * 64)
    with pytest.raises(ConfigurationError, match=r"found those of a development version.*`make clean`"):
        schema.migrate(engine)


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
    for command, options in WRITING.items():
        words = [word.replace("MODEL", str(tiny_model_dir)) for word in (*command, *options)]
        found = CliRunner().invoke(app, words)
        assert isinstance(found.exception, ConfigurationError), (command, found)
        assert "found migrations/9999_more.sql of a newer version, so nothing is written: use that version" in str(
            found.exception
        )


def test_every_stage_is_among_the_commands_that_write() -> None:
    assert {command.name for command in stages.app.registered_commands} == {
        name[1] for name in WRITING if len(name) == 2
    }


def test_a_command_that_reads_works_on_the_database_of_newer_code(newer_database: Engine) -> None:
    for arguments, says in (
        (("runs", "--json"), "[]"),
        (("changes", "r"), "expected the id of a run or a release, found 'r'"),
        (("thresholds", "r"), "expected a started run"),
        (("explain", *RUN, "--call-id", "0" * 32), "expected"),
        (("export-judgements", "0" * 16), "expected the id of a release"),
        (("download", "0" * 16, "folder"), "nothing published at"),
    ):
        found = CliRunner().invoke(app, arguments)
        assert not isinstance(found.exception, ConfigurationError), arguments
        assert says in found.stdout + str(found.exception)


def test_nothing_is_published_where_the_database_of_newer_code_cannot_register_it(
    newer_database: Engine, settings: Settings
) -> None:
    with pytest.raises(ConfigurationError, match="of a newer version"):
        artifacts.publish(settings, "model", "m", "models/m", {"config.json": Path(__file__)}, source="m")
    assert list(ObjectStore(settings).list("models/")) == []


def test_doctor_names_the_newer_migration(newer_database: Engine, settings: Settings) -> None:
    [found] = [finding for finding in findings(settings) if finding.subject == "Postgres"]
    assert (found.state, "migrations/9999_more.sql of a newer version" in found.detail) == ("missing", True)


def test_a_failing_migration_leaves_nothing_behind(engine: Engine, sql_folder: Path) -> None:
    (sql_folder / "migrations" / "9998_good.sql").write_text("create table good (n int);")
    (sql_folder / "migrations" / "9999_bad.sql").write_text("create table bad (n no_such_type);")
    with pytest.raises(DatabaseError, match=r"9999_bad\.sql: Postgres refused"):
        schema.migrate(engine, sql_folder)
    assert _value(engine, "select to_regclass('good') is null") is True


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
    path = sql_folder / "functions" / "02_losses.sql"
    path.write_text(path.read_text().replace("loss_reduction >= keep_threshold", "loss_reduction > keep_threshold"))
    (sql_folder / "views" / "99_answer.sql").write_text("create view answer as select 42 as n;")
    made = {"functions/02_losses.sql", "views/05_kept_calls.sql", "views/99_answer.sql"}
    assert made <= set(schema.migrate(engine, sql_folder))
    assert _value(engine, "select is_kept(null, 1.0, 1.0)") is False
    assert _value(engine, "select n from answer") == 42
    assert schema.migrate(engine, sql_folder) == []
    (sql_folder / "views" / "99_answer.sql").write_text("create view answer as select 'forty-two' as word;")
    schema.migrate(engine, sql_folder)
    assert _value(engine, "select word from answer") == "forty-two"
    (sql_folder / "views" / "99_answer.sql").unlink()
    schema.migrate(engine)
    assert _value(engine, "select is_kept(null, 1.0, 1.0)") is True


@pytest.fixture
def changed_view(sql_folder: Path) -> Path:
    """A folder whose views are to be made anew."""
    with (sql_folder / "views" / "01_run_documents.sql").open("a") as file:
        file.write("-- changed\n")
    return sql_folder


def test_a_migration_does_not_wait_for_ever_and_says_who_holds_the_lock(engine: Engine, changed_view: Path) -> None:
    with engine.connect() as reader:
        reader.execute(text("select count(*) from kept_calls"))  # an open transaction, which keeps the view locked
        process = reader.execute(text("select pg_backend_pid()")).scalar_one()
        with pytest.raises(
            DatabaseError, match=rf"process {process} of .*toolformer-ops.* on .*kept_calls.*LOCK_SECONDS"
        ):
            schema.migrate(engine, changed_view, lock_seconds=0.05)
        # Nothing was changed, and nobody waits behind the migration.
        assert _value(engine, "select count(*) from kept_calls") == 0
    assert "views/01_run_documents.sql" in schema.migrate(engine, changed_view, lock_seconds=0.05)


def test_a_migration_tries_again_until_the_lock_is_free(
    engine: Engine, changed_view: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = engine.connect()
    reader.execute(text("select count(*) from kept_calls"))
    pauses = iter([lambda: None, reader.close])
    monkeypatch.setattr(schema.time, "sleep", lambda _: next(pauses)())
    assert "views/01_run_documents.sql" in schema.migrate(engine, changed_view, lock_seconds=0.05)
    assert list(pauses) == []


def test_a_statement_of_a_migration_that_takes_too_long_is_ended(engine: Engine, sql_folder: Path) -> None:
    slow = sql_folder / "migrations" / "9999_slow.sql"
    slow.write_text("create table never (); select pg_sleep(60);")
    with pytest.raises(DatabaseError, match=r"9999_slow\.sql.*TOOLFORMER_MIGRATION_STATEMENT_SECONDS \(now 0\.2\)"):
        schema.migrate(engine, sql_folder, statement_seconds=0.2)
    assert _value(engine, "select to_regclass('never') is null") is True


def test_an_unmigrated_database_is_told_how_to_be_migrated(engine: Engine) -> None:
    run_sql(engine, "alter table corpora rename to elsewhere")
    with (
        engine.connect() as connection,
        pytest.raises(DatabaseError, match=r"corpora\.by_id.*toolformer-ops migrate"),
    ):
        database.fetch_all(connection, queries.corpora.by_id, corpus_id=RECIPE)


@pytest.mark.parametrize("role", [(postgres.READER, "reader-of-tests"), (postgres.PAGE, "page-of-tests")])
def test_the_readers_read_tables_views_and_new_partitions_and_write_nothing(
    engine: Engine, postgres_server: RunningPostgres, database_name: str, role: tuple[str, str]
) -> None:
    with database.transaction(engine) as connection:
        database.ensure_partition(connection, "candidate_calls", RECIPE)
    reader = database.connect_dsn(postgres_server.address.dsn(database_name, *role), "TOOLFORMER_READER_DSN")
    for relation in ("documents", "candidate_calls", f"candidate_calls_{RECIPE}", "kept_calls"):
        assert _value(reader, f"select count(*) from {relation}") == 0
    with reader.connect() as connection, pytest.raises(Exception, match=r"read-only|permission denied"):
        connection.execute(text("delete from documents"))


# Constraints


def test_a_scored_call_saves_the_smaller_loss_without_the_result_minus_the_loss_with_it(engine: Engine) -> None:
    columns = ("scoring_recipe_id", "call_id", "document_id", "result_rank", "result", "reason")
    columns += ("loss_without_call", "loss_without_result", "loss_with_result")
    scored: dict[tuple[object, ...], float | None] = {
        (None, 2.0, 1.5, 0.25): 1.25,
        (None, 1.0, 1.5, 0.25): 0.75,
        ("not_finite", 2.0, 1.5, math.nan): math.nan,
        ("divides_by_zero", None, None, None): None,
    }
    rows = [(RECIPE, uuid.UUID(int=at), uuid.UUID(int=9), 0, "35", *of) for at, of in enumerate(scored)]
    with database.transaction(engine) as connection:
        database.ensure_partition(connection, "call_losses", RECIPE)
        assert database.copy_insert(connection, "call_losses", columns, rows) == 4
    found = _value(engine, "select array_agg(loss_reduction order by call_id) from call_losses")
    assert found == [*map(functools.partial(pytest.approx, nan_ok=True), scored.values())]


def test_postgres_expects_as_many_rows_of_a_join_by_document_and_call_as_there_are_calls(engine: Engine) -> None:
    documents, calls_each = 2_000, 4
    with database.transaction(engine) as connection:
        for table in ("candidate_calls", "call_losses"):
            database.ensure_partition(connection, table, RECIPE)
        connection.execute(text(
            "insert into candidate_calls (sampling_recipe_id, call_id, document_id, paragraph, position_token, position_char,"
            " position_probability, call_input, call_text, sample_count, input_only_after)"
            f" select '{RECIPE}', md5(d || ' ' || n)::uuid, md5(d::text)::uuid, 0, n, n, 0.5, '1', 'QA(1)', 1, false"
            f" from generate_series(1, {documents}) d cross join generate_series(1, {calls_each}) n"
        ))  # fmt: skip
        connection.execute(text(
            "insert into call_losses (scoring_recipe_id, call_id, document_id, result_rank, result, loss_without_call,"
            " loss_without_result, loss_with_result)"
            f" select '{RECIPE}', call_id, document_id, 0, '5', 2, 2, 1 from candidate_calls"
        ))  # fmt: skip
        connection.execute(text("analyze candidate_calls"))
        connection.execute(text("analyze call_losses"))
    for hint in ("on", "off"):  # whichever way it joins
        with engine.connect() as connection:
            connection.execute(text(f"set enable_hashjoin = {hint}"))
            plan = connection.execute(text(
                "explain (format json) select * from candidate_calls join call_losses using (document_id, call_id)"
            )).scalar_one()  # fmt: skip
            expected = plan[0]["Plan"]["Plan Rows"]
        assert documents * calls_each / 4 <= expected <= documents * calls_each * 4


@pytest.mark.parametrize(
    ("document", "shard"), [("00000005-0000-0000-0000-000000000000", 5), ("ffffffff" + "-0000" * 3 + "-" + "0" * 12, 3)]
)
def test_a_documents_shard_is_its_first_32_bits_modulo_the_number_of_shards(
    engine: Engine, document: str, shard: int
) -> None:
    # 0xffffffff = 4294967295 = 613566756 * 7 + 3
    assert _value(engine, f"select document_shard('{document}', 7)") == shard


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


def test_log_probabilities_arrive_as_sent_and_rows_without_them_keep_their_hash(engine: Engine) -> None:
    lines = [[-0.5, -1.25], [None, None], [-0.25, float("-inf")]]
    columns = ("scoring_recipe_id", "document_id", "call_id", "reason", "loss_without_call", "token_log_probabilities")
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    with database.transaction(engine) as connection:
        database.ensure_partition(connection, "call_losses", RECIPE)
        rows = [(RECIPE, first, call, "pruned_below", 0.5, stored) for call, stored in ((first, None), (second, lines))]
        database.copy_insert(connection, "call_losses", columns, rows)
    assert _value(engine, f"select token_log_probabilities from call_losses where call_id = '{second}'") == lines
    text = "select losses_row_text(l) from call_losses l where call_id = '{}'"
    assert _value(engine, text.format(first)) == f"({first},,,pruned_below,0.5,,,,)"  # as before they were stored
    with_them = f"({second},,,pruned_below,0.5,,,,){{{{-0.5,-1.25}},{{NULL,NULL}},{{-0.25,-Infinity}}}}"
    assert _value(engine, text.format(second)) == with_them


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
