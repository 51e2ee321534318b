"""What a process took before it could work: from its start, with all imports, to the end of loading its model.

A command of a stage measures it, and stores it with its first micro-batch (`micro_batches.start_up_seconds`); `stages/planning.py`
makes shards of so much work that the start-up is a small part of it.
"""

import time
from threading import Lock

import psutil


class StartUp:
    """The start-up of this process, from its start until now, and what is added."""

    def __init__(self, *, loads_model: bool = True) -> None:
        self._seconds: float = max(0.0, time.time() - psutil.Process().create_time())
        self._is_over = not loads_model
        self._lock = Lock()

    def has_loaded(self, seconds: float) -> None:
        """Add the seconds that the model took to load: the start-up is over."""
        with self._lock:
            if not self._is_over:
                self._seconds += seconds
                self._is_over = True

    def take(self) -> float | None:
        """The seconds, once: None before the start-up is over, and to all who ask after the first."""
        with self._lock:
            if not self._is_over or self._seconds < 0:
                return None
            taken, self._seconds = self._seconds, -1.0
            return taken
