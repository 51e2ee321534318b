"""The object store against a real S3 server: conditional puts, publications, addresses."""

import base64
import hashlib
import threading
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest
import tenacity
from botocore.exceptions import ClientError
from pydantic import SecretStr

from tests.servers import flip_a_byte
from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    EXIT_INFRASTRUCTURE,
    AlreadyPublishedError,
    BrokenConnectionError,
    BucketNotFoundError,
    ConfigurationError,
    CorruptObjectError,
    ObjectNotFoundError,
    ObjectStoreAccessError,
    ObjectStoreError,
    ObjectStoreUnreachableError,
    WriteConflictError,
    exit_code,
)
from toolformer_ops.storage import objects
from toolformer_ops.storage.object_store import ObjectStore
from toolformer_ops.storage.objects import CONFLICT_TRIES, READ_TRIES
from toolformer_ops.storage.publication import Manifest, PublishedFile


class StubS3(ThreadingHTTPServer):
    """An S3 of one bucket in memory that fails as it is told to: which a real server cannot be made to do."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _StubHandler)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        """Parts of uploads that are under way, by upload and number."""
        self.conflicts: Counter[str] = Counter()
        """How many of the next conditional puts of a key are answered with 409; by the end of the key."""
        self.cuts: Counter[str] = Counter()
        """How many of the next answers with a key's content end after `cut_bytes`, with the connection; by the end of the key."""
        self.cut_bytes = 2
        self.announces: Literal["all", "less", "nothing"] = "all"
        """The length that a cut answer announces: of the whole content, of what it sends, or none."""
        self.metadata: dict[str, str] = {}
        """The hash that was stored with an object."""
        self.conflict_code = "ConditionalRequestConflict"
        self.checksums: dict[str, str] = {}
        """CRC-32 that is sent with an object's content, in base64."""

    def fails(self, failures: Counter[str], key: str) -> bool:
        """Whether this request is to fail; takes one off."""
        end = next((end for end, left in failures.items() if left > 0 and key.endswith(end)), None)
        failures.subtract([end] if end else [])
        return end is not None


