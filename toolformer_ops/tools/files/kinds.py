"""The kinds of tool files.

Each has the table that says who answers, the tool, and what asks it again for `[recorded]`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.errors import ToolError
from toolformer_ops.tools.databases.database_tool import DatabaseTool, record_database
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.tool_file import RecordedTable, read_table, recorded_table, with_recorded
from toolformer_ops.tools.functions.function_tool import FunctionTool, record_function
from toolformer_ops.tools.servers.listed_terms import write_listed_terms
from toolformer_ops.tools.servers.served_tool import ServedTool, record_server


@dataclass(frozen=True)
class Kind:
    """One kind of tool files."""

    table: str
    """The table of the file that says who answers."""
    tool: Callable[[Path], FileTool]
    """Reads a file of this kind; a ToolError says why it cannot be used."""
    record: Callable[[Path], tuple[RecordedTable | None, RecordedTable]]
    """Asks who answers: returns what the file has recorded, None if nothing, and what is said now."""


KINDS = (
    Kind("database", DatabaseTool, record_database),
    Kind("function", FunctionTool, record_function),
    Kind("server", ServedTool, record_server),
)


def tool_of_file(path: Path) -> FileTool:
    """The tool of a file.

    Raises:
        ToolError: the file cannot be used.
    """
    return kind_of_file(path).tool(path)


def kind_of_file(path: Path) -> Kind:
    """The kind of a file.

    Raises:
        ToolError: it cannot be read, or has not one of the tables of `KINDS`.
    """
    table = read_table(path)
    kinds = [kind for kind in KINDS if kind.table in table]
    if len(kinds) != 1:
        tables = " or ".join(f"[{kind.table}]" for kind in KINDS)
        present = " and ".join(f"[{kind.table}]" for kind in kinds) or "none"
        raise ToolError(
            f"tool file {path}: expected one table {tables}, found {present}. It says who answers."
        )
    return kinds[0]


def refresh_tool(path: Path) -> tuple[RecordedTable | None, RecordedTable]:
    """Ask who answers for a tool file again, and record what is said.

    Returns what was recorded before and what is now.

    Raises:
        ToolError, InfrastructureError: the file cannot be read, nothing answers, or there is no such tool.
    """
    from toolformer_ops.storage.machine.shared_files import replace_file

    before, now = kind_of_file(path).record(path)
    if before != now:
        replace_file(path, with_recorded(path.read_text(encoding="utf-8"), recorded_table(now)))
    return before, now


def refresh_terms(path: Path) -> tuple[Path, int] | None:
    """Write the terms that the server of a tool file lists, if the file says how it lists them.

    Returns the file of terms and how many it has; None if no server lists any. Errors are those of
    `write_listed_terms`.
    """
    return write_listed_terms(path) if kind_of_file(path).table == "server" else None
