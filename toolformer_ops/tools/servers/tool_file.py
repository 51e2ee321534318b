"""The TOML file of a tool of a server: who answers, the tool there, prompt, filter, numbers, limits (docs/mcp_tools.md).

The file holds what the server said of its tool when the file was written (`[recorded]`), so that nothing is
started when a DAG file is parsed or a run is registered. `file_tool.py` makes a tool of it.
"""

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from toolformer_ops.call_syntax import TOOL_NAME
from toolformer_ops.config import ENV_PREFIX
from toolformer_ops.errors import ToolError, UsageError
from toolformer_ops.storage.local_paths import read_beside
from toolformer_ops.tools.base import ToolSpec

RECORDED = "[recorded]"
SECRET = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")
"""The place of a secret in a header."""


class _Part(BaseModel):
    """A table of the file; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ServerPart(_Part):
    """`[server]`: who answers. One of `command`, `url`, and `openapi` with `url`."""

    command: tuple[str, ...] = Field(default=(), strict=False)
    """Starts an MCP server that talks over stdin and stdout: program and arguments."""
    folder: str = ""
    """Folder that it is started in; relative to the file's. Empty: the file's."""
    url: str = ""
    """Of an MCP server over streamable HTTP; with `openapi`: the address before its paths."""
    openapi: str = ""
    """An OpenAPI document as JSON (`.json`) or YAML, relative to the file's folder."""
    headers: dict[str, str] = {}
    """Sent with every request; `{NAME}` is the secret of that name."""
    environment: dict[str, str] = {}
    """Further environment variables of the server's process."""
    secrets: tuple[str, ...] = Field(default=(), strict=False)
    """Environment variables of the stage that a started server gets, or that headers hold."""
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
        own = [name for name in self.secrets if name.startswith(ENV_PREFIX) or name.startswith("AIRFLOW")]
        if own:
            raise ValueError(f"`secrets`: {', '.join(own)} is of this deployment itself. Name the tool's own")
        for header, value in self.headers.items():
            if unknown := set(SECRET.findall(value)) - set(self.secrets):
                raise ValueError(
                    f"`headers`: {header} holds {', '.join(sorted(unknown))}, which `secrets` does not name"
                )
        return self


class FilterPart(_Part):
    """`[filter]`: which texts are asked for calls."""

    pattern: str = ""
    """A regular expression that they hold; empty: every text is asked."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"expected a regular expression of Python, found {pattern!r} ({error})"
            ) from error
        return pattern


class NumbersPart(_Part):
    """`[numbers]`: those of the method; a run may choose others."""

    sampling_threshold: float = Field(default=ToolSpec.sampling_threshold, ge=0, le=1, strict=False)
    max_positions: int = Field(default=ToolSpec.max_positions, ge=1, le=1000)
    samples_per_position: int = Field(default=ToolSpec.samples_per_position, ge=1, le=1000)
    keep_threshold: float = Field(default=ToolSpec.keep_threshold, ge=0, strict=False)


class CostPart(_Part):
    """`[cost]`: of one call, for a run that asks for nats for it (`nats_per_price`)."""

    price: float = Field(ge=0, allow_inf_nan=False, strict=False)
    unit: str = Field(min_length=1, max_length=40)
    """What the price is counted in, such as cent."""


class LimitsPart(_Part):
    """`[limits]`: of one process; a run has as many as its tasks run at once."""

    seconds: float = Field(default=30.0, gt=0, le=600, strict=False)
    """Longest wait for one answer."""
    concurrency: int = Field(default=4, ge=1, le=256)
    """Calls under way at once."""
    calls_per_second: float = Field(default=0.0, ge=0, strict=False)
    """Most calls that are started in a second; 0: no limit."""
    tries: int = Field(default=3, ge=1, le=10)
    """Of a call that gets no answer; the pauses in between double."""
    failures: int = Field(default=5, ge=1, le=1000)
    """So many inputs without an answer, one after the other, end the stage, which begins anew later."""
    result_tokens: int = Field(default=64, ge=1, le=1000)
    """Longest result, in words and punctuation marks."""


class RecordedPart(_Part):
    """`[recorded]`: what the server said; written by `new-tool` and `refresh-tool`."""

    server: str
    """Its name; of an OpenAPI document the title."""
    version: str
    read_only: bool | None = None
    """Whether it marks the tool as one that only reads; not there: it does not say."""
    input_schema: str
    """The tool's input schema, as JSON."""

    @field_validator("input_schema")
    @classmethod
    def _is_a_schema(cls, text: str) -> str:
        try:
            schema = json.loads(text)
        except ValueError as error:
            raise ValueError("expected JSON") from error
        if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
            raise ValueError("expected the JSON Schema of an object")  # noqa: TRY004 - pydantic wants a ValueError
        return text

    @property
    def schema_hash(self) -> str:
        """Names the input schema, however it is spelled."""
        return short_hash(json.dumps(json.loads(self.input_schema), sort_keys=True, separators=(",", ":")))


