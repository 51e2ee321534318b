"""Read the records of a corpus file: the document that each describes, or the reason why it is refused.

A record is a JSON object, or a row of a Parquet file, with "text" and optionally "url", "date" (as
`storage/corpora/record_rules.py` reads it; in Parquet also a date or time), "title" and "id" (text or a whole
number); other fields are ignored. A corpus may name these fields otherwise (`storage/corpora/addresses.py`).

`record_rules.py` says what of a record is taken, `corpora/parquet.py` reads rows of Parquet.
"""

import contextlib
import datetime
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from toolformer_ops.storage.corpora.addresses import (
    UNMAPPED,
    FieldNames,
    shared_fields,
)
from toolformer_ops.storage.corpora.files import CorpusFile, Line, OpenedFile
from toolformer_ops.storage.corpora.parquet import parquet_records, parquet_values
from toolformer_ops.storage.corpora.record_rules import Record, Rejection, day_of, record_of, rejection
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits

FIRST_LINES = 20
"""By which it is told what fields the records of a file have."""
_COLUMN_NAME = re.compile(rb'"?\w[\w .-]{0,39}"?')
"""What the head of a table has between its separators."""
_READ_NO_FURTHER = frozenset({"unreadable_file", "expands_too_far"})


def read_records(
    opened: OpenedFile,
    is_known: Callable[[int, int], bool] = lambda _line, _hash: False,
    names: FieldNames = UNMAPPED,
) -> Iterator[tuple[int, Record | Rejection, int | None]]:
    """The records of a file with their lines, or rows of Parquet, from 1.

    It is 0 for a refusal of the whole file or its rest. The third value is the hash of the line (64 bits,
    signed), None for Parquet and refusals. Lines for which `is_known` is true, by number and hash, are left
    out without parsing them.

    Raises:
        ObjectStoreError: the source fails.
    """
    if opened.refusal:
        yield 0, Rejection(*opened.refusal), None
        return
    folder_day = _day_of_folder(opened.file.uri, names)
    if opened.is_parquet:
        for row, record in parquet_records(opened, names):
            yield row, _with_day_of_folder(record, folder_day), None
        return
    lines = opened.lines()
    first_lines = list(itertools.islice(lines, 2))
    if other_format := _other_format(first_lines):
        yield 0, other_format, None
        return
    shared: frozenset[str] | None = None
    for line in itertools.chain(first_lines, lines):
        if line.reason:
            yield (
                line.number,
                rejection(line.reason, line.detail, cut=line.reason in _READ_NO_FURTHER),
                None,
            )
            continue
        line_hash = int.from_bytes(hashlib.sha256(line.content).digest()[:8], "big", signed=True)
        if is_known(line.number, line_hash):
            continue
        reading = read_record(line.content, names)
        if isinstance(reading, Rejection) and reading.reason == "no_text":
            if shared is None:
                shared = _shared_fields(first_lines)
            reading = read_record(line.content, names, shared)
        if (
            not line.ended
            and isinstance(reading, Rejection)
            and reading.reason in ("corrupt_json", "invalid_utf8")
        ):
            reading = replace(reading, cut=True)
        yield line.number, _with_day_of_folder(reading, folder_day), line_hash


def _day_of_folder(uri: str, names: FieldNames) -> datetime.date | None:
    """The day in a file's folders as Hive and Spark write them: `date=2021-10-13/part-0.parquet`."""
    for folder in reversed(uri.split("/")[:-1]):
        name, _, value = folder.partition("=")
        if name and name == names.read.get("date"):
            return day_of(unquote(value))[0]
    return None


def _with_day_of_folder(record: Record | Rejection, day: datetime.date | None) -> Record | Rejection:
    """The record with the day of its folder, if it says none itself."""
    if day is None or isinstance(record, Rejection) or record.document_date or record.ignored:
        return record
    return record._replace(document_date=day)


