"""The two texts of a call of a server's tool: its input, and the line that is its answer.

An input is `city: "Paris", date: "2023-01-01"`. Each argument is a name, a colon, and a value as JSON writes
it: a text in double quotes, a number, true, false, null, or an object. Lists are not possible, since no call
holds a square bracket. What is read is checked against the JSON Schema of the tool before it is sent: the
model wrote it, and a server may do anything with what it does not expect.

An answer is hostile: it becomes one line within a budget, control characters are escaped, and
`call_syntax.py` takes its square brackets when it is written into a text.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.storage.corpora.record_rules import escape_control_characters
from toolformer_ops.tools.files.patterns import PatternTimedOutError, first_match
from toolformer_ops.tools.retrieval.sentences import cut_at_sentence_end

DO_NOT_PARSE = "arguments_do_not_parse"
LACKS_FIELD = "result_lacks_field"
NO_MATCH = "result_without_match"
MATCH_TIMED_OUT = "result_match_timed_out"
TOO_LONG = "result_too_long"
EMPTY = "empty_result"

MOST_CHARACTERS_A_WORD = 8
"""A result is cut to so many times its budget of words and punctuation marks before these are counted."""

MOST_MATCHED_CHARACTERS = 100_000
"""Most characters of an answer that a regular expression looks through."""

_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*:\s*")
_NEXT = re.compile(r"\s*(,|\Z)\s*")
_PLACE = re.compile(r"\{([^{}]*?)(?:\[(-?\d{1,4}|):(-?\d{1,4}|)\])?\s*\}")
"""A field in a template, and the characters of it that are taken."""


def read_arguments(text: str) -> dict[str, Any]:
    """The arguments in the order in which they are written; none of an empty text.

    Raises:
        RejectedInputError: the text is not `name: value, name: value`, or it has a name twice.
    """
    arguments: dict[str, Any] = {}
    at = 0
    while at < len(text.rstrip()):
        name = _NAME.match(text, at)
        if name is None or name[1] in arguments:
            raise RejectedInputError(DO_NOT_PARSE)
        try:
            arguments[name[1]], at = json.JSONDecoder().raw_decode(text, name.end())
            text.encode()  # what JSON writes as an escape may be half of a character
            json.dumps(arguments[name[1]], ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise RejectedInputError(DO_NOT_PARSE) from error
        following = _NEXT.match(text, at)
        if following is None or (following[1] and following.end() == len(text)):
            raise RejectedInputError(DO_NOT_PARSE)
        at = following.end()
    return arguments


def write_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """One spelling of the arguments, in the order of the schema.

    So a question that is asked in two ways is asked once.
    """
    order = {name: number for number, name in enumerate(schema.get("properties", {}))}
    names = sorted(arguments, key=lambda name: (order.get(name, len(order)), name))
    return ", ".join(
        f"{name}: {json.dumps(arguments[name], ensure_ascii=False, sort_keys=True)}" for name in names
    )


def check_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Check the arguments against a JSON Schema of an object.

    Raises:
        RejectedInputError: one is unknown, missing, or not as the schema says.
    """
    properties = schema.get("properties", {})
    if not set(arguments) <= set(properties):
        raise RejectedInputError("argument_unknown")
    if not set(schema.get("required", ())) <= set(arguments):
        raise RejectedInputError("argument_missing")
    from jsonschema import ValidationError
    from jsonschema.validators import Draft202012Validator, extend, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        bounded = extend(validator_for(schema, default=Draft202012Validator), {"pattern": _pattern_errors})
        # An empty registry: a `$ref` to another address is fetched from nowhere.
        bounded(schema, registry=Registry()).validate(dict(arguments))
    except (ValidationError, Unresolvable, RecursionError, PatternTimedOutError) as error:
        raise RejectedInputError("argument_not_of_the_schema") from error


