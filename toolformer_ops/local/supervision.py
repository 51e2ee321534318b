"""Keep the embedded services running: supervisord, its configuration, and how to speak with it over a Unix socket.

supervisord starts a program again when it ends by itself, and keeps what it prints in files of bounded size.
What runs, as whom, and how each program is asked to stop is in `supervisord.conf.jinja`. A service is a group
of programs there.
"""

import contextlib
import hashlib
import http.client
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from supervisor.childutils import getRPCInterface

from toolformer_ops.config import ENV_PREFIX, Settings
from toolformer_ops.errors import ServiceError
from toolformer_ops.local import airflow
from toolformer_ops.local.accounts import tied_command
from toolformer_ops.local.object_store import weed_command
from toolformer_ops.local.postgres import Cluster
from toolformer_ops.local.state_folder import SERVICES, StatePaths, rendered_template, write_private

logger = logging.getLogger(__name__)

_STOP_SECONDS = 120.0
_GRACE_SECONDS = 10.0
# The path of a Unix socket may have 107 bytes, and supervisord first makes it under a longer name.
_LONGEST_SOCKET_PATH = 95


@dataclass(frozen=True)
class ProcessReport:
    """What supervisord says of a program."""

    name: str
    service: str
    state: str
    """RUNNING, STOPPED, FATAL, ..."""
    process_id: int
    """0: none."""
    started_at: int
    """Unix seconds."""

    @property
    def is_living(self) -> bool:
        """Whether it runs, or is about to run by itself."""
        return self.state in ("RUNNING", "STARTING", "BACKOFF")

    @property
    def uptime_seconds(self) -> int:
        """How long it runs; 0 if it does not."""
        return int(time.time() - self.started_at) if self.process_id else 0

    @property
    def memory_bytes(self) -> int:
        """Memory of it and all that it started, shared pages divided among those that share them."""
        total = 0
        with contextlib.suppress(psutil.Error):  # there is no process
            process = psutil.Process(self.process_id)
            for member in [process, *process.children(recursive=True)] if self.process_id else []:
                with contextlib.suppress(psutil.Error):  # it has just ended, or is not ours to look into
                    total += member.memory_full_info().pss
        return total


