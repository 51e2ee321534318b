"""The process that runs the function of a tool: `python -I -m toolformer_ops.tools.functions.worker`.

It reads one JSON object a line from stdin, first the path of the file and the name of the function, then the
arguments of calls, and answers each with one on stdout. What the function prints goes nowhere. It has the
environment of `line_process.py` and the secrets of its tool file. It ends with its parent, whose pipe closes,
and an alarm ends it within a call that goes on though its parent was killed.
"""

import contextlib
import importlib.util
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

ALARM_SECONDS = 60.0
"""Given to a call beyond its limit, and to the import; the parent ends the process long before."""
MESSAGE_CHARACTERS = 300
"""Longest error of the function that is told."""


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
            with contextlib.redirect_stdout(None):
                return {"result": json.loads(json.dumps(self.function(**values), default=str))}
        except Exception as error:  # it may raise anything
            said = f"{type(error).__name__}: {error}"
            return {"raised": said[:MESSAGE_CHARACTERS]}


def main() -> None:
    """Import the function, and answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries below Python write is no answer
    function: Function | None = None
    seconds = 0.0
    for line in sys.stdin:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds + ALARM_SECONDS)
        if function is None:
            seconds = question["seconds"]
            try:
                with contextlib.redirect_stdout(None):
                    function = Function(Path(question["path"]), question["function"])
                answer = function.describe()
            except WrongFunctionError as error:
                answer = {"wrong": str(error)}
        else:
            answer = function.answer(question)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


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
