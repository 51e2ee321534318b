"""A record of a corpus, made of its fields, or the reason why it is refused.

A text keeps its characters, control characters included; only U+0000, which Postgres cannot store, becomes
its visible picture (U+2400). In "url", "title" and "id" every control character but tab and line ends becomes
its picture.

The rules hold for every format: `corpora/records.py` reads JSON Lines, `corpora/parquet.py` Parquet.

A date is read as the day that it says, without a change of time zone. Its forms are ISO 8601 (`2023-01-30`,
with a time, `2021-W37-3`), the same with slashes (`2023/01/30`), RFC 2822 (`Mon, 30 Jan 2023 10:00:00 GMT`),
`20230130`, `30.01.2023`, `January 30, 2023`, `30 January 2023`, and
seconds, milli- or microseconds since 1970 (ten, thirteen or sixteen digits, in UTC); each also as MongoDB
exports it (`{"$date": ...}`).

Days that programs write where they know none (1970-01-01) are no dates, and neither are days before the web
or after today.
"""

import datetime
import email.utils
import functools
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from toolformer_ops.records import Document, document_id_of
from toolformer_ops.storage.corpora.addresses import (
    FieldNames,
    field_in,
    fields_there,
    lacking,
    likely_text,
)
from toolformer_ops.storage.corpora.files import DETAIL_CHARACTERS

NOT_UNDERSTOOD = "date_not_understood"
STANDS_FOR_NONE = "date_stands_for_none"
OUT_OF_RANGE = "date_out_of_range"
FIRST_DAY = datetime.date(1990, 1, 1)
SENTINELS = frozenset(
    datetime.date(year, month, day)
    for year, month, day in ((1, 1, 1), (1900, 1, 1), (1970, 1, 1), (1969, 12, 31), (9999, 12, 31))
)
"""What programs write for no date: the least and the largest day of a type, and the beginning of a count."""
_ISO_DAY = re.compile(
    r"(?P<year>[0-9]{4})(?P<sign>[-/])(?P<month>[0-9]{2})(?P=sign)(?P<day>[0-9]{2})(?![0-9])"
)
_ISO_WEEK = re.compile(r"[0-9]{4}-W[0-9]{2}-[1-7]")
_EIGHT_DIGITS = re.compile(r"(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})")
_WITH_POINTS = re.compile(r"(?P<day>[0-9]{1,2})\.(?P<month>[0-9]{1,2})\.(?P<year>[0-9]{4})")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?"
    r"|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?))\.?"
)
_MONTH_FIRST = re.compile(rf"{_MONTH} (?P<day>[0-9]{{1,2}}),? (?P<year>[0-9]{{4}})")
_DAY_FIRST = re.compile(rf"(?P<day>[0-9]{{1,2}}) {_MONTH},? (?P<year>[0-9]{{4}})")
_ZONE = re.compile(r"\s*(?:UTC|GMT|Z)$")
_ZONE_NAME = re.compile(r"\[[A-Za-z0-9_+/-]{1,40}\]$")
_RFC_2822 = re.compile(
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), )?[0-9]{1,2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}"
)
_SECONDS, _MILLISECONDS = re.compile(r"[0-9]{9,10}"), re.compile(r"[0-9]{12,13}")
_MICROSECONDS = re.compile(r"[0-9]{15,16}")


def day_of(value: object, today: datetime.date | None = None) -> tuple[datetime.date | None, str | None]:
    """Return the day that `value` says and None, or None and the reason; None and None for no value.

    `today` is the day of reading, that of this process if it is None.
    """
    if value is None or value == "":
        return None, None
    day = _read(value)
    if day is None:
        return None, NOT_UNDERSTOOD
    if day in SENTINELS:
        return None, STANDS_FOR_NONE
    # A day more, since it is tomorrow somewhere.
    if not FIRST_DAY <= day <= (today or _today()) + datetime.timedelta(days=1):
        return None, OUT_OF_RANGE
    return day, None


