"""What the process of a database is told when it starts, and what it says of the database.

Both are JSON between two processes.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from toolformer_ops.tools.databases import reasons
from toolformer_ops.tools.files.answering import Answering, Limits


@dataclass(frozen=True)
class DatabaseOpening:
    """Which database is opened, and within which limits its queries run."""

    address: dict[str, str]
    """The `path` of an SQLite file, or the parameters of libpq for a Postgres."""
    tables: Sequence[str]
    """Tables and views that queries may name; none: all that the database has."""
    seconds: float
    """Longest run of a query."""
    rows: int
    """Most rows of an answer."""
    bytes: int
    """Longest answer, in bytes."""


@dataclass(frozen=True)
class Table:
    """A table or view, as queries may name it."""

    name: str
    columns: dict[str, str]
    """Their types by name."""
    keys: dict[str, str]
    """By column, what it is: `primary key`, or `references orders(id)`."""


@dataclass(frozen=True)
class DescribedDatabase:
    """What a database says of itself."""

    tables: Sequence[Table]
    warnings: Sequence[str] = ()
    """What the role of the connection may do beyond reading, a sentence each."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> "DescribedDatabase":
        """What `asdict` made of one."""
        return cls([Table(**table) for table in values["tables"]], values["warnings"])


class Queries(Answering):
    """A database that is open."""

    # The longest file: SQLite's index of a write-ahead log, and nothing else.
    limits = Limits(memory_bytes=2**30, file_bytes=2**20, out_of_memory=reasons.MEMORY)

    @abstractmethod
    def __init__(self, opening: DatabaseOpening) -> None:
        """Open it; errors are those of `open`."""

    @classmethod
    def open(cls, **opening: Any) -> Self:
        """Open the database; `opening` are the fields of a DatabaseOpening."""
        return cls(DatabaseOpening(**opening))

    @abstractmethod
    def describe(self) -> DescribedDatabase:
        """Its tables, and what the connection may do beyond reading.

        Raises:
            WrongError: a table is not there.
            AwayError: it does not answer now.
        """

    @abstractmethod
    def answer(self, query: str) -> list[list[str | None]]:
        """The rows of a query as texts, None for NULL.

        Raises:
            RejectedInputError: the query is refused, or breaks a limit.
            AwayError: the database does not answer now.
        """
