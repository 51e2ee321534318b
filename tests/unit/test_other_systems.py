"""What Linux alone has is refused elsewhere in the first second, or done without."""

import resource
import sys

import pytest
from typer.testing import CliRunner

from toolformer_ops.__main__ import app
from toolformer_ops.errors import UsageError
from toolformer_ops.local import accounts
from toolformer_ops.storage.machine import shared_files
from toolformer_ops.tools.files.answering import Limits


@pytest.mark.parametrize("words", [["up"], ["demo"], ["run", "posts.jsonl"]])
def test_services_are_refused_with_what_works_without_them(words, monkeypatch):
    monkeypatch.setattr(accounts.platform, "system", lambda: "Darwin")
    ended = CliRunner().invoke(app, words)
    assert isinstance(ended.exception, UsageError)
    assert "expected Linux" in str(ended.exception)
    assert "`annotate`" in str(ended.exception)


def test_without_the_kernels_list_nobody_is_named_as_the_holder_of_a_lock(monkeypatch, tmp_path):
    lock = tmp_path / "lock"
    with shared_files.locked(lock, "a test has it"):
        monkeypatch.setattr(shared_files, "_LOCKS", tmp_path / "none")
        assert shared_files._holder_of(lock) is None


def test_a_system_that_bounds_no_address_space_is_not_asked_to(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(resource, "setrlimit", lambda limit, bounds: asked.append(limit))
    monkeypatch.setattr(sys, "platform", "darwin")
    Limits(memory_bytes=1, file_bytes=1, out_of_memory="none").set()
    assert asked == [resource.RLIMIT_FSIZE, resource.RLIMIT_CORE]