@functools.cache
def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def _read(value: object) -> datetime.date | None:
    """The day as it is written, or None if no day is."""
    if isinstance(value, Mapping) and len(value) == 1:
        return _read(value.get("$date", value.get("$numberLong")))
    if isinstance(value, datetime.date):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = value.strip() if isinstance(value, str) else str(int(value)) if value == value // 1 else ""
    try:
        return _day_in(text)
    except (ValueError, OverflowError, OSError, TypeError):
        return None  # such as 2023-02-30


def _day_in(text: str) -> datetime.date | None:
    if iso := _ISO_DAY.match(text):
        day = datetime.date(int(iso["year"]), int(iso["month"]), int(iso["day"]))
        if rest := _ZONE_NAME.sub("", text[iso.end() :]):  # a time, which must be one
            datetime.datetime.fromisoformat(f"{day.isoformat()}{_ZONE.sub('', rest)}")
        return day
    if numbers := _EIGHT_DIGITS.fullmatch(text) or _WITH_POINTS.fullmatch(text):
        return datetime.date(int(numbers["year"]), int(numbers["month"]), int(numbers["day"]))
    if named := _MONTH_FIRST.fullmatch(text) or _DAY_FIRST.fullmatch(text):
        return datetime.date(
            int(named["year"]), _MONTHS.index(named["month"][:3].lower()) + 1, int(named["day"])
        )
    if _ISO_WEEK.fullmatch(text):
        return datetime.date.fromisoformat(text)
    if _RFC_2822.match(text):
        return email.utils.parsedate_to_datetime(text).date()
    seconds = 0.0
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    elif _MILLISECONDS.fullmatch(text):
        seconds = int(text) / 1000
    elif _MICROSECONDS.fullmatch(text):
        seconds = int(text) / 10**6
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date() if seconds else None


ID_CHARACTERS = 300
"""Longest "id" of a record that is taken."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PICTURES = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {"\x7f": "\u2421"}


class Record(NamedTuple):
    """A usable record."""

    text: str
    """As the record has it, but for U+0000; never blank."""
    url: str | None = None
    document_date: datetime.date | None = None
    title: str | None = None
    record_id: str | None = None
    """The record's own "id": of two records with the same id the later one counts. It does not name the
    document; the text does."""
    escaped_characters: int = 0
    """How many U+0000 of the text were replaced."""
    ignored: tuple[str, ...] = ()
    """Why optional fields were left out, such as date_not_understood."""

    has_control_characters: bool = False
    """Whether the text holds control characters but tab and line ends."""

    @property
    def document_id(self) -> uuid.UUID:
        """The id of the text."""
        return document_id_of(self.text)

    @property
    def former_document_id(self) -> uuid.UUID | None:
        """The id that earlier versions, which replaced control characters, gave the text; None if it is today's."""
        if not self.has_control_characters:
            return None
        return document_id_of(escape_control_characters(self.text)[0])

    def document(self) -> Document:
        """The document, without a database."""
        return Document(self.document_id, self.text, self.url, self.document_date)


@dataclass(frozen=True)
class Rejection:
    """Why a record is refused, or the rest of a file."""

    reason: str
    """corrupt_json, not_an_object, no_text, text_not_a_string, empty_text, invalid_utf8, lone_surrogate,
    json_array, pretty_printed_json, delimited_text; or that of a `Line` or of a file that is not read."""
    detail: str
    """What was found, in words of ours and numbers alone."""
    cut: bool = False
    """Whether the file is read no further, or breaks off here: packed data or Parquet that is not whole or
    holds too much, or a last line that is half a record."""
    likely_text: str | None = None
    """For a record without its text: a field that exists and may hold it."""


