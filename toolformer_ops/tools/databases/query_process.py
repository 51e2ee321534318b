"""The process that runs a tool's queries (`worker.py`), from the side that asks: started, asked, and ended when it takes too long.

A database's own time limit ends nearly every query that takes too long. What goes on within one step, such as
a LIKE with many wildcards, ends with its process, and the next query starts another.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.databases import reasons
from toolformer_ops.tools.databases.requests import AwayError, Opened, Opening, WrongDatabaseError

COMMAND = (sys.executable, "-I", "-m", "toolformer_ops.tools.databases.worker")
START_SECONDS = 30.0
"""Longest start, with the look at the tables."""
GRACE_SECONDS = 2.0
"""Given to a query beyond its limit, so that its database says so itself."""
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""What of the environment the process gets: no setting and no secret."""
MOST_ANSWER_BYTES = 64 * 2**20


class QueryProcess:
    """A database that another process has open."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> Opened:
        """Start the process, and return what the database says of itself.

        Raises:
            WrongDatabaseError: the database cannot be used.
            AwayError: it does not answer now.
        """
        self.close()
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a driver's message may hold the address
            env=environment,
            bufsize=0,
        )
        try:
            answer = self._ask(asdict(self._opening), START_SECONDS + 3 * self._opening.seconds)
        except RejectedInputError as error:
            raise AwayError("expected its tables, found no answer") from error
        return Opened.of(answer["opened"])

    def answer(self, query: str) -> list[list[str | None]]:
        """The rows of a query as texts, None for NULL.

        Raises:
            RejectedInputError: the query is refused, breaks a limit, or ended the process.
            WrongDatabaseError, AwayError: the process was started anew, and the database cannot be used.
        """
        if self._process is None:
            self.open()
        rows: list[list[str | None]] = self._ask(query, self._opening.seconds + GRACE_SECONDS)["rows"]
        return rows

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _ask(self, question: Any, seconds: float) -> dict[str, Any]:
        """The answer to one line."""
        line = self._exchange(json.dumps(question).encode() + b"\n", seconds)
        answer: dict[str, Any] = json.loads(line)
        if "reason" in answer:
            raise RejectedInputError(answer["reason"])
        if "wrong" in answer or "away" in answer:
            self.close()
            raise WrongDatabaseError(answer["wrong"]) if "wrong" in answer else AwayError(answer["away"])
        return answer

    def _exchange(self, question: bytes, seconds: float) -> bytes:
        """The line that the process answers; without one the process is ended."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RejectedInputError(reasons.PROCESS_ENDED)
        deadline = time.monotonic() + seconds
        try:
            process.stdin.write(question)
        except OSError as error:
            self.close()
            raise RejectedInputError(reasons.PROCESS_ENDED) from error
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        found = bytearray()
        while not found.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                self.close()
                raise RejectedInputError(reasons.TIMED_OUT)
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part or len(found) > MOST_ANSWER_BYTES:
                self.close()
                raise RejectedInputError(reasons.PROCESS_ENDED)
            found += part
        return bytes(found)
