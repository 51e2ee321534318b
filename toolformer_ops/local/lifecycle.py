"""`up`, `down`, `status`: start, stop and show the embedded services of one state folder, one call at a time.

Each step of `up` looks at what exists and does what is missing, so it may be called at any time, after any
crash. Its order: what a crash left, ports and configuration, the supervisor, Postgres with its roles and
databases, S3 with its bucket, the `environment` file, our tables, Airflow's tables, Airflow with its pools.
Ports and configuration are settled when the supervisor starts, and stay until `down`.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Collection

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.config import ENV_PREFIX, Settings, load_settings
from toolformer_ops.errors import BlockedMigrationError, ServiceError
from toolformer_ops.local import airflow, object_store, postgres
from toolformer_ops.local.accounts import relocated_directory, require_linux
from toolformer_ops.local.airflow_additions import dropped, read_additions
from toolformer_ops.local.ports import (
    LOOPBACK,
    ReservedPorts,
    is_free,
    ports_of,
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
from toolformer_ops.local.supervision import ProcessReport, Supervisor
from toolformer_ops.storage.machine.shared_files import locked
from toolformer_ops.storage.postgres import database, schema

logger = logging.getLogger(__name__)

_READY_SECONDS = {POSTGRES: 120.0, OBJECT_STORE: 60.0, AIRFLOW: 240.0}
_POLL_SECONDS = 0.2
_LOG_LINES = 15
_PORT_OF_SERVICE = {POSTGRES: "postgres", OBJECT_STORE: "s3", AIRFLOW: "airflow"}


class ServiceSettings(BaseSettings):
    """How `make up` runs the services; a port left empty is the one in `ports.json`, else the usual one.

    Where the factory finds its services, embedded or not, is in `toolformer_ops.config`.
    """

    model_config = SettingsConfigDict(
        env_prefix="TOOLFORMER_", env_ignore_empty=True, extra="ignore", frozen=True
    )

    postgres_port: int | None = Field(
        default=None, ge=1, le=65535, description="Port of Postgres; usually 15432."
    )
    s3_port: int | None = Field(default=None, ge=1, le=65535, description="Port of S3; usually 18333.")
    airflow_port: int | None = Field(
        default=None, ge=1, le=65535, description="Port of the Airflow UI; usually 8080."
    )
    gpu_slots: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Stages with a language model at once; usually one a core, or one on CUDA.",
    )
    cpu_slots: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Stages without a language model at once; usually one a core.",
    )

    def wanted_ports(self) -> dict[str, int]:
        """Return the ports that were asked for, by name."""
        ports = {"postgres": self.postgres_port, "s3": self.s3_port, "airflow": self.airflow_port}
        return {name: port for name, port in ports.items() if port is not None}

    def slots(self, device: str) -> dict[str, int]:
        """Return how many tasks of each Airflow pool may run at once when the language model runs on `device`."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return {
            "gpu": self.gpu_slots or (cores if device == "cpu" else 1),
            "cpu": self.cpu_slots or cores,
        }


def up(settings: Settings, only: Collection[str] | None = None) -> Settings:
    """Start the services that do not run, repair what a crash left, and return the settings with their addresses.

    Args:
        settings: its `state_dir` holds everything.
        only: which of `SERVICES`; Airflow brings Postgres along. None: all.

    Raises:
        ServiceError: a service cannot be started; the message ends with the last lines of its log.
        UsageError: as `require_linux`.
    """
    require_linux()
    wanted = set(SERVICES if only is None else only)
    if AIRFLOW in wanted:
        wanted.add(POSTGRES)
    paths = StatePaths(settings.state_dir)
    paths.make()
    with locked(paths.lock, f"another `up` or `down` works in {paths.state}"):
        startup = _Startup(settings, paths)
        try:
            started = startup.run(wanted)
        finally:
            startup.reserved_ports.release()
    load_settings.cache_clear()  # the `environment` file is another now
    return started


