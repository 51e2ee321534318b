"""Say in the log, about once a minute, how far a long computation is. Imports no torch."""

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 60.0


class Pulse:
    """Called with what is done after each pass of the network; logs the first call after `SECONDS_BETWEEN_LINES` without a line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def __call__(self, what: str, done: int, total: int) -> None:
        """`what` names the things that are counted, as "samples ended"."""
        now = self._clock()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            logger.info("at work: %d of %d %s", done, total, what)
