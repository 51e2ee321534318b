"""Write the first version of a tool file and of its prompt, from what a server says of its tool and from examples of the user.

1. The server is asked for the tool's description and input schema.
2. The calls in the examples are checked against the schema, and run.
3. File and prompt are written; nothing is written over.
4. The method is tried on a few texts, without services: how many calls a model writes, what they get, which are kept.

Does not choose thresholds or a filter: what is written holds the paper's numbers, for a person to change.
"""

import functools
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolformer_ops.annotation.candidates import filter_document, kept_paragraphs
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import CallSyntaxError, ParameterError, RejectedInputError, ToolError
from toolformer_ops.on_a_file.annotator import Annotator, read_corpus
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import load_model
from toolformer_ops.storage.corpus_records import Record
from toolformer_ops.storage.shared_files import replace_file
from toolformer_ops.tools.base import TEXT_SLOT, ToolOutput, run_tool
from toolformer_ops.tools.registry import forget_tools, get_tool, tool_names
from toolformer_ops.tools.servers.connection import ServerTool, ask_server
from toolformer_ops.tools.servers.tool_file import (
    FileTool,
    RecordedPart,
    ServerPart,
    read_tool_file,
    recorded_table,
    toml_text,
    with_recorded,
)

LEAST_EXAMPLES = 1
DESCRIPTION_CHARACTERS = 300
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


@dataclass
class Trial:
    """What a model did with the new tool in a few texts."""

    texts: int = 0
    texts_asked: int = 0
    """Those that the filter kept."""
    sampled: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    lines: list[dict[str, Any]] = field(default_factory=list)
    """The calls with a result, as `annotate` prints them."""


def write_new_tool(
    settings: Settings, server: ServerPart, server_tool: str, name: str, examples: Path, *, allow_writes: bool
) -> NewTool:
    """Ask the server, and write file and prompt into the folder of the tool files.

    Raises:
        ParameterError: the name is taken, a file is there, or an example holds no call of the tool.
        ToolError, ToolServerError: the server does not answer, has no such tool, or it writes without leave.
    """
    if name.lower() in {known.lower() for known in tool_names()}:
        raise ParameterError(f"--name: expected a new name, found {name}, which is a tool already. Choose another.")
    folder = settings.tools_folder
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    path, prompt_path = folder / f"{stem}.toml", folder / f"{stem}.txt"
    if found := [str(file) for file in (path, prompt_path) if file.exists()]:
        raise ParameterError(f"expected no file {' and '.join(found)}, found one. Remove it, or choose another --name.")

    # 1. What the server says.
    folder.mkdir(parents=True, exist_ok=True)
    if server.openapi:
        copied = folder / f"{stem}.openapi{Path(server.openapi).suffix or '.json'}"
        shutil.copyfile(server.openapi, copied)
        server = server.model_copy(update={"openapi": copied.name})
    described = ask_server(server, folder, server_tool, name)
    if described.recorded.read_only is False and not allow_writes:
        raise ToolError(
            f"tool {name}: expected a tool that only reads, found that the server marks {server_tool} as one that writes. "
            "Where texts of a language model may decide what it writes, say so: --allow-writes."
        )

    # 2. The file, and from then on the tool.
    purpose = re.split(r"(?<=[.!?])\s", one_line(described.description) or f"Asks {server_tool}.", maxsplit=1)[0]
    written = tool_file_text(name, purpose, prompt_path.name, server_tool, server, described, allow_writes=allow_writes)
    path.write_text(written, encoding="utf-8")
    try:
        tool = FileTool(path)
        # 3. The prompt, of the examples.
        shown = read_examples(tool, examples)
        prompt_path.write_text(prompt_text(tool, described.description, shown), encoding="utf-8")
        tool.prompt  # noqa: B018 - read and checked here
    except BaseException:
        path.unlink()
        prompt_path.unlink(missing_ok=True)
        raise
    forget_tools()
    return NewTool(path, prompt_path, tool, shown)


def refresh_tool(path: Path) -> tuple[RecordedPart | None, RecordedPart]:
    """Ask the server of a tool file again, and write what it says into `[recorded]`; returns what was there before and what is now.

    Raises:
        ToolError, ToolServerError: the file cannot be read, the server does not answer, or has no such tool.
    """
    file = read_tool_file(path)
    found = ask_server(file.server, path.parent, file.tool, file.name).recorded
    if found != file.recorded:
        replace_file(path, with_recorded(path.read_text(encoding="utf-8"), found))
    return file.recorded, found


