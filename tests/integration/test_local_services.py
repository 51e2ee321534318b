"""The embedded Postgres and S3 as tests use them: real servers, started and stopped here."""

import os
import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import psycopg2.errors
import pytest

from tests.servers import PASSWORDS, start_postgres
from toolformer_ops.config import REPOSITORY
from toolformer_ops.local import postgres
from toolformer_ops.local.postgres import prepare_cluster


def test_both_servers_listen_on_the_loopback_address_alone(postgres_server, object_store_server):
    for server in (postgres_server, object_store_server):
        connections = psutil.Process(server.process_id).net_connections("tcp")
        assert {item.laddr.ip for item in connections if item.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def test_no_secret_stands_on_a_command_line(postgres_server, object_store_server):
    servers = (postgres_server, object_store_server)
    shown = "".join(Path(f"/proc/{server.process_id}/cmdline").read_text() for server in servers)
    assert "postgres" in shown
    assert "weed" in shown
    assert postgres_server.address.superuser_password not in shown
    assert object_store_server.address.secret_key not in shown


def asked(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    """The rows of the last statement; each is committed."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            connection.commit()
        return cursor.fetchall() if cursor.description else []


def test_a_wrong_password_is_refused(postgres_server):
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(postgres_server.address.dsn("postgres", password="not the password"))


def test_passwords_are_stored_as_verifiers(postgres_server):
    passwords = f"select rolpassword from pg_authid where rolname = '{postgres.OWNER}'"
    [(password,)] = asked(postgres_server.dsn("postgres"), passwords)
    assert password.startswith("SCRAM-SHA-256$")


def test_a_request_without_signature_is_refused(object_store_server):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(object_store_server.address.endpoint + "/toolformer", timeout=5)  # noqa: S310
    assert refused.value.code == 403


@pytest.fixture(scope="module")
def limited(postgres_server):
    """A database with a table that the readers read; a function from a role to its address there."""
    address = postgres_server.address
    postgres.ensure_database(address, "limited", postgres.OWNER)
    postgres.allow_people(address, "limited")
    rights = (REPOSITORY / "sql" / "reader_role.sql").read_text()
    asked(postgres_server.dsn("limited", postgres.OWNER), rights, "create table kept as select 1 as number")
    return lambda role: postgres_server.dsn("limited", role)


def test_the_reader_reads_later_tables(limited):
    """The mode is a default of the role, which a session may change; what is not granted stays forbidden."""
    assert asked(limited(postgres.READER), "select number from kept") == [(1,)]


def test_the_reader_only_reads_even_without_its_read_only_mode(limited):
    with pytest.raises(psycopg2.errors.ReadOnlySqlTransaction):
        asked(limited(postgres.READER), "insert into kept values (8)")
    read_write = ("set session characteristics as transaction read write", "set statement_timeout = 0")
    for statement in (
        "insert into kept values (2)",
        "create table mine (number int)",
        "create temporary table mine (number int)",
        "create schema mine",
        "select lo_create(0)",
        "select lo_from_bytea(0, 'bytes')",
        "select lo_creat(-1)",
        "select pg_advisory_lock(1)",
        "select pg_advisory_xact_lock(1)",
        "select pg_try_advisory_lock(1, 2)",
        "select pg_logical_emit_message(false, 'a', 'b')",
        "select pg_notify('a', 'b')",
        "lock table kept in share mode",
        "copy kept to program 'cat'",
        "alter role toolformer_reader connection limit -1",
        "alter role toolformer_page password 'x'",
        "set role toolformer_page",
        "alter role toolformer_reader set temp_file_limit = -1",
        "select pg_read_file('/etc/passwd')",
    ):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            asked(limited(postgres.READER), *read_write, statement)


def test_the_owner_takes_advisory_locks(limited):
    locks = "select pg_try_advisory_lock(1), pg_advisory_unlock(1)"
    assert asked(limited(postgres.OWNER), locks) == [(True, True)]


LIMITS = {
    "default_transaction_read_only": "on",
    "statement_timeout": "5min",
    "idle_in_transaction_session_timeout": "5min",
    "temp_file_limit": "4GB",
    "max_parallel_workers_per_gather": "1",
    "work_mem": "4MB",
    "search_path": '"$user", public',
}


def test_what_a_role_changes_of_itself_is_put_right_at_the_next_start(limited, postgres_server):
    """Postgres lets every role change its own password and settings: the page has a role of its own, and `up` resets all."""

    def limits(role: str) -> dict[str, str]:
        [found] = asked(limited(role), "select " + ", ".join(f"current_setting('{name}')" for name in LIMITS))
        return dict(zip(LIMITS, found, strict=True))

    read_write = "set session characteristics as transaction read write"
    asked(
        limited(postgres.READER),
        read_write,
        "set statement_timeout = 0",
        "alter role toolformer_reader set default_transaction_read_only = off",
        "alter role toolformer_reader set work_mem = '2GB'",
        "alter role toolformer_reader set search_path = 'x'",
        "alter role toolformer_reader in database limited set search_path = 'y'",
        "alter role toolformer_reader in database limited set statement_timeout = 0",
    )
    assert limits(postgres.READER)["search_path"] == "y"
    asked(limited(postgres.READER), read_write, "alter role toolformer_reader password 'x'")
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        limits(postgres.READER)
    assert limits(postgres.PAGE) == LIMITS
    # What `up` does.
    postgres.ensure_roles(postgres_server.address, {postgres.READER: PASSWORDS[postgres.READER]})
    postgres.allow_people(postgres_server.address, "limited")
    assert limits(postgres.READER) == limits(postgres.PAGE) == LIMITS
    asked(limited(postgres.READER), "set statement_timeout = 0")  # of a session alone
    assert limits(postgres.READER) == LIMITS


def test_neither_the_reader_nor_airflow_enters_the_database_of_another(limited, postgres_server):
    postgres.ensure_databases(postgres_server.address)
    reader = [(database, postgres.READER) for database in ("postgres", "template1", postgres.AIRFLOW)]
    for database, role in (*reader, (postgres.OWNER, postgres.AIRFLOW)):
        with pytest.raises(psycopg2.OperationalError, match="permission denied for database"):
            psycopg2.connect(postgres_server.dsn(database, role))
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(closing(psycopg2.connect(limited(postgres.READER))))
        with pytest.raises(psycopg2.OperationalError, match="too many connections for role"):
            psycopg2.connect(limited(postgres.READER))


def test_after_a_kill_neither_half_an_initdb_nor_a_running_postgres_stays(tmp_path):
    data = prepare_cluster(tmp_path, "first").data
    unfinished = data.with_name("data.unfinished")
    data.rename(unfinished)
    (unfinished / "PG_VERSION").unlink()
    (unfinished.with_name("password.unfinished")).touch(mode=0o600)
    with start_postgres(tmp_path) as server:
        assert asked(server.dsn("postgres"), "select 1") == [(1,)]
        postgres.clear_pid_file(server.cluster)
        with pytest.raises(psycopg2.OperationalError):
            asked(server.dsn("postgres"), "select 1")
        pid_file = server.cluster.data / "postmaster.pid"
        assert not pid_file.exists()
        # Stale ones: of this process, of none, half written.
        for stale in (f"{os.getpid()}\n{server.cluster.data}\n", "4194305\n", ""):
            pid_file.write_text(stale)
            postgres.clear_pid_file(server.cluster)
            assert not pid_file.exists()
