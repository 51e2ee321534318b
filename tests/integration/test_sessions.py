"""What sessions of Postgres are called, how long they wait for each other, and what becomes of one whose process is frozen."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, text

from tests.run_sql import run_sql
from toolformer_ops.errors import EXIT_INFRASTRUCTURE, DatabaseLockedError, exit_code
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.storage.corpora.addresses import normal_uri
from toolformer_ops.storage.postgres import database, queries, sessions

FROZEN = """
import sys
import time
from toolformer_ops.storage.postgres import database, sessions
from sqlalchemy import text

class SlowRows:  # which go on, a little at a time
    def read(self, _):
        print("stands", flush=True)
        time.sleep(0.05)
        return "x" * 20_000 + "\\n"

class Rows:  # which never end
    def read(self, _):
        print("stands", flush=True)
        sys.stdin.read()

sessions.introduce("sample Calculator 0/3", "night-1")
engine = database.connect_dsn(sys.argv[1], "DSN")
with database.transaction(engine) as connection, database.raw_cursor(connection) as cursor:
    cursor.execute("create temporary table load (word text) on commit drop")
    cursor.execute("insert into recipes (recipe_id, stage, tool, definition) values ('0123456789abcdef', 'sample', 'MT', '{}')")
    if sys.argv[2] == "copy":
        cursor.copy_expert("copy load from stdin", Rows())
    elif sys.argv[2] == "slow copy":
        cursor.copy_expert("copy load from stdin", SlowRows())
    elif sys.argv[2] == "idle":
        Rows().read(0)
    else:
        print("stands", flush=True)
        cursor.execute("select pg_sleep(600)")
