"""Files that processes share: replaced whole, and locked."""

import logging
import multiprocessing
from pathlib import Path

import filelock
import pytest

from toolformer_ops.storage.shared_files import locked, replace_file


def test_a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text("old")
    replace_file(path, "new \u00e9", mode=0o600)
    assert path.read_text(encoding="utf-8") == "new \u00e9"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "new \u00e9"
    assert list(tmp_path.iterdir()) == [path]


def test_who_waits_for_a_lock_is_told_who_has_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path, (here, there) = tmp_path / "lock", multiprocessing.get_context("fork").Pipe()

    def hold() -> None:
        with filelock.FileLock(path):
            there.send("held")
            there.recv()

    process = multiprocessing.get_context("fork").Process(target=hold, daemon=True)
    process.start()
    assert here.recv() == "held"
    acquire = filelock.FileLock.acquire

    def acquire_when_released(lock: filelock.FileLock, **options: bool) -> object:
        if not options:  # the waiting
            here.send("release")
        return acquire(lock, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filelock.FileLock, "acquire", acquire_when_released)
        with locked(path, "another process works"):
            assert caplog.messages == ["another process works: waiting for it"]
    process.join()
    with locked(path, "nobody"):
        assert len(caplog.messages) == 1
