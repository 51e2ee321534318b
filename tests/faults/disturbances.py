"""What befalls a chain: `ALL` has a row for each fault, whose places and moments its random numbers choose."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import psutil

from tests.faults.proxies import RequestFate, StatementFate
from tests.faults.world import OF_TOOL, STEPS, Disturbance, World

AWAY_SECONDS = 1.5
S3_AWAY_SECONDS = 8.0
"""Longer than boto3 asks again."""
SECONDS_TO_END = 60.0
"""For a command that was frozen."""


class AtStatements(Disturbance):
    """Three statements of the chain, drawn by number, have a fate."""

    def __init__(self, world: World, draw: random.Random, kind: str, fate: StatementFate) -> None:
        super().__init__(world, draw)
        chosen = draw.sample(range(1, world.undisturbed.counts[kind] + 1), 3)
        self.rule = lambda asked, number: fate if asked == kind and number in chosen else "pass"

    def begin(self) -> None:
        self.world.postgres_proxy.rule = self.rule


class AtRequests(Disturbance):
    """Requests of S3 have one of the fates, each by chance; with a 409 only those to write what is absent."""

    def __init__(
        self,
        world: World,
        draw: random.Random,
        fates: Sequence[RequestFate],
        share: float = 0.25,
        method: str = "",
    ) -> None:
        super().__init__(world, draw)
        self.fates, self.share, self.method = fates, share, method

    def begin(self) -> None:
        self.world.s3_proxy.rule = self.rule

    def rule(self, method: str, _path: str) -> RequestFate:
        fits = method.startswith(self.method) and (self.fates[0] != "409" or "absent" in method)
        return self.draw.choice(self.fates) if fits and self.draw.random() < self.share else "pass"


class AtMoments(Disturbance):
    """Something happens at `times` moments, each in a step that is drawn, at a moment of the time that the step takes."""

    times = 1
    steps: Sequence[str] = STEPS

    def begin(self) -> None:
        self.moments: dict[str, list[float]] = {}
        for step in self.draw.choices(self.steps, k=self.times):
            self.moments.setdefault(step, []).append(
                self.draw.uniform(0, 0.9 * self.world.undisturbed.seconds[step])
            )
        self.timers: list[threading.Timer] = []

    def started(self, step: str, process_id: int) -> None:
        if self.moments.get(step):
            self.timers.append(threading.Timer(self.moments[step].pop(), self.happen, (process_id,)))
            self.timers[-1].start()

    def happen(self, process_id: int) -> None:
        """What happens at the moment."""
        raise NotImplementedError

    def end(self) -> None:
        for timer in self.timers:
            timer.join()


class Signalled(AtMoments):
    """Three commands get a signal."""

    times = 3

    def __init__(self, world: World, draw: random.Random, sent: signal.Signals) -> None:
        super().__init__(world, draw)
        self.sent = sent

    def happen(self, process_id: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, self.sent)


class Frozen(AtMoments):
    """A command is frozen and started again elsewhere; it goes on while that one works, or with the end of the chain."""

    def begin(self) -> None:
        super().begin()
        self.frozen: list[psutil.Process] = []
        self.wakes_soon = self.draw.random() < 0.5

    def started(self, step: str, process_id: int) -> None:
        if self.wakes_soon:
            self.wake()
        super().started(step, process_id)

    def happen(self, process_id: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(process_id)
            process.suspend()
            self.frozen.append(process)

    def is_lost(self, process_id: int) -> bool:
        return any(process.pid == process_id for process in self.frozen)

    def wake(self) -> None:
        for process in self.frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def end(self) -> None:
        super().end()
        self.wake()
        for process in self.frozen:
            process.wait(SECONDS_TO_END)


class NodeLost(AtMoments):
    """A command is gone with its machine: Postgres does not learn of it."""

    def happen(self, process_id: int) -> None:
        self.world.postgres_proxy.keep_servers()
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)


class Away(AtMoments):
    """A service is away for a while."""

    def __init__(
        self,
        world: World,
        draw: random.Random,
        goes: Callable[[World], Any],
        returns: Callable[[World], Any],
        seconds: float = AWAY_SECONDS,
        steps: Sequence[str] = STEPS,
    ) -> None:
        super().__init__(world, draw)
        self.goes, self.returns, self.seconds, self.steps = goes, returns, seconds, steps

    def happen(self, process_id: int) -> None:
        self.keeps_away = True
        self.goes(self.world)
        time.sleep(self.seconds)
        self.returns(self.world)
        self.keeps_away = False


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

    def failed(self) -> None:
        self.end()

    def end(self) -> None:
        if self.world.stage_disk:
            self.world.stage_disk.free()


class Fault(NamedTuple):
    """One kind of fault."""

    disturbance: Callable[[World, random.Random], Disturbance]
    says: str = r"$^"
    """Looked for in the last line of each command that ended with an error; by default none may."""
    disk: str = ""
    """The small disk of the world that it fills."""
    processes: int = 1
    """How many do each step at once."""

    def why_not(self, world: World) -> str:
        """Why it cannot be tried on this machine; empty where it can."""
        return (
            "a full disk needs root, unshare and nsenter"
            if self.disk and getattr(world, self.disk) is None
            else ""
        )


POSTGRES_SAYS = r"Postgres (cannot serve now|broke)|expected Postgres at"
S3_SAYS = r"S3|s3://|object store"
DISK_SAYS = r"[Nn]o space left|[Dd]isk"
WRITE_POSTGRES = ("ingest", "start-run", *OF_TOOL, "check")
USE_S3 = ("release", "check-release", "finetune", "publish")


def away(goes: Callable[[World], Any], returns: Callable[[World], Any], **more: Any) -> Callable[..., Away]:
    return partial(Away, goes=goes, returns=returns, **more)


ALL = {
    "postgres-cut": Fault(partial(AtStatements, kind="statement", fate="cut"), POSTGRES_SAYS),
    "commit-cut": Fault(partial(AtStatements, kind="commit", fate="cut"), POSTGRES_SAYS),
    "commit-reply-lost": Fault(partial(AtStatements, kind="commit", fate="lose_reply"), POSTGRES_SAYS),
    "postgres-away": Fault(
        away(lambda world: world.postgres_proxy.go_away(), lambda world: world.postgres_proxy.come_back()), POSTGRES_SAYS
    ),
    "postgres-killed": Fault(away(lambda world: world.postgres.kill(), lambda world: world.postgres.start()), POSTGRES_SAYS),
    "postgres-disk-full": Fault(
        away(lambda world: world.disk.fill(), free_disk_of_postgres, steps=WRITE_POSTGRES), f"{POSTGRES_SAYS}|{DISK_SAYS}", "disk"
    ),
    "s3-cut": Fault(partial(AtRequests, fates=("cut",)), S3_SAYS),
    "s3-reply-lost": Fault(partial(AtRequests, fates=("lose_reply",)), S3_SAYS),
    "s3-truncated": Fault(partial(AtRequests, fates=("truncate",), method="GET", share=0.4), S3_SAYS),
    "s3-409": Fault(partial(AtRequests, fates=("409", "409_written"), share=0.4), S3_SAYS),
    "s3-500": Fault(partial(AtRequests, fates=("500",)), S3_SAYS),
    "s3-503": Fault(partial(AtRequests, fates=("503",)), S3_SAYS),
    "s3-away": Fault(
        away(
            lambda world: setattr(world.s3_proxy, "away", True),
            lambda world: setattr(world.s3_proxy, "away", False),
            steps=USE_S3, seconds=S3_AWAY_SECONDS,
        ),
        S3_SAYS,
    ),
    "s3-killed": Fault(away(lambda world: world.weed.kill(), lambda world: world.weed.start(), steps=USE_S3), S3_SAYS),
    "s3-disk-full": Fault(
        away(lambda world: world.s3_disk.fill(), free_disk_of_s3, steps=USE_S3, seconds=S3_AWAY_SECONDS), S3_SAYS, "s3_disk"
    ),
    "disk-full": Fault(StageDiskFull, DISK_SAYS, "stage_disk"),
    "sigterm": Fault(partial(Signalled, sent=signal.SIGTERM)),
    "sigkill": Fault(partial(Signalled, sent=signal.SIGKILL)),
    "frozen": Fault(Frozen),
    "node-lost": Fault(NodeLost),
    "two-of-everything": Fault(Disturbance, processes=2),
    "two-and-killed": Fault(partial(Signalled, sent=signal.SIGKILL), processes=2),
}  # fmt: skip

WHILE_TOOLS_PROPOSE = ("postgres-cut", "commit-cut", "sigterm", "sigkill", "node-lost", "two-and-killed")
"""Faults that reach each stage: they are tried with each proposer, the others with the model alone."""
