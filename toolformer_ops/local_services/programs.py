"""The embedded services as programs for the supervisor: what runs, as whom, in which order, and how each is asked to stop."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from toolformer_ops.local_services import airflow_services, seaweedfs
from toolformer_ops.local_services.postgres import Cluster
from toolformer_ops.local_services.service_settings import StatePaths
from toolformer_ops.local_services.supervision import Program

POSTGRES = "postgres"
OBJECT_STORE = "object_store"
AIRFLOW = "airflow"
SERVICES = (POSTGRES, OBJECT_STORE, AIRFLOW)

PROGRAMS_OF_SERVICE: Mapping[str, tuple[str, ...]] = {
    POSTGRES: ("postgres",),
    OBJECT_STORE: ("object-store",),
    AIRFLOW: tuple(airflow_services.COMMANDS),
}
"""The programs that make up each service."""

# Low numbers start first and stop last: Airflow's parts stop before what they use, Postgres stops at the very end.
_PRIORITIES = {POSTGRES: 10, OBJECT_STORE: 20, AIRFLOW: 30}


def identities_file(paths: StatePaths) -> Path:
    """The file with the keys of S3."""
    return paths.object_store / "identities.json"


def all_programs(paths: StatePaths, cluster: Cluster | None, ports: Mapping[str, int]) -> list[Program]:
    """Every program; Postgres and Airflow are left out as long as there is no cluster."""
    programs = [_object_store(paths, ports)]
    if cluster is not None:
        programs += [_postgres(cluster, ports["postgres"]), *_airflow(paths)]
    return programs


def _postgres(cluster: Cluster, port: int) -> Program:
    return Program(
        name="postgres",
        command=tuple(cluster.command(port)),
        directory=cluster.data,
        priority=_PRIORITIES[POSTGRES],
        # "Fast" shutdown: open transactions are rolled back. SIGTERM would wait for every client to leave.
        stop_signal=signal.SIGINT,
        stop_group=False,  # the postmaster tells its own children
        stop_seconds=60,
        account=cluster.account,
    )


def _object_store(paths: StatePaths, ports: Mapping[str, int]) -> Program:
    inner = {name: ports[name] for name in seaweedfs.PORT_OPTIONS}
    return Program(
        name="object-store",
        command=tuple(seaweedfs.weed_command(paths.object_store / "data", identities_file(paths), inner)),
        directory=paths.object_store,
        priority=_PRIORITIES[OBJECT_STORE],
        environment={"HOME": str(paths.object_store)},
    )


def _airflow(paths: StatePaths) -> list[Program]:
    environment = airflow_environment(paths)
    return [
        Program(
            name=name,
            command=airflow_services.command(name),
            directory=paths.airflow_home,
            priority=_PRIORITIES[AIRFLOW],
            stop_seconds=40,
            environment=environment,
        )
        for name in airflow_services.COMMANDS
    ]


def airflow_environment(paths: StatePaths) -> dict[str, str]:
    """What Airflow and the stages that it starts find in their environment, beside the supervisor's."""
    return airflow_services.environment(paths.airflow_home, paths.state)


def supervisor_environment(paths: StatePaths) -> dict[str, str]:
    """Our own environment without Airflow's variables, which would win over the embedded Airflow's configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "MAKE", "MFLAGS"))}
    local = ",".join(filter(None, [kept.get("NO_PROXY", ""), "127.0.0.1,localhost"]))
    return kept | {"TOOLFORMER_STATE_DIR": str(paths.state), "NO_PROXY": local, "no_proxy": local}
