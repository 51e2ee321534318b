"""Where the embedded services of this machine listen and how much of it they may use.

Only `make up` reads these. Where the factory finds its services, embedded or not, is in `toolformer_ops.config`.
"""

import os
from functools import cached_property
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from toolformer_ops.errors import ServiceError

USUAL_PORTS = {"postgres": 15432, "s3": 18333, "airflow": 8080}


def core_count() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ServiceSettings(BaseSettings):
    """Settings of the embedded services; a port left empty is the one remembered, or the usual one, or a free one."""

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
        """The ports that were asked for, by service."""
        asked = {"postgres": self.postgres_port, "s3": self.s3_port, "airflow": self.airflow_port}
        return {name: port for name, port in asked.items() if port is not None}

    def slots(self, device: str) -> dict[str, int]:
        """How many tasks of each Airflow pool may run at once when the language model runs on `device`."""
        cores = core_count()
        return {
            "gpu": self.gpu_slots or (cores if device == "cpu" else 1),
            "cpu": self.cpu_slots or cores,
        }


class StatePaths:
    """The files of the embedded services below the state folder."""

    def __init__(self, state: Path) -> None:
        """Name them; makes nothing."""
        self.state = state.resolve()

    def make(self) -> None:
        """Make the folders. Others may pass through the state folder only where Postgres must (we are root), and list nothing.

        Raises:
            ServiceError: the state folder is another user's.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        owner = self.state.stat().st_uid
        if owner != os.geteuid():
            raise ServiceError(
                f"expected {self.state} to belong to user {os.geteuid()}, found user {owner}. Run as that user, or choose another "
                f"folder by TOOLFORMER_STATE_DIR."
            )
        passable = 0o711 if owner == 0 else 0o700
        for folder, mode in (
            (self.state, passable),
            (self.postgres, passable),
            (self.logs, 0o700),
            (self.airflow_home, 0o700),
            (self.object_store, 0o700),
        ):
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)

    @cached_property
    def environment(self) -> Path:
        """The settings that `toolformer_ops.config` reads; mode 600."""
        return self.state / "environment"

    @cached_property
    def secrets(self) -> Path:
        """Every generated password and key; mode 600."""
        return self.state / "secrets.json"

    @cached_property
    def ports(self) -> Path:
        """The ports in use, remembered from one `up` to the next."""
        return self.state / "ports.json"

    @cached_property
    def lock(self) -> Path:
        """Held by `up` and `down`, so that two do not work at once."""
        return self.state / "services.lock"

    @cached_property
    def airflow_schema(self) -> Path:
        """Which Airflow last migrated which database."""
        return self.airflow_home / "migrated.json"

    @cached_property
    def started(self) -> Path:
        """The process of each service when `up` last ended well."""
        return self.state / "started.json"

    @cached_property
    def postgres(self) -> Path:
        """The folder of the cluster."""
        return self.state / "postgres"

    @cached_property
    def object_store(self) -> Path:
        """The folder of SeaweedFS."""
        return self.state / "object_store"

    @cached_property
    def airflow_home(self) -> Path:
        """AIRFLOW_HOME: airflow.cfg, the password file and task logs."""
        return self.state / "airflow"

    @cached_property
    def logs(self) -> Path:
        """What the services print, one file each."""
        return self.state / "logs"

    @cached_property
    def supervisor_configuration(self) -> Path:
        """The configuration of supervisord."""
        return self.state / "supervisord.conf"
