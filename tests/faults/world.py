"""A Postgres and an S3 behind proxies, small disks, and the whole chain of stages, from `ingest` to `finish-run`, as processes.

A deployment in small: `World.run_chain` plays Airflow, which starts a command, looks at its exit status and
tries it again. A run is compared with an undisturbed one of the same world, row by row and object by object:
after each command that says it was a success, and at the end, where `toolformer-ops audit` has its say, too.
"""

import contextlib
import json
import multiprocessing
import os
import random
import secrets
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psycopg2
import tenacity
from botocore.exceptions import BotoCoreError
from psycopg2 import sql

from tests.faults.proxies import LOOPBACK, ObjectStoreProxy, PostgresProxy
from tests.servers import PASSWORDS, Server, end_sessions, free_port, make_template, start_object_store
from toolformer_ops.config import ENV_PREFIX
from toolformer_ops.errors import EXIT_INFRASTRUCTURE, EXIT_TERMINATED
from toolformer_ops.local import postgres
from toolformer_ops.local.accounts import tied_command
from toolformer_ops.local.postgres import Cluster, PostgresAddress, is_ready, prepare_cluster

RUN = "disturbed"
TOOL = "Calculator"
DOCUMENTS = 24
MICRO_BATCH = 4
BUCKET = "toolformer"
DISK_BYTES = 400 * 2**20
"""Of the disk of Postgres, which takes 120 MB with two databases."""
STAGE_DISK_BYTES = 32 * 2**20
S3_DISK_BYTES = 512 * 2**20
"""Of the disk of S3, which drops deleted objects late: a chain leaves about 100 kB."""
SECONDS_FOR_A_COMMAND = 120.0
LOCK_SECONDS = 4.0
RETRY_SECONDS = 0.2
OWN_RETRIES, INFRASTRUCTURE_RETRIES = 2, 20
"""As in `airflow_tasks/retrying.py`."""

OF_TOOL = ("filter", "sample", "execute", "score", "placebo")
STEPS = (
    "ingest",
    "start-run",
    *OF_TOOL,
    "check",
    "release",
    "check-release",
    "finetune",
    "publish",
    "finish-run",
)
_CHOICES = {
    "model": "fake", "tools": [TOOL], "max_positions": 4, "samples_per_position": 4, "keep_thresholds": {TOOL: 0.5},
}  # fmt: skip
_NOT_COMPARED = {
    "micro_batches": None, "micro_batch_tries": None, "claimers": None, "document_claims": None,
    "audits": None, "audit_checks": None, "audit_findings": None,
    # Files are of rows with seconds and times; what a fault kept out of the history is written at the end of the next run.
    "history_files": None, "history_documents": None, "history_work": None, "history_runs": None,
    "stage_ledger": ("batch_id",), "annotation_runs": ("cost", "estimate", "numbers_batch_id", "registered_hash", "ended_hash"),
    "finished_run_work": ("micro_batches",), "corpus_files": ("stamp",),
    "schema_files": None, "corpus_version_files": None, "lost_samples": None,
}  # fmt: skip
"""Tables, or columns, that tell of the course of a run and not of its content; times and seconds are never
compared."""

Rows = Mapping[str, Counter[tuple[str, ...]]]


@dataclass
class Undisturbed:
    """What a chain without a disturbance leaves, and how it goes."""

    rows: dict[str, Rows] = field(default_factory=dict)
    """After each step, and of `all`."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of each step."""
    counts: Counter[str] = field(default_factory=Counter)
    """Statements and requests, by kind."""


@dataclass
class Outcome:
    """How a disturbed chain ended."""

    failures: list[tuple[str, int, str]] = field(default_factory=list)
    """Step, status and last line of each process that did not end with 0."""
    redone: float = 0.0
    """Micro-batches that were computed again."""
    problems: list[str] = field(default_factory=list)
    """Why this chain is not as it should be, in words."""


class Disturbance:
    """What befalls one chain: nothing; the base of all in `disturbances.py`."""

    processes = 1
    """How many do each step at once."""
    small_disk = False
    """Whether the state folder and /tmp are on the small disk."""
    keeps_away = False
    """Whether a server that has ended is to stay away for now."""

    def __init__(self, world: "World", draw: random.Random) -> None:
        self.world, self.draw = world, draw
        self.outcome = Outcome()

    def begin(self) -> None:
        """Before the first command."""

    def started(self, step: str, process_id: int) -> None:
        """A command was started."""

    def is_lost(self, process_id: int) -> bool:
        """Whether it seems to be gone: the command is started again elsewhere, whatever this process does."""
        return False

    def failed(self) -> None:
        """A command ended with an error."""

    def end(self) -> None:
        """After the last command."""


