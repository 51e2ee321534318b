"""Publications on S3: files named by their content, and a manifest that is written last and only if absent.

A publication is under a prefix such as `releases/4f0c...`:

    releases/4f0c.../data-91b2d4.../part-00000.parquet     the files, in a folder named by the hash of their names and contents
    releases/4f0c.../manifest.json                         written last, by a conditional put: it makes the publication exist

A reader that finds no manifest sees nothing. Two writers of one prefix cannot mix their files, since different contents are in
different folders, and the conditional put (`If-None-Match: *`) lets one of them win; a writer that was killed leaves at most
files that no manifest names. The manifest is written only where every object has been found with its size and hash: `lacking`
asks the same of a publication that is there, and `mend` writes what it lacks.

What S3 says of an object (its size, the SHA-256 that was stored with it) proves nothing of its bytes. So an object that is taken
as already there is read whole and hashed. Of one that was written just now, S3 compared the bytes with their checksum: there HEAD
is enough.

Owns no table: `dataset_releases` and `finetuned_models` are written by `stages/release.py` and `stages/finetuning.py`.
Does not decide what a publication holds.
"""

import hashlib
import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from toolformer_ops.errors import AlreadyPublishedError, CorruptObjectError, ObjectNotFoundError
from toolformer_ops.storage.objects import PART_BYTES, READ_BYTES, Objects
from toolformer_ops.storage.publication import MANIFEST, Manifest, PublishedFile, file_sha256, require_registered

logger = logging.getLogger(__name__)