class _StubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StubS3

    def do_HEAD(self) -> None:
        is_bucket = self.path.strip("/") == "bucket"
        content = self.server.objects.get(self.path, b"")
        self._answer(200 if is_bucket or self.path in self.server.objects else 404, content, 0, **self._stored())

    def do_GET(self) -> None:
        content = self.server.objects.get(self.path)
        if content is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        if self.headers.get("If-Match", etag) != etag:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start = int(first)
        content = content[: int(last) + 1] if last else content
        headers = {"ETag": etag} | self._stored()
        if not start and (checksum := self.server.checksums.get(self.path)):  # S3 sends none for a part of the content
            headers["x-amz-checksum-crc32"] = checksum
        cut = self.server.cut_bytes if self.server.fails(self.server.cuts, self.path) else None
        self._answer(206 if start else 200, content[start:], cut, **headers)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if "partNumber" in query:
            self.server.parts.setdefault(query["uploadId"][0], {})[int(query["partNumber"][0])] = body
            self._answer(200, ETag='"part"')
        else:
            self._write(path, body, b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "uploads" in query:
            upload = f"<UploadId>{uuid.uuid4().hex}</UploadId>"
            self._store(path)
            self._answer(200, f"<InitiateMultipartUploadResult>{upload}</InitiateMultipartUploadResult>".encode())
        else:
            parts = self.server.parts.pop(query["uploadId"][0])
            whole = b"".join(parts[number] for number in sorted(parts))
            self._write(path, whole, b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")

    def do_DELETE(self) -> None:
        self._answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")

    def log_message(self, *_: object) -> None:
        """Not into the test's output."""

    def _write(self, path: str, body: bytes, answer: bytes) -> None:
        if self.server.fails(self.server.conflicts, path):
            self._answer(409, f"<Error><Code>{self.server.conflict_code}</Code></Error>".encode())
        elif path in self.server.objects:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self.server.objects[path] = body
            self._store(path)
            self._answer(200, answer)

    def _store(self, path: str) -> None:
        if sha256 := self.headers.get("x-amz-meta-sha256"):
            self.server.metadata[path] = sha256

    def _stored(self) -> dict[str, str]:
        return {"x-amz-meta-sha256": sha256} if (sha256 := self.server.metadata.get(self.path)) else {}

    def _answer(self, status: int, body: bytes = b"", cut: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        announced = {"all": len(body), "less": len(body[:cut]), "nothing": None}[
            self.server.announces if cut else "all"
        ]
        if announced is not None:
            self.send_header("Content-Length", str(announced))
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = cut is not None


@pytest.fixture
def stub() -> Iterator[StubS3]:
    with StubS3() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def stub_store(stub: StubS3, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The store at `stub`, which tries again at once."""
    for retried in (
        ObjectStore.put_if_absent, ObjectStore.put, ObjectStore.read_part, objects._ObjectBytes.readinto,
    ):  # fmt: skip
        monkeypatch.setattr(retried.retry, "wait", tenacity.wait_none())  # type: ignore[attr-defined]
    return ObjectStore(
        Settings(
            _env_file=None,  # type: ignore[call-arg]
            s3_endpoint_url=f"http://127.0.0.1:{stub.server_port}",
            s3_access_key_id=SecretStr("key"),
            s3_secret_access_key=SecretStr("secret"),
            s3_bucket="bucket",
        )
    )


@pytest.fixture
def store(s3_settings: Settings) -> ObjectStore:
    store = ObjectStore(s3_settings)
    store.ensure_bucket()
    return store


@pytest.fixture
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"tests/{request.node.name}-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]}"


def _files(folder: Path, **contents: bytes) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


def test_second_conditional_put_loses_and_changes_nothing(store: ObjectStore, prefix: str) -> None:
    assert store.put_if_absent(f"{prefix}/a", b"first") is True
    assert store.put_if_absent(f"{prefix}/a", b"second") is False
    assert store.get(f"{prefix}/a") == store.read_part(f"{prefix}/a", 0, 5) == b"first"
    assert store.read_part(f"{prefix}/a", 2, 3) == b"rst"
    with pytest.raises(CorruptObjectError, match="expected at least 6 bytes, found 5"):
        store.read_part(f"{prefix}/a", 2, 4)


def test_of_eight_writers_at_once_exactly_one_wins(store: ObjectStore, s3_settings: Settings, prefix: str) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def write(number: int) -> None:
        own = ObjectStore(s3_settings)
        start.wait()
        if own.put_if_absent(f"{prefix}/race", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get(f"{prefix}/race") == b"%d" % won[0]


def test_large_file_goes_in_parts_and_a_second_one_is_refused(
    store: ObjectStore, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 5 * 2**20)
    big = tmp_path / "big"
    content = bytes(range(256)) * (48 * 1024) + b"tail"  # 12 MiB and a tail: parts of 5, 5 and 2 MiB
    big.write_bytes(content)
    assert store.put_if_absent(f"{prefix}/big", big) is True
    assert store.get(f"{prefix}/big") == content
    big.write_bytes(b"x" * len(content))
    assert store.put_if_absent(f"{prefix}/big", big) is False
    assert store.get(f"{prefix}/big") == content


def test_a_write_that_meets_another_one_is_tried_again_until_it_is_written(
    stub: StubS3, stub_store: ObjectStore, tmp_path: Path
) -> None:
    stub.conflicts.update({"/one": CONFLICT_TRIES - 1, "manifest.json": 2})
    manifest = stub_store.publish("release", _files(tmp_path / "in", one=b"1", two=b"2"))
    assert stub.conflicts.total() == 0
    assert stub_store.fetch("release", tmp_path / "out") == manifest
    assert (tmp_path / "out" / "one").read_bytes() == b"1"


def test_a_write_that_meets_another_one_again_and_again_publishes_nothing(
    stub: StubS3, stub_store: ObjectStore, tmp_path: Path
) -> None:
    stub.conflicts["/one"] = CONFLICT_TRIES
    with pytest.raises(WriteConflictError, match=r"another write or delete .* after 8 tries"):
        stub_store.publish("release", _files(tmp_path, one=b"1"))
    assert stub_store.read_manifest("release") is None
    stub_store.publish("release", _files(tmp_path, one=b"1"))  # as a retry of the task does
    assert stub_store.fetch("release", tmp_path / "out").files[0].name == "one"


@pytest.mark.parametrize("code", ["OperationAborted", "Conflict"])
def test_a_conflict_of_any_name_is_not_taken_for_an_object_that_is_there(
    stub: StubS3, stub_store: ObjectStore, tmp_path: Path, code: str
) -> None:
    stub.conflict_code = code
    stub.conflicts.update({"/one": 1, "page": 1})
    manifest = stub_store.publish("release", _files(tmp_path / "in", one=b"1"))
    assert stub_store.get(manifest.key_of(manifest.files[0])) == b"1"
    stub_store.put("page", b"<html>", "text/html")
    assert stub_store.get("page") == b"<html>"


def test_an_upload_in_parts_that_meets_another_write_starts_anew(
    stub: StubS3, stub_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big").write_bytes(b"abc")
    monkeypatch.setattr(objects, "PART_BYTES", 2)
    stub.conflicts["/big"] = 2
    assert stub_store.put_if_absent("big", tmp_path / "big") is True
    assert stub_store.get("big") == b"abc"
    assert stub_store.put_if_absent("big", tmp_path / "big") is False


def test_an_upload_in_parts_begins_where_nothing_is_and_leaves_no_part_behind(
    stub_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big").write_bytes(b"abcde")
    monkeypatch.setattr(objects, "PART_BYTES", 2)
    asked: list[str] = []
    request = stub_store._request
    lost_answer = False

    def watched(operation: str, *target: Any, **arguments: Any) -> Any:
        asked.append(operation.removesuffix("_multipart_upload"))
        answer = request(operation, *target, **arguments)
        if (
            lost_answer and operation == "complete_multipart_upload"
        ):  # boto3 asks again, and is told that there is no upload
            raise ObjectNotFoundError("no such upload")
        return answer

    monkeypatch.setattr(stub_store, "_request", watched)
    lost_answer = True
    assert stub_store.put_if_absent("big", tmp_path / "big") is True
    assert stub_store.get("big") == b"abcde"
    lost_answer = False
    asked.clear()
    assert stub_store.put_if_absent("big", tmp_path / "big") is False
    assert asked == ["head_object"]
    # Another process writes the object while the parts are sent.
    monkeypatch.setattr(stub_store, "exists", lambda key: False)
    asked.clear()
    assert stub_store.put_if_absent("big", tmp_path / "big") is False
    assert asked == ["create", *["upload_part"] * 3, "complete", "abort"]


def test_a_listing_of_many_pages_has_the_files_below_the_address_alone(
    stub_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {
        None: {"Contents": [{"Key": "corpus"}, {"Key": "corpus/"}, {"Key": "corpus/a"}], "NextContinuationToken": "2"},
        "2": {"Contents": [{"Key": "corpus/b/"}, {"Key": "corpus/b/c"}], "NextContinuationToken": "3"},
        "3": {"Contents": [{"Key": "corpus2/d"}]},
    }

    def page(*, Bucket: str, Prefix: str, ContinuationToken: str | None = None) -> dict[str, Any]:  # noqa: N803
        assert (Bucket, Prefix) == ("bucket", "corpus")
        return {"IsTruncated": ContinuationToken != "3", **pages[ContinuationToken]}

    monkeypatch.setattr(stub_store._client, "list_objects_v2", page)
    below = ["s3://bucket/corpus", "s3://bucket/corpus/a", "s3://bucket/corpus/b/c"]
    assert stub_store.list_uri("s3://bucket/corpus") == below
    assert list(stub_store.list("corpus")) == [item["Key"] for one in pages.values() for item in one["Contents"]]


def test_the_checksum_that_s3_made_counts_more_than_the_hash_that_a_writer_stored(
    stub_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = stub_store.upload("release", _files(tmp_path, one=b"1"))
    stored = {"sha256": manifest.files[0].sha256}

    def told(checksum: str | None, metadata: dict[str, str]) -> None:
        of_s3 = {} if checksum is None else {"ChecksumSHA256": checksum}
        answer = {"ContentLength": 1, "Metadata": metadata, **of_s3}
        monkeypatch.setattr(stub_store._client, "head_object", lambda **_: answer)

    right, other = (base64.b64encode(hashlib.sha256(content).digest()).decode() for content in (b"1", b"2"))
    for checksum, metadata in ((right, {"sha256": "0" * 64}), (f"{other}-2", stored), (None, stored)):
        told(checksum, metadata)
        stub_store.require_whole(manifest, manifest.files)
    for checksum, metadata in ((other, stored), (f"{right}-2", {"sha256": "0" * 64})):
        told(checksum, metadata)
        with pytest.raises(CorruptObjectError, match="found 1 missing or changed"):
            stub_store.require_whole(manifest, manifest.files)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "InvalidRequest", ObjectStoreError),
        (403, "AccessDenied", ObjectStoreAccessError),
        (404, "NoSuchKey", ObjectNotFoundError),
        (404, "NoSuchBucket", BucketNotFoundError),
        (408, "RequestTimeout", ObjectStoreUnreachableError),
        (416, "InvalidRange", CorruptObjectError),
        (429, "SlowDown", ObjectStoreUnreachableError),
        (500, "InternalError", ObjectStoreUnreachableError),
        (503, "SlowDown", ObjectStoreUnreachableError),
    ],
)
def test_what_s3_answers_is_the_error_that_says_what_to_do(
    stub_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, status: int, code: str, error: type[Exception]
) -> None:
    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")  # type: ignore[typeddict-item]

    monkeypatch.setattr(stub_store._client, "get_object", refuse)
    with pytest.raises(ObjectStoreError) as caught:
        stub_store.get("key")
    assert type(caught.value) is error


def test_a_connection_that_breaks_is_opened_again_at_the_same_byte(
    stub: StubS3, stub_store: ObjectStore, tmp_path: Path
) -> None:
    content = b"0123456789"
    manifest = stub_store.publish("release", _files(tmp_path / "in", one=content))
    stub.cuts.update({"/one": 3, "manifest.json": 1})
    stub_store.fetch("release", tmp_path / "out")  # 01, 23, 45, and the rest
    assert stub.cuts.total() == 0
    assert (tmp_path / "out" / "one").read_bytes() == content
    stub.cuts["/one"] = 3
    assert stub_store.get(manifest.key_of(manifest.files[0])) == content


def test_a_connection_that_breaks_each_time_is_an_error_of_the_network_and_not_a_damaged_file(
    stub: StubS3, stub_store: ObjectStore, tmp_path: Path
) -> None:
    manifest = stub_store.publish("release", _files(tmp_path / "in", one=b"0123456789" * 100))
    key = manifest.key_of(manifest.files[0])
    stub.cut_bytes = 0
    for read in (
        lambda: stub_store.get(key),
        lambda: stub_store.fetch("release", tmp_path / "out"),
        lambda: stub_store.open_uri(stub_store.uri(key)).read(),
    ):
        stub.cuts["/one"] = READ_TRIES
        with pytest.raises(
            BrokenConnectionError, match=r"reading s3://bucket/release/.*/one broke off at byte \d+"
        ) as caught:
            read()
        assert exit_code(caught.value) == EXIT_INFRASTRUCTURE  # which Airflow tries again, later and more often
    assert not (tmp_path / "out" / "one").exists()


@pytest.mark.parametrize("announces", ["less", "nothing"])
@pytest.mark.parametrize("checksum", [True, False])
def test_a_body_that_a_proxy_cuts_short_is_read_on_and_not_called_damaged(
    stub: StubS3, stub_store: ObjectStore, tmp_path: Path, announces: Literal["less", "nothing"], checksum: bool
) -> None:
    content = b"0123456789" * 100
    manifest = stub_store.publish("release", _files(tmp_path / "in", one=content))
    key = manifest.key_of(manifest.files[0])
    stub.objects["/bucket/foreign"] = content  # without a hash
    if checksum:
        crc = base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()
        stub.checksums.update({f"/bucket/{key}": crc, "/bucket/foreign": crc})
    stub.announces = announces
    stub.cuts.update({"/one": 3, "manifest.json": 1})
    stub_store.fetch("release", tmp_path / "out")
    assert stub.cuts.total() == 0
    assert (tmp_path / "out" / "one").read_bytes() == content
    for read in (key, "foreign"):
        stub.cuts[f"/{read}"] = 2
        assert stub_store.get(read) == content
        assert stub.cuts.total() == 0


def test_an_object_that_changes_while_it_is_read_is_not_mixed(stub: StubS3, stub_store: ObjectStore) -> None:
    stub_store.put_if_absent("key", b"first content")
    stub.cuts["/key"] = 1
    stub.cut_bytes = 4
    stream = stub_store.open_uri("s3://bucket/key")
    stub.objects["/bucket/key"] = b"other content"
    with pytest.raises(ObjectStoreError, match="has changed meanwhile"):
        stream.read()


def test_content_that_does_not_fit_the_checksum_of_s3_is_refused(stub: StubS3, stub_store: ObjectStore) -> None:
    stub_store.put_if_absent("key", b"content")
    stub.checksums["/bucket/key"] = base64.b64encode(zlib.crc32(b"content").to_bytes(4, "big")).decode()
    assert stub_store.get("key") == b"content"
    stub.objects["/bucket/key"] = b"c0ntent"
    with pytest.raises(CorruptObjectError, match="damaged"):
        stub_store.get("key")


def test_bytes_that_are_whole_and_not_those_whose_hash_was_stored_are_refused(
    stub: StubS3, stub_store: ObjectStore, tmp_path: Path
) -> None:
    stub_store.put_if_absent("key", b"content")
    stub.objects["/bucket/key"] = b"c0ntent"
    with pytest.raises(CorruptObjectError, match="changed or damaged"):
        stub_store.get("key")
    manifest = stub_store.publish("release", _files(tmp_path / "in", one=b"0123456789"))
    stub.objects[f"/bucket/{manifest.key_of(manifest.files[0])}"] = (
        b"01234"  # the object itself is short: no cut connection
    )
    with pytest.raises(CorruptObjectError, match="changed or damaged"):
        stub_store.fetch("release", tmp_path / "out")


def test_without_a_manifest_nothing_is_published(store: ObjectStore, prefix: str, tmp_path: Path) -> None:
    manifest = store.upload(prefix, _files(tmp_path, data=b"half of a publication"))
    assert store.exists(manifest.key_of(manifest.files[0]))
    assert store.read_manifest(prefix) is None
    with pytest.raises(ObjectNotFoundError, match=r"expected a publication at s3://.*TOOLFORMER_S3_BUCKET"):
        store.fetch(prefix, tmp_path / "copy")


def test_published_files_come_back_with_their_bytes(store: ObjectStore, prefix: str, tmp_path: Path) -> None:
    manifest = store.publish(prefix, _files(tmp_path / "in", one=b"1", two=b"22"))
    assert [(file.name, file.size) for file in manifest.files] == [("one", 1), ("two", 2)]
    assert manifest.files[0].sha256 == hashlib.sha256(b"1").hexdigest()
    assert store.read_manifest(prefix) == manifest
    assert store.fetch(prefix, tmp_path / "out") == manifest
    assert (tmp_path / "out" / "two").read_bytes() == b"22"
    assert hashlib.sha256(store.get(manifest.key)).hexdigest() == manifest.sha256


def test_publishing_the_same_twice_is_one_publication(store: ObjectStore, prefix: str, tmp_path: Path) -> None:
    first = store.publish(prefix, _files(tmp_path / "a", one=b"1"))
    keys = list(store.list(prefix))
    assert store.publish(prefix, _files(tmp_path / "b", one=b"1")) == first
    assert list(store.list(prefix)) == keys
    assert store.conclude(first) is False


def test_other_content_under_a_published_prefix_is_an_error(store: ObjectStore, prefix: str, tmp_path: Path) -> None:
    first = store.publish(prefix, _files(tmp_path / "a", one=b"1"))
    with pytest.raises(
        AlreadyPublishedError, match=f"found {first.content_sha256[:16]} .* A publication never changes"
    ):
        store.publish(prefix, _files(tmp_path / "b", one=b"other"))
    assert store.read_manifest(prefix) == first
    store.fetch(prefix, tmp_path / "out")
    assert (tmp_path / "out" / "one").read_bytes() == b"1"


def test_files_of_a_killed_writer_do_not_mix_with_those_of_the_next(
    store: ObjectStore, prefix: str, tmp_path: Path
) -> None:
    store.upload(prefix, _files(tmp_path / "killed", one=b"1", two=b"old"))
    store.publish(prefix, _files(tmp_path / "next", one=b"1", two=b"new"))
    store.fetch(prefix, tmp_path / "out")
    assert (tmp_path / "out" / "two").read_bytes() == b"new"


def test_a_publication_whose_file_is_lost_or_another_one_gets_no_manifest(
    store: ObjectStore, prefix: str, tmp_path: Path
) -> None:
    manifest = store.upload(prefix, _files(tmp_path, one=b"1", two=b"22", three=b"333"))
    one, three, two = (manifest.key_of(file) for file in manifest.files)
    store.delete(one)
    with pytest.raises(
        ObjectNotFoundError, match=r"found 1 missing or changed: one \(1 bytes, \w{64}\): found nothing"
    ):
        store.conclude(manifest)
    for key, other in ((two, b"2"), (three, b"xxx")):
        store.delete(key)
        store.put_if_absent(key, other)
    with pytest.raises(CorruptObjectError, match=r"three .*found content \w{64}; two .*: found 1 bytes"):
        store.conclude(manifest)
    assert store.read_manifest(prefix) is None
    assert store.lacking(manifest) == {
        manifest.files[0]: "nothing",
        manifest.files[1]: f"content {hashlib.sha256(b'xxx').hexdigest()}",
        manifest.files[2]: "1 bytes",
    }


def test_publishing_again_writes_what_is_lost_and_replaces_what_is_damaged(
    store: ObjectStore, prefix: str, tmp_path: Path
) -> None:
    files = _files(tmp_path / "in", one=b"1", two=b"22")
    manifest = store.publish(prefix, files)
    one, two = (manifest.key_of(file) for file in manifest.files)
    store.delete(one)
    store.delete(two)
    store.put_if_absent(two, b"xx")
    assert store.publish(prefix, files) == manifest
    assert store.lacking(manifest) == {}
    flip_a_byte(store, one)
    assert store.lacking(manifest).keys() == {manifest.files[0]}
    assert store.mend(manifest, files) == ()
    flip_a_byte(store, two)
    with pytest.raises(CorruptObjectError, match="1 missing or changed: two"):
        store.conclude(manifest)
    assert store.publish(prefix, files) == manifest
    store.fetch(prefix, tmp_path / "out")
    assert (tmp_path / "out" / "two").read_bytes() == b"22"


def test_part_of_an_object_is_asked_for_again_where_the_connection_breaks(
    stub: StubS3, stub_store: ObjectStore
) -> None:
    stub.objects["/bucket/key"] = b"0123456789"
    for stub.announces in ("all", "less", "nothing"):
        stub.cuts["/key"] = READ_TRIES - 1
        assert stub_store.read_part("key", 3, 4) == b"3456"
    stub.cuts["/key"] = READ_TRIES
    with pytest.raises(BrokenConnectionError, match="s3://bucket/key"):
        stub_store.read_part("key", 3, 4)
    with pytest.raises(BrokenConnectionError, match="expected 5 bytes from 8 on, found 2"):
        stub_store.read_part("key", 8, 5)


def test_a_publication_is_mended_with_its_very_bytes_alone(store: ObjectStore, prefix: str, tmp_path: Path) -> None:
    manifest = store.publish(prefix, _files(tmp_path / "in", one=b"1", two=b"22"))
    made_again = _files(tmp_path / "again", one=b"1", two=b"other")
    assert store.mend(manifest, made_again) == ()  # nothing is lost
    for file in manifest.files:
        store.delete(manifest.key_of(file))
    assert store.mend(manifest, made_again) == (manifest.files[1],)
    assert store.get(manifest.key_of(manifest.files[0])) == b"1"
    assert not store.exists(manifest.key_of(manifest.files[1]))


def test_an_object_without_a_stored_hash_is_read_to_be_compared(
    store: ObjectStore, prefix: str, tmp_path: Path
) -> None:
    manifest = store.upload(prefix, _files(tmp_path, one=b"1"))
    [key] = (manifest.key_of(file) for file in manifest.files)
    for content, lacking in ((b"1", 0), (b"2", 1)):  # copied by a program that drops metadata
        store._client.put_object(Bucket=store.bucket, Key=key, Body=content)
        assert len(store.lacking(manifest)) == lacking


def test_a_publication_that_was_replaced_is_not_the_registered_one(
    store: ObjectStore, prefix: str, tmp_path: Path
) -> None:
    registered = store.publish(prefix, _files(tmp_path / "in", one=b"1")).sha256
    assert store.fetch(prefix, tmp_path / "out", registered).sha256 == registered
    store.delete(f"{prefix}/manifest.json")
    store.publish(prefix, _files(tmp_path / "in", one=b"2"))
    with pytest.raises(CorruptObjectError, match=rf"that Postgres registered \({registered}\), found another one"):
        store.fetch(prefix, tmp_path / "other", registered)
    assert not (tmp_path / "other").exists()


def test_a_file_of_a_publication_is_read_by_its_name_and_checked(
    store: ObjectStore, prefix: str, tmp_path: Path
) -> None:
    manifest = store.publish(prefix, _files(tmp_path / "in", one=b"1"))
    assert store.read_file(manifest, "one") == b"1"
    assert store.read_file(manifest, "two") is None
    store.delete(manifest.key_of(manifest.files[0]))
    store.put_if_absent(manifest.key_of(manifest.files[0]), b"2")
    with pytest.raises(CorruptObjectError, match="changed or damaged"):
        store.read_file(manifest, "one")


def test_damaged_file_is_not_handed_out(store: ObjectStore, prefix: str, tmp_path: Path) -> None:
    manifest = store.publish(prefix, _files(tmp_path / "in", one=b"1"))
    key = manifest.key_of(manifest.files[0])
    store.delete(key)
    store.put_if_absent(key, b"2")
    with pytest.raises(CorruptObjectError, match="changed or damaged"):
        store.fetch(prefix, tmp_path / "out")
    assert not (tmp_path / "out" / "one").exists()


def test_missing_file_of_a_publication_is_named(store: ObjectStore, prefix: str, tmp_path: Path) -> None:
    manifest = store.publish(prefix, _files(tmp_path / "in", one=b"1"))
    store.delete(manifest.key_of(manifest.files[0]))
    with pytest.raises(ObjectNotFoundError, match="/one"):
        store.fetch(prefix, tmp_path / "out")


def test_fetch_repairs_a_local_file_and_leaves_a_right_one(store: ObjectStore, prefix: str, tmp_path: Path) -> None:
    manifest = store.publish(prefix, _files(tmp_path / "in", one=b"1", two=b"2"))
    out = tmp_path / "out"
    store.fetch(prefix, out)
    (out / "one").write_bytes(b"x")
    before = (out / "two").stat().st_mtime_ns
    store.fetch(prefix, out)
    assert (out / "one").read_bytes() == b"1"
    assert (out / "two").stat().st_mtime_ns == before
    assert len(manifest.files) == 2


def test_a_manifest_is_that_of_its_names_and_contents_in_any_order(tmp_path: Path) -> None:
    files = _files(tmp_path, one=b"1", two=b"22")
    manifest = Manifest.of("p/", files)
    assert Manifest.of("p", dict(reversed(files.items()))) == manifest
    assert manifest.size == 3
    for other in ({"one": files["two"], "two": files["one"]}, {"one": files["one"], "zwei": files["two"]}):
        assert Manifest.of("p", other).folder != manifest.folder  # the same contents under other names


def test_manifest_that_was_changed_by_hand_is_refused() -> None:
    manifest = Manifest("p", (PublishedFile("a", "0" * 64, 3),))
    assert Manifest.from_bytes("p", manifest.to_bytes()) == manifest
    with pytest.raises(CorruptObjectError, match="changed after it was written"):
        Manifest.from_bytes("p", manifest.to_bytes().replace(b'"size": 3', b'"size": 4'))
    with pytest.raises(CorruptObjectError, match="changed after it was written"):
        Manifest.from_bytes("p", manifest.to_bytes().replace(b"  ", b" "))
    with pytest.raises(CorruptObjectError, match="expected a manifest of format"):
        Manifest.from_bytes("p", b"<html>")


def test_manifest_cannot_write_outside_the_folder(store: ObjectStore, prefix: str, tmp_path: Path) -> None:
    evil = Manifest(prefix, (PublishedFile("../../evil", "0" * 64, 3),))
    store.put_if_absent(evil.key, evil.to_bytes())
    with pytest.raises(CorruptObjectError, match="expected file names below its folder"):
        store.fetch(prefix, tmp_path / "x" / "out")


def test_an_address_opens_as_a_stream(store: ObjectStore, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "with space.jsonl"
    path.write_bytes(b"one\ntwo\n")
    store.put_if_absent(f"{prefix}/odd ?#name.jsonl", path)
    uri = store.uri(f"{prefix}/odd ?#name.jsonl")
    with store.open_uri(uri) as stream:
        assert stream.read(4) == b"one\n"
        assert stream.read() == b"two\n"
    assert store.list_uri(uri) == [uri]


def test_folders_list_their_files_and_not_their_neighbours(store: ObjectStore, prefix: str) -> None:
    for key in ("corpus/b.jsonl", "corpus/a.jsonl", "corpus2/c.jsonl"):
        store.put_if_absent(f"{prefix}/{key}", b"x")
    base = store.uri(f"{prefix}/corpus")
    assert store.list_uri(base) == [f"{base}/a.jsonl", f"{base}/b.jsonl"]
    assert store.list_uri(f"{base}/") == [f"{base}/a.jsonl", f"{base}/b.jsonl"]


def test_what_is_not_there_is_named_with_the_setting(store: ObjectStore, s3_settings: Settings) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"object s3://.*/no/such/key.*TOOLFORMER_S3_ENDPOINT_URL"):
        store.open_uri(store.uri("no/such/key"))
    with pytest.raises(BucketNotFoundError, match="bucket s3://no-such-bucket"):
        store.list_uri("s3://no-such-bucket/corpus")
    for address in ("ftp://host/file", "/a/path", "s3://"):
        with pytest.raises(ConfigurationError, match="expected s3://bucket/key"):
            store.open_uri(address)
    elsewhere = ObjectStore(s3_settings.model_copy(update={"s3_bucket": "no-such-bucket"}))
    with pytest.raises(ObjectNotFoundError, match="TOOLFORMER_S3_BUCKET=no-such-bucket"):
        elsewhere.publish("p", {})
    with pytest.raises(ObjectNotFoundError, match="bucket s3://no-such-bucket"):
        elsewhere.read_manifest("p")


def test_unreachable_store_and_wrong_keys_say_where_they_are_set(s3_settings: Settings) -> None:
    nobody = ObjectStore(s3_settings.model_copy(update={"s3_endpoint_url": "http://127.0.0.1:1"}))
    with pytest.raises(ObjectStoreUnreachableError, match=r"TOOLFORMER_S3_ENDPOINT_URL=http://127\.0\.0\.1:1"):
        nobody.get("x")
    stranger = ObjectStore(s3_settings.model_copy(update={"s3_secret_access_key": SecretStr("wrong")}))
    with pytest.raises(ObjectStoreAccessError, match="TOOLFORMER_S3_SECRET_ACCESS_KEY"):
        stranger.get("x")
