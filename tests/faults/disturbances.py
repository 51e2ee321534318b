"""What befalls a chain: each class is one kind of fault, at places and moments that its random numbers choose.

A fault says what its victims must say: `says` is looked for in the last line of each command that ended with an error.
"""

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tests.faults.proxies import RequestFate, StatementFate
from tests.faults.world import BUCKET, STEPS, Outcome, World
from toolformer_ops.errors import EXIT_TERMINATED
from toolformer_ops.local_services.object_store import check_put_and_get

AWAY_SECONDS = 1.5
POSTGRES_SAYS = r"Postgres (cannot serve now|broke)|expected Postgres at"
S3_SAYS = r"S3|s3://|object store"
DISK_SAYS = r"[Nn]o space left|[Dd]isk"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


class Disturbance:
    """Nothing happens; the base of all faults."""

    name: ClassVar[str]
    says: ClassVar[str] = r"$^"
    """Regular expression; by default no command may end with an error."""
    processes = 1
    small_disk = False

    def __init__(self, world: World, draw: random.Random) -> None:
        self.world = world
        self.draw = draw
        self.outcome: Outcome | None = None
        self.keeps_away = False

    @staticmethod
    def why_not(world: World) -> str:
        """Why it cannot be tried on this machine; empty where it can."""
        return ""

    def begin(self) -> None:
        """Before the first command."""

    def started(self, step: str, process_id: int) -> None:
        """A command was started."""

    def failed(self, step: str) -> None:
        """A command ended with an error."""

    def environment(self, step: str) -> Mapping[str, str]:
        """What else a command finds in its environment."""
        return {}

    def end(self) -> None:
        """After the last command."""

    def returned(self) -> None:
        """What was away is there again."""
        if self.outcome is not None:
            self.outcome.returned_at = time.monotonic()


class AtMoments(Disturbance):
    """Something happens at `times` moments, each in a step that is drawn, at a moment of the time that the step takes."""

    times: ClassVar[int] = 1
    steps: ClassVar[tuple[str, ...]] = tuple(STEPS)

    def begin(self) -> None:
        seconds = self.world.seconds
        chosen = self.draw.choices(self.steps, k=self.times)
        self.moments: dict[str, list[float]] = {}
        for step in chosen:
            self.moments.setdefault(step, []).append(self.draw.uniform(0, 0.9 * seconds[step]))
        self.threads: list[threading.Thread] = []

    def started(self, step: str, process_id: int) -> None:
        if self.moments.get(step):
            offset = self.moments[step].pop()
            thread = threading.Thread(target=self._later, args=(offset, process_id), daemon=True)
            thread.start()
            self.threads.append(thread)

    def _later(self, offset: float, process_id: int) -> None:
        time.sleep(offset)
        self.happen(process_id)

    def happen(self, process_id: int) -> None:
        """What happens at the moment."""
        raise NotImplementedError

    def end(self) -> None:
        for thread in self.threads:
            thread.join()


# Postgres


class PostgresLate(Disturbance):
    """A fifth of the statements is late."""

    name = "postgres-late"

    def begin(self) -> None:
        def rule(_kind: str, _number: int) -> StatementFate:
            return "late" if self.draw.random() < 0.2 else "pass"

        self.world.postgres_proxy.rule = rule


class AtStatements(Disturbance):
    """Some statements of the chain, drawn by number, have a fate."""

    kind: ClassVar[str]
    fate: ClassVar[StatementFate]
    says = POSTGRES_SAYS

    def begin(self) -> None:
        chosen = set(self.draw.sample(range(1, self.world.counts[self.kind] + 1), 3))

        def rule(kind: str, number: int) -> StatementFate:
            return self.fate if kind == self.kind and number in chosen else "pass"

        self.world.postgres_proxy.rule = rule


class PostgresCut(AtStatements):
    """The connection is cut before a statement arrives."""

    name = "postgres-cut"
    kind = "statement"
    fate = "cut"


class CommitCut(AtStatements):
    """The connection is cut before a COMMIT arrives."""

    name = "commit-cut"
    kind = "commit"
    fate = "cut"


class CommitReplyLost(AtStatements):
    """Postgres commits, and its answer is lost."""

    name = "commit-reply-lost"
    kind = "commit"
    fate = "lose_reply"


class PostgresAway(AtMoments):
    """All connections are cut, and none is taken for a while."""

    name = "postgres-away"
    says = POSTGRES_SAYS

    def happen(self, process_id: int) -> None:
        self.world.postgres_proxy.go_away()
        time.sleep(AWAY_SECONDS)
        self.world.postgres_proxy.come_back()
        self.returned()


