"""Rows as Postgres's COPY text format, so that loads go by COPY (https://www.postgresql.org/docs/current/sql-copy.html).

Pure text, no connection: `database.copy_insert` sends it.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from toolformer_ops.errors import DatabaseError

NULL = r"\N"


def copy_line(row: Sequence[Any]) -> str:
    r"""One row as a line: fields separated by tabs, `\N` for None, a newline at the end.

    Mappings become JSON, lists and tuples array literals, everything else its `str`; a UUID is written without hyphens.

    Raises:
        DatabaseError: a text holds U+0000 or a lone surrogate, which Postgres cannot store.
    """
    return "\t".join([_FORMATS.get(type(value), _field)(value) for value in row]) + "\n"


def copy_text(rows: Iterable[Sequence[Any]]) -> str:
    """All rows as lines, checked to be UTF-8 that Postgres can store.

    Raises:
        DatabaseError: a text holds U+0000 or a lone surrogate.
    """
    text = "".join(map(copy_line, rows))
    if "\x00" in text:
        raise DatabaseError(
            f"expected text without U+0000, found {_around(text, text.index(chr(0)))}. Escape it first."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = _around(text, error.start)
        raise DatabaseError(
            f"expected text without lone surrogates, found {found}. Refuse or escape it first."
        ) from error
    return text


def _around(text: str, index: int) -> str:
    return ascii(text[max(0, index - 40) : index + 40])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _field(value: Any) -> str:
    """A value of a type that is not in `_FORMATS`."""
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, Mapping):
        return _escaped(json.dumps(value))
    if isinstance(value, list | tuple):
        items = (
            "NULL" if item is None else '"' + str(item).replace("\\", "\\\\").replace('"', '\\"') + '"'
            for item in value
        )
        return _escaped("{" + ",".join(items) + "}")
    return str(value)


_FORMATS: Mapping[type, Callable[[Any], str]] = {
    type(None): lambda _: NULL,
    bool: lambda value: "t" if value else "f",
    int: str,
    float: str,
    str: _escaped,
    uuid.UUID: lambda value: value.hex,  # half the time of str
}
"""Most values of most rows are of these types: looking them up takes less than half the time of a chain of questions."""
