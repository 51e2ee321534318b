"""Artifacts on a real S3: published once, fetched into a cache that several processes share, and removed for room."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    AlreadyPublishedError,
    BrokenConnectionError,
    ConfigurationError,
    CorruptObjectError,
    InfrastructureError,
    ObjectNotFoundError,
)
from toolformer_ops.storage.machine import shared_files
from toolformer_ops.storage.objects import artifacts, publication
from toolformer_ops.storage.objects.publication import ObjectStore

FILES = {
    "config.json": b"{}",
    "model.safetensors": bytes(range(256)) * 40,
    "sub/tokenizer.json": b"[]",
    "empty": b"",
}
PART = 1000
"""Bytes of a part in these tests: `model.safetensors` has 11 of them."""
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(publication, "PART_BYTES", PART)
    monkeypatch.setattr(artifacts, "_in_use", {})
    monkeypatch.setattr(shared_files, "_known", {})
    yield
    for descriptor in artifacts._in_use.values():
        os.close(descriptor)


@pytest.fixture
def cached(s3_settings, tmp_path):
    """Settings with a bucket and an empty cache."""
    return s3_settings.model_copy(update={"cache_dir": tmp_path / "cache"})


def publish(
    settings: Settings, tmp_path: Path, name: str = "tiny", files: Mapping[str, bytes] = FILES
) -> artifacts.Artifact:
    paths = {}
    for file, content in files.items():
        paths[file] = tmp_path / "sources" / name / file
        paths[file].parent.mkdir(parents=True, exist_ok=True)
        paths[file].write_bytes(content)
    return artifacts.publish(settings, "model", f"{name}@1", f"models/{name}", paths, source="a test")


def downloads(settings: Settings) -> list[str]:
    """The names of the artifacts that were downloaded into the cache, in order."""
    lines = (settings.cache_folder / "downloads.jsonl").read_text().splitlines()
    return [json.loads(line)["artifact"].rpartition("/")[2] for line in lines]


def left(settings: Settings, kind: str = "entries") -> list[str]:
    """Names of the entries (or of the broken downloads) in the cache, without their hashes."""
    return sorted(path.name.split("-")[1] for path in (settings.cache_folder / kind).iterdir())


def in_a_process(work: Callable[..., object], *arguments: object) -> Any:
    """Start a forked process; it uses nothing of the cache yet."""

    def run() -> None:
        artifacts._in_use.clear()
        shared_files._known.clear()
        work(*arguments)

    process = FORK.Process(target=run)
    process.start()
    return process


def done(process: Any, exit_code: int = 0) -> None:
    process.join(60)
    assert process.exitcode == exit_code


def fetch_whole(settings: Settings, artifact: artifacts.Artifact) -> None:
    folder = artifacts.fetch(settings, artifact)
    assert {
        str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()
    } == FILES


def broken(*_: object) -> None:
    raise BrokenConnectionError("the connection broke")


def test_an_artifact_that_is_found_by_its_manifest_is_fetched_once(cached, tmp_path):
    published = publish(cached, tmp_path)
    assert publish(cached, tmp_path) == published  # once more is no new publication
    found = artifacts.find(cached, f"{published.address}/", "model")
    assert (found, found.name, found.manifest.identity) == (published, "tiny", "tiny@1")
    assert not (cached.cache_folder / "entries").exists()
    for _ in range(2):
        fetch_whole(cached, found)
    assert (downloads(cached), left(cached, "partial")) == (["tiny"], [])


def test_another_content_under_a_published_name_is_refused(cached, tmp_path):
    publish(cached, tmp_path)
    with pytest.raises(AlreadyPublishedError, match="models/tiny"):
        publish(cached, tmp_path, files=FILES | {"config.json": b"[]"})


def test_an_artifact_of_another_kind_is_refused_by_name(cached, tmp_path):
    published = publish(cached, tmp_path)
    with pytest.raises(CorruptObjectError, match=r"models/tiny: expected a published index"):
        artifacts.find(cached, published.address, "index")


def test_an_artifact_that_does_not_exist_is_named(cached):
    with pytest.raises(ObjectNotFoundError, match="models/nothing"):
        artifacts.find(cached, f"s3://{cached.s3_bucket}/models/nothing", "model")


def test_manifest_that_is_not_the_registered_one_is_refused(settings, tmp_path):
    published, other = publish(settings, tmp_path), publish(settings, tmp_path, "other")
    store = ObjectStore(settings)
    store.put(published.manifest.key, store.get(other.manifest.key), "application/json")
    with pytest.raises(
        CorruptObjectError, match=f"manifest that Postgres registered .{published.manifest.sha256}"
    ):
        artifacts.find(settings, f"{published.address}/", "model")


def test_an_object_with_another_content_is_refused_without_keeping_any_of_it(cached, tmp_path):
    published = publish(cached, tmp_path)
    store, whole = ObjectStore(cached), FILES["model.safetensors"]
    [key] = [key for key in store.list("models/") if key.endswith("model.safetensors")]
    # Another byte; cut, in and between parts.
    for content in (whole[:-1] + b"!", whole[:1500], whole[: 3 * PART]):
        store.put(key, content, "application/octet-stream")
        with pytest.raises(CorruptObjectError, match=r"model\.safetensors: expected "):
            artifacts.fetch(cached, published)
    assert (left(cached), left(cached, "partial")) == ([], [])


def test_damaged_entry_is_never_used(cached, tmp_path):
    published = publish(cached, tmp_path)
    whole = FILES["model.safetensors"]
    done(in_a_process(fetch_whole, cached, published))
    for content in (None, whole[:10], whole[::-1]):
        [weights] = (cached.cache_folder / "entries").glob("*/model.safetensors")
        if content is None:
            weights.unlink()
        else:
            weights.write_bytes(content)
        done(in_a_process(fetch_whole, cached, published))
    assert downloads(cached) == ["tiny"] * 4


def test_processes_that_want_one_artifact_at_once_download_it_once(cached, tmp_path, monkeypatch):
    published = publish(cached, tmp_path)
    all_want_it, read_part = FORK.Barrier(4), ObjectStore.read_part

    def fetch() -> None:
        all_want_it.wait(60)
        fetch_whole(cached, published)

    def read_when_all_want_it(self: ObjectStore, *arguments: Any) -> bytes:
        assert begin.wait(60)
        return read_part(self, *arguments)

    begin = FORK.Event()
    monkeypatch.setattr(ObjectStore, "read_part", read_when_all_want_it)
    processes = [in_a_process(fetch) for _ in range(3)]
    all_want_it.wait(60)
    begin.set()
    for process in processes:
        done(process)
    assert downloads(cached) == ["tiny"]


@pytest.mark.parametrize("loses_bytes", [False, True], ids=["whole parts", "bytes of a part are lost"])
def test_a_download_that_was_killed_or_cut_off_is_not_taken_for_whole_before_it_continues(
    cached, tmp_path, monkeypatch, loses_bytes
):
    published = publish(cached, tmp_path)
    read_part, asked = ObjectStore.read_part, []
    monkeypatch.setattr(publication, "PARTS_AT_ONCE", 1)

    def break_off_at(part: int, breaks: Callable[[], object]) -> None:
        def read(self: ObjectStore, key: str, start: int, size: int) -> bytes:
            if start == part * PART:
                breaks()
            asked.append(start // PART)
            return read_part(self, key, start, size)

        monkeypatch.setattr(ObjectStore, "read_part", read)

    def fetch_and_be_killed() -> None:
        break_off_at(5, lambda: os.kill(os.getpid(), signal.SIGKILL))
        artifacts.fetch(cached, published)

    done(in_a_process(fetch_and_be_killed), -signal.SIGKILL)
    assert (left(cached), left(cached, "partial")) == ([], ["tiny"])
    break_off_at(8, broken)
    with pytest.raises(BrokenConnectionError):
        artifacts.fetch(cached, published)
    assert left(cached) == []
    # The parts before were there; one after it may have been read when the download ended.
    assert asked[:3] == [5, 6, 7]
    monkeypatch.setattr(ObjectStore, "read_part", read_part)
    if loses_bytes:  # as a machine that went down leaves it: the part was noted
        [weights] = (cached.cache_folder / "partial").glob("*/model.safetensors")
        with weights.open("r+b") as file:
            file.write(b"\1" * 500)
    fetch_whole(cached, published)


def test_for_room_the_least_recently_used_goes_while_those_in_use_stay(cached, tmp_path, monkeypatch):
    one_size = sum(map(len, FILES.values()))
    small = cached.model_copy(update={"cache_gib": 2.5 * one_size / artifacts.GIB})
    first, second, third = (publish(cached, tmp_path, name) for name in ("first", "second", "third"))
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "read_part", broken)
        with pytest.raises(BrokenConnectionError):
            artifacts.fetch(small, third)
    assert left(small, "partial") == ["third"]
    os.utime(next((small.cache_folder / "partial").iterdir()), (1000, 1000))
    for artifact in (first, second):
        done(in_a_process(fetch_whole, small, artifact))
    assert (left(small), left(small, "partial")) == (["first", "second"], [])
    for number, name in enumerate(("second", "first")):  # the second was used longer ago
        [entry] = (small.cache_folder / "entries").glob(f"model-{name}-*")
        os.utime(entry, (1000 + number, 1000 + number))
    done(in_a_process(fetch_whole, small, third))
    assert left(small) == ["first", "third"]
    stop, ready = FORK.Event(), FORK.Event()

    def use_first() -> None:
        artifacts.fetch(small, first)
        ready.set()
        assert stop.wait(60)

    user = in_a_process(use_first)
    assert ready.wait(60)
    artifacts.fetch(small, third)
    with pytest.raises(InfrastructureError, match=r"models/second: expected 0\.\d+ GiB of room"):
        artifacts.fetch(small, second)
    assert left(small) == ["first", "third"]
    stop.set()
    done(user)
    artifacts.fetch(small, second)
    assert left(small) == ["second", "third"]


def test_a_cache_that_cannot_be_a_folder_is_refused(cached, tmp_path):
    third = publish(cached, tmp_path, "third")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigurationError):
        artifacts.fetch(cached.model_copy(update={"cache_dir": tmp_path / "file" / "cache"}), third)


def test_an_artifact_larger_than_the_cache_is_refused(cached, tmp_path):
    third = publish(cached, tmp_path, "third")
    tiny = {"cache_dir": tmp_path / "tiny", "cache_gib": 100 / artifacts.GIB}
    with pytest.raises(InfrastructureError):
        artifacts.fetch(cached.model_copy(update=tiny), third)
    assert not list((tmp_path / "tiny" / "partial").iterdir())
