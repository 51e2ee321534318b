"""Seeds side by side, each a process with a log of its own.

A seed that fails leaves its log, and the others go on. What a killed seed did is kept, and the next call continues it.
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
    def lacking_arms(self) -> set[str]:
        """The arms that the seed has texts for and that are not measured."""
        summary = self.folder / SUMMARY
        texts = json.loads(summary.read_text(encoding="utf-8"))["texts"] if summary.exists() else {}
        return set(texts) - {file.stem.removeprefix("arm-") for file in self.folder.glob("arm-*.json")}


def run_side_by_side(model: str, processes: int, seeds: Sequence[Seed]) -> list[Seed]:
    """Run the seeds in their order, so many at once; returns those that failed or lack an arm."""
    waiting, running, unfinished = list(seeds), list[Seed](), list[Seed]()
    while waiting or running:
        while waiting and len(running) < processes:
            running.append(waiting.pop(0))
            _begin(running[-1], model, processes)
        time.sleep(0.5)
        for seed in list(running):
            if seed.process is not None and seed.process.poll() is not None:
                running.remove(seed)
                unfinished += _end(seed, seed.process.returncode)
    return unfinished


def _begin(seed: Seed, model: str, processes: int) -> None:
    command = [sys.executable, "-m", "studies", "seed", str(seed.folder)]
    command += ["--model", model, "--share", str(processes)]
    seed.began = time.monotonic()
    with (seed.folder / LOG).open("ab") as log:
        seed.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    logger.info("%s begins", seed.name)


def _end(seed: Seed, status: int) -> list[Seed]:
    """Say how a seed's process ended; returns it if it failed or lacks an arm."""
    logger.info("%s: exit %d after %.0f s", seed.name, status, time.monotonic() - seed.began)
    if not status:
        return [seed] if seed.lacking_arms else []
    lines = (seed.folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines[-LAST_LINES:]:
        logger.warning("%s: %s", seed.name, line)
    return [seed]
