"""Read the records of a corpus file: the document that each describes, or the reason why it is refused.

A record is a JSON object, or a row of a Parquet file, with "text" and optionally "url", "date" (as
`storage/record_dates.py` reads it; in Parquet also a date or time), "title" and "id" (text or a whole number);
other fields are ignored. Control
characters but tab and line ends become their visible pictures (U+0000 to U+2400), since Postgres cannot store
the first and no reader sees the others.
"""

import datetime
import hashlib
import io
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from toolformer_ops.errors import ExpandsTooFarError
from toolformer_ops.records import Document, document_id_of
from toolformer_ops.storage.corpus_files import (
    DETAIL_CHARACTERS,
    CorpusFile,
    OpenedFile,
    UnpackingLimits,
    quoted,
)
from toolformer_ops.storage.record_dates import day_of

ID_CHARACTERS = 300
"""Longest "id" of a record that is taken."""
ROWS_PER_BATCH = 1000
"""Rows of a Parquet file that are held at once; of each column, a row group's pages are held beside them."""
_FIELDS = ("text", "url", "date", "title", "id")
_READ_NO_FURTHER = frozenset({"unreadable_file", "expands_too_far"})
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PICTURES = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {"\x7f": "\u2421"}
_EPOCH = datetime.date(1970, 1, 1).toordinal()


class Record(NamedTuple):
    """A usable record."""

    text: str
    """With control characters escaped; never blank."""
    url: str | None = None
    document_date: datetime.date | None = None
    title: str | None = None
    record_id: str | None = None
    """The record's own "id": of two records with one id the later counts. Documents are named by their text."""
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
    """Why a record is refused, or the rest of a file."""

    reason: str
    """corrupt_json, not_an_object, no_text, text_not_a_string, empty_text, invalid_utf8, lone_surrogate; or
    that of a `Line` or of a file that is not read."""
    detail: str
    """What was found, in words of ours and numbers alone."""
    quote: str = ""
    """How the record begins."""
    cut: bool = False
    """Whether the file is read no further, or breaks off here: packed data or Parquet that is not whole or
    holds too much, or a last line that is half a record."""


def read_records(
    opened: OpenedFile,
    max_record_bytes: int,
    is_known: Callable[[int, int], bool] = lambda _line, _hash: False,
) -> Iterator[tuple[int, Record | Rejection, int | None]]:
    """The records of a file with their lines, or rows of Parquet, from 1; 0 for a refusal of the whole file or its rest.

    The third value is the hash of the line (64 bits, signed), None for Parquet and refusals. Lines for which
    `is_known` is true, by number and hash, are left out without parsing them.

    Raises:
        ObjectStoreError: the source fails.
    """
    if opened.refusal:
        yield 0, Rejection(*opened.refusal), None
        return
    if opened.is_parquet:
        for row, record in _parquet_records(opened, max_record_bytes):
            yield row, record, None
        return
    for line in opened.lines(max_record_bytes):
        if line.reason:
            yield (
                line.number,
                _rejection(line.reason, line.detail, line.quote, cut=line.reason in _READ_NO_FURTHER),
                None,
            )
            continue
        line_hash = int.from_bytes(hashlib.sha256(line.content).digest()[:8], "big", signed=True)
        if is_known(line.number, line_hash):
            continue
        found = read_record(line.content)
        if (
            not line.ended
            and isinstance(found, Rejection)
            and found.reason in ("corrupt_json", "invalid_utf8")
        ):
            found = replace(found, cut=True)
        yield line.number, found, line_hash


def read_file(
    file: CorpusFile, max_record_bytes: int, limits: UnpackingLimits
) -> Iterator[tuple[int, Record | Rejection]]:
    """The records of a file that is opened for it, with their lines, as `read_records`; raises as `OpenedFile`."""
    with OpenedFile(file, limits) as opened:
        for line, record, _ in read_records(opened, max_record_bytes):
            yield line, record


def read_record(content: bytes) -> Record | Rejection:
    """The record in one line of JSON, or why it is refused."""
    try:
        value = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        found: Record | Rejection = Rejection("invalid_utf8", f"byte {error.start + 1:,}")
    except json.JSONDecodeError as error:
        found = Rejection("corrupt_json", f"{error.msg}: character {error.pos + 1:,}")
    except RecursionError:
        found = Rejection("corrupt_json", "lists or objects in each other, too deep")
    except ValueError:
        found = Rejection("corrupt_json", "a whole number of more than 4,300 digits")
    else:
        if isinstance(value, dict):
            # JSON writes a control character or half a surrogate pair only behind a backslash, but for
            # U+007F.
            found = _record_of(value, is_plain=b"\\" not in content and b"\x7f" not in content)
        else:
            found = Rejection("not_an_object", f"expected a JSON object, found {type(value).__name__}")
    if isinstance(found, Record):
        return found
    return _rejection(found.reason, f"{found.detail} (a line of {len(content):,} bytes)", quoted(content))


