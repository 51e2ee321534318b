"""Publications on S3: files named by their content, and a manifest that is written last and only if absent.

A publication is under a prefix such as `releases/4f0c...`:

    releases/4f0c.../data-91b2d4.../data/part-00000.parquet
        the files, in a folder named by the hash of their names and contents
    releases/4f0c.../manifest.json
        written last, by a conditional put: it makes the publication exist

A reader that finds no manifest sees nothing. Two writers of one prefix cannot mix their files, since
different contents are in different folders, and the conditional put (`If-None-Match: *`) lets one of them
win; a writer that was killed leaves at most files that no manifest names. The manifest is written only if
every object has been found with its size and hash: `lacking` asks the same of a publication that exists,
and `mend` writes what it lacks.

What S3 says of an object (its size, the SHA-256 that was stored with it) proves nothing of its bytes. So an
object that is taken as already there is read whole and hashed. Of an object that was written just now, S3
compared the bytes with their checksum: there HEAD is enough.

Postgres holds the hash of each manifest (`dataset_releases`, `finetuned_models`, `published_artifacts`), so
that who may write to the bucket cannot change a registered publication unseen. Does not write these tables,
nor decide what a publication holds.
"""

import hashlib
import json
import logging
import os
import posixpath
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.errors import AlreadyPublishedError, CorruptObjectError, ObjectNotFoundError
from toolformer_ops.storage.machine.shared_files import file_sha256
from toolformer_ops.storage.objects.s3 import PART_BYTES, PARTS_AT_ONCE, Objects
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
"""The prefix of the checkpoints of trainings that are not finished, each below the id of its model."""
MANIFEST_FORMAT = "toolformer-ops/1"
ARTIFACT_FORMAT = "toolformer-ops/2"
"""The format of a manifest that says what kind of artifact the files are, and which one."""
JOURNAL = ".parts"
"""The file, in a folder that is being downloaded, that names the parts that are there."""
TOLD_SECONDS = 10.0
"""Between two log lines that say what is left of a download."""


