"""What a command on a file has finished, on disk while it works, so that the same command continues after a kill.

The rows of `--out FILE` are in `FILE.partial` until all are there: lines of JSON, the first of which says
what they are. A line is found again by its key, which holds the recipe: what other parameters, another model
or another tool made is not taken. A last line that a kill cut is cut off, and what it held is done again.
"""

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from toolformer_ops.errors import UsageError

logger = logging.getLogger(__name__)

HEADER = {"partial": "toolformer-ops annotate", "version": 2}
"""The first line of each such file."""

Key = tuple[str, ...]


class PartialFile:
    """The finished lines of a file, by key, and how more are added; without a file nothing is kept."""

    def __init__(self, file: IO[bytes] | None, lines: dict[Key, dict[str, Any]]) -> None:
        self._file = file
        self._lines = lines

    @classmethod
    @contextlib.contextmanager
    def beside(cls, out: Path | None) -> Iterator["PartialFile"]:
        """The partial file of `out`, open and locked in the block.

        Only `finish` removes it.

        Raises:
            UsageError: `out` exists, its folder does not, another process is at work on it, or the partial
            file holds something else.
        """
        if out is None:
            yield cls(None, {})
            return
        path = out.with_name(f"{out.name}.partial")
        if out.exists():
            raise UsageError(f"--out: expected no file at {out}, found one. Remove it, or name another.")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise UsageError(
                f"--out: expected a place for {path}, found: {error.strerror}. Name another file."
            ) from error
        with os.fdopen(descriptor, "r+b") as file:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError(
                    f"--out: expected {out} for this command alone, found another process at work on it. "
                    "Wait for it."
                ) from error
            lines = _read(file, path)
            if lines:
                logger.info("%s: continued, %d lines are finished", path, len(lines))
            yield cls(file, lines)

    def line(self, key: Key) -> dict[str, Any] | None:
        """What was added under the key, by this process or one before; None if nothing was."""
        return self._lines.get(key)

    def add(self, key: Key, line: dict[str, Any]) -> None:
        """Keep a line from now on, whenever this process is killed."""
        if self._file is not None:
            written = json.dumps({"key": key, **line}, ensure_ascii=True)
            self._file.write(written.encode("ascii") + b"\n")
            self._file.flush()


def finish(out: Path, rows: Iterator[str]) -> None:
    """Write the rows, one a line, to `out`, which is whole or not there, and remove its partial file."""
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
    out.with_name(f"{out.name}.partial").unlink(missing_ok=True)


def _read(file: IO[bytes], path: Path) -> dict[Key, dict[str, Any]]:
    """The finished lines.

    The file then ends behind the last of them, with its first line written if it lacked it.
    """
    # 1. The first line. A file without any whole line was left by a kill as it was made.
    header = json.dumps(HEADER).encode("ascii") + b"\n"
    first = file.readline()
    if first != header:
        if not header.startswith(first):
            raise UsageError(
                f"--out: expected what an earlier try has left in {path}, found something else. Remove it, "
                "or name another file."
            )
        file.seek(0)
        file.truncate()
        file.write(header)
        file.flush()
        return {}
    # 2. The others, up to a line that was cut.
    lines: dict[Key, dict[str, Any]] = {}
    end = file.tell()
    for content in iter(file.readline, b""):
        try:
            line: dict[str, Any] = json.loads(content)
            key = tuple(line.pop("key"))
        except (ValueError, KeyError, AttributeError, TypeError):
            key = ()
        if not key or not content.endswith(b"\n"):
            logger.warning("%s: a line that was cut is left out, and what it held is done again", path)
            break
        lines[key] = line
        end = file.tell()
    file.seek(end)
    file.truncate()
    return lines
