"""The statements of `sql/queries`: `queries.runs.by_id` is what is below `-- name: by_id` in `runs.sql`.

The files have the form that aiosql reads; aiosql itself talks to a driver's connection, and stages share
SQLAlchemy's. A file is read when one of its statements is first asked for. Statements take bound parameters
(`:name`); nothing here builds SQL from values.
"""

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolformer_ops.config import SHIPPED

if TYPE_CHECKING:
    from sqlalchemy import TextClause

_FOLDER = SHIPPED / "sql" / "queries"
HEADING = re.compile(r"^-- name: ([a-z_0-9]+)$", re.MULTILINE)
"""The line above a statement; also above a claim of `sql/audits`."""


@dataclass(frozen=True)
class Statement:
    """One statement with its name."""

    name: str
    """`TOPIC.NAME`, for messages."""
    sql: str
    """As the file has it, with `:parameters`."""

    @functools.cached_property
    def clause(self) -> "TextClause":
        """What SQLAlchemy executes."""
        from sqlalchemy import text  # a DAG that is parsed asks for none

        return text(self.sql)


class Topic:
    """The statements of a file, as attributes."""

    def __init__(self, name: str) -> None:
        self._path = _FOLDER / f"{name}.sql"
        text = self._path.read_text(encoding="utf-8")
        _, *parts = HEADING.split(text)  # a name, its statement, the next name, ...
        self._statements: dict[str, Statement] = {}
        for statement, sql in zip(parts[::2], parts[1::2], strict=True):
            self._statements[statement] = Statement(f"{name}.{statement}", sql.strip())

    def __getattr__(self, name: str) -> Statement:
        """The statement with this name; raises AttributeError if the file has none."""
        if name.startswith("_") or name not in self._statements:
            raise AttributeError(f"expected `-- name: {name}` in {self._path}, found no such line.")
        return self._statements[name]

    def __getitem__(self, name: str) -> Statement:
        """Return the statement whose name is that of a stage, a table or a kind."""
        return self.__getattr__(name)


def __getattr__(topic: str) -> Topic:
    """The topic with this name; raises AttributeError if there is no such file."""
    if topic.startswith("_") or not (_FOLDER / f"{topic}.sql").is_file():
        raise AttributeError(f"expected statements in {_FOLDER / topic}.sql, found no file.")
    read: Topic = globals().setdefault(topic, Topic(topic))
    return read
