"""Temporary folders: those of killed processes are deleted, and no other."""

import subprocess
import sys

import pytest

from toolformer_ops.storage.machine.temporary_folders import left_in, remove_left, temporary_folder

KILLED = """
import os, pathlib, signal, sys
from toolformer_ops.storage.machine.temporary_folders import temporary_folder
with temporary_folder(pathlib.Path(sys.argv[1]), "history") as folder:
    (folder / "old.parquet").write_text("a text")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_is_gone_after_its_block(tmp_path):
    with temporary_folder(tmp_path / "state", "release") as folder:
        (folder / "data").mkdir()
    assert not folder.exists()


def test_a_folder_of_a_killed_process_is_deleted(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=600)
    [folder] = tmp_path.glob("history-*")
    assert remove_left(tmp_path) == [folder]
    assert not folder.exists()


def test_a_folder_of_an_earlier_version_is_deleted(tmp_path):
    folder = tmp_path / "check-release-x"
    folder.mkdir()
    assert remove_left(tmp_path) == [folder]


def test_a_folder_that_a_process_holds_stays(tmp_path):
    with temporary_folder(tmp_path, "audit") as folder:
        assert left_in(tmp_path) == []
        assert remove_left(tmp_path) == []
        assert folder.is_dir()


@pytest.mark.parametrize("name", ["finetuning", "logs", "my-release-1"])
def test_another_folder_stays(tmp_path, name):
    (tmp_path / name).mkdir()
    assert remove_left(tmp_path) == []
    assert (tmp_path / name).is_dir()
