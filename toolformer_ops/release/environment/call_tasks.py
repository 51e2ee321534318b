"""What a call is worth in a task of `train.jsonl`, and the recorded results of its calls. Needs Python alone.

A task is a text up to a place, tools, and the calls that were tried at this place with what each saves: nats
by which the call with its result lowered the loss of the text that follows, beyond no call and the call
without its result, by the model that annotated the text. `expected` was kept, `rejected` were not.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

NO_RESULT = "no result"
"""What a tool answers to a call that was not tried."""
_TYPES = {"integer": int, "number": float, "boolean": bool, "array": list, "object": dict}


def read_tasks(path: Path) -> Iterator[dict[str, Any]]:
    """The tasks of a file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def reward(task: Mapping[str, Any], calls: Sequence[tuple[str, Mapping[str, Any]]]) -> float:
    """Reward in [0, 1]: nats saved by the first call, divided by those saved by the kept call.

    `calls` are the model's calls, each a tool's name with its arguments. The kept call has 1; a rejected call
    has its share, at least 0; an unknown call, and no call, have 0.
    """
    if not calls:
        return 0.0
    expected = task["expected"]
    saved = {_key(call["tool"], json.loads(call["arguments"])): call["nats"] for call in task["rejected"]}
    saved[_key(expected["tool"], json.loads(expected["arguments"]))] = expected["nats"]
    nats = saved.get(_key(*calls[0]), 0.0)
    return float(min(1.0, max(0.0, nats / expected["nats"])))


def result_of(task: Mapping[str, Any], tool: str, arguments: Mapping[str, Any]) -> str:
    """The result that the tool gave to this call when it was tried; `NO_RESULT` for other calls."""
    key = _key(tool, arguments)
    for call in (task["expected"], *task["rejected"]):
        if _key(call["tool"], json.loads(call["arguments"])) == key:
            return str(call["result"])
    return NO_RESULT


def tool_functions(
    tools: Sequence[Mapping[str, Any]], answer: Callable[[str, dict[str, Any]], str]
) -> list[Callable[..., str]]:
    """A function for each tool, with name, types and description as libraries read them.

    `answer` gives its results.
    """
    return [_tool_function(tool["function"], answer) for tool in tools]


def _tool_function(
    described: Mapping[str, Any], answer: Callable[[str, dict[str, Any]], str]
) -> Callable[..., str]:
    name, schema = described["name"], described["parameters"]
    # Libraries that read tasks as a table fill in what another tool has, as null.
    properties = {key: value for key, value in (schema.get("properties") or {}).items() if value is not None}
    required = schema.get("required") or ()

    def function(**arguments: Any) -> str:
        return answer(name, arguments)

    parameters, described_parameters = [], []
    for parameter, schema_of_parameter in properties.items():
        default = inspect.Parameter.empty if parameter in required else None
        annotation = _TYPES.get(str(schema_of_parameter.get("type")), str)
        parameters.append(
            inspect.Parameter(
                parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
        meaning = schema_of_parameter.get("description") or parameter
        described_parameters.append(f"    {parameter}: {meaning}")
    docstring = [str(described.get("description", name))]
    if described_parameters:
        docstring += ["", "Args:", *described_parameters]
    function.__name__ = function.__qualname__ = name
    function.__doc__ = "\n".join([*docstring, "", "Returns:", "    the tool's result."])
    function.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": str}
    function.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    return function


def _key(tool: str, arguments: Mapping[str, Any]) -> str:
    """A call in one spelling.

    White space in texts counts as one space, and arguments without a value not at all.
    """
    values = {}
    for name, value in arguments.items():
        if value is not None:
            values[name] = " ".join(value.split()) if isinstance(value, str) else value
    return f"{tool} {json.dumps(values, sort_keys=True, ensure_ascii=False)}"
