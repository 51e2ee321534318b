"""Keep the embedded services running: supervisord, its configuration, and how to speak with it over a Unix socket.

supervisord starts a program again when it ends by itself, and keeps what it prints in files of bounded size. What runs, as whom,
and how each program is asked to stop is in `supervisord.conf.jinja`. A service is a group of programs there.
"""

import hashlib
import http.client
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from supervisor.xmlrpc import SupervisorTransport

from toolformer_ops.config import Settings
from toolformer_ops.errors import ServiceError
from toolformer_ops.local import airflow
from toolformer_ops.local.accounts import Account
from toolformer_ops.local.object_store import weed_command
from toolformer_ops.local.postgres import Cluster
from toolformer_ops.local.state_folder import SERVICES, StatePaths, rendered_template, write_private

logger = logging.getLogger(__name__)

LIVING_STATES = frozenset({"RUNNING", "STARTING", "BACKOFF"})
"""A program in one of these runs, or will without our doing."""

_START_SECONDS = 15.0
_STOP_SECONDS = 120.0
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.1
# The path of a Unix socket may have 107 bytes, and supervisord first makes it under a longer name.
_LONGEST_SOCKET_PATH = 95
_SPAWNED = re.compile(r" INFO spawned: '[^']+' with pid (\d+)$", re.MULTILINE)


def tied_command(command: Sequence[str], stop_signal: str, account: Account | None) -> list[str]:
    """Return `command` as run by `account` (None: by us), and sent `stop_signal` when the process that starts it ends, even by -9.

    The kernel does that, so a killed supervisor leaves no Postgres behind. Uses `setpriv` of util-linux. Without it (it is on every
    Debian and Ubuntu) the command is not tied, and Postgres cannot be started by root.
    """
    # The system's folders first, so that another PATH does not make another command, and so a restart.
    program = shutil.which("setpriv", path=f"{os.defpath}:{os.environ.get('PATH', '')}")
    if program is None:
        if account is not None:
            raise ServiceError("expected the program setpriv, for Postgres refuses to run as root. Install util-linux.")
        return list(command)
    words = [program, "--pdeathsig", stop_signal]
    if account is not None:
        words += [f"--reuid={account.user_id}", f"--regid={account.group_id}", "--clear-groups"]
    return [*words, "--", *command]


