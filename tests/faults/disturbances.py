"""What befalls a chain: `ALL` has a row for each fault, whose places and moments its random numbers choose."""

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.proxies import RequestFate, StatementFate
from tests.faults.world import STEPS, Outcome, World
from toolformer_ops.errors import EXIT_TERMINATED

AWAY_SECONDS = 1.5
S3_AWAY_SECONDS = 8.0
"""Longer than boto3 asks again."""
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


class Disturbance:
    """Nothing happens; the base of all."""

    processes = 1
    small_disk = False

    def __init__(self, world: World, draw: random.Random) -> None:
        self.world = world
        self.draw = draw
        self.outcome: Outcome | None = None
        self.keeps_away = False

    def begin(self) -> None:
        """Before the first command."""

    def started(self, step: str, process_id: int) -> None:
        """A command was started."""

    def failed(self, step: str) -> None:
        """A command ended with an error."""

    def end(self) -> None:
        """After the last command."""


class PostgresLate(Disturbance):
    """A fifth of the statements is late."""

    def begin(self) -> None:
        self.world.postgres_proxy.rule = lambda *_: "late" if self.draw.random() < 0.2 else "pass"


class AtStatements(Disturbance):
    """Three statements of the chain, drawn by number, have a fate."""

    def __init__(self, world: World, draw: random.Random, *, kind: str, fate: StatementFate) -> None:
        super().__init__(world, draw)
        self.kind, self.fate = kind, fate

    def begin(self) -> None:
        chosen = set(self.draw.sample(range(1, self.world.counts[self.kind] + 1), 3))

        def rule(kind: str, number: int) -> StatementFate:
            return self.fate if kind == self.kind and number in chosen else "pass"

        self.world.postgres_proxy.rule = rule


class AtRequests(Disturbance):
    """Requests of S3 have one of the fates, each by chance; with a 409 only those to write what is absent."""

    def __init__(
        self, world: World, draw: random.Random, *fates: RequestFate, share: float = 0.25, method: str = ""
    ) -> None:
        super().__init__(world, draw)
        self.fates, self.share, self.method = fates, share, method

    def begin(self) -> None:
        def rule(method: str, _path: str) -> RequestFate:
            fits = method.startswith(self.method) and (self.fates[0] != "409" or "absent" in method)
            return self.draw.choice(self.fates) if fits and self.draw.random() < self.share else "pass"

        self.world.s3_proxy.rule = rule


class AtMoments(Disturbance):
    """Something happens at `times` moments, each in a step that is drawn, at a moment of the time that the step takes."""

    def __init__(
        self, world: World, draw: random.Random, *, times: int = 1, steps: Sequence[str] = tuple(STEPS)
    ) -> None:
        super().__init__(world, draw)
        self.times, self.steps = times, steps

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


class Signalled(AtMoments):
    """Three commands get a signal."""

    def __init__(self, world: World, draw: random.Random, sent: signal.Signals) -> None:
        super().__init__(world, draw, times=3)
        self.sent = sent

    def happen(self, process_id: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, self.sent)


class Away(AtMoments):
    """A service is away for a while."""

    def __init__(
        self, world: World, draw: random.Random, goes: Callable[[World], Any], returns: Callable[[World], Any],
        seconds: float = AWAY_SECONDS, steps: Sequence[str] = tuple(STEPS),
    ) -> None:  # fmt: skip
        super().__init__(world, draw, steps=steps)
        self.goes, self.returns, self.seconds = goes, returns, seconds

    def happen(self, process_id: int) -> None:
        self.keeps_away = True
        self.goes(self.world)
        time.sleep(self.seconds)
        self.returns(self.world)
        self.keeps_away = False
        if self.outcome is not None:
            self.outcome.returned_at = time.monotonic()


def free_disk_of_postgres(world: World) -> None:
    """Whoever looks after Postgres starts it again where the full disk ended it."""
    assert world.disk
    world.disk.free()
    world.postgres.restart_if_dead()


def free_disk_of_s3(world: World) -> None:
    """Whoever frees it starts S3 anew: SeaweedFS looks once a minute."""
    assert world.s3_disk
    world.s3_disk.free()
    world.weed.kill()
    world.weed.start()


class StageDiskFull(Disturbance):
    """The disk with the state folder and /tmp is full while a stage begins, and free at its next try."""

    small_disk = True

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


