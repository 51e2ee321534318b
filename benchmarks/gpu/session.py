"""One measurement on one device: its parts, what each gave, and what was left out and why.

A part is a generator of rows. Rows are written to disk as they come, an error ends its part and no other, and no
part starts another row once the time is spent.
"""

import gc
import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.report import cell, write_report
from toolformer_ops.errors import DeviceMemoryError, InfrastructureError
from toolformer_ops.language_model.devices import GIB, gpus

logger = logging.getLogger("benchmarks.gpu")

Row = dict[str, Any]
Rows = Generator[Row, None, None]
Value = TypeVar("Value")
REPORT = "gpu"
"""Name of the written files."""
LEFT_OUT = "Left out, or done in another way"


@dataclass
class Session:
    """What is measured on one device, and what came of it so far."""

    device: torch.device
    folder: Path
    """Where the report is written."""
    seconds: float
    """After so many no further row is begun."""
    sections: dict[str, list[Row]] = field(default_factory=dict)
    """Rows by the title of their table."""
    problems: list[str] = field(default_factory=list)
    """What is wrong rather than left out: numbers that differ, parts that ended in an error."""
    started: float = field(default_factory=time.monotonic)

    def part(self, title: str, rows: Rows) -> None:
        """Add the rows of a part to the table of this title; what ends it early is noted."""
        logger.info("%s", title)
        while True:
            if self.is_over:
                self.leave_out(title, f"the {self.seconds:.0f} seconds are spent: what follows is left out")
                break
            row = self.attempt(title, lambda: next(rows, None))
            if row is None:
                break
            self.sections.setdefault(title, []).append(row)
            logger.info("  %s", ", ".join(f"{name} {cell(value)}" for name, value in row.items()))
            self.save()
        rows.close()
        self.free()

    def attempt(self, what: str, run: Callable[[], Value]) -> Value | None:
        """`run()`; None if it raised, which is noted and is a problem unless memory was short."""
        try:
            return run()
        except (torch.OutOfMemoryError, DeviceMemoryError, InfrastructureError) as error:
            reason = f"memory short ({_first_line(error)}){self._others()}"
        except Exception as error:
            logger.debug("%s", what, exc_info=True)
            reason = f"{type(error).__name__}: {_first_line(error)}"
            self.problems.append(f"{what}: {reason}")
        self.leave_out(what, reason)
        return None

    def leave_out(self, what: str, reason: str) -> None:
        """Note what is not measured, or measured in another way, and why."""
        logger.warning("%s: %s", what, reason)
        self.sections.setdefault(LEFT_OUT, []).append({"what": what, "why": reason})
        self.save()

    @contextmanager
    def noting_warnings(self) -> Iterator[None]:
        """Note what the package warns of meanwhile, such as a batch that was halved since memory was short."""
        handler = _Notes(self)
        package = logging.getLogger("toolformer_ops")
        package.addHandler(handler)
        try:
            yield
        finally:
            package.removeHandler(handler)

    def save(self) -> str:
        """Write what there is; the Markdown."""
        # What was left out comes last.
        ordered = {title: rows for title, rows in self.sections.items() if title != LEFT_OUT}
        if LEFT_OUT in self.sections:
            ordered[LEFT_OUT] = self.sections[LEFT_OUT]
        return write_report(self.folder, REPORT, ordered)

    @property
    def is_over(self) -> bool:
        """Whether the time is spent."""
        return time.monotonic() - self.started > self.seconds

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU, or a stand-in for one."""
        return self.device.type == "cuda"

    def free_bytes(self) -> int | None:
        """Free memory of the GPU; None on a CPU, which is not asked."""
        return int(torch.cuda.mem_get_info(self.device)[0]) if self.is_gpu else None

    def timed(self, run: Callable[[], Value]) -> tuple[float, Value]:
        """Seconds on the clock until the device has done all of `run()`, and what it returned."""
        self._wait()
        began = time.perf_counter()
        value = run()
        self._wait()
        return time.perf_counter() - began, value

    def watch_memory(self) -> None:
        """Begin to look for the most memory."""
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def memory_at_most(self) -> float | None:
        """GiB that torch held at most since `watch_memory`; None on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) / GIB if self.is_gpu else None

    def free(self) -> None:
        """Give back what no one refers to any more."""
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()

    def _wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def _others(self) -> str:
        """Which GPUs other processes fill, in words."""
        if not self.is_gpu:
            return ""
        filled = [str(gpu) for gpu in gpus() if gpu.held_by_others]
        return f"; {', '.join(filled)}" if filled else ""


class _Notes(logging.Handler):
    """Takes in the warnings of the package."""

    def __init__(self, session: Session) -> None:
        super().__init__(logging.WARNING)
        self._session = session

    def emit(self, record: logging.LogRecord) -> None:
        """Note one."""
        self._session.leave_out(record.name, record.getMessage())


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:400] if str(error).strip() else "no message"
