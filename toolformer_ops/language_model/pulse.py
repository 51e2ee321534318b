"""Say in the log, at least once a minute, how far a long computation is. Imports no torch."""

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 50.0
"""Below a minute: a layer of the network may take some seconds."""


class Pulse:
    """Told what is done after each pass of the network; logs the newest such state when it was silent for long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._state = "reading"

    def __call__(self, what: str, done: int, total: int) -> None:
        """`what` names the things that are counted, as "samples ended"."""
        self._state = f"{done} of {total} {what}"
        self.beat()

    def beat(self) -> None:
        """Called by each layer of the network."""
        now = self._clock()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            logger.info("at work: %s", self._state)
