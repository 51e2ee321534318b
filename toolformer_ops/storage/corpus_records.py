"""Read the records of a corpus file: the document that each describes, or the reason why it is refused.

A record is a JSON object, or a row of a Parquet file, with "text" and optionally "url", "date" (as
`storage/record_dates.py` reads it; in Parquet also a date or time), "title" and "id" (text or a whole
number); other fields are ignored. A corpus may name these fields otherwise (`storage/corpus_fields.py`).

A text keeps its characters, form feeds and escapes among them; U+0000 alone, which Postgres cannot store,
becomes its visible picture (U+2400). In "url", "title" and "id" all control characters but tab and line ends
do.
"""

import contextlib
import datetime
import hashlib
import io
import itertools
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, NamedTuple

from toolformer_ops.errors import ExpandsTooFarError
from toolformer_ops.records import Document, document_id_of
from toolformer_ops.storage.corpus_fields import (
    UNMAPPED,
    FieldNames,
    field_in,
    fields_there,
    lacking,
    likely_text,
    shared_fields,
)
from toolformer_ops.storage.corpus_files import (
    DETAIL_CHARACTERS,
    CorpusFile,
    Line,
    OpenedFile,
    UnpackingLimits,
    quoted,
)
from toolformer_ops.storage.record_dates import day_of

ID_CHARACTERS = 300
"""Longest "id" of a record that is taken."""
FIRST_LINES = 20
"""By which it is told what fields the records of a file have."""
ROWS_PER_BATCH = 16
"""Most rows of a Parquet file that are decoded at once; a page of each column is held beside them."""
BATCH_BYTES = 1 << 25
"""So many bytes are decoded at once. Of a column with a dictionary fewer rows are, so that as many of its
longest string, which the dictionary holds once, fill no more."""
BYTES_AT_ONCE = 1 << 22
"""A batch that holds more becomes strings of Python row by row."""
_READ_BYTES = 1 << 16
_PAGE_HEADER_BYTES = 16
_READ_NO_FURTHER = frozenset({"unreadable_file", "expands_too_far"})
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PICTURES = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {"\x7f": "\u2421"}
_EPOCH = datetime.date(1970, 1, 1).toordinal()