def run_examples(settings: Settings, new: NewTool) -> list[tuple[str, ToolOutput]]:
    """The calls of the examples and what the tool answers to each, in order.

    Raises:
        ToolError, ToolServerError: the server does not answer, or says other things than a moment ago.
    """
    calls = [call for example in new.examples for call in example.calls]
    runner = new.tool.open(settings, lambda: load_model(settings, ""))
    return list(zip(calls, run_tool(runner, calls, settings.tool_time_limit_seconds), strict=True))


def try_tool(
    settings: Settings, name: str, corpus: Path | str, model_name: str, texts: int, values: dict[str, Any]
) -> Trial:
    """The whole method on the first `texts` documents of a corpus, in this process.

    Raises:
        CorpusError: nothing is at that path, or no line of it is a usable record.
    """
    tool = get_tool(name)
    choices = RunChoices.parse({"tools": (tool.spec.name,), **values, "corpus": str(corpus), "model": model_name})
    model = functools.cache(functools.partial(load_model, settings, model_name))
    annotator = Annotator(settings=settings, tool=tool, choices=choices, model=model)
    trial = Trial()
    for _, record in read_corpus(settings, corpus):
        if trial.texts == texts:
            break
        if not isinstance(record, Record):
            continue
        trial.texts += 1
        document = record.document()
        paragraphs = kept_paragraphs(document, filter_document(tool, document, choices))
        trial.texts_asked += bool(paragraphs)
        for annotated in annotator.annotate(paragraphs):
            trial.sampled += annotated.counts
            trial.answers += annotated.answers
            trial.lines += annotated.lines
    return trial


def read_examples(tool: FileTool, path: Path) -> tuple[Example, ...]:
    """The examples of a file, one a line.

    Raises:
        ParameterError: there is none, or one holds no call of the tool that could be sent.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"--examples: expected a text file in UTF-8, found {error}.") from error
    name, form = tool.spec.name, call_form(tool)
    if len(lines) < LEAST_EXAMPLES:
        raise ParameterError(f"--examples: expected a text with a call [{form}] on each line, five best, found none.")
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
                raise ParameterError(
                    f"{where}: expected a call such as [{form}], found [{inside}] ({error.reason}). Write it as the schema says: "
                    f"{json.dumps(tool.parameters)[:600]}"
                ) from error
            calls.append(call.input)
        if not calls:
            raise ParameterError(
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


def tool_file_text(
    name: str, purpose: str, prompt: str, server_tool: str, server: ServerPart, found: ServerTool, *, allow_writes: bool
) -> str:
    """The text of a tool file with the keys that are most often changed; docs/mcp_tools.md lists all."""
    parts = server.model_dump(exclude_defaults=True)
    lines = [
        f"name = {toml_text(name)}",
        f"purpose = {toml_text(purpose)}",
        f"prompt = {toml_text(prompt)}",
        f"tool = {toml_text(server_tool)}",
        '# result = "{field} and {field.of.it}"  # how a structured answer is written; else field: value, field: value',
        *(["allow_writes = true"] if allow_writes else []),
        "",
        "[server]",
        *(f"{key} = {_toml_value(value)}" for key, value in parts.items()),
        "",
        "[filter]",
        '# pattern = "a regular expression"  # texts that hold it are asked; else all',
        "",
        "[numbers]",
        "keep_threshold = 1.0",
        "",
        "[limits]",
        "seconds = 30",
        "concurrency = 4",
        "# calls_per_second = 5",
        "",
        recorded_table(found.recorded),
    ]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    """A text, a number, texts, or a table of texts as TOML."""
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml_text(key)} = {toml_text(item)}' for key, item in value.items())}}}"
    return f"[{', '.join(map(toml_text, value))}]" if isinstance(value, (list, tuple)) else str(value)


def one_line(text: str) -> str:
    """The start of a server's text as one line that neither opens a slot nor a call."""
    line = " ".join(text.split()).translate(str.maketrans("{}[]", "()()"))
    if len(line) <= DESCRIPTION_CHARACTERS:
        return line
    return line[:DESCRIPTION_CHARACTERS].rsplit(" ", 1)[0] + "..."
