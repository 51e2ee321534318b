"""`up`, `down`, `status`: start, stop and show the embedded services of one state folder, one call at a time.

Each step of `up` looks at what is there and does what is missing, so it may be called at any time, after any crash. Its order: what
a crash left, ports, configuration, Postgres with its roles and databases, S3 with its bucket, the `environment` file, our tables,
Airflow's tables, Airflow with its pools.
"""

import contextlib
import functools
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import psutil
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import AirflowError, ServiceError
from toolformer_ops.local import airflow, object_store, postgres
from toolformer_ops.local.accounts import relocated_directory
from toolformer_ops.local.ports import (
    LOOPBACK,
    PORT_OF_SERVICE,
    accepts_connections,
    is_free,
    listens,
    recalled_ports,
    settle_ports,
)
from toolformer_ops.local.state_folder import (
    AIRFLOW,
    OBJECT_STORE,
    POSTGRES,
    SERVICES,
    StatePaths,
    load_or_make_secrets,
    write_environment,
    write_private,
)
from toolformer_ops.local.supervision import ProcessReport, Supervisor, supervisor_environment
from toolformer_ops.storage import database, schema
from toolformer_ops.storage.shared_files import locked

logger = logging.getLogger(__name__)

_READY_SECONDS = {POSTGRES: 120.0, OBJECT_STORE: 60.0, AIRFLOW: 240.0}
_POLL_SECONDS = 0.2
_LOG_LINES = 15
_MOST_LIVES = 6  # process ids seen of one program, 0 among them, before it counts as dying again and again


