"""Find and end what services left behind that the supervisor no longer knows.

A scheduler of Airflow that is killed leaves its workers, which wait for work forever; and one whose supervisor was killed waits for
its workers forever. Both are members of a process group whose number the supervisor wrote into its log. A group counts as ours only
where its members work inside our state folder, for the number may by now belong to somebody else. Postgres is left to
`postgres.recover_pid_file`, which stops it gently.
"""

import os
import re
import signal
from collections.abc import Collection, Iterable
from pathlib import Path

import psutil

_SPAWNED = re.compile(r" INFO spawned: '[^']+' with pid (\d+)$", re.MULTILINE)
_GRACE_SECONDS = 10.0


def end_strays(supervisor_log: Path, state: Path, known: Collection[int]) -> int:
    """End the groups that supervisord ever started, but for those in `known`; returns how many processes that were."""
    groups = _groups_in_log(supervisor_log) - set(known)
    strays = [process for process in psutil.process_iter() if _is_stray(process, groups, state)]
    _signal(strays, signal.SIGTERM)
    _, living = psutil.wait_procs(strays, timeout=_GRACE_SECONDS)
    _signal(living, signal.SIGKILL)
    psutil.wait_procs(living, timeout=_GRACE_SECONDS)
    return len(strays)


def _groups_in_log(log: Path) -> set[int]:
    rotated = log.with_name(f"{log.name}.1")
    return {
        int(number)
        for path in (rotated, log)
        if path.exists()
        for number in _SPAWNED.findall(path.read_text(encoding="utf-8", errors="replace"))
    }


def _is_stray(process: psutil.Process, groups: Collection[int], state: Path) -> bool:
    try:
        in_group = os.getpgid(process.pid) in groups and process.name() != "postgres"
        return in_group and f"{process.cwd()}/".startswith(f"{state}/")
    except (OSError, psutil.Error):  # it has ended, or is somebody else's
        return False


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
