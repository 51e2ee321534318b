"""A stage as a process on the worker: what becomes of its lines, its exit status, its children, and its last line."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from toolformer_ops.config import REPOSITORY
from toolformer_ops.errors import DatabaseUnreachableError
from toolformer_ops.orchestration import local_process
from toolformer_ops.orchestration.local_process import RunningProcess, StageProcess

Log = list[str]


def task(program: str, log: Log | None = None, **kwargs: Any) -> StageProcess:
    """A task whose program is this Python source, with its log lines going to `log`."""
    arguments = kwargs.pop("arguments", ["stage", "sample"])
    made = StageProcess(task_id="sample", arguments=arguments, command=[sys.executable, "-c", program], **kwargs)
    if log is not None:
        made._log_line = log.append  # type: ignore[method-assign]
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


def test_both_streams_become_log_lines() -> None:
    log: Log = []
    program = "import sys; print('on stdout'); print('on stderr: 3 calls, ünïcode', file=sys.stderr)"
    task(program, log).execute(context())
    assert sorted(log) == ["on stderr: 3 calls, ünïcode", "on stdout"]


@pytest.mark.parametrize(
    ("answer", "starts", "said"),
    [
        ("no document of shard 1/2 lacks its placebos", False, "not started: no document of shard 1/2 lacks"),
        (None, True, "works"),
        (DatabaseUnreachableError("Postgres does not answer."), True, "so it starts: Postgres does not answer."),
    ],
)
def test_a_stage_of_placebos_is_started_only_if_it_has_work_or_nobody_knows(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    answer: object,
    starts: bool,
    said: str,
) -> None:
    asked = mock.Mock(side_effect=[answer])
    monkeypatch.setattr("toolformer_ops.stages.placebo.why_nothing_to_do", asked)
    arguments = ["stage", "placebo", "--run", "night-1", "--tool", "MT"]
    made = task("print('works')", arguments=arguments, shard="1/2")
    made.execute(context())
    assert [*asked.call_args.args[1:]] == ["night-1", "MT", "1/2"]
    assert said in caplog.text + capsys.readouterr().out
    assert (made.ending is not None) == starts


def test_lines_come_while_the_stage_runs() -> None:
    log: Log = []
    program = "import sys; print('first', file=sys.stderr, flush=True); sys.stdin.read(); import time; time.sleep(600)"
    running = RunningProcess([sys.executable, "-c", program], log.append)
    reader = threading.Thread(target=running.wait)
    reader.start()
    assert wait_until(lambda: log == ["first"])
    running.kill_group()
    reader.join()


def test_bytes_that_are_no_utf_8_do_not_break_the_log() -> None:
    log: Log = []
    task("import sys; sys.stdout.buffer.write(b'\\xff\\n')", log).execute(context())
    assert log == ["\\xff"]


def test_arguments_reach_the_program_as_they_are_without_a_shell() -> None:
    arguments = ["stage", "start-run", "--parameters", '{"corpus": "it\'s $(id) `id` *; a b"}']
    made = task("import json, sys; print(json.dumps(sys.argv[1:]))", arguments=arguments, returns_result=True)
    assert made.execute(context()) == arguments


def test_a_shard_is_added_to_the_arguments() -> None:
    made = task("import json, sys; print(json.dumps(sys.argv[1:]))", shard="1/3", returns_result=True)
    assert made.execute(context()) == ["stage", "sample", "--shard", "1/3"]


def test_only_the_last_line_on_stdout_is_returned() -> None:
    program = 'import sys; print("3 shards"); print(\'["0/2", "1/2"]\'); print("done", file=sys.stderr)'
    assert task(program, returns_result=True).execute(context()) == ["0/2", "1/2"]


def test_nothing_is_returned_where_no_result_is_asked_for() -> None:
    assert task("print('[\"0/1\"]')").execute(context()) is None


def test_a_last_line_that_is_no_json_is_an_error() -> None:
    with pytest.raises(AirflowException, match="expected ids or counts as the last line on stdout, found 'three'"):
        task("print('three')", returns_result=True).execute(context())


@pytest.mark.parametrize("status", [2, 3])
def test_a_wrong_request_and_a_failed_gate_are_not_retried_and_say_the_stages_last_line(status: int) -> None:
    program = f"import sys; print('CorpusError: expected x.jsonl, found none.', file=sys.stderr); sys.exit({status})"
    with pytest.raises(AirflowFailException, match=r"stage sample: .* CorpusError: expected x.jsonl, found none\."):
        task(program).execute(context())


def test_another_error_may_be_retried() -> None:
    with pytest.raises(AirflowException) as caught:
        task("import sys; print('connection lost', file=sys.stderr); sys.exit(1)").execute(context())
    assert not isinstance(caught.value, AirflowFailException)
    assert "connection lost" in str(caught.value)


def test_a_killed_stage_may_be_retried_and_says_which_signal_it_was() -> None:
    with pytest.raises(
        AirflowException, match=r"stage sample: killed by SIGKILL \(the machine may be out of memory\)"
    ) as caught:
        task("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").execute(context())
    assert not isinstance(caught.value, AirflowFailException)


def test_killing_the_task_ends_the_stage_and_its_children() -> None:
    log: Log = []
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    made = task(program, log)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            made.run_stage([])
        except AirflowException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert wait_until(lambda: bool(log))
    child = int(log[0])
    assert is_running(child)
    made.on_kill()
    thread.join(timeout=60)
    assert wait_until(lambda: not is_running(child))
    assert "ended by SIGTERM; the next try starts after the last committed micro-batch" in str(caught[0])


def test_a_stage_that_does_not_heed_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_process, "GRACE_SECONDS", 0.2)
    log: Log = []
    program = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    )
    running = RunningProcess([sys.executable, "-c", program], log.append)
    endings: list[local_process.Ending] = []
    thread = threading.Thread(target=lambda: endings.append(running.wait()))
    thread.start()
    assert wait_until(lambda: log == ["deaf"])
    running.kill_group()
    thread.join(timeout=60)
    assert endings[0].returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_stage_does_not_outlive_a_task_that_was_killed_by_9() -> None:
    task_source = (
        "import sys\n"
        "from toolformer_ops.orchestration.local_process import RunningProcess\n"
        "stage = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'\n"
        "RunningProcess([sys.executable, '-c', stage], lambda line: print(line, flush=True)).wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", task_source], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert parent.stdout is not None
    stage = int(parent.stdout.readline())
    assert is_running(stage)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not is_running(stage))
