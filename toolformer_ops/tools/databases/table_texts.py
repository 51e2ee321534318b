"""Tables and columns as a prompt says them: `products(name text primary key, stock integer)`.

A name is written as a query has to write it, in double quotes where its plain form would mean something else.
"""

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a tool's own process imports this, and needs no settings and no pydantic
    from toolformer_ops.tools.databases.database_file import RecordedTables

_RESERVED = """
add all alter analyse analyze and any array as asc asymmetric authorization autoincrement between binary
both case cast check collate column commit concurrently constraint create cross current_catalog
current_date current_role current_schema current_time current_timestamp current_user default deferrable
delete desc distinct do drop else end escape except exists false fetch for foreign freeze from full grant
group having ilike in index initially inner insert intersect into is isnull join lateral leading left
like limit localtime localtimestamp natural not nothing notnull null offset on only or order outer
overlaps placing primary references returning right select session_user set similar some symmetric table
tablesample then to trailing transaction true union unique update user using values variadic verbose when
where window with
"""
RESERVED = frozenset(_RESERVED.split())
"""Words that are no names without quotes, in SQLite or in Postgres."""
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")

PRIMARY_KEY = "primary key"
Keys = Mapping[str, Mapping[str, str]]
"""What a column is to its table and to others, in words, by table and column."""


def references(table: str, column: str | None, engine: str) -> str:
    """What a column is that holds keys of a table: `references orders(id)`."""
    return f"references {table_name(table, engine)}{f'({column_name(column, engine)})' if column else ''}"


def table_name(name: str, engine: str) -> str:
    """A table's name as a query writes it; of a Postgres it may have a schema before a point."""
    parts = name.split(".") if engine == "Postgres" else [name]
    return ".".join(column_name(part, engine) for part in parts)


def tables_text(
    recorded: "RecordedTables", keys: Keys | None = None, first: Collection[str] = (), most: int | None = None
) -> tuple[str, list[str]]:
    """The tables with their columns, types and keys, and the names of the tables in it.

    The tables of `first` come first. Others are left out where the text would have more than `most`
    characters.
    """
    columns = recorded.columns
    in_order = sorted(columns, key=lambda name: name not in first)  # as they are listed, otherwise
    shown: list[str] = []
    names: list[str] = []
    for name in in_order:
        keys_of_columns = (keys or {}).get(name, {})
        shown_columns = []
        for column, written_kind in columns[name].items():
            kind = written_kind.lower().replace("[]", " array")
            words = (column_name(column, recorded.engine), kind, keys_of_columns.get(column, ""))
            shown_columns.append(" ".join(filter(None, words)))
        text = f"{table_name(name, recorded.engine)}({', '.join(shown_columns)})"
        if most is None or name in first or len(", ".join([*shown, text])) <= most:
            shown.append(text)
            names.append(name)
    return ", ".join(shown), names


def first_row_query(recorded: "RecordedTables", table: str) -> str:
    """The query of a table's first row, by the columns that may be read."""
    columns = ", ".join(column_name(column, recorded.engine) for column in recorded.columns[table])
    name = table_name(table, recorded.engine)
    return f"SELECT {columns} FROM {name} LIMIT 1"  # noqa: S608 - no parameter can be a name


def tables_in(recorded: "RecordedTables", queries: Collection[str]) -> list[str]:
    """The tables that a query names."""
    names = []
    for name in recorded.columns:
        word = re.compile(rf"(?<!\w){re.escape(name.rpartition('.')[2])}(?!\w)", re.IGNORECASE)
        if any(word.search(query) for query in queries):
            names.append(name)
    return names


def column_name(name: str, engine: str) -> str:
    """A column's name as a query writes it.

    A name of SQLite means the same in capitals; one of a Postgres without quotes is in small letters.
    """
    plain = name.lower() if engine == "SQLite" else name
    is_plain = _PLAIN.fullmatch(plain) is not None and plain not in RESERVED
    return name if is_plain else quoted(name)


def quoted(name: str) -> str:
    """An identifier of SQL in double quotes."""
    return '"' + name.replace('"', '""') + '"'
