"""What a person adds to the configuration of the embedded Airflow, in `airflow-additions.cfg` of the state folder.

It is written as `airflow.cfg` is: metrics, JSON logs, more users. `up` writes `airflow.cfg` anew each time
and takes no `AIRFLOW_...` variable of the shell, which would win over it; so this file is the place for the
rest.
"""

import configparser
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from toolformer_ops.errors import ConfigurationError

FIXED = frozenset(
    {
        ("core", "dags_folder"),
        ("core", "executor"),
        ("core", "fernet_key"),
        ("core", "execution_api_server_url"),
        ("core", "simple_auth_manager_passwords_file"),
        ("database", "sql_alchemy_conn"),
        ("api", "host"),
        ("api", "port"),
        ("api", "base_url"),
        ("api", "secret_key"),
        ("api_auth", "jwt_secret"),
        ("scheduler", "allowed_run_id_pattern"),
        ("logging", "base_log_folder"),
        ("dag_processor", "dag_bundle_config_list"),
        ("dag_processor", "dag_bundle_storage_path"),
    }
)
"""Sections and keys that follow from ports, folders and secrets, or without which no run works."""
USERS = ("core", "simple_auth_manager_users")
OPTION = re.compile(r"AIRFLOW__(?P<section>[A-Z0-9_.]+?)__(?P<key>[A-Z0-9_]+)")
"""A variable that sets an option of Airflow."""


def _parser() -> configparser.RawConfigParser:
    return configparser.RawConfigParser(comment_prefixes=("#", ";"))


def read_additions(path: Path) -> configparser.RawConfigParser:
    """Return what a file of additions holds; nothing if there is none.

    Raises:
        ConfigurationError: it cannot be read, or sets what `up` sets itself.
    """
    additions = _parser()
    if not path.exists():
        return additions
    try:
        additions.read_string(path.read_text(encoding="utf-8"))
    except (configparser.Error, UnicodeDecodeError, OSError) as error:
        # Its own words quote the line, which may hold a password.
        line = getattr(error, "lineno", None)
        where = f" in line {line}" if line else ""
        raise ConfigurationError(
            f"{path}: expected sections and keys as in airflow.cfg, found a {type(error).__name__}{where}. "
            "Correct the file, or delete it."
        ) from None
    fixed = []
    for section in additions.sections():
        keys = [key for key in additions.options(section) if (section, key) in FIXED]
        fixed += [f"[{section}] {key}" for key in keys]
    if fixed:
        raise ConfigurationError(
            f"{path}: expected additions to what `up` sets itself, found {', '.join(fixed)}. Take them out."
        )
    return additions


def with_additions(configuration: str, additions: configparser.RawConfigParser, admin: str) -> str:
    """Return `airflow.cfg` with a person's additions, which win; as it is if there are none.

    Raises:
        ConfigurationError: the users lack `admin` with all rights, as whom `up` asks Airflow.
    """
    if not additions.sections():
        return configuration
    merged = _parser()
    merged.read_string(configuration)
    merged.read_dict({section: dict(additions.items(section)) for section in additions.sections()})
    if f"{admin}:admin" not in re.split(r"[,\s]+", merged.get(*USERS)):
        raise ConfigurationError(
            f"[core] simple_auth_manager_users: expected {admin}:admin among the users, found "
            f"{merged.get(*USERS)!r}. `up` asks Airflow as this user."
        )
    text = io.StringIO()
    text.write(
        "# Written by toolformer_ops/local/airflow.py, with airflow-additions.cfg; mode 600, for it holds "
        "secrets.\n\n"
    )
    merged.write(text)
    return text.getvalue()


def users_in(configuration: str) -> list[str]:
    """Return the names of the users that an `airflow.cfg` lists."""
    parser = _parser()
    parser.read_string(configuration)
    return [user.partition(":")[0] for user in re.split(r"[,\s]+", parser.get(*USERS)) if user]


def dropped(
    environment: Iterable[str], additions: configparser.RawConfigParser, path: Path
) -> Mapping[str, str]:
    """Return the `AIRFLOW_...` variables that the embedded Airflow does not see, each with what to do instead.

    `environment` holds the names of all variables. Those whose option the additions set are left out.
    """
    remedies = {}
    for name in sorted(environment):
        if not name.startswith("AIRFLOW_") or name == "AIRFLOW_HOME":
            continue
        option = OPTION.fullmatch(name)
        if option is None:
            remedies[name] = "make it in the UI (Admin)"
            continue
        section, key = option["section"].lower(), option["key"].lower()
        if (section, key) in FIXED:
            remedies[name] = "`up` sets it itself"
        elif not additions.has_option(section, key):
            remedies[name] = f"write {key} = ... below [{section}] into {path}"
    return remedies
