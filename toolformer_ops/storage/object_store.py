"""S3 through boto3: files named by their content, publications whose manifest is written last and only if absent.

A publication is under a prefix such as `releases/4f0c...`:

    releases/4f0c.../data-91b2d4.../part-00000.parquet     the files, in a folder named by the hash of their names and contents
    releases/4f0c.../manifest.json                         written last, by a conditional put: it makes the publication exist

A reader that finds no manifest sees nothing. Two writers of one prefix cannot mix their files, since different contents are in
different folders, and the conditional put (`If-None-Match: *`) lets one of them win; a writer that was killed leaves at most
files that no manifest names.

Owns no table: `dataset_releases` and `finetuned_models` are written by `stages/release.py` and `stages/finetuning.py`.
Does not decide what a publication holds.
"""

import contextlib
import functools
import hashlib
import io
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import boto3
import tenacity
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, FlexibleChecksumError

from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    AlreadyPublishedError,
    BrokenConnectionError,
    ConfigurationError,
    CorpusError,
    CorruptObjectError,
    ObjectNotFoundError,
    ObjectStoreError,
    PreconditionFailedError,
    WriteConflictError,
)
from toolformer_ops.storage.publication import MANIFEST, Manifest, PublishedFile, file_sha256

PART_BYTES = 16 * 2**20
"""Files above this size are sent in parts of it (S3 allows at least 5 MiB and at most 10,000 parts: 156 GiB a file)."""
READ_TRIES = 4
"""Tries of one read whose connection breaks."""
CONFLICT_TRIES = 8
"""Tries of a conditional write while the store answers 409 (ConditionalRequestConflict): about 20 seconds in all."""
_READ_BYTES = 2**20


class ListedFile(NamedTuple):
    """A file as a listing shows it; on a disk, its address alone."""

    uri: str
    size: int | None = None
    """Bytes."""
    etag: str | None = None
    """What S3 calls the content: another ETag may be another content, the same ETag is the same."""