class ToolFile(_Part):
    """The whole file."""

    name: str
    """In a call: `Weather`."""
    purpose: str = Field(min_length=1)
    """One sentence for forms and help."""
    prompt: str
    """Prompt file, relative to the file's folder."""
    tool: str
    """What the server calls it; of an OpenAPI document the operationId."""
    result: str = ""
    """What a structured answer is written as: a text with `{field}`, `{field.of.it}` and `{field[11:16]}`,
    which are characters of it; empty: `field: value, field: value`."""
    revision: str = "1"
    """Raised if the same input gets another answer and the server's version does not say so."""
    allow_writes: bool = False
    """Whether a tool that the server marks as not read-only may be called."""
    executes_apart: bool = False
    """Whether calls are executed in a separate task, in the pool of the CPU (`ToolSpec.executes_apart`)."""
    fixed: dict[str, Any] = {}
    """Arguments that every call has, and that the model does not write."""
    server: ServerPart
    filter: FilterPart = FilterPart()
    numbers: NumbersPart = NumbersPart()
    cost: CostPart | None = None
    limits: LimitsPart = LimitsPart()
    recorded: RecordedPart | None = None

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not TOOL_NAME.fullmatch(name):
            raise ValueError(f"expected letters, digits and underscores with a letter first, found {name!r}")
        return name


def tool_files(folder: Path) -> list[Path]:
    """The tool files of a folder, by name; none if there is no such folder."""
    return sorted(folder.glob("*.toml")) if folder.is_dir() else []


def read_tool_file(path: Path) -> ToolFile:
    """Read and check a file.

    Raises:
        ToolError: it cannot be read, or a key is unknown, missing or out of its bounds; the message names
        file, key and remedy.
    """
    try:
        return ToolFile.model_validate(tomllib.loads(read_beside(path.parent, path.name).decode()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ToolError(f"tool file {path}: expected TOML in UTF-8, found {error}.") from error
    except UsageError as error:
        raise ToolError(f"tool file {path}: {error}") from error
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'the file'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        )
        raise ToolError(f"tool file {path}: {wrong}. docs/mcp_tools.md lists the keys.") from error


def recorded_table(recorded: RecordedPart) -> str:
    """The table `[recorded]` as TOML."""
    # A quotation mark of TOML's text in JSON is the same character by its number.
    schema = recorded.input_schema.replace("'", "\\u0027")
    said = "" if recorded.read_only is None else f"read_only = {toml_value(recorded.read_only)}\n"
    names = f"server = {toml_value(recorded.server)}\nversion = {toml_value(recorded.version)}\n"
    return f"{RECORDED}\n{names}{said}input_schema = '{schema}'\n"


def with_recorded(text: str, recorded: RecordedPart) -> str:
    """The text of a tool file with another table `[recorded]`, which is its last."""
    before = re.split(rf"^{re.escape(RECORDED)}", text, maxsplit=1, flags=re.MULTILINE)[0]
    return f"{before.rstrip()}\n\n{recorded_table(recorded)}"


def toml_value(value: Any) -> str:
    """A text, a number, a truth value, a list, or a table as TOML; the escapes of its texts are those of JSON."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml_value(key)} = {toml_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def short_hash(text: str) -> str:
    """The first 12 hex digits of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