def supervisor_environment(paths: StatePaths) -> dict[str, str]:
    """Return the environment of supervisord, and so of every program, in which the shell that starts it has its say.

    Airflow's variables are left out: they would win over the embedded Airflow's configuration. This Python's folder comes first on
    the PATH, because Airflow looks there for its program `airflow`, and stages for theirs.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "MAKE", "MFLAGS"))}
    local = ",".join(filter(None, [kept.get("NO_PROXY", ""), "127.0.0.1,localhost"]))
    return kept | {
        "TOOLFORMER_STATE_DIR": str(paths.state),
        "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', os.defpath)}",
        "OMP_NUM_THREADS": kept.get("OMP_NUM_THREADS", "1"),
        "NO_PROXY": local,
        "no_proxy": local,
    }


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
        """Whether it runs, or will without our doing."""
        return self.state in LIVING_STATES


class Supervisor:
    """The supervisord of one state folder."""

    def __init__(self, paths: StatePaths) -> None:
        """Starts nothing."""
        self._paths = paths
        self._pid_file = paths.state / "supervisord.pid"
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
        """Return the process id of the supervisord of this folder, if that process runs."""
        try:
            process = psutil.Process(int(self._pid_file.read_text()))
            words = process.cmdline()
        except (OSError, ValueError, psutil.Error):
            return None
        return process.pid if str(self._paths.supervisor_configuration) in words else None

    def recover(self) -> list[str]:
        """Tidy up after a supervisor or a program that was killed; returns what was done, for the user."""
        messages = []
        if not self.answers():
            alive = self.process_id()
            if alive is not None:
                os.kill(alive, signal.SIGTERM)
                _wait_for_end(alive)
                messages.append(f"supervisord (process {alive}) did not answer on {self.socket}: it was stopped.")
            elif self._pid_file.exists():
                self._pid_file.unlink()
                messages.append(
                    "supervisord was killed or the machine was switched off: its stale pid file was removed."
                )
        ended = self._end_strays()
        if ended:
            messages.append(f"{ended} processes of services that were killed were still there: they were ended.")
        return messages

    def configure(self, cluster: Cluster | None, ports: Mapping[str, int]) -> None:
        """Render the configuration, and have a supervisord that runs apply what is new or other.

        Postgres and Airflow are left out as long as there is no cluster.
        """
        rendered = rendered_template(
            "supervisord.conf.jinja",
            paths=self._paths,
            socket=self.socket,
            log=self._log,
            pid_file=self._pid_file,
            is_root=os.geteuid() == 0,
            cluster=cluster,
            ports=ports,
            weed_command=weed_command(self._paths.object_store / "data", self._paths.identities, ports),
            airflow_commands={name: airflow.command(name) for name in airflow.COMMANDS},
            airflow_environment=airflow.environment(self._paths),
            tied=lambda *arguments: shlex.join(tied_command(*arguments)),
        )
        self.apply(rendered.replace("%", "%%"))  # in supervisord's files, a single % begins a replacement

    def apply(self, configuration: str) -> None:
        """Write `configuration`. A supervisord that runs restarts the services whose settings are other, and says so before."""
        write_private(self._paths.supervisor_configuration, configuration)
        if not self.answers():
            return
        living = {report.service for report in self.reports() if report.is_living}
        added, changed, removed = self._call("supervisor.reloadConfig")[0]
        for service in [*changed, *removed]:
            if service in living:
                logger.warning(
                    "%s runs with other settings than those of now: it is stopped and started again", service
                )
            self._call("supervisor.stopProcessGroup", service)
            self._call("supervisor.removeProcessGroup", service)
        for service in [*added, *changed]:
            self._call("supervisor.addProcessGroup", service)

    def start(self) -> None:
        """Start supervisord in the background, unless it answers already."""
        if self.answers():
            if other := self._other_variables():
                logger.warning(
                    "the services keep the environment in which they were started: `toolformer-ops down` before "
                    "`toolformer-ops up`, if they are to see the new %s",
                    ", ".join(other),
                )
            return
        self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        finished = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(self._paths.supervisor_configuration)],
            env=supervisor_environment(self._paths),
            cwd=self._paths.state,
            capture_output=True,
            text=True,
            check=False,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self.answers():
            if finished.returncode != 0 or time.monotonic() > deadline:
                raise ServiceError(
                    f"expected supervisord to start, found status {finished.returncode}: {finished.stderr.strip()[-2000:]} "
                    f"See {self._log}."
                )
            time.sleep(_POLL_SECONDS)

    def reports(self) -> list[ProcessReport]:
        """Every program that supervisord knows, in the order of starting; empty when it does not run."""
        try:
            found = self._call("supervisor.getAllProcessInfo")
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
            for entry in found
        ]
        return sorted(reports, key=lambda report: (*SERVICES, report.service).index(report.service))

    def start_service(self, service: str) -> bool:
        """Start the programs of a service that do not run, without waiting; False when all run or are being started."""
        if all(report.is_living for report in self.reports() if report.service == service):
            return False
        self._call("supervisor.startProcessGroup", service, False)
        return True

    def stop_service(self, service: str) -> None:
        """Stop the programs of a service at the same time, and wait for their end; supervisord kills those that take too long."""
        if any(report.service == service for report in self.reports()):
            self._call("supervisor.stopProcessGroup", service)

    def shut_down(self) -> bool:
        """Stop the services, then supervisord; False when it did not run.

        supervisord would keep the order by itself, but takes a second for each program, running or not.
        """
        process_id = self.process_id()
        if not self.answers():
            return False
        for service in reversed(list(dict.fromkeys(report.service for report in self.reports()))):
            self.stop_service(service)
        self._call("supervisor.shutdown")
        if process_id is not None:
            _wait_for_end(process_id)
        return True

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

    def _other_variables(self) -> list[str]:
        """The settings that stages would read from the environment of now, and that they read otherwise from supervisord's."""
        process_id = self.process_id()
        if process_id is None:
            return []
        started, now = psutil.Process(process_id).environ(), supervisor_environment(self._paths)
        names = ("OMP_NUM_THREADS", *(f"TOOLFORMER_{field.upper()}" for field in Settings.model_fields))
        return [name for name in names if started.get(name) != now.get(name)]

    def _end_strays(self) -> int:
        """End what programs left behind that supervisord no longer knows; returns how many processes that were.

        A scheduler of Airflow that is killed leaves its workers, which wait for work forever; and one whose supervisor was killed
        waits for its workers forever. Both are members of a process group whose number supervisord wrote into its log. A group
        counts as ours only where its members work inside our state folder, for the number may by now belong to somebody else.
        Postgres is left to `postgres.recover`, which stops it gently.
        """
        rotated = self._log.with_name(f"{self._log.name}.1")
        text = "".join(log.read_text("utf-8", "replace") for log in (rotated, self._log) if log.exists())
        groups = set(map(int, _SPAWNED.findall(text))) - {report.process_id for report in self.reports()}
        strays = [process for process in psutil.process_iter() if _is_stray(process, groups, self._paths.state)]
        living = strays
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in living:
                try:
                    process.send_signal(number)
                except psutil.NoSuchProcess:
                    continue
            _, living = psutil.wait_procs(living, timeout=_GRACE_SECONDS)
        return len(strays)


def _is_stray(process: psutil.Process, groups: Collection[int], state: Path) -> bool:
    try:
        in_group = os.getpgid(process.pid) in groups and process.name() != "postgres"
        return in_group and f"{process.cwd()}/".startswith(f"{state}/")
    except (OSError, psutil.Error):  # it has ended, or is another user's
        return False


def _wait_for_end(process_id: int) -> None:
    try:
        psutil.Process(process_id).wait(_STOP_SECONDS)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired as error:
        raise ServiceError(
            f"expected process {process_id} to end within {_STOP_SECONDS:.0f} s, it did not. See the logs, or kill it."
        ) from error
