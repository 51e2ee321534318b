"""The state folder of the embedded services: its files, the generated passwords, and `environment`, the settings that it offers.

Every path is named here once. Files with secrets have mode 600 and are replaced whole, so that no reader sees
half of one.
"""

import base64
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import dotenv
import jinja2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolformer_ops.errors import ServiceError
from toolformer_ops.storage.machine.shared_files import replace_file

POSTGRES = "postgres"
OBJECT_STORE = "object_store"
AIRFLOW = "airflow"
SERVICES = (POSTGRES, OBJECT_STORE, AIRFLOW)
"""In the order of starting; they stop in the reverse order."""

_ENVIRONMENT_HEADER = (
    "# Settings of this machine, read by toolformer_ops.config; mode 600, for it holds passwords.\n"
    "# `toolformer-ops up` rewrites the lines of the services that it starts. Lines for other settings may "
    "be added and are kept.\n"
)


class StatePaths:
    """The files of the embedded services below the state folder; makes nothing before `make`."""

    def __init__(self, state: Path) -> None:
        self.state = state.resolve()
        self.environment = self.state / "environment"  # the settings that `toolformer_ops.config` reads
        self.secrets = self.state / "secrets.json"
        self.ports = self.state / "ports.json"
        self.lock = self.state / "services.lock"  # held by `up` and `down`, so that two do not work at once
        # What a person adds to Airflow's configuration.
        self.airflow_additions = self.state / "airflow-additions.cfg"
        self.supervisor_configuration = self.state / "supervisord.conf"
        self.supervisor_pid = self.state / "supervisord.pid"
        self.postgres = self.state / "postgres"
        self.object_store = self.state / "object_store"
        self.identities = self.object_store / "identities.json"  # the keys of S3
        self.airflow_home = self.state / "airflow"
        self.airflow_configuration = self.airflow_home / "airflow.cfg"
        self.airflow_passwords = self.airflow_home / "passwords.json"
        # Which Airflow last migrated its database, and to which schema.
        self.airflow_schema = self.airflow_home / "migrated"
        # The slots of Airflow's pools as `up` set them last; other slots are a person's.
        self.airflow_pools = self.airflow_home / "pools.json"
        self.schedules = self.state / "schedules"  # schedule files, each a nightly DAG
        self.logs = self.state / "logs"
        self.supervisor_log = self.logs / "supervisord.log"

    def make(self) -> None:
        """Make the folders.

        Others may pass through the state folder only where Postgres must (we are root), and list nothing.

        Raises:
            ServiceError: the state folder is another user's.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        owner = self.state.stat().st_uid
        if owner != os.geteuid():
            raise ServiceError(
                f"expected {self.state} to belong to user {os.geteuid()}, found user {owner}. Run as that "
                "user, or choose another folder by TOOLFORMER_STATE_DIR."
            )
        passable = 0o711 if owner == 0 else 0o700
        modes = {self.state: passable, self.postgres: passable}
        for folder in (
            self.state,
            self.postgres,
            self.logs,
            self.airflow_home,
            self.object_store,
            self.schedules,
        ):
            folder.mkdir(exist_ok=True)
            folder.chmod(modes.get(folder, 0o700))
        (self.object_store / "data").mkdir(exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Replace `path` by a file of mode 600 with this text."""
    replace_file(path, text, mode=0o600)


def rendered_template(name: str, **values: object) -> str:
    """Return a configuration file from its template in this folder.

    A value that the template misses is an error.
    """
    environment = jinja2.Environment(
        autoescape=False,  # noqa: S701 - configuration files, no HTML
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    template = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return environment.from_string(template).render(**values)


def write_environment(path: Path, values: Mapping[str, str]) -> None:
    """Set `TOOLFORMER_<NAME>='value'` for each value in the file of settings; its other lines stay."""
    if not path.exists():
        write_private(path, _ENVIRONMENT_HEADER)
    path.chmod(0o600)
    present_values = dotenv.dotenv_values(path, interpolate=False)
    for name, value in values.items():
        variable = f"TOOLFORMER_{name.upper()}"
        if present_values.get(variable) != value:
            dotenv.set_key(path, variable, value)


def _password() -> str:
    return secrets.token_urlsafe(24)  # 192 bits, 32 characters that neither an address nor a shell interprets


class GeneratedSecrets(BaseModel):
    """One secret a field; neither `repr` nor an error shows one."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    postgres_superuser: str = Field(default_factory=_password, repr=False)
    postgres_owner: str = Field(default_factory=_password, repr=False)
    postgres_reader: str = Field(default_factory=_password, repr=False)
    postgres_page: str = Field(default_factory=_password, repr=False)
    postgres_analyst: str = Field(default_factory=_password, repr=False)
    postgres_reviewer: str = Field(default_factory=_password, repr=False)
    postgres_airflow: str = Field(default_factory=_password, repr=False)
    s3_access_key: str = Field(default_factory=lambda: secrets.token_hex(10), repr=False)
    s3_secret_key: str = Field(default_factory=_password, repr=False)
    airflow_admin: str = Field(default_factory=_password, repr=False)
    airflow_fernet_key: str = Field(
        default_factory=lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(), repr=False
    )
    airflow_jwt_secret: str = Field(default_factory=_password, repr=False)
    airflow_api_secret: str = Field(default_factory=_password, repr=False)


def load_or_make_secrets(path: Path) -> GeneratedSecrets:
    """Return the secrets in `path`; missing ones are made, and written before they are used.

    Raises:
        ServiceError: the file exists and is not what we wrote.
    """
    content = path.read_text(encoding="utf-8") if path.exists() else "{}"
    try:
        complete = GeneratedSecrets.model_validate_json(content)
    except ValidationError as error:
        raise ServiceError(
            f"{path}: expected JSON with the services' passwords, found: {error}. Put a copy of the file "
            "back, or `toolformer-ops clean`."
        ) from error
    text = complete.model_dump_json(indent=2) + "\n"
    if text != content:
        write_private(path, text)
    return complete
