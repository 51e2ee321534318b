"""The examples that a user gives for a new tool: texts with calls where their results help, one a line."""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.call_syntax import ARROW, parse_call
from toolformer_ops.errors import CallSyntaxError, RejectedInputError, UsageError, file_problem
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
_NAMED_CALL = re.compile(r"\[\s*([A-Za-z][A-Za-z0-9_]*)\s*\(")
_NUMBER = re.compile(r"-?\d[\d.,]*\d|-?\d")


@dataclass(frozen=True)
class ExampleCall:
    """A call in a text of the user."""

    line: int
    """The number of its line in the file, from 1."""
    input: str
    expected: str
    """The result that the user wrote; empty if there is none."""
    following: str
    """The text after the call."""

    def agrees(self, result: str) -> bool:
        """Whether a result is what the user wrote, or else what the text continues with."""
        if self.expected:
            return result == self.expected
        goes_on = bool(result) and self.following.startswith(result)
        return goes_on and not self.following[len(result) :][:1].isalnum()

    def is_said(self, result: str) -> bool:
        """Whether a result is what the user wrote, or else the text after the call holds a value of it.

        A number may be written otherwise there: `1,312` for `1312`, `24.50` for `24.5`.
        """
        if self.expected:
            return result == self.expected
        numbers: set[float] = set()
        for written in _NUMBER.findall(self.following):
            numbers |= _readings(written)
        following = self.following.casefold()
        for value in re.split(r"[,;] ", result):
            is_number = _NUMBER.fullmatch(value) is not None
            if (
                (_readings(value) & numbers)
                if is_number
                else (value.strip() and value.casefold() in following)
            ):
                return True
        return False


def _readings(number: str) -> set[float]:
    """What a number may mean: its comma parts thousands, or is a decimal point."""
    readings = set()
    for plain in (number.replace(",", ""), number.replace(".", "").replace(",", ".")):
        with contextlib.suppress(ValueError):
            readings.add(float(plain))
    return readings


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
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--examples: expected a text file in UTF-8 at {path}, found: {file_problem(error)}."
        ) from error
    form = call_form(tool)
    examples: list[Example] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line:
            continue
        where = f"--examples, line {number}"
        own = without_calls(line, others)
        calls = _calls(tool, own, number)
        named = Counter(_NAMED_CALL.findall(own))
        if len(calls) < named[tool.spec.name]:
            raise UsageError(
                f"{where}: expected a call that can be read again, [{form}], found other text in brackets. "
                "The input of a call holds no square bracket and no arrow (->): "
                "docs/own_tools.md#what-a-call-cannot-hold."
            )
        if calls:
            with_calls = re.sub(rf"\s*{ARROW}[^\[\]]*\]", "]", own)
            examples.append(Example(without_calls(own, [tool.spec.name]), with_calls, calls))
        elif own == line:
            others_there = " and ".join(f"calls of {name}" for name in named)
            remedy = f"Write {tool.spec.name} there" if named else "Write one where it helps"
            raise UsageError(
                f"{where}: expected a call [{form}] in the text, found {others_there or 'none'}. {remedy}."
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


def _calls(tool: FileTool, line: str, number: int) -> tuple[ExampleCall, ...]:
    """The calls of the tool in a line, which has this number; other brackets are the text's own."""
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
                f"--examples, line {number}: expected a call such as [{call_form(tool)}], found [{inside}] ({error.reason}). "
                f"Its arguments: {arguments_shown(tool)}."
            ) from error
        expected = inside.partition(ARROW)[2].strip() if ARROW in inside else ""
        following = without_calls(line[place.end() :], [tool.spec.name]).strip()
        calls.append(ExampleCall(number, call.input, expected, following))
    return tuple(calls)
