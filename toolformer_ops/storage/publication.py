"""What a publication on S3 holds: its files with their hashes, and the manifest that lists them.

Pure values and their bytes: `storage/object_store.py` reads and writes them.
"""

import hashlib
import json
import posixpath
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.errors import CorruptObjectError

MANIFEST = "manifest.json"
MANIFEST_FORMAT = "toolformer-ops/1"


@dataclass(frozen=True)
class PublishedFile:
    """One file of a publication."""

    name: str
    """Path below the publication's folder, such as `part-00000.parquet`."""
    sha256: str
    """Of the content, 64 hex digits."""
    size: int
    """In bytes."""


@dataclass(frozen=True)
class Manifest:
    """What a publication holds; the manifests of equal contents are equal, byte for byte."""

    prefix: str
    """Key of the publication, without a slash at its end."""
    files: tuple[PublishedFile, ...]
    """Sorted by name."""

    @property
    def content_sha256(self) -> str:
        """Hash of the names and contents of all files."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.sha256} {file.size} {file.name}\n".encode())
        return digest.hexdigest()

    @property
    def folder(self) -> str:
        """Key of the folder that holds the files: named by their content."""
        return f"{self.prefix}/data-{self.content_sha256[:16]}"

    @property
    def key(self) -> str:
        """Key of the manifest itself."""
        return f"{self.prefix}/{MANIFEST}"

    def key_of(self, file: PublishedFile) -> str:
        """Key of one file."""
        return f"{self.folder}/{file.name}"

    def to_bytes(self) -> bytes:
        """The manifest as it is on S3."""
        value = {
            "format": MANIFEST_FORMAT,
            "content_sha256": self.content_sha256,
            "folder": posixpath.basename(self.folder),
            "files": [{"name": file.name, "sha256": file.sha256, "size": file.size} for file in self.files],
        }
        return json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"

    @property
    def sha256(self) -> str:
        """Hash of the manifest's own bytes."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, prefix: str, body: bytes) -> "Manifest":
        """Read a manifest.

        Raises:
            CorruptObjectError: it is not one of ours, or its hash is not that of its list of files.
        """
        try:
            value = json.loads(body)
            files = tuple(PublishedFile(item["name"], item["sha256"], item["size"]) for item in value["files"])
            manifest = cls(prefix, files)
            named = (value["format"], value["content_sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptObjectError(
                f"{prefix}/{MANIFEST}: expected a manifest of format {MANIFEST_FORMAT}, found {body[:80]!r}"
            ) from error
        if named != (MANIFEST_FORMAT, manifest.content_sha256):
            raise CorruptObjectError(
                f"{prefix}/{MANIFEST}: expected format {MANIFEST_FORMAT} and content {manifest.content_sha256}, "
                f"found {named[0]} and {named[1]}. The manifest was changed after it was written."
            )
        return manifest


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
