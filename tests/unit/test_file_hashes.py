"""A large file is read once a node and day for its hash, as long as nothing shows that it changed."""

import hashlib
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.storage.machine import shared_files
from toolformer_ops.storage.machine.shared_files import remember, verified_sha256

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Large here."""
    monkeypatch.setattr(shared_files, "LARGE", 10)
    monkeypatch.setattr(shared_files, "_known", {})
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"sixteen bytes...")
    return path


@pytest.fixture
def settings(tmp_path):
    return Settings(cache_dir=tmp_path / "cache")


@pytest.fixture
def read(monkeypatch):
    """The files that are read for their hash."""
    found: list[Path] = []
    plain = shared_files.file_sha256
    monkeypatch.setattr(shared_files, "file_sha256", lambda path: (found.append(path), plain(path))[1])
    return found


def of_another_process(settings: Settings, path: Path) -> str:
    """What a process finds that has read nothing yet."""
    shared_files._known.clear()
    return verified_sha256(settings, path)


def test_another_process_of_the_node_takes_the_hash_without_reading(file, settings, read, tmp_path):
    expected = hashlib.sha256(file.read_bytes()).hexdigest()
    assert verified_sha256(settings, file) == verified_sha256(settings, file) == expected
    assert of_another_process(settings, file) == expected
    assert read == [file]
    # A cache that cannot be written costs time alone.
    (tmp_path / "a file").write_text("")
    without_cache = Settings(cache_dir=tmp_path / "a file" / "cache")
    assert of_another_process(without_cache, file) == of_another_process(without_cache, file) == expected
    assert len(read) == 3


def test_an_overwritten_file_is_read_again_even_at_its_old_size_with_its_old_time(file, settings, read):
    before, status = verified_sha256(settings, file), file.stat()
    time.sleep(0.05)  # more than the file system's clock resolves
    file.write_bytes(b"SIXTEEN bytes...")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert verified_sha256(settings, file) == hashlib.sha256(file.read_bytes()).hexdigest() != before
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.replace(file)
    of_another_process(settings, file)
    assert len(read) == 3


def test_a_day_later_a_file_is_read_again(file, settings, read):
    verified_sha256(settings, file)
    [note] = [path for path in (settings.cache_folder / "hashes").iterdir() if path.name != "lock"]
    yesterday = time.time() - shared_files.TRUSTED_SECONDS - 1
    os.utime(note, (yesterday, yesterday))
    of_another_process(settings, file)
    assert len(read) == 2


def test_on_another_node_a_file_is_read_again(file, settings, read, tmp_path, monkeypatch):
    verified_sha256(settings, file)
    [note] = [path for path in (settings.cache_folder / "hashes").iterdir() if path.name != "lock"]
    yesterday = time.time() - shared_files.TRUSTED_SECONDS - 1
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(shared_files, "_BOOT", tmp_path / "boot_id")
    os.utime(note, (yesterday, yesterday))
    of_another_process(settings, file)
    assert len(read) == 2
    assert not note.exists(), "old notes go"


def test_processes_that_start_together_read_it_once(file, settings, tmp_path):
    os.mkfifo(begun := tmp_path / "begun")
    os.mkfifo(proceed := tmp_path / "proceed")

    def slow(path: Path) -> str:
        begun.write_text("reads")
        return proceed.read_text()

    def run(instead: object) -> None:
        shared_files.file_sha256 = instead  # type: ignore[assignment]
        os._exit(0 if verified_sha256(settings, file) == "first" else 1)

    first = FORK.Process(target=run, args=(slow,))
    first.start()
    assert begun.read_text() == "reads"
    other = FORK.Process(target=run, args=(lambda _: "read twice",))
    other.start()
    threading.Thread(target=lambda: proceed.write_text("first")).start()
    for process in (first, other):
        process.join(60)
        assert process.exitcode == 0


def test_a_download_whose_hash_was_compared_is_not_read_again(file, settings, read):
    remember(settings, file, "its hash")
    assert verified_sha256(settings, file) == of_another_process(settings, file) == "its hash"
    assert read == []


def test_small_files_leave_no_note(file, settings, read):
    small = file.with_name("config.json")
    small.write_bytes(b"{}")
    verified_sha256(settings, small)
    of_another_process(settings, small)
    assert read == [small, small]
