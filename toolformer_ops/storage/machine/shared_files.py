"""Files on this machine that several processes read and write.

They are replaced whole, and locked with a word to whoever waits.

Each process hashes its own reading of a file that it is to load, but a large file is read once a node and day.
The process that has hashed a large file leaves a note in the cache's folder `hashes`, and others on this node
take the hash from there, so that of eight processes that load a model of 130 GiB one reads it for its hash;
they wait for it.

A note holds for a file of the same inode, size and times, read by this node since it booted, less than a day
ago. So it trusts that a file that shows no change has not changed since: who writes to it changes the inode's
time, which no program can set back. A disk that rots changes nothing that shows; what it did before the note
is found at once, what it does after it a day later.
"""

import contextlib
import hashlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

from toolformer_ops.config import Settings

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


LARGE = 16 * 2**20
"""Bytes from which on notes are left: smaller files are read in a fraction of a second."""
TRUSTED_SECONDS = 24 * 3600.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Names this node since it booted; in a container, too."""

_known: dict[str, str] = {}
"""Hashes that this process has computed or taken, by the file's state."""


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verified_sha256(settings: Settings, path: Path) -> str:
    """The SHA-256 of a file, in hex, from its bytes, or as above.

    It is read once a process while it does not change.
    """
    state = _state(path)
    if state not in _known:
        notes = settings.cache_folder / "hashes"
        with contextlib.ExitStack() as waiting:
            is_shared = path.stat().st_size >= LARGE and _writable(notes)
            if is_shared:
                waiting.enter_context(
                    locked(notes / "lock", f"another process hashes files such as {path.name}")
                )
            note, noted_sha256 = notes / state, ""
            with contextlib.suppress(OSError):
                if is_shared and 0 <= time.time() - note.stat().st_mtime < TRUSTED_SECONDS:
                    noted_sha256 = note.read_text(encoding="ascii")
            _known[state] = noted_sha256 or file_sha256(path)
            if is_shared and not noted_sha256:
                _note(notes, state)
    return _known[state]


def remember(settings: Settings, path: Path, sha256: str) -> None:
    """Take this hash of a file, which was compared with its bytes as they were written."""
    state, notes = _state(path), settings.cache_folder / "hashes"
    _known[state] = sha256
    if path.stat().st_size >= LARGE and _writable(notes):
        _note(notes, state)


def _state(path: Path) -> str:
    """A name of the file's present state on this node."""
    status = path.stat()
    boot = _BOOT.read_text(encoding="ascii").strip() if _BOOT.is_file() else ""
    parts = (boot, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()


def _note(notes: Path, state: str) -> None:
    with contextlib.suppress(OSError):  # a full disk: the next process reads the file itself
        replace_file(notes / state, _known[state])
        for old in notes.iterdir():
            if old.name != "lock" and time.time() - old.stat().st_mtime >= TRUSTED_SECONDS:
                old.unlink(missing_ok=True)


def _writable(notes: Path) -> bool:
    """Whether notes can be left there; a cache that cannot be written is each process's own matter."""
    try:
        notes.mkdir(parents=True, exist_ok=True)
        (notes / "lock").touch()
    except OSError:
        return False
    return True
