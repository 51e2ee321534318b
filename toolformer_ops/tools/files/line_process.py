"""A process that answers JSON lines.

It is started with a bare environment, asked one line at a time, and ended when it takes too long, with all
processes that it has started. `LineProcess` is the side that asks, `answer_lines` the process. What a tool asks,
and what is answered, is the tool's own (`databases/worker.py`, `functions/worker.py`).

Questions have numbers, and answers the number of their question. What the tool's code writes into the pipe, or a
copy of the process answers, is then no answer to a later question.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""What of the environment the process gets: no setting and no secret."""
MOST_ANSWER_BYTES = 64 * 2**20
"""Most bytes that the process may write for a question."""
ALARM_SECONDS = 60.0
"""Given to a question beyond its limit; the side that asks ends the process long before."""

Answer = dict[str, Any]


class LateError(Exception):
    """The process did not answer in time, and was ended."""


class EndedError(Exception):
    """The process ended without an answer."""


class LineProcess:
    """A process; started by the first question, and again after it ended."""

    def __init__(
        self, module: str, *, folder: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        """Prepare the process.

        This Python runs `module` in `folder`, with `variables` besides `KEPT_VARIABLES`.
        """
        self._command: Sequence[str] = (sys.executable, "-I", "-B", "-m", module)
        self._folder = folder
        self._variables = dict(variables or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not ended by this side since."""
        return self._process is not None

    @property
    def process_id(self) -> int | None:
        """The id of the running process."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it, anew if it runs."""
        self.close()
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a message of a driver may hold a secret
            env=kept | self._variables,
            cwd=self._folder,
            bufsize=0,
            start_new_session=True,
        )

    def ask(self, question: Any, seconds: float) -> Answer:
        """The answer to a question; the process has to be started.

        Raises:
            LateError, EndedError: there is none; the process is ended.
        """
        self._number += 1
        message = {"number": self._number, "seconds": seconds, "question": question}
        try:
            return self._exchange(json.dumps(message).encode() + b"\n", seconds)
        except (LateError, EndedError):
            self.close()
            raise

    def close(self) -> None:
        """End it, with the processes that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        # It is not waited for yet, so that no other group of processes can have its number.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _exchange(self, message: bytes, seconds: float) -> Answer:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EndedError
        deadline = time.monotonic() + seconds
        try:
            process.stdin.write(message)
        except OSError as error:
            raise EndedError from error
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        written = 0
        rest = b""
        while written <= MOST_ANSWER_BYTES:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise LateError
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                raise EndedError
            written += len(part)
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if (answer := _answer_in(line, self._number)) is not None:
                    return answer
        raise EndedError


def _answer_in(line: bytes, number: int) -> Answer | None:
    """The answer to the question of this number; None if the line is something else."""
    try:
        written = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(written, dict) or written.get("number") != number:
        return None
    answer: Answer = written["answer"]
    return answer


def answer_lines(answer: Callable[[Any], Answer]) -> None:
    """Answer the questions on stdin until it ends; what `answer` raises ends the process.

    For all other code of the process stdin is empty, and stdout goes nowhere. An alarm ends it within a
    question that it works on for too long though its parent was killed.
    """
    process_id = os.getpid()
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for line in questions:
        message = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, message["seconds"] + ALARM_SECONDS)
        reply = {"number": message["number"], "answer": answer(message["question"])}
        signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() != process_id:  # a copy that the tool's code has made of this process
            os._exit(0)
        # What was written into the pipe before ends with a line break of its own.
        answers.write(f"\n{json.dumps(reply)}\n")
        answers.flush()
    if os.getpgrp() == process_id:
        os.killpg(process_id, signal.SIGKILL)