class PostgresKilled(AtMoments):
    """Postgres is killed, and started again after a while."""

    name = "postgres-killed"
    says = POSTGRES_SAYS

    def happen(self, process_id: int) -> None:
        self.keeps_away = True
        self.world.postgres.kill()
        time.sleep(AWAY_SECONDS)
        self.world.postgres.start()
        self.keeps_away = False
        self.returned()


class PostgresDiskFull(AtMoments):
    """The disk of Postgres is full for a while; whoever looks after Postgres starts it again where that ended it."""

    name = "postgres-disk-full"
    says = POSTGRES_SAYS + "|" + DISK_SAYS
    steps = ("ingest", "start-run", "filter", "sample", "execute", "score", "placebo", "check")

    @staticmethod
    def why_not(world: World) -> str:
        return "" if world.disk else "a full disk needs root, unshare and nsenter"

    def happen(self, process_id: int) -> None:
        assert self.world.disk
        self.keeps_away = True
        self.world.disk.fill()
        time.sleep(AWAY_SECONDS)
        self.world.disk.free()
        self.world.postgres.restart_if_dead()
        self.keeps_away = False
        self.returned()


# S3


class S3Disturbed(Disturbance):
    """Requests have a fate, each by chance."""

    share: ClassVar[float] = 0.25
    fates: ClassVar[tuple[RequestFate, ...]]
    methods: ClassVar[str] = "GET HEAD PUT DELETE POST"
    says = S3_SAYS

    def begin(self) -> None:
        def rule(method: str, _path: str) -> RequestFate:
            fits = method.split(maxsplit=1)[0] in self.methods.split() and (
                self.fates[0][:3] != "409" or "absent" in method
            )
            return self.draw.choice(self.fates) if fits and self.draw.random() < self.share else "pass"

        self.world.s3_proxy.rule = rule


class S3Late(S3Disturbed):
    """Answers are late."""

    name = "s3-late"
    fates = ("late",)


class S3Cut(S3Disturbed):
    """The connection is cut before a request is carried out."""

    name = "s3-cut"
    fates = ("cut",)


class S3ReplyLost(S3Disturbed):
    """Requests are carried out, and their answers are lost."""

    name = "s3-reply-lost"
    fates = ("lose_reply",)


class S3Truncated(S3Disturbed):
    """Half of an object arrives."""

    name = "s3-truncated"
    fates = ("truncate",)
    methods = "GET"
    share = 0.4


class S3Conflict(S3Disturbed):
    """409 to conditional writes: some were carried out, some were not."""

    name = "s3-409"
    fates = ("409", "409_written")
    share = 0.4


class S3Broken(S3Disturbed):
    """500 to any request."""

    name = "s3-500"
    fates = ("500",)


class S3Busy(S3Disturbed):
    """503, SlowDown, to any request."""

    name = "s3-503"
    fates = ("503",)


class S3Away(AtMoments):
    """S3 takes no request for a while, longer than boto3 asks again."""

    name = "s3-away"
    says = S3_SAYS
    steps = ("release", "check-release", "finetune", "publish")
    away_seconds: ClassVar[float] = 8.0

    def happen(self, process_id: int) -> None:
        self.world.s3_proxy.away = True
        time.sleep(self.away_seconds)
        self.world.s3_proxy.away = False
        self.returned()


class S3Killed(AtMoments):
    """S3 is killed, and started again after a while."""

    name = "s3-killed"
    says = S3_SAYS
    steps = ("release", "check-release", "finetune", "publish")

    def happen(self, process_id: int) -> None:
        self.keeps_away = True
        self.world.weed.kill()
        time.sleep(AWAY_SECONDS)
        self.world.weed.start()
        self.keeps_away = False
        self.returned()


class S3DiskFull(AtMoments):
    """The disk of S3 is full, longer than boto3 asks again. Whoever frees it starts S3 anew: SeaweedFS looks once a minute."""

    name = "s3-disk-full"
    says = S3_SAYS
    steps = S3Killed.steps

    @staticmethod
    def why_not(world: World) -> str:
        return "" if world.s3_disk else "a full disk needs root, unshare and nsenter"

    def happen(self, process_id: int) -> None:
        assert self.world.s3_disk
        self.keeps_away = True
        self.world.s3_disk.fill()
        time.sleep(S3Away.away_seconds)
        self.world.s3_disk.free()
        self.world.weed.kill()
        self.world.weed.start()
        check_put_and_get(self.world.s3, BUCKET, 60)  # it listens before it has found its volumes
        self.keeps_away = False
        self.returned()


