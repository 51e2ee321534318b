"""The policy of retention as the settings have it, and Airflow's own old rows and logs.

Airflow deletes neither by itself. `airflow db clean` deletes rows; it needs Airflow's database, which a task
may not ask: Airflow hides the address from tasks, but not its configuration file, which `up` writes.
Elsewhere a person runs `toolformer-ops retention --airflow DAYS` beside the scheduler.
"""

import datetime
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolformer_ops.airflow_tasks.nights.schedules import schedule_files
from toolformer_ops.config import Settings
from toolformer_ops.errors import ServiceError
from toolformer_ops.storage.history.retention_policy import Policy

CLEAN_SECONDS = 3600.0
AIRFLOW_DAYS = 90
"""Age in days from which the DAG deletes Airflow's rows and logs: a quarter in which a person may look at them."""
_NOT_ALLOWED = "airflow-db-not-allowed"
"""How the address begins to which Airflow sets the variables of its database for tasks."""
_AIRFLOW = (sys.executable, "-m", "airflow")


def policy_of(settings: Settings, chosen: Mapping[str, Any]) -> Policy:
    """The policy of the settings, with what was chosen instead."""
    files = schedule_files(settings.schedules_dir) if settings.schedules_dir else None
    values = {
        "older_than_days": settings.retention_days,
        "releases": settings.retention_releases,
        "models": settings.retention_models,
        "in_history": False,
        "schedules": None if files is None else [path.stem for path in files],
    }
    return Policy(**(values | dict(chosen)))


def clean_airflow(settings: Settings, older_than_days: int, *, drops: bool) -> Iterator[str]:
    """Delete rows and logs of Airflow that are older than so many days, or only count them; a line for each.

    Raises:
        ServiceError: `airflow db clean` failed.
    """
    # The environment in which the program `airflow` knows its database.
    variables = {name: value for name, value in os.environ.items() if not value.startswith(_NOT_ALLOWED)}
    home = settings.state_dir / "airflow"
    if "AIRFLOW_HOME" not in variables and (home / "airflow.cfg").is_file():
        variables["AIRFLOW_HOME"] = str(home)
    if _value_of(variables, "database", "sql_alchemy_conn").startswith(("sqlite", _NOT_ALLOWED)):
        yield (
            "Airflow's tables: expected the address of its database, found none here. Run `toolformer-ops "
            f"retention --airflow {older_than_days} --yes` where the scheduler runs."
        )
        return
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=older_than_days)
    # 1. Rows.
    words = ["db", "clean", "--clean-before-timestamp", before.isoformat(), "--skip-archive"]
    words += ["--yes", "--error-on-cleanup-failure"] if drops else ["--dry-run"]
    _airflow(variables, words)
    done = "deleted" if drops else "would be deleted"
    yield f"Airflow's tables: rows from before {before:%Y-%m-%d} {done}"
    # 2. Logs, and the folders that hold none any more.
    folder = Path(_value_of(variables, "logging", "base_log_folder"))
    files, size = _clean_logs(folder, before.timestamp(), drops=drops)
    yield f"Airflow's logs in {folder}: {files:,} files from before {before:%Y-%m-%d}, {size:,} bytes, {done}"


def _value_of(variables: Mapping[str, str], section: str, key: str) -> str:
    lines = _airflow(variables, ["config", "get-value", section, key]).splitlines()
    return lines[-1].strip() if lines else ""


def _airflow(variables: Mapping[str, str], words: list[str]) -> str:
    """What the program `airflow` prints."""
    finished = subprocess.run(
        [*_AIRFLOW, *words],
        env=dict(variables),
        capture_output=True,
        text=True,
        timeout=CLEAN_SECONDS,
        check=False,
    )
    if finished.returncode != 0:
        last = "\n".join(finished.stderr.splitlines()[-5:])
        command = " ".join(words[:2])
        raise ServiceError(
            f"expected `airflow {command}` to succeed, found status {finished.returncode}:\n{last}"
        )
    return finished.stdout


def _clean_logs(folder: Path, before: float, *, drops: bool) -> tuple[int, int]:
    """How many log files are older, and their bytes; deletes them, if `drops`."""
    count, size = 0, 0
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder comes before it
        if path.is_symlink():
            continue
        status = path.stat()
        if path.is_dir():
            if drops and status.st_mtime < before and not any(path.iterdir()):
                path.rmdir()
        elif status.st_mtime < before:
            count, size = count + 1, size + status.st_size
            if drops:
                path.unlink()
    return count, size
