"""Run a stage as a process on the Airflow worker: an argument list, no shell.

The lines of the process become lines of the task log while it runs. Its process group is ended when the task
is, and it ends with the task's own process if that is killed. Does not read what the stage prints, but for
the last line if ids are asked for.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from airflow.sdk import BaseHook, Context
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

from toolformer_ops import termination
from toolformer_ops.airflow_tasks.endings import describe_exit
from toolformer_ops.airflow_tasks.retrying import stage_failure
from toolformer_ops.airflow_tasks.stage_task import StageTask
from toolformer_ops.config import SHIPPED
from toolformer_ops.errors import ToolError
from toolformer_ops.tools.databases.database_file import connection_variable
from toolformer_ops.tools.registry import get_tool

COMMAND = (sys.executable, "-m", "toolformer_ops")
GRACE_SECONDS = 30.0
"""Between SIGTERM and SIGKILL to a stage that does not end by itself, as in Kubernetes: a training writes a
checkpoint."""


class Ending(NamedTuple):
    """How a process ended."""

    returncode: int
    """Exit status; negative: the signal that killed it."""
    last_output: str
    """Last line on stdout that is not empty."""
    last_error: str
    """Last line on stderr that is not empty: what the stage says about its failure."""


class RunningProcess:
    """A started process in a new process group, whose lines are handed on as they come."""

    def __init__(
        self,
        argv: Sequence[str],
        on_line: Callable[[str], None],
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start it; `variables` are added to the environment of this process."""
        self._on_line = on_line
        self._process = subprocess.Popen(
            list(argv),
            cwd=SHIPPED,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # Safe with threads: the library is loaded already, and the call neither allocates nor locks.
            preexec_fn=termination.end_with_parent,  # noqa: PLW1509 - a stage never outlives its task
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
        )

    def wait(self) -> Ending:
        """Hand on lines until the process has ended."""
        last = {"stdout": "", "stderr": ""}
        # A daemon: a time limit interrupts this thread, and then nothing waits for the other before the stage
        # is ended.
        reader = threading.Thread(target=self._read, args=("stdout", last), daemon=True)
        reader.start()
        self._read("stderr", last)
        reader.join()
        return Ending(self._process.wait(), last["stdout"], last["stderr"])

    def kill_group(self) -> None:
        """End the process and all that it started: SIGTERM, and SIGKILL to what is left after the grace time."""
        self._signal_group(signal.SIGTERM)
        try:
            self._process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._on_line(f"still running {GRACE_SECONDS:.0f} s after SIGTERM: sending SIGKILL")
        self._signal_group(signal.SIGKILL)

    def _read(self, name: str, last: dict[str, str]) -> None:
        for line in getattr(self._process, name):
            if stripped := line.rstrip():
                last[name] = stripped
                self._on_line(stripped)

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # all of the group has ended
            os.killpg(self._process.pid, number)


class StageProcess(StageTask):
    """Run `python -m toolformer_ops` with these arguments on the worker.

    Args:
        arguments: what follows `python -m toolformer_ops`; templated.
        command: the program; for tests.
    """

    template_fields: Sequence[str] = ("arguments", "shard", "asset_extra")
    template_fields_renderers: ClassVar[dict[str, str]] = {"arguments": "json", "asset_extra": "json"}
    ui_color = "#e6f0e6"

    def __init__(self, *, arguments: Sequence[str], command: Sequence[str] = COMMAND, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.arguments = list(arguments)
        self.command = list(command)
        self._running: RunningProcess | None = None

    def execute(self, context: Context) -> Any:
        """Run the stage, if it has work; return its ids or counts if `returns_result` asks for them.

        Raises:
            AirflowFailException: the stage failed in a way that a retry cannot mend.
            AirflowException: it failed, and may be tried again.
        """
        if self.has_nothing_to_do():
            return None
        try:
            ending = self.run_stage(self.stage_arguments)
        finally:
            self.tell(context)
        if self.reads_result and self.printed is None:
            raise AirflowException(
                f"{self.stage_name}: expected ids or counts as the last line on stdout, found "
                f"{ending.last_output!r:.200}."
            )
        return self.finish(context)

    def run_stage(self, arguments: Sequence[str]) -> Ending:
        """Run the program with these arguments to its end, and raise unless it ended well."""
        # 1. The addresses of the Connections that the tool needs. A tool or Connection that is not there is told by
        #    the stage itself.
        options = dict(pairwise(arguments))
        variables: dict[str, str] = {}
        with suppress(ToolError):
            for connection in get_tool(options["--tool"]).connections if "--tool" in options else ():
                try:
                    uri = BaseHook.get_connection(connection).get_uri()
                except AirflowNotFoundException as error:
                    self.log.warning("the Connection %s of the tool is not there: %s", connection, error)
                    continue
                variables[connection_variable(connection)] = uri
        # 2. The program.
        self._running = RunningProcess([*self.command, *arguments], partial(self.log.info, "%s"), variables)
        ending = self._running.wait()
        if self.reads_result:
            with suppress(ValueError):
                self.printed = json.loads(ending.last_output)
        if ending.returncode != 0:
            status = ending.returncode if ending.returncode > 0 else 128 - ending.returncode
            raise stage_failure(
                self.stage_name, describe_exit(status, ending.last_error or ending.last_output)
            )
        return ending

    def on_kill(self) -> None:
        """End the stage with its task."""
        if self._running is not None:
            self._running.kill_group()
