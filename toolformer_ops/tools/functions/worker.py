"""The process that runs the function of a tool: `python -I -m toolformer_ops.tools.functions.worker`.

It is asked the path of the file and the name of the function first, then the arguments of calls
(`line_process.py`). What the function prints goes nowhere. It has a bare environment and the secrets of its tool
file.
"""

import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from toolformer_ops.tools.files.line_process import answer_lines

MESSAGE_CHARACTERS = 300
"""Longest error of the function that is told."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
"""In what Python writes of an object that says nothing of itself; it is another in each process."""


class NoTextError(Exception):
    """The function returns an object that no text can say."""


class WrongFunctionError(Exception):
    """The file has no function that can be a tool."""


class Function:
    """A function of a file, and the model of its arguments."""

    def __init__(self, path: Path, name: str) -> None:
        """Import the file.

        Raises:
            WrongFunctionError: it cannot be imported, or its function not be a tool.
        """
        self.function = _imported(path, name)
        self.arguments = _arguments_of(self.function, name)

    def describe(self) -> dict[str, Any]:
        """What the function says of itself: its docstring, and the JSON Schema of its arguments."""
        schema = self.arguments.model_json_schema()
        for part in schema.get("properties", {}).values():
            part.pop("title", None)
        schema.pop("title", None)
        return {"description": inspect.getdoc(self.function) or "", "input_schema": schema}

    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Its result as JSON, or what is wrong."""
        try:
            checked = self.arguments.model_validate(arguments)
        except ValidationError:
            return {"wrong_arguments": True}
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        try:
            return {"result": json.loads(json.dumps(self.function(**values), default=_plain))}
        except NoTextError:
            return {"no_text": True}
        except Exception as error:  # it may raise anything
            said = f"{type(error).__name__}: {error}"
            return {"raised": said[:MESSAGE_CHARACTERS]}


def main() -> None:
    """Import the function, and answer until stdin ends."""
    function: Function | None = None

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        nonlocal function
        if function is not None:
            return function.answer(question)
        try:
            function = Function(Path(question["path"]), question["function"])
        except WrongFunctionError as error:
            return {"wrong": str(error)}
        return function.describe()

    answer_lines(answer)


def _plain(value: object) -> object:
    """What JSON can write of an object: a set in order, else its text.

    Raises:
        NoTextError: it is bytes, or its text has an address in memory.
    """
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda item: (type(item).__name__, item))
    text = str(value)
    if isinstance(value, bytes | bytearray) or _ADDRESS.search(text):
        raise NoTextError
    return text


def _imported(path: Path, name: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise WrongFunctionError(f"expected a file of Python at {path}, found none")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise WrongFunctionError(
            f"expected {path} to be imported, found {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
        there = ", ".join(sorted(key for key, value in vars(module).items() if inspect.isfunction(value)))
        raise WrongFunctionError(f"expected a function {name} in {path}, found {there or 'none'}")
    return function


def _arguments_of(function: Callable[..., Any], name: str) -> type[BaseModel]:
    """A model with the parameters of a function; one without a type is a text."""
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except NameError as error:
        raise WrongFunctionError(f"expected types of {name} that are defined, found: {error}") from error
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise WrongFunctionError(
                f"expected arguments with names of {name}, found {parameter}. Give each a name and a type"
            )
        kind = str if parameter.annotation is parameter.empty else parameter.annotation
        fields[parameter.name] = (kind, ... if parameter.default is parameter.empty else parameter.default)
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except Exception as error:  # pydantic has an error of its own for each kind of type
        raise WrongFunctionError(
            f"expected arguments of {name} that JSON can write, found: "
            f"{' '.join(str(error).split())[:MESSAGE_CHARACTERS]}"
        ) from error


if __name__ == "__main__":
    main()
