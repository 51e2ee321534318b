"""The texts that `new-tool` writes: tool files with the keys that are most often changed, and prompts in the form of the paper's.

What others have written about a tool, such as its description, is shortened, and can open neither a slot nor
a call.
"""

import re
from collections.abc import Mapping, Sequence

from toolformer_ops.on_a_file.new_tool.examples import Example, call_form
from toolformer_ops.tools.base import TEXT_SLOT
from toolformer_ops.tools.databases.database_file import DatabaseToolFile, RecordedTables
from toolformer_ops.tools.databases.database_tool import ROWS_SLOT
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.tool_file import recorded_table, toml_value
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
    """The text of a server's tool file with the keys that are most often changed.

    All are in docs/keys.md.
    """
    purpose = re.split(r"(?<=[.!?])\s", one_line(described.description) or f"Asks {file.tool}.", maxsplit=1)[
        0
    ]
    server = file.server.model_dump(exclude_defaults=True)
    proposals = file.proposals.model_dump(exclude_defaults=True)
    return "\n".join(
        [
            f"name = {toml_value(file.name)}",
            f"purpose = {toml_value(purpose)}",
            f"prompt = {toml_value(file.prompt)}",
            f"tool = {toml_value(file.tool)}",
            NO_RESULT,
            *(["allow_writes = true"] if file.allow_writes else []),
            *(["\n[fixed]"] if file.fixed else []),
            *(f"{key} = {toml_value(value)}" for key, value in file.fixed.items()),
            "\n[server]",
            *(f"{key} = {toml_value(value)}" for key, value in server.items()),
            *([TERMS] if proposals else []),
            *(f"{key} = {toml_value(value)}" for key, value in proposals.items()),
            "\n[filter]",
            '# pattern = "a regular expression"  # texts that hold it are asked; else all',
            NUMBERS,
            "\n[limits]\nseconds = 30\nconcurrency = 4\n# calls_per_second = 5\n",
            recorded_table(described.recorded),
        ]
    )


def database_file_text(file: DatabaseToolFile, recorded: RecordedTables) -> str:
    """The text of a database's tool file with the keys that are most often changed.

    All are in docs/keys.md.
    """
    names = ", ".join(recorded.columns)
    proposals = file.proposals
    database = file.database.model_dump(exclude_defaults=True)
    return "\n".join(
        [
            f"name = {toml_value(file.name)}",
            f"purpose = {toml_value(one_line(f'Answers a SELECT on {names}.'))}",
            f"prompt = {toml_value(file.prompt)}",
            '# revision = "2"  # raised if a Postgres answers the same query with another result',
            "\n[database]",
            *(f"{key} = {toml_value(value)}" for key, value in database.items()),
            *([f"\n[proposals]\ncommon = {toml_value(proposals.common)}"] if proposals.common else []),
            *([CELLS] if proposals.cells else []),
            *(f"{toml_value(key)} = {toml_value(columns)}" for key, columns in proposals.cells.items()),
            "\n[filter]",
            '# pattern = "a regular expression"  # texts that hold it are asked; else all',
            NUMBERS,
            "\n[limits]\nseconds = 5\nrows = 20\n",
            recorded_table(recorded),
        ]
    )


def function_file_text(file: FunctionToolFile, described: DescribedFunction) -> str:
    """The text of a function's tool file with the keys that are most often changed.

    All are in docs/keys.md.
    """
    said = one_line(described.description) or f"Calls {file.function.name}."
    purpose = re.split(r"(?<=[.!?])\s", said, maxsplit=1)[0]
    proposing = {"propose": PROPOSE} if described.is_beside_propose else {}
    function = {**file.function.model_dump(exclude_defaults=True), **proposing}
    return "\n".join(
        [
            f"name = {toml_value(file.name)}",
            f"purpose = {toml_value(purpose)}",
            f"prompt = {toml_value(file.prompt)}",
            "\n[function]",
            *(f"{key} = {toml_value(value)}" for key, value in function.items()),
            "\n[filter]",
            '# pattern = "a regular expression"  # texts that hold it are asked; else all',
            NUMBERS,
            "\n[limits]\nseconds = 10\n",
            recorded_table(recorded_arguments(described)),
        ]
    )


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