"""
"""A process that has written a row, and then stands: within a COPY, between two statements, or at work in Postgres; or
whose COPY goes on slowly."""
INSERT = "insert into recipes (recipe_id, stage, tool, definition) values ('0123456789abcdef', 'sample', 'QA', '{}')"


@contextmanager
def standing(dsn: str, where: str) -> Iterator[int]:
    """The id of such a process, which is frozen unless it is at work."""
    words = [sys.executable, "-c", FROZEN, dsn, where]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stdout.readline() == "stands\n"
        if where in ("copy", "idle"):
            os.kill(process.pid, signal.SIGSTOP)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def waiting(postgres_dsn):
    """Statements wait for two seconds, and a session may be silent for one."""
    return database.connect_dsn(postgres_dsn, database.DSN_SETTING, lock_seconds=2.0)


@pytest.mark.parametrize("where", ["copy", "idle"])
def test_a_session_whose_process_is_frozen_in_a_transaction_is_ended_by_who_waits_for_it(
    postgres_dsn, waiting, where, caplog
):
    with standing(postgres_dsn, where) as process:
        run_sql_watched(waiting, INSERT)
    name = rf"toolformer sample Calculator 0/3 {process}@\S+ night-1 \(process \d+ of Postgres, user toolformer\)"
    assert re.search(rf"waiting for a lock of {name}, in a transaction for \d s", caplog.text)
    assert re.search(rf"ended the session of {name}, .*its process is frozen or lost", caplog.text)
    assert run_sql(waiting, "select tool from recipes") == [("QA",)]


def test_a_wait_for_a_session_at_work_ends_with_an_error_that_names_it(postgres_dsn, waiting):
    with standing(postgres_dsn, "work") as process, pytest.raises(DatabaseLockedError) as raised:
        run_sql_watched(waiting, INSERT)
    assert re.search(
        rf"The lock belongs to toolformer sample Calculator 0/3 {process}@\S+ night-1 \(", str(raised.value)
    )
    assert "silent" not in str(raised.value)


def test_a_session_within_a_copy_that_goes_on_is_not_ended(postgres_dsn, caplog):
    patient = database.connect_dsn(postgres_dsn, database.DSN_SETTING, lock_seconds=4.0)
    with standing(postgres_dsn, "slow copy"), pytest.raises(DatabaseLockedError):
        run_sql_watched(patient, INSERT)
    assert "waiting for a lock of toolformer sample Calculator 0/3" in caplog.text
    assert "ended the session" not in caplog.text


def test_a_wait_that_was_too_long_is_tried_again_like_an_outage():
    assert exit_code(DatabaseLockedError("")) == EXIT_INFRASTRUCTURE


def test_a_name_is_waited_for_beyond_the_limit_of_locks(engine, postgres_dsn):
    quick = database.connect_dsn(postgres_dsn, database.DSN_SETTING, lock_seconds=0.2)
    with database.transaction(engine) as connection:
        database.execute(connection, queries.locks.name, name="numbers r")
        ended = threading.Event()

        def wait() -> None:
            with database.transaction(quick) as other:
                database.execute(other, queries.locks.name, name="numbers r")
                [row] = other.execute(text("show lock_timeout"))
                assert row.lock_timeout == "200ms"
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        connection.execute(text("select pg_sleep(0.6)"))  # it is at work
        assert not ended.is_set()
    thread.join()
    assert ended.is_set()


def test_a_wait_for_another_ingestion_ends_with_an_error_that_names_its_process(
    postgres_dsn, settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(sessions, "OTHERS_SECONDS", 1.0)
    quick = settings.model_copy(update={"lock_seconds": 1.0})
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "one"}\n')
    lock = f"ingestion of {normal_uri(str(corpus))}"
    other = database.connect_dsn(postgres_dsn, database.DSN_SETTING)
    with database.session(other) as session:
        with database.transaction(session) as connection:
            process = connection.execute(text("select pg_backend_pid()")).scalar_one()
            database.fetch_all(connection, queries.locks.session, name=lock, seconds=1)
        # Its session is idle: it is named, and not ended.
        with pytest.raises(DatabaseLockedError, match=rf"belongs to .* \(process {process} of Postgres"):
            ingest_corpus(quick, str(corpus))
    assert ingest_corpus(quick, str(corpus)).documents == 1


def run_sql_watched(engine: Engine, statement: str) -> None:
    with database.transaction(engine) as connection, database.translating("statement"):
        connection.execute(text(statement))


@pytest.fixture
def _introduced_to_none(monkeypatch):
    monkeypatch.setattr(sessions, "_introduced", [])


@pytest.mark.usefixtures("_introduced_to_none")
@pytest.mark.parametrize(
    ("work", "run", "host", "name"),
    [
        (
            "sample Calculator 0/3",
            "night-1",
            "node-7",
            "toolformer sample Calculator 0/3 {pid}@node-7 night-1",
        ),
        ("ingest  ", "", "node-7", "toolformer ingest {pid}@node-7"),
        ("finish-run  ", "manual__é", "node-7", "toolformer finish-run {pid}@node-7 manual__?"),
    ],
)
def test_a_session_is_named_by_its_stage_its_process_its_run(monkeypatch, work, run, host, name):
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    sessions.introduce(work, run)
    assert sessions.session_name() == name.format(pid=os.getpid())


@pytest.mark.usefixtures("_introduced_to_none")
def test_of_a_long_host_or_run_a_session_shows_the_end(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "toolformer-annotate-calculator-0-x7k2p")
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    sessions.introduce("annotate Calculator 10/64", "manual__2026-11-26T13:47:35+00:00")
    name = sessions.session_name()
    assert name == "toolformer annotate Calculator 10/64 4711@~r-0-x7k2p ~:35+00:00"
    assert len(name) == 63


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("tcp_keepalives_idle", "30"),
        ("tcp_keepalives_count", "3"),
        ("tcp_user_timeout", "60000"),
        ("idle_in_transaction_session_timeout", "30min"),
        ("lock_timeout", "2s"),
    ],
)
def test_a_session_has_limits(waiting, setting, value):
    assert run_sql(waiting, "select current_setting(:name)", name=setting) == [(value,)]
