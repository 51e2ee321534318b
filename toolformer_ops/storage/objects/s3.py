"""Objects on S3 through boto3.

They are written only if absent or whole, read again if a connection breaks, and listed by address. boto3
repeats requests that are not answered, sends large files in parts, and compares checksums. Here is what it
does not do: a write that met another one (409) is tried again, a read whose connection broke continues at
that byte, and every error of boto3 becomes one of ours, with what was asked, where, and the remedy. Does not
know what the objects are for: `publication.py` does.
"""

import base64
import contextlib
import functools
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import boto3
import tenacity
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from s3transfer.manager import TransferConfig, TransferManager

from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    BrokenConnectionError,
    BucketNotFoundError,
    ConfigurationError,
    CorpusError,
    CorruptObjectError,
    ObjectNotFoundError,
    ObjectStoreError,
    ObjectStoreUnreachableError,
    PreconditionFailedError,
    ToolformerError,
    WriteConflictError,
)
from toolformer_ops.storage.machine.shared_files import file_sha256

PART_BYTES = 16 * 2**20
"""Files above this size are sent in parts of it, and larger ones above 156 GiB, since S3 allows at most
10,000."""
PARTS_AT_ONCE = 8
"""Parts that are sent or read at the same time."""
READ_TRIES = 4
"""Tries of one read whose connection breaks."""
CONFLICT_TRIES = 8
"""Tries of a conditional write while the store answers 409 (ConditionalRequestConflict): about 20 seconds in
all."""
READ_BYTES = 2**20
"""Bytes of an object that are read or copied at a time."""
_REMEDY = "S3 cannot serve now: see its log (`toolformer-ops logs object-store`) and disk, and try again. What is written stays."
_WAIT = tenacity.wait_random_exponential(multiplier=0.5, max=10)
_ask_again = tenacity.retry(
    retry=tenacity.retry_if_exception_type(WriteConflictError),
    stop=tenacity.stop_after_attempt(CONFLICT_TRIES),
    wait=_WAIT,
    reraise=True,
)
_read_again = tenacity.retry(
    retry=tenacity.retry_if_exception_type(BrokenConnectionError),
    stop=tenacity.stop_after_attempt(READ_TRIES),
    wait=_WAIT,
    reraise=True,
)


class ListedFile(NamedTuple):
    """A file as a listing shows it; on a disk, its address alone."""

    uri: str
    size: int | None = None
    """Bytes."""
    etag: str | None = None
    """What S3 calls the content: another ETag may be another content, the same ETag is the same."""
    modified: datetime | None = None
    """When S3 took it."""


class ObjectHead(NamedTuple):
    """What S3 says of an object without sending it."""

    size: int
    """Bytes."""
    sha256: str | None
    """The hash that was stored with it; None if none was."""


