"""One statement on a database."""

import functools
from typing import Any

from sqlalchemy import Engine
from sqlalchemy import text as sql

from toolformer_ops.config import Settings
from toolformer_ops.storage.postgres import database


def engine_of(settings: Settings) -> Engine:
    """The owner's engine, whose connection is kept: a new one takes ten times as long as a statement."""
    return _engine(settings.database_dsn.get_secret_value(), settings.lock_seconds)


@functools.lru_cache(maxsize=2)
def _engine(dsn: str, lock_seconds: float | None) -> Engine:
    return database.connect_dsn(dsn, database.DSN_SETTING, lock_seconds=lock_seconds)


def run_sql(where: Settings | Engine, statement: str, /, **values: object) -> list[Any]:
    """The rows that a statement finds, none for one that returns nothing; what it changes is committed."""
    engine = where if isinstance(where, Engine) else engine_of(where)
    with engine.begin() as connection:  # errors as the driver has them
        found = connection.execute(sql(statement), values)
        return list(found) if found.returns_rows else []
