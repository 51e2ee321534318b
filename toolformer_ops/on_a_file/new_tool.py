"""Write the first version of a tool file and of its prompt, from what answers and from examples of the user.

1. What answers is asked what it is: a server for its tool's description and input schema, a database for its
   tables.
2. The calls in the examples are checked as far as the file tells, and run.
3. File and prompt are written; nothing is written over.
4. The method is tried on a few texts, without services: how many calls a model writes, what they get, which
   are kept.

Does not choose thresholds or a filter: what is written holds the paper's numbers, for a person to change.
"""

import contextlib
import json
import math
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    CallSyntaxError,
    ConfigurationError,
    RejectedInputError,
    ToolError,
    UsageError,
)
from toolformer_ops.on_a_file.annotator import Annotator
from toolformer_ops.runs.models import load_model
from toolformer_ops.shown_text import json_to_show
from toolformer_ops.tools.base import TEXT_SLOT, ToolOutput, run_tool
from toolformer_ops.tools.databases.database_file import DatabasePart, DatabaseToolFile
from toolformer_ops.tools.databases.database_tool import look_at_database, recorded_tables
from toolformer_ops.tools.databases.requests import Opened
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.kinds import tool_of_file
from toolformer_ops.tools.files.tool_file import recorded_table, toml_value
from toolformer_ops.tools.registry import forget_tools, tool_names
from toolformer_ops.tools.servers.connection import ServerTool, ask_server
from toolformer_ops.tools.servers.server_file import ServerPart, ServerToolFile

