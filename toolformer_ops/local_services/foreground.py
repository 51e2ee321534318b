"""Servers as children of this process, for tests: they end when it ends, even if it is killed by -9.

The services of `make up` are supervised instead (`supervision.py`).
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from toolformer_ops.errors import ServiceError
from toolformer_ops.local_services.accounts import Account
from toolformer_ops.local_services.tied_process import tied_command

_POLL_SECONDS = 0.05


class ForegroundServer:
    """One server process, its log file, and how to stop it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        directory: Path,
        account: Account | None = None,
        environment: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Start `command` in `directory`, its output appended to `log`, as `account` (None: as ourselves)."""
        self.name = name
        self._log = log
        self._stop_signal = stop_signal
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                tied_command(command, account, stop_signal),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **(environment or {})},
                # Its own group, so that Ctrl-C at the terminal does not stop it under tests that still tidy up.
                process_group=0,
            )

    @property
    def process_id(self) -> int:
        """The process id of the server."""
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Return once `ready()` is true; raises `ServiceError` when the server ends or the time is over."""
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            status = self._process.poll()
            if status is not None:
                raise ServiceError(f"{self.name} ended with status {status} as it started. Its log:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"expected {self.name} to answer within {timeout_seconds:.0f} s, it did not. Its log:\n{self.log_tail()}"
                )
            time.sleep(_POLL_SECONDS)

    def log_tail(self, lines: int = 15) -> str:
        """The last lines that the server wrote."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, timeout_seconds: float = 20.0) -> None:
        """Ask the server to end, and kill it when it has not within `timeout_seconds`. May be called twice."""
        if self._process.poll() is None:
            self._process.send_signal(self._stop_signal)
            try:
                self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