class ObjectStore:
    """The bucket of `settings.s3_bucket`, and reading from any bucket by address."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.bucket = settings.s3_bucket
        key, secret = settings.s3_access_key_id, settings.s3_secret_access_key
        self._client = boto3.client(
            "s3",
            endpoint_url=settings.s3_endpoint_url or None,
            aws_access_key_id=key.get_secret_value() if key else None,
            aws_secret_access_key=secret.get_secret_value() if secret else None,
            region_name=settings.s3_region,
            config=Config(
                retries={"mode": "standard", "max_attempts": 5},
                connect_timeout=10,
                s3={"addressing_style": "path"} if settings.s3_endpoint_url else {},
            ),
        )

    def uri(self, key: str) -> str:
        """The s3:// address of a key of this bucket."""
        return f"s3://{self.bucket}/{key}"

    def key_of(self, uri: str) -> str:
        """The key of an s3:// address in this bucket.

        Raises:
            ConfigurationError: the address is not in this bucket.
        """
        key = uri.removeprefix(self.uri(""))
        if key == uri:
            raise ConfigurationError(f"expected an address in {self.uri('')} (TOOLFORMER_S3_BUCKET), found {uri}.")
        return key

    # Buckets

    def require_bucket(self) -> None:
        """Fail, with what was looked for and where it is set, unless the bucket is there.

        Some stores make a missing bucket at the first put, so a wrong name would otherwise go unnoticed.
        """
        self._request("head_bucket", self.bucket, None)

    def ensure_bucket(self) -> bool:
        """Make the bucket where it is missing; whether it was made now."""
        try:
            self.require_bucket()
        except ObjectNotFoundError:
            self._request("create_bucket", self.bucket, None)
            return True
        return False

    # Single objects

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(WriteConflictError),
        stop=tenacity.stop_after_attempt(CONFLICT_TRIES),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=10),
        reraise=True,
    )
    def put_if_absent(self, key: str, content: bytes | Path) -> bool:
        """Write an object unless one of that key is there; whether this call wrote it.

        A file above `PART_BYTES` goes in parts, and appears whole or not at all. Asks again, a few times, where the store
        says that another write of the same key is under way.

        Raises:
            WriteConflictError: the other write was still under way at the last try; this object may be missing.
        """
        if isinstance(content, Path) and content.stat().st_size > PART_BYTES:
            return self._put_parts_if_absent(key, content)
        body = content if isinstance(content, bytes) else content.read_bytes()
        sha256 = hashlib.sha256(body).hexdigest()
        return self._unless_present(
            "put_object", key, Body=body, Metadata={"sha256": sha256}, ChecksumAlgorithm="SHA256"
        )

    def put(self, key: str, content: bytes, content_type: str) -> None:
        """Write a small object, over one of that key: for what is made anew from its sources, such as a page."""
        self._request(
            "put_object", self.bucket, key, Body=content, ContentType=content_type, ChecksumAlgorithm="SHA256"
        )

    def _put_parts_if_absent(self, key: str, path: Path) -> bool:
        if self.exists(key):
            return False
        upload = self._request("create_multipart_upload", self.bucket, key, Metadata={"sha256": file_sha256(path)})
        upload_id = upload["UploadId"]
        written = False
        try:
            parts: list[dict[str, object]] = []
            with path.open("rb") as file:
                while body := file.read(PART_BYTES):
                    number = len(parts) + 1
                    answer = self._request(
                        "upload_part", self.bucket, key, UploadId=upload_id, PartNumber=number, Body=body
                    )
                    parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            written = self._unless_present(
                "complete_multipart_upload", key, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )
        finally:
            if not written:
                with contextlib.suppress(ObjectNotFoundError):  # the store has dropped the parts by itself
                    self._request("abort_multipart_upload", self.bucket, key, UploadId=upload_id)
        return written

    def _unless_present(self, operation: str, key: str, **arguments: object) -> bool:
        try:
            self._request(operation, self.bucket, key, IfNoneMatch="*", **arguments)
        except PreconditionFailedError:
            return False
        return True

    def get(self, key: str) -> bytes:
        """The content of a small object.

        Raises:
            ObjectNotFoundError: it is not there.
        """
        with self._open(self.bucket, key) as body:
            return body.read()

    def exists(self, key: str) -> bool:
        """Whether an object of that key is there."""
        try:
            self._request("head_object", self.bucket, key)
        except ObjectNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that start with `prefix`, in the order of their bytes."""
        for item in self._list(self.bucket, prefix):
            yield item["Key"]

    def delete(self, key: str) -> None:
        """Remove one object; one that is not there is no error."""
        self._request("delete_object", self.bucket, key)

    # Addresses: s3://bucket/key, file:///path, /path

    def open_uri(self, uri: str) -> IO[bytes]:
        """A stream of the bytes at an address, without reading it whole into memory.

        Raises:
            CorpusError: there is nothing at a local path.
            ObjectNotFoundError: there is no such object or bucket.
            ConfigurationError: the address is of another kind.
        """
        place = self._place(uri)
        if isinstance(place, Path):
            if not place.is_file():
                raise CorpusError(f"expected a file at {uri}, found {'a folder' if place.is_dir() else 'nothing'}")
            return place.open("rb")
        return self._open(*place)

    def list_uri(self, uri: str) -> Sequence[str]:
        """Addresses of the files at an address: itself where it is a file, all below it where it is a folder; sorted.

        Raises:
            CorpusError: there is no such file or folder, or nothing is in it.
            ObjectNotFoundError: there is no such bucket.
        """
        return [found.uri for found in self.list_files(uri)]

    def list_files(self, uri: str) -> Sequence["ListedFile"]:
        """As `list_uri`, with what the listing says of each file.

        Raises:
            CorpusError, ObjectNotFoundError: as `list_uri`.
        """
        place = self._place(uri)
        if isinstance(place, Path):
            if place.is_file():
                return [ListedFile(uri)]
            if not place.is_dir():
                raise CorpusError(f"expected a file or a folder at {uri}, found nothing")
            found = [ListedFile(name) for name in sorted(str(path) for path in place.rglob("*") if path.is_file())]
        else:
            bucket, key = place
            below = key if not key or key.endswith("/") else f"{key}/"
            found = [
                ListedFile(f"s3://{bucket}/{item['Key']}", item.get("Size"), item.get("ETag"))
                for item in self._list(bucket, key)
                if (item["Key"] == key or item["Key"].startswith(below)) and not item["Key"].endswith("/")
            ]
        if not found:
            raise CorpusError(f"expected files at {uri}, found none{self._where()}")
        return found

    def _place(self, uri: str) -> Path | tuple[str, str]:
        parts = urlsplit(uri)
        if parts.scheme == "s3" and parts.netloc:
            # Not parts.path: a key may hold "?" and "#", which urlsplit cuts off.
            return parts.netloc, uri.removeprefix("s3://").removeprefix(parts.netloc).removeprefix("/")
        if parts.scheme == "file" and parts.netloc in ("", "localhost"):
            return Path(unquote(parts.path))
        if "://" not in uri and uri:
            return Path(uri)
        raise ConfigurationError(f"expected s3://bucket/key, file:///path or a path, found {uri!r}")

    # Publications

    def publish(self, prefix: str, files: Mapping[str, Path]) -> Manifest:
        """Write the files (names to local paths), then the manifest; publishing the same twice is one publication.

        Raises:
            AlreadyPublishedError: other contents were published under this prefix.
        """
        manifest = self.upload(prefix, files)
        self.conclude(manifest)
        return manifest

    def upload(self, prefix: str, files: Mapping[str, Path]) -> Manifest:
        """Write the files of a publication, but not its manifest: nobody sees them yet."""
        self.require_bucket()
        manifest = Manifest(
            prefix.rstrip("/"),
            tuple(PublishedFile(name, file_sha256(path), path.stat().st_size) for name, path in sorted(files.items())),
        )
        for file in manifest.files:
            self.put_if_absent(manifest.key_of(file), files[file.name])
        return manifest

    def conclude(self, manifest: Manifest) -> bool:
        """Write the manifest of files that `upload` has written; whether this call wrote it (else it was there, and equal).

        Raises:
            AlreadyPublishedError: other contents were published under this prefix.
        """
        if self.put_if_absent(manifest.key, manifest.to_bytes()):
            return True
        published = Manifest.from_bytes(manifest.prefix, self.get(manifest.key))
        if published != manifest:
            raise AlreadyPublishedError(
                f"{self.uri(manifest.prefix)}: expected nothing or the content {manifest.content_sha256[:16]}, found "
                f"{published.content_sha256[:16]} published before. A publication never changes: use another id."
            )
        return False

    def read_manifest(self, prefix: str) -> Manifest | None:
        """The manifest of a publication; None where nothing is published under this prefix.

        Raises:
            ObjectNotFoundError: the bucket itself is not there.
        """
        self.require_bucket()
        prefix = prefix.rstrip("/")
        try:
            body = self.get(f"{prefix}/{MANIFEST}")
        except ObjectNotFoundError:
            return None
        return Manifest.from_bytes(prefix, body)

    def fetch(self, prefix: str, directory: Path) -> Manifest:
        """Copy a publication's files into a local folder and check each against its hash.

        A file that is there with the right content is not copied again.

        Raises:
            ObjectNotFoundError: nothing is published under this prefix, or a file is missing.
            CorruptObjectError: a file's content is not the one in the manifest.
        """
        manifest = self.read_manifest(prefix)
        if manifest is None:
            raise ObjectNotFoundError(
                f"expected a publication at {self.uri(prefix)}, found no {MANIFEST}{self._where()}"
            )
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
        with self._open(self.bucket, key) as body, partial.open("wb") as out:
            shutil.copyfileobj(body, out, _READ_BYTES)
        found = file_sha256(partial)
        if found != file.sha256:
            partial.unlink()
            raise CorruptObjectError(
                f"{self.uri(key)}: expected content {file.sha256}, found {found}. "
                "The object was changed or damaged after it was published."
            )
        partial.replace(target)

    # Requests

    def _open(self, bucket: str, key: str) -> IO[bytes]:
        get = functools.partial(self._request, "get_object", bucket, key)
        return io.BufferedReader(_ObjectBytes(f"s3://{bucket}/{key}", get), _READ_BYTES)

    def _list(self, bucket: str, prefix: str) -> Iterator[Mapping[str, Any]]:
        token: dict[str, str] = {}
        while True:
            page = self._request("list_objects_v2", bucket, None, Prefix=prefix, **token)
            yield from page.get("Contents", ())
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _request(self, operation: str, bucket: str, key: str | None, **arguments: object) -> Any:
        target = f"s3://{bucket}/{key}" if key is not None else f"s3://{bucket}"
        if key is not None:
            arguments["Key"] = key
        try:
            return getattr(self._client, operation)(Bucket=bucket, **arguments)
        except ClientError as error:
            raise self._translated(error, operation, target) from error
        except BotoCoreError as error:
            raise ObjectStoreError(f"{operation} {target} failed: {error}{self._where()}") from error

    def _translated(self, error: ClientError, operation: str, target: str) -> ObjectStoreError:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status == 412:
            return PreconditionFailedError(
                f"{operation} {target}: the object is there already, or has changed meanwhile."
            )
        # Not 412: the other write may yet fail, or be a delete, so the object need not be there afterwards.
        if status == 409 and code == "ConditionalRequestConflict":
            return WriteConflictError(
                f"{operation} {target}: another write or delete of this object was still under way after "
                f"{CONFLICT_TRIES} tries. Try again{self._where()}"
            )
        if status == 404:
            what = "bucket" if code == "NoSuchBucket" or operation == "head_bucket" else "object"
            return ObjectNotFoundError(f"expected {what} {target}, found nothing{self._where()}")
        if status == 403:
            return ObjectStoreError(
                f"{operation} {target} was refused ({code}). Check TOOLFORMER_S3_ACCESS_KEY_ID and "
                f"TOOLFORMER_S3_SECRET_ACCESS_KEY{self._where()}"
            )
        return ObjectStoreError(f"{operation} {target} failed: {code}: {error}{self._where()}")

    def _where(self) -> str:
        endpoint = self._settings.s3_endpoint_url or "AWS"
        return f" (TOOLFORMER_S3_ENDPOINT_URL={endpoint}, TOOLFORMER_S3_BUCKET={self.bucket})"


class _ObjectBytes(io.RawIOBase):
    """The bytes of an object. Where the connection breaks, it is opened again at the same place of the same object.

    Reading raises:
        ObjectStoreError: it broke again and again, or another object was written there meanwhile.
        CorruptObjectError: the bytes are not those whose checksum S3 sent.
    """

    def __init__(self, uri: str, get: Callable[..., Any]) -> None:
        answer = get()
        self._uri = uri
        self._get = functools.partial(get, IfMatch=answer["ETag"])
        self._body = answer["Body"]
        self._offset = 0
        self._ended = False

    def readable(self) -> bool:
        return True

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(BrokenConnectionError),
        stop=tenacity.stop_after_attempt(READ_TRIES),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=10),
        reraise=True,
    )
    def readinto(self, buffer: Any, /) -> int:
        if self._ended:
            return 0
        try:
            if self._body is None:
                self._body = self._get(Range=f"bytes={self._offset}-")["Body"]
            # botocore's body checks length and checksum. `with body as stream` would not: it returns urllib3's response.
            count: int = self._body.readinto(buffer)
        except FlexibleChecksumError as error:
            raise CorruptObjectError(f"{self._uri}: {error}. The object was damaged after it was written.") from error
        except (BotoCoreError, OSError) as error:
            self._body = None
            raise BrokenConnectionError(
                f"reading {self._uri} broke off at byte {self._offset}: {error}. Try again."
            ) from error
        self._offset += count
        self._ended = count == 0
        return count

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
        super().close()