class Record(NamedTuple):
    """A usable record."""

    text: str
    """As the record has it, but for U+0000; never blank."""
    url: str | None = None
    document_date: datetime.date | None = None
    title: str | None = None
    record_id: str | None = None
    """The record's own "id": of two records with one id the later counts. Documents are named by their
    text."""
    escaped_characters: int = 0
    """How many characters of the text were replaced: U+0000."""
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
        """The id that the text had while control characters were replaced; None if it is that of today."""
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
    json_array, pretty_printed_json; or that of a `Line` or of a file that is not read."""
    detail: str
    """What was found, in words of ours and numbers alone."""
    quote: str = ""
    """How the record begins."""
    cut: bool = False
    """Whether the file is read no further, or breaks off here: packed data or Parquet that is not whole or
    holds too much, or a last line that is half a record."""
    likely_text: str | None = None
    """For a record without its text: a field that exists and may hold it."""


def read_records(
    opened: OpenedFile,
    max_record_bytes: int,
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
    if opened.is_parquet:
        for row, record in _parquet_records(opened, max_record_bytes, names):
            yield row, record, None
        return
    lines = opened.lines(max_record_bytes)
    first_lines = list(itertools.islice(lines, 2))
    if other_format := _other_format(first_lines):
        yield 0, other_format, None
        return
    shared: frozenset[str] | None = None
    for line in itertools.chain(first_lines, lines):
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
        yield line.number, reading, line_hash


def _other_format(first_lines: Sequence[Line]) -> Rejection | None:
    """Why a file that begins with these two lines is JSON, and no JSON Lines.

    It is None if it is none of that kind.
    """
    first = first_lines[0].content.strip() if first_lines else b""
    second = first_lines[1].content.strip() if len(first_lines) > 1 else b""
    is_array = first == b"[" or (first.startswith(b"[{") and not (second and first.endswith(b"]")))
    if is_array:
        finding = "found one array; `jq -c '.[]'` writes its elements so"
        return _rejection("json_array", f"expected a JSON object in each line, {finding}")
    if first == b"{" and second.startswith(b'"'):
        finding = "found an object over several lines; `jq -c .` writes it so"
        return _rejection("pretty_printed_json", f"expected a JSON object in each line, {finding}")
    return None


def _shared_fields(lines: Sequence[Line]) -> frozenset[str]:
    """The fields that these lines have in common, if several of them are records."""
    values: list[Any] = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            values.append(json.loads(line.content))
    return shared_fields([value for value in values if isinstance(value, dict)])


def field_names(file: CorpusFile, max_record_bytes: int, limits: UnpackingLimits) -> list[str]:
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
        first_lines = list(itertools.islice(opened.lines(max_record_bytes), FIRST_LINES))
        return sorted(_shared_fields(first_lines))


def read_file(
    file: CorpusFile, max_record_bytes: int, limits: UnpackingLimits, names: FieldNames = UNMAPPED
) -> Iterator[tuple[int, Record | Rejection]]:
    """The records of a file that is opened for it, with their lines, as `read_records`.

    Raises as `OpenedFile`.
    """
    with OpenedFile(file, limits) as opened:
        for line, record, _ in read_records(opened, max_record_bytes, names=names):
            yield line, record


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
            # JSON writes a control character or half a surrogate pair only behind a backslash, but for
            # U+007F.
            record = _record_of(
                value, names, shared, is_plain=b"\\" not in content and b"\x7f" not in content
            )
        else:
            record = Rejection("not_an_object", f"expected a JSON object, found {type(value).__name__}")
    if isinstance(record, Record):
        return record
    return replace(
        _rejection(record.reason, f"{record.detail} (a line of {len(content):,} bytes)", quoted(content)),
        likely_text=record.likely_text,
    )


def _record_of(
    value: Mapping[str, Any], names: FieldNames, shared: Collection[str] = (), *, is_plain: bool = False
) -> Record | Rejection:
    """The record with these fields.

    `is_plain`: no string of it holds a control character but tab and line ends, or a lone surrogate.
    """
    # 1. The text.
    text = value.get(names.text) if names.are_flat else field_in(value, names.text)
    if not isinstance(text, str):
        if text is None and names.text not in value:
            return _no_text(names, list(value), shared)
        return _rejection("text_not_a_string", f"found {type(text).__name__}")
    if not text or text.isspace():
        return _rejection("empty_text", f"found {len(text)} characters of white space")
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
                return _rejection(
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


def _no_text(names: FieldNames, there: Sequence[str], schema_names: Collection[str]) -> Rejection:
    """The refusal of a record, or file, without the field that holds the text; it names the other fields."""
    present = fields_there(there, schema_names)
    likely = likely_text(there)
    refusal = _rejection(
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
    """The day of writing that the record says; why it says none is added to `ignored`."""
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


def _rejection(reason: str, detail: str, quote: str = "", *, cut: bool = False) -> Rejection:
    return Rejection(reason, escape_control_characters(detail)[0][:DETAIL_CHARACTERS], quote, cut)


# Parquet


def _parquet_records(
    opened: OpenedFile, max_record_bytes: int, names: FieldNames
) -> Iterator[tuple[int, Record | Rejection]]:
    """The records of a Parquet file, a few rows at a time, by the same rules as those of JSON."""
    import pyarrow.parquet

    number = 0
    try:
        stored = opened.seekable()
        # Without a size of its reads, a whole column of a row group is read at once.
        file = pyarrow.parquet.ParquetFile(stored, buffer_size=_READ_BYTES)
        schema = file.schema_arrow
        columns = sorted({name for name in names.read.values() if _is_column(schema, name)})
        refusal = _refusal_of_schema(schema.names, columns, names)
        for batch in _decoded_batches(opened, stored, file, columns):
            for piece in _pieces(batch):
                if refusal:
                    yield from ((number + row, refusal) for row in range(1, piece.num_rows + 1))
                    number += piece.num_rows
                    continue
                if piece.num_rows == 1 and (size := _string_bytes(piece)) > max_record_bytes:
                    number += 1
                    yield number, _too_long(size, max_record_bytes)
                    continue
                fields = [_values(piece.column(name)) for name in columns]
                for row in zip(*fields, strict=True):
                    number += 1
                    fields_of_row = dict(zip(columns, row, strict=True))
                    yield number, _record_of_row(fields_of_row, max_record_bytes, names)
    except ExpandsTooFarError as error:
        yield 0, _rejection("expands_too_far", f"after {number} rows: {error}", cut=True)
        return
    except (
        pyarrow.ArrowException,
        ValueError,
        KeyError,
        OSError,
    ) as error:  # ValueError: two columns of one name
        detail = f"after {number} rows: expected a whole Parquet file, found: {error}. Copy the file again."
        yield 0, _rejection("unreadable_file", detail, cut=True)
        return
    if not number:
        yield 0, Rejection("empty_file", "expected Parquet with at least one row, found none")


def _refusal_of_schema(there: Sequence[str], columns: Sequence[str], names: FieldNames) -> Rejection | None:
    """Why no row of a file with the columns `there` is read.

    It lacks the text, or another column that the mapping names.
    """
    if names.text not in columns:
        return _no_text(names, there, there)
    absent = [f"{target}={name}" for target, name in names.mapped.items() if name not in columns]
    if not absent:
        return None
    present = fields_there(there, there)
    return _rejection(
        "no_field", f"expected the columns of {', '.join(absent)}; correct --field; found {present}"
    )


def _is_column(schema: Any, name: str) -> bool:
    """Whether a table has this column, or a column within others whose path this is."""
    from pyarrow import types

    if name in schema.names:
        return True
    first, *within = name.split(".")
    if first not in schema.names or not within:
        return False
    kind = schema.field(first).type
    for part in within:
        if not types.is_struct(kind) or kind.get_field_index(part) < 0:
            return False
        kind = kind.field(part).type
    return True


def _column(batch: Any, name: str) -> Any:
    """The column of a batch that has this name or, within others, this path."""
    from pyarrow import compute

    if name in batch.schema.names:
        return batch.column(name)
    first, _, rest = name.partition(".")
    return compute.struct_field(batch.column(first), rest.split("."))


def _decoded_batches(
    opened: OpenedFile, stored: IO[bytes], file: Any, columns: Sequence[str]
) -> Iterator[Any]:
    """The rows of a Parquet file in batches without dictionaries.

    Raises:
        ExpandsTooFarError: the file holds too much: by what it says of a row group, before that is read, or
        by what was read.
    """
    import pyarrow

    packed_bytes = stored.seek(0, io.SEEK_END)
    unpacked_bytes = 0
    for group in range(file.num_row_groups):
        chunks = _chunks(file.metadata.row_group(group), columns)
        announced_bytes = sum(chunk.total_uncompressed_size for chunk in chunks)
        opened.limits.check(opened.uri, packed_bytes, unpacked_bytes + announced_bytes)
        longest = max([_dictionary_bytes(stored, chunk) for chunk in chunks], default=0)
        rows = max(1, min(ROWS_PER_BATCH, BATCH_BYTES // max(1, longest)))
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
            decoded = [_without_dictionary(_column(batch, name)) for name in columns]
            unpacked_bytes += max(sum(column.nbytes for column in decoded), batch.num_rows)
            opened.limits.check(opened.uri, packed_bytes, unpacked_bytes)
            yield pyarrow.RecordBatch.from_arrays(decoded, columns) if columns else batch


def _chunks(row_group: Any, columns: Sequence[str]) -> list[Any]:
    """What the footer says of the columns of a row group that are read."""
    chunks = map(row_group.column, range(row_group.num_columns))
    begins = tuple(f"{name}." for name in columns)
    return [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(begins)]


def _dictionary_bytes(stored: IO[bytes], chunk: Any) -> int:
    """Bytes of the dictionary of a column in a row group, which no value of it exceeds.

    They are 0 without a dictionary. The header of its page begins with the kind and the unpacked size as
    whole numbers of Thrift's compact protocol
    (https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift, PageHeader).
    """
    if not chunk.has_dictionary_page:
        return 0
    stored.seek(chunk.dictionary_page_offset)
    header = stored.read(_PAGE_HEADER_BYTES)
    size, shift = 0, 0
    if header[:1] + header[2:3] == b"\x15\x15":
        for byte in header[3:]:
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # the last byte of a number
                return size >> 1  # a number n that is not negative is written as 2 n
    return int(chunk.total_uncompressed_size)


def _without_dictionary(column: Any) -> Any:
    from pyarrow import types

    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def _pieces(batch: Any) -> Iterator[Any]:
    """The batch, or its rows one by one if it is large."""
    if batch.nbytes <= BYTES_AT_ONCE:
        yield batch
        return
    for row in range(batch.num_rows):
        yield batch.slice(row, 1)


def _string_bytes(row: Any) -> int:
    """Bytes of the strings in a single row."""
    from pyarrow import compute, types

    kinds = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)

    def is_string(kind: Any) -> bool:
        return any(is_kind(kind) for is_kind in kinds)

    strings = [column for column in row.columns if is_string(column.type)]
    return sum(compute.binary_length(column)[0].as_py() or 0 for column in strings)


def _values(column: Any) -> list[Any]:
    """The values of a column: strings as bytes, since Parquet does not prove that they are UTF-8.

    Dates and times are written as days.
    """
    import pyarrow
    from pyarrow import compute, types

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


def _record_of_row(row: dict[str, Any], max_record_bytes: int, names: FieldNames) -> Record | Rejection:
    """The record in a row of Parquet, whose strings are bytes."""
    size = sum(len(value) for value in row.values() if isinstance(value, bytes))
    if size > max_record_bytes:
        return _too_long(size, max_record_bytes)
    for name, value in row.items():
        if isinstance(value, bytes):
            try:
                row[name] = value.decode("utf-8")
            except UnicodeDecodeError as error:
                return _rejection(
                    "invalid_utf8", f"{name}, byte {error.start + 1:,} in {len(value):,} bytes", quoted(value)
                )
    return _record_of(row, names)


def _too_long(size: int, max_record_bytes: int) -> Rejection:
    limit = f"expected at most {max_record_bytes} bytes (TOOLFORMER_MAX_LINE_BYTES)"
    return _rejection("line_too_long", f"{limit}, found {size}")
