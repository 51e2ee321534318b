"""The input of a call that has several arguments: `city: "Paris", date: "2023-01-01"`, read, checked and written.

Each argument is a name, a colon, and a value as JSON writes it: a text in double quotes, a number, true, false, null, or an object.
Lists are not possible, since no call holds a square bracket. What is read is checked against the JSON Schema of the tool before
it is sent: the model wrote it, and a server may do anything with what it does not expect.
"""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from toolformer_ops.errors import RejectedInputError

DO_NOT_PARSE = "arguments_do_not_parse"
UNKNOWN = "argument_unknown"
MISSING = "argument_missing"
NOT_OF_THE_SCHEMA = "argument_not_of_the_schema"

_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*:\s*")
_NEXT = re.compile(r"\s*(,|\Z)\s*")


def read_arguments(text: str) -> dict[str, Any]:
    """The arguments in the order in which they are written; none of an empty text.

    Raises:
        RejectedInputError: the text is not `name: value, name: value`, or a name is there twice.
    """
    found: dict[str, Any] = {}
    at = 0
    while at < len(text.rstrip()):
        name = _NAME.match(text, at)
        if name is None or name[1] in found:
            raise RejectedInputError(DO_NOT_PARSE)
        try:
            found[name[1]], at = _DECODER.raw_decode(text, name.end())
            text.encode()  # what JSON writes as an escape may be half of a character
            json.dumps(found[name[1]], ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise RejectedInputError(DO_NOT_PARSE) from error
        following = _NEXT.match(text, at)
        if following is None or (following[1] and following.end() == len(text)):
            raise RejectedInputError(DO_NOT_PARSE)
        at = following.end()
    return found


def write_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """One spelling of the arguments, in the order of the schema, so that a question that is asked in two ways is asked once."""
    order = {name: number for number, name in enumerate(schema.get("properties", {}))}
    names = sorted(arguments, key=lambda name: (order.get(name, len(order)), name))
    return ", ".join(f"{name}: {json.dumps(arguments[name], ensure_ascii=False, sort_keys=True)}" for name in names)


def check_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Check the arguments against a JSON Schema of an object.

    Raises:
        RejectedInputError: one is unknown, missing, or not as the schema says.
    """
    properties = schema.get("properties", {})
    if not set(arguments) <= set(properties):
        raise RejectedInputError(UNKNOWN)
    if not set(schema.get("required", ())) <= set(arguments):
        raise RejectedInputError(MISSING)
    from jsonschema import ValidationError
    from referencing.exceptions import Unresolvable

    try:
        _validator(json.dumps(schema, sort_keys=True)).validate(dict(arguments))
    except (ValidationError, Unresolvable, RecursionError) as error:
        raise RejectedInputError(NOT_OF_THE_SCHEMA) from error


@functools.lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    parsed = json.loads(schema)
    kind = validator_for(parsed, default=Draft202012Validator)
    # An empty registry: a `$ref` to another address is fetched from nowhere.
    return kind(parsed, registry=Registry())


def _no_number(text: str) -> Any:
    raise ValueError(f"expected a number, found {text}")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
