"""A stage as a process on the worker: what becomes of its lines, its exit status, its children, and its last line."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tests.tool_files import PROMPT
from toolformer_ops.airflow_tasks import local_process, run_notes
from toolformer_ops.airflow_tasks.local_process import RunningProcess, StageProcess
from toolformer_ops.config import REPOSITORY
from toolformer_ops.errors import DatabaseUnreachableError

Log = list[str]


def task(program: str, log: Log | None = None, **kwargs: Any) -> StageProcess:
    """A task whose program is this Python source, with its log lines going to `log`."""
    arguments = kwargs.pop("arguments", ["stage", "sample"])
    made = StageProcess(
        task_id="sample", arguments=arguments, command=[sys.executable, "-c", program], **kwargs
    )
    if log is not None:
        made._cached_logger = mock.Mock(info=lambda _, line: log.append(line))
    return made


def context(**params: Any) -> Any:
    """As much of Airflow's context as a stage task reads."""
    return {"params": params, "outlet_events": {}}


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether the condition became true within a generous while."""
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


def is_running(pid: int) -> bool:
    """Whether the process is there and not merely waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_stage_of_placebos_is_started_only_if_it_has_work_or_nobody_knows(monkeypatch, caplog, capsys):
    arguments = ["stage", "placebo", "--run", "night-1", "--tool", "MT"]
    for answer, starts, said in (
        ("no document of shard 1/2 lacks its placebos", False, "not started: no document of shard 1/2 lacks"),
        (None, True, "works"),
        (
            DatabaseUnreachableError("Postgres does not answer."),
            True,
            "so it starts: Postgres does not answer.",
        ),
    ):
        asked = mock.Mock(side_effect=[answer])
        monkeypatch.setattr("toolformer_ops.stages.placebo.why_nothing_to_do", asked)
        made = task("print('works')", arguments=arguments, shard="1/2")
        made.execute(context())
        assert [*asked.call_args.args[1:]] == ["night-1", "MT", "1/2"]
        assert said in caplog.text + capsys.readouterr().out
        assert (made._running is not None) == starts


def test_a_stage_gets_the_address_of_its_tools_connection(monkeypatch, tools_folder):
    (tools_folder / "shop.toml").write_text(
        'name = "Shop"\npurpose = "Asks a shop."\nprompt = "shop.txt"\n[database]\nconnection = "the_shop"\n'
        "[recorded]\nengine = \"Postgres\"\ntables = '{}'\n"
    )
    (tools_folder / "shop.txt").write_text(PROMPT.format(name="Shop"))
    address = "postgres://shopkeeper:secret@db:5432/shop"
    named = mock.Mock(return_value=mock.Mock(get_uri=lambda: address))
    monkeypatch.setattr(local_process.BaseHook, "get_connection", named)
    log: Log = []
    program = "import os; print(os.environ.get('AIRFLOW_CONN_THE_SHOP'))"
    task(program, log, arguments=["stage", "annotate", "--run", "r", "--tool", "Shop"]).execute(context())
    task(program, log, arguments=["stage", "annotate", "--run", "r", "--tool", "MT"]).execute(context())
    assert log == [address, "None"]
    assert [call.args for call in named.call_args_list] == [("the_shop",)]


ECHO = "import json, sys; print(json.dumps(sys.argv[1:]))"
RETURNED: list[tuple[str, dict[str, Any], object, list[str]]] = [
    # Both streams are log lines; the last line of stdout is the result, if there is to be one.
    ("import sys; sys.stdout.buffer.write(b'\\xff\\n')", {}, None, ["\\xff"]),
    (
        "print('3 shards'); print('[1, 2]'); import sys; print('ünïcode', file=sys.stderr)",
        {"returns_result": True},
        [1, 2],
        ["3 shards", "[1, 2]", "ünïcode"],
    ),
    (ECHO, {"shard": "1/3"}, None, ['["stage", "sample", "--shard", "1/3"]']),
]
"""A program, the task's options, what the task returns, and the lines of its log in any order."""


@pytest.mark.parametrize(("program", "options", "returned", "lines"), RETURNED)
def test_the_last_line_that_a_stage_prints_is_the_result_after_the_log(program, options, returned, lines):
    log: Log = []
    assert task(program, log, **options).execute(context()) == returned
    assert sorted(log) == sorted(lines)


def test_arguments_reach_the_program_as_they_are_without_a_shell():
    arguments = ["stage", "start-run", "--parameters", '{"corpus": "it\'s $(id) `id` *; a b"}']
    assert task(ECHO, arguments=arguments, returns_result=True).execute(context()) == arguments


SAY = "import sys; print('CorpusError: expected x.jsonl, found none.', file=sys.stderr); sys.exit({})"
FAILURES = [
    ("print('three')", True, True, r"expected ids or counts as the last line on stdout, found 'three'"),
    # A wrong request and a failed gate are not tried again.
    (SAY.format(2), False, False, r"stage sample: .* CorpusError: expected x.jsonl, found none\."),
    (SAY.format(1), False, True, r"CorpusError: expected x.jsonl, found none\."),
    (
        "import os; os.kill(os.getpid(), 9)",
        False,
        True,
        r"killed by SIGKILL \(the machine may be out of memory\)",
    ),
]
"""A program, whether it is asked for a result, whether the task may be tried again, and what it says."""


@pytest.mark.parametrize(("program", "returns_result", "may_be_retried", "said"), FAILURES)
def test_a_stage_that_fails_says_why_or_that_it_may_be_retried(program, returns_result, may_be_retried, said):
    with pytest.raises(AirflowException, match=said) as caught:
        task(program, returns_result=returns_result).execute(context())
    assert isinstance(caught.value, AirflowFailException) is not may_be_retried


def test_what_an_audit_found_is_the_note_also_if_the_audit_is_red(monkeypatch):
    notes: list[str] = []
    monkeypatch.setattr(run_notes, "set_note", lambda context, text: notes.append(text))
    for status in (0, 3):
        program = f'import sys; print(\'{{"report": "3 looked at"}}\'); sys.exit({status})'
        with pytest.raises(AirflowFailException) if status else contextlib.nullcontext():
            task(program, tells=run_notes.set_report).execute(context())
    assert notes == ["3 looked at"] * 2


def test_killing_the_task_ends_the_stage_with_its_children():
    log: Log = []
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    made = task(program, log)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(made.run_stage, [])
        assert wait_until(lambda: bool(log))  # while the stage runs
        child = int(log[0])
        assert is_running(child)
        made.on_kill()
        assert "ended by SIGTERM" in str(running.exception(60))
    assert wait_until(lambda: not is_running(child))


def test_a_stage_that_does_not_heed_sigterm_is_killed(monkeypatch):
    monkeypatch.setattr(local_process, "GRACE_SECONDS", 0.2)
    log: Log = []
    program = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    running = RunningProcess([sys.executable, "-c", program], log.append)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(running.wait)
        assert wait_until(lambda: log == ["deaf"])
        running.kill_group()
        assert ending.result(60).returncode == -signal.SIGKILL
    running.kill_group()  # of which nothing is left


def test_a_stage_does_not_outlive_a_task_that_was_killed_by_9():
    task_source = (
        "import sys\n"
        "from toolformer_ops.airflow_tasks.local_process import RunningProcess\n"
        "stage = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'\n"
        "RunningProcess([sys.executable, '-c', stage], lambda line: print(line, flush=True)).wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", task_source], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert parent.stdout is not None
    stage = int(parent.stdout.readline())
    assert is_running(stage)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not is_running(stage))