def record_of(
    value: Mapping[str, Any], names: FieldNames, shared: Collection[str] = (), *, is_plain: bool = False
) -> Record | Rejection:
    """The record with these fields.

    `is_plain`: no string of it holds a control character but tab and line ends, or a lone surrogate.
    """
    # 1. The text.
    text = value.get(names.text) if names.are_flat else field_in(value, names.text)
    if not isinstance(text, str):
        if text is None and names.text not in value:
            return no_text(names, list(value), shared)
        return rejection("text_not_a_string", f"found {type(text).__name__}")
    if not text or text.isspace():
        return rejection("empty_text", f"found {len(text)} characters of white space")
    # 2. The optional fields; an empty one does not count.
    ignored: list[str] = []
    if names.are_flat:
        optional = {target: value.get(name) for target, name in names.optional}
    else:
        optional = {target: field_in(value, name) for target, name in names.optional}
    if names.mapped:
        ignored += [f"no_{target}_field" for target in lacking(value, names)]
    record_id = optional["id"]
    if isinstance(record_id, int) and not isinstance(record_id, bool):
        record_id = str(record_id)
    url = _string_or_none(optional["url"], "url_not_a_string", ignored)
    title = _string_or_none(optional["title"], "title_not_a_string", ignored)
    record_id = _string_or_none(record_id, "id_not_a_string_or_whole_number", ignored)
    if record_id is not None and len(record_id) > ID_CHARACTERS:
        ignored.append("id_too_long")
        record_id = None
    # 3. What Postgres cannot store.
    escaped_characters = 0
    has_control_characters = False
    if not is_plain:
        for name, field in (("text", text), ("url", url), ("title", title), ("id", record_id)):
            try:
                (field or "").encode("utf-8")
            except UnicodeEncodeError as error:
                code_point = f"U+{ord(error.object[error.start]):04X}"
                return rejection(
                    "lone_surrogate", f"{name}, character {error.start}: {code_point}, half of a pair"
                )
        has_control_characters = _CONTROL.search(text) is not None
        escaped_characters = text.count("\x00")
        text = text.replace("\x00", _PICTURES["\x00"])
        url, title, record_id = (
            field and escape_control_characters(field)[0] for field in (url, title, record_id)
        )
    return Record(
        text=text,
        url=url or None,
        document_date=_date(optional, ignored),
        title=title or None,
        record_id=record_id or None,
        escaped_characters=escaped_characters,
        ignored=tuple(ignored),
        has_control_characters=has_control_characters,
    )


def no_text(names: FieldNames, there: Sequence[str], schema_names: Collection[str]) -> Rejection:
    """The refusal of a record, or file, without the field that holds the text; it names the other fields."""
    present = fields_there(there, schema_names)
    likely = likely_text(there)
    refusal = rejection(
        "no_text",
        f"expected the field {names.text}, or another one by --field text={likely or 'NAME'}, found "
        f"{present}",
    )
    return replace(refusal, likely_text=likely)


def _string_or_none(value: object, reason: str, ignored: list[str]) -> str | None:
    """A string or nothing as it is; of anything else the reason is added to `ignored`."""
    if value is None or isinstance(value, str):
        return value
    ignored.append(reason)
    return None


def escape_control_characters(text: str) -> tuple[str, int]:
    """The text with control characters as their visible pictures, and their number.

    Tab, line feed and carriage return stay.
    """
    return _CONTROL.subn(lambda match: _PICTURES[match.group()], text)


def _date(fields: Mapping[str, object], ignored: list[str]) -> datetime.date | None:
    """The day on which the record was written, as it says; why a day cannot be used is added to `ignored`."""
    written = fields.get("date")
    if written is None:
        return None
    day, reason = day_of(written)
    if day is not None and "crawled" in fields:
        crawled, _ = day_of(fields["crawled"])
        if crawled is not None and day > crawled:
            day, reason = None, "date_after_crawl"
    if reason is not None:
        ignored.append(reason)
    return day


def rejection(reason: str, detail: str, *, cut: bool = False) -> Rejection:
    """A refusal whose detail is short, and shows control characters as their pictures."""
    return Rejection(reason, escape_control_characters(detail)[0][:DETAIL_CHARACTERS], cut)
