"""What the process of a database is told when it starts, and what it says of the database.

Both are JSON between two processes.
"""

import importlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
    foreign_keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By column, the offered table that it refers to, and that table's column."""


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

    @abstractmethod
    def pages(self, query: str) -> Iterator[list[list[str | None]]]:
        """All rows of a query of ours, each time as many as an answer may have.

        A value that is no text is None. Raises as `answer`.
        """


class RowPages(Answering):
    """A database whose tables are read whole: each question is a query, its answer the query's next rows.

    No rows are the end.
    """

    limits = Queries.limits

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._query = ""
        self._pages: Iterator[list[list[str | None]]] = iter(())

    @classmethod
    def open(cls, answering: Sequence[str], **opening: Any) -> Self:
        """Open the database by the class of this module and name."""
        module, name = answering
        queries: type[Queries] = getattr(importlib.import_module(module), name)
        return cls(queries.open(**opening))

    def describe(self) -> DescribedDatabase:
        """What the database says of itself."""
        return self._queries.describe()

    def answer(self, query: str) -> list[list[str | None]]:
        """The next rows of a query."""
        if query != self._query:
            self._query, self._pages = query, self._queries.pages(query)
        return next(self._pages, [])
