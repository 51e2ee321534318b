"""The embedded Airflow: its configuration, its database, its pools, and when it is ready.

Runs the four parts that `airflow standalone` would start, each under the supervisor. `standalone` itself also
starts two log servers on all network interfaces, which no setting binds to 127.0.0.1, and does not start a
part again that has died. The api-server reads task logs from the disk, so the log servers are not missed.
"""

import importlib.metadata
import json
import logging
import secrets
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import psycopg2

from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.airflow_tasks.run_ids import RUN_ID_PATTERN
from toolformer_ops.config import SHIPPED
from toolformer_ops.errors import ServiceError
from toolformer_ops.local import postgres
from toolformer_ops.local.airflow_additions import read_additions, users_in, with_additions
from toolformer_ops.local.ports import LOOPBACK
from toolformer_ops.local.state_folder import GeneratedSecrets, StatePaths, rendered_template, write_private

logger = logging.getLogger(__name__)

USERNAME = "admin"
_AIRFLOW = (sys.executable, "-m", "airflow")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "airflow-api-server": (*_AIRFLOW, "api-server"),
    "airflow-scheduler": (*_AIRFLOW, "scheduler", "--skip-serve-logs"),
    "airflow-dag-processor": (*_AIRFLOW, "dag-processor"),
    "airflow-triggerer": (*_AIRFLOW, "triggerer", "--skip-serve-logs"),
}
"""The command line of each part."""
BUNDLES = (
    {
        "name": "dags-folder",
        "classpath": "toolformer_ops.airflow_tasks.bundles.dags_bundle.DagsBundle",
        "kwargs": {"refresh_interval": 10},
    },
    {
        "name": "schedules",
        "classpath": "toolformer_ops.airflow_tasks.bundles.schedule_bundle.ScheduleBundle",
        "kwargs": {"refresh_interval": 10},
    },
)
"""Airflow's DAG bundles: the DAGs of `dags/`, and one for each schedule file."""
POOLS_FILE = Path(__file__).parent.parent / "airflow_tasks" / "pools.json"

_HEALTHY_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")
_MIGRATE_SECONDS = 300.0


def configuration(
    paths: StatePaths, generated: GeneratedSecrets, ports: Mapping[str, int], task_slots: int
) -> str:
    """Return the text of `airflow.cfg` with the user's additions (`airflow_additions.py`); it holds secrets.

    Raises:
        ConfigurationError: the additions cannot be used.
    """
    url = f"http://{LOOPBACK}:{ports['airflow']}"
    database = postgres.PostgresAddress(ports["postgres"], generated.postgres_superuser)
    dsn = database.dsn(postgres.AIRFLOW, postgres.AIRFLOW, generated.postgres_airflow)
    configuration = rendered_template(
        "airflow.cfg.jinja",
        dags_folder=SHIPPED / "dags",
        bundles=json.dumps(BUNDLES),
        home=paths.airflow_home,
        passwords=paths.airflow_passwords,
        username=USERNAME,
        secrets=generated,
        task_slots=task_slots,
        run_id_pattern=RUN_ID_PATTERN,
        port=ports["airflow"],
        url=url,
        database_dsn=dsn.replace("postgresql:", "postgresql+psycopg2:", 1),
    )
    return with_additions(configuration, read_additions(paths.airflow_additions), USERNAME)


def write_passwords(paths: StatePaths, configuration: str, admin_password: str) -> None:
    """Write the passwords of the users in `airflow.cfg`: those that have one keep it, the others get one.

    Airflow would make the lacking ones itself, and print them into its log.
    """
    path = paths.airflow_passwords
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    passwords = {user: before.get(user) or secrets.token_urlsafe(16) for user in users_in(configuration)}
    write_private(path, json.dumps(passwords | {USERNAME: admin_password}) + "\n")


def migrate(paths: StatePaths, dsn: str, variables: Mapping[str, str]) -> None:
    """Run `airflow db migrate` with these variables, unless this Airflow has migrated this database.

    The note of the last migration says so, six seconds faster than Airflow itself. The output goes to
    `logs/airflow-migration.log`.

    Raises:
        ServiceError: the migration failed.
    """
    note, log = paths.airflow_schema, paths.logs / "airflow-migration.log"
    version = importlib.metadata.version("apache-airflow")
    schema = _schema_version(dsn)
    if schema is not None and note.exists() and note.read_text(encoding="utf-8") == f"{version} {schema}\n":
        return
    logger.info("airflow: migrating its database")
    with log.open("ab") as output:
        finished = subprocess.run(
            [*_AIRFLOW, "db", "migrate"],
            env=dict(variables),
            cwd=paths.airflow_home,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_MIGRATE_SECONDS,
            check=False,
        )
    if finished.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise ServiceError(
            f"expected `airflow db migrate` to succeed, found status {finished.returncode}:\n{tail}"
        )
    write_private(note, f"{version} {_schema_version(dsn)}\n")


def _schema_version(dsn: str) -> str | None:
    """Return the version of the tables in Airflow's database; None if there are none."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        try:
            cursor.execute("select version_num from alembic_version")
        except psycopg2.errors.UndefinedTable:
            return None
        row = cursor.fetchone()
        return None if row is None else str(row[0])


def is_healthy(client: AirflowClient) -> bool:
    """Whether the API answers and the heartbeat of every other part is recent."""
    health = client.health()
    return all(health.get(part) == "healthy" for part in _HEALTHY_PARTS)


def set_pools(paths: StatePaths, client: AirflowClient, slots: Mapping[str, int]) -> dict[str, int]:
    """Make the pools of `airflow_tasks/pools.json`, with the slots of this machine.

    Returns the slots that they have. Slots that a person has set since, in the UI for example, stay.
    """
    wanted = json.loads(POOLS_FILE.read_text(encoding="utf-8"))
    note = paths.airflow_pools
    set_last = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    slots_of_pool = {}
    for name, pool in wanted.items():
        chosen = slots.get(name, pool["slots"])
        present = client.pool_slots(name)
        if present in (None, chosen, set_last.get(name)):
            client.set_pool(name, chosen, pool["description"], pool["include_deferred"])
            slots_of_pool[name] = set_last[name] = chosen
        else:
            slots_of_pool[name] = present
            logger.warning(
                "the pool %s keeps the %d slots that a person has set; this machine would have %d. Admin, "
                "Pools in the UI changes them",
                name,
                present,
                chosen,
            )
    write_private(note, json.dumps(set_last) + "\n")
    return slots_of_pool
