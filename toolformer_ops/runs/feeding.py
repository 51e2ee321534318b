"""Reading, computing and writing batches at the same time, in order: one thread reads the next batch, one writes the one before.

Knows nothing of stages or of Postgres.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

Batch = TypeVar("Batch")
Loaded = TypeVar("Loaded")
Done = TypeVar("Done")

Activity = Literal["computing", "reading", "writing", "waiting_for_reading", "waiting_for_writing"]


@dataclass
class FeedingTimes:
    """Where the seconds went. Reading and writing happen while something is computed; only waiting for them costs time."""

    computing: float = 0.0
    reading: float = 0.0
    writing: float = 0.0
    waiting_for_reading: float = 0.0
    waiting_for_writing: float = 0.0

    @property
    def share_waited(self) -> float:
        """Share of the time, 0 to 1, in which nothing could be computed."""
        waited = self.waiting_for_reading + self.waiting_for_writing
        return waited / (waited + self.computing) if waited else 0.0

    @contextmanager
    def spent(self, activity: Activity) -> Iterator[None]:
        """Add the block's seconds to an activity; each activity belongs to one thread."""
        started = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, activity, getattr(self, activity) + time.perf_counter() - started)

    def __str__(self) -> str:
        """One line for a log."""
        return (
            f"computed {self.computing:.1f} s, waited {self.waiting_for_reading:.2f} s for reading and "
            f"{self.waiting_for_writing:.2f} s for writing, {self.share_waited:.1%} of the time "
            f"(reading took {self.reading:.2f} s, writing {self.writing:.2f} s)"
        )


def feed(
    batches: Iterable[Batch],
    read: Callable[[Batch], Loaded | None],
    compute: Callable[[Loaded], Done],
    write: Callable[[Done], object],
    alone: Callable[[Loaded], bool] = lambda _: False,
    times: FeedingTimes | None = None,
) -> FeedingTimes:
    """Read, compute and write each batch; one that is read as None is passed over. Returns where the time went, added to `times`.

    A batch is read before the two that precede it are written, and computed while the one before is, but for a batch that is to be
    `alone`: all before are written then. An error of any thread ends it all and is raised as it is; what was
    computed until then is written, unless writing is what failed.
    """
    times = times or FeedingTimes()
    behind: Future[None] | None = None

    def timed_write(done: Done) -> None:
        with times.spent("writing"):
            write(done)

    def wait_for_write() -> None:
        if behind is not None:
            with times.spent("waiting_for_writing"):
                behind.result()

    with ThreadPoolExecutor(1, "reading") as reader, ThreadPoolExecutor(1, "writing") as writer:
        try:
            for loaded in _read_ahead(reader, batches, read, times):
                if alone(loaded):
                    wait_for_write()
                with times.spent("computing"):
                    done = compute(loaded)
                wait_for_write()
                behind = writer.submit(timed_write, done)
        finally:
            wait_for_write()
    return times


def _read_ahead(
    reader: Executor, batches: Iterable[Batch], read: Callable[[Batch], Loaded | None], times: FeedingTimes
) -> Iterator[Loaded]:
    """What is read for each batch, in their order; the next is read while the caller works on one."""

    def timed_read(batch: Batch) -> Loaded | None:
        with times.spent("reading"):
            return read(batch)

    coming = (reader.submit(timed_read, batch) for batch in batches)
    ahead = next(coming, None)
    while ahead is not None:
        with times.spent("waiting_for_reading"):
            loaded = ahead.result()
        ahead = next(coming, None)
        if loaded is not None:
            yield loaded
