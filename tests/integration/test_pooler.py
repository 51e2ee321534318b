"""A real pgbouncer before Postgres: one that shares sessions is refused at connection, one of sessions is not."""

import shutil
import signal

import psycopg2
import pytest

from tests.run_sql import run_sql
from tests.servers import PASSWORDS, Server, directory_in_memory, free_port, settings_of
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.local import postgres
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.storage.postgres import database

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="needs pgbouncer")

CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={postgres} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
"""


@pytest.fixture
def pooled(postgres_server, database_name, tmp_path):
    """Settings of the database behind a pgbouncer with this mode."""
    servers: list[Server] = []
    with directory_in_memory(tmp_path) as folder:

        def behind(mode: str, size: int = 20) -> Settings:
            port = free_port()
            values = {"postgres": postgres_server.address.port, "port": port, "mode": mode, "size": size}
            values |= {"user": postgres.OWNER, "password": PASSWORDS[postgres.OWNER]}
            file = folder / f"{mode}.ini"
            file.write_text(CONFIGURATION.format(**values))
            dsn = f"postgresql://anyone@127.0.0.1:{port}/{database_name}"

            def is_ready() -> bool:
                try:
                    psycopg2.connect(dsn, connect_timeout=2).close()
                except psycopg2.OperationalError:
                    return False
                return True

            account = postgres_server.cluster.account  # pgbouncer refuses to be root
            command = [str(PGBOUNCER), str(file)]
            servers.append(Server(command, tmp_path / f"{mode}.log", is_ready, account=account))
            return settings_of(dsn)

        yield behind
        for server in servers:
            server.stop(signal.SIGTERM)


@pytest.mark.parametrize("size", [1, 20])
def test_a_pooler_that_gives_sessions_to_others_between_transactions_is_refused(pooled, size):
    with pytest.raises(
        ConfigurationError, match=r"expected sessions of Postgres of our own.*pool_mode=transaction"
    ):
        database.connect(pooled("transaction", size))


def test_a_pooler_of_statements_is_refused(pooled):
    with pytest.raises(ConfigurationError, match=r"expected sessions of Postgres of our own"):
        database.connect(pooled("statement"))


def test_a_refused_pooler_leaves_no_limit_in_its_sessions(pooled, postgres_dsn):
    settings = pooled("transaction", 1)
    with pytest.raises(ConfigurationError):
        database.connect(settings)
    with (
        psycopg2.connect(settings.database_dsn.get_secret_value()) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("show idle_in_transaction_session_timeout")
        assert cursor.fetchone() == ("0",)
    connection.close()


def test_behind_a_pooler_of_sessions_a_corpus_is_ingested_twice(pooled, engine, tmp_path):
    settings = pooled("session")
    corpus = tmp_path / "corpus.jsonl"
    for text in ("one", "two"):
        with corpus.open("a") as file:
            file.write(f'{{"text": "{text}"}}\n')
        ingest_corpus(settings, str(corpus))
    assert run_sql(database.connect(settings), "select count(*) from documents") == [(2,)]


def test_a_session_behind_a_pooler_is_known_by_its_process_in_postgres(pooled):
    engine = database.connect(pooled("session"))
    with database.transaction(engine) as connection:
        process = database._open_connections[connection.connection.dbapi_connection]
        assert list(connection.exec_driver_sql("select pg_backend_pid()")) == [(process,)]