class ServiceSettings(BaseSettings):
    """How `make up` runs the services; a port left empty is the one remembered, or the usual one, or a free one.

    Where the factory finds its services, embedded or not, is in `toolformer_ops.config`.
    """

    model_config = SettingsConfigDict(env_prefix="TOOLFORMER_", env_ignore_empty=True, extra="ignore", frozen=True)

    postgres_port: int | None = Field(default=None, ge=1, le=65535, description="Port of Postgres; usually 15432.")
    s3_port: int | None = Field(default=None, ge=1, le=65535, description="Port of S3; usually 18333.")
    airflow_port: int | None = Field(default=None, ge=1, le=65535, description="Port of the Airflow UI; usually 8080.")
    gpu_slots: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Stages with a language model at once; usually one a core, or one on CUDA.",
    )
    cpu_slots: int | None = Field(
        default=None, ge=1, le=1024, description="Stages without a language model at once; usually one a core."
    )

    def wanted_ports(self) -> dict[str, int]:
        """Return the ports that were asked for, by name."""
        asked = {"postgres": self.postgres_port, "s3": self.s3_port, "airflow": self.airflow_port}
        return {name: port for name, port in asked.items() if port is not None}

    def slots(self, device: str) -> dict[str, int]:
        """Return how many tasks of each Airflow pool may run at once when the language model runs on `device`."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return {
            "gpu": self.gpu_slots or (cores if device == "cpu" else 1),
            "cpu": self.cpu_slots or cores,
        }


@dataclass(frozen=True)
class ServiceStatus:
    """One program, as its supervisor and the machine see it."""

    report: ProcessReport
    address: str
    uptime_seconds: int
    memory_bytes: int


def up(settings: Settings, only: Collection[str] | None = None) -> Settings:
    """Start the services that do not run, repair what a crash left, and return the settings with their addresses.

    Args:
        settings: its `state_dir` holds everything.
        only: which of `SERVICES`; Airflow brings Postgres along. None: all.

    Raises:
        ServiceError: a service cannot be started; the message ends with the last lines of its log.
    """
    wanted = set(SERVICES if only is None else only)
    unknown = wanted - set(SERVICES)
    if unknown:
        raise ServiceError(f"expected services among {', '.join(SERVICES)}, found {', '.join(sorted(unknown))}.")
    if AIRFLOW in wanted:
        wanted.add(POSTGRES)
    paths = StatePaths(settings.state_dir)
    paths.make()
    with locked(paths.lock, f"another `up` or `down` works in {paths.state}"):
        startup = _Startup(settings, paths, wanted)
        try:
            with startup.reservations:
                found = startup.run()
        except (ServiceError, AirflowError):
            lost = startup.stop_services_without_port()
            if not lost:
                raise
            logger.warning("another program took the port of %s in the meantime: once more, on others", ", ".join(lost))
            startup = _Startup(settings, paths, wanted)
            with startup.reservations:
                found = startup.run()
    load_settings.cache_clear()  # the `environment` file is another now
    return found


def down(settings: Settings) -> bool:
    """Stop every service and the supervisor, Postgres last; False when nothing ran."""
    paths = StatePaths(settings.state_dir)
    if not paths.state.exists():
        return False
    with locked(paths.lock, f"another `up` or `down` works in {paths.state}"):
        supervisor = Supervisor(paths)
        stopped = supervisor.shut_down()
        for message in [*supervisor.recover(), *postgres.recover(paths.postgres)]:
            logger.warning("%s", message)
            stopped = True
        object_store.remove_sockets(recalled_ports(paths))
        paths.started.unlink(missing_ok=True)
        return stopped


def delete_state(settings: Settings) -> None:
    """Stop everything and delete the state folder, and the data of a Postgres that is elsewhere because we are root."""
    down(settings)
    for folder in (settings.state_dir, relocated_directory(settings.state_dir / "postgres")):
        if folder.exists():
            shutil.rmtree(folder)


def status(settings: Settings) -> list[ServiceStatus]:
    """Return every program that the supervisor knows, in the order of starting; empty when it does not run."""
    paths = StatePaths(settings.state_dir)
    ports = recalled_ports(paths)
    addresses = {
        "postgres": f"{LOOPBACK}:{ports.get('postgres')}",
        "object-store": f"http://{LOOPBACK}:{ports.get('s3')}",
        "airflow-api-server": f"http://{LOOPBACK}:{ports.get('airflow')}",
    }
    return [
        ServiceStatus(
            report=report,
            address=addresses.get(report.name, ""),
            uptime_seconds=int(time.time() - report.started_at) if report.state == "RUNNING" else 0,
            memory_bytes=_memory_bytes(report.process_id),
        )
        for report in Supervisor(paths).reports()
    ]


def _memory_bytes(process_id: int) -> int:
    """Memory of a process and all that it started, shared pages divided among those that share them; 0 when it is gone."""
    if not process_id:
        return 0
    total = 0
    with contextlib.suppress(psutil.Error):  # there is no process
        process = psutil.Process(process_id)
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):  # it has just ended, or is not ours to look into
                total += member.memory_full_info().pss
    return total


class _Startup:
    """One run of `up`. The caller holds the lock of the state folder, and its folders are made."""

    def __init__(self, settings: Settings, paths: StatePaths, wanted: set[str]) -> None:
        self.settings = settings
        self.paths = paths
        self.wanted = wanted
        self.secrets = load_or_make_secrets(paths.secrets)
        self.supervisor = Supervisor(paths)
        service_settings = ServiceSettings(_env_file=paths.environment)  # type: ignore[call-arg]
        self.asked_ports = service_settings.wanted_ports()
        self.slots = service_settings.slots(settings.device)
        self.ports: dict[str, int] = {}
        self.reservations = contextlib.ExitStack()
        """Keeps the ports that are chosen here from other starts, until the services listen on them."""

    def run(self) -> Settings:
        """Do what is missing, and return the settings with the addresses of the services."""
        # 1. what a crash left, ports, configuration, the supervisor
        self._repair()
        self._configure()
        self.supervisor.start()
        self._tell_of_deaths()
        secrets, ports, bucket = self.secrets, self.ports, self.settings.s3_bucket

        # 2. Postgres with its roles and databases
        if POSTGRES in self.wanted:
            address = postgres.PostgresAddress(ports["postgres"], secrets.postgres_superuser)
            self._start(POSTGRES, lambda: postgres.is_ready(address))
            passwords = {
                postgres.OWNER: secrets.postgres_owner,
                postgres.READER: secrets.postgres_reader,
                postgres.PAGE: secrets.postgres_page,
                postgres.REVIEWER: secrets.postgres_reviewer,
                postgres.AIRFLOW: secrets.postgres_airflow,
            }
            postgres.ensure_roles(address, passwords)
            postgres.ensure_databases(address)
            logger.info("postgres: ready on %s:%d", LOOPBACK, address.port)

        # 3. S3 with its bucket
        endpoint = f"http://{LOOPBACK}:{ports['s3']}"
        if OBJECT_STORE in self.wanted:
            keys = {"access_key": secrets.s3_access_key, "secret_key": secrets.s3_secret_key}
            store = object_store.ObjectStoreAddress(endpoint, region=self.settings.s3_region, **keys)
            self._start(OBJECT_STORE, lambda: accepts_connections(ports["s3"]))
            object_store.check_put_and_get(store, bucket, _READY_SECONDS[OBJECT_STORE])
            logger.info("object store: ready on %s, bucket %s", endpoint, bucket)

        # 4. the settings with their addresses, and the file `environment` with those of the services that were asked for
        address_of = functools.partial(postgres.dsn, port=ports["postgres"], database=postgres.OWNER)
        values_of_service = {
            POSTGRES: {
                "database_dsn": address_of(user=postgres.OWNER, password=secrets.postgres_owner),
                "reader_dsn": address_of(user=postgres.PAGE, password=secrets.postgres_page),
                "reviewer_dsn": address_of(user=postgres.REVIEWER, password=secrets.postgres_reviewer),
            },
            OBJECT_STORE: {
                "s3_endpoint_url": endpoint,
                "s3_access_key_id": secrets.s3_access_key,
                "s3_secret_access_key": secrets.s3_secret_key,
                "s3_region": self.settings.s3_region,
                "s3_bucket": bucket,
            },
            AIRFLOW: {
                "airflow_url": airflow.url(ports["airflow"]),
                "airflow_username": airflow.USERNAME,
                "airflow_password": secrets.airflow_admin,
                "schedules_dir": str(self.settings.schedules_dir or self.paths.schedules),
            },
        }
        found = {name: value for values in values_of_service.values() for name, value in values.items()}
        settings = Settings.model_validate({**self.settings.model_dump(), **found})
        offered = {
            name: found[name] for service in SERVICES if service in self.wanted for name in values_of_service[service]
        }
        write_environment(self.paths.environment, offered)
        for name, value in offered.items():
            variable = f"TOOLFORMER_{name.upper()}"
            if os.environ.get(variable, value) != value:
                logger.warning(
                    "%s is set in the environment and wins over that of the embedded service: unset it", variable
                )

        # 5. our tables
        if POSTGRES in self.wanted:
            engine = database.connect(settings)
            schema.migrate(
                engine,
                lock_seconds=settings.migration_lock_seconds,
                statement_seconds=settings.migration_statement_seconds,
            )
            engine.dispose()

        # 6. Airflow's tables, Airflow with its pools
        if AIRFLOW in self.wanted:
            variables = supervisor_environment(self.paths) | airflow.environment(self.paths)
            airflow.migrate(self.paths, airflow.database_dsn(ports["postgres"], secrets), variables)
            with AirflowClient.of(settings) as client:
                self._start(AIRFLOW, lambda: airflow.is_healthy(client))
                slots = airflow.set_pools(client, self.slots)
            shown = ", ".join(f"{name} {count}" for name, count in sorted(slots.items()))
            logger.info("airflow: ready on %s, slots of its pools: %s", settings.airflow_url, shown)

        # 7. what runs now, for the next `up` to tell of deaths
        running = {report.name: report.process_id for report in self.supervisor.reports() if report.process_id}
        write_private(self.paths.started, json.dumps(running) + "\n")
        return settings

    def stop_services_without_port(self) -> list[str]:
        """Stop the services whose port another program took between its choice and its use; returns their names."""
        lost = []
        for service, name in PORT_OF_SERVICE.items():
            port = self.ports.get(name)
            if service not in self.wanted or port is None or is_free(port):
                continue
            reports = [report for report in self.supervisor.reports() if report.service == service]
            if not any(listens(report.process_id, port) for report in reports):
                self.supervisor.stop_service(service)
                lost.append(service)
        return lost

    def _repair(self) -> None:
        messages = self.supervisor.recover()
        if {report.service for report in self.supervisor.reports()} - set(SERVICES):
            logger.warning(
                "the services that run were started by an earlier version: they are stopped before they start again"
            )
            self.supervisor.shut_down()
        if POSTGRES not in self._running():
            messages += postgres.recover(self.paths.postgres)
        for message in messages:
            logger.warning("%s", message)

    def _running(self) -> set[str]:
        return {report.service for report in self.supervisor.reports() if report.is_living}

    def _configure(self) -> None:
        paths, secrets = self.paths, self.secrets
        self.ports = settle_ports(paths, self.asked_ports, self._running(), self.reservations)
        cluster = postgres.existing_cluster(paths.postgres)
        if cluster is None and POSTGRES in self.wanted:
            cluster = postgres.prepare_cluster(paths.postgres, secrets.postgres_superuser)
        object_store.write_identities(paths.identities, secrets.s3_access_key, secrets.s3_secret_key)
        changed = airflow.write_configuration(paths, secrets, self.ports, sum(self.slots.values()))
        running = self._running()
        if changed and AIRFLOW in running:
            logger.warning(
                "airflow: %s changed, so it is restarted; tasks that run now are cut off and tried again",
                ", ".join(changed),
            )
        self.supervisor.configure(cluster, self.ports)
        self.wanted |= running - self._running()  # what that stopped starts again, also where it was not asked for

    def _tell_of_deaths(self) -> None:
        before: dict[str, int] = {}
        if self.paths.started.exists():
            before = json.loads(self.paths.started.read_text(encoding="utf-8"))
        for report in self.supervisor.reports():
            if report.is_living and before.get(report.name, report.process_id) != report.process_id:
                logger.warning(
                    "%s (process %d) had ended; the supervisor started it again", report.name, before[report.name]
                )

    def _start(self, service: str, ready: Callable[[], bool]) -> None:
        """Start the programs of a service, and return once `ready()`; raises with its log when one gives up."""
        if self.supervisor.start_service(service):
            logger.info("%s: starting", service.replace("_", " "))
        deadline = time.monotonic() + _READY_SECONDS[service]
        lives: dict[str, set[int]] = {}
        while not ready():
            reports = [report for report in self.supervisor.reports() if report.service == service]
            for report in reports:
                lives.setdefault(report.name, set()).add(report.process_id)
            dead = [report for report in reports if not report.is_living or len(lives[report.name]) > _MOST_LIVES]
            if dead or time.monotonic() > deadline:
                report = (dead or reports)[0]
                log = self.paths.logs / f"{report.name}.log"
                lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if log.exists() else ["(no log)"]
                raise ServiceError(
                    f"expected {report.name} to be ready within {_READY_SECONDS[service]:.0f} s, found it {report.state}. "
                    f"The end of {log}:\n" + "\n".join(lines)
                )
            time.sleep(_POLL_SECONDS)
