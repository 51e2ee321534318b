"""Databases of a shop as tools, and asking them, for the tests of hostile queries."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from tests.tool_files import PROMPT
from toolformer_ops.config import Settings
from toolformer_ops.tools.base import run_tool
from toolformer_ops.tools.databases.database_tool import DatabaseTool
from toolformer_ops.tools.files.kinds import refresh_tool
from toolformer_ops.tools.files.process_tool import ProcessRunner
from toolformer_ops.tools.files.tool_file import toml_value

SCHEMA = """
create table products (name text primary key, stock integer, price numeric(10, 2));
create table staff (name text, salary integer);
create view cheap as select name from products where price < 10;
"""
ROWS = """
insert into products values ('kettle', 667, 24.50), ('cup', 12, 3.00), ('jug', null, 8.25);
insert into staff values ('Ada', 5200);
"""


def sqlite_shop(folder: Path) -> Path:
    """A file of SQLite with products, staff, a view and an index of words."""
    path = folder / "shop.db"
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA + ROWS)
    connection.executescript(
        "create virtual table notes using fts5(body); insert into notes values ('The kettle boils');"
    )
    connection.commit()
    connection.close()
    return path


def database_tool(
    folder: Path, url: str, *, tables: Sequence[str] = (), secrets: Sequence[str] = (), limits: str = ""
) -> Path:
    """The tool file of a database, with what it says recorded."""
    path = folder / "shop.toml"
    keys = {"url": url, "tables": tables, "secrets": secrets}
    database = "\n".join(f"{key} = {toml_value(value)}" for key, value in keys.items() if value)
    head = 'name = "Shop"\npurpose = "Asks a shop."\nprompt = "shop.txt"\n'
    path.write_text(f"{head}\n[database]\n{database}\n\n[limits]\n{limits}\n")
    path.with_suffix(".txt").write_text(PROMPT.format(name="Shop"))
    refresh_tool(path)
    return path


def opened(path: Path) -> ProcessRunner:
    """The tool of a file, open."""
    return DatabaseTool(path).open(Settings(), lambda: None)  # type: ignore[arg-type, return-value]


def ask(runner: ProcessRunner, query: str) -> str | None:
    """The result, or the reason that there is none."""
    [output] = run_tool(runner, [query], 30.0)
    return output.results[0] if output.results else output.reason
