"""The object store against a real S3: conditional puts, publications, addresses.

A proxy in between disturbs the requests.
"""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import tenacity
from botocore.exceptions import ClientError
from pydantic import SecretStr

from tests.faults.proxies import ObjectStoreProxy, RequestFate
from tests.servers import flip_a_byte
from toolformer_ops.errors import (
    EXIT_INFRASTRUCTURE,
    AlreadyPublishedError,
    BrokenConnectionError,
    BucketNotFoundError,
    ConfigurationError,
    CorruptObjectError,
    ObjectNotFoundError,
    ObjectStoreError,
    ObjectStoreUnreachableError,
    WriteConflictError,
    exit_code,
)
from toolformer_ops.storage.objects import s3 as objects
from toolformer_ops.storage.objects.publication import JOURNAL, Manifest, ObjectStore, PublishedFile
from toolformer_ops.storage.objects.s3 import CONFLICT_TRIES, READ_TRIES

DIGITS = b"0123456789" * 100
FLIPPED = b"22 with a flipped byte, with the hash of the first"


@pytest.fixture
def store(s3_settings):
    return ObjectStore(s3_settings)


@pytest.fixture
def proxy(object_store_server):
    proxy = ObjectStoreProxy(object_store_server.ports["s3"])
    yield proxy
    proxy.close()


@pytest.fixture
def disturbed(proxy, s3_settings, monkeypatch):
    """The store behind `proxy`, which tries again at once."""
    for retried in (ObjectStore.put_if_absent, ObjectStore.put, objects._ObjectBytes.readinto):
        monkeypatch.setattr(retried.retry, "wait", tenacity.wait_none())  # type: ignore[attr-defined]
    return ObjectStore(s3_settings.model_copy(update={"s3_endpoint_url": f"http://127.0.0.1:{proxy.port}"}))


def befall(proxy: ObjectStoreProxy, fate: RequestFate, method: str, times: dict[str, int]) -> Counter[str]:
    """So many of the next requests of a method have this fate, by the end of the key; returns how many are still to come."""
    left = Counter(times)

    def rule(asked: str, path: str) -> RequestFate:
        end = next((end for end, count in left.items() if count > 0 and path.endswith(end)), None)
        if end is None or not asked.startswith(method):
            return "pass"
        left[end] -= 1
        return fate

    proxy.rule = rule
    return left


def _files(folder: Path, **contents: bytes) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


# Writing


def test_a_write_that_meets_another_one_is_tried_again_until_it_is_written(proxy, disturbed, tmp_path):
    befall(proxy, "409", "PUT", {"/one": CONFLICT_TRIES})
    with pytest.raises(WriteConflictError, match="after 8 tries"):
        disturbed.publish("release", _files(tmp_path / "in", one=b"1", two=b"2"))
    assert disturbed.read_manifest("release") is None
    left = befall(proxy, "409", "PUT", {"/one": CONFLICT_TRIES - 1, "manifest.json": 2, "/page": 1})
    manifest = disturbed.publish("release", _files(tmp_path / "in", one=b"1", two=b"2"))
    disturbed.put("page", b"<html>", "text/html")
    assert left.total() == 0
    assert disturbed.fetch("release", tmp_path / "out") == manifest


