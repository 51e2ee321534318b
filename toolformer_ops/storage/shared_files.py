"""Files on this machine that several processes read and write.

They are replaced whole, and locked with a word to whoever waits.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import filelock

logger = logging.getLogger(__name__)


def replace_file(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write `text` to `path`, through a new file that takes its place.

    No process reads a part of it, whenever this process is killed. `mode` is that of the new file, less the
    umask.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path, who_has_it: str) -> Iterator[None]:
    """Hold the lock file `path` in the block; if another process does, log `who_has_it` and wait.

    A killed one holds none.
    """
    lock = filelock.FileLock(path)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        logger.info("%s: waiting for it", who_has_it)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
