"""The TOML file of a tool of a function: which function of which file, limits (docs/own_tools.md).

The file holds the arguments that the function had when the file was written (`[recorded]`).
`function_tool.py` makes a tool of it.
"""

import json

from pydantic import Field

from toolformer_ops.tools.files.secret_values import SecretNames
from toolformer_ops.tools.files.tool_file import (
    ArgumentsSchema,
    FilePart,
    RecordedTable,
    ToolFile,
    schema_hash,
)


class FunctionPart(FilePart):
    """`[function]`: which one."""

    file: str
    """A Python file, relative to the tool file."""
    name: str
    """The function in it."""
    propose: str = ""
    """The function in it that proposes calls for a text."""
    secrets: SecretNames = ()
    """Environment variables of the stage that the function receives."""


class LimitsPart(FilePart):
    """`[limits]`: of one call."""

    seconds: float = Field(default=10.0, gt=0, le=600, strict=False)
    """Longest run."""
    result_tokens: int = Field(default=64, ge=1, le=1000)
    """Longest result, in words and punctuation marks; it is cut at the end of a sentence if there is one."""


class RecordedArguments(RecordedTable):
    """`[recorded]`: the arguments of the function."""

    input_schema: ArgumentsSchema
    """Their JSON Schema, as JSON."""

    @property
    def schema_hash(self) -> str:
        """Names the schema, however it is spelled."""
        return schema_hash(self.input_schema)

    @property
    def words(self) -> str:
        """The names of the arguments, and a hash of their schema."""
        names = ", ".join(json.loads(self.input_schema).get("properties", {})) or "no arguments"
        return f"{names}, schema {self.schema_hash}"


class FunctionToolFile(ToolFile):
    """The whole file."""

    function: FunctionPart
    limits: LimitsPart = LimitsPart()
    recorded: RecordedArguments | None = None