def test_a_large_file_goes_in_parts_unless_one_is_stored_already(proxy, disturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(objects, "PART_BYTES", 5 * 2**20)
    content = bytes(range(256)) * 4096 * 5 + b"tail"  # parts of 5 MiB and of 4 bytes
    _files(tmp_path, big=content, other=b"x" * len(content))
    left = befall(proxy, "409", "POST if absent", {"big": 2})
    proxy.counts.clear()
    assert disturbed.put_if_absent("big", tmp_path / "big") is True
    assert (proxy.counts["PUT"], left["big"]) == (2 * 3, 0)
    proxy.counts.clear()
    assert disturbed.put_if_absent("big", tmp_path / "other") is False
    assert proxy.counts == {"HEAD": 1}  # no upload begins
    # The answer to its completion is lost, and boto3 asks again for an upload that is no more.
    events = disturbed._client.meta.events

    def answer_that_there_is_no_upload(http_response: Any, parsed: dict[str, Any], **_: Any) -> None:
        http_response.status_code = parsed["ResponseMetadata"]["HTTPStatusCode"] = 404
        parsed["Error"] = {"Code": "NoSuchUpload"}

    events.register("after-call.s3.CompleteMultipartUpload", answer_that_there_is_no_upload)
    assert disturbed.put_if_absent("lost", tmp_path / "big") is True
    events.unregister("after-call.s3.CompleteMultipartUpload", answer_that_there_is_no_upload)
    # Another process writes the object while the parts are sent.
    monkeypatch.setattr(disturbed, "exists", lambda _: False)
    assert disturbed.put_if_absent("lost", tmp_path / "other") is False
    assert disturbed.get("lost") == disturbed.get("big") == content
    assert disturbed._client.list_multipart_uploads(Bucket=disturbed.bucket).get("Uploads", []) == []


# Reading


@pytest.mark.parametrize("announces", ["all", "less", "nothing"])
def test_a_body_that_ends_early_is_read_on_at_the_same_byte(proxy, disturbed, tmp_path, announces):
    """Of objects with our hash, and with S3's own checksum alone."""
    manifest = disturbed.publish("release", _files(tmp_path / "in", one=DIGITS))
    ours = manifest.key_of(manifest.files[0])
    disturbed._client.put_object(Bucket=disturbed.bucket, Key="foreign", Body=DIGITS)
    proxy.announces = announces
    left = befall(proxy, "truncate", "GET", {"/one": 3, "manifest.json": 1})
    disturbed.fetch("release", tmp_path / "out")  # 500, 250, 125 bytes, and the rest
    assert left.total() == 0
    assert (tmp_path / "out" / "one").read_bytes() == DIGITS
    for key in (ours, "foreign"):
        left = befall(proxy, "truncate", "GET", {f"/{key}": 2})
        assert disturbed.get(key) == DIGITS
        left.update({f"/{key}": READ_TRIES - 1})
        assert disturbed.read_part(key, 3, 4) == b"3456"
        assert left.total() == 0


@pytest.mark.parametrize("announces", ["all", "less", "nothing"])
def test_a_body_that_never_ends_is_an_error_of_the_network(proxy, disturbed, tmp_path, announces):
    disturbed.publish("release", _files(tmp_path / "in", one=DIGITS))
    proxy.announces = announces
    proxy.kept = 0
    befall(proxy, "truncate", "GET", {"/one": READ_TRIES})
    with pytest.raises(BrokenConnectionError, match=r"/one broke off at byte \d+") as caught:
        disturbed.fetch("release", tmp_path / "other")
    assert exit_code(caught.value) == EXIT_INFRASTRUCTURE  # which Airflow tries again, later and more often
    assert (tmp_path / "other" / JOURNAL).read_text() == ""  # no part is there


def test_an_object_that_changes_while_it_is_read_is_not_mixed(proxy, disturbed):
    disturbed.put("key", b"first content", "text/plain")
    befall(proxy, "truncate", "GET", {"/key": 1})
    stream = disturbed.open_uri(disturbed.uri("key"))
    disturbed.put("key", b"other content", "text/plain")
    with pytest.raises(ObjectStoreError, match="has changed meanwhile"):
        stream.read()


def test_content_that_is_damaged_on_its_way_or_behind_the_stored_hash_is_refused(proxy, disturbed):
    disturbed.put_if_absent("key", b"content")
    befall(proxy, "damage", "GET", {"/key": 1})
    with pytest.raises(CorruptObjectError, match="damaged"):
        disturbed.get("key")
    assert disturbed.get("key") == b"content"
    flip_a_byte(disturbed, "key")  # S3's own checksum fits
    with pytest.raises(CorruptObjectError, match="changed or damaged"):
        disturbed.get("key")


# Publications


def test_files_of_a_killed_writer_are_not_published(store, tmp_path):
    files = _files(tmp_path / "killed", one=b"1", two=b"old")
    killed = Manifest.of("p", files)
    store.upload(killed, files)
    assert store.exists(killed.key_of(killed.files[0]))
    assert store.read_manifest("p") is None
    with pytest.raises(ObjectNotFoundError, match=r"expected a publication at s3://.*TOOLFORMER_S3_BUCKET"):
        store.fetch("p", tmp_path / "out")


def test_published_files_come_back_with_their_bytes(store, tmp_path):
    manifest = store.publish("p", _files(tmp_path / "in", one=b"1", two=b"22"))
    assert [(file.name, file.size) for file in manifest.files] == [("one", 1), ("two", 2)]
    assert manifest.files[0].sha256 == hashlib.sha256(b"1").hexdigest()
    assert hashlib.sha256(store.get(manifest.key)).hexdigest() == manifest.sha256
    assert store.read_manifest("p") == store.fetch("p", tmp_path / "out") == manifest
    assert [store.read_file(manifest, name) for name in ("one", "two", "three")] == [b"1", b"22", None]
    with pytest.raises(CorruptObjectError, match="expected at least 3 bytes, found 2"):
        store.read_part(manifest.key_of(manifest.files[1]), 0, 3)


def test_the_same_publication_again_writes_nothing(store, tmp_path):
    manifest = store.publish("p", _files(tmp_path / "in", one=b"1", two=b"22"))
    keys = list(store.list("p"))
    assert store.put_if_absent(manifest.key, b"another") is False
    assert store.publish("p", _files(tmp_path / "b", one=b"1", two=b"22")) == manifest
    assert store.conclude(manifest) is False
    assert list(store.list("p")) == keys


def test_only_a_local_file_that_is_wrong_is_fetched_again(store, tmp_path):
    store.publish("p", _files(tmp_path / "in", one=b"1", two=b"22"))
    store.fetch("p", tmp_path / "out")
    (tmp_path / "out" / "one").write_bytes(b"x")
    before = (tmp_path / "out" / "two").stat().st_mtime_ns
    store.fetch("p", tmp_path / "out")
    assert (tmp_path / "out" / "one").read_bytes() == b"1"
    assert (tmp_path / "out" / "two").stat().st_mtime_ns == before


def test_what_is_removed_loses_its_manifest_first(store, tmp_path, monkeypatch):
    manifest = store.publish("p", _files(tmp_path / "in", one=b"1", two=b"22"))
    keys = list(store.list("p"))
    # So no process begins to read the rest.
    deleted: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", deleted.append)
        store.remove(store.list("p/"))
    assert deleted[0] == manifest.key
    assert sorted(deleted) == keys


def test_a_prefix_holds_one_publication_by_its_registered_hash(store, tmp_path):
    manifest = store.publish("p", _files(tmp_path / "in", one=b"1", two=b"22"))
    other = _files(tmp_path / "c", one=b"other")
    with pytest.raises(AlreadyPublishedError, match=f"found {manifest.content_sha256[:16]}"):
        store.publish("p", other)
    assert store.fetch("p", tmp_path / "registered", manifest.sha256) == manifest
    assert (tmp_path / "registered" / "one").read_bytes() == b"1"
    store.delete(manifest.key)
    store.publish("p", other)
    with pytest.raises(
        CorruptObjectError, match=rf"that Postgres registered \({manifest.sha256}\), found another one"
    ):
        store.fetch("p", tmp_path / "other", manifest.sha256)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "nothing"),
        (b"2", "1 bytes"),
        (b"xx", f"content {hashlib.sha256(b'xx').hexdigest()}"),
        (FLIPPED, "bytes that are not those of its checksum"),
    ],
)
def test_a_publication_whose_file_is_not_its_own_is_refused_by_name_until_it_is_published_again(
    store, tmp_path, content, found
):
    error = ObjectNotFoundError if content is None else CorruptObjectError
    files = _files(tmp_path / "in", one=b"1", two=b"22")
    manifest = Manifest.of("p", files)
    store.upload(manifest, files)
    two = manifest.files[1]
    key = manifest.key_of(two)

    def damage() -> None:
        if content == FLIPPED:
            flip_a_byte(store, key)
        else:
            store.delete(key)
        if content not in (None, FLIPPED):
            store.put_if_absent(key, content)

    damage()
    assert store.lacking(manifest) == {two: found}
    with pytest.raises(
        error, match=rf"found 1 missing or changed: two \(2 bytes, {two.sha256}\): found {found}"
    ):
        store.conclude(manifest)
    assert store.read_manifest("p") is None

    assert store.publish("p", files) == manifest
    damage()
    _files(tmp_path / "out", notes=b"mine")
    with pytest.raises(error, match="/two"):
        store.fetch("p", tmp_path / "out")
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == ({"notes", "one", "two", JOURNAL} if error is ObjectNotFoundError else {"notes"})
    with pytest.raises(error, match="/two"):
        store.read_file(manifest, "two")
    made_again = _files(tmp_path / "again", one=b"1", two=b"other")
    assert store.mend(manifest, made_again) == (two,)  # with its very bytes alone
    assert store.publish("p", files) == manifest
    assert (store.lacking(manifest), store.mend(manifest, made_again)) == ({}, ())
    store.fetch("p", tmp_path / "out")
    assert (tmp_path / "out" / "two").read_bytes() == b"22"


