"""What a publication on S3 holds: its files with their hashes, and the manifest that lists them.

Values and their bytes, which `storage/object_store.py` reads and writes, and the manifest's hash that Postgres registered
(`dataset_releases`, `finetuned_models`): who may write to the bucket cannot change a registered publication unseen.
"""

import hashlib
import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorruptObjectError
from toolformer_ops.storage import database, queries

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
"""The prefix of the checkpoints of trainings that are not finished, each below the id of its model."""
MANIFEST_FORMAT = "toolformer-ops/1"
ARTIFACT_FORMAT = "toolformer-ops/2"
"""Of a manifest that says what kind of artifact the files are, and which one."""


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
    kind: str = ""
    """Of an artifact: `model` or `index`; empty for releases and finetuned models, whose rows in Postgres say what they are."""
    identity: str = ""
    """Of an artifact: what recipes call it."""

    @classmethod
    def of(cls, prefix: str, files: Mapping[str, Path], kind: str = "", identity: str = "") -> "Manifest":
        """The manifest of local files, given by their names in the publication."""
        described = (
            PublishedFile(name, file_sha256(path), path.stat().st_size) for name, path in sorted(files.items())
        )
        return cls(prefix.rstrip("/"), tuple(described), kind, identity)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

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
        artifact = {"kind": self.kind, "identity": self.identity} if self.kind else {}
        value = {
            "format": ARTIFACT_FORMAT if self.kind else MANIFEST_FORMAT,
            **artifact,
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
            CorruptObjectError: it is not one of ours, or was changed after it was written.
        """
        try:
            value = json.loads(body)
            files = tuple(PublishedFile(item["name"], item["sha256"], item["size"]) for item in value["files"])
            of_artifact = value["format"] == ARTIFACT_FORMAT
            manifest = cls(prefix, files, *([value["kind"], value["identity"]] if of_artifact else []))
            named = (value["format"], value["content_sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptObjectError(
                f"{prefix}/{MANIFEST}: expected a manifest of format {MANIFEST_FORMAT} or {ARTIFACT_FORMAT}, found {body[:80]!r}"
            ) from error
        if named not in {(MANIFEST_FORMAT, manifest.content_sha256), (ARTIFACT_FORMAT, manifest.content_sha256)}:
            raise CorruptObjectError(
                f"{prefix}/{MANIFEST}: expected format {MANIFEST_FORMAT} or {ARTIFACT_FORMAT} and content "
                f"{manifest.content_sha256}, "
                f"found {named[0]} and {named[1]}. The manifest was changed after it was written."
            )
        if body != manifest.to_bytes():
            raise CorruptObjectError(
                f"{prefix}/{MANIFEST}: expected the bytes of a manifest as they are written, found others for the same files. "
                "The manifest was changed after it was written."
            )
        return manifest


def registered_sha256(settings: Settings, uri: str) -> str | None:
    """The hash of the manifest that Postgres registered for a publication; None where it knows none, or no database is set.

    Raises:
        DatabaseError: a database is set and does not answer.
    """
    if not settings.database_dsn.get_secret_value():
        return None
    with database.transaction(database.connect(settings, writes=False)) as connection:
        rows = database.fetch_all(connection, queries.artifacts.manifest, uri=uri.rstrip("/"))
    return str(rows[0].manifest_sha256) if rows else None


def require_registered(manifest: Manifest, registered: str | None) -> None:
    """Refuse a manifest that is not the one that Postgres registered; None: it registered none.

    Raises:
        CorruptObjectError: it is another one.
    """
    if registered not in (None, manifest.sha256):
        raise CorruptObjectError(
            f"{manifest.key}: expected the manifest that Postgres registered ({registered}), found another one "
            f"({manifest.sha256}). It was replaced after it was published: put the first one back, or remove {manifest.key} and "
            "run `toolformer-ops stage release` (of a model: `finetune`, `publish`) again, which makes the publication anew."
        )


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