SILENT = "the server does not say whether the tool only reads. Be sure that it does."
DESCRIPTION_CHARACTERS = 300
VALUE_CHARACTERS = 40
"""Of a value of a row that a prompt shows."""
SHOWN_CALLS = 10
SHOWN_VALUES = 10
"""Of an argument that is one of several values, in an error."""
WORDS_OF_TYPES = {
    "string": "text in double quotes",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
    "array": "list",
    "null": "null",
}
"""By the type of JSON Schema."""
_CALL = re.compile(r" ?\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Example:
    """A text that the user gives, with a call where one helps."""

    text: str
    """Without calls."""
    with_calls: str
    """With calls, without results."""
    calls: tuple[str, ...]
    """Their inputs."""


@dataclass(frozen=True)
class NewTool:
    """What was written."""

    path: Path
    prompt_path: Path
    tool: FileTool
    examples: tuple[Example, ...]
    warnings: tuple[str, ...] = ()
    """What its user should know, a sentence each."""


def server_part(mcp: str, openapi: str, url: str, header: Sequence[str], secret: Sequence[str]) -> ServerPart:
    """The table `[server]` that the options of `new-tool` ask for, one of `mcp` and `openapi`.

    Raises:
        UsageError: a header has no colon.
        ConfigurationError: the options do not fit together.
    """
    for item in header:
        if ":" not in item:
            raise UsageError(f"--header: expected a name, a colon and a value, found {item!r:.80}.")
    headers = dict(item.partition(":")[::2] for item in header)
    given: dict[str, Any] = (
        {"url": url, "openapi": openapi}
        if openapi
        else {"url": mcp}
        if "://" in mcp
        else {"command": shlex.split(mcp)}
    )
    given |= {"headers": {key.strip(): value.strip() for key, value in headers.items()}, "secrets": secret}
    try:
        return ServerPart.model_validate({key: value for key, value in given.items() if value})
    except ValidationError as error:
        said = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        raise ConfigurationError(f"--mcp, --openapi, --url, --secret, --header: {said}.") from error


def database_part(url: str, connection: str, tables: Sequence[str], secrets: Sequence[str]) -> DatabasePart:
    """The table `[database]` that the options of `new-tool` ask for; a relative path is one of the current folder.

    Raises:
        ConfigurationError: the options do not fit together, or the address holds a password.
    """
    if url.startswith("sqlite:///"):
        url = f"sqlite:///{Path(url.removeprefix('sqlite:///')).expanduser().resolve()}"
    given = {"url": url, "connection": connection, "tables": tuple(tables), "secrets": tuple(secrets)}
    try:
        return DatabasePart.model_validate({key: value for key, value in given.items() if value})
    except ValidationError as error:
        said = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        raise ConfigurationError(f"--sql, --connection, --table, --secret: {said}.") from error


def write_server_tool(
    settings: Settings, server: ServerPart, server_tool: str, name: str, examples: Path, *, allow_writes: bool
) -> NewTool:
    """Ask the server, and write file and prompt into the folder of the tool files.

    Raises:
        UsageError: the name is taken, a file is there, or an example holds no call of the tool.
        ToolError, InfrastructureError: the server does not answer, has no such tool, or it writes without
        leave.
    """
    with new_files(settings, name) as files:
        if server.openapi:
            document = files.add(f".openapi{Path(server.openapi).suffix or '.json'}")
            shutil.copyfile(server.openapi, document)
            server = server.model_copy(update={"openapi": document.name})
        asked = ServerToolFile(
            name=name,
            purpose=name,
            prompt=files.prompt_path.name,
            tool=server_tool,
            server=server,
            allow_writes=allow_writes,
        )
        described = ask_server(asked, files.path.parent)
        if described.recorded.read_only is False and not allow_writes:
            raise ToolError(
                f"tool {name}: expected a tool that only reads, found that the server marks {server_tool} as one that writes. "
                "If texts of a language model may decide what it writes, say so: --allow-writes."
            )
        warnings = (SILENT,) if described.recorded.read_only is None else ()
        return files.write(server_file_text(asked, described), described.description, examples, warnings)


def write_database_tool(settings: Settings, database: DatabasePart, name: str, examples: Path) -> NewTool:
    """Look at the database, and write file and prompt into the folder of the tool files.

    Raises:
        UsageError: the name is taken, a file is there, or an example holds no call of the tool.
        ToolError, InfrastructureError: the database cannot be used, or does not answer.
    """
    with new_files(settings, name) as files:
        asked = DatabaseToolFile(name=name, purpose=name, prompt=files.prompt_path.name, database=database)
        opened = look_at_database(asked, files.path.parent)
        text = database_file_text(asked, opened)
        return files.write(text, rows_shown(opened), examples, opened.warnings)


@dataclass(frozen=True)
class NewFiles:
    """The files of a new tool, which are removed again if one of them cannot be written."""

    path: Path
    """The tool file."""
    prompt_path: Path
    others: list[Path]

    def add(self, ending: str) -> Path:
        """Another file beside them, by the end of its name."""
        self.others.append(self.path.with_name(self.path.stem + ending))
        return self.others[-1]

    def write(
        self, file_text: str, description: str, examples: Path, warnings: Sequence[str] = ()
    ) -> NewTool:
        """Write the tool file, and then the prompt, with the examples that the tool takes.

        Raises:
            UsageError: an example holds no call of the tool.
            ToolError: the file cannot be used.
        """
        self.path.write_text(file_text, encoding="utf-8")
        tool = tool_of_file(self.path)
        shown = read_examples(tool, examples)
        self.prompt_path.write_text(prompt_text(tool, description, shown), encoding="utf-8")
        tool.prompt  # noqa: B018 - read and checked here
        return NewTool(self.path, self.prompt_path, tool, shown, tuple(warnings))


@contextlib.contextmanager
def new_files(settings: Settings, name: str) -> Iterator[NewFiles]:
    """The files of a new tool of that name, in the folder of the tool files.

    Raises:
        UsageError: the name is taken, or a file is there.
    """
    if name.lower() in {known.lower() for known in tool_names()}:
        raise UsageError(
            f"--name: expected a new name, found {name}, which is a tool already. Choose another."
        )
    folder = settings.tools_folder
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    files = NewFiles(folder / f"{stem}.toml", folder / f"{stem}.txt", [])
    if found := [str(file) for file in (files.path, files.prompt_path) if file.exists()]:
        raise UsageError(
            f"expected no file {' and '.join(found)}, found one. Remove it, or choose another --name."
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield files
    except BaseException:
        for left in (files.path, files.prompt_path, *files.others):
            left.unlink(missing_ok=True)
        raise
    forget_tools()


def run_examples(settings: Settings, new: NewTool) -> list[tuple[str, ToolOutput]]:
    """The calls of the examples and what the tool answers to each, in order.

    Raises:
        ToolError, InfrastructureError: the server does not answer, or says other things than a moment ago.
    """
    calls = [call for example in new.examples for call in example.calls]
    runner = new.tool.open(settings, lambda: load_model(settings, ""))
    return list(zip(calls, run_tool(runner, calls, settings.tool_time_limit_seconds), strict=True))


def try_tool(
    settings: Settings, name: str, corpus: Path | str, model_name: str, texts: int, values: dict[str, Any]
) -> Iterator[str]:
    """The whole method but placebos on the first `texts` documents of a corpus, in this process, as lines to print.

    They say how many texts the filter kept, what was sampled and answered, and which calls save most, as
    JSON.

    Raises:
        CorpusError, UsageError: as `annotate_file`.
    """
    annotator = Annotator.of(settings, corpus, name, model_name, values)
    read, asked = 0, 0
    sampled, answers = Counter[str](), Counter[str]()
    calls: list[dict[str, Any]] = []
    for paragraphs in annotator.documents(texts):
        read, asked = read + 1, asked + bool(paragraphs)
        for annotated in annotator.annotate(paragraphs):
            sampled += annotated.counts
            answers += annotated.answers
            calls += annotated.lines
    yield f"{read} texts, {asked} asked"
    for what, counts in (("sampled", sampled), ("answers", answers)):
        yield f"{what}: " + (
            ", ".join(f"{key} {count}" for key, count in counts.most_common() if count) or "none"
        )
    yield f"calls with a result: {len(calls)}, kept: {sum(call['kept'] for call in calls)}"
    calls.sort(key=lambda call: math.inf if call["loss_reduction"] is None else -call["loss_reduction"])
    for call in calls[:SHOWN_CALLS]:
        shown = ("before", "call", "result", "after", "loss_reduction")
        yield json_to_show({key: call[key] for key in shown})


def read_examples(tool: FileTool, path: Path) -> tuple[Example, ...]:
    """The examples of a file, one a line; `UsageError` if there is none, or one holds no call of the tool that could be sent."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--examples: expected a text file in UTF-8, found {error}.") from error
    name, form = tool.spec.name, call_form(tool)
    if not lines:
        raise UsageError(
            f"--examples: expected a text with a call [{form}] on each line, five best, found none."
        )
    found = []
    for number, line in enumerate(lines, start=1):
        where = f"--examples, line {number}"
        calls = []
        for inside in _CALL.findall(line):
            try:
                call = parse_call(inside)
                if call.tool != name:
                    continue
                tool.check_input(call.input)
            except CallSyntaxError:
                continue  # brackets of the text
            except RejectedInputError as error:
                raise UsageError(
                    f"{where}: expected a call such as [{form}], found [{inside}] ({error.reason}). Its arguments: "
                    f"{arguments_shown(tool)}."
                ) from error
            calls.append(call.input)
        if not calls:
            raise UsageError(
                f"{where}: expected a call [{form}] in the text, found none. Write one where it helps."
            )
        written = re.compile(rf"\[{name}\([^\[\]]*\][ ]?")
        with_calls = re.sub(r"\s*->[^\[\]]*\]", "]", line)
        found.append(Example(" ".join(written.sub("", line).split()), with_calls, tuple(calls)))
    return tuple(found)


def call_form(tool: FileTool) -> str:
    """How a call is written, with the names of its arguments: `Weather(city: ..., date: ...)`."""
    if tool.input_argument is not None:
        return f"{tool.spec.name}({tool.input_argument})"
    return f"{tool.spec.name}({', '.join(f'{name}: ...' for name in tool.parameters['properties'])})"


def arguments_shown(tool: FileTool) -> str:
    """The arguments of a tool in words: `city (text), days (whole number, may be left out)`."""
    required = tool.parameters.get("required", ())
    shown = []
    for name, part in tool.parameters["properties"].items():
        kind = part.get("type", "any value") if isinstance(part, dict) else "any value"
        kinds = [kind] if isinstance(kind, str) else kind
        words = [" or ".join(WORDS_OF_TYPES.get(each, each) for each in kinds)]
        if isinstance(part, dict) and "enum" in part:
            words = [f"one of {', '.join(json.dumps(value) for value in part['enum'][:SHOWN_VALUES])}"]
        if isinstance(part, dict) and "pattern" in part:
            words.append(f"as {part['pattern']}")
        shown.append(f"{name} ({', '.join([*words, *([] if name in required else ['may be left out'])])})")
    return ", ".join(shown) or "none"


def prompt_text(tool: FileTool, description: str, examples: Sequence[Example]) -> str:
    """The prompt in the form of the paper's (appendix A.2)."""
    said = one_line(description)
    properties = tool.parameters["properties"]
    meanings = [
        f'"{name}" is {one_line(part.get("description", "")).rstrip(".") or f"the {name}"}'
        for name, part in properties.items()
    ]
    where = f" where {', '.join(meanings)}" if meanings else ""
    shown = "\n\n".join(f"Input: {example.text}\nOutput: {example.with_calls}" for example in examples)
    return (
        f"Your task is to add calls to a {tool.spec.name} API to a piece of text. {said}{' ' if said else ''}"
        f'You can call the API by writing "[{call_form(tool)}]"{where}. Here are some examples of API calls:\n'
        f"{shown}\n\nInput: {TEXT_SLOT}\nOutput:\n"
    )


def server_file_text(file: ServerToolFile, found: ServerTool) -> str:
    """The text of a server's tool file with the keys that are most often changed; docs/mcp_tools.md lists all."""
    purpose = re.split(r"(?<=[.!?])\s", one_line(found.description) or f"Asks {file.tool}.", maxsplit=1)[0]
    server = file.server.model_dump(exclude_defaults=True)
    return "\n".join(
        [
            f"name = {toml_value(file.name)}",
            f"purpose = {toml_value(purpose)}",
            f"prompt = {toml_value(file.prompt)}",
            f"tool = {toml_value(file.tool)}",
            '# result = "{field} and {field.of.it}"  # how a structured answer is written; else field: value, field: value',
            *(["allow_writes = true"] if file.allow_writes else []),
            "\n[server]",
            *(f"{key} = {toml_value(value)}" for key, value in server.items()),
            "\n[filter]",
            '# pattern = "a regular expression"  # texts that hold it are asked; else all',
            "\n[numbers]\nkeep_threshold = 1.0",
            "\n[limits]\nseconds = 30\nconcurrency = 4\n# calls_per_second = 5\n",
            recorded_table(found.recorded),
        ]
    )


def database_file_text(file: DatabaseToolFile, opened: Opened) -> str:
    """The text of a database's tool file with the keys that are most often changed; docs/own_tools.md lists all."""
    recorded = recorded_tables(file, opened)
    names = ", ".join(recorded.columns)
    database = file.database.model_dump(exclude_defaults=True)
    return "\n".join(
        [
            f"name = {toml_value(file.name)}",
            f"purpose = {toml_value(one_line(f'Answers a SELECT on {names}.'))}",
            f"prompt = {toml_value(file.prompt)}",
            '# revision = "2"  # raised if a Postgres answers the same query with another result',
            "\n[database]",
            *(f"{key} = {toml_value(value)}" for key, value in database.items()),
            "\n[filter]",
            '# pattern = "a regular expression"  # texts that hold it are asked; else all',
            "\n[numbers]\nkeep_threshold = 1.0",
            "\n[limits]\nseconds = 5\nrows = 20\n",
            recorded_table(recorded),
        ]
    )


def rows_shown(opened: Opened) -> str:
    """What tables hold, a sentence each, for a prompt: `A row of products is (kettle, 667).`."""
    sentences = [
        f"A row of {table.name} is ({', '.join((value or 'NULL')[:VALUE_CHARACTERS] for value in table.rows[0])})."
        for table in opened.tables
        if table.rows
    ]
    return " ".join(sentences)


def one_line(text: str) -> str:
    """The start of a text of others as one line that neither opens a slot nor a call."""
    line = " ".join(text.split()).translate(str.maketrans("{}[]", "()()"))
    if len(line) <= DESCRIPTION_CHARACTERS:
        return line
    return line[:DESCRIPTION_CHARACTERS].rsplit(" ", 1)[0] + "..."
