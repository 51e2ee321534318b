"""How the address of a corpus is written, and the id that follows from it.

Looks links up and nothing else: what stands at an address is read by `corpus_files.py`.
"""

import contextlib
import hashlib
import os
import re
from pathlib import Path

from toolformer_ops.errors import CorpusError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def corpus_id_of(uri: str) -> str:
    """The id of a corpus: 16 hex digits of the hash of its address as `normal_uri` writes it, which has to be UTF-8."""
    try:
        return hashlib.sha256(normal_uri(uri).encode("utf-8")).hexdigest()[:16]
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"expected a corpus address in UTF-8, found {os.fsencode(uri)!r}. Rename the file or folder."
        ) from error


def normal_uri(uri: str) -> str:
    """One spelling for each address: s3:// as it is, a path as file:// with an absolute path without links; no closing slash.

    A file:// address is the path as it is: no escapes such as %20.

    Raises:
        CorpusError: the address is of another kind, such as http://, or cannot be one of a file.
    """
    if _CONTROL.search(uri):
        raise CorpusError(f"expected an address without control characters, found {uri[:200]!a}. Correct it.")
    if uri.startswith("s3://"):
        return uri.rstrip("/")
    path = uri.removeprefix("file://")
    if _SCHEME.match(path):
        raise CorpusError(
            f"expected a path, or an address with file:// or s3://, found {uri[:200]!r}. Download the files, or put them on S3."
        )
    try:
        resolved = Path(path).expanduser().resolve()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            resolved.lstat()
    except (OSError, RuntimeError) as error:  # too long, a loop of links, a home of nobody
        raise CorpusError(
            f"expected the path of a file or a folder, found {uri[:200]!r} ({len(uri)} characters): "
            f"{getattr(error, 'strerror', None) or 'it leads nowhere'}. Correct it."
        ) from error
    return f"file://{resolved}"
