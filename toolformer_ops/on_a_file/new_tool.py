"""Write the first version of a tool file and of its prompt, from what answers and from examples of the user.

1. What answers is asked what it is: a server for its tool's description and input schema, a database for its
   tables.
2. The calls in the examples are checked as far as the file tells, and run.
3. File and prompt are written (`tool_file_texts.py`); nothing is written over.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    ConfigurationError,
    ToolError,
    UsageError,
)
from toolformer_ops.on_a_file.annotator import Annotator
from toolformer_ops.on_a_file.examples import Example, ExampleCall, read_examples
from toolformer_ops.on_a_file.result_proposal import proposed_result
from toolformer_ops.on_a_file.tool_file_texts import (
    NO_RESULT,
    TABLES_CHARACTERS,
    database_file_text,
    function_file_text,
    prompt_text,
    rows_shown,
    server_file_text,
)
from toolformer_ops.runs.models import load_model
from toolformer_ops.shown_text import json_to_show
from toolformer_ops.tools.base import ToolOutput, run_tool
from toolformer_ops.tools.databases.database_file import DatabasePart, DatabaseToolFile
from toolformer_ops.tools.databases.database_tool import (
    look_at_database,
    recorded_tables,
    tables_text,
)
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.kinds import tool_of_file
from toolformer_ops.tools.files.tool_file import toml_value
from toolformer_ops.tools.functions.function_file import FunctionPart, FunctionToolFile
from toolformer_ops.tools.functions.function_tool import look_at_function
from toolformer_ops.tools.registry import forget_tools, tool_names
from toolformer_ops.tools.servers.connection import ask_server
from toolformer_ops.tools.servers.served_tool import ServedTool
from toolformer_ops.tools.servers.server_file import ServerPart, ServerToolFile

SILENT = "the server does not say whether the tool only reads. Be sure that it does."
SHOWN_CALLS = 10


@dataclass(frozen=True)
class NewTool:
    """What was written."""

    path: Path
    prompt_path: Path
    tool: FileTool
    examples: tuple[Example, ...]
    warnings: tuple[str, ...] = ()
    """What its user should know, a sentence each."""

    @property
    def calls(self) -> list[ExampleCall]:
        """The calls of the examples, in order."""
        calls: list[ExampleCall] = []
        for example in self.examples:
            calls += example.calls
        return calls


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
    keys: dict[str, Any] = (
        {"url": url, "openapi": openapi}
        if openapi
        else {"url": mcp}
        if "://" in mcp
        else {"command": shlex.split(mcp)}
    )
    keys |= {"headers": {key.strip(): value.strip() for key, value in headers.items()}, "secrets": secret}
    try:
        return ServerPart.model_validate({key: value for key, value in keys.items() if value})
    except ValidationError as error:
        said = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        raise ConfigurationError(f"--mcp, --openapi, --url, --secret, --header: {said}.") from error


def fixed_arguments(items: Sequence[str]) -> dict[str, Any]:
    """Arguments of every call, of texts such as `repo_path=/srv/repo`; a value is read as JSON if it is some.

    Raises:
        UsageError: one has no name or no equals sign.
    """
    arguments: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name.strip() or not equals:
            raise UsageError(f"--fixed: expected name=value, found {item!r:.80}.")
        arguments[name.strip()] = value
        with contextlib.suppress(ValueError):
            arguments[name.strip()] = json.loads(value)
    return arguments


def database_part(url: str, connection: str, tables: Sequence[str], secrets: Sequence[str]) -> DatabasePart:
    """The table `[database]` that the options of `new-tool` ask for.

    A relative path is one of the current folder.

    Raises:
        ConfigurationError: the options do not fit together, or the address holds a password.
    """
    if url.startswith("sqlite:///"):
        url = f"sqlite:///{Path(url.removeprefix('sqlite:///')).expanduser().resolve()}"
    keys = {"url": url, "connection": connection, "tables": tuple(tables), "secrets": tuple(secrets)}
    try:
        return DatabasePart.model_validate({key: value for key, value in keys.items() if value})
    except ValidationError as error:
        said = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        raise ConfigurationError(f"--sql, --connection, --table, --secret: {said}.") from error


@dataclass(frozen=True)
class ServerToolChoice:
    """Which tool of a server becomes one of ours, and how."""

    tool: str
    """What the server calls it."""
    name: str
    """In calls."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of every call."""
    allow_writes: bool = False