@dataclass(frozen=True)
class PublishedFile:
    """One file of a publication."""

    name: str
    """Path below the publication's folder, such as `data/part-00000.parquet`."""
    sha256: str
    """Hash of the content, 64 hex digits."""
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
    """The kind of an artifact, `model` or `index`; empty for releases and finetuned models, whose rows in
    Postgres say what they are."""
    identity: str = ""
    """What recipes call an artifact."""

    @classmethod
    def of(cls, prefix: str, files: Mapping[str, Path], kind: str = "", identity: str = "") -> "Manifest":
        """The manifest of local files, given by their names in the publication."""
        described = (
            PublishedFile(name, file_sha256(path), path.stat().st_size)
            for name, path in sorted(files.items())
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

        Raises `CorruptObjectError` if it is not one of ours, or was changed after it was written.
        """
        try:
            value = json.loads(body)
            files = tuple(
                PublishedFile(item["name"], item["sha256"], item["size"]) for item in value["files"]
            )
            manifest = cls(prefix, files, value.get("kind", ""), value.get("identity", ""))
            is_ours = value["format"] in (MANIFEST_FORMAT, ARTIFACT_FORMAT) and all(
                isinstance(file.name, str) and isinstance(file.size, int) and file.size >= 0 for file in files
            )
        except (ValueError, KeyError, TypeError):
            is_ours = False
        if not is_ours:
            raise CorruptObjectError(
                f"{prefix}/{MANIFEST}: expected a manifest of format {MANIFEST_FORMAT} or {ARTIFACT_FORMAT}, "
                f"found {body[:80]!r}"
            )
        if body != manifest.to_bytes():
            raise CorruptObjectError(
                f"{prefix}/{MANIFEST}: expected the bytes that the manifest of its files has, found others. "
                "The manifest was changed after it was written."
            )
        return manifest


class ObjectStore(Objects):
    """The bucket of `settings.s3_bucket` with its publications.

    Every method raises `ObjectNotFoundError` if a publication or a file of it is not there, and
    `CorruptObjectError` if a manifest was changed or is not what Postgres registered, or a file has
    not its content; what else there is, as `Objects`.
    """

    def publish(
        self, prefix: str, files: Mapping[str, Path], *, kind: str = "", identity: str = ""
    ) -> Manifest:
        """Write the files (names to local paths), then the manifest.

        Publishing the same twice is one publication. `kind` and `identity`: as in the manifest, of an
        artifact.

        Raises:
            AlreadyPublishedError: other contents were published under this prefix.
        """
        manifest = Manifest.of(prefix, files, kind, identity)
        self.upload(manifest, files)
        self.conclude(manifest, uploaded=True)
        return manifest

    def upload(self, manifest: Manifest, files: Mapping[str, Path]) -> None:
        """Write the files that a manifest names and that are not there yet, but not the manifest.

        No reader sees them yet.
        """
        self.require_bucket()
        self._write(manifest, files, self.lacking(manifest))
        self._require_whole(manifest, by_bytes=False)

    def lacking(self, manifest: Manifest, *, by_bytes: bool = True) -> dict[PublishedFile, str]:
        """The files of a publication whose object is missing or has another content.

        Each comes with what was found (`found_instead`).
        """
        findings = {file: self.found_instead(manifest, file, by_bytes=by_bytes) for file in manifest.files}
        return {file: what for file, what in findings.items() if what is not None}

    def found_instead(
        self, manifest: Manifest, file: PublishedFile, copy: Path | None = None, *, by_bytes: bool = True
    ) -> str | None:
        """What exists instead of a file of a publication; None if the file exists.

        All bytes are read, hashed and copied to `copy` if S3 says that they are the file's; if not
        `by_bytes`, S3 is believed.
        """
        head = self.head(manifest.key_of(file))
        if head is None or head.size != file.size:
            return "nothing" if head is None else f"{head.size} bytes"
        sha256 = head.sha256
        if by_bytes and sha256 in (None, file.sha256):
            try:
                sha256 = self.sha256(manifest.key_of(file), copy)
            except ObjectNotFoundError:  # deleted just now
                return "nothing"
            except CorruptObjectError:
                return "bytes that are not those of its checksum"
        return None if sha256 in (None, file.sha256) else f"content {sha256}"

    def _require_whole(self, manifest: Manifest, *, by_bytes: bool) -> None:
        """Fail unless every object of a publication exists with its content."""
        lacking = self.lacking(manifest, by_bytes=by_bytes)
        if not lacking:
            return
        missing = all(what == "nothing" for what in lacking.values())
        named = "; ".join(
            f"{file.name} ({file.size} bytes, {file.sha256}): found {what}"
            for file, what in list(lacking.items())[:5]
        )
        raise (ObjectNotFoundError if missing else CorruptObjectError)(
            f"{self.uri(manifest.folder)}: expected {len(manifest.files)} files as its manifest names them, "
            f"found {len(lacking)} missing or changed: {named}{self._where()}"
        )

    def mend(self, manifest: Manifest, files: Mapping[str, Path]) -> Sequence[PublishedFile]:
        """Write what a publication lacks, from files that were made again; returns what it then still lacks.

        A file that was made with other bytes than the manifest names is not written.
        """
        if not (lacking := self.lacking(manifest)):
            return ()
        made_files = set(Manifest.of(manifest.prefix, files).files)
        self._write(manifest, files, [file for file in lacking if file in made_files])
        return tuple(file for file in lacking if self.found_instead(manifest, file))

    def _write(self, manifest: Manifest, files: Mapping[str, Path], which: Collection[PublishedFile]) -> None:
        for number, file in enumerate(which, start=1):
            key = manifest.key_of(file)
            if file.size > PART_BYTES:
                size = file.size / 2**20
                logger.info("writing %s, %.0f MiB (file %d of %d)", self.uri(key), size, number, len(which))
            if not self.put_if_absent(key, files[file.name]) and (
                finding := self.found_instead(manifest, file)
            ):
                # The folder is named by its contents: an object with another one can only be a damaged one.
                logger.warning(
                    "%s: expected content %s, found %s: replaced", self.uri(key), file.sha256, finding
                )
                self.delete(key)
                self.put_if_absent(key, files[file.name])

    def conclude(self, manifest: Manifest, *, uploaded: bool = False) -> bool:
        """Write the manifest of files that are there.

        Returns whether this call wrote it (else it was there, and equal). Every object is read and hashed
        first, unless this process has just `uploaded` them.

        Raises:
            AlreadyPublishedError: other contents were published under this prefix.
        """
        if not uploaded:
            self._require_whole(manifest, by_bytes=True)
        if self.put_if_absent(manifest.key, manifest.to_bytes()):
            return True
        published = Manifest.from_bytes(manifest.prefix, self.get(manifest.key))
        if published != manifest:
            raise AlreadyPublishedError(
                f"{self.uri(manifest.prefix)}: expected nothing or the content "
                f"{manifest.content_sha256[:16]}, found {published.content_sha256[:16]} published before. A "
                "publication never changes: use another id."
            )
        return False

    def remove(self, keys: Iterable[str]) -> None:
        """Delete objects, manifests first: without its manifest a publication's files are not read."""
        for key in sorted(keys, key=lambda key: not key.endswith(f"/{MANIFEST}")):
            self.delete(key)

    def read_manifest(self, prefix: str, name: str = MANIFEST) -> Manifest | None:
        """The manifest of a publication; None if nothing is published under this prefix.

        `name`: of the object, of a draft.
        """
        self.require_bucket()
        prefix = prefix.rstrip("/")
        try:
            body = self.get(f"{prefix}/{name}")
        except ObjectNotFoundError:
            return None
        return Manifest.from_bytes(prefix, body)

    def published(self, prefix: str, registered_sha256: str | None) -> Manifest:
        """The manifest of a publication that has to be there.

        It has the hash that Postgres registered, if Postgres registered one.
        """
        manifest = self.read_manifest(prefix)
        if manifest is None:
            raise ObjectNotFoundError(
                f"expected a publication at {self.uri(prefix)}, found no {MANIFEST}{self._where()}"
            )
        require_registered(manifest, registered_sha256)
        return manifest

    def read_file(self, manifest: Manifest, name: str) -> bytes | None:
        """The content of a small file of a publication, checked against its hash.

        It is None if the manifest names no such file.
        """
        file = next((file for file in manifest.files if file.name == name), None)
        if file is None:
            return None
        key = manifest.key_of(file)
        content = self.get(key)
        if (sha256 := hashlib.sha256(content).hexdigest()) != file.sha256:
            raise CorruptObjectError(
                f"{self.uri(key)}: expected content {file.sha256}, found {sha256}. "
                "The object was changed or damaged after it was published."
            )
        return content

    def fetch(self, prefix: str, folder: Path, registered_sha256: str | None = None) -> Manifest:
        """Copy the files of a publication (`published`) into a local folder, as `download` does."""
        manifest = self.published(prefix, registered_sha256)
        self.download(manifest, folder)
        return manifest

    def download(self, manifest: Manifest, folder: Path) -> None:
        """Put a publication's files into `folder`, each compared with its hash and on the disk.

        Other files there stay. Files are read in parts, which a later try continues with; a file that exists
        is not read again. Until this returns none of them is whole: each has its full length from the start,
        so that its room is taken. Takes no lock.

        If a file has not its content, or its name leads elsewhere (`CorruptObjectError`), none of the files
        is kept. If S3 cannot be reached or a file is not there (another `ObjectStoreError`), what was
        downloaded is kept, for the next try.
        """

        def require_right(file: PublishedFile) -> None:
            if (sha256 := file_sha256(folder / file.name)) != file.sha256:
                raise CorruptObjectError(
                    f"{self.uri(manifest.key_of(file))}: expected content {file.sha256}, found {sha256}. "
                    "The object was changed or damaged after it was published: publish it again. Nothing of "
                    "it is kept."
                )
            sync(folder / file.name)

        while True:
            continued = (folder / JOURNAL).is_file() and (folder / JOURNAL).stat().st_size > 0
            reserve(manifest, folder)
            try:
                self._read_parts(manifest, folder)
                with ThreadPoolExecutor(PARTS_AT_ONCE) as threads:
                    list(threads.map(require_right, manifest.files))
            except CorruptObjectError as error:
                for name in (JOURNAL, *(file.name for file in manifest.files)):
                    (folder / name).unlink(missing_ok=True)
                if not continued:
                    raise
                # What a machine lost that went down in mid-download looks the same as a damaged object.
                logger.warning("%s It is downloaded again from its beginning.", error)
            else:
                (folder / JOURNAL).unlink()
                for inside in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
                    sync(inside)
                return

    def _read_parts(self, manifest: Manifest, folder: Path) -> None:
        """Write the parts that are not there yet, `PARTS_AT_ONCE` at a time."""
        journal = folder / JOURNAL
        finished = set(journal.read_text(encoding="utf-8").splitlines())
        lacking: list[tuple[PublishedFile, int]] = []
        for file in manifest.files:
            starts = range(0, file.size, PART_BYTES)
            lacking += [(file, start) for start in starts if f"{start} {file.name}" not in finished]
        left = sum(min(PART_BYTES, file.size - start) for file, start in lacking)
        logger.info(
            "downloading %s: %.1f MiB%s", self.uri(manifest.prefix), left / 2**20,
            f" of {manifest.size / 2**20:.1f} MiB, an earlier try has read the rest" if finished else "",
        )  # fmt: skip
        writing, told = threading.Lock(), time.monotonic()

        def read(part: tuple[PublishedFile, int]) -> None:
            nonlocal left, told
            file, start = part
            body = self.read_part(manifest.key_of(file), start, min(PART_BYTES, file.size - start))
            with (folder / file.name).open("r+b") as target:
                target.seek(start)
                target.write(body)
            with writing, journal.open("a", encoding="utf-8") as written:
                written.write(f"{start} {file.name}\n")
                left -= len(body)
                if time.monotonic() - told > TOLD_SECONDS:
                    told = time.monotonic()
                    logger.info("downloading %s: %.1f MiB left", self.uri(manifest.prefix), left / 2**20)

        with ThreadPoolExecutor(PARTS_AT_ONCE) as threads:
            try:
                list(threads.map(read, lacking))
            except BaseException:
                threads.shutdown(wait=True, cancel_futures=True)
                raise


def reserve(manifest: Manifest, folder: Path) -> None:
    """Make the files of a download in their full length.

    They have no byte of content, but for those that are there whole.
    """
    journal, there = folder / JOURNAL, []
    for file in manifest.files:
        path = folder / file.name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise CorruptObjectError(
                f"{manifest.key}: expected file names below its folder, found {file.name!r}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if not journal.is_file() and path.is_file() and file_sha256(path) == file.sha256:
            there += [f"{start} {file.name}\n" for start in range(0, file.size, PART_BYTES)]
        if not path.is_file() or path.stat().st_size != file.size:
            with path.open("ab") as target:
                target.truncate(file.size)
    folder.mkdir(parents=True, exist_ok=True)
    with journal.open("a", encoding="utf-8") as parts:
        parts.writelines(there)


def wrong_in_folder(
    manifest: Manifest, folder: Path, sha256_of: Callable[[Path], str] = file_sha256
) -> Iterator[tuple[str, str]]:
    """The names of a publication's files that a folder has not, or with other bytes.

    Each comes with what was expected and found.
    """
    for file in manifest.files:
        path = folder / file.name
        size = path.stat().st_size if path.is_file() else None
        if size != file.size:
            yield (
                file.name,
                f"expected {file.size} bytes in {file.name}, found {'no file' if size is None else size}",
            )
        elif (sha256 := sha256_of(path)) != file.sha256:
            yield file.name, f"expected content {file.sha256} in {file.name}, found {sha256}"


def sync(path: Path) -> None:
    """Have what was written to a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def registered_sha256(settings: Settings, uri: str) -> str | None:
    """The hash of the manifest that Postgres registered for a publication.

    It is None if it knows none, or no database is set.
    """
    if not settings.database_dsn.get_secret_value():
        return None
    rows = database.fetch_all(
        database.connect(settings, writes=False), queries.artifacts.manifest, uri=uri.rstrip("/")
    )
    return str(rows[0].manifest_sha256) if rows else None


def require_registered(manifest: Manifest, registered: str | None) -> None:
    """Refuse (`CorruptObjectError`) a manifest that is not what Postgres registered.

    None says that it registered none.
    """
    if registered not in (None, manifest.sha256):
        raise CorruptObjectError(
            f"{manifest.key}: expected the manifest that Postgres registered ({registered}), found another "
            f"one ({manifest.sha256}). It was replaced after it was published: put the first one back, or "
            f"remove {manifest.key} and run `toolformer-ops stage release` (of a model: `finetune`, "
            "`publish`) again, which makes the publication anew."
        )
