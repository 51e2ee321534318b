"""The page `keys.md`: every key of the files that people write, from the classes that read them.

`make site` writes it, and a test compares it. The meaning of a key is its field's description, or the docstring
after the field. Starts nothing.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

PAGE = Path(__file__).with_name("keys.md")
HEAD = """# The keys of files

For whoever writes a [schedule](nightly.md), a [tool file](own_tools.md) or a [proposer file](proposers.md). All
are TOML; an unknown key is refused. Made from the code by `make site`.
"""


RECORDED = "Written by `new-tool`: {content}. The tool fails if something else is there, until `refresh-tool` takes it over."


@dataclass(frozen=True)
class Chapter:
    """The keys of one kind of file."""

    title: str
    opening: str
    """A sentence below the title."""
    file: type[BaseModel]
    left_out: frozenset[str] = frozenset()
    """Fields that another chapter has, or that the file does not hold."""


def chapters() -> list[Chapter]:
    """The kinds of files, in the order of the page."""
    from toolformer_ops.airflow_tasks.nights.schedules import Schedule
    from toolformer_ops.language_model.endpoint.endpoint_file import Endpoint
    from toolformer_ops.tools.databases.database_file import DatabaseToolFile
    from toolformer_ops.tools.files.tool_file import ToolFile
    from toolformer_ops.tools.functions.function_file import FunctionToolFile
    from toolformer_ops.tools.servers.server_file import ServerToolFile

    shared = frozenset(ToolFile.model_fields)
    return [
        Chapter(
            "A schedule",
            "`[run]` has the [parameters of a run](reference/parameters.md).",
            Schedule,
            frozenset({"name", "run"}),
        ),
        Chapter("A tool of any kind", "All tool files have these.", ToolFile),
        Chapter("A tool of a database", "It has these, too.", DatabaseToolFile, shared),
        Chapter("A tool of a function", "It has these, too.", FunctionToolFile, shared),
        Chapter("A tool of a server", "It has these, too.", ServerToolFile, shared),
        Chapter("A proposer", "The file is called `NAME.proposer.toml`.", Endpoint),
    ]


def page() -> str:
    """The text of the page."""
    parts = [HEAD]
    for chapter in chapters():
        rows = "\n".join(rows_of(chapter.file, "", chapter.left_out))
        parts.append(
            f"## {chapter.title}\n\n{chapter.opening}\n\n| key | default | meaning |\n|---|---|---|\n{rows}\n"
        )
    return "\n".join(parts)


def rows_of(file: type[BaseModel], table: str, left_out: frozenset[str] = frozenset()) -> Iterator[str]:
    """A row for each key of a file, or of a table in it."""
    said = docstrings(file)
    for name, field in file.model_fields.items():
        if name in left_out:
            continue
        inner = part_of(field)
        if inner is not None and name == "recorded":
            content = (inner.__doc__ or "").partition(": ")[2].rstrip(".")
            yield f"| `[recorded]` | | {RECORDED.format(content=content)} |"
        elif inner is not None:
            yield from rows_of(inner, f"`[{name}]` ")
        else:
            meaning = one_line(field.description or said.get(name, ""))
            yield f"| {table}`{name}` | {default_of(field)} | {meaning} |"


def part_of(field: FieldInfo) -> type[BaseModel] | None:
    """The class of a field that is a table of the file; None for a key."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def default_of(field: FieldInfo) -> str:
    """The default as the file would say it; empty for nothing."""
    if field.is_required():
        return "required"
    default = field.default
    if default is PydanticUndefined or default is None or default in ("", (), {}):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def docstrings(file: type[BaseModel]) -> dict[str, str]:
    """By field, the docstring after it, in the class and in those that it is derived from."""
    said: dict[str, str] = {}
    for kind in reversed(file.__mro__):
        if not issubclass(kind, BaseModel) or kind is BaseModel:
            continue
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        statements = getattr(definition, "body", [])
        for field, after in pairwise(statements):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
                said[field.target.id] = str(ast.literal_eval(after.value))
    return said


def one_line(text: str) -> str:
    """The text on one line of a table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
