"""The passwords and keys of the embedded services: made once, kept in one file with mode 600, printed nowhere."""

import base64
import json
import secrets
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from toolformer_ops.errors import ServiceError
from toolformer_ops.local_services.private_files import write_private


def _password() -> str:
    return secrets.token_urlsafe(24)  # 192 bits, 32 characters, none that an address or a shell reads as its own


def _fernet_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def _access_key() -> str:
    return secrets.token_hex(10)


@dataclass(frozen=True)
class GeneratedSecrets:
    """One secret a field; `repr` shows none."""

    postgres_superuser: str = field(default_factory=_password, repr=False)
    postgres_owner: str = field(default_factory=_password, repr=False)
    postgres_reader: str = field(default_factory=_password, repr=False)
    postgres_airflow: str = field(default_factory=_password, repr=False)
    s3_access_key: str = field(default_factory=_access_key, repr=False)
    s3_secret_key: str = field(default_factory=_password, repr=False)
    airflow_admin: str = field(default_factory=_password, repr=False)
    airflow_fernet_key: str = field(default_factory=_fernet_key, repr=False)
    airflow_jwt_secret: str = field(default_factory=_password, repr=False)
    airflow_api_secret: str = field(default_factory=_password, repr=False)


def load_or_make(path: Path) -> GeneratedSecrets:
    """The secrets in `path`; what is lacking there is made and written before it is used.

    Raises:
        ServiceError: the file is there and is not what we wrote.
    """
    known: dict[str, str] = {}
    if path.exists():
        try:
            known = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ServiceError(
                f"{path}: expected JSON with the services' passwords, found: {error}. Put a copy of the file back, or `make clean`."
            ) from error
    names = {entry.name for entry in fields(GeneratedSecrets)}
    complete = GeneratedSecrets(**{name: value for name, value in known.items() if name in names})
    if asdict(complete) != known:
        write_private(path, json.dumps(asdict(complete), indent=2) + "\n")
    return complete
