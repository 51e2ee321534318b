"""Read one line of a corpus: the document it describes, or the reason why it is refused.

A record is a JSON object with "text" and optionally "url", "date" (ISO 8601), "title" and "id"; other fields are ignored.
Control characters but tab and line ends become their visible pictures (U+0000 to U+2400), since Postgres cannot store the first and
no reader sees the others.
"""

import datetime
import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

from toolformer_ops.corpus.files import DETAIL_CHARACTERS
from toolformer_ops.records import Document, document_id_of

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PICTURES = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {"\x7f": "\u2421"}
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])")


@dataclass(frozen=True)
class Record:
    """A usable line."""

    text: str
    """With control characters escaped; never blank."""
    url: str | None = None
    document_date: datetime.date | None = None
    title: str | None = None
    record_id: str | None = None
    """The record's own "id", for people; documents are named by their text."""
    escaped_characters: int = 0
    """How many control characters of the text were replaced."""
    ignored: tuple[str, ...] = ()
    """Why optional fields were left out, such as date_not_understood."""

    @property
    def document_id(self) -> uuid.UUID:
        """The id of the text."""
        return document_id_of(self.text)

    def document(self) -> Document:
        """The document, without a database."""
        return Document(self.document_id, self.text, self.url, self.document_date)


@dataclass(frozen=True)
class Rejection:
    """Why a line is refused."""

    reason: str
    """corrupt_json, not_an_object, no_text, text_not_a_string, empty_text, invalid_utf8 or lone_surrogate."""
    detail: str
    """What was found."""


def read_record(content: bytes) -> Record | Rejection:
    """The record in one line, or why it is refused."""
    try:
        value = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _rejection("invalid_utf8", f"byte {error.start}: {content[error.start : error.start + 20]!r}")
    except (ValueError, RecursionError) as error:  # ValueError: also whole numbers of more than 4,300 digits
        return _rejection("corrupt_json", f"{error}: {content[:80]!r}")
    if problem := _problem(value):
        return problem
    ignored: list[str] = []
    text, escaped_characters = escape_control_characters(value["text"])
    url = _optional_string(value, "url", ignored)
    title = _optional_string(value, "title", ignored)
    for name, field in (("text", text), ("url", url), ("title", title)):
        try:
            (field or "").encode("utf-8")
        except UnicodeEncodeError as error:
            found = f"U+{ord(error.object[error.start]):04X}"
            return _rejection("lone_surrogate", f"{name}, character {error.start}: {found}, half of a pair")
    record_id = value.get("id")
    return Record(
        text=text,
        url=url,
        document_date=_date(value.get("date"), ignored),
        title=title,
        record_id=None if record_id is None else str(record_id),
        escaped_characters=escaped_characters,
        ignored=tuple(ignored),
    )


def escape_control_characters(text: str) -> tuple[str, int]:
    """The text with control characters (not tab, line feed, carriage return) as their visible pictures, and their number."""
    return _CONTROL.subn(lambda match: _PICTURES[match.group()], text)


def _problem(value: Any) -> Rejection | None:
    if not isinstance(value, dict):
        return _rejection("not_an_object", f"expected a JSON object, found {type(value).__name__}")
    if "text" not in value:
        return _rejection("no_text", f"found the fields {', '.join(map(ascii, value)) or 'none'}")
    if not isinstance(value["text"], str):
        return _rejection("text_not_a_string", f"found {type(value['text']).__name__}")
    if not value["text"].strip():
        return _rejection("empty_text", f"found {len(value['text'])} characters of white space")
    return None


def _optional_string(value: dict[str, Any], name: str, ignored: list[str]) -> str | None:
    field = value.get(name)
    if field is None or field == "":
        return None
    if not isinstance(field, str):
        ignored.append(f"{name}_not_a_string")
        return None
    return escape_control_characters(field)[0]


def _date(value: object, ignored: list[str]) -> datetime.date | None:
    """The day of an ISO 8601 date or time, as it is written: no change of time zone."""
    if value is None or value == "":
        return None
    try:
        # Only YYYY-MM-DD: fromisoformat would also take some time stamps in milliseconds for a day of the Middle Ages.
        if isinstance(value, str) and _DAY.match(value):
            return datetime.datetime.fromisoformat(value).date()
    except ValueError:
        pass  # such as 2023-02-30
    ignored.append("date_not_understood")
    return None


def _rejection(reason: str, detail: str) -> Rejection:
    return Rejection(reason, escape_control_characters(detail)[0][:DETAIL_CHARACTERS])
