"""Find psql, and tell it the read-only login without showing the password on a command line."""

import os
import shutil

from sqlalchemy.engine import make_url

from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, ServiceError
from toolformer_ops.local_services.postgres import wheel_programs


def psql(settings: Settings) -> tuple[str, dict[str, str]]:
    """The program psql, and the environment that leads it to `settings.reader_dsn`.

    Raises:
        ConfigurationError: no `TOOLFORMER_READER_DSN` is known.
        ServiceError: there is no psql.
    """
    address = settings.reader_dsn.get_secret_value()
    if not address:
        raise ConfigurationError(
            f"expected the read-only address in TOOLFORMER_READER_DSN or in {settings.state_dir / 'environment'}, found none. "
            f"`make up` writes it."
        )
    url = make_url(address)
    variables = {
        "PGHOST": url.host,
        "PGPORT": str(url.port or 5432),
        "PGUSER": url.username,
        "PGPASSWORD": str(url.password or ""),
        "PGDATABASE": url.database,
        "PGAPPNAME": "toolformer-ops sql",
    }
    return _program(), os.environ | {name: value for name, value in variables.items() if value}


def _program() -> str:
    try:
        bundled = wheel_programs() / "bin" / "psql"
    except ServiceError:
        bundled = None
    if bundled is not None and bundled.exists():
        return str(bundled)
    found = shutil.which("psql")
    if found is None:
        raise ServiceError("expected the program psql, found none. Install postgresql-client, or run `make install`.")
    return found