class _Startup:
    """One run of `up`. The caller holds the lock of the state folder, and its folders are made."""

    def __init__(self, settings: Settings, paths: StatePaths) -> None:
        self.settings = settings
        self.paths = paths
        self.secrets = load_or_make_secrets(paths.secrets)
        self.supervisor = Supervisor(paths)
        service_settings = ServiceSettings(_env_file=paths.environment)  # type: ignore[call-arg]
        self.wanted_ports = service_settings.wanted_ports()
        self.slots = service_settings.slots(settings.device)
        self.ports: dict[str, int] = {}
        self.reserved_ports = ReservedPorts()

    def run(self, wanted: Collection[str]) -> Settings:
        """Do what is missing, and return the settings with the addresses of the services."""
        # 1. what a crash left, ports, configuration, the supervisor
        self._supervise()
        if AIRFLOW in wanted:
            path = self.paths.airflow_additions
            for name, remedy in dropped(os.environ, read_additions(path), path).items():
                logger.warning("%s is not taken from the environment: %s", name, remedy)
        # 2. Postgres with its roles and databases
        if POSTGRES in wanted:
            self._start_postgres()
        # 3. S3 with its bucket
        if OBJECT_STORE in wanted:
            self._start_object_store()
        # 4. the settings with their addresses, and the file `environment`
        settings = self._offer_settings(wanted)
        # 5. our tables
        if POSTGRES in wanted:
            _migrate(settings)
        # 6. Airflow's tables, Airflow with its pools
        if AIRFLOW in wanted:
            self._start_airflow(settings)
        return settings

    @property
    def _postgres(self) -> postgres.PostgresAddress:
        return postgres.PostgresAddress(self.ports["postgres"], self.secrets.postgres_superuser)

    @property
    def _s3_endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.ports['s3']}"

    def _start_postgres(self) -> None:
        secrets, address = self.secrets, self._postgres
        cluster = postgres.prepare_cluster(self.paths.postgres, secrets.postgres_superuser)
        if POSTGRES not in self._living():
            postgres.clear_pid_file(cluster)
        self._start(POSTGRES, lambda: postgres.is_ready(address))
        passwords = {
            postgres.OWNER: secrets.postgres_owner,
            postgres.READER: secrets.postgres_reader,
            postgres.PAGE: secrets.postgres_page,
            postgres.ANALYST: secrets.postgres_analyst,
            postgres.REVIEWER: secrets.postgres_reviewer,
            postgres.AIRFLOW: secrets.postgres_airflow,
        }
        postgres.ensure_roles(address, passwords)
        postgres.ensure_databases(address)
        logger.info("postgres: ready on %s:%d", LOOPBACK, address.port)

    def _start_object_store(self) -> None:
        bucket = self.settings.s3_bucket
        keys = {"access_key": self.secrets.s3_access_key, "secret_key": self.secrets.s3_secret_key}
        address = object_store.ObjectStoreAddress(self._s3_endpoint, region=self.settings.s3_region, **keys)
        client = address.client()
        object_store.write_identities(self.paths.identities, **keys)
        self._start(OBJECT_STORE, lambda: object_store.is_ready(client, bucket))
        logger.info("object store: ready on %s, bucket %s", self._s3_endpoint, bucket)

    def _start_airflow(self, settings: Settings) -> None:
        dsn = self._postgres.dsn(postgres.AIRFLOW, postgres.AIRFLOW, self.secrets.postgres_airflow)
        airflow.migrate(self.paths, dsn, self.supervisor.environment())
        with AirflowClient.of(settings) as client:
            self._start(AIRFLOW, lambda: airflow.is_healthy(client))
            slots = airflow.set_pools(self.paths, client, self.slots)
        shown = ", ".join(f"{name} {count}" for name, count in sorted(slots.items()))
        logger.info("airflow: ready on %s, slots of its pools: %s", settings.airflow_url, shown)

    def _addresses(self) -> dict[str, dict[str, str]]:
        """The settings with which each service is found, by service."""
        secrets, address = self.secrets, self._postgres
        return {
            POSTGRES: {
                "database_dsn": address.dsn(postgres.OWNER, postgres.OWNER, secrets.postgres_owner),
                "reader_dsn": address.dsn(postgres.OWNER, postgres.PAGE, secrets.postgres_page),
                "reviewer_dsn": address.dsn(postgres.OWNER, postgres.REVIEWER, secrets.postgres_reviewer),
            },
            OBJECT_STORE: {
                "s3_endpoint_url": self._s3_endpoint,
                "s3_access_key_id": secrets.s3_access_key,
                "s3_secret_access_key": secrets.s3_secret_key,
                "s3_region": self.settings.s3_region,
                "s3_bucket": self.settings.s3_bucket,
            },
            AIRFLOW: {
                "airflow_url": f"http://{LOOPBACK}:{self.ports['airflow']}",
                "airflow_username": airflow.USERNAME,
                "airflow_password": secrets.airflow_admin,
                "schedules_dir": str(self.settings.schedules_dir or self.paths.schedules),
            },
        }

    def _offer_settings(self, wanted: Collection[str]) -> Settings:
        """Return the settings with all addresses.

        Write those of the wanted services into the file `environment`.
        """
        all_values = self.settings.model_dump()
        offered: dict[str, str] = {}
        for service, values in self._addresses().items():
            all_values |= values
            if service in wanted:
                offered |= values
        write_environment(self.paths.environment, offered)
        for name, value in offered.items():
            variable = f"{ENV_PREFIX}{name.upper()}"
            if os.environ.get(variable, value) != value:
                logger.warning(
                    "%s is set in the environment and wins over that of the embedded service: unset it",
                    variable,
                )
        return Settings.model_validate(all_values)

    def _supervise(self) -> None:
        """Start the supervisor, with ports and configuration.

        It says which settings a running supervisor does not see.
        """
        paths = self.paths
        ended = self.supervisor.end_strays()
        if ended:
            logger.warning(
                "%d processes of services that were killed were still there: they were ended", ended
            )
        is_new = not self._living()
        if is_new:
            self.supervisor.shut_down()  # what an `up` left that has failed
        self.ports = (
            settle_ports(paths, self.wanted_ports, self.reserved_ports) if is_new else recalled_ports(paths)
        )
        cfg = airflow.configuration(paths, self.secrets, self.ports, sum(self.slots.values()))
        conf = self.supervisor.configuration(postgres.cluster_of(paths.postgres), self.ports)
        other = [] if is_new else self.supervisor.other_settings(conf)
        for name, port in self.wanted_ports.items():
            if self.ports[name] != port:
                other.append(f"{ENV_PREFIX}{name.upper()}_PORT")
        if AIRFLOW not in self._living():
            airflow.write_passwords(paths, cfg, self.secrets.airflow_admin)
            write_private(paths.airflow_configuration, cfg)
        elif paths.airflow_configuration.read_text(encoding="utf-8") != cfg:
            other.append(paths.airflow_configuration.name)
        if is_new:
            self.supervisor.start(conf)
        elif other:
            logger.warning(
                "the services keep the settings with which they were started: `toolformer-ops down` before "
                "`toolformer-ops up`, if they are to see the new %s",
                ", ".join(other),
            )

    def _living(self) -> set[str]:
        return {report.service for report in self.supervisor.reports() if report.is_living}

    def _start(self, service: str, ready: Callable[[], bool]) -> None:
        """Start the programs of a service that do not run, and return once `ready()`.

        It raises with its log when one gives up.
        """
        if service not in self._living():
            logger.info("%s: starting", service.replace("_", " "))
            name = _PORT_OF_SERVICE[service]
            ports = ports_of(name, self.ports[name]).values()
            self.reserved_ports.release(ports)
            taken = [port for port in ports if not is_free(port)]
            if taken:
                raise ServiceError(
                    f"expected port {taken[0]} to be free for {name}, found another program on it. End that "
                    "program, or `toolformer-ops down`, then `toolformer-ops up` on a free port."
                )
        self.supervisor.start_service(service)
        deadline = time.monotonic() + _READY_SECONDS[service]
        while not ready():
            reports = [report for report in self.supervisor.reports() if report.service == service]
            dead = [report for report in reports if not report.is_living]
            if dead or time.monotonic() > deadline:
                report = (dead or reports)[0]
                log = self.paths.logs / f"{report.name}.log"
                lines = (
                    log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
                    if log.exists()
                    else ["(no log)"]
                )
                raise ServiceError(
                    f"expected {report.name} to be ready within {_READY_SECONDS[service]:.0f} s, found it "
                    f"{report.state}. "
                    f"The end of {log}:\n" + "\n".join(lines)
                )
            time.sleep(_POLL_SECONDS)