class Objects:
    """The objects of the bucket `settings.s3_bucket`, and reading from any bucket by address.

    Every method raises `ObjectNotFoundError` if the object is not there, `BucketNotFoundError` if its bucket
    is not, `CorruptObjectError` if the bytes are whole and not those that were written, `ConfigurationError`
    if an address is not one of S3 or the login is refused, and `ObjectStoreError` if S3 refuses or, as an
    `ObjectStoreUnreachableError`, does not answer.
    """

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
        # boto3's transfer manager has no argument for it. Only `put_if_absent` sends files in parts.
        self._client.meta.events.register(
            "before-parameter-build.s3.CompleteMultipartUpload",
            lambda params, **_: params.update(IfNoneMatch="*"),
        )

    def uri(self, key: str) -> str:
        """The s3:// address of a key of this bucket."""
        return f"s3://{self.bucket}/{key}"

    def key_of(self, uri: str) -> str:
        """The key of an s3:// address in this bucket; raises `ConfigurationError` if it is in another one."""
        key = uri.removeprefix(self.uri(""))
        if key == uri:
            raise ConfigurationError(
                f"expected an address in {self.uri('')} (TOOLFORMER_S3_BUCKET), found {uri}."
            )
        return key

    # Buckets

    def require_bucket(self) -> None:
        """Fail unless the bucket exists.

        Some stores make a missing bucket at the first put, so that a wrong name goes unnoticed.
        """
        self._request("head_bucket", self.bucket)

    # Single objects

    @_ask_again
    def put_if_absent(self, key: str, content: bytes | Path) -> bool:
        """Write an object unless one of that key exists; whether this call wrote it.

        A file above `PART_BYTES` goes in parts, and appears whole or not at all. Asks again, a few times, if
        the store says that another write of the same key is under way.

        Raises:
            WriteConflictError: the other write was still under way at the last try; this object may be
            missing.
        """
        if isinstance(content, bytes) or content.stat().st_size <= PART_BYTES:
            try:
                self._put(
                    key, content if isinstance(content, bytes) else content.read_bytes(), IfNoneMatch="*"
                )
            except PreconditionFailedError:
                return False
            return True
        if self.exists(key):
            return False
        parts = TransferConfig(
            multipart_threshold=PART_BYTES,
            multipart_chunksize=PART_BYTES,
            max_request_concurrency=PARTS_AT_ONCE,
        )
        stored = {"Metadata": {"sha256": file_sha256(content)}}
        try:
            with self._errors("upload", self.bucket, key), TransferManager(self._client, parts) as transfers:
                transfers.upload(
                    str(content), self.bucket, key, stored
                ).result()  # an upload that fails leaves no parts
        except PreconditionFailedError:
            return False
        except ObjectNotFoundError:  # the answer was lost, and boto3 asked again: the upload is complete
            if not self.exists(key):
                raise
        return True

    @_ask_again
    def put(self, key: str, content: bytes, content_type: str) -> None:
        """Write a small object, over the object of that key.

        It is for what is made anew from its sources, such as a page.
        """
        self._put(key, content, ContentType=content_type)

    def _put(self, key: str, body: bytes, **arguments: str) -> None:
        stored = {"sha256": hashlib.sha256(body).hexdigest()}
        self._request(
            "put_object",
            self.bucket,
            key,
            Body=body,
            Metadata=stored,
            ChecksumAlgorithm="SHA256",
            **arguments,
        )

    def get(self, key: str) -> bytes:
        """The content of a small object, compared with the hash that was stored with it."""
        with self._open(self.bucket, key) as body:
            return body.read()

    def sha256(self, key: str, copy: Path | None = None) -> str:
        """SHA-256 of all bytes of an object, in hex.

        They are written to the file `copy`, too, if it is given.
        """
        read = self._stream(self.bucket, key)
        with io.BufferedReader(read, READ_BYTES) as body, (copy or Path(os.devnull)).open("wb") as out:
            shutil.copyfileobj(body, out, READ_BYTES)
        return read.digest.hexdigest()

    def read_part(self, key: str, start: int, size: int) -> bytearray:
        """`size` bytes of an object, at least one, from the offset `start`.

        Not compared with a hash: S3 keeps none of a part.
        """
        part, read = bytearray(size), 0
        with self._stream(self.bucket, key, start, start + size) as body:
            while count := body.readinto(memoryview(part)[read : read + READ_BYTES]):
                read += count
        return part

    def exists(self, key: str) -> bool:
        """Whether an object of that key exists."""
        return self.head(key) is not None

    def head(self, key: str) -> ObjectHead | None:
        """What S3 says of an object without sending it; None if it is not there."""
        try:
            answer = self._request("head_object", self.bucket, key, ChecksumMode="ENABLED")
        except ObjectNotFoundError:
            return None
        checksum = answer.get(
            "ChecksumSHA256", "-"
        )  # S3's own; of an object in parts a hash of hashes, with a "-"
        stored = answer.get("Metadata", {}).get("sha256")
        sha256 = stored if "-" in checksum else base64.b64decode(checksum).hex()
        return ObjectHead(answer["ContentLength"], sha256)

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that start with `prefix`, in the order of their bytes."""
        return (self.key_of(listed.uri) for listed in self.list_objects(prefix))

    def list_objects(self, prefix: str) -> Iterator[ListedFile]:
        """List as `list` does, with what the listing says of each object."""
        return self._list(self.bucket, prefix)

    def delete(self, key: str) -> None:
        """Remove one object; a missing object is no error."""
        self._request("delete_object", self.bucket, key)

    # Addresses: s3://bucket/key

    def open_uri(self, uri: str) -> IO[bytes]:
        """A stream of the bytes at an address, without reading it whole into memory."""
        return self._open(*self._place(uri))

    def list_uri(self, uri: str) -> Sequence[str]:
        """List as `list_files` does, the addresses alone."""
        return [listed.uri for listed in self.list_files(uri)]

    def list_files(self, uri: str) -> Sequence[ListedFile]:
        """The files at an address: itself if it is a file, all below it if it is a folder; sorted.

        No file is a `CorpusError`.
        """
        files = list(self._list_below(uri))
        if not files:
            raise CorpusError(f"expected files at {uri}, found none{self._where()}")
        return files

    def is_there(self, uri: str) -> bool:
        """Whether a file is at an s3:// address or below it; False if the bucket does not exist.

        Lists no more than one file.
        """
        try:
            return next(self._list_below(uri), None) is not None
        except BucketNotFoundError:
            return False

    def _list_below(self, uri: str) -> Iterator[ListedFile]:
        """The object at an address, and those in the folder of this name."""
        bucket, key = self._place(uri)
        uri = f"s3://{bucket}/{key}"
        below = uri if not key or key.endswith("/") else f"{uri}/"
        for listed in self._list(bucket, key):
            if (listed.uri == uri or listed.uri.startswith(below)) and not listed.uri.endswith("/"):
                yield listed

    def _place(self, uri: str) -> tuple[str, str]:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        if not uri.startswith("s3://") or not bucket:
            raise ConfigurationError(f"expected s3://bucket/key, found {uri!r}")
        return bucket, key

    # Requests

    def _open(self, bucket: str, key: str) -> io.BufferedReader:
        return io.BufferedReader(self._stream(bucket, key), READ_BYTES)

    def _stream(self, bucket: str, key: str, start: int = 0, end: int | None = None) -> "_ObjectBytes":
        request = functools.partial(self._request, bucket=bucket, key=key)
        return _ObjectBytes(request, f"s3://{bucket}/{key}", start, end)

    def _list(self, bucket: str, prefix: str) -> Iterator[ListedFile]:
        with self._errors("list_objects_v2", bucket):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
                for item in page.get("Contents", ()):
                    uri = f"s3://{bucket}/{item['Key']}"
                    yield ListedFile(uri, item.get("Size"), item.get("ETag"), item.get("LastModified"))

    def _request(self, operation: str, bucket: str, key: str | None = None, **arguments: object) -> Any:
        if key is not None:
            arguments["Key"] = key
        with self._errors(operation, bucket, key):
            return getattr(self._client, operation)(Bucket=bucket, **arguments)

    @contextlib.contextmanager
    def _errors(self, operation: str, bucket: str, key: str | None = None) -> Iterator[None]:
        """Errors of boto3 in the block become ours."""
        target = f"s3://{bucket}/{key}" if key is not None else f"s3://{bucket}"
        try:
            yield
        except ClientError as error:
            raise self._translated(error, operation, target) from error
        except (HTTPClientError, NoConnectionError) as error:  # no answer, or not a whole one
            raise ObjectStoreUnreachableError(
                f"{operation} {target} failed: {error}{self._where()}. {_REMEDY}"
            ) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigurationError(
                f"{operation} {target} was not sent: {error}. Set TOOLFORMER_S3_ACCESS_KEY_ID and "
                f"TOOLFORMER_S3_SECRET_ACCESS_KEY{self._where()}"
            ) from error
        except BotoCoreError as error:
            raise ObjectStoreError(f"{operation} {target} failed: {error}{self._where()}") from error

    def _translated(self, error: ClientError, operation: str, target: str) -> ToolformerError:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status == 412:
            return PreconditionFailedError(
                f"{operation} {target}: the object exists already, or has changed meanwhile."
            )
        # Not 412: the other write may yet fail, or be a delete, so the object need not be there afterwards.
        # Stores name it ConditionalRequestConflict, OperationAborted and otherwise.
        if status == 409:
            return WriteConflictError(
                f"{operation} {target}: another write or delete of this object was still under way after "
                f"{CONFLICT_TRIES} tries. Try again{self._where()}"
            )
        if status == 404:
            is_bucket = code == "NoSuchBucket" or operation == "head_bucket"
            missing, what = (BucketNotFoundError, "bucket") if is_bucket else (ObjectNotFoundError, "object")
            return missing(f"expected {what} {target}, found nothing{self._where()}")
        if status == 416:  # a range after the end
            return CorruptObjectError(
                f"{operation} {target}: expected a longer object. It was changed after it was "
                f"written{self._where()}"
            )
        if status == 403:
            return ConfigurationError(
                f"{operation} {target} was refused ({code}). Check TOOLFORMER_S3_ACCESS_KEY_ID and "
                f"TOOLFORMER_S3_SECRET_ACCESS_KEY{self._where()}"
            )
        is_away = status in (408, 429) or (status or 500) >= 500
        kind, remedy = (ObjectStoreUnreachableError, f". {_REMEDY}") if is_away else (ObjectStoreError, "")
        return kind(f"{operation} {target} failed: {code}: {error}{self._where()}{remedy}")

    def _where(self) -> str:
        endpoint = self._settings.s3_endpoint_url or "AWS"
        return f" (TOOLFORMER_S3_ENDPOINT_URL={endpoint}, TOOLFORMER_S3_BUCKET={self.bucket})"


class _ObjectBytes(io.RawIOBase):
    """The bytes of an object, or those from `start` to before `end`.

    If the connection breaks, it is opened again at the same place of the same object. A body that ends early
    is a broken connection too, even if the answer announced no length or a shorter one, as behind a proxy. So
    at the end HEAD says how long the object is, unless the bytes have the hash that was stored with them. If
    the connection breaks again and again, `BrokenConnectionError` is raised; `CorruptObjectError` if the
    object ends before `end`, and another `ObjectStoreError` if it was replaced meanwhile.
    """

    def __init__(self, request: Callable[..., Any], uri: str, start: int = 0, end: int | None = None) -> None:
        self._request = request
        self._uri = uri
        self._offset = start
        self._end = end
        self._same: dict[str, str] = {}
        self._ended = False
        self.digest = hashlib.sha256()
        """The digest of the bytes that were read."""
        answer = self._get()
        self._same = {"IfMatch": answer["ETag"]}
        self._sha256 = answer.get("Metadata", {}).get("sha256") if end is None else None

    def _get(self) -> Any:
        """Ask for what is left to read."""
        last = "" if self._end is None else self._end - 1
        is_part = self._offset or self._end is not None
        answer = self._request(
            "get_object", **self._same, **({"Range": f"bytes={self._offset}-{last}"} if is_part else {})
        )
        self._body = answer["Body"]
        return answer

    def readable(self) -> bool:
        return True

    @_read_again
    def readinto(self, buffer: Any, /) -> int:
        if self._ended:
            return 0
        damage = None
        try:
            if self._body is None:
                self._get()
            # botocore's body checks length and checksum. `with body as stream` would not: it returns
            # urllib3's response.
            count: int = self._body.readinto(buffer)
        except FlexibleChecksumError as error:  # raised at the end of the body alone
            count, damage = 0, str(error)
        except (BotoCoreError, OSError) as error:
            raise self._broken(error) from error
        self.digest.update(memoryview(buffer)[:count])
        self._offset += count
        if count > 0 or len(buffer) == 0:
            return count
        # The end: are the bytes whole, and those that were written?
        if damage is None and self._sha256 not in (None, content_sha256 := self.digest.hexdigest()):
            damage = f"expected content {self._sha256}, found {content_sha256}"
        if damage or self._sha256 is None:
            size = self._request("head_object", **self._same)["ContentLength"]
            if self._offset < (self._end or size):
                if size >= (self._end or 0):
                    raise self._broken("the body ended early")
                damage = f"expected at least {self._end} bytes, found {size}"
        if damage:
            raise CorruptObjectError(
                f"{self._uri}: {damage}. The object was changed or damaged after it was written."
            )
        self._ended = True
        return 0

    def _broken(self, reason: object) -> BrokenConnectionError:
        self._body = None  # so that the next try opens it again
        return BrokenConnectionError(
            f"reading {self._uri} broke off at byte {self._offset}: {reason}. Try again."
        )

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
        super().close()
