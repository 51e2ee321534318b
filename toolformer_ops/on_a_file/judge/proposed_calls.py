"""Read proposed calls in texts: from JSON Lines or Parquet, with a place or marked up in their text.

A record has one of these forms; `--field` says if it names a field otherwise.

    {"text": "It is 2 of all.", "at": 5, "tool": "Calculator", "input": "1 + 1", "result": "2"}
    {"text": "It is 2 of all.", "at": 5, "call": "Calculator(1 + 1)"}
    {"text": "It is [Calculator(1 + 1) -> 2] 2 of all."}

A folder may be what Data Designer or distilabel wrote: beside Parquet, JSON files describe the data set.

`result`, `id`, `url` and `date` may be missing. A text may hold several calls, each of which is one. Markup
is what names a known tool, or has an arrow; other brackets are text.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from toolformer_ops.call_syntax import Call, holds_call_markup, marked_calls, parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import CallSyntaxError, RejectedInputError, ToolError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.addresses import field_in, normal_uri
from toolformer_ops.storage.corpora.files import PARQUETS, CorpusFile, find_files
from toolformer_ops.storage.corpora.record_rules import day_of
from toolformer_ops.storage.corpora.records import read_values
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits
from toolformer_ops.tools.registry import get_tool, tool_names

NO_TEXT = "no_text"
ARROW = ".arrow"


@dataclass(frozen=True)
class ProposalFields:
    """The name of each field in the records."""

    text: str = "text"
    at: str = "at"
    """The place: the offset in the text, in characters, before which the call is."""
    call: str = "call"
    """The whole call, `Calculator(1 + 1)`, instead of `tool` and `input`."""
    tool: str = "tool"
    input: str = "input"
    result: str = "result"
    id: str = "id"
    url: str = "url"
    date: str = "date"

    @classmethod
    def of(cls, items: Iterable[str]) -> "ProposalFields":
        """The names that items such as `text=generation` give; raises `UsageError` if one is none."""
        names: dict[str, str] = {}
        for item in items:
            target, _, name = (part.strip() for part in item.partition("="))
            if target not in {field.name for field in fields(cls)} or not name:
                allowed = ", ".join(field.name for field in fields(cls))
                raise UsageError(
                    f"--field: expected FIELD=NAME with one of {allowed}, such as text=generation, found "
                    f"{item[:200]!r}."
                )
            names[target] = name
        return cls(**names)


@dataclass(frozen=True)
class ProposedCall:
    """A call that a person or model proposed in a text."""

    record_id: str
    """The record's `id`, or its file and line."""
    document: Document
    """With the text without its calls."""
    at: int
    """Offset in that text."""
    call: Call
    """The call, whose tool is known under its own name."""
    result: str | None
    """The result; None if the tool is to be asked."""

    @property
    def is_known(self) -> bool:
        """Whether the tool is one of ours."""
        return self.call.tool in tool_names()


@dataclass(frozen=True)
class RefusedProposal:
    """A record, or a call of one, that cannot be judged."""

    record_id: str
    reason: str
    """As it is counted (`runs/reasons.py`)."""
    likely_text: str | None = None
    """The field that holds a call, if the record has no text."""


def read_proposals(
    settings: Settings, path: Path | str, names: ProposalFields
) -> Iterator[ProposedCall | RefusedProposal]:
    """The calls of a file or folder, in order, with a refusal for each that cannot be judged.

    Raises as `find_files`, and a `UsageError` if the data set is in a format that is not read.
    """
    limits = UnpackingLimits()
    for file in _files_of_calls(settings, str(path)):
        for number, value in read_values(file, limits, asdict(names).values()):
            place = f"{Path(file.uri).name}:{number}"
            if isinstance(value, str):
                yield RefusedProposal(place, value)
            else:
                yield from proposals_of(value, place, names)


def _files_of_calls(settings: Settings, path: str) -> list[CorpusFile]:
    """The files of a path: of a folder with Parquet these, without the JSON that describes them.

    Raises as `find_files`, and a `UsageError` if they are Arrow's.
    """
    local = Path(path)
    if local.suffix == ARROW or any(local.rglob(f"*{ARROW}")):
        raise UsageError(
            f"{path}: expected JSON Lines or Parquet, found Arrow files, as `save_to_disk` writes them. Write "
            "the data set with `to_parquet` or `to_json`, of distilabel "
            'distiset["default"]["train"].to_parquet("calls.parquet").'
        )
    files = find_files(settings, normal_uri(path))
    has_parquet = any(file.uri.lower().endswith(PARQUETS) for file in files)
    return [file for file in files if not (has_parquet and file.uri.lower().endswith(".json"))]