def write_server_tools(
    settings: Settings, server: ServerPart, choices: Sequence[ServerToolChoice], examples: Path
) -> list[NewTool]:
    """Write the files of several tools of one server, each with the examples that hold its calls.

    It begins all of them, or none. Raises as `write_server_tool`.
    """
    names = [choice.name for choice in choices]
    written: list[NewTool] = []
    try:
        for choice in choices:
            others = [name for name in names if name != choice.name]
            written.append(write_server_tool(settings, server, choice, examples, others))
    except BaseException:
        for new in written:
            for file in new.path.parent.glob(f"{new.path.stem}.*"):
                file.unlink()
        forget_tools()
        raise
    return written


def write_server_tool(
    settings: Settings,
    server: ServerPart,
    choice: ServerToolChoice,
    examples: Path,
    others: Sequence[str] = (),
) -> NewTool:
    """Ask the server, and write file and prompt into the folder of the tool files.

    `others` are the names of tools that are made of the same server and examples.

    Raises:
        UsageError: the name is taken, a file exists, or an example holds no call of the tool.
        ToolError, InfrastructureError: the server does not answer, has no such tool, or it writes without
        leave.
    """
    name = choice.name
    with new_files(settings, name) as files:
        if server.openapi:
            document = files.add(f".openapi{Path(server.openapi).suffix or '.json'}")
            shutil.copyfile(server.openapi, document)
            server = server.model_copy(update={"openapi": document.name})
        draft = ServerToolFile(
            name=name,
            purpose=name,
            prompt=files.prompt_path.name,
            tool=choice.tool,
            server=server,
            allow_writes=choice.allow_writes,
            fixed=dict(choice.fixed),
        )
        described = ask_server(draft, files.path.parent)
        if described.recorded.read_only is False and not choice.allow_writes:
            raise ToolError(
                f"tool {name}: expected a tool that only reads, found that the server marks {choice.tool} as "
                "one that writes. If texts of a language model may decide what it writes, say so: "
                "--allow-writes."
            )
        warnings = (SILENT,) if described.recorded.read_only is None else ()
        text = server_file_text(draft, described)
        return files.write(text, described.description, examples, warnings=warnings, others=others)


def write_database_tool(settings: Settings, database: DatabasePart, name: str, examples: Path) -> NewTool:
    """Look at the database, and write file and prompt into the folder of the tool files.

    Raises:
        UsageError: the name is taken, a file exists, or an example holds no call of the tool.
        ToolError, InfrastructureError: the database cannot be used, or does not answer.
    """
    with new_files(settings, name) as files:
        draft = DatabaseToolFile(name=name, purpose=name, prompt=files.prompt_path.name, database=database)
        opened = look_at_database(draft, files.path.parent)
        text = database_file_text(draft, opened)
        warnings = [*opened.warnings]
        if len(tables_text(recorded_tables(draft, opened))) > TABLES_CHARACTERS:
            warnings.append(
                f"the prompt has room for {TABLES_CHARACTERS:,} characters of tables and columns, and "
                f"{len(opened.tables)} tables have more. Name those that texts need: --table."
            )
        return files.write(text, rows_shown(opened), examples, warnings=warnings)


def write_function_tool(
    settings: Settings, source: Path, function: str, name: str, examples: Path, secrets: Sequence[str] = ()
) -> NewTool:
    """Copy the function's file beside the tool files, and write file and prompt.

    Raises:
        UsageError: the name is taken, a file exists, or an example holds no call of the tool.
        ToolError: the file cannot be read, or its function not be a tool.
    """
    with new_files(settings, name) as files:
        copied = files.add(".py")
        try:
            shutil.copyfile(source, copied)
        except OSError as error:
            raise ToolError(f"--python: expected a file of Python, found {error}.") from error
        part = FunctionPart(file=copied.name, name=function, secrets=tuple(secrets))
        draft = FunctionToolFile(name=name, purpose=name, prompt=files.prompt_path.name, function=part)
        described = look_at_function(draft, files.path.parent)
        return files.write(function_file_text(draft, described), described.description, examples)


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
        self,
        file_text: str,
        description: str,
        examples: Path,
        *,
        warnings: Sequence[str] = (),
        others: Sequence[str] = (),
    ) -> NewTool:
        """Write the tool file, and then the prompt, with the examples that the tool takes.

        Calls of `others` in the examples are left out.

        Raises:
            UsageError: an example holds no call of the tool.
            ToolError: the file cannot be used.
        """
        self.path.write_text(file_text, encoding="utf-8")
        tool = tool_of_file(self.path)
        shown = read_examples(tool, examples, others)
        self.prompt_path.write_text(prompt_text(tool, description, shown), encoding="utf-8")
        tool.prompt  # noqa: B018 - read and checked here
        return NewTool(self.path, self.prompt_path, tool, shown, tuple(warnings))


