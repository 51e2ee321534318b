"""A tool that a TOML file describes: the server that answers, the tool there, prompt, filter, numbers, limits (docs/mcp_tools.md).

The file holds what the server said of its tool when the file was written (`[recorded]`), so that nothing is started when a DAG
file is parsed or a run is registered. The server is asked again when the tool is opened (`tool_server.py`), and the tool fails
where it says anything else: its answers would be those of another version.

Calls of a tool that needs one text take the input as it is, `Capital(France)`; others name their arguments,
`Weather(city: "Paris", date: "2023-01-01")` (`call_arguments.py`).
"""

import functools
import hashlib
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from toolformer_ops.call_syntax import TOOL_NAME
from toolformer_ops.config import ENV_PREFIX, Settings, load_settings
from toolformer_ops.errors import RejectedInputError, ToolError, UsageError
from toolformer_ops.local_paths import local_path, read_beside
from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision, Tool, ToolRunner, ToolSpec, load_prompt
from toolformer_ops.tools.servers.call_arguments import check_arguments, read_arguments, write_arguments

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

CODE_VERSION = 1
"""Raised when the code would send other arguments, or make another text of the same answer."""
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
            raise ValueError("expected a `url` beside `openapi`, found none. Name the address before its paths")
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
            raise ValueError(f"expected a regular expression of Python, found {pattern!r} ({error})") from error
        return pattern


class NumbersPart(_Part):
    """`[numbers]`: those of the method; a run may choose others."""

    sampling_threshold: float = Field(default=0.05, ge=0, le=1, strict=False)
    max_positions: int = Field(default=5, ge=1, le=1000)
    samples_per_position: int = Field(default=5, ge=1, le=1000)
    keep_threshold: float = Field(default=1.0, ge=0, strict=False)


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
    """What a structured answer is written as: a text with `{field}`, `{field.of.it}` and `{field[11:16]}`, which are characters of
    it; empty: `field: value, field: value`."""
    revision: str = "1"
    """Raised where the same input gets another answer and the server's version does not say so."""
    allow_writes: bool = False
    """Whether a tool that the server marks as not read-only may be called."""
    executes_apart: bool = False
    """Whether calls are executed in a task of their own, in the pool of the CPU (`ToolSpec.executes_apart`)."""
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
    """The tool files of a folder, by name; none where there is no such folder."""
    return sorted(folder.glob("*.toml")) if folder.is_dir() else []


