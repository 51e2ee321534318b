"""Write files with secrets so that nobody else can read them, and so that a reader never sees half of one."""

import os
import tempfile
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write `text` to `path` with mode 600, by way of a new file that takes the old one's name at the end."""
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(unfinished).replace(path)
    except BaseException:
        Path(unfinished).unlink()
        raise