class SmallDisk:
    """A file system in memory, seen by the processes that are started `inside`; it is gone with this process.

    Needs root. Its holder is a process in a mount namespace of its own, so that a killed test leaves no mount
    behind.
    """

    def __init__(self, folder: Path, log: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        script = f'mount -t tmpfs -o size={size},mode=0777 tmpfs "$0" && exec sleep infinity'
        words = ["unshare", "--mount", "sh", "-c", script, str(folder)]
        self.holder = Server(words, log, lambda: True, "KILL")
        process_id = self.holder.process.pid
        self.seen = Path(f"/proc/{process_id}/root{folder}")
        self.inside = ("nsenter", "--target", str(process_id), "--mount", "--")
        until = time.monotonic() + 10
        while not (self.seen.exists() and self.seen.stat().st_dev != folder.stat().st_dev):
            assert time.monotonic() < until, "no small disk"
            time.sleep(0.02)

    @staticmethod
    def is_possible() -> bool:
        """Whether this process may mount."""
        if os.geteuid() or not shutil.which("unshare") or not shutil.which("nsenter"):
            return False
        mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        return subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def fill(self) -> None:
        """Leave no byte."""
        block = b"\0" * 2**16
        with contextlib.suppress(OSError), (self.seen / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(block)

    def free(self) -> None:
        """Leave as much as there was."""
        (self.seen / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        self.holder.stop(signal.SIGKILL)


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__, "tests.faults.commands"])


def command(*arguments: Any) -> None:
    from tests.faults import commands  # which no other process may import

    commands.run(*arguments)


class World:
    """Everything that a chain needs, made once."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.log = folder / "commands.log"
        keeper = stack.enter_context(ThreadPoolExecutor(1, "keeper"))
        # 1. Postgres, on a small disk where we may mount one.
        password = secrets.token_urlsafe(24)
        cluster = prepare_cluster(folder / "postgres", password)
        if cluster.data.parent != folder / "postgres":
            stack.callback(shutil.rmtree, cluster.data.parent, ignore_errors=True)
        small = SmallDisk.is_possible()

        def disk(place: Path, size: int) -> SmallDisk | None:
            return (
                stack.enter_context(closing(SmallDisk(place, folder / "disk.log", size))) if small else None
            )

        self.disk = disk(cluster.data.with_name("small"), DISK_BYTES)
        self.stage_disk = disk(folder / "stage-disk", STAGE_DISK_BYTES)
        self.s3_disk = disk(folder / "seaweedfs", S3_DISK_BYTES)
        inside: tuple[str, ...] = ()
        if self.disk:
            data = self.disk.folder / "data"
            subprocess.run([*self.disk.inside, "cp", "-a", str(cluster.data), str(data)], check=True)
            cluster = Cluster(data, cluster.programs, cluster.account)
            inside = self.disk.inside
        self.postgres_address = address = PostgresAddress(free_port(), password)
        quick = {
            "fsync": "off",
            "full_page_writes": "off",
            "max_wal_size": "64MB",
        }  # commits reach the system's cache
        quick |= {"min_wal_size": "32MB", "shared_buffers": "32MB"}
        words = [
            *cluster.command(address.port),
            *(word for one in quick.items() for word in ("-c", "=".join(one))),
        ]
        command, log = [*inside, *tied_command(words, "INT", cluster.account)], folder / "postgres.log"
        self.postgres = Server(command, log, lambda: is_ready(address), directory=folder, keeper=keeper)
        stack.callback(lambda: self.postgres.stop(signal.SIGINT))
        self.postgres_proxy = PostgresProxy(address.port)
        stack.callback(self.postgres_proxy.close)
        # 2. S3.
        on_disk = self.s3_disk.inside if self.s3_disk else ()
        running = stack.enter_context(start_object_store(folder, BUCKET, on_disk, keeper))
        self.weed, self.s3 = running.server, running.address
        self.s3_proxy = ObjectStoreProxy(running.ports["s3"])
        stack.callback(self.s3_proxy.close)
        # 3. A corpus.
        self.corpus = folder / "corpus.jsonl"
        texts = [
            f"Box {number} holds 21 pens and 31 caps, a total of 52 things." for number in range(DOCUMENTS)
        ]
        self.corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + '{"txt": 1}\n')
        postgres.ensure_roles(address, PASSWORDS)
        make_template(address, "template")
        self._columns: dict[str, list[str]] = {}
        self.proposer = ""
        self._by_proposer: dict[str, Undisturbed] = {}

    @property
    def undisturbed(self) -> Undisturbed:
        """The undisturbed chain of this proposer."""
        return self._by_proposer[self.proposer]

    def propose_by(self, proposer: str) -> None:
        """Let calls be proposed by this proposer from now on; the first time an undisturbed chain is run."""
        self.proposer = proposer
        if proposer not in self._by_proposer:
            self._by_proposer[proposer] = chain = Undisturbed()
            outcome = self.run_chain(Disturbance(self, random.Random()))  # noqa: S311
            chain.counts = Counter(self.postgres_proxy.counts) + Counter(self.s3_proxy.counts)
            assert not outcome.problems, outcome.problems

    # Databases and buckets

    def revive(self) -> None:
        """Start the servers that have ended, as a supervisor would."""
        for server in (self.postgres, self.weed):
            server.restart_if_dead()

    def _fresh(self) -> None:
        """An empty database, bucket and state folder."""
        self.revive()
        for proxy in (self.postgres_proxy, self.s3_proxy):
            proxy.reset()
        with closing(psycopg2.connect(self.postgres_address.dsn("postgres"))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("drop database if exists chain with (force)")
                end_sessions(cursor, "template")
                statement = "create database chain owner {} template template strategy file_copy"
                cursor.execute(sql.SQL(statement).format(sql.Identifier(postgres.OWNER)))
        client = self.s3.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for item in page.get("Contents", []):
                client.delete_object(Bucket=BUCKET, Key=item["Key"])
        for folder in (self.folder / "state", *([self.stage_disk.seen / "state"] if self.stage_disk else [])):
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "tmp").mkdir(parents=True)
        (self.folder / "seen").write_bytes(b"")
        self.log.write_bytes(b"")

    def environment(self, *, small_disk: bool = False) -> dict[str, str]:
        """Settings of a chain's commands."""
        state = (self.stage_disk.seen if self.stage_disk and small_disk else self.folder) / "state"
        dsn = PostgresAddress(self.postgres_proxy.port, "").dsn(
            "chain", postgres.OWNER, PASSWORDS[postgres.OWNER]
        )
        values = {
            "STATE_DIR": str(state),
            "DATABASE_DSN": dsn,
            "S3_ENDPOINT_URL": f"http://{LOOPBACK}:{self.s3_proxy.port}",
            "S3_ACCESS_KEY_ID": self.s3.access_key,
            "S3_SECRET_ACCESS_KEY": self.s3.secret_key,
            "S3_BUCKET": BUCKET,
            "MICRO_BATCH_DOCUMENTS": str(MICRO_BATCH),
            "OUTAGE_SECONDS": "0",  # a process that begins anew would load the real model
            "LOCK_SECONDS": str(LOCK_SECONDS),
        }
        named = {f"{ENV_PREFIX}{name}": value for name, value in values.items()}
        return {**named, "TMPDIR": str(state / "tmp"), "FAULTS_SEEN": str(self.folder / "seen")}

    # Chains

    def _start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> ForkServerProcess:
        process = FORKS.Process(target=command, args=(arguments, environment, str(self.log)))
        process.start()
        return process

    def run_chain(self, disturbance: Disturbance) -> Outcome:
        """Run all steps, disturbed, with retries as Airflow's; then judge.

        The first chain of a proposer sets what is expected.
        """
        self._fresh()
        disturbance.begin()
        try:
            all(self._run_step(step, disturbance) for step in STEPS)  # up to the first that fails for good
        finally:
            disturbance.end()
            self.revive()
            self.postgres_proxy.rule = self.s3_proxy.rule = lambda *_: "pass"
        self._judge(disturbance.outcome)
        return disturbance.outcome

    def _run_step(self, step: str, disturbance: Disturbance) -> bool:
        """Whether every process of the step ended with 0 at last."""
        outcome = disturbance.outcome
        options = {
            "ingest": ["--corpus", str(self.corpus)],
            "start-run": [
                "--parameters",
                json.dumps({**_CHOICES, "corpus": str(self.corpus), "proposer": self.proposer}),
            ],
            "finish-run": ["--state", "success"],
            **{name: ["--tool", TOOL] for name in OF_TOOL},
        }
        arguments = ["stage", step, *([] if step == "ingest" else ["--run", RUN]), *options.get(step, [])]
        began = time.monotonic()
        left = disturbance.processes
        own = infrastructure = 0
        while left:
            # 1. Start, and wait.
            environment = self.environment(small_disk=disturbance.small_disk)
            before = self.log.stat().st_size
            processes = [self._start(arguments, environment) for _ in range(left)]
            for process in processes:
                disturbance.started(step, process.pid or 0)
            for process in processes:
                self._wait(process, disturbance)
                if process.exitcode is None and not disturbance.is_lost(process.pid or 0):
                    process.kill()
                    outcome.problems.append(f"{step} hung for {SECONDS_FOR_A_COMMAND:.0f} s")
                    return False
            statuses = [
                -signal.SIGSTOP if process.exitcode is None else process.exitcode for process in processes
            ]
            # 2. A success must have done its work.
            if 0 in statuses:
                self._look_at_success(step, outcome)
            # 3. Try again what failed, as often as Airflow would.
            failed = [status for status in statuses if status != 0]
            written = self.log.read_bytes()[before:].decode(errors="replace")
            last = next((line for line in reversed(written.splitlines()) if line.strip()), "")
            if "Traceback (most recent" in written:
                outcome.problems.append(f"{step}: a traceback, {last}")
            for status in failed:
                outcome.failures.append((step, status, last if status > 0 else ""))
                disturbance.failed()
                if status in (EXIT_INFRASTRUCTURE, EXIT_TERMINATED) or status < 0:
                    infrastructure += 1
                else:
                    own += 1
                if status in (2, 3) or own > OWN_RETRIES or infrastructure > INFRASTRUCTURE_RETRIES:
                    outcome.problems.append(f"{step} failed for good, status {status}: {last}")
                    return False
            left = len(failed)
            if left:
                time.sleep(RETRY_SECONDS)
                if not disturbance.keeps_away:
                    self.revive()
        self.undisturbed.seconds.setdefault(step, time.monotonic() - began)
        return True

    def _wait(self, process: ForkServerProcess, disturbance: Disturbance) -> None:
        """Return when a process has ended, or seems to be gone, or has had its time."""
        until = time.monotonic() + SECONDS_FOR_A_COMMAND
        while process.is_alive() and not disturbance.is_lost(process.pid or 0) and time.monotonic() < until:
            process.join(0.1)

    # Judging

    def _look_at_success(self, step: str, outcome: Outcome) -> None:
        """A command that was a success has left all that it leaves in the first chain."""
        found = self.rows()
        if lacking := [
            name for name, rows in self.undisturbed.rows.setdefault(step, found).items() if rows - found[name]
        ]:
            outcome.problems.append(f"{step} ended with 0 without all of {', '.join(lacking)}")

    def _judge(self, outcome: Outcome) -> None:
        # 1. Row by row, and object by object.
        found = self.rows()
        for name, rows in self.undisturbed.rows.setdefault("all", found).items():
            lost, more = rows - found[name], found[name] - rows
            if lost or more:
                pair = [next(iter(rows.elements()), ()) for rows in (lost, more)]
                differing = [cells for cells in zip(*pair, strict=False) if cells[0] != cells[1]] or pair
                outcome.problems.append(
                    f"{name}: {lost.total()} lost, {more.total()} more: {str(differing)[:300]}"
                )
        # 2. The audit.
        audit = self._start(["audit"], self.environment())
        audit.join()
        if audit.exitcode:
            outcome.problems.append(f"audit ended with {audit.exitcode}: {self.log.read_text()[-500:]}")
        # 3. Work that was done twice.
        seen: dict[tuple[str, str], set[str]] = {}
        for line in (self.folder / "seen").read_text().splitlines():
            stage, process, text = line.split("\t", 2)
            seen.setdefault((stage, text), set()).add(process)
        outcome.redone = sum(len(processes) - 1 for processes in seen.values()) / MICRO_BATCH

    @tenacity.retry(
        # A fault may come between the end of a command and this look.
        retry=tenacity.retry_if_exception_type((psycopg2.OperationalError, BotoCoreError)),
        wait=tenacity.wait_fixed(0.5),
        stop=tenacity.stop_after_delay(60),
        reraise=True,
    )
    def rows(self) -> Rows:
        """The content of all tables and of S3: each row as texts."""
        found: dict[str, Counter[tuple[str, ...]]] = {}
        with (
            closing(psycopg2.connect(self.postgres_address.dsn("chain"))) as connection,
            connection.cursor() as cursor,
        ):
            if not self._columns:
                cursor.execute(_COLUMNS)
                for table, column in cursor.fetchall():
                    without = _NOT_COMPARED.get(table, ())
                    if without is not None and column not in (*without, "seconds"):
                        self._columns.setdefault(table, []).append(column)
            for table, names in self._columns.items():
                columns = [sql.SQL("{}::text").format(sql.Identifier(name)) for name in names]
                statement = sql.SQL("select {} from {}").format(
                    sql.SQL(", ").join(columns), sql.Identifier(table)
                )
                cursor.execute(statement)
                found[table] = Counter(cursor.fetchall())
        for prefix in ("releases", "models"):
            listed = self.s3.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
            found[f"objects of {prefix}"] = Counter((item["Key"], item["ETag"]) for item in listed)
        return found


_COLUMNS = """
    select table_name, column_name from information_schema.columns join information_schema.tables using (table_schema, table_name)
    where table_schema = 'public' and table_type = 'BASE TABLE' and data_type <> 'timestamp with time zone'
    order by table_name, ordinal_position
"""


@contextmanager
def a_world(folder: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(folder, stack)
