"""A Postgres and an S3 for the tests: children of the test process, which end with it even if it is killed by -9.

The services of `make up` are supervised instead (`toolformer_ops/local/supervision.py`).
"""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psycopg2
from psycopg2 import sql
from pydantic import SecretStr

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolformerError
from toolformer_ops.local import object_store, postgres
from toolformer_ops.local.accounts import RELOCATED_ROOT, Account, tied_command
from toolformer_ops.local.object_store import (
    ObjectStoreAddress,
    remove_sockets,
    weed_command,
    write_identities,
)
from toolformer_ops.local.ports import LOOPBACK, USUAL_PORTS, choose_ports
from toolformer_ops.local.postgres import SUPERUSER, Cluster, PostgresAddress, is_ready, prepare_cluster
from toolformer_ops.storage.objects.publication import ObjectStore

Started = TypeVar("Started")

_READY_SECONDS = 60.0
_STOP_SECONDS = 20.0
_ATTEMPTS = 3
"""A port may be lost between its choice and its use."""
_QUICK_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
    "shared_buffers": "64MB",  # to copy or drop a database looks at every buffer
    "scram_iterations": "1",  # thousands of sessions
}
_MEMORY = Path("/dev/shm")  # noqa: S108
_MEMORY_BYTES = 6 * 2**30
"""Room that has to be free in memory. A Postgres takes 100 MB to 300 MB; an S3 makes as many volumes as
gigabytes are free."""
PASSWORDS = {
    postgres.OWNER: "owner-of-tests",
    postgres.READER: "reader-of-tests",
    postgres.PAGE: "page-of-tests",
    postgres.ANALYST: "analyst-of-tests",
    postgres.REVIEWER: "reviewer-of-tests",
    postgres.AIRFLOW: "airflow-of-tests",
}
"""Of the roles of a deployment."""
seconds_of_ended: list[float] = []
"""CPU seconds of each server that was stopped in this process."""
seconds_of_supervised: list[float] = []
"""CPU seconds of the services of each `up` that `tests/system` ended; they are no children of this process."""