def read_tool_file(path: Path) -> ToolFile:
    """Read and check a file.

    Raises:
        ToolError: it cannot be read, or a key is unknown, missing or out of its bounds; the message names file, key and remedy.
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
    said = "" if recorded.read_only is None else f"read_only = {str(recorded.read_only).lower()}\n"
    names = f"server = {toml_text(recorded.server)}\nversion = {toml_text(recorded.version)}\n"
    return f"{RECORDED}\n{names}{said}input_schema = '{schema}'\n"


def with_recorded(text: str, recorded: RecordedPart) -> str:
    """The text of a tool file with another table `[recorded]`, which is its last."""
    before = re.split(rf"^{re.escape(RECORDED)}", text, maxsplit=1, flags=re.MULTILINE)[0]
    return f"{before.rstrip()}\n\n{recorded_table(recorded)}"


def toml_text(text: str) -> str:
    """A basic string of TOML, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class FileTool(Tool):
    """The tool of a file. Opening it starts or reaches its server."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ToolError: the file cannot be used.
        """
        self.path = path
        self.file = file = read_tool_file(path)
        if file.recorded is None:
            raise ToolError(
                f"tool file {path}: expected a table [recorded] with what the server says of {file.tool}, found none. "
                f"Write it: toolformer-ops refresh-tool {path}"
            )
        self._recorded = file.recorded
        whole: dict[str, Any] = json.loads(file.recorded.input_schema)
        if unknown := set(file.fixed) - set(whole.get("properties", {})):
            raise ToolError(
                f"tool file {path}: fixed: the tool has no argument {', '.join(sorted(unknown))}. Remove it."
            )
        self._whole_schema = whole
        # Fixed arguments are not the model's to write.
        open_properties = {name: part for name, part in whole.get("properties", {}).items() if name not in file.fixed}
        required = [name for name in whole.get("required", ()) if name not in file.fixed]
        alone = len(required) == 1 and open_properties.get(required[0], {}).get("type") == "string"
        self.input_argument = required[0] if alone else None
        """The argument that is the input as it is; None where calls name their arguments."""
        if alone:
            open_properties = {required[0]: open_properties[required[0]]}
        self._schema = {**whole, "type": "object", "properties": open_properties, "required": required}
        self.spec = ToolSpec(
            name=file.name,
            purpose=file.purpose,
            prompt_file=file.prompt,
            source=f"tool file {path}",
            filter_version=_short_hash(file.filter.pattern) if file.filter.pattern else "1",
            code_version=file.revision,
            takes_input=bool(open_properties),
            executes_apart=file.executes_apart,
            price=file.cost.price if file.cost else None,
            price_unit=file.cost.unit if file.cost else "",
            **file.numbers.model_dump(),
        )

    @functools.cached_property
    def prompt(self) -> str:
        """The text of the prompt file beside the tool file.

        Raises:
            PromptError: it is missing, does not hold `{text}` exactly once, or shows no call of this tool.
            ToolError: this deployment lets nobody read there.
        """
        folder = self.path.parent
        try:
            path = local_path(load_settings(), str(folder / self.file.prompt), "prompt", within=folder)
        except UsageError as error:
            raise ToolError(f"tool file {self.path}: {error}") from error
        return load_prompt(path, tool=self.spec.name)

    def filter(self, document: Document) -> list[FilterDecision]:
        """Texts that hold the file's pattern."""
        if not self.file.filter.pattern:
            return super().filter(document)
        kept = re.search(self.file.filter.pattern, document.text) is not None
        return [FilterDecision(kept, "holds_pattern" if kept else "no_pattern", end_char=len(document.text))]

    @property
    def parameters(self) -> dict[str, Any]:
        """The server's input schema, without fixed arguments and without those that a call cannot name."""
        return {name: value for name, value in self._schema.items() if name not in {"$schema", "title"}}

    def arguments(self, call_input: str) -> dict[str, Any]:
        """What a call says, without the fixed arguments, checked against the schema."""
        if self.input_argument is not None:
            found: dict[str, Any] = {self.input_argument: call_input}
        else:
            found = read_arguments(call_input)
        check_arguments(found, self._schema)
        return found

    def sent_arguments(self, call_input: str) -> dict[str, Any]:
        """What is sent for a call: its own and the fixed arguments.

        Raises:
            RejectedInputError: the call's arguments are not as the schema says.
        """
        arguments = self.arguments(call_input) | self.file.fixed
        check_arguments(arguments, self._whole_schema)
        return arguments

    def effective_input(self, call_input: str, document: Document) -> str | None:
        """The input; where arguments are named, in one spelling. What cannot be sent stays, and gets its reason when run."""
        if self.input_argument is not None:
            return call_input
        try:
            return write_arguments(self.arguments(call_input), self._schema)
        except RejectedInputError:
            return " ".join(call_input.split())

    def version(self, settings: Settings, model_identity: str) -> str:
        """Server, its version, the tool's schema, and what of the file decides answers.

        The prompt is part of the recipe by itself (`runs/recipes.py`): another prompt samples anew, and asks nothing twice.
        """
        file, recorded = self.file, self._recorded
        server = file.server.model_dump(include={"command", "folder", "url", "headers", "environment"})
        deciding = [CODE_VERSION, file.tool, server, file.fixed, file.result, file.limits.result_tokens]
        return (
            f"{file.name} revision={file.revision} server={recorded.server}@{recorded.version} "
            f"schema={schema_hash(recorded.input_schema)} file={_short_hash(json.dumps(deciding, sort_keys=True))}"
        )

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> ToolRunner:
        """Start or reach the server, and compare what it says with what is recorded.

        Raises:
            ToolError: it cannot be started, has no such tool, says other things than are recorded, or writes without leave.
            ToolServerError: it does not answer now.
        """
        from toolformer_ops.tools.servers.tool_server import ServerRunner

        return ServerRunner(self)


def schema_hash(schema: str) -> str:
    """Names a JSON Schema, however it is spelled."""
    return _short_hash(json.dumps(json.loads(schema), sort_keys=True, separators=(",", ":")))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
