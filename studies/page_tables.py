"""Tables of docs/evidence.md and of the terminal, in Markdown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    head: str
    cell: Callable[[Any], str]
    """By arm, rule or statistic, what is written."""


def table_of(columns: Sequence[Column], names: Iterable[Any]) -> str:
    """The columns' cells, a row a name."""
    rows = [[column.head for column in columns], ["---"] * len(columns)]
    rows += [[column.cell(name) for column in columns] for name in names]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
