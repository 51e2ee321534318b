"""The function of a tool, in the tool's process (`files/worker.py`).

The process has a bare environment with the tool's secrets. What the function prints goes nowhere.
"""

import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.files.answering import MOST_PROPOSED_CALLS, Answering, WrongError

FAILED = "function_failed"
PROPOSE = "propose"
"""What `new-tool` takes for the function that proposes calls."""
NOT_TEXT = "result_not_text"
NOT_PAIRS = "not_offset_and_input"
NOT_OF_THE_SCHEMA = "argument_not_of_the_schema"
MESSAGE_CHARACTERS = 300
"""Longest error of the function that is told."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
"""In what Python writes of an object that says nothing of itself; it is another in each process."""


@dataclass(frozen=True)
class DescribedFunction:
    """What a function says of itself."""

    description: str
    """Its docstring."""
    input_schema: dict[str, Any]
    """The JSON Schema of its arguments."""
    is_beside_propose: bool = False
    """Whether its file has a function `propose`, too."""


class PythonFunction(Answering):
    """A function of a file, and the model of its arguments."""

    def __init__(self, path: Path, name: str) -> None:
        """Import the file; errors are those of `open`."""
        self.function = _imported(path, name)
        self.arguments = _arguments_of(self.function, name)

    @classmethod
    def open(cls, path: str, function: str) -> Self:
        """Import the file.

        Raises:
            WrongError: it cannot be imported, or its function not be a tool.
        """
        return cls(Path(path), function)

    def describe(self) -> DescribedFunction:
        """Its docstring, and the JSON Schema of its arguments."""
        schema = self.arguments.model_json_schema()
        for part in schema.get("properties", {}).values():
            part.pop("title", None)
        schema.pop("title", None)
        return DescribedFunction(
            description=inspect.getdoc(self.function) or "",
            input_schema=schema,
            is_beside_propose=inspect.isfunction(self.function.__globals__.get(PROPOSE)),
        )

    def answer(self, /, **arguments: Any) -> Any:
        """Its result as JSON.

        Raises:
            RejectedInputError: an argument is of another type, the function raises, or no text says its
            result.
        """
        try:
            checked = self.arguments.model_validate(arguments)
        except ValidationError as error:
            raise RejectedInputError(NOT_OF_THE_SCHEMA) from error
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        try:
            return json.loads(json.dumps(self.function(**values), default=_plain))
        except RejectedInputError:
            raise
        except Exception as error:  # it may raise anything
            said = f"{type(error).__name__}: {error}"
            raise RejectedInputError(FAILED, said[:MESSAGE_CHARACTERS]) from error


@dataclass(frozen=True)
class ProposedByFunction:
    """What a function proposes for a text, as JSON can write it."""

    calls: list[tuple[int, str]]
    """The first calls: offset in the text and input."""
    left_out: int
    """How many calls there are beyond these."""


class ProposingFunction(Answering):
    """A function of a file that proposes calls for a text."""

    def __init__(self, path: Path, name: str) -> None:
        """Import the file; errors are those of `open`."""
        self.function = _imported(path, name)

    @classmethod
    def open(cls, path: str, function: str) -> Self:
        """Import the file.

        Raises:
            WrongError: it cannot be imported, or has no such function.
        """
        return cls(Path(path), function)

    def describe(self) -> DescribedFunction:
        """Its docstring."""
        return DescribedFunction(description=inspect.getdoc(self.function) or "", input_schema={})

    def answer(self, /, text: str) -> dict[str, Any]:
        """What it proposes for a text: the fields of `ProposedByFunction`.

        Raises:
            RejectedInputError: it raises, or returns something else than pairs of an offset and an input.
        """
        items: list[Any] = []
        left_out = 0
        try:
            for item in self.function(text):
                if len(items) < MOST_PROPOSED_CALLS:
                    items.append(item)
                else:
                    left_out += 1
        except Exception as error:  # it may raise anything
            said = f"{type(error).__name__}: {error}"
            raise RejectedInputError(FAILED, said[:MESSAGE_CHARACTERS]) from error
        calls = []
        for item in items:
            match item:
                case (int() as char, str() as call_input) if not isinstance(char, bool):
                    calls.append((char, call_input))
                case _:
                    raise RejectedInputError(NOT_PAIRS, f"found {item!r:.100}")
        return asdict(ProposedByFunction(calls, left_out))


def _plain(value: object) -> object:
    """What JSON can write of an object: a set in order, else its text.

    Raises:
        RejectedInputError: it is bytes, or its text has an address in memory.
    """
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda item: (type(item).__name__, item))
    text = str(value)
    if isinstance(value, bytes | bytearray) or _ADDRESS.search(text):
        raise RejectedInputError(NOT_TEXT)
    return text


def _imported(path: Path, name: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise WrongError(f"expected a file of Python at {path}, found none")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise WrongError(f"expected {path} to be imported, found {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
        there = ", ".join(sorted(key for key, value in vars(module).items() if inspect.isfunction(value)))
        raise WrongError(f"expected a function {name} in {path}, found {there or 'none'}")
    return function


def _arguments_of(function: Callable[..., Any], name: str) -> type[BaseModel]:
    """A model with the parameters of a function; one without a type is a text."""
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except NameError as error:
        raise WrongError(f"expected types of {name} that are defined, found: {error}") from error
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise WrongError(
                f"expected arguments with names of {name}, found {parameter}. Give each a name and a type"
            )
        kind = str if parameter.annotation is parameter.empty else parameter.annotation
        fields[parameter.name] = (kind, ... if parameter.default is parameter.empty else parameter.default)
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except Exception as error:  # pydantic has an error of its own for each kind of type
        raise WrongError(
            f"expected arguments of {name} that JSON can write, found: "
            f"{' '.join(str(error).split())[:MESSAGE_CHARACTERS]}"
        ) from error