def proposals_of(
    record: Mapping[str, Any], place: str, names: ProposalFields
) -> Iterator[ProposedCall | RefusedProposal]:
    """The calls of a record, with a refusal for each that cannot be judged."""
    own_id = field_in(record, names.id)
    has_id = isinstance(own_id, str | int) and not isinstance(own_id, bool) and not _holds_half(own_id)
    record_id = str(own_id) if has_id else place
    try:
        if any(_holds_half(field_in(record, name)) for name in asdict(names).values()):
            raise RejectedInputError("lone_surrogate")  # noqa: TRY301
        yield from _proposals_of(record, record_id, names)
    except RejectedInputError as error:
        likely_text = None
        if error.reason == NO_TEXT:
            texts = {name: value for name, value in record.items() if isinstance(value, str)}
            likely_text = next(
                (name for name, value in texts.items() if marked_calls(value, tool_names())[1]), None
            )
        yield RefusedProposal(record_id, error.reason, likely_text)


def _holds_half(value: Any) -> bool:
    """Whether a text holds half of a surrogate pair, which no file in UTF-8 and no model takes."""
    return (
        isinstance(value, str) and not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value)
    )


def _proposals_of(
    record: Mapping[str, Any], record_id: str, names: ProposalFields
) -> Iterator[ProposedCall | RefusedProposal]:
    text = field_in(record, names.text)
    if text is None:
        raise RejectedInputError(NO_TEXT)
    if not isinstance(text, str):
        raise RejectedInputError("text_not_a_string")
    if not text.strip():
        raise RejectedInputError("empty_text")
    url, written_date = field_in(record, names.url), field_in(record, names.date)
    day: datetime.date | None = None if written_date is None else day_of(written_date)[0]
    url = url if isinstance(url, str) else None
    at = field_in(record, names.at)
    # 1. A call apart from its text.
    if at is not None:
        call = _call_of(record, names)
        if holds_call_markup(text, tool_names()):
            raise RejectedInputError("holds_call_markup")
        if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at <= len(text):
            raise RejectedInputError("place_not_in_text")
        result = field_in(record, names.result)
        if result is not None and not isinstance(result, str | int | float):
            raise RejectedInputError("result_not_text")
        own_result = None if result is None or not str(result).strip() else str(result)
        yield _proposed(record_id, Document.of(text, url, day), at, call, own_result)
        return
    # 2. Calls that the text holds.
    plain, calls = marked_calls(text, tool_names())
    if not calls:
        raise RejectedInputError("no_proposed_call")
    if holds_call_markup(plain, tool_names()):
        raise RejectedInputError("holds_call_markup")
    document = Document.of(plain, url, day)
    for woven in calls:
        try:
            yield _proposed(
                record_id, document, woven.position_char, woven.call, woven.result.strip() or None
            )
        except RejectedInputError as error:
            yield RefusedProposal(record_id, error.reason)


def _call_of(record: Mapping[str, Any], names: ProposalFields) -> Call:
    """The call of a record, from its fields."""
    whole, tool, call_input = (field_in(record, name) for name in (names.call, names.tool, names.input))
    if isinstance(whole, str):
        written = whole.strip().removeprefix("[").removesuffix("]")
    elif isinstance(tool, str):
        if isinstance(call_input, bool | dict | list):
            raise RejectedInputError("call_does_not_parse")
        written = f"{tool}({'' if call_input is None else call_input})"
    else:
        raise RejectedInputError("no_proposed_call")
    try:
        return parse_call(written)
    except CallSyntaxError as error:
        raise RejectedInputError("call_does_not_parse") from error


def _proposed(record_id: str, document: Document, at: int, call: Call, result: str | None) -> ProposedCall:
    """The call under its tool's own name; raises `RejectedInputError` if no tool could give its result."""
    try:
        call = Call(get_tool(call.tool).spec.name, call.input)
    except ToolError as error:
        if result is None:
            raise RejectedInputError("tool_not_known") from error
    return ProposedCall(record_id, document, at, call, result)
