"""Keep the embedded services running: supervisord, its configuration, and how to speak with it over a Unix socket.

supervisord starts a service again when it ends by itself, keeps what it prints in a file of bounded size, and stops the services in
the reverse order of their priorities. Does not know what the services are: `programs.py` does.
"""

import configparser
import hashlib
import http.client
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
from supervisor.xmlrpc import SupervisorTransport

from toolformer_ops.errors import ServiceError
from toolformer_ops.local_services.accounts import Account
from toolformer_ops.local_services.private_files import write_private
from toolformer_ops.local_services.service_settings import StatePaths
from toolformer_ops.local_services.stray_processes import end_strays
from toolformer_ops.local_services.tied_process import tied_command

LIVING_STATES = frozenset({"RUNNING", "STARTING", "BACKOFF"})
"""A service in one of these runs, or will without our doing."""

_START_SECONDS = 15.0
_STOP_SECONDS = 120.0
_POLL_SECONDS = 0.1
# The path of a Unix socket may have 107 bytes, and supervisord makes its own under a longer name first.
_LONGEST_SOCKET_PATH = 95


@dataclass(frozen=True)
class Program:
    """A service as supervisord runs it.

    `command` holds no secret; `priority` orders starting (low first) and stopping (low last); `stop_signal` asks it to end, and its
    whole process group where `stop_group`; after `stop_seconds` it is killed. `account`: who runs it (None: ourselves).
    """

    name: str
    command: tuple[str, ...]
    directory: Path
    priority: int
    stop_signal: signal.Signals = signal.SIGTERM
    stop_group: bool = True
    stop_seconds: int = 30
    account: Account | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def section(self, log: Path) -> dict[str, str]:
        """The options of `[program:<name>]`."""
        words = tied_command(self.command, self.account, self.stop_signal)
        environment = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(self.environment.items()))
        return {
            "command": _escaped(shlex.join(words)),
            "directory": _escaped(str(self.directory)),
            "priority": str(self.priority),
            "environment": environment,
            "autostart": "false",  # `up` starts them one after the other, each when what it needs is ready
            "autorestart": "true",
            "startsecs": "1",
            "startretries": "3",
            "stopsignal": self.stop_signal.name.removeprefix("SIG"),
            "stopasgroup": str(self.stop_group).lower(),
            "killasgroup": "true",
            "stopwaitsecs": str(self.stop_seconds),
            "redirect_stderr": "true",
            "stdout_logfile": _escaped(str(log)),
            "stdout_logfile_maxbytes": "20MB",
            "stdout_logfile_backups": "2",
        }


@dataclass(frozen=True)
class ProcessReport:
    """What supervisord says of a service: its state (RUNNING, STOPPED, FATAL ...), process id (0: none), start (Unix seconds)."""

    name: str
    state: str
    process_id: int
    started_at: int
    message: str


def _escaped(text: str) -> str:
    """`text` for supervisord's files, where % begins a replacement."""
    return text.replace("%", "%%")


