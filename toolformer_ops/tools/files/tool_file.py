"""The TOML file of a tool: what every kind has, and how a file is read and written.

Every kind has a prompt, a filter, numbers and a cost. A kind adds the table that says who answers, `[server]`
for example, and what was recorded of it when the file was written (`[recorded]`), so that nothing is started
or reached when a DAG file is parsed or a run is registered. `file_tool.py` makes a tool of the common part;
`kinds.py` lists the kinds. docs/own_tools.md explains them.
"""

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from toolformer_ops.call_syntax import TOOL_NAME
from toolformer_ops.errors import ToolError, UsageError, expectation
from toolformer_ops.language_model.endpoint.endpoint_file import proposer_files
from toolformer_ops.storage.corpora.local_paths import read_beside
from toolformer_ops.tools.base import ToolSpec
from toolformer_ops.tools.files.patterns import check_pattern

RECORDED = "[recorded]"

Parsed = TypeVar("Parsed", bound="ToolFile")
Recorded = TypeVar("Recorded", bound="RecordedTable")


class FilePart(BaseModel):
    """A table of a tool file; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FilterPart(FilePart):
    """`[filter]`: which texts are asked for calls."""

    pattern: str = ""
    """A regular expression; texts that match are asked for calls; empty: every text is. A text that takes
    more than two seconds is `pattern_timed_out`; after 100 such texts the tool ends with an error."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        check_pattern(pattern, "of texts")
        return pattern


class NumbersPart(FilePart):
    """`[numbers]` of the method; a run may choose others."""

    sampling_threshold: float = Field(default=ToolSpec.sampling_threshold, ge=0, le=1, strict=False)
    """Positions are sampled above this probability."""
    max_positions: int = Field(default=ToolSpec.max_positions, ge=1, le=1000)
    """Most positions a text."""
    samples_per_position: int = Field(default=ToolSpec.samples_per_position, ge=1, le=1000)
    """Calls sampled at each position."""
    keep_threshold: float = Field(default=ToolSpec.keep_threshold, ge=0, strict=False)
    """Nats from which the keep rule `paper` keeps a call; `new-tool` writes 0.5."""


class RecordedTable(FilePart):
    """`[recorded]`: what was said when the file was written, by `new-tool` or `refresh-tool`.

    It is the file's last table.
    """

    @property
    def words(self) -> str:
        """What it is, in a few words, for people."""
        raise NotImplementedError(f"{type(self).__name__} does not override `words`")

    @property
    def schema_hash(self) -> str:
        """Names what calls can say, however it is spelled: another one is another version of the tool."""
        raise NotImplementedError(f"{type(self).__name__} does not override `schema_hash`")


def _schema_of_an_object(text: str) -> str:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ValueError("expected JSON") from error
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise ValueError("expected the JSON Schema of an object")  # noqa: TRY004 - pydantic wants a ValueError
    return text


ArgumentsSchema = Annotated[str, AfterValidator(_schema_of_an_object)]
"""The JSON Schema of a tool's arguments, as JSON."""


def schema_hash(schema: str) -> str:
    """A short name of an `ArgumentsSchema`, however it is spelled."""
    return short_hash(json.dumps(json.loads(schema), sort_keys=True, separators=(",", ":")))


def recorded_part(path: Path, recorded: Recorded | None, content: str) -> Recorded:
    """The table `[recorded]` of the tool file at `path`; `content` says for the message what it holds.

    Raises:
        ToolError: the file has none.
    """
    if recorded is None:
        raise ToolError(
            f"tool file {path}: expected a table [recorded] with {content}, found none. "
            f"Write it: toolformer-ops refresh-tool {path}"
        )
    return recorded


class ToolFile(FilePart):
    """What the files of all kinds have."""

    name: str
    """The tool's name in a call: letters, digits, underscores."""
    purpose: str = Field(min_length=1)
    """One sentence for forms and for the chat export."""
    prompt: str
    """Prompt file in the same folder: `{text}` once, and examples with calls of the tool."""
    revision: str = "1"
    """Raise it if the same input gets another answer, which nothing else of the version shows."""
    executes_apart: bool = False
    """A separate task in the pool `cpu` executes the calls (`ToolSpec.executes_apart`)."""
    filter: FilterPart = FilterPart()
    numbers: NumbersPart = NumbersPart()

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not TOOL_NAME.fullmatch(name):
            raise ValueError(f"expected letters, digits and underscores with a letter first, found {name!r}")
        return name


def tool_files(folder: Path) -> list[Path]:
    """The tool files of a folder, by name; none if there is no such folder.

    Files of proposers beside them are none.
    """
    return sorted(set(folder.glob("*.toml")) - set(proposer_files(folder))) if folder.is_dir() else []


def read_table(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        ToolError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(read_beside(path.parent, path.name).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ToolError(f"tool file {path}: expected TOML in UTF-8, found {error}.") from error
    except UsageError as error:
        raise ToolError(f"tool file {path}: {error}") from error


def read_tool_file(path: Path, kind: type[Parsed]) -> Parsed:
    """Read and check a file of a kind.

    Raises:
        ToolError: it cannot be read, or a key is unknown, missing or out of its bounds; the message names
        file, key and remedy.
    """
    try:
        return kind.model_validate(read_table(path))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'the file'}: {expectation(item)}" for item in error.errors()
        )
        raise ToolError(f"tool file {path}: {wrong}. docs/keys.md lists the keys.") from error


def with_recorded(text: str, recorded: str) -> str:
    """The text of a tool file with another table `[recorded]`, which is its last.

    `recorded` is what `recorded_table` returns.
    """
    before = re.split(rf"^{re.escape(RECORDED)}", text, maxsplit=1, flags=re.MULTILINE)[0]
    return f"{before.rstrip()}\n\n{recorded}"


def recorded_table(recorded: RecordedTable) -> str:
    """The table `[recorded]` as TOML, without what is not known.

    JSON within is a literal string, to be read by people.
    """
    lines = [RECORDED]
    for key, value in recorded.model_dump(exclude_none=True).items():
        is_json = isinstance(value, str) and value[:1] in {"{", "["}
        # A quotation mark of TOML's text in JSON is the same character by its number.
        shown = "'" + value.replace("'", "\\u0027") + "'" if is_json else toml_value(value)
        lines.append(f"{key} = {shown}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A text, a number, a truth value, a list, or a table as TOML.

    Its texts are escaped as in JSON.
    """
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml_value(key)} = {toml_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def short_hash(text: str) -> str:
    """The first 12 hex digits of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