@contextlib.contextmanager
def new_files(settings: Settings, name: str) -> Iterator[NewFiles]:
    """The files of a new tool of that name, in the folder of the tool files.

    Raises:
        UsageError: the name is taken, or a file exists.
    """
    if name.lower() in {tool.lower() for tool in tool_names()}:
        raise UsageError(
            f"--name: expected a new name, found {name}, which is a tool already. Choose another."
        )
    folder = settings.tools_folder
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    files = NewFiles(folder / f"{stem}.toml", folder / f"{stem}.txt", [])
    if left := [str(file) for file in (files.path, files.prompt_path) if file.exists()]:
        raise UsageError(
            f"expected no file {' and '.join(left)}, found one. Remove it, or choose another --name."
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield files
    except BaseException:
        for file in (files.path, files.prompt_path, *files.others):
            file.unlink(missing_ok=True)
        raise
    forget_tools()


def propose_result(settings: Settings, new: NewTool) -> tuple[str, int] | None:
    """What of a server's answers the examples go on with, as `result` of the tool file, and in how many calls that is so.

    It is written into the file. None if there is none that at least half of the calls agree with, and for
    what is no tool of a server.

    Raises:
        ToolError, InfrastructureError: the server does not answer, or says other things than a moment ago.
    """
    text = new.path.read_text(encoding="utf-8")
    if not isinstance(new.tool, ServedTool) or NO_RESULT not in text:
        return None
    calls = new.calls
    runner = new.tool.with_whole_answers().open_server()
    outputs = run_tool(runner, [call.input for call in calls], settings.tool_time_limit_seconds)
    runner.close()
    answers = [output.results[0] if output.results else "" for output in outputs]
    proposal = proposed_result(calls, answers)
    if proposal is not None:
        new.path.write_text(text.replace(NO_RESULT, f"result = {toml_value(proposal[0])}"), encoding="utf-8")
        forget_tools()
    return proposal


def run_examples(settings: Settings, new: NewTool) -> list[tuple[str, ToolOutput]]:
    """The calls of the examples and what the tool answers to each, in order.

    Raises:
        ToolError, InfrastructureError: the server does not answer, or says other things than a moment ago.
    """
    calls = [call.input for call in new.calls]
    runner = tool_of_file(new.path).open(settings, lambda: load_model(settings, ""))
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
    read, texts_asked = 0, 0
    sampled, answers = Counter[str](), Counter[str]()
    calls: list[dict[str, Any]] = []
    for paragraphs in annotator.documents(texts):
        read, texts_asked = read + 1, texts_asked + bool(paragraphs)
        for annotated in annotator.annotate(paragraphs):
            sampled += annotated.counts
            answers += annotated.answers
            calls += annotated.lines
    yield f"{read} texts, {texts_asked} asked"
    yield f"sampled: {_most_common(sampled)}"
    yield f"answers: {_most_common(answers)}"
    yield f"calls with a result: {len(calls)}, kept: {sum(call['kept'] for call in calls)}"
    calls.sort(key=lambda call: math.inf if call["loss_reduction"] is None else -call["loss_reduction"])
    for call in calls[:SHOWN_CALLS]:
        shown = ("kept", "before", "call", "result", "after", "loss_reduction")
        yield json_to_show({key: call[key] for key in shown})


def _most_common(counts: Counter[str]) -> str:
    """Such as `kept 3, dropped 1`; `none` if nothing was counted."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common() if count) or "none"