def test_manifest_that_was_changed_by_hand_or_leads_out_of_its_folder_is_refused(store, tmp_path):
    manifest = Manifest("p", (PublishedFile("a", "0" * 64, 3),))
    written = manifest.to_bytes()
    assert Manifest.from_bytes("p", written) == manifest
    larger, newer = written.replace(b'"size": 3', b'"size": 4'), written.replace(b"-ops/1", b"-ops/9")
    negative = Manifest("p", (PublishedFile("a", "0" * 64, -3),)).to_bytes()
    for changed in (b"<html>", b"[]", larger, newer, negative):
        with pytest.raises(CorruptObjectError):
            Manifest.from_bytes("p", changed)
    evil = Manifest("p", (PublishedFile("../../evil", "0" * 64, 3),))
    store.put_if_absent(evil.key, evil.to_bytes())
    with pytest.raises(CorruptObjectError, match="expected file names below its folder"):
        store.fetch("p", tmp_path / "x" / "out")


# Addresses


def test_a_listing_of_many_pages_has_the_files_below_the_address_alone(store):
    def one_key(params: dict[str, Any], **_: Any) -> None:
        params["MaxKeys"] = 1

    keys = ["corpus/a", "corpus/b/c", "corpus2/d"]
    for key in reversed(keys):
        store.put_if_absent(key, b"x")
    below = [store.uri(key) for key in keys[:2]]
    store._client.meta.events.register("before-parameter-build.s3.ListObjectsV2", one_key)
    assert store.list_uri(store.uri("corpus")) == store.list_uri(store.uri("corpus/")) == below
    assert list(store.list("corpus")) == keys
    store.put_if_absent("corpus/b/", b"")  # as programs mark a folder
    assert store.list_uri(store.uri("corpus")) == below
    uri = store.uri("odd ?#name")
    store.put_if_absent("odd ?#name", b"one\ntwo\n")
    assert store.list_uri(uri) == [uri]
    with store.open_uri(uri) as stream:
        assert (stream.read(4), stream.read()) == (b"one\n", b"two\n")