class PostgresClock(AtMoments):
    """The clock by which Postgres stamps its rows is moved by three days, forward or back."""

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
        self.world.postgres.command = self.world.postgres_command(environment)
        self.world.postgres.start()

    def happen(self, process_id: int) -> None:
        self._set(self.draw.choice(("-3d", "+3d")))

    def end(self) -> None:
        super().end()
        self._restart({})


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    kind: type[Disturbance]
    says: str = r"$^"
    """Looked for in the last line of each command that ended with an error; by default none may."""
    values: Sequence[Any] = ()
    """Of `kind`, by position."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `kind`, by name."""
    processes: int = 1
    """How many do each step at once."""
    needs: str = ""
    """The small disk of the world that it fills."""

    def why_not(self, world: World) -> str:
        """Why it cannot be tried on this machine; empty where it can."""
        if self.needs and getattr(world, self.needs) is None:
            return "a full disk needs root, unshare and nsenter"
        if self.kind is PostgresClock and not FAKETIME.exists():
            return f"the clock is moved by {FAKETIME} (Debian: libfaketime)"
        return ""


POSTGRES_SAYS = r"Postgres (cannot serve now|broke)|expected Postgres at"
S3_SAYS = r"S3|s3://|object store"
DISK_SAYS = r"[Nn]o space left|[Dd]isk"
WRITE_POSTGRES = {"steps": ("ingest", "start-run", "filter", "sample", "execute", "score", "placebo", "check")}
USE_S3 = {"steps": ("release", "check-release", "finetune", "publish")}
USE_S3_LONG = {**USE_S3, "seconds": S3_AWAY_SECONDS}

ALL = (
    Fault("postgres-late", PostgresLate),
    Fault("postgres-cut", AtStatements, POSTGRES_SAYS, options={"kind": "statement", "fate": "cut"}),
    Fault("commit-cut", AtStatements, POSTGRES_SAYS, options={"kind": "commit", "fate": "cut"}),
    Fault("commit-reply-lost", AtStatements, POSTGRES_SAYS, options={"kind": "commit", "fate": "lose_reply"}),
    Fault("postgres-away", Away, POSTGRES_SAYS,
          (lambda world: world.postgres_proxy.go_away(), lambda world: world.postgres_proxy.come_back())),
    Fault("postgres-killed", Away, POSTGRES_SAYS,
          (lambda world: world.postgres.kill(), lambda world: world.postgres.start())),
    Fault("postgres-disk-full", Away, f"{POSTGRES_SAYS}|{DISK_SAYS}",
          (lambda world: world.disk.fill(), free_disk_of_postgres), WRITE_POSTGRES, needs="disk"),
    Fault("s3-late", AtRequests, S3_SAYS, ("late",)),
    Fault("s3-cut", AtRequests, S3_SAYS, ("cut",)),
    Fault("s3-reply-lost", AtRequests, S3_SAYS, ("lose_reply",)),
    Fault("s3-truncated", AtRequests, S3_SAYS, ("truncate",), {"method": "GET", "share": 0.4}),
    Fault("s3-409", AtRequests, S3_SAYS, ("409", "409_written"), {"share": 0.4}),
    Fault("s3-500", AtRequests, S3_SAYS, ("500",)),
    Fault("s3-503", AtRequests, S3_SAYS, ("503",)),
    Fault("s3-away", Away, S3_SAYS,
          (lambda world: setattr(world.s3_proxy, "away", True), lambda world: setattr(world.s3_proxy, "away", False)),
          USE_S3_LONG),
    Fault("s3-killed", Away, S3_SAYS, (lambda world: world.weed.kill(), lambda world: world.weed.start()), USE_S3),
    Fault("s3-disk-full", Away, S3_SAYS, (lambda world: world.s3_disk.fill(), free_disk_of_s3), USE_S3_LONG, needs="s3_disk"),
    Fault("disk-full", StageDiskFull, DISK_SAYS, needs="stage_disk"),
    Fault("sigterm", Signalled, values=(signal.SIGTERM,)),
    Fault("sigkill", Signalled, values=(signal.SIGKILL,)),
    Fault("two-of-everything", Disturbance, processes=2),
    Fault("two-and-killed", Signalled, values=(signal.SIGKILL,), processes=2),
    Fault("postgres-clock", PostgresClock),
)  # fmt: skip
LONGEST_RECOVERY_SECONDS = 30.0
MOST_REDONE = 2
"""Micro-batches for each process that ended before its work was done."""


def tried(world: World, fault: Fault, seed: str) -> Outcome:
    """How a chain ends that this fault befalls, with what is wrong about it in `problems`. The seed decides all that is drawn."""
    draw = random.Random(f"{seed} {fault.name}")  # noqa: S311
    disturbance = fault.kind(world, draw, *fault.values, **fault.options)
    disturbance.processes = fault.processes
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
