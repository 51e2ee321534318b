"""Parts of a work, each put once under a name: in a folder or below an S3 prefix.

A part is whole or absent, whatever is killed, and the first of two writers of one name wins: nothing else is
asked of the store, no lock and no clock. A folder may be on NFS. Does not know what a part holds.
"""

import contextlib
import os
import uuid
from pathlib import Path
from typing import Protocol

from toolformer_ops.config import Settings
from toolformer_ops.errors import ObjectNotFoundError, UsageError
from toolformer_ops.storage.objects.s3 import Objects

_UNFINISHED = ".unfinished-"
"""How the name of a file begins that is being written."""


class Parts(Protocol):
    """Where parts are put."""

    def put(self, name: str, content: bytes) -> bool:
        """Put a part if none has that name; whether this call put it."""

    def get(self, name: str) -> bytes | None:
        """The content of a part; None if there is none of that name."""

    def names(self, below: str = "") -> list[str]:
        """The names that begin so, sorted."""

    def delete(self, name: str) -> None:
        """Remove a part, if one has that name."""


class NoParts:
    """Keeps nothing: what is computed is handed on, and never asked for again."""

    def put(self, name: str, content: bytes) -> bool:
        """Keep nothing; it is the first of its name."""
        return True

    def get(self, name: str) -> bytes | None:
        """There is no part."""
        return None

    def names(self, below: str = "") -> list[str]:
        """There is no name."""
        return []

    def delete(self, name: str) -> None:
        """There is no part."""


class FolderParts:
    """Parts as files of a folder, which is made when the first is put."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, content: bytes) -> bool:
        """Write the file under another name, and link it to its own if that is free."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")
        try:
            with unfinished.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            path.hardlink_to(unfinished)
        except FileExistsError:
            return False
        finally:
            unfinished.unlink(missing_ok=True)
        return True

    def get(self, name: str) -> bytes | None:
        """The bytes of the file."""
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / name).read_bytes()
        return None

    def names(self, below: str = "") -> list[str]:
        """The paths of the files."""
        files = (path for path in self._folder.rglob("*") if path.is_file())
        names = (path.relative_to(self._folder).as_posix() for path in files if _UNFINISHED not in path.name)
        return sorted(name for name in names if name.startswith(below))

    def delete(self, name: str) -> None:
        """Remove the file."""
        (self._folder / name).unlink(missing_ok=True)


class ObjectParts:
    """Parts as objects below a prefix of the bucket of this deployment."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects = objects
        self._prefix = f"{prefix.rstrip('/')}/"

    def put(self, name: str, content: bytes) -> bool:
        """Put the object if it is absent; raises as `Objects.put_if_absent`."""
        return self._objects.put_if_absent(f"{self._prefix}{name}", content)

    def get(self, name: str) -> bytes | None:
        """The bytes of the object."""
        with contextlib.suppress(ObjectNotFoundError):
            return self._objects.get(f"{self._prefix}{name}")
        return None

    def names(self, below: str = "") -> list[str]:
        """The keys below the prefix."""
        return [key.removeprefix(self._prefix) for key in self._objects.list(f"{self._prefix}{below}")]

    def delete(self, name: str) -> None:
        """Remove the object."""
        self._objects.delete(f"{self._prefix}{name}")

    def require_put_if_absent(self) -> None:
        """Refuse a store that writes over an object although it was told to put it only if absent.

        Raises:
            UsageError: it did so with an object that this call put, and has removed again.
        """
        name = f"{_UNFINISHED}{uuid.uuid4().hex}"
        try:
            if self.put(name, b"first") and self.put(name, b"second"):
                raise UsageError(
                    "--out: expected a store that keeps an object it has (If-None-Match: *), found that "
                    f"{self._objects.uri(self._prefix)} takes another content over it: two workers would "
                    "overwrite each other. Use AWS, MinIO or SeaweedFS of this year, or a folder."
                )
        finally:
            self.delete(name)


def open_parts(settings: Settings, address: str) -> FolderParts | ObjectParts:
    """The parts in a folder, or below an s3:// prefix, which was probed.

    Raises:
        UsageError: the folder is a file, or the store overwrites objects.
        ConfigurationError, ObjectStoreError: the bucket is another one, or S3 does not answer.
    """
    if address.startswith("s3://"):
        objects = Objects(settings)
        parts = ObjectParts(objects, objects.key_of(address))
        parts.require_put_if_absent()
        return parts
    folder = Path(address)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out: expected a folder at {folder}, found a file. Name another folder.")
    return FolderParts(folder)
