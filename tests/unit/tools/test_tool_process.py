"""The processes of tools: what becomes of one that works on though nobody waits for it."""

import json
import signal
import sqlite3
import subprocess
import sys

import pytest

from toolformer_ops.tools.databases.database_tool import ANSWERING
from toolformer_ops.tools.functions import function_tool

ENDLESS_QUERY = (
    "select instr(replace(printf('%900000d', 1), ' ', 'a'), replace(printf('%450000d', 1), ' ', 'a') || 'b')"
)
SLOW = "import time\ndef wait(a: str) -> str:\n    time.sleep(3600)\n    return a\n"


QUESTIONS = {
    ANSWERING["sqlite"]: (
        {"address": {"path": "a.db"}, "tables": [], "seconds": 0.1, "rows": 1, "bytes": 9},
        {"query": ENDLESS_QUERY},
    ),
    function_tool.ANSWERING: ({"path": "slow.py", "function": "wait"}, {"a": "b"}),
}
"""What a process opens, and what it then works on for hours, or seconds beyond its alarm."""


@pytest.mark.parametrize("answering", QUESTIONS, ids=lambda answering: answering[1])
def test_a_process_that_nobody_waits_for_ends_by_its_alarm(tmp_path, answering):
    sqlite3.connect(tmp_path / "a.db").execute("create table a (b text)").connection.close()
    (tmp_path / "slow.py").write_text(SLOW)
    program = (
        "from toolformer_ops.tools.files import worker; worker.ALARM_SECONDS = 0.5; "
        f"worker.answer_lines(worker.Worker(*{answering!r}).reply)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    opening, question = QUESTIONS[answering]
    asked = {"number": 1, "seconds": 60, "question": opening}
    process.stdin.write(json.dumps(asked).encode() + b"\n")
    assert process.stdout.readline() == b"\n"
    assert process.stdout.readline() != b""
    process.stdin.write(json.dumps({"number": 2, "seconds": 0.1, "question": question}).encode() + b"\n")
    assert process.wait(60) == -signal.SIGALRM
    process.stdin.close()
    process.stdout.close()
