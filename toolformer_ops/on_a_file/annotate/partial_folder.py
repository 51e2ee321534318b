"""`--out FILE`: the parts of a command that works are in the folder `FILE.partial`, its rows in the file at its end."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from toolformer_ops.errors import UsageError
from toolformer_ops.storage.objects.parts import FolderParts, NoParts, Parts

KINDS = {"calls", "pool", "tries", "until"}
"""The folders of the parts."""


def partial_folder(out: Path) -> Path:
    """Where the parts are while the file is not there."""
    return out.with_name(f"{out.name}.partial")


@contextlib.contextmanager
def parts_beside(out: Path | None) -> Iterator[Parts]:
    """The parts of `out`, for this process alone in the block; nothing is kept without it.

    Raises:
        UsageError: `out` exists, its folder does not, another process is at work on it, or something else has
        the name of the partial folder.
    """
    if out is None:
        yield NoParts()
        return
    folder = partial_folder(out)
    if out.exists():
        raise UsageError(f"--out: expected no file at {out}, found one. Remove it, or name another.")
    try:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileExistsError as error:
        raise UsageError(
            f"--out: expected a folder at {folder}, which holds what an earlier try has finished, found a file. "
            "Remove it, or name another file."
        ) from error
    except OSError as error:
        raise UsageError(
            f"--out: expected a place for {folder}, found: {error.strerror}. Name another file."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"--out: expected {out} for this command alone, found another process at work on it. Wait for it."
            ) from error
        if others := {path.name for path in folder.iterdir()} - KINDS:
            raise UsageError(
                f"--out: expected what an earlier try has left in {folder}, found {min(others)}. Remove it, or name "
                "another file."
            )
        yield FolderParts(folder)
    finally:
        os.close(descriptor)


def finish(out: Path, rows: Iterator[str]) -> None:
    """Write the rows, one a line, to `out`, which is whole or not there, and remove its parts."""
    unfinished = out.with_name(f"{out.name}.new")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.writelines(f"{row}\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(out)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    shutil.rmtree(partial_folder(out), ignore_errors=True)
