"""Seeds side by side, each a process with a log of its own, until a time that is given.

A seed that fails leaves its log, and the others go on. Seeds begin in the order given, so that the most wanted
come first; no arm begins after the time, and a process that is still there `PATIENCE` seconds later is ended. What
it did is kept, and the next call continues it.
"""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.plan import SUMMARY, StudyPlan

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that an arm which has begun may take behind the time."""
LOG = "log.txt"
LAST_LINES = 3
"""Of the log of a seed that failed, in the log of all."""


@dataclass
class Seed:
    """A seed, and its process once it has begun."""

    plan: StudyPlan
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None
    began: float = 0.0

    @property
    def name(self) -> str:
        """For the log."""
        return f"{self.plan.study}, seed {self.plan.seed}"

    @property
    def arms(self) -> set[str]:
        """The arms that are measured, the model before training among them."""
        return {file.stem.removeprefix("arm-") for file in self.folder.glob("arm-*.json")}

    @property
    def lacking_arms(self) -> set[str]:
        """The arms that the seed has texts for and that are not measured."""
        summary = self.folder / SUMMARY
        texts = json.loads(summary.read_text(encoding="utf-8"))["texts"] if summary.exists() else {}
        return set(texts) - self.arms


@dataclass
class SideBySide:
    """What runs the seeds."""

    model: str
    processes: int
    """How many at once."""
    share: int = 1
    """How many processes share the GPU, those of other commands included."""
    until: float | None = None
    """Seconds of the Unix clock."""
    index: Path | None = None
    """Folder of Wikipedia's index, for seeds that need it."""
    only_annotate: bool = False
    """Whether no arm is trained."""

    def run(self, seeds: Sequence[Seed]) -> list[Seed]:
        """Run them all; returns those that failed, lack an arm or did not begin."""
        for seed in seeds:
            seed.plan.write(seed.folder)  # refuses a folder of another plan before anything begins
        waiting, running = list(seeds), list[Seed]()
        failed: list[Seed] = []
        while waiting or running:
            while waiting and len(running) < self.processes and not self._is_late(0):
                seed = waiting.pop(0)
                self._begin(seed)
                running.append(seed)
            if self._is_late(0) and not running:
                break
            time.sleep(0.5)
            if self._is_late(PATIENCE):
                for seed in running:
                    logger.warning("%s: ended, since its time is over", seed.name)
                    if seed.process is not None:
                        seed.process.kill()
                        seed.process.wait()
            for seed in [
                seed for seed in running if seed.process is not None and seed.process.poll() is not None
            ]:
                running.remove(seed)
                failed += self._end(seed)
        for seed in waiting:
            logger.warning("%s: not begun, since the time is over", seed.name)
        return [*failed, *waiting]

    def _is_late(self, seconds: float) -> bool:
        return self.until is not None and time.time() > self.until + seconds

    def _begin(self, seed: Seed) -> None:
        command = [sys.executable, "-m", "studies", "seed", str(seed.folder)]
        command += ["--model", self.model, "--share", str(self.share)]
        if self.until is not None:
            command += ["--until", str(self.until)]
        if self.index is not None:
            command += ["--wiki-index", str(self.index)]
        if self.only_annotate:
            command.append("--annotate")
        seed.began = time.monotonic()
        with (seed.folder / LOG).open("ab") as log:
            seed.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        logger.info("%s begins", seed.name)

    def _end(self, seed: Seed) -> list[Seed]:
        """Say how a seed's process ended; returns it if it failed or lacks an arm."""
        status = seed.process.returncode if seed.process is not None else 0
        seconds = time.monotonic() - seed.began
        logger.info("%s: exit %d after %.0f s with %d arms", seed.name, status, seconds, len(seed.arms))
        if not status:
            return [seed] if seed.lacking_arms and not self.only_annotate else []
        lines = (seed.folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines[-LAST_LINES:]:
            logger.warning("%s: %s", seed.name, line)
        return [seed]
