"""The TOML file of a tool of a server: who answers, the tool there, and limits (docs/own_tools.md).

The file holds what the server said of its tool when the file was written (`[recorded]`). `served_tool.py`
makes a tool of it.
"""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from toolformer_ops.tools.files.patterns import check_pattern
from toolformer_ops.tools.files.secret_values import SecretNames
from toolformer_ops.tools.files.tool_file import (
    ArgumentsSchema,
    FilePart,
    RecordedTable,
    ToolFile,
    schema_hash,
)
from toolformer_ops.tools.servers.call_texts import pattern_of

SECRET = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")
"""The place of a secret in a header."""


class ServerPart(FilePart):
    """`[server]`: who answers. One of `command`, `url`, and `openapi` with `url`."""

    command: tuple[str, ...] = Field(default=(), strict=False)
    """Starts an MCP server that talks over stdin and stdout: program and arguments."""
    folder: str = ""
    """The folder in which it starts, relative to the file's; empty: the file's."""
    url: str = ""
    """The address of an MCP server over streamable HTTP; with `openapi` the address before its paths."""
    openapi: str = ""
    """An OpenAPI 3 document as JSON (`.json`) or YAML, relative to the file's folder. GET and HEAD only
    read."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every request: `{"Authorization" = "Bearer {API_KEY}"}` with the secret `API_KEY`. A redirect
    to another scheme, host or port is not followed."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Further environment variables of the server's process."""
    secrets: SecretNames = ()
    """Environment variables of the stage that a started server receives, or that headers hold."""
    start_seconds: float = Field(default=30.0, gt=0, le=600, strict=False)
    """Longest start, until it has said which tools it has."""

    @model_validator(mode="after")
    def _one_of(self) -> "ServerPart":
        if bool(self.command) == bool(self.url):
            raise ValueError("expected a `command` or a `url`, found both or neither. Name one of them")
        if self.openapi and not self.url:
            raise ValueError(
                "expected a `url` beside `openapi`, found none. Name the address before its paths"
            )
        if self.url and not re.match(r"https?://[^/\s]+", self.url):
            raise ValueError(f"expected a `url` with http:// or https://, found {self.url!r}")
        if self.command and self.headers:
            raise ValueError("`headers` are for a `url`. Hand a secret to a started server by `secrets`")
        for header, value in self.headers.items():
            if unknown := set(SECRET.findall(value)) - set(self.secrets):
                raise ValueError(
                    f"`headers`: {header} holds {', '.join(sorted(unknown))}, which `secrets` does not name"
                )
        return self


class ProposalsPart(FilePart):
    """`[proposals]`: the calls that the tool proposes by itself, with the terms that a text names."""

    terms: str = ""
    """A file with a possible value of an argument in each line, relative to the tool file; empty: the tool
    proposes nothing."""
    argument: str = ""
    """The argument; empty: the one that a call needs."""
    listed_by: str = ""
    """A tool of the same server that lists the terms, called without arguments. `refresh-tool` asks it and
    writes `terms`."""
    field: str = ""
    """The field of its answer that holds each term; empty: the terms are the texts in its lists."""
    common: tuple[str, ...] = Field(default=(), strict=False)
    """Terms that are left out, since texts say these words with another meaning."""

    @model_validator(mode="after")
    def _has_terms(self) -> "ProposalsPart":
        if self.model_fields_set and not self.terms:
            raise ValueError("expected `terms`, the file with a term in each line, found none. Name it")
        if self.listed_by and Path(self.terms).name != self.terms:
            raise ValueError(
                f"expected in `terms` a file beside the tool file, which `listed_by` writes, found {self.terms!r}"
            )
        return self


class LimitsPart(FilePart):
    """`[limits]`: of one process; a run has as many as its tasks run at once."""

    seconds: float = Field(default=30.0, gt=0, le=600, strict=False)
    """Longest wait for one answer."""
    concurrency: int = Field(default=4, ge=1, le=256)
    """Calls under way at once."""
    calls_per_second: float = Field(default=0.0, ge=0, strict=False)
    """Most calls that are started in a second; 0: no limit."""
    tries: int = Field(default=3, ge=1, le=10)
    """Most tries of a call that gets no answer; the pauses in between double."""
    failures: int = Field(default=5, ge=1, le=1000)
    """Inputs in a row without an answer that end the stage's try."""
    result_tokens: int = Field(default=64, ge=1, le=1000)
    """Longest result, in words and punctuation marks; it is cut at the end of a sentence if there is one."""


class RecordedPart(RecordedTable):
    """`[recorded]`: what the server said."""

    server: str
    """Its name; of an OpenAPI document the title."""
    version: str
    read_only: bool | None = None
    """Whether it marks the tool as reading only; None says that the server does not say."""
    input_schema: ArgumentsSchema
    """The tool's input schema, as JSON."""

    @property
    def words(self) -> str:
        """The server, its version and the tool's schema."""
        return f"{self.server} {self.version}, schema {self.schema_hash}"

    @property
    def schema_hash(self) -> str:
        """Names the input schema, however it is spelled."""
        return schema_hash(self.input_schema)


class ServerToolFile(ToolFile):
    """The whole file."""

    tool: str
    """What the server calls it; of an OpenAPI document the operationId."""
    result: str = ""
    """What is written of an answer. For a JSON object a text with `{field}`, `{field.of.it}`, `{list.0}`,
    `{field[11:16]}` (characters, counted from 0). For other text a regular expression between two strokes,
    whose first group is taken: `'/stock.: (\\d+)/'`. It reads the first 100,000 characters, for about two
    seconds. Empty: `field: value, field: value`."""
    allow_writes: bool = False
    """Call a tool that its server marks as not read-only. What a model writes then decides what it writes."""
    fixed: dict[str, Any] = Field(default_factory=dict)
    """Arguments of every call that the model does not write: text, numbers, booleans."""
    server: ServerPart
    proposals: ProposalsPart = ProposalsPart()
    limits: LimitsPart = LimitsPart()
    recorded: RecordedPart | None = None

    @field_validator("result")
    @classmethod
    def _compiles(cls, result: str) -> str:
        pattern = pattern_of(result)
        if pattern is not None:
            check_pattern(pattern, "between the two strokes")
        return result