# The machine of a stage


class DiskFull(Disturbance):
    """The disk with the state folder and /tmp is full while a stage begins, and free at its next try."""

    name = "disk-full"
    says = DISK_SAYS
    small_disk = True

    @staticmethod
    def why_not(world: World) -> str:
        return "" if world.stage_disk else "a full disk needs root, unshare and nsenter"

    def begin(self) -> None:
        self.step = self.draw.choice(("release", "finetune"))

    def started(self, step: str, process_id: int) -> None:
        if step == self.step and self.world.stage_disk:
            self.step = ""
            self.world.stage_disk.fill()

    def failed(self, step: str) -> None:
        self.end()

    def end(self) -> None:
        if self.world.stage_disk:
            self.world.stage_disk.free()


class Terminated(AtMoments):
    """Three commands are told to end."""

    name = "sigterm"
    times = 3
    sent: ClassVar[signal.Signals] = signal.SIGTERM

    def happen(self, process_id: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, self.sent)


class Killed(Terminated):
    """Three commands are killed."""

    name = "sigkill"
    sent = signal.SIGKILL


class TwoOfEverything(Disturbance):
    """Two processes do each step at once."""

    name = "two-of-everything"
    processes = 2


class TwoAndKilled(Killed):
    """Two processes do each step at once, and some are killed."""

    name = "two-and-killed"
    processes = 2


# Clocks


class PostgresClock(AtMoments):
    """The clock by which Postgres stamps its rows is moved by three days, forward or back."""

    name = "postgres-clock"

    @staticmethod
    def why_not(world: World) -> str:
        return "" if FAKETIME.exists() else f"the clock is moved by {FAKETIME} (Debian: libfaketime)"

    def begin(self) -> None:
        super().begin()
        self.offset = self.world.folder / "clock"
        self._set("+0")
        self._restart(
            {
                "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self.offset), "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_RESET": "1",
            }
        )  # fmt: skip

    def _set(self, offset: str) -> None:
        self.offset.write_text(f"{offset}\n")
        self.offset.chmod(0o644)

    def _restart(self, environment: Mapping[str, str]) -> None:
        self.world.postgres.process.send_signal(signal.SIGINT)
        self.world.postgres.process.wait(20)
        self.world.postgres.set_environment(environment)
        self.world.postgres.start()

    def happen(self, process_id: int) -> None:
        self._set(self.draw.choice(("-3d", "+3d")))

    def end(self) -> None:
        super().end()
        self._restart({})


ALL: tuple[type[Disturbance], ...] = (
    PostgresLate,
    PostgresCut,
    CommitCut,
    CommitReplyLost,
    PostgresAway,
    PostgresKilled,
    PostgresDiskFull,
    S3Late,
    S3Cut,
    S3ReplyLost,
    S3Truncated,
    S3Conflict,
    S3Broken,
    S3Busy,
    S3Away,
    S3Killed,
    S3DiskFull,
    DiskFull,
    Terminated,
    Killed,
    TwoOfEverything,
    TwoAndKilled,
    PostgresClock,
)


LONGEST_RECOVERY_SECONDS = 30.0
MOST_REDONE = 2
"""Micro-batches for each process that ended before its work was done."""


def tried(world: World, fault: type[Disturbance], seed: str) -> Outcome:
    """How a chain ends that this fault befalls, with what is wrong about it in `problems`. The seed decides all that is drawn."""
    disturbance = fault(world, random.Random(f"{seed} {fault.name}"))  # noqa: S311
    outcome = world.run_chain(disturbance)
    outcome.problems += [
        f"{step} ended with {status}, and its last line names no cause as {fault.says!r} has it: {last}"
        for step, status, last in outcome.failures
        if status > 0 and status != EXIT_TERMINATED and not re.search(fault.says, last)
    ]
    if fault.processes == 1 and outcome.redone > MOST_REDONE * len(outcome.failures):
        outcome.problems.append(
            f"{outcome.redone:g} micro-batches were computed again, with {len(outcome.failures)} processes that ended early"
        )
    if outcome.recovered is not None and outcome.recovered > LONGEST_RECOVERY_SECONDS:
        outcome.problems.append(f"it took {outcome.recovered:.1f} s until a command was a success again")
    return outcome