@dataclass(frozen=True)
class Supervisor:
    """The supervisord of one state folder; starts nothing before `start`."""

    paths: StatePaths

    @property
    def socket(self) -> Path:
        """The Unix socket; in the temporary folder if the state folder's name is too long for one."""
        inside = self.paths.state / "supervisor.sock"
        if len(os.fsencode(inside)) <= _LONGEST_SOCKET_PATH:
            return inside
        digest = hashlib.sha256(os.fsencode(self.paths.state)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"toolformer-ops-{os.geteuid()}" / f"{digest}.sock"

    def environment(self) -> dict[str, str]:
        """Return the environment of supervisord, and so of every program, in which the shell that starts it has its say.

        Airflow's variables are left out: they would win over the embedded Airflow's configuration. This
        Python's folder comes first on the PATH, because Airflow looks there for its program `airflow`, and
        stages for theirs.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW_", "MAKE", "MFLAGS"))
        }
        local = ",".join(filter(None, [kept.get("NO_PROXY", ""), "127.0.0.1,localhost"]))
        return kept | {
            f"{ENV_PREFIX}STATE_DIR": str(self.paths.state),
            "AIRFLOW_HOME": str(self.paths.airflow_home),
            "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": kept.get("OMP_NUM_THREADS", "1"),
            "NO_PROXY": local,
            "no_proxy": local,
        }

    def configuration(self, cluster: Cluster, ports: Mapping[str, int]) -> str:
        """Return what `supervisord.conf` says for this Postgres and these ports."""
        rendered = rendered_template(
            "supervisord.conf.jinja",
            paths=self.paths,
            socket=self.socket,
            is_root=os.geteuid() == 0,
            cluster=cluster,
            ports=ports,
            weed_command=weed_command(self.paths.object_store / "data", self.paths.identities, ports),
            airflow_commands=airflow.COMMANDS,
            tied=lambda *arguments: shlex.join(tied_command(*arguments)),
        )
        return rendered.replace("%", "%%")  # in supervisord's files, a single % begins a replacement

    def start(self, configuration: str) -> None:
        """Start supervisord in the background; it answers when this returns, and runs no program yet."""
        write_private(self.paths.supervisor_configuration, configuration)
        self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        finished = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(self.paths.supervisor_configuration)],
            env=self.environment(),
            cwd=self.paths.state,
            capture_output=True,
            text=True,
            check=False,
        )
        if finished.returncode != 0:
            raise ServiceError(
                f"expected supervisord to start, found status {finished.returncode}: "
                f"{finished.stderr.strip()[-2000:]} See {self.paths.supervisor_log}."
            )

    def other_settings(self, configuration: str) -> list[str]:
        """Name the settings of now that the supervisord that runs, and so its programs, do not see."""
        started, now = psutil.Process(self._call("getPID")).environ(), self.environment()
        names = ("OMP_NUM_THREADS", *(f"{ENV_PREFIX}{field.upper()}" for field in Settings.model_fields))
        other = [name for name in names if started.get(name) != now.get(name)]
        path = self.paths.supervisor_configuration
        return [*other, *([path.name] if path.read_text(encoding="utf-8") != configuration else [])]

    def reports(self) -> list[ProcessReport]:
        """Every program, in the order of starting; empty when supervisord does not run."""
        try:
            processes = self._call("getAllProcessInfo")
        except (OSError, http.client.HTTPException):
            return []
        reports = [
            ProcessReport(
                name=entry["name"],
                service=entry["group"],
                state=entry["statename"],
                process_id=int(entry["pid"]),
                started_at=int(entry["start"]),
            )
            for entry in processes
        ]
        return sorted(reports, key=lambda report: SERVICES.index(report.service))

    def start_service(self, service: str) -> None:
        """Start the programs of a service that do not run, without waiting."""
        self._call("startProcessGroup", service, False)

    def shut_down(self) -> bool:
        """Stop the services, then supervisord; False when it did not run.

        supervisord would keep the order by itself, but takes a second for each program, running or not. It
        kills what takes too long.
        """
        if not self.reports():
            return False
        process = psutil.Process(self._call("getPID"))
        for service in reversed(SERVICES):
            self._call("stopProcessGroup", service)
        self._call("shutdown")
        try:
            process.wait(_STOP_SECONDS)
        except psutil.TimeoutExpired as error:
            raise ServiceError(
                f"expected supervisord (process {process.pid}) to end within {_STOP_SECONDS:.0f} s, it did "
                f"not. See {self.paths.supervisor_log}, or kill it."
            ) from error
        return True

    def end_strays(self) -> int:
        """End what supervisord's programs left behind, and a supervisord that does not answer.

        Returns how many processes. A scheduler of Airflow that is killed leaves its workers, which wait for
        work forever; and one whose supervisor was killed waits for its workers forever. All of them are in
        the session of supervisord, and are not below it. The session's number may by now be another
        program's: only what works inside our state folder is ours. `postgres.clear_pid_file` ends Postgres.
        """
        try:
            session = int(self.paths.supervisor_pid.read_text())
        except (FileNotFoundError, ValueError):
            return 0
        ours = [process for process in psutil.process_iter() if self._is_ours(process, session)]
        # After the list, which therefore holds nothing that has just been started.
        if self.reports():
            supervisor = psutil.Process(session)
            kept = {supervisor, *supervisor.children(recursive=True)}
        else:
            self.paths.supervisor_pid.unlink()
            kept = set()
        strays = living = [process for process in ours if process not in kept]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in living:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            _, living = psutil.wait_procs(living, timeout=_GRACE_SECONDS)
        return len(strays)

    def _is_ours(self, process: psutil.Process, session: int) -> bool:
        try:
            in_session = os.getsid(process.pid) == session and process.name() != "postgres"
            return in_session and Path(process.cwd()).is_relative_to(self.paths.state)
        except (OSError, psutil.Error):  # it has ended, or is another user's
            return False

    def _call(self, method: str, *arguments: object) -> Any:
        try:
            with getRPCInterface({"SUPERVISOR_SERVER_URL": f"unix://{self.socket}"}) as proxy:
                return getattr(proxy.supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            raise ServiceError(
                f"supervisord refused {method}{arguments}: {fault.faultString}. See "
                f"{self.paths.supervisor_log}."
            ) from fault
