"""One run of `up`: each step looks at what is there and does what is lacking, so it may be run at any time, after any crash.

Order: what a crash left, ports, configuration, Postgres with its roles and databases, S3 with its bucket, the `environment`
file, our tables, Airflow's tables, Airflow with its pools.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from pydantic import SecretStr

from toolformer_ops.config import Settings
from toolformer_ops.errors import ServiceError
from toolformer_ops.local_services import airflow_services, postgres, programs, roles, seaweedfs
from toolformer_ops.local_services.airflow_api import AirflowApi
from toolformer_ops.local_services.environment_file import write_environment
from toolformer_ops.local_services.generated_secrets import GeneratedSecrets, load_or_make
from toolformer_ops.local_services.port_memory import settle_ports
from toolformer_ops.local_services.ports import LOOPBACK, is_free, listens
from toolformer_ops.local_services.private_files import write_private
from toolformer_ops.local_services.programs import AIRFLOW, OBJECT_STORE, POSTGRES, PROGRAMS_OF_SERVICE
from toolformer_ops.local_services.service_settings import ServiceSettings, StatePaths
from toolformer_ops.local_services.supervision import LIVING_STATES, Supervisor
from toolformer_ops.storage import database, schema

logger = logging.getLogger(__name__)

_READY_SECONDS = {POSTGRES: 120.0, OBJECT_STORE: 60.0, AIRFLOW: 240.0}
_POLL_SECONDS = 0.2
_LOG_LINES = 15
_MOST_LIVES = 6  # process ids seen of one program, 0 among them, before it counts as dying again and again

_SETTINGS_OF_SERVICE = {
    POSTGRES: ("database_dsn", "reader_dsn"),
    OBJECT_STORE: ("s3_endpoint_url", "s3_access_key_id", "s3_secret_access_key", "s3_region", "s3_bucket"),
    AIRFLOW: ("airflow_url", "airflow_username", "airflow_password"),
}
"""Which settings lead to a service."""

_PORT_OF_SERVICE = {POSTGRES: "postgres", OBJECT_STORE: "s3", AIRFLOW: "airflow"}


class Startup:
    """One run of `up`."""

    def __init__(self, settings: Settings, paths: StatePaths, wanted: Collection[str]) -> None:
        """Start nothing; the caller holds the lock of the state folder, and its folders are made."""
        self.settings = settings
        self.service_settings = ServiceSettings(_env_file=paths.environment)  # type: ignore[call-arg]
        self.paths = paths
        self.wanted = wanted
        self.supervisor = Supervisor(paths)
        self.secrets: GeneratedSecrets = load_or_make(paths.secrets)
        self.ports: dict[str, int] = {}

    def run(self) -> Settings:
        """Do what is lacking, and return the settings that lead to the services."""
        self._repair()
        self.ports = settle_ports(self.paths, self.service_settings.wanted_ports(), self._running())
        self._configure()
        self.supervisor.start(programs.supervisor_environment(self.paths))
        self._tell_of_deaths()
        if POSTGRES in self.wanted:
            self._start_postgres()
        if OBJECT_STORE in self.wanted:
            self._start_object_store()
        settings = self._settings()
        self._write_environment(settings)
        if POSTGRES in self.wanted:
            engine = database.connect(settings)
            schema.migrate(engine)
            engine.dispose()
        if AIRFLOW in self.wanted:
            self._start_airflow(settings)
        self._remember_processes()
        return settings

    def give_up_lost_ports(self) -> list[str]:
        """Stop the services whose port another program took between its choice and its use; returns their names."""
        lost = [
            service
            for service, port in _PORT_OF_SERVICE.items()
            if service in self.wanted and self._is_lost(service, port)
        ]
        for service in lost:
            self.supervisor.stop_programs(PROGRAMS_OF_SERVICE[service])
        return lost

    def _is_lost(self, service: str, port_name: str) -> bool:
        port = self.ports.get(port_name)
        if port is None or is_free(port):
            return False
        reports = self.supervisor.reports()
        return not any(
            listens(reports[name].process_id, port) for name in PROGRAMS_OF_SERVICE[service] if name in reports
        )

    def _repair(self) -> None:
        messages = self.supervisor.recover()
        if POSTGRES not in self._running():
            unfinished = postgres.unfinished_data(self.paths.postgres)
            if unfinished is not None:
                messages.append(f"the making of the database was cut off: {unfinished} is removed and made anew.")
            messages += recover_postgres(self.paths)
        for message in messages:
            logger.warning("%s", message)

    def _running(self) -> set[str]:
        reports = self.supervisor.reports()
        living = {name for name, report in reports.items() if report.state in LIVING_STATES}
        return {service for service, names in PROGRAMS_OF_SERVICE.items() if living & set(names)}

    def _configure(self) -> None:
        cluster = None
        if POSTGRES in self.wanted or postgres.existing_cluster(self.paths.postgres) is not None:
            cluster = postgres.prepare_cluster(self.paths.postgres, self.secrets.postgres_superuser)
        (self.paths.object_store / "data").mkdir(exist_ok=True)
        seaweedfs.write_identities(
            programs.identities_file(self.paths), self.secrets.s3_access_key, self.secrets.s3_secret_key
        )
        airflow_services.write_configuration(
            self.paths.airflow_home,
            self.secrets,
            postgres_port=self.ports["postgres"],
            airflow_port=self.ports["airflow"],
            task_slots=sum(self._slots().values()),
        )
        self.supervisor.configure(programs.all_programs(self.paths, cluster, self.ports))

    def _slots(self) -> dict[str, int]:
        return self.service_settings.slots(self.settings.device)

    def _tell_of_deaths(self) -> None:
        if not self.paths.started.exists():
            return
        before: dict[str, int] = json.loads(self.paths.started.read_text(encoding="utf-8"))
        for name, report in self.supervisor.reports().items():
            if report.state in LIVING_STATES and before.get(name, report.process_id) != report.process_id:
                logger.warning("%s (process %d) had ended; the supervisor started it again", name, before[name])

    def _remember_processes(self) -> None:
        running = {name: report.process_id for name, report in self.supervisor.reports().items() if report.process_id}
        write_private(self.paths.started, json.dumps(running) + "\n")

    def _start_postgres(self) -> None:
        address = postgres.PostgresAddress(self.ports["postgres"], self.secrets.postgres_superuser)
        self._start(POSTGRES, lambda: postgres.is_ready(address))
        passwords = roles.RolePasswords(
            owner=self.secrets.postgres_owner,
            reader=self.secrets.postgres_reader,
            airflow=self.secrets.postgres_airflow,
        )
        roles.ensure_roles(address, passwords)
        roles.ensure_databases(address)
        logger.info("postgres: ready on %s:%d", LOOPBACK, address.port)

    def _start_object_store(self) -> None:
        address = seaweedfs.ObjectStoreAddress(
            f"http://{LOOPBACK}:{self.ports['s3']}",
            self.secrets.s3_access_key,
            self.secrets.s3_secret_key,
            self.settings.s3_region,
        )
        self._start(OBJECT_STORE, lambda: seaweedfs.answers(address))
        seaweedfs.check_put_and_get(address, self.settings.s3_bucket, _READY_SECONDS[OBJECT_STORE])
        logger.info("object store: ready on %s, bucket %s", address.endpoint, self.settings.s3_bucket)

    def _start_airflow(self, settings: Settings) -> None:
        self._migrate_airflow()
        api = AirflowApi(settings)
        self._start(AIRFLOW, lambda: airflow_services.is_healthy(api))
        slots = airflow_services.set_pools(api, self._slots())
        shown = ", ".join(f"{name} {count}" for name, count in sorted(slots.items()))
        logger.info("airflow: ready on %s, slots of its pools: %s", settings.airflow_url, shown)

    def _migrate_airflow(self) -> None:
        dsn = postgres.dsn(
            port=self.ports["postgres"],
            database=roles.AIRFLOW,
            user=roles.AIRFLOW,
            password=self.secrets.postgres_airflow,
        )
        if airflow_services.is_migrated(dsn, self.paths.airflow_schema):
            return
        logger.info("airflow: migrating its database")
        environment = programs.supervisor_environment(self.paths) | programs.airflow_environment(self.paths)
        airflow_services.migrate(dsn, self.paths.airflow_schema, environment, self.paths.logs / "airflow-migration.log")

    def _start(self, service: str, ready: Callable[[], bool]) -> None:
        """Start the programs of a service, and return once `ready()`; raises with its log when one gives up."""
        names = PROGRAMS_OF_SERVICE[service]
        if [name for name in names if self.supervisor.start_program(name)]:
            logger.info("%s: starting", service.replace("_", " "))
        deadline = time.monotonic() + _READY_SECONDS[service]
        lives: dict[str, set[int]] = {name: set() for name in names}
        while not ready():
            reports = self.supervisor.reports()
            for name in names:
                lives[name].add(reports[name].process_id)
            dead = [
                name for name in names if reports[name].state not in LIVING_STATES or len(lives[name]) > _MOST_LIVES
            ]
            if dead or time.monotonic() > deadline:
                name = (dead or list(names))[0]
                log = self.paths.logs / f"{name}.log"
                raise ServiceError(
                    f"expected {name} to be ready within {_READY_SECONDS[service]:.0f} s, found it {reports[name].state}. "
                    f"The end of {log}:\n{_end_of(log)}"
                )
            time.sleep(_POLL_SECONDS)

    def _settings(self) -> Settings:
        """The settings that lead to the embedded services."""
        port = self.ports["postgres"]
        found = {
            "database_dsn": _toolformer_dsn(port, roles.OWNER, self.secrets.postgres_owner),
            "reader_dsn": _toolformer_dsn(port, roles.READER, self.secrets.postgres_reader),
            "s3_endpoint_url": f"http://{LOOPBACK}:{self.ports['s3']}",
            "s3_access_key_id": SecretStr(self.secrets.s3_access_key),
            "s3_secret_access_key": SecretStr(self.secrets.s3_secret_key),
            "airflow_url": airflow_services.url(self.ports["airflow"]),
            "airflow_username": airflow_services.USERNAME,
            "airflow_password": SecretStr(self.secrets.airflow_admin),
        }
        return self.settings.model_copy(update=found)

    def _write_environment(self, settings: Settings) -> None:
        names = [name for service in sorted(self.wanted) for name in _SETTINGS_OF_SERVICE[service]]
        values = {name: _plain(getattr(settings, name)) for name in names}
        write_environment(self.paths.environment, values)
        for name, value in values.items():
            variable = f"TOOLFORMER_{name.upper()}"
            if os.environ.get(variable, value) != value:
                logger.warning(
                    "%s is set in the environment and wins over that of the embedded service: unset it", variable
                )


def recover_postgres(paths: StatePaths) -> list[str]:
    """Deal with a Postgres, or the pid file of one, where none should run; returns what was done."""
    cluster = postgres.existing_cluster(paths.postgres)
    message = postgres.recover_pid_file(cluster) if cluster is not None else None
    return [message] if message else []


def _toolformer_dsn(port: int, user: str, password: str) -> SecretStr:
    return SecretStr(postgres.dsn(port=port, database=roles.OWNER, user=user, password=password))


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:]) if log.exists() else "(no log)"
