"""A Postgres and an S3 behind proxies, small disks, and the whole chain of stages, from `ingest` to `finish-run`, as processes.

A deployment in small: `World.run_chain` plays Airflow, which starts a command, looks at its exit status and tries it again. A run
is compared with an undisturbed one of the same world, row by row and object by object: after each command that says it was a
success, and at the end, where `toolformer-ops audit` has its say, too.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psycopg2
import tenacity
from botocore.exceptions import BotoCoreError
from psycopg2 import sql
from pydantic import SecretStr

from tests.faults import commands
from tests.faults.proxies import LOOPBACK, ObjectStoreProxy, PostgresProxy
from tests.servers import Server, free_port, start_object_store, started, stop
from toolformer_ops.config import ENV_PREFIX, REPOSITORY, Settings
from toolformer_ops.errors import EXIT_INFRASTRUCTURE, EXIT_TERMINATED
from toolformer_ops.local import postgres
from toolformer_ops.local.accounts import tied_command
from toolformer_ops.local.postgres import Cluster, PostgresAddress, is_ready, prepare_cluster

RUN = "disturbed"
TOOL = "Calculator"
DOCUMENTS = 24
MICRO_BATCH = 4
BUCKET = "toolformer"
OWNER_PASSWORD = "owner-of-faults"
DISK_BYTES = 400 * 2**20
"""Of the disk of Postgres, which takes 120 MB with two databases."""
STAGE_DISK_BYTES = 32 * 2**20
S3_DISK_BYTES = 512 * 2**20
"""Of the disk of S3, which drops deleted objects late: a chain leaves about 100 kB."""
SECONDS_FOR_A_COMMAND = 120.0
RETRY_SECONDS = 0.2
OWN_RETRIES, INFRASTRUCTURE_RETRIES = 2, 20
"""As in `airflow_tasks/retrying.py`."""

_ON_ONE_RUN = ("--run", RUN)
_ON_ONE_TOOL = (*_ON_ONE_RUN, "--tool", TOOL)
STEPS: Mapping[str, tuple[str, ...]] = {
    "ingest": (),
    "start-run": _ON_ONE_RUN,
    "filter": _ON_ONE_TOOL,
    "sample": _ON_ONE_TOOL,
    "execute": _ON_ONE_TOOL,
    "score": _ON_ONE_TOOL,
    "placebo": _ON_ONE_TOOL,
    "check": _ON_ONE_TOOL,
    "release": _ON_ONE_RUN,
    "check-release": _ON_ONE_RUN,
    "finetune": _ON_ONE_RUN,
    "publish": _ON_ONE_RUN,
    "finish-run": (*_ON_ONE_RUN, "--state", "success"),
}
_CHOICES = {
    "model": "fake", "tools": [TOOL], "max_positions": 4, "samples_per_position": 4, "keep_thresholds": {TOOL: 0.5},
}  # fmt: skip
WRITES: Mapping[str, tuple[str, ...]] = {
    "ingest": ("documents", "corpora", "corpus_versions", "corpus_files", "corpus_documents", "rejected_documents"),
    "start-run": ("recipes", "run_tools"),
    "filter": ("filter_decisions", "stage_ledger of filter"),
    "sample": ("candidate_calls", "pruned_positions", "stage_ledger of sample"),
    "execute": ("call_results", "stage_ledger of execute"),
    "score": ("call_losses", "stage_ledger of score"),
    "placebo": ("placebo_losses",),
    "check": ("finished_work",),
    "release": ("dataset_releases", "release_calls", "run_releases", "objects of releases"),
    "publish": ("finetuned_models", "run_models", "objects of models"),
}
"""What a stage must have written when it says that it was a success."""
_NOT_COMPARED = {
    "micro_batches": None, "micro_batch_tries": None, "audits": None, "audit_checks": None, "audit_findings": None,
    "stage_ledger": ("batch_id",), "annotation_runs": ("cost", "estimate", "numbers_batch_id", "registered_hash"),
    "finished_run_work": ("micro_batches",), "corpus_files": ("stamp",),
    "schema_files": None, "corpus_version_files": None, "lost_samples": None,
}  # fmt: skip
"""Tables, or columns, that tell of the course of a run and not of its content; times and seconds are never compared."""

Rows = Mapping[str, Counter[tuple[str, ...]]]


class Fault(Protocol):
    """What disturbs one chain; see `disturbances.py`."""

    processes: int
    """How many processes do each step at once."""
    small_disk: bool
    """Whether the state folder and /tmp are on the small disk."""
    keeps_away: bool
    """Whether a server that has ended is to stay away for now."""
    outcome: "Outcome | None"
    """Of the chain at work."""

    def begin(self) -> None: ...
    def started(self, step: str, process_id: int) -> None: ...
    def failed(self, step: str) -> None: ...
    def end(self) -> None: ...


@dataclass
class Outcome:
    """How a disturbed chain ended."""

    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    """Rows and objects that are there under another content, and findings of the audit."""
    false_successes: int = 0
    """Commands that ended with 0 and had not written what they write."""
    failures: list[tuple[str, int, str]] = field(default_factory=list)
    """Step, status and last line of each process that did not end with 0."""
    redone: float = 0.0
    """Micro-batches that were computed again."""
    seconds: float = 0.0
    returned_at: float | None = None
    """When what was away was there again; `time.monotonic()`."""
    recovered: float | None = None
    """Seconds from then to the next end of a command that was a success."""
    problems: list[str] = field(default_factory=list)
    """Why this chain is not as it should be, in words."""


class SmallDisk:
    """A file system in memory, seen by the processes that are started `inside`; it is gone with this process.

    Needs root. Its holder is a process in a mount namespace of its own, so that a killed test leaves no mount behind.
    """

    def __init__(self, folder: Path, log: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        script = f'mount -t tmpfs -o size={size},mode=0777 tmpfs "$0" && exec sleep infinity'
        words = ["unshare", "--mount", "sh", "-c", script, str(folder)]
        self.holder = started(words, log, lambda: True, "KILL")
        self.seen = Path(f"/proc/{self.holder.pid}/root{folder}")
        self.inside = ("nsenter", "--target", str(self.holder.pid), "--mount", "--")
        until = time.monotonic() + 10
        while not (self.seen.exists() and self.seen.stat().st_dev != folder.stat().st_dev):
            assert time.monotonic() < until, "no small disk"
            time.sleep(0.02)

    @staticmethod
    def is_possible() -> bool:
        """Whether this process may mount."""
        if os.geteuid() or not shutil.which("unshare") or not shutil.which("nsenter"):
            return False
        tried = subprocess.run(
            ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
        )
        return tried.returncode == 0

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
        stop(self.holder, signal.SIGKILL)


class Processes:
    """Starts command lines through `commands.py`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._server = subprocess.Popen(
                tied_command([sys.executable, "-m", "tests.faults.commands"], "KILL", None),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )  # fmt: skip
        self._changed = threading.Condition()
        self._answers: dict[int, dict[str, int]] = {}
        self._ready = False
        self._next = 0
        threading.Thread(target=self._read, daemon=True).start()
        with self._changed:
            assert self._changed.wait_for(lambda: self._ready, 120), log.read_text()

    def _read(self) -> None:
        assert self._server.stdout
        for line in self._server.stdout:
            answer = json.loads(line)
            with self._changed:
                if "ready" in answer:
                    self._ready = True
                else:
                    self._answers.setdefault(answer.pop("id"), {}).update(answer)
                self._changed.notify_all()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> tuple[int, int]:
        """The number and the process id of a new process."""
        assert self._server.stdin
        self._next += 1
        number = self._next
        request = {"id": number, "arguments": list(arguments), "environment": dict(environment), "log": str(log)}
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        with self._changed:
            assert self._changed.wait_for(lambda: number in self._answers, 30)
            return number, self._answers[number]["process"]

    def wait(self, number: int, seconds: float = SECONDS_FOR_A_COMMAND) -> int | None:
        """Its status; None where it has not ended in time."""
        with self._changed:
            ended = self._changed.wait_for(lambda: "status" in self._answers[number], seconds)
            return self._answers[number]["status"] if ended else None

    def close(self) -> None:
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait(10)


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
            return stack.enter_context(closing(SmallDisk(place, folder / "disk.log", size))) if small else None

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
        self._cluster, self._inside = cluster, inside
        command, log = self.postgres_command({}), folder / "postgres.log"
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
        # 3. The processes, a corpus, and an undisturbed chain.
        self.processes = Processes(folder / "processes.log")
        stack.callback(self.processes.close)
        self.corpus = folder / "corpus.jsonl"
        texts = [f"Box {number} holds 2 pens and 3 caps, a total of 5 things." for number in range(DOCUMENTS)]
        self.corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + '{"txt": 1}\n')
        self._make_template()
        self.expected: dict[str, Rows] = {}
        self.seconds: dict[str, float] = {}
        self.undisturbed = self.run_chain(None)
        self.counts = Counter(self.postgres_proxy.counts) + Counter(self.s3_proxy.counts)
        assert not self.undisturbed.problems, self.undisturbed.problems

    # Databases and buckets

    def postgres_command(self, environment: Mapping[str, str]) -> list[str]:
        """The command line of Postgres, with variables that are set for it alone: what starts it is root."""
        quick = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "64MB"}  # commits reach the system's cache
        quick |= {"min_wal_size": "32MB", "shared_buffers": "32MB"}
        words = ["env", *(f"{name}={value}" for name, value in environment.items())]
        words += self._cluster.command(self.postgres_address.port)
        words += [word for name, value in quick.items() for word in ("-c", f"{name}={value}")]
        return [*self._inside, *tied_command(words, "INT", self._cluster.account)]

    def _make_template(self) -> None:
        from toolformer_ops.storage import database, schema

        address = self.postgres_address
        passwords = {postgres.OWNER: OWNER_PASSWORD, postgres.READER: "reader", postgres.REVIEWER: "reviewer"}
        passwords |= {postgres.PAGE: "page", postgres.AIRFLOW: "airflow"}
        postgres.ensure_roles(address, passwords)
        postgres.ensure_database(address, "template", postgres.OWNER)
        postgres.allow_people(address, "template")
        dsn = SecretStr(address.dsn("template", postgres.OWNER, OWNER_PASSWORD))
        engine = database.connect(Settings(_env_file=None, database_dsn=dsn))  # type: ignore[call-arg]
        schema.migrate(engine)
        engine.dispose()

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

    def environment(self, fault: Fault | None) -> dict[str, str]:
        """Settings of a chain's commands."""
        small = self.stage_disk if fault is not None and fault.small_disk else None
        state = (small.seen if small else self.folder) / "state"
        dsn = PostgresAddress(self.postgres_proxy.port, "").dsn("chain", postgres.OWNER, OWNER_PASSWORD)
        values = {
            "STATE_DIR": str(state),
            "DATABASE_DSN": dsn,
            "S3_ENDPOINT_URL": f"http://{LOOPBACK}:{self.s3_proxy.port}",
            "S3_ACCESS_KEY_ID": self.s3.access_key,
            "S3_SECRET_ACCESS_KEY": self.s3.secret_key,
            "S3_BUCKET": BUCKET,
            "MICRO_BATCH_DOCUMENTS": str(MICRO_BATCH),
            "OUTAGE_SECONDS": "0",  # a process that begins anew would load the real model
        }
        named = {f"{ENV_PREFIX}{name}": value for name, value in values.items()}
        return {**named, "TMPDIR": str(state / "tmp"), commands.SEEN: str(self.folder / "seen")}

    # Chains

    def run_chain(self, fault: Fault | None) -> Outcome:
        """Run all steps, disturbed by `fault`, with retries as Airflow's; then judge. `None` sets what is expected."""
        self._fresh()
        outcome = Outcome()
        began = time.monotonic()
        if fault is not None:
            fault.outcome = outcome
            fault.begin()
        try:
            for step in STEPS:
                if not self._run_step(step, fault, outcome):
                    break
        finally:
            if fault is not None:
                fault.end()
                self.revive()
                for proxy in (self.postgres_proxy, self.s3_proxy):
                    proxy.rule = lambda *_: "pass"  # type: ignore[assignment]
        outcome.seconds = time.monotonic() - began
        self._judge(outcome)
        return outcome

    def _run_step(self, step: str, fault: Fault | None, outcome: Outcome) -> bool:  # noqa: PLR0912 - what Airflow does
        """Whether every process of the step ended with 0 at last."""
        arguments = ["stage", step, *STEPS[step]]
        if step == "ingest":
            arguments += ["--corpus", str(self.corpus)]
        if step == "start-run":
            arguments += ["--parameters", json.dumps({**_CHOICES, "corpus": str(self.corpus)})]
        began = time.monotonic()
        left = fault.processes if fault is not None else 1
        own = infrastructure = 0
        while left:
            # 1. Start, and wait.
            environment = self.environment(fault)
            before = self.log.stat().st_size
            numbers = []
            for _ in range(left):
                number, process_id = self.processes.start(arguments, environment, self.log)
                numbers.append((number, process_id))
                if fault is not None:
                    fault.started(step, process_id)
            statuses = []
            for number, process_id in numbers:
                status = self.processes.wait(number)
                if status is None:
                    os.kill(process_id, signal.SIGKILL)
                    outcome.problems.append(f"{step} hung for {SECONDS_FOR_A_COMMAND:.0f} s")
                    return False
                statuses.append(status)
            # 2. A success must have done its work.
            if 0 in statuses:
                if outcome.returned_at is not None and outcome.recovered is None:
                    outcome.recovered = time.monotonic() - outcome.returned_at
                self._look_at_success(step, outcome)
            # 3. Try again what failed, as often as Airflow would.
            failed = [status for status in statuses if status != 0]
            with self.log.open("rb") as log:
                log.seek(before)
                written = log.read().decode(errors="replace")
            last = next((line for line in reversed(written.splitlines()) if line.strip()), "")
            if "Traceback (most recent" in written:
                outcome.problems.append(f"{step}: a traceback, {last}")
            for status in failed:
                outcome.failures.append((step, status, last if status > 0 else ""))
                if fault is not None:
                    fault.failed(step)
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
                if fault is None or not fault.keeps_away:
                    self.revive()
        self.seconds.setdefault(step, time.monotonic() - began)
        return True

    # Judging

    def _look_at_success(self, step: str, outcome: Outcome) -> None:
        if step not in WRITES:
            return
        found = self.rows(WRITES[step])
        if step not in self.expected:
            self.expected[step] = found
        elif lacking := [name for name, rows in self.expected[step].items() if rows - found[name]]:
            outcome.false_successes += 1
            outcome.problems.append(f"{step} ended with 0 without all of {', '.join(lacking)}")

    def _judge(self, outcome: Outcome) -> None:
        # 1. Row by row, and object by object.
        found = self.rows()
        if "all" not in self.expected:
            self.expected["all"] = found
        for name, rows in self.expected["all"].items():
            lost, more = rows - found[name], found[name] - rows
            keys = self._key_of(name)
            lost_keys = Counter(row[:keys] for row in lost.elements())
            more_keys = Counter(row[:keys] for row in more.elements())
            wrong = (lost_keys & more_keys).total()
            outcome.wrong += wrong
            outcome.lost += lost.total() - wrong
            outcome.doubled += more.total() - wrong
            if lost or more:
                pair = [next(iter(rows.elements()), ()) for rows in (lost, more)]
                differing = [cells for cells in zip(*pair, strict=False) if cells[0] != cells[1]] or pair
                outcome.problems.append(f"{name}: {lost.total()} lost, {more.total()} more: {str(differing)[:300]}")
        # 2. The audit.
        number, _ = self.processes.start(["audit"], self.environment(None), self.log)
        if status := self.processes.wait(number):
            outcome.wrong += 1
            findings = [
                line for line in self.log.read_text().splitlines() if line.startswith(("- ", "lost", "changed"))
            ]
            outcome.problems.append(f"audit ended with {status}: {findings[:5] or self.log.read_text()[-500:]}")
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
    def rows(self, names: Sequence[str] = ()) -> dict[str, Counter[tuple[str, ...]]]:
        """The content of these tables (or `objects of PREFIX`), all by default: each row with its key first, as texts."""
        found: dict[str, Counter[tuple[str, ...]]] = {}
        with closing(psycopg2.connect(self.postgres_address.dsn("chain"))) as connection, connection.cursor() as cursor:
            if not hasattr(self, "_columns"):
                cursor.execute(_COLUMNS)
                self._columns: dict[str, list[tuple[str, bool]]] = {}
                for table, column, is_key in cursor.fetchall():
                    without = _NOT_COMPARED.get(table, ())
                    if without is not None and column not in (*without, "seconds"):
                        self._columns.setdefault(table, []).append((column, is_key))
            for name in names or (*self._columns, "objects of releases", "objects of models"):
                table, _, part = name.partition(" of ")
                if table == "objects":
                    listed = self.s3.client().list_objects_v2(Bucket=BUCKET, Prefix=part).get("Contents", [])
                    found[name] = Counter((item["Key"], item["ETag"]) for item in listed)
                    continue
                columns = sorted(self._columns[table], key=lambda column: not column[1])
                statement = sql.SQL("select {} from {}").format(
                    sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column)) for column, _ in columns),
                    sql.Identifier(table),
                )
                if part:
                    statement += sql.SQL(" where stage = {}").format(sql.Literal(part))
                cursor.execute(statement)
                found[name] = Counter(cursor.fetchall())
        return found

    def _key_of(self, name: str) -> int:
        table = name.partition(" of ")[0]
        return 1 if table == "objects" else sum(is_key for _, is_key in self._columns[table]) or 1


_COLUMNS = """
    select relation.relname, attribute.attname, coalesce(attribute.attnum = any(key.indkey), false)
    from pg_class relation
    join pg_attribute attribute on attribute.attrelid = relation.oid and attribute.attnum > 0 and not attribute.attisdropped
    left join pg_index key on key.indrelid = relation.oid and key.indisprimary
    where relation.relnamespace = 'public'::regnamespace and relation.relkind in ('r', 'p') and not relation.relispartition
      and attribute.atttypid <> 'timestamptz'::regtype
    order by 1, attribute.attnum
"""


@contextmanager
def a_world(folder: Path) -> Iterator[World]:
    """A world that ends with the block."""
    with ExitStack() as stack:
        yield World(folder, stack)