def _pattern_errors(_: Any, pattern: str, value: Any, __: Any) -> Iterator[Any]:
    """The error of a value that lacks the `pattern` of a schema; a server wrote the pattern, a model the value."""
    from jsonschema import ValidationError

    if isinstance(value, str) and not first_match(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def texts_of(result: Any) -> str:
    """The texts of an mcp_types.CallToolResult."""
    return " ".join(block.text for block in result.content if block.type == "text").strip()


def pattern_of(template: str) -> str | None:
    """The regular expression that a `result` of a tool file is, between two strokes.

    None if it is a template of fields.
    """
    is_pattern = len(template) > 2 and template.startswith("/") and template.endswith("/")
    return template[1:-1] if is_pattern else None


def picked_text(answer: str, template: str) -> str:
    """What a template or regular expression takes of an answer that is a text, a JSON object for example.

    Raises:
        RejectedInputError: the answer lacks it.
    """
    pattern = pattern_of(template)
    return _matched(answer, pattern) if pattern else _filled(_object_of(answer), template)


def result_line(result: Any, template: str, tokens: int) -> str:
    """An mcp_types.CallToolResult as one line of at most `tokens` words and punctuation marks.

    Raises:
        RejectedInputError: it holds no text, not the template's fields, not what the regular expression
        matches, or nothing.
    """
    text = texts_of(result)
    structured = result.structured_content
    if structured is None:
        structured = _object_of(text)
    try:
        if pattern := pattern_of(template):
            text = _matched(text or json.dumps(structured, ensure_ascii=False), pattern)
        elif template:
            text = _filled(structured, template)
        elif structured is not None and (not text or text.lstrip().startswith("{")):
            # A server of FastMCP wraps what is no object.
            text = value_line(structured["result"] if set(structured) == {"result"} else structured)
        elif not text:
            holds_more = any(block.type != "text" for block in result.content)
            raise RejectedInputError("result_not_text" if holds_more else EMPTY)
    except RecursionError as error:  # lists in lists, as deep as a hostile server likes
        raise RejectedInputError(TOO_LONG) from error
    text = text[: tokens * MOST_CHARACTERS_A_WORD]
    line = escape_control_characters(" ".join(text.split()))[0]
    if not line:
        raise RejectedInputError(EMPTY)
    cut = cut_at_sentence_end(line, tokens)
    if not cut:
        raise RejectedInputError(TOO_LONG)
    return cut


def _object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None if it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        parsed = json.loads(text)
        return parsed if isinstance(parsed, dict) else None
    return None


def _filled(structured: Any, template: str) -> str:
    return _PLACE.sub(lambda place: _shown(structured, place), template)


def _matched(text: str, pattern: str) -> str:
    """The first group of the first match, or the match if there is no group.

    A server may answer so that a pattern takes for ever: the text is cut, and the search has a limit of time.
    """
    try:
        match = first_match(pattern, text[:MOST_MATCHED_CHARACTERS])
    except PatternTimedOutError as error:
        raise RejectedInputError(MATCH_TIMED_OUT) from error
    picked = match and (match[1] if match.re.groups else match[0])
    if not picked:
        raise RejectedInputError(NO_MATCH)
    return str(picked)


def _shown(structured: Any, place: re.Match[str]) -> str:
    """The value of `{field.of.it}`, where numbers count the items of a list.

    With `[11:16]` it is these characters, as in Python.
    """
    path, first, end = place.groups()
    value = structured
    for part in path.strip().split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RejectedInputError(LACKS_FIELD) from error
    if first is None:
        return value_line(value)
    cut = value_line(value)[int(first) if first else None : int(end) if end else None]
    if not cut:
        raise RejectedInputError(LACKS_FIELD)
    return cut


def value_line(value: Any) -> str:
    """A value of JSON in words."""
    if isinstance(value, dict):
        return ", ".join(
            f"{name}: ({value_line(item)})" if isinstance(item, dict) else f"{name}: {value_line(item)}"
            for name, item in value.items()
        )
    if isinstance(value, list):
        return ", ".join(
            f"({value_line(item)})" if isinstance(item, (dict, list)) else value_line(item) for item in value
        )
    return value if isinstance(value, str) else json.dumps(value)
