"""Temporary folders, which other processes can tell from those of killed ones.

A process holds the lock of a file in its folder (flock), which the kernel releases however the process ends.
A folder that no process holds was left by a kill, and may hold texts that were forgotten since. Folders are
made and looked through under a short lock beside them, so that a new folder is held before another process
looks at it.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from toolformer_ops.storage.machine.shared_files import locked

logger = logging.getLogger(__name__)

Kind = Literal["release", "check-release", "audit", "history", "part"]
"""What a folder is for: its name begins so."""
BEGINNINGS = tuple(f"{kind}-" for kind in get_args(Kind))
HELD_FILE = ".held"
"""The file in a folder that its process has locked."""
_LOCK = "temporary.lock"


@contextlib.contextmanager
def temporary_folder(parent: Path, kind: Kind) -> Iterator[Path]:
    """Make a folder in `parent`, which is made as well, and delete it after the block."""
    parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as holding:
        with _looking_at(parent):
            folder = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=parent))
            holding.callback(_remove, folder)
            descriptor = os.open(folder / HELD_FILE, os.O_WRONLY | os.O_CREAT, 0o600)
            holding.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder


def remove_left(parent: Path) -> list[Path]:
    """Delete the folders in `parent` that no process of this machine holds; returns them.

    A folder of an earlier version, which has no lock, is deleted, too. A folder that cannot be deleted is
    named in a warning.
    """
    if not left_in(parent):
        return []
    with _looking_at(parent):
        return [folder for folder in left_in(parent) if _remove(folder)]


def left_in(parent: Path) -> list[Path]:
    """The folders in `parent` that no process of this machine holds, or that one is about to hold."""
    folders = (path for path in parent.glob("*") if path.name.startswith(BEGINNINGS) and path.is_dir())
    return sorted(folder for folder in folders if not _is_held(folder))


def _is_held(folder: Path) -> bool:
    """Whether a process of this machine is at work in a temporary folder, or may be one of another user."""
    try:
        descriptor = os.open(folder / HELD_FILE, os.O_WRONLY)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _looking_at(parent: Path) -> contextlib.AbstractContextManager[None]:
    return locked(parent / _LOCK, f"another process makes or deletes temporary folders in {parent}")


def _remove(folder: Path) -> bool:
    """Delete a folder; whether it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        logger.warning("%s: expected to delete this temporary folder, found that it stays", folder)
        return False
    return True