def _migrate(settings: Settings) -> None:
    """Bring our tables to the version of this code, if nothing blocks it."""
    engine = database.connect(settings)
    try:
        schema.migrate(engine)
    except BlockedMigrationError as error:
        # Airflow shows it: the first task of each run says the same until a person has migrated.
        logger.warning("the database keeps the tables and views of an earlier version: %s", error)
    engine.dispose()


def down(settings: Settings) -> bool:
    """Stop every service and the supervisor, Postgres last; False when nothing ran."""
    paths = StatePaths(settings.state_dir)
    if not paths.state.exists():
        return False
    with locked(paths.lock, f"another `up` or `down` works in {paths.state}"):
        supervisor = Supervisor(paths)
        strays = supervisor.end_strays()
        has_stopped = supervisor.shut_down()
        if has_stopped:
            object_store.remove_sockets(recalled_ports(paths))
        return has_stopped or strays > 0


def delete_state(settings: Settings) -> None:
    """Stop everything and delete the state folder, and the data of a Postgres that is elsewhere because we are root."""
    down(settings)
    for folder in (settings.state_dir, relocated_directory(settings.state_dir / "postgres")):
        if folder.exists():
            shutil.rmtree(folder)


def status(settings: Settings) -> list[tuple[ProcessReport, str]]:
    """Return every program with its address, in the order of starting.

    It is empty when the supervisor does not run.
    """
    paths = StatePaths(settings.state_dir)
    ports = recalled_ports(paths)
    addresses = {
        "postgres": f"{LOOPBACK}:{ports.get('postgres')}",
        "object-store": f"http://{LOOPBACK}:{ports.get('s3')}",
        "airflow-api-server": f"http://{LOOPBACK}:{ports.get('airflow')}",
    }
    return [(report, addresses.get(report.name, "")) for report in Supervisor(paths).reports()]
