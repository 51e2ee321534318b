"""The embedded Airflow: its configuration, its database, its pools, and when it is ready.

Runs the four parts that `airflow standalone` would start, each under the supervisor. `standalone` itself also starts two log
servers on all network interfaces, which no setting binds to 127.0.0.1, and does not start a part again that has died. The
api-server reads task logs from the disk, so the log servers are not missed.
"""

import configparser
import hashlib
import importlib.metadata
import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import psycopg2

from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.config import SHIPPED
from toolformer_ops.errors import ServiceError
from toolformer_ops.local import postgres
from toolformer_ops.local.ports import LOOPBACK
from toolformer_ops.local.state_folder import GeneratedSecrets, StatePaths, rendered_template, write_private

logger = logging.getLogger(__name__)

USERNAME = "admin"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "airflow-api-server": ("api-server",),
    "airflow-scheduler": ("scheduler", "--skip-serve-logs"),
    "airflow-dag-processor": ("dag-processor",),
    "airflow-triggerer": ("triggerer", "--skip-serve-logs"),
}
POOLS_FILE = Path(__file__).parent.parent / "airflow_tasks" / "pools.json"

_HEALTHY_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")
_MIGRATE_SECONDS = 300.0


def command(name: str) -> tuple[str, ...]:
    """Return the words that run one part, a key of `COMMANDS`."""
    return (sys.executable, "-m", "airflow", *COMMANDS[name])


def url(port: int) -> str:
    """Return the address of the UI and of the API."""
    return f"http://{LOOPBACK}:{port}"


def database_dsn(port: int, secrets: GeneratedSecrets) -> str:
    """Return the address of Airflow's database."""
    return postgres.dsn(port=port, database=postgres.AIRFLOW, user=postgres.AIRFLOW, password=secrets.postgres_airflow)


def write_configuration(
    paths: StatePaths, secrets: GeneratedSecrets, ports: Mapping[str, int], task_slots: int
) -> list[str]:
    """Write `airflow.cfg` and the password file into AIRFLOW_HOME, both with mode 600.

    Returns the options (`[core] parallelism`) that were other before; none when there was no configuration.
    """
    passwords = paths.airflow_home / "passwords.json"
    database = database_dsn(ports["postgres"], secrets)
    rendered = rendered_template(
        "airflow.cfg.jinja",
        dags_folder=SHIPPED / "dags",
        home=paths.airflow_home,
        passwords=passwords,
        username=USERNAME,
        secrets=secrets,
        task_slots=task_slots,
        port=ports["airflow"],
        url=url(ports["airflow"]),
        database_dsn=database.replace("postgresql:", "postgresql+psycopg2:", 1),
    )
    before, now = configparser.RawConfigParser(), configparser.RawConfigParser()
    before.read(paths.airflow_configuration, encoding="utf-8")
    now.read_string(rendered)
    write_private(paths.airflow_configuration, rendered)
    write_private(passwords, json.dumps({USERNAME: secrets.airflow_admin}) + "\n")
    return [
        f"[{section}] {option}"
        for section in before.sections() and now.sections()
        for option, value in now.items(section)
        if before.get(section, option, fallback=None) != value
    ]


def environment(paths: StatePaths) -> dict[str, str]:
    """Return what decides how Airflow runs; no secret. It stops and starts when one of these values is other than at its start.

    A digest of the options in `airflow.cfg` is among them. What a shell may set differently each time (PATH, OMP_NUM_THREADS) is
    not: it is taken from the environment in which supervisord was started.
    """
    configuration = configparser.RawConfigParser()
    configuration.read(paths.airflow_configuration, encoding="utf-8")
    options = {section: dict(configuration.items(section)) for section in configuration.sections()}
    digest = hashlib.sha256(json.dumps(options).encode()).hexdigest()[:16]
    return {
        "TOOLFORMER_AIRFLOW_CONFIGURATION": digest,
        "AIRFLOW_HOME": str(paths.airflow_home),
        "AIRFLOW_CONFIG": str(paths.airflow_configuration),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }


def migrate(paths: StatePaths, dsn: str, variables: Mapping[str, str]) -> None:
    """Run `airflow db migrate` with these variables, unless this Airflow has migrated this database.

    Looking into the note of the last migration saves six seconds. The output goes to `logs/airflow-migration.log`.

    Raises:
        ServiceError: the migration failed.
    """
    marker, log = paths.airflow_schema, paths.logs / "airflow-migration.log"
    version = importlib.metadata.version("apache-airflow")
    try:
        noted = json.loads(marker.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        noted = None
    schema = _schema_version(dsn)
    if schema is not None and noted == {"airflow": version, "schema": schema}:
        return
    logger.info("airflow: migrating its database")
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
    write_private(marker, json.dumps({"airflow": version, "schema": _schema_version(dsn)}) + "\n")


def _schema_version(dsn: str) -> str | None:
    """Return the version of the tables in Airflow's database; None where there are none."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        try:
            cursor.execute("select version_num from alembic_version")
        except psycopg2.errors.UndefinedTable:
            return None
        row = cursor.fetchone()
        return None if row is None else str(row[0])


def is_healthy(client: AirflowClient) -> bool:
    """Whether the API answers and every other part has told the database that it lives."""
    health = client.health()
    return all(health.get(part) == "healthy" for part in _HEALTHY_PARTS)


def set_pools(client: AirflowClient, slots: Mapping[str, int]) -> dict[str, int]:
    """Make the pools of `airflow_tasks/pools.json`, with the slots of this machine; returns the slots."""
    wanted = json.loads(POOLS_FILE.read_text(encoding="utf-8"))
    chosen = {name: slots.get(name, pool["slots"]) for name, pool in wanted.items()}
    for name, pool in wanted.items():
        client.set_pool(name, chosen[name], pool["description"], pool["include_deferred"])
    return chosen
