"""One statement on a database."""

from typing import Any

from sqlalchemy import Engine
from sqlalchemy import text as sql

from toolformer_ops.config import Settings
from toolformer_ops.storage import database


def run_sql(where: Settings | Engine, statement: str, /, **values: object) -> list[Any]:
    """The rows that a statement finds, none for one that returns nothing; what it changes is committed."""
    engine = where if isinstance(where, Engine) else database.connect(where)
    with engine.begin() as connection:  # errors as the driver has them
        found = connection.execute(sql(statement), values)
        return list(found) if found.returns_rows else []
