"""A process that answers JSON lines.

It is started with a bare environment, asked one line at a time, and ended when it takes too long. What a tool
asks of it, and what it answers, is the tool's own (`databases/worker.py`, `functions/worker.py`).
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""What of the environment the process gets: no setting and no secret."""
MOST_ANSWER_BYTES = 64 * 2**20


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
        )

    def ask(self, question: Any, seconds: float) -> dict[str, Any]:
        """The answer to a question; the process has to be started.

        Raises:
            LateError, EndedError: there is none; the process is ended.
        """
        answer: dict[str, Any] = json.loads(self._exchange(json.dumps(question).encode() + b"\n", seconds))
        return answer

    def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _exchange(self, question: bytes, seconds: float) -> bytes:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EndedError
        deadline = time.monotonic() + seconds
        try:
            process.stdin.write(question)
        except OSError as error:
            self.close()
            raise EndedError from error
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        answer = bytearray()
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                self.close()
                raise LateError
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part or len(answer) > MOST_ANSWER_BYTES:
                self.close()
                raise EndedError
            answer += part
        return bytes(answer)
