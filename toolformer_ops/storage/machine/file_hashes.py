"""SHA-256 of files that a process is to load.

Each process hashes its own reading, but a large file is read once a node and day. The process that has hashed
a large file leaves a note in the cache's folder `hashes`, and others on this node take the hash from there,
so that of eight processes that load a model of 130 GiB one reads it for its hash; they wait for it.

A note holds for a file of the same inode, size and times, read by this node since it booted, less than a day
ago. So it trusts that a file that shows no change has not changed since: who writes to it changes the inode's
time, which no program can set back. A disk that rots changes nothing that shows; what it did before the note
is found at once, what it does after it a day later.
"""

import contextlib
import hashlib
import time
from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.storage.machine.shared_files import locked, replace_file

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
