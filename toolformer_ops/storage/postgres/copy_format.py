"""Rows as Postgres's COPY text format, so that loads go by COPY.

See https://www.postgresql.org/docs/current/sql-copy.html. Pure text, no connection: `database.copy_insert`
sends it.
"""

import itertools
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from toolformer_ops.errors import DatabaseError

NULL = r"\N"


def copy_text(rows: Iterable[Sequence[Any]]) -> str:
    r"""All rows as lines: fields separated by tabs, `\N` for None, a newline at the end of each.

    No rows are no text.

    Mappings become JSON, lists and tuples array literals, everything else its `str`; a UUID is written
    without hyphens.

    Raises:
        DatabaseError: a text holds U+0000 or a lone surrogate, which Postgres cannot store.
        ValueError: rows of different lengths.
    """
    columns = [_column(values) for values in zip(*rows, strict=True)]
    if not columns:
        return ""
    text = "\n".join(map("\t".join, zip(*columns, strict=True))) + "\n"
    if "\x00" in text:
        raise DatabaseError(
            f"expected text without U+0000, found {_around(text, text.index(chr(0)))}. Escape it first."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        quote = _around(text, error.start)
        raise DatabaseError(
            f"expected text without lone surrogates, found {quote}. Refuse or escape it first."
        ) from error
    return text


def _column(values: Sequence[Any]) -> Iterable[str]:
    """One field of many rows.

    Most columns hold one type: one loop for a whole column takes half the time of one for each row.
    """
    kinds = set(map(type, values))
    some_missing = type(None) in kinds
    kinds.discard(type(None))
    present = [value for value in values if value is not None] if some_missing else values
    if len(kinds) == 1:
        written = iter(_format_of(kinds.pop())(present))
    else:
        written = itertools.chain.from_iterable(_format_of(type(value))([value]) for value in present)
    return [NULL if value is None else next(written) for value in values] if some_missing else written


def _format_of(kind: type) -> Callable[[Sequence[Any]], Iterable[str]]:
    if kind in _COLUMN_FORMATS:
        return _COLUMN_FORMATS[kind]
    write: Callable[[Any], str] = str
    if issubclass(kind, Mapping):
        write = json.dumps
    elif issubclass(kind, list | tuple):
        write = _array
    return lambda values: (_escaped(write(value)) for value in values)


def _around(text: str, index: int) -> str:
    return ascii(text[max(0, index - 40) : index + 40])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _texts(values: Sequence[str]) -> Iterable[str]:
    together = "".join(values)
    return map(_escaped, values) if any(character in together for character in "\\\t\n\r") else values


def _array(items: Sequence[Any]) -> str:
    """An array literal, of several dimensions if its items are arrays.

    Numbers are those of a real[], which nine digits give back; Python's own way of writing them takes five
    times as long.
    """
    if items and isinstance(items[0], list | tuple):
        return "{" + ",".join(map(_array, items)) + "}"
    if items and isinstance(items[0], float):
        return "{" + ",".join(["%.9g"] * len(items)) % tuple(items) + "}"
    quoted = (
        "NULL" if item is None else '"' + str(item).replace("\\", "\\\\").replace('"', '\\"') + '"'
        for item in items
    )
    return "{" + ",".join(quoted) + "}"


_COLUMN_FORMATS: Mapping[type, Callable[[Sequence[Any]], Iterable[str]]] = {
    bool: lambda values: ["t" if value else "f" for value in values],
    int: lambda values: map(str, values),
    float: lambda values: map(str, values),
    str: _texts,
    uuid.UUID: lambda values: [f"{value.int:032x}" for value in values],
}
"""How values of these types are written; those of others are escaped text."""
