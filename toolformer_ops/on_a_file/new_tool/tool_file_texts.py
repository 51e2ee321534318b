"""The texts that `new-tool` writes: tool files with the keys that are most often changed, and prompts in the form of the paper's.

What others have written about a tool, such as its description, is shortened, and can open neither a slot nor
a call.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolformer_ops.on_a_file.new_tool.examples import Example, call_form
from toolformer_ops.tools.base import TEXT_SLOT
from toolformer_ops.tools.databases.database_file import DatabaseToolFile, RecordedTables
from toolformer_ops.tools.databases.database_tool import ROWS_SLOT
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.tool_file import RecordedTable, ToolFile, recorded_table, toml_value
from toolformer_ops.tools.functions.function_file import FunctionToolFile
from toolformer_ops.tools.functions.function_tool import recorded_arguments
from toolformer_ops.tools.functions.python_function import PROPOSE, DescribedFunction
from toolformer_ops.tools.servers.connection import ServerTool
from toolformer_ops.tools.servers.server_file import ServerToolFile

NO_RESULT = (
    '# result = "{field} and {field.of.it}"  # what of an answer is written, or "/a regular (expression)/"'
)
"""A line of a server's tool file, which the user completes: which part of an answer a text needs."""
DESCRIPTION_CHARACTERS = 300
TABLES_CHARACTERS = 1000
"""Room of a prompt for the tables of a database, which queries need whole."""
ROW_CHARACTERS = 200
"""Longest row that a prompt shows."""
CELLS = """
[proposals.cells]
# For the proposer `tool`: by the column that names the rows of a table, the columns whose cells are proposed."""
TERMS = """
[proposals]
# For the proposer `tool`: calls are proposed with the terms that a text names. A file with one a line."""
FILTER = """
[filter]
# pattern = "a regular expression"  # texts that hold it are asked; else all"""
NUMBERS = """
[numbers]
# Of the keep rule `paper`, as the Calculator has it. At 1.0 small models lose right calls, which save 0.9 nats.
keep_threshold = 0.5"""


def prompt_text(tool: FileTool, description: str, examples: Sequence[Example], meaning: str = "") -> str:
    """The prompt in the form of the paper's (appendix A.2).

    `meaning` is what the one argument of a call is; without it each is what the tool says of it.
    """
    said = description if description == ROWS_SLOT else one_line(description)
    meanings = []
    for name, part in tool.parameters["properties"].items():
        words = one_line(part.get("description", "")).rstrip(".") or f"the {name}"
        meanings.append(f'"{name}" is {meaning or words}')
    where = f" where {', '.join(meanings)}" if meanings else ""
    shown = "\n\n".join(f"Input: {example.text}\nOutput: {example.with_calls}" for example in examples)
    return (
        f"Your task is to add calls to a {tool.spec.name} API to a piece of text. {said}{' ' if said else ''}"
        f'You can call the API by writing "[{call_form(tool)}]"{where}. Here are some examples of API calls:\n'
        f"{shown}\n\nInput: {TEXT_SLOT}\nOutput:\n"
    )


def server_file_text(file: ServerToolFile, described: ServerTool) -> str:
    """The text of a server's tool file."""
    head = [f"tool = {toml_value(file.tool)}", NO_RESULT]
    if file.allow_writes:
        head.append("allow_writes = true")
    return _file_text(
        file,
        purpose=_first_sentence(described.description) or f"Asks {file.tool}.",
        head=head,
        tables={
            "\n[fixed]": file.fixed,
            "\n[server]": file.server.model_dump(exclude_defaults=True),
            TERMS: file.proposals.model_dump(exclude_defaults=True),
        },
        limits="seconds = 30\nconcurrency = 4\n# calls_per_second = 5",
        recorded=described.recorded,
    )


def database_file_text(file: DatabaseToolFile, recorded: RecordedTables) -> str:
    """The text of a database's tool file."""
    proposals = file.proposals
    return _file_text(
        file,
        purpose=one_line(f"Answers a SELECT on {', '.join(recorded.columns)}."),
        head=['# revision = "2"  # raised if a Postgres answers the same query with another result'],
        tables={
            "\n[database]": file.database.model_dump(exclude_defaults=True),
            "\n[proposals]": {"common": proposals.common} if proposals.common else {},
            CELLS: {toml_value(key): columns for key, columns in proposals.cells.items()},
        },
        limits="seconds = 5\nrows = 20",
        recorded=recorded,
    )


def function_file_text(file: FunctionToolFile, described: DescribedFunction) -> str:
    """The text of a function's tool file."""
    proposing = {"propose": PROPOSE} if described.is_beside_propose else {}
    return _file_text(
        file,
        purpose=_first_sentence(described.description) or f"Calls {file.function.name}.",
        head=(),
        tables={"\n[function]": {**file.function.model_dump(exclude_defaults=True), **proposing}},
        limits="seconds = 10",
        recorded=recorded_arguments(described),
    )


def _file_text(
    file: ToolFile,
    purpose: str,
    head: Sequence[str],
    tables: Mapping[str, Mapping[str, Any]],
    limits: str,
    recorded: RecordedTable,
) -> str:
    """The text of a tool file with the keys that are most often changed; all are in docs/keys.md.

    `tables` are the values below each header; a table without values is left out.
    """
    lines = [
        f"name = {toml_value(file.name)}",
        f"purpose = {toml_value(purpose)}",
        f"prompt = {toml_value(file.prompt)}",
        *head,
    ]
    for header, values in tables.items():
        if values:
            lines.append(header)
            lines += [f"{key} = {toml_value(value)}" for key, value in values.items()]
    lines += [FILTER, NUMBERS, f"\n[limits]\n{limits}\n", recorded_table(recorded)]
    return "\n".join(lines)


def _first_sentence(description: str) -> str:
    return re.split(r"(?<=[.!?])\s", one_line(description), maxsplit=1)[0]


def rows_shown(rows: Mapping[str, str]) -> str:
    """What tables hold, by table, as sentences of a prompt: `A row of products is (kettle, 667).`."""
    sentences = []
    for table, row in rows.items():
        sentences.append(f"A row of {table} is ({one_line(row, ROW_CHARACTERS)}).")
    return " ".join(sentences)


def without_markup(text: str) -> str:
    """A text on one line that opens neither slot nor call."""
    return " ".join(text.split()).translate(str.maketrans("{}[]", "()()"))


def one_line(text: str, most: int = DESCRIPTION_CHARACTERS) -> str:
    """The first `most` characters of what others have written, on one line that opens neither slot nor call."""
    line = without_markup(text)
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + "..."