def _record_of(value: Mapping[str, Any], *, is_plain: bool = False) -> Record | Rejection:
    """The record with these fields.

    `is_plain`: no string of it holds a control character that is replaced, or a lone surrogate.
    """
    text = value.get("text")
    # 1. The text.
    if not isinstance(text, str):
        if "text" not in value:
            return _rejection("no_text", f"found {len(value)} fields, and none called text")
        return _rejection("text_not_a_string", f"found {type(text).__name__}")
    if not text or text.isspace():
        return _rejection("empty_text", f"found {len(text)} characters of white space")
    # 2. The optional fields; an empty one does not count.
    ignored: list[str] = []
    record_id = value.get("id")
    if isinstance(record_id, int) and not isinstance(record_id, bool):
        record_id = str(record_id)
    url = _string_or_none(value.get("url"), "url_not_a_string", ignored)
    title = _string_or_none(value.get("title"), "title_not_a_string", ignored)
    record_id = _string_or_none(record_id, "id_not_a_string_or_whole_number", ignored)
    if record_id is not None and len(record_id) > ID_CHARACTERS:
        ignored.append("id_too_long")
        record_id = None
    # 3. What Postgres cannot store.
    escaped_characters = 0
    if not is_plain:
        for name, field in (("text", text), ("url", url), ("title", title), ("id", record_id)):
            try:
                (field or "").encode("utf-8")
            except UnicodeEncodeError as error:
                found = f"U+{ord(error.object[error.start]):04X}"
                return _rejection(
                    "lone_surrogate", f"{name}, character {error.start}: {found}, half of a pair"
                )
        text, escaped_characters = escape_control_characters(text)
        url, title, record_id = (
            field and escape_control_characters(field)[0] for field in (url, title, record_id)
        )
    return Record(
        text=text,
        url=url or None,
        document_date=_date(value.get("date"), ignored),
        title=title or None,
        record_id=record_id or None,
        escaped_characters=escaped_characters,
        ignored=tuple(ignored),
    )


def _string_or_none(value: object, reason: str, ignored: list[str]) -> str | None:
    """A string or nothing as it is; of anything else the reason is added to `ignored`."""
    if value is None or isinstance(value, str):
        return value
    ignored.append(reason)
    return None


def escape_control_characters(text: str) -> tuple[str, int]:
    """The text with control characters (not tab, line feed, carriage return) as their visible pictures, and their number."""
    return _CONTROL.subn(lambda match: _PICTURES[match.group()], text)


def _date(value: object, ignored: list[str]) -> datetime.date | None:
    """The day that the record's date says; why it says none is added to `ignored`."""
    day, reason = day_of(value)
    if reason is not None:
        ignored.append(reason)
    return day


def _rejection(reason: str, detail: str, quote: str = "", *, cut: bool = False) -> Rejection:
    return Rejection(reason, escape_control_characters(detail)[0][:DETAIL_CHARACTERS], quote, cut)


# Parquet


def _parquet_records(opened: OpenedFile, max_record_bytes: int) -> Iterator[tuple[int, Record | Rejection]]:
    """The records of a Parquet file, batch by batch, by the same rules as those of JSON."""
    import pyarrow.parquet

    number = unpacked_bytes = 0
    try:
        stored = opened.seekable()
        packed_bytes = stored.seek(0, io.SEEK_END)
        file = pyarrow.parquet.ParquetFile(stored)
        names = set(file.schema_arrow.names)
        columns = [name for name in _FIELDS if name in names]
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=columns):
            unpacked_bytes += max(batch.nbytes, batch.num_rows)
            opened.limits.check(opened.uri, packed_bytes, unpacked_bytes)
            fields = [_values(batch.column(name)) for name in columns]
            for row in zip(*fields, strict=True) if columns else [()] * batch.num_rows:
                number += 1
                yield number, _record_of_row(dict(zip(columns, row, strict=True)), max_record_bytes)
    except ExpandsTooFarError as error:
        yield 0, _rejection("expands_too_far", f"after {number} rows: {error}", cut=True)
        return
    except (
        pyarrow.ArrowException,
        ValueError,
        KeyError,
        OSError,
    ) as error:  # ValueError: two columns of one name
        found = f"after {number} rows: expected a whole Parquet file, found: {error}. Copy the file again."
        yield 0, _rejection("unreadable_file", found, cut=True)
        return
    if not number:
        yield 0, Rejection("empty_file", "expected Parquet with at least one row, found none")


def _values(column: Any) -> list[Any]:
    """The values of a column: strings as bytes, since Parquet does not prove that they are UTF-8; dates and times as days."""
    import pyarrow
    from pyarrow import compute, types

    kind = column.type
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return list(column.cast(pyarrow.large_binary()).to_pylist())
    if types.is_timestamp(kind) or types.is_date(kind):
        if types.is_timestamp(kind) and kind.tz:
            column = compute.local_timestamp(column)
        unit = "D" if types.is_date32(kind) else "ms" if types.is_date64(kind) else kind.unit
        a_day = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}[unit]
        counts = column.cast(pyarrow.int32() if unit == "D" else pyarrow.int64()).to_pylist()
        ordinals = [None if count is None else _EPOCH + count // a_day for count in counts]
        # A day that no calendar has stays a number, which is then counted as a date that is not understood.
        days = (1, datetime.date.max.toordinal())
        return [
            datetime.date.fromordinal(day) if day is not None and days[0] <= day <= days[1] else day
            for day in ordinals
        ]
    return list(column.to_pylist())


def _record_of_row(row: dict[str, Any], max_record_bytes: int) -> Record | Rejection:
    """The record in a row of Parquet, whose strings are bytes."""
    size = sum(len(value) for value in row.values() if isinstance(value, bytes))
    if size > max_record_bytes:
        limit = f"expected at most {max_record_bytes} bytes (TOOLFORMER_MAX_LINE_BYTES)"
        return _rejection("line_too_long", f"{limit}, found {size}")
    for name, value in row.items():
        if isinstance(value, bytes):
            try:
                row[name] = value.decode("utf-8")
            except UnicodeDecodeError as error:
                return _rejection(
                    "invalid_utf8", f"{name}, byte {error.start + 1:,} in {len(value):,} bytes", quoted(value)
                )
    return _record_of(row)
