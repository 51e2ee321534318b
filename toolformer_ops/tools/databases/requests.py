"""What the process that runs queries is told when it starts, and what it says of the database.

Both are JSON between two processes.
"""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Opening:
    """Which database is opened, and within which limits its queries run."""

    engine: str
    """`sqlite` or `postgresql`."""
    address: dict[str, str]
    """The `path` of an SQLite file, or the parameters of libpq for a Postgres."""
    tables: tuple[str, ...]
    """Tables and views that queries may name; none: all that the database has."""
    seconds: float
    """Longest run of a query."""
    rows: int
    """Most rows of an answer."""
    bytes: int
    """Longest answer, in bytes."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Opening":
        """What `asdict` made of one."""
        return cls(**{**values, "tables": tuple(values["tables"])})


@dataclass(frozen=True)
class Table:
    """A table or view, as queries may name it."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Their names and types."""
    keys: dict[str, str]
    """By column, what it is: `primary key`, or `references orders(id)`."""


@dataclass(frozen=True)
class Opened:
    """What a database says of itself."""

    tables: tuple[Table, ...]
    warnings: tuple[str, ...] = ()
    """What the role of the connection may do beyond reading, a sentence each."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Opened":
        """What `asdict` made of one."""
        tables = []
        for table in values["tables"]:
            columns = tuple((name, kind) for name, kind in table["columns"])
            tables.append(Table(table["name"], columns, table["keys"]))
        return cls(tuple(tables), tuple(values["warnings"]))


class WrongDatabaseError(Exception):
    """The database cannot be used as the tool file says: a later try cannot help."""


class AwayError(Exception):
    """The database does not answer now."""


class Queries(Protocol):
    """A database that is open; it belongs to one process and one thread."""

    def describe(self) -> Opened:
        """Its tables, and what the connection may do beyond reading.

        Raises:
            WrongDatabaseError: a table is not there.
            AwayError: it does not answer now.
        """
        ...

    def answer(self, query: str) -> list[list[str | None]]:
        """The rows of a query as texts, None for NULL.

        Raises:
            RejectedInputError: the query is refused, or breaks a limit.
            AwayError: the database does not answer now.
        """
        ...
