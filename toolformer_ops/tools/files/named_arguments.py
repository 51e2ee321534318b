"""How the arguments of a tool are written in a call.

The one text that a tool needs is written as it is; other arguments have names. `Capital(France)`,
`Weather(city: "Paris", date: "2023-01-01")`. The names and types are those of a JSON Schema.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.servers.call_texts import read_arguments, write_arguments


@dataclass(frozen=True)
class NamedArguments:
    """The arguments that a call may have."""

    schema: Mapping[str, Any]
    """JSON Schema of an object, without the fixed arguments."""
    input_argument: str | None
    """The argument that is the input as it is; None if calls name their arguments."""

    @classmethod
    def of(cls, whole: Mapping[str, Any], fixed: Collection[str] = ()) -> "NamedArguments":
        """The arguments of a JSON Schema; fixed ones are not the model's to write."""
        properties = {name: part for name, part in whole.get("properties", {}).items() if name not in fixed}
        required = [name for name in whole.get("required", ()) if name not in fixed]
        is_alone = len(required) == 1 and properties.get(required[0], {}).get("type") == "string"
        if is_alone:
            properties = {required[0]: properties[required[0]]}
        schema = {**whole, "type": "object", "properties": properties, "required": required}
        return cls(schema, required[0] if is_alone else None)

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema as function calling has it."""
        return {name: value for name, value in self.schema.items() if name not in {"$schema", "title"}}

    def read(
        self, call_input: str, check: Callable[[Mapping[str, Any], Mapping[str, Any]], None]
    ) -> dict[str, Any]:
        """What a call says, after `check` of the arguments by the schema.

        Raises:
            RejectedInputError: it cannot be read, or `check` raises it.
        """
        if self.input_argument is not None:
            arguments: dict[str, Any] = {self.input_argument: call_input}
        else:
            arguments = read_arguments(call_input)
        check(arguments, self.schema)
        return arguments

    def input_with(self, argument: str, value: str) -> str:
        """The input of a call with a value of this argument alone."""
        return value if argument == self.input_argument else write_arguments({argument: value}, self.schema)

    def effective_input(
        self, call_input: str, check: Callable[[Mapping[str, Any], Mapping[str, Any]], None]
    ) -> str:
        """The input; if arguments are named, in one spelling.

        What cannot be read stays, and gets its reason when run.
        """
        if self.input_argument is not None:
            return call_input
        try:
            return write_arguments(self.read(call_input, check), self.schema)
        except RejectedInputError:
            return " ".join(call_input.split())
