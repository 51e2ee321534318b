"""Files on this machine that several processes read and write.

They are replaced whole, and locked with a word to whoever waits.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import filelock

logger = logging.getLogger(__name__)

STOPPED_SECONDS = 60
"""How long the process that holds a lock is stopped before whoever waits ends it."""
LOOK_SECONDS = 1.0


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

    A killed process holds no lock. A stopped one (SIGSTOP) is killed after `STOPPED_SECONDS` of
    waiting: else whoever waits would do so for ever. What it had committed stays.
    """
    lock = filelock.FileLock(path)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        logger.info("%s: waiting for it", who_has_it)
        _wait_for(lock, path, who_has_it)
    try:
        yield
    finally:
        lock.release()


def _wait_for(lock: filelock.BaseFileLock, path: Path, who_has_it: str) -> None:
    """Take the lock when its process has released it, or has been stopped for too long."""
    stopped_looks = 0
    while True:
        try:
            lock.acquire(timeout=LOOK_SECONDS)
        except filelock.Timeout:
            holder = _holder_of(path)
            stopped_looks = stopped_looks + 1 if holder and _is_stopped(holder) else 0
            if holder and stopped_looks * LOOK_SECONDS >= STOPPED_SECONDS:
                logger.warning(
                    "%s: process %d was stopped for %d s: it is killed", who_has_it, holder, STOPPED_SECONDS
                )
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder, signal.SIGKILL)
        else:
            return


_LOCKS = Path("/proc/locks")


def _holder_of(path: Path) -> int | None:
    """The process of this machine that holds the lock file, by the kernel's list; None if it shows none.

    A line is `1: FLOCK ADVISORY WRITE 9024 fe:00:5358166 0 EOF`: process, device and inode, the device in hexadecimal digits
    (proc_locks(5)). A process of another PID namespace has the number 0.
    """
    status = path.stat()
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    if not _LOCKS.is_file():  # a system without /proc
        return None
    for line in _LOCKS.read_text(encoding="ascii").splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5] == place and int(fields[4]) > 0:
            return int(fields[4])
    return None


def _is_stopped(process: int) -> bool:
    """Whether a signal stopped the process; its state follows the name in brackets (proc_pid_stat(5))."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return False
    return status.rpartition(")")[2].split()[0] == "T"
