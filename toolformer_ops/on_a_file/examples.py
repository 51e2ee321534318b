"""The examples that a user gives for a new tool: texts with calls where their results help, one a line."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.call_syntax import ARROW, parse_call
from toolformer_ops.errors import CallSyntaxError, RejectedInputError, UsageError
from toolformer_ops.tools.files.file_tool import FileTool

SHOWN_VALUES = 10
"""Values of an argument that an error names."""
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
class ExampleCall:
    """A call in a text of the user."""

    input: str
    expected: str
    """The result that the user wrote; empty if there is none."""
    following: str
    """The text behind the call."""

    def agrees(self, result: str) -> bool:
        """Whether a result is what the user wrote, or else what the text goes on with."""
        if self.expected:
            return result == self.expected
        goes_on = bool(result) and self.following.startswith(result)
        return goes_on and not self.following[len(result) :][:1].isalnum()


@dataclass(frozen=True)
class Example:
    """A text that the user gives, with a call where one helps."""

    text: str
    """Without calls."""
    with_calls: str
    """With calls, without results."""
    calls: tuple[ExampleCall, ...]


def read_examples(tool: FileTool, path: Path, others: Sequence[str] = ()) -> tuple[Example, ...]:
    """The examples of a file; calls of `others`, which are made beside the tool, are taken out.

    Raises:
        UsageError: there is none, one holds no call, or a call that could not be sent.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--examples: expected a text file in UTF-8, found {error}.") from error
    form = call_form(tool)
    examples: list[Example] = []
    for number, line in enumerate(lines, start=1):
        where = f"--examples, line {number}"
        own = without_calls(line, others)
        calls = _calls(tool, own, where)
        if calls:
            with_calls = re.sub(rf"\s*{ARROW}[^\[\]]*\]", "]", own)
            examples.append(Example(without_calls(own, [tool.spec.name]), with_calls, calls))
        elif own == line:
            raise UsageError(
                f"{where}: expected a call [{form}] in the text, found none. Write one where it helps."
            )
    if not examples:
        raise UsageError(
            f"--examples: expected a text with a call [{form}] on each line, five best, found none."
        )
    return tuple(examples)


def without_calls(text: str, tools: Sequence[str]) -> str:
    """The text without the calls of these tools, and with single spaces if it held one."""
    if not tools:
        return text
    written = re.compile(rf"\[(?:{'|'.join(map(re.escape, tools))})\([^\[\]]*\][ ]?")
    return " ".join(written.sub("", text).split()) if written.search(text) else text


def call_form(tool: FileTool) -> str:
    """How a call is written, with the names of its arguments: `Weather(city: ..., date: ...)`."""
    if tool.input_argument is not None:
        return f"{tool.spec.name}({tool.input_argument})"
    return f"{tool.spec.name}({', '.join(f'{name}: ...' for name in tool.parameters['properties'])})"


def arguments_shown(tool: FileTool) -> str:
    """The arguments of a tool in words: `city (text in double quotes), days (whole number, may be left out)`."""
    required = tool.parameters.get("required", ())
    shown = []
    for name, part in tool.parameters["properties"].items():
        words = _words_of(part if isinstance(part, dict) else {})
        if name not in required:
            words.append("may be left out")
        shown.append(f"{name} ({', '.join(words)})")
    return ", ".join(shown) or "none"


def _words_of(part: dict[str, object]) -> list[str]:
    """What JSON Schema says of an argument."""
    values, kind = part.get("enum"), part.get("type", "any value")
    if isinstance(values, list):
        return [f"one of {', '.join(json.dumps(value) for value in values[:SHOWN_VALUES])}"]
    kinds = kind if isinstance(kind, list) else [kind]
    words = [" or ".join(WORDS_OF_TYPES.get(str(each), str(each)) for each in kinds)]
    return [*words, f"as {part['pattern']}"] if "pattern" in part else words


def _calls(tool: FileTool, line: str, where: str) -> tuple[ExampleCall, ...]:
    """The calls of the tool in a line; other brackets are the text's own."""
    calls = []
    for place in _CALL.finditer(line):
        inside = place[1]
        try:
            call = parse_call(inside)
            if call.tool != tool.spec.name:
                continue
            tool.check_input(call.input)
        except CallSyntaxError:
            continue
        except RejectedInputError as error:
            raise UsageError(
                f"{where}: expected a call such as [{call_form(tool)}], found [{inside}] ({error.reason}). "
                f"Its arguments: {arguments_shown(tool)}."
            ) from error
        expected = inside.partition(ARROW)[2].strip() if ARROW in inside else ""
        following = without_calls(line[place.end() :], [tool.spec.name]).strip()
        calls.append(ExampleCall(call.input, expected, following))
    return tuple(calls)