class Supervisor:
    """The supervisord of one state folder."""

    def __init__(self, paths: StatePaths) -> None:
        """Starts nothing."""
        self._paths = paths
        self._process_id_file = paths.state / "supervisord.pid"
        self._log = paths.logs / "supervisord.log"

    @property
    def socket(self) -> Path:
        """The Unix socket; in the temporary folder where the state folder's name is too long for one."""
        inside = self._paths.state / "supervisor.sock"
        if len(os.fsencode(inside)) <= _LONGEST_SOCKET_PATH:
            return inside
        digest = hashlib.sha256(os.fsencode(self._paths.state)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"toolformer-ops-{os.geteuid()}" / f"{digest}.sock"

    def answers(self) -> bool:
        """Whether supervisord runs and answers."""
        try:
            self._call("supervisor.getState")
        except (OSError, http.client.HTTPException):
            return False
        return True

    def process_id(self) -> int | None:
        """The process id of the supervisord of this folder, if that process runs."""
        try:
            process = psutil.Process(int(self._process_id_file.read_text()))
            words = process.cmdline()
        except (OSError, ValueError, psutil.Error):
            return None
        return process.pid if str(self._paths.supervisor_configuration) in words else None

    def recover(self) -> list[str]:
        """Tidy up after a supervisor or a service that was killed; returns what was done, for the user."""
        messages = []
        if not self.answers():
            alive = self.process_id()
            if alive is not None:
                os.kill(alive, signal.SIGTERM)
                _wait_for_end(alive, _STOP_SECONDS)
                messages.append(f"supervisord (process {alive}) did not answer on {self.socket}: it was stopped.")
            elif self._process_id_file.exists():
                self._process_id_file.unlink()
                messages.append(
                    "supervisord was killed or the machine was switched off: its stale pid file was removed."
                )
        ended = end_strays(self._log, self._paths.state, [report.process_id for report in self.reports().values()])
        if ended:
            messages.append(f"{ended} processes of services that were killed were still there: they were ended.")
        return messages

    def configure(self, programs: Iterable[Program]) -> None:
        """Write the configuration; a supervisord that runs takes over what has changed, and stops what was changed."""
        write_private(self._paths.supervisor_configuration, self._configuration(programs))
        if not self.answers():
            return
        added, changed, removed = self._call("supervisor.reloadConfig")[0]
        for name in [*changed, *removed]:
            self._call("supervisor.stopProcessGroup", name)
            self._call("supervisor.removeProcessGroup", name)
        for name in [*added, *changed]:
            self._call("supervisor.addProcessGroup", name)

    def start(self, environment: Mapping[str, str]) -> None:
        """Start supervisord in the background with exactly this environment, unless it answers already."""
        if self.answers():
            return
        self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(self._paths.supervisor_configuration)]
        finished = subprocess.run(
            command, env=dict(environment), cwd=self._paths.state, capture_output=True, text=True, check=False
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self.answers():
            if finished.returncode != 0 or time.monotonic() > deadline:
                raise ServiceError(
                    f"expected supervisord to start, found status {finished.returncode}: {finished.stderr.strip()[-2000:]} "
                    f"See {self._log}."
                )
            time.sleep(_POLL_SECONDS)

    def reports(self) -> dict[str, ProcessReport]:
        """Every service that supervisord knows; empty when it does not run."""
        try:
            found = self._call("supervisor.getAllProcessInfo")
        except (OSError, http.client.HTTPException):
            return {}
        return {
            entry["name"]: ProcessReport(
                entry["name"], entry["statename"], int(entry["pid"]), int(entry["start"]), str(entry["spawnerr"])
            )
            for entry in found
        }

    def start_program(self, name: str) -> bool:
        """Start a service, without waiting; False when it runs or is being started already."""
        if self.reports()[name].state in LIVING_STATES:
            return False
        self._call("supervisor.startProcess", name, False)
        return True

    def stop_programs(self, names: Collection[str]) -> None:
        """Stop services side by side, and wait for their end; those not killed by supervisord after their time are an error."""
        for name, report in self.reports().items():
            if name in names and report.state in LIVING_STATES:
                self._call("supervisor.stopProcess", name, False)
        deadline = time.monotonic() + _STOP_SECONDS
        while living := [
            name
            for name, report in self.reports().items()
            if name in names and report.state in LIVING_STATES | {"STOPPING"}
        ]:
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"expected {', '.join(living)} to end within {_STOP_SECONDS:.0f} s. See {self._log}."
                )
            time.sleep(_POLL_SECONDS)

    def shut_down(self, order: Iterable[Collection[str]]) -> bool:
        """Stop the services in this order, those of one step side by side, then supervisord; False when it did not run.

        supervisord would keep the order by itself, but takes a second for each service, running or not.
        """
        process_id = self.process_id()
        if not self.answers():
            return False
        for names in order:
            self.stop_programs(names)
        self._call("supervisor.shutdown")
        if process_id is not None:
            _wait_for_end(process_id, _STOP_SECONDS)
        return True

    def _configuration(self, programs: Iterable[Program]) -> str:
        parser = configparser.RawConfigParser()
        parser["unix_http_server"] = {"file": _escaped(str(self.socket)), "chmod": "0700"}
        parser["rpcinterface:supervisor"] = {
            "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
        }
        parser["supervisorctl"] = {"serverurl": _escaped(f"unix://{self.socket}")}  # for people who know the tool
        parser["supervisord"] = {
            "logfile": _escaped(str(self._log)),
            "logfile_maxbytes": "5MB",
            "logfile_backups": "1",
            "pidfile": _escaped(str(self._process_id_file)),
            "childlogdir": _escaped(str(self._paths.logs)),
            "umask": "022",
        }
        if os.geteuid() == 0:
            parser["supervisord"]["user"] = "root"
        for program in programs:
            parser[f"program:{program.name}"] = program.section(self._paths.logs / f"{program.name}.log")
        text = StringIO()
        parser.write(text)
        return text.getvalue()

    def _call(self, method: str, *arguments: object) -> Any:
        transport = SupervisorTransport(None, None, f"unix://{self.socket}")
        proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
        try:
            return getattr(proxy, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            raise ServiceError(
                f"supervisord refused {method}{arguments}: {fault.faultString}. See {self._log}."
            ) from fault
        finally:
            transport.close()


def _wait_for_end(process_id: int, timeout_seconds: float) -> None:
    try:
        psutil.Process(process_id).wait(timeout_seconds)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired as error:
        raise ServiceError(
            f"expected process {process_id} to end within {timeout_seconds:.0f} s, it did not. See the logs, or kill it."
        ) from error