class ObjectStore(Objects):
    """The bucket of `settings.s3_bucket` with its publications."""

    def publish(self, prefix: str, files: Mapping[str, Path], *, kind: str = "", identity: str = "") -> Manifest:
        """Write the files (names to local paths), then the manifest; publishing the same twice is one publication.

        `kind` and `identity`: as in the manifest, of an artifact.

        Raises:
            AlreadyPublishedError: other contents were published under this prefix.
        """
        manifest = self.upload(prefix, files, kind=kind, identity=identity)
        self.conclude(manifest, manifest.files)
        return manifest

    def upload(self, prefix: str, files: Mapping[str, Path], *, kind: str = "", identity: str = "") -> Manifest:
        """Write the files of a publication, but not its manifest: nobody sees them yet.

        Raises:
            ObjectNotFoundError, CorruptObjectError: a file is not there after it was written.
        """
        manifest = Manifest.of(prefix, files, kind, identity)
        self.upload_files(manifest, files)
        return manifest

    def upload_files(self, manifest: Manifest, files: Mapping[str, Path]) -> None:
        """Write the files that a manifest names and that are not there yet.

        Raises:
            ObjectNotFoundError, CorruptObjectError: a file is not there after it was written.
        """
        self.require_bucket()
        self._write(manifest, files, self.lacking(manifest))
        self.require_whole(manifest, manifest.files)

    def lacking(self, manifest: Manifest) -> dict[PublishedFile, str]:
        """The files of a publication whose object is not there with its content, each with what was found.

        Reads and hashes every object that is there with its size.
        """
        return {file: what for file in manifest.files if (what := self._found(manifest, file)) is not None}

    def _found(self, manifest: Manifest, file: PublishedFile) -> str | None:
        """What is there instead of a file of a publication, by its bytes; None where the file is there."""
        if said := self._said(manifest, file):
            return said
        try:
            with self._open(self.bucket, manifest.key_of(file), file.size) as body:
                sha256 = hashlib.file_digest(body, "sha256").hexdigest()
        except ObjectNotFoundError:  # deleted just now
            return "nothing"
        except CorruptObjectError:
            return "bytes that are not those of its checksum"
        return None if sha256 == file.sha256 else f"content {sha256}"

    def _said(self, manifest: Manifest, file: PublishedFile) -> str | None:
        """As `_found`, by what S3 says of the object."""
        head = self._head(manifest.key_of(file))
        if head is None:
            return "nothing"
        if head.size != file.size:
            return f"{head.size} bytes"
        return None if head.sha256 in (None, file.sha256) else f"content {head.sha256}"

    def require_whole(self, manifest: Manifest, known: Collection[PublishedFile] = ()) -> None:
        """Fail unless every object of a publication is there with its content.

        `known`: files that this process has just written, or read whole: HEAD is asked. All others are read and hashed.

        Raises:
            ObjectNotFoundError: objects are missing.
            CorruptObjectError: an object has another content.
        """
        found = {file: (self._said if file in known else self._found)(manifest, file) for file in manifest.files}
        lacking = {file: what for file, what in found.items() if what is not None}
        if not lacking:
            return
        missing = all(what == "nothing" for what in lacking.values())
        named = "; ".join(
            f"{file.name} ({file.size} bytes, {file.sha256}): found {what}" for file, what in list(lacking.items())[:5]
        )
        raise (ObjectNotFoundError if missing else CorruptObjectError)(
            f"{self.uri(manifest.folder)}: expected {len(manifest.files)} files as its manifest names them, found "
            f"{len(lacking)} missing or changed: {named}{self._where()}"
        )

    def mend(self, manifest: Manifest, files: Mapping[str, Path]) -> Sequence[PublishedFile]:
        """Write what a publication lacks, from files that were made again; returns what it then still lacks.

        A file that was made with other bytes than the manifest names is not written.
        """
        lacking = self.lacking(manifest)
        if not lacking:
            return ()
        made = set(Manifest.of(manifest.prefix, files).files)
        self._write(manifest, files, [file for file in lacking if file in made])
        return tuple(file for file in lacking if self._found(manifest, file))

    def _write(self, manifest: Manifest, files: Mapping[str, Path], which: Collection[PublishedFile]) -> None:
        for number, file in enumerate(which, start=1):
            key = manifest.key_of(file)
            if file.size > PART_BYTES:
                size = file.size / 2**20
                logger.info("writing %s, %.0f MiB (file %d of %d)", self.uri(key), size, number, len(which))
            if not self.put_if_absent(key, files[file.name]) and (found := self._found(manifest, file)):
                # The folder is named by its contents: an object with another one can only be a damaged one.
                logger.warning("%s: expected content %s, found %s: replaced", self.uri(key), file.sha256, found)
                self.delete(key)
                self.put_if_absent(key, files[file.name])

    def conclude(self, manifest: Manifest, known: Collection[PublishedFile] = ()) -> bool:
        """Write the manifest of files that `upload` has written; whether this call wrote it (else it was there, and equal).

        `known`: as for `require_whole`.

        Raises:
            ObjectNotFoundError, CorruptObjectError: a file is not there, or not with its size and hash.
            AlreadyPublishedError: other contents were published under this prefix.
        """
        self.require_whole(manifest, known)
        if self.put_if_absent(manifest.key, manifest.to_bytes()):
            return True
        published = Manifest.from_bytes(manifest.prefix, self.get(manifest.key))
        if published != manifest:
            raise AlreadyPublishedError(
                f"{self.uri(manifest.prefix)}: expected nothing or the content {manifest.content_sha256[:16]}, found "
                f"{published.content_sha256[:16]} published before. A publication never changes: use another id."
            )
        return False

    def read_manifest(self, prefix: str, name: str = MANIFEST) -> Manifest | None:
        """The manifest of a publication; None where nothing is published under this prefix.

        `name`: of the object, where it is a draft.

        Raises:
            ObjectNotFoundError: the bucket itself is not there.
            CorruptObjectError: it is not a manifest of ours, or was changed.
        """
        self.require_bucket()
        prefix = prefix.rstrip("/")
        try:
            body = self.get(f"{prefix}/{name}")
        except ObjectNotFoundError:
            return None
        return Manifest.from_bytes(prefix, body)

    def published(self, prefix: str, registered_sha256: str | None) -> Manifest:
        """The manifest of a publication that has to be there, and to be the one that Postgres registered.

        `registered_sha256`: None where Postgres knows nothing of this publication.

        Raises:
            ObjectNotFoundError: nothing is published under this prefix.
            CorruptObjectError: the manifest is another one.
        """
        manifest = self.read_manifest(prefix)
        if manifest is None:
            raise ObjectNotFoundError(
                f"expected a publication at {self.uri(prefix)}, found no {MANIFEST}{self._where()}"
            )
        require_registered(manifest, registered_sha256)
        return manifest

    def read_file(self, manifest: Manifest, name: str) -> bytes | None:
        """The content of a small file of a publication, checked against its hash; None where the manifest names no such file.

        Raises:
            ObjectNotFoundError: its object is not there.
            CorruptObjectError: its content is not the one in the manifest.
        """
        file = next((file for file in manifest.files if file.name == name), None)
        if file is None:
            return None
        key = manifest.key_of(file)
        with self._open(self.bucket, key, file.size) as body:
            content = body.read()
        self._require_content(key, file, hashlib.sha256(content).hexdigest())
        return content

    def fetch(self, prefix: str, directory: Path, registered_sha256: str | None = None) -> Manifest:
        """Copy a publication's files into a local folder and check each against its hash.

        A file that is there with the right content is not copied again. `registered_sha256`: as for `published`.

        Raises:
            ObjectNotFoundError: nothing is published under this prefix, or a file is missing.
            CorruptObjectError: the manifest is not the registered one, or a file's content not the one in the manifest.
            BrokenConnectionError: the connection broke again and again.
        """
        manifest = self.published(prefix, registered_sha256)
        for file in manifest.files:
            target = directory / file.name
            if not target.resolve().is_relative_to(directory.resolve()):
                raise CorruptObjectError(f"{manifest.key}: expected file names below its folder, found {file.name!r}")
            if target.is_file() and target.stat().st_size == file.size and file_sha256(target) == file.sha256:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            self._download(manifest.key_of(file), file, target)
        return manifest

    def _download(self, key: str, file: PublishedFile, target: Path) -> None:
        partial = target.with_name(target.name + ".partial")
        with self._open(self.bucket, key, file.size) as body, partial.open("wb") as out:
            shutil.copyfileobj(body, out, READ_BYTES)
        try:
            self._require_content(key, file, file_sha256(partial))
        except CorruptObjectError:
            partial.unlink()
            raise
        partial.replace(target)

    def _require_content(self, key: str, file: PublishedFile, found: str) -> None:
        if found != file.sha256:
            raise CorruptObjectError(
                f"{self.uri(key)}: expected content {file.sha256}, found {found}. "
                "The object was changed or damaged after it was published."
            )