def test_what_is_not_there_is_named_with_the_setting(store, s3_settings):
    def changed(**values: object) -> ObjectStore:
        return ObjectStore(s3_settings.model_copy(update=values))

    elsewhere, nobody = changed(s3_bucket="no-such-bucket"), changed(s3_endpoint_url="http://127.0.0.1:1")
    stranger = changed(s3_secret_access_key=SecretStr("wrong"))
    for asked, error, named in (
        (lambda: store.open_uri(store.uri("no/such/key")), ObjectNotFoundError, "/no/such/key"),
        (lambda: store.open_uri("ftp://host/file"), ConfigurationError, "s3://bucket/key"),
        (lambda: elsewhere.publish("p", {}), ObjectNotFoundError, "TOOLFORMER_S3_BUCKET"),
        (lambda: elsewhere.list_uri("s3://no-such-bucket/corpus"), BucketNotFoundError, "no-such-bucket"),
        (lambda: nobody.get("x"), ObjectStoreUnreachableError, "TOOLFORMER_S3_ENDPOINT_URL"),
        (lambda: stranger.get("x"), ConfigurationError, "TOOLFORMER_S3_SECRET_ACCESS_KEY"),
    ):
        with pytest.raises(error, match=named):
            asked()


def test_what_s3_answers_is_the_error_that_says_what_to_do(store, monkeypatch):
    for status, code, error in (
        (400, "InvalidRequest", ObjectStoreError),
        (416, "InvalidRange", CorruptObjectError),
        (429, "SlowDown", ObjectStoreUnreachableError),
    ):
        answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
        monkeypatch.setattr(store._client, "get_object", Mock(side_effect=ClientError(answer, "GetObject")))
        with pytest.raises(error) as caught:
            store.get("key")
        assert type(caught.value) is error
