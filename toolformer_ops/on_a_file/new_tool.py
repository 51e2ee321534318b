"""Write the first version of a tool file and of its prompt, from what a server says of its tool and from examples of the user.

1. The server is asked for the tool's description and input schema.
2. The calls in the examples are checked against the schema, and run.
3. File and prompt are written; nothing is written over.
4. The method is tried on a few texts, without services: how many calls a model writes, what they get, which
   are kept.

Does not choose thresholds or a filter: what is written holds the paper's numbers, for a person to change.
"""

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
from toolformer_ops.storage.shared_files import replace_file
from toolformer_ops.tools.base import TEXT_SLOT, ToolOutput, run_tool
from toolformer_ops.tools.registry import forget_tools, tool_names
from toolformer_ops.tools.servers.connection import ServerTool, ask_server
from toolformer_ops.tools.servers.file_tool import FileTool
from toolformer_ops.tools.servers.tool_file import (
    RecordedPart,
    ServerPart,
    ToolFile,
    read_tool_file,
    recorded_table,
    toml_value,
    with_recorded,
)

DESCRIPTION_CHARACTERS = 300
SHOWN_CALLS = 10
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


def server_part(mcp: str, openapi: str, url: str, header: Sequence[str], secret: Sequence[str]) -> ServerPart:
    """The table `[server]` that the options of `new-tool` ask for.

    Raises:
        UsageError: not one server is named, or a header has no colon.
        ConfigurationError: the options do not fit together.
    """
    if bool(mcp) == bool(openapi):
        raise UsageError("expected --mcp or --openapi, found both or neither. Name one server.")
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


def write_new_tool(
    settings: Settings, server: ServerPart, server_tool: str, name: str, examples: Path, *, allow_writes: bool
) -> NewTool:
    """Ask the server, and write file and prompt into the folder of the tool files.

    Raises:
        UsageError: the name is taken, a file is there, or an example holds no call of the tool.
        ToolError, InfrastructureError: the server does not answer, has no such tool, or it writes without
        leave.
    """
    if name.lower() in {known.lower() for known in tool_names()}:
        raise UsageError(
            f"--name: expected a new name, found {name}, which is a tool already. Choose another."
        )
    folder = settings.tools_folder
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    path, prompt_path = folder / f"{stem}.toml", folder / f"{stem}.txt"
    if found := [str(file) for file in (path, prompt_path) if file.exists()]:
        raise UsageError(
            f"expected no file {' and '.join(found)}, found one. Remove it, or choose another --name."
        )

    # 1. What the server says.
    folder.mkdir(parents=True, exist_ok=True)
    written = [path, prompt_path]
    try:
        if server.openapi:
            written.append(folder / f"{stem}.openapi{Path(server.openapi).suffix or '.json'}")
            shutil.copyfile(server.openapi, written[-1])
            server = server.model_copy(update={"openapi": written[-1].name})
        asked = ToolFile(
            name=name,
            purpose=name,
            prompt=prompt_path.name,
            tool=server_tool,
            server=server,
            allow_writes=allow_writes,
        )
        described = ask_server(asked, folder)
        if described.recorded.read_only is False and not allow_writes:
            raise ToolError(  # noqa: TRY301
                f"tool {name}: expected a tool that only reads, found that the server marks {server_tool} as one that writes. "
                "If texts of a language model may decide what it writes, say so: --allow-writes."
            )
        # 2. The file, and from then on the tool.
        path.write_text(tool_file_text(asked, described), encoding="utf-8")
        tool = FileTool(path)
        # 3. The prompt, of the examples.
        shown = read_examples(tool, examples)
        prompt_path.write_text(prompt_text(tool, described.description, shown), encoding="utf-8")
        tool.prompt  # noqa: B018 - read and checked here
    except BaseException:
        for left in written:
            left.unlink(missing_ok=True)
        raise
    forget_tools()
    return NewTool(path, prompt_path, tool, shown)


def refresh_tool(path: Path) -> tuple[RecordedPart | None, RecordedPart]:
    """Ask the server of a tool file again, and write what it says into `[recorded]`; returns what was there before and what is now.

    Raises:
        ToolError, InfrastructureError: the file cannot be read, the server does not answer, or has no such
        tool.
    """
    file = read_tool_file(path)
    found = ask_server(file, path.parent).recorded
    if found != file.recorded:
        replace_file(path, with_recorded(path.read_text(encoding="utf-8"), found))
    return file.recorded, found


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
                tool.sent_arguments(call.input)
            except CallSyntaxError:
                continue  # brackets of the text
            except RejectedInputError as error:
                raise UsageError(
                    f"{where}: expected a call such as [{form}], found [{inside}] ({error.reason}). Write it as the schema says: "
                    f"{json.dumps(tool.parameters)[:600]}"
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


def tool_file_text(file: ToolFile, found: ServerTool) -> str:
    """The text of a tool file with the keys that are most often changed; docs/mcp_tools.md lists all."""
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


def one_line(text: str) -> str:
    """The start of a server's text as one line that neither opens a slot nor a call."""
    line = " ".join(text.split()).translate(str.maketrans("{}[]", "()()"))
    if len(line) <= DESCRIPTION_CHARACTERS:
        return line
    return line[:DESCRIPTION_CHARACTERS].rsplit(" ", 1)[0] + "..."
