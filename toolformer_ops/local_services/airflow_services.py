"""The embedded Airflow: its configuration, its database, its pools, and when it is ready.

Runs the four parts that `airflow standalone` would start, each under the supervisor. `standalone` itself also starts two log
servers on all network interfaces, which no setting binds to 127.0.0.1, and does not start a part again that has died. The
api-server reads task logs from the disk, so the log servers are not missed.
"""

import configparser
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from io import StringIO
from pathlib import Path

import psycopg2

from toolformer_ops.config import REPOSITORY
from toolformer_ops.errors import ServiceError
from toolformer_ops.local_services import roles
from toolformer_ops.local_services.airflow_api import AirflowApi
from toolformer_ops.local_services.generated_secrets import GeneratedSecrets
from toolformer_ops.local_services.ports import LOOPBACK
from toolformer_ops.local_services.postgres import dsn
from toolformer_ops.local_services.private_files import write_private

USERNAME = "admin"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "airflow-api-server": ("api-server",),
    "airflow-scheduler": ("scheduler", "--skip-serve-logs"),
    "airflow-dag-processor": ("dag-processor",),
    "airflow-triggerer": ("triggerer", "--skip-serve-logs"),
}
POOLS_FILE = REPOSITORY / "toolformer_ops" / "orchestration" / "pools.json"

_HEALTHY_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")
_MIGRATE_SECONDS = 300.0


def command(name: str) -> tuple[str, ...]:
    """The words that run one part, a key of `COMMANDS`."""
    return (sys.executable, "-m", "airflow", *COMMANDS[name])


def url(port: int) -> str:
    """The address of the UI and of the API."""
    return f"http://{LOOPBACK}:{port}"


def write_configuration(
    home: Path, secrets: GeneratedSecrets, *, postgres_port: int, airflow_port: int, task_slots: int
) -> None:
    """Write `airflow.cfg` and the password file into AIRFLOW_HOME, both with mode 600."""
    passwords = home / "passwords.json"
    database = dsn(port=postgres_port, database=roles.AIRFLOW, user=roles.AIRFLOW, password=secrets.postgres_airflow)
    parser = configparser.RawConfigParser()
    parser["core"] = {
        "dags_folder": str(REPOSITORY / "dags"),
        "load_examples": "False",
        "executor": "LocalExecutor",
        "parallelism": str(task_slots),
        "fernet_key": secrets.airflow_fernet_key,
        "execution_api_server_url": f"{url(airflow_port)}/execution/",
        "simple_auth_manager_users": f"{USERNAME}:admin",
        "simple_auth_manager_passwords_file": str(passwords),
        "default_timezone": "utc",
    }
    parser["database"] = {
        "sql_alchemy_conn": database.replace("postgresql://", "postgresql+psycopg2://", 1),
        "sql_alchemy_pool_size": "4",
    }
    parser["api"] = {
        "host": LOOPBACK,
        "port": str(airflow_port),
        "base_url": url(airflow_port),
        "workers": "1",
        "secret_key": secrets.airflow_api_secret,
        "expose_config": "False",
    }
    parser["api_auth"] = {"jwt_secret": secrets.airflow_jwt_secret}
    parser["logging"] = {"base_log_folder": str(home / "logs"), "colored_console_log": "False"}
    parser["dag_processor"] = {
        "parsing_processes": "1",
        "refresh_interval": "60",
        "dag_processor_child_process_log_directory": str(home / "logs" / "dag_processor"),
    }
    text = StringIO()
    parser.write(text)
    write_private(home / "airflow.cfg", text.getvalue())
    write_private(passwords, json.dumps({USERNAME: secrets.airflow_admin}) + "\n")


def environment(home: Path, state: Path) -> dict[str, str]:
    """What every part of Airflow, and every stage that it starts, finds in its environment; no secret.

    A digest of the configuration is among it, so that the supervisor starts Airflow anew when the configuration has changed.
    """
    configuration = (home / "airflow.cfg").read_bytes()
    return {
        "TOOLFORMER_AIRFLOW_CONFIGURATION": hashlib.sha256(configuration).hexdigest()[:16],
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONFIG": str(home / "airflow.cfg"),
        "TOOLFORMER_STATE_DIR": str(state),
        # Airflow looks for its own program `airflow`, and stages for theirs, beside this Python.
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }


def is_migrated(dsn: str, marker: Path) -> bool:
    """Whether this very Airflow has migrated this very database, so that six seconds can be saved."""
    schema = _schema_version(dsn)
    if schema is None or not marker.exists():
        return False
    try:
        return bool(json.loads(marker.read_text(encoding="utf-8")) == _migration(schema))
    except ValueError:
        return False


def migrate(dsn: str, marker: Path, variables: Mapping[str, str], log: Path) -> None:
    """Run `airflow db migrate` with this environment, its output to `log`, and note that it was done. Raises `ServiceError`."""
    with log.open("ab") as output:
        finished = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env=dict(variables),
            cwd=marker.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_MIGRATE_SECONDS,
            check=False,
        )
    if finished.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise ServiceError(f"expected `airflow db migrate` to succeed, found status {finished.returncode}:\n{tail}")
    write_private(marker, json.dumps(_migration(_schema_version(dsn))) + "\n")


def _migration(schema: str | None) -> dict[str, str | None]:
    return {"airflow": importlib.metadata.version("apache-airflow"), "schema": schema}


def _schema_version(dsn: str) -> str | None:
    """The version of the tables in Airflow's database; None where there are none."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("select to_regclass('alembic_version') is not null")
        row = cursor.fetchone()
        if row is None or not row[0]:
            return None
        cursor.execute("select version_num from alembic_version")
        row = cursor.fetchone()
        return None if row is None else str(row[0])


def is_healthy(api: AirflowApi) -> bool:
    """Whether the API answers and every other part has told the database that it lives."""
    health = api.health()
    return all(health.get(part) == "healthy" for part in _HEALTHY_PARTS)


def set_pools(api: AirflowApi, slots: Mapping[str, int]) -> dict[str, int]:
    """Make the pools of `orchestration/pools.json`, with the slots of this machine; returns the slots."""
    wanted = json.loads(POOLS_FILE.read_text(encoding="utf-8"))
    there = {pool["name"] for pool in api.get("/pools", limit=100)["pools"]}
    for name, pool in wanted.items():
        body = {
            "name": name,
            "slots": slots.get(name, pool["slots"]),
            "description": pool["description"],
            "include_deferred": pool["include_deferred"],
        }
        if name in there:
            api.patch(f"/pools/{name}", {"pool": body.pop("name"), **body})
        else:
            api.post("/pools", body)
    return {name: slots.get(name, pool["slots"]) for name, pool in wanted.items()}