@dataclass
class Server:
    """A process that can be killed and started again under the same address; its output is appended to `log`."""

    command: Sequence[str]
    log: Path
    ready: Callable[[], bool]
    stop_signal: str = "TERM"
    account: Account | None = None
    directory: Path | None = None
    keeper: Executor | None = None
    """Its thread starts the process, which would else end with the thread that calls `start`."""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Return once it is ready."""
        if self.keeper:
            self.keeper.submit(self._start).result()
        else:
            self._start()

    def _start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                tied_command(self.command, self.stop_signal, self.account),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory or self.log.parent,
                env={**os.environ, "HOME": str(self.log.parent)},
                # Its own group, so that Ctrl-C at the terminal does not stop it under tests that still tidy
                # up.
                process_group=0,
            )
        deadline = time.monotonic() + _READY_SECONDS
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                raise ToolformerError(
                    f"{self.command[0]} ended with status {self.process.poll()} or did not answer. Its log:\n{tail}"
                )
            time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart_if_dead(self) -> None:
        if self.process.poll() is not None:
            self.start()

    def stop(self, stop_signal: signal.Signals) -> None:
        """Ask it to end, and kill it when it does not."""
        before = os.times()
        if self.process.poll() is None:
            self.process.send_signal(stop_signal)
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        seconds_of_ended.append(spent)


@dataclass(frozen=True)
class RunningPostgres:
    """An empty Postgres on a free port; a crash of the machine may lose its data."""

    address: PostgresAddress
    cluster: Cluster
    process_id: int

    def dsn(self, database: str, role: str = SUPERUSER) -> str:
        """`postgresql://...` of a database as one of the roles."""
        return self.address.dsn(database, role, PASSWORDS.get(role))


@dataclass(frozen=True)
class RunningObjectStore:
    """An S3 on free ports, with new keys and one empty bucket."""

    address: ObjectStoreAddress
    ports: Mapping[str, int]
    server: Server

    @property
    def process_id(self) -> int:
        return self.server.process.pid


@contextmanager
def start_postgres(directory: Path) -> Iterator[RunningPostgres]:
    """Run a Postgres in `directory`; stop it, and remove its data where that is outside the directory."""
    password = secrets.token_urlsafe(24)
    cluster = prepare_cluster(directory, password)

    def start() -> tuple[PostgresAddress, Server]:
        address = PostgresAddress(free_port(), password)
        options = [word for name, value in _QUICK_SETTINGS.items() for word in ("-c", f"{name}={value}")]
        log, command = directory / "postgres.log", [*cluster.command(address.port), *options]
        return address, Server(command, log, lambda: is_ready(address), "INT", cluster.account, cluster.data)

    address, server = tried(start)
    try:
        yield RunningPostgres(address, cluster, server.process.pid)
    finally:
        server.stop(signal.SIGINT)  # "fast": open connections are cut
        if cluster.data.is_relative_to(RELOCATED_ROOT):
            shutil.rmtree(cluster.data.parent)


def settings_of(dsn: str, **others: Any) -> Settings:
    """Settings of a database, and of nothing that the environment says."""
    return Settings(_env_file=None, database_dsn=SecretStr(dsn), **others)  # type: ignore[call-arg]


def make_template(address: PostgresAddress, name: str) -> None:
    """Make a database with every migration and view applied, to be copied and never written; the roles are there."""
    from toolformer_ops.storage.postgres import (  # tests that need no database do not load its libraries
        database,
        schema,
    )

    postgres.ensure_database(address, name, postgres.OWNER)
    postgres.allow_people(address, name)
    engine = database.connect(settings_of(address.dsn(name, postgres.OWNER, PASSWORDS[postgres.OWNER])))
    schema.migrate(engine)
    engine.dispose()  # Postgres copies only a database that nobody is connected to


def end_sessions(cursor: Any, database: str) -> None:
    """End all sessions of a database, such as one that is still closing: Postgres copies no database that has one."""
    cursor.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (database,))


@contextmanager
def copied_database(server: RunningPostgres, template: str, owner: str = SUPERUSER) -> Iterator[str]:
    """The name of a copy of a database, dropped afterwards; rights and owners inside it are copied with it.

    Postgres copies only what nobody is connected to: connections to the template end.
    """
    names = {
        "name": sql.Identifier(f"test_{uuid.uuid4().hex[:12]}"),
        "template": sql.Identifier(template),
        "owner": sql.Identifier(owner),
        "others": sql.SQL(", ").join(
            map(sql.Identifier, (postgres.READER, postgres.PAGE, postgres.ANALYST, postgres.REVIEWER))
        ),
    }
    with (
        closing(psycopg2.connect(server.address.dsn("postgres"))) as connection,
        connection.cursor() as cursor,
    ):
        connection.autocommit = True  # `create database` cannot run inside a transaction
        end_sessions(cursor, template)
        for statement in (
            # half the time of wal_log
            "create database {name} owner {owner} template {template} strategy file_copy",
            "revoke all on database {name} from public",
            "grant connect on database {name} to {others}",
        ):
            cursor.execute(sql.SQL(statement).format(**names))
        try:
            yield names["name"].string
        finally:
            cursor.execute(sql.SQL("drop database {name} with (force)").format(**names))


@contextmanager
def directory_in_memory(otherwise: Path) -> Iterator[Path]:
    """A folder in memory, removed afterwards; `otherwise` on a machine that has no room there.

    A database is 350 files: to copy and drop it takes 0.04 CPU seconds in memory, and 0.4 on a disk. A folder
    is named by its process, so that what a killed process left is removed here.
    """
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _MEMORY_BYTES:
        yield otherwise
        return
    for left in _MEMORY.glob("tests-of-process-*"):
        if not Path("/proc", left.name.split("-")[3]).exists():
            shutil.rmtree(left, ignore_errors=True)  # it may be another user's
    directory = Path(tempfile.mkdtemp(prefix=f"tests-of-process-{os.getpid()}-", dir=_MEMORY))
    directory.chmod(0o755)  # Postgres enters as another user where the tests run as root
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def start_object_store(
    directory: Path, bucket: str = "toolformer", inside: Sequence[str] = (), keeper: Executor | None = None
) -> Iterator[RunningObjectStore]:
    """Run an S3 with its data in `directory`/seaweedfs; stop it, and keep its data.

    `inside`: words that start a command elsewhere, such as on another disk.
    """
    data, identities = directory / "seaweedfs", directory / "s3-identities.json"
    data.mkdir(parents=True, exist_ok=True)
    access_key, secret_key = secrets.token_hex(10), secrets.token_urlsafe(30)
    write_identities(identities, access_key, secret_key)

    def start() -> RunningObjectStore:
        ports = choose_ports("s3")
        address = ObjectStoreAddress(f"http://{LOOPBACK}:{ports['s3']}", access_key, secret_key)
        command, log = [*inside, *weed_command(data, identities, ports)], directory / "object_store.log"
        client = address.client()
        server = Server(command, log, lambda: object_store.is_ready(client, bucket), keeper=keeper)
        return RunningObjectStore(address, ports, server)

    running = tried(start)
    try:
        yield running
    finally:
        running.server.stop(signal.SIGTERM)
        remove_sockets(running.ports)


def free_port() -> int:
    return choose_ports("postgres")["postgres"]


def free_port_variables() -> dict[str, str]:
    """`TOOLFORMER_<SERVICE>_PORT` of each embedded service, with ports of which none is taken or another's."""
    variables: dict[str, str] = {}
    taken: list[int] = []
    for name in USUAL_PORTS:
        ports = choose_ports(name, avoid=taken)
        taken += ports.values()
        variables[f"TOOLFORMER_{name.upper()}_PORT"] = str(ports[name])
    return variables


def flip_a_byte(store: ObjectStore, key: str) -> None:
    """Change a byte of an object; its length and metadata, the stored hash among them, stay those of the first content."""
    answer = store._client.get_object(Bucket=store.bucket, Key=key)
    content = bytearray(answer["Body"].read())
    content[len(content) // 2] ^= 1
    store._client.put_object(Bucket=store.bucket, Key=key, Body=bytes(content), Metadata=answer["Metadata"])


def tried(start: Callable[[], Started]) -> Started:
    """What `start` returns at its first success."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return start()
        except ToolformerError:
            time.sleep(0.2)
    return start()