def _other_format(first_lines: Sequence[Line]) -> Rejection | None:
    """Why a file that begins with these two lines is JSON, and no JSON Lines.

    It is None if it is none of that kind.
    """
    first = first_lines[0].content.strip() if first_lines else b""
    second = first_lines[1].content.strip() if len(first_lines) > 1 else b""
    is_array = first == b"[" or (first.startswith(b"[{") and not (second and first.endswith(b"]")))
    if is_array:
        finding = "found one array; `jq -c '.[]'` writes its elements so"
        return rejection("json_array", f"expected a JSON object in each line, {finding}")
    if first == b"{" and second.startswith(b'"'):
        finding = "found an object over several lines; `jq -c .` writes it so"
        return rejection("pretty_printed_json", f"expected a JSON object in each line, {finding}")
    if _is_table(first, second):
        finding = (
            "found a table (CSV); with pandas: read_csv(FILE).to_json(OUT, orient='records', lines=True)"
        )
        return rejection("delimited_text", f"expected a JSON object in each line, {finding}")
    return None


def _is_table(first: bytes, second: bytes) -> bool:
    """Whether two lines are the head and a row of a table: names that one character separates, and as many values."""
    for mark in (b",", b";", b"\t"):
        names = first.split(mark)
        if len(names) > 1 and second.count(mark) >= len(names) - 1:
            return all(_COLUMN_NAME.fullmatch(name) for name in names)
    return False


def _shared_fields(lines: Sequence[Line]) -> frozenset[str]:
    """The fields that these lines have in common, if several of them are records."""
    values: list[Any] = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            values.append(json.loads(line.content))
    return shared_fields([value for value in values if isinstance(value, dict)])


def field_names(file: CorpusFile, limits: UnpackingLimits) -> list[str]:
    """The fields that the first records of a file have in common, in their order; the columns of Parquet.

    None of a file with one record, whose names may be data. Raises as `OpenedFile`.
    """
    with OpenedFile(file, limits) as opened:
        if opened.refusal:
            return []
        if opened.is_parquet:
            import pyarrow.parquet

            try:
                return list(pyarrow.parquet.ParquetFile(opened.seekable()).schema_arrow.names)
            except (pyarrow.ArrowException, ValueError, OSError):
                return []
        first_lines = list(itertools.islice(opened.lines(), FIRST_LINES))
        return sorted(_shared_fields(first_lines))


def read_file(
    file: CorpusFile, limits: UnpackingLimits, names: FieldNames = UNMAPPED
) -> Iterator[tuple[int, Record | Rejection]]:
    """The records of a file that is opened for it, with their lines, as `read_records`.

    Raises as `OpenedFile`.
    """
    with OpenedFile(file, limits) as opened:
        for line, record, _ in read_records(opened, names=names):
            yield line, record


def read_values(
    file: CorpusFile, limits: UnpackingLimits, names: Collection[str]
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The objects of a file with their lines, whatever they describe, or the reason why a line is none.

    Of Parquet the rows, with the named columns and those of texts. Raises as `OpenedFile`.
    """
    with OpenedFile(file, limits) as opened:
        if opened.refusal:
            yield 0, opened.refusal[0]
            return
        if opened.is_parquet:
            yield from parquet_values(opened, names)
            return
        for line in opened.lines():
            if line.reason:
                yield line.number, line.reason
                continue
            try:
                value = json.loads(line.content)
            except (ValueError, RecursionError):
                yield line.number, "corrupt_json"
            else:
                yield line.number, value if isinstance(value, dict) else "not_an_object"


def read_record(
    content: bytes, names: FieldNames = UNMAPPED, shared: frozenset[str] = frozenset()
) -> Record | Rejection:
    """The record in one line of JSON, or why it is refused.

    `shared` are fields that other records have, too: a refusal may name them.
    """
    try:
        value = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        record: Record | Rejection = Rejection("invalid_utf8", f"byte {error.start + 1:,}")
    except json.JSONDecodeError as error:
        record = Rejection("corrupt_json", f"{error.msg}: character {error.pos + 1:,}")
    except RecursionError:
        record = Rejection("corrupt_json", "lists or objects in each other, too deep")
    except ValueError:
        record = Rejection("corrupt_json", "a whole number of more than 4,300 digits")
    else:
        if isinstance(value, dict):
            # JSON writes a control character or half a surrogate pair only after a backslash, but for
            # U+007F.
            record = record_of(value, names, shared, is_plain=b"\\" not in content and b"\x7f" not in content)
        else:
            record = Rejection("not_an_object", f"expected a JSON object, found {type(value).__name__}")
    if isinstance(record, Record):
        return record
    return replace(
        rejection(record.reason, f"{record.detail} (a line of {len(content):,} bytes)"),
        likely_text=record.likely_text,
    )
