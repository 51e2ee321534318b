"""The process that answers for a tool (`worker.py`), from the side that asks.

It is started with a bare environment, asked one question at a time, and ended when it takes too long, with
all processes that it has started; the next question starts another.

Questions have numbers, and answers the number of their question. What the tool's code writes into the pipe,
or a copy of the process answers, is then no answer to a later question.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolformer_ops.errors import InfrastructureError, RejectedInputError, ToolError
from toolformer_ops.tools.files.secret_values import without_secrets

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""What of the environment the process gets: no setting and no secret."""
MOST_ANSWER_BYTES = 64 * 2**20
"""Most bytes that the process may write for a question."""
START_SECONDS = 50.0
"""Longest start, plus the time of three answers, which a look at a database takes."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a process opens for a tool, and how its errors are told."""

    tool: str
    """The tool's name."""
    table: str
    """The table of the tool file that says what answers, `database` or `function`."""
    answering: tuple[str, str]
    """Module and name of a class derived from `Answering`; only the process imports it."""
    arguments: Mapping[str, Any]
    """The arguments of its `open`."""
    seconds: float
    """Longest time of an answer."""
    timed_out: str
    """The reason for a question that takes longer."""
    ended: str
    """The reason for a question that ends the process."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """By name, what no message tells."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the process gets in addition to `KEPT_VARIABLES`."""
    folder: Path | None = None
    """Where it runs."""

    @property
    def start_seconds(self) -> float:
        """Longest start of the process."""
        return START_SECONDS + 3 * self.seconds


class ToolProcess:
    """A process; started by `open`, and again by the first question after it ended."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0

    @property
    def process_id(self) -> int | None:
        """The id of the running process."""
        return self._process.pid if self._process else None

    def open(self) -> Any:
        """Start it, anew if it runs; returns what it says of itself, as JSON.

        Raises:
            ToolError: the tool file has to be changed.
            InfrastructureError: nothing answers now.
        """
        opening = self.opening
        self.close()
        atexit.register(self.close)
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(
            (sys.executable, "-I", "-B", "-m", "toolformer_ops.tools.files.worker", *opening.answering),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a message of a driver may hold a secret
            env={**kept, **opening.variables},
            cwd=opening.folder,
            bufsize=0,
            start_new_session=True,
        )
        try:
            return self._ask(opening.arguments, opening.start_seconds)
        except RejectedInputError as error:
            self.close()
            raise InfrastructureError(self._told(error.message or error.reason)) from error

    def answer(self, arguments: Mapping[str, Any]) -> Any:
        """The answer to a call's arguments, as JSON.

        Raises:
            RejectedInputError: there is none; the process may have been ended for it.
            InfrastructureError: nothing answers now, so that nothing may be said of the call.
        """
        try:
            if self._process is None:
                self.open()
            return self._ask(arguments, self.opening.seconds)
        except ToolError as error:
            raise InfrastructureError(str(error)) from error

    def close(self) -> None:
        """End it, with the processes that it has started."""
        atexit.unregister(self.close)
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

    def _ask(self, question: Mapping[str, Any], seconds: float) -> Any:
        """The answer to a question, or the error that it is."""
        self._number += 1
        message = {"number": self._number, "seconds": seconds, "question": question}
        try:
            answer = self._exchange(json.dumps(message).encode() + b"\n", seconds)
        except TimeoutError as error:
            self.close()
            raise RejectedInputError(self.opening.timed_out) from error
        except (OSError, EOFError) as error:
            self.close()
            raise RejectedInputError(self.opening.ended) from error
        if "reason" in answer:
            raise RejectedInputError(
                answer["reason"], without_secrets(answer["message"], self.opening.secrets)
            )
        if "wrong" in answer:
            self.close()
            raise ToolError(self._told(answer["wrong"]))
        if "away" in answer:
            self.close()
            raise InfrastructureError(self._told(answer["away"]))
        return answer["answer"]

    def _exchange(self, message: bytes, seconds: float) -> dict[str, Any]:
        """What the process writes for a message.

        Raises:
            TimeoutError: it writes nothing in time.
            EOFError, OSError: it ended, or writes too much.
        """
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EOFError
        deadline = time.monotonic() + seconds
        process.stdin.write(message)
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        written = 0
        rest = b""
        while written <= MOST_ANSWER_BYTES:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimeoutError
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                break
            written += len(part)
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, RecursionError):  # it is no JSON
                    answer = json.loads(line)
                    if isinstance(answer, dict) and answer.get("number") == self._number:
                        return answer
        raise EOFError

    def _told(self, what: str) -> str:
        """An error message with the tool, what was expected, and the remedy; no secret is in it."""
        table = self.opening.table
        said = without_secrets(what.rstrip(".?"), self.opening.secrets)
        if not said.startswith("expected"):
            said = f"expected a {table} that answers, found: {said}"
        return f"tool {self.opening.tool}: {said}. Look at the {table}, and at [{table}] of the tool file."
