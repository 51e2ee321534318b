"""Files that processes share: replaced whole, and locked."""

import signal
import subprocess
import sys

import pytest

from toolformer_ops.config import REPOSITORY
from toolformer_ops.storage.machine import shared_files
from toolformer_ops.storage.machine.shared_files import locked, replace_file


def test_a_file_is_replaced_with_its_mode(tmp_path):
    path = tmp_path / "secrets.json"
    path.write_text("old")
    replace_file(path, "new \u00e9", mode=0o600)
    assert path.read_text(encoding="utf-8") == "new \u00e9"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_replacement_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "secrets.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


HOLD = """
import sys, time
from pathlib import Path
from toolformer_ops.storage.machine.shared_files import locked
with locked(Path(sys.argv[1]), "nobody"):
    print("locked", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the lock file `lock` for so many seconds."""
    processes = []

    def start(seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(tmp_path / "lock"), str(seconds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_a_stopped_process_loses_its_lock(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(shared_files, "STOPPED_SECONDS", 0.2)
    monkeypatch.setattr(shared_files, "LOOK_SECONDS", 0.1)
    frozen = holder(3600)
    frozen.send_signal(signal.SIGSTOP)
    with locked(tmp_path / "lock", "another process trains"):
        assert frozen.wait() == -signal.SIGKILL


def test_a_process_that_works_keeps_its_lock_however_long_another_waits(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(shared_files, "STOPPED_SECONDS", 0.2)
    monkeypatch.setattr(shared_files, "LOOK_SECONDS", 0.1)
    working = holder(1)
    with locked(tmp_path / "lock", "another process trains"):
        assert working.wait() == 0
