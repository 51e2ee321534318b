"""The tree of errors: as its docstring draws it, in one module, and with the exit status that decides on a retry."""

import errno
import logging
import os
import sys
import time
from unittest.mock import Mock

import pytest

from tests.unit.test_commands import run
from toolformer_ops import __main__ as command_line
from toolformer_ops import errors, termination
from toolformer_ops.config import load_settings

__all__ = ["run"]  # a fixture


def test_the_status_says_what_a_retry_may_mend_or_must_wait_for():
    for status, kinds in (
        (
            2,
            (
                errors.UsageError,
                errors.MissingDataSetError,
                errors.ConfigurationError,
                errors.BucketNotFoundError,
            ),
        ),
        (3, (errors.NoResultError, errors.NoKeptCallError)),
        (1, (errors.ObjectStoreError, errors.WriteConflictError, errors.DatabaseError, ValueError)),
        (75, (errors.DatabaseUnreachableError, errors.BrokenConnectionError, errors.InfrastructureError)),
        (75, (errors.ObjectStoreUnreachableError,)),
    ):
        assert [errors.exit_code(kind()) for kind in kinds] == [status] * len(kinds)


def test_a_full_disk_is_found_below_the_error_that_a_library_made_of_it():
    error = ValueError("the writer failed")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device", "/state/part")
    found = errors.disk_full(error)
    assert isinstance(found, errors.InfrastructureError)
    assert "/state/part" in str(found)
    assert errors.disk_full(OSError(errno.ENOENT, "No such file")) is None


def test_a_chain_of_errors_that_is_a_circle_is_walked_once():
    error, cause = ValueError("the client"), RuntimeError("the transport")
    error.__cause__, cause.__cause__ = cause, error
    assert list(errors.causes(error)) == [error, cause]


class BegunAnewError(Exception):
    """In place of what `os.execv` does."""


@pytest.mark.parametrize(
    ("error", "words", "begins_anew"),
    [
        (errors.ObjectStoreUnreachableError("gone"), ["stage", "release"], True),
        (OSError(errno.ENOSPC, "No space left on device"), ["stage", "release"], True),
        (errors.DatabaseUnreachableError("gone"), ["sql"], False),
        (errors.ConfigurationError("wrong"), ["stage", "plan"], False),
    ],
)
def test_a_stage_that_waits_for_a_service_begins_anew_until_its_time_is_up(
    monkeypatch, error, words, begins_anew
):
    begun: list[list[str]] = []
    slept: list[float] = []

    def begin(program: str, arguments: list[str]) -> None:
        begun.append(arguments[1:])
        raise BegunAnewError

    monkeypatch.setattr(os, "execv", begin)
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(termination, "install", lambda: None)
    monkeypatch.setattr(command_line, "app", Mock(side_effect=error))
    monkeypatch.setattr(sys, "argv", ["toolformer-ops", *words])
    monkeypatch.setenv("TOOLFORMER_OUTAGE_SECONDS", "600")
    monkeypatch.delenv(command_line._WAITS_UNTIL, raising=False)
    load_settings.cache_clear()
    with pytest.raises((BegunAnewError, SystemExit, OSError)):
        command_line.main()
    assert (begun, slept) == (([["-m", "toolformer_ops", *words]], [10.0]) if begins_anew else ([], []))
    if begins_anew:  # the next one knows since when it waits
        monkeypatch.setenv(command_line._WAITS_UNTIL, str(time.monotonic() - 1))
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        assert (ended.value.code, len(begun)) == (errors.EXIT_INFRASTRUCTURE, 1)


def test_what_an_address_holds_forges_no_line_of_a_log():
    forged = "s3://b/x\n12:00:00 INFO all is well\r\x1b[2J\x9b2J\u2028\x00"
    record = logging.LogRecord(
        "toolformer_ops", logging.ERROR, "", 0, "CorpusError: found %s", (forged,), None
    )
    first, second = command_line.OneRecord().format(record).splitlines()
    assert first.endswith(" ERROR CorpusError: found s3://b/x")
    assert second == r"  | 12:00:00 INFO all is well\r\x1b[2J\x9b2J\u2028\x00"


def test_a_line_of_a_log_begins_with_its_date_in_its_time_zone(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    record = logging.LogRecord("toolformer_ops", logging.INFO, "", 0, "scored 512 calls", (), None)
    record.created = 1_795_653_000.0  # 2026-11-26, half past one at night in Berlin
    try:
        shown = command_line.OneRecord().format(record)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert shown == "2026-11-26T01:30:00+0100 INFO scored 512 calls"


@pytest.mark.parametrize(
    "words",
    [
        ["stage", "ingest", "--corpus", "/x\x1b[2J\nERROR forged"],
        ["stage", "build-index", "--source", "/" + "a/" * 2500],
        ["stage", "start-run", "--run", "r", "--parameters", '{"corpus": "a", "model": "%s"}' % ("m" * 900)],
        ["run", "posts.jsonl", "--model", "a" * 5000],
        ["judge", "http://host/posts.jsonl", "--model", "m"],
        ["forget", "--corpus", "a" * 5000, "--yes"],
        ["evaluate", "--model", "m", "--suite", "math", "--data", "a" * 5000],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_an_address_that_cannot_be_one_is_a_sentence_without_traceback(run, caplog, words):
    assert run(*words)[0] == errors.EXIT_USAGE
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "expected" in record.message
    assert len(record.message) < 2500
    assert record.message.isprintable()
