"""Three threads read, compute and write batches, so that what computes waits for neither of the others.

Knows nothing of documents, stages and Postgres.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Batch = TypeVar("Batch")
Loaded = TypeVar("Loaded")
Done = TypeVar("Done")

UNWRITTEN_BATCHES = 2
"""How many batches before one may not be written yet when it is read."""

Activity = Literal["computing", "reading", "writing", "waiting_for_reading", "waiting_for_writing"]


@dataclass
class FeedingTimes:
    """Where the seconds went.

    Reading and writing happen while something is computed; only waiting for them costs time.
    """

    seconds: dict[Activity, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def spent(self, activity: Activity) -> Iterator[None]:
        """Add the block's seconds to an activity; each activity belongs to one thread."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[activity] += time.perf_counter() - started

    def __str__(self) -> str:
        """One line for a log, with the share of the time in which nothing could be computed."""
        spent = self.seconds
        waited = spent["waiting_for_reading"] + spent["waiting_for_writing"]
        share_waited = waited / (waited + spent["computing"]) if waited else 0.0
        return (
            f"computed {spent['computing']:.1f} s, waited {spent['waiting_for_reading']:.2f} s for reading "
            f"and {spent['waiting_for_writing']:.2f} s for writing, {share_waited:.1%} of the time (reading "
            f"took {spent['reading']:.2f} s, writing {spent['writing']:.2f} s)"
        )


def feed(
    batches: Iterable[Batch],
    read: Callable[[Batch], Loaded | None],
    compute: Callable[[Loaded], Done],
    write: Callable[[Done], object],
    alone: Callable[[Loaded], bool] = lambda _: False,
    times: FeedingTimes | None = None,
) -> None:
    """Read, compute and write each batch; a batch that is read as None is passed over.

    Where the time went is added to `times`.

    A batch is read before the `UNWRITTEN_BATCHES` that precede it are written, and computed while the one
    before is, but for a batch that is to be `alone`: all before are written then. An error of any thread ends
    it all and is raised as it is; what was computed until then is written, unless writing is what failed.
    """
    times = times or FeedingTimes()
    behind: Future[None] | None = None

    def timed_read(batch: Batch) -> Loaded | None:
        with times.spent("reading"):
            return read(batch)

    def timed_write(done: Done) -> None:
        with times.spent("writing"):
            write(done)

    def wait_for_write() -> None:
        if behind is not None:
            with times.spent("waiting_for_writing"):
                behind.result()

    with ThreadPoolExecutor(1, "reading") as reader, ThreadPoolExecutor(1, "writing") as writer:
        try:
            reading = (reader.submit(timed_read, batch) for batch in batches)
            ahead = next(reading, None)
            while ahead is not None:
                with times.spent("waiting_for_reading"):
                    loaded = ahead.result()
                ahead = next(reading, None)
                if loaded is None:
                    continue
                if alone(loaded):
                    wait_for_write()
                with times.spent("computing"):
                    done = compute(loaded)
                wait_for_write()
                behind = writer.submit(timed_write, done)
        finally:
            wait_for_write()
