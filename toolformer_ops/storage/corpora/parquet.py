"""The records of a Parquet file, a few rows at a time, so that no row group is decoded whole.

The rules for a record are those of JSON Lines (`record_rules.py`).
"""

import datetime
import io
from collections.abc import Collection, Iterator, Sequence
from typing import IO, Any

from toolformer_ops.errors import ExpandsTooFarError
from toolformer_ops.storage.corpora import files
from toolformer_ops.storage.corpora.addresses import FieldNames, fields_there
from toolformer_ops.storage.corpora.files import OpenedFile
from toolformer_ops.storage.corpora.record_rules import Record, Rejection, no_text, record_of, rejection

ROWS_PER_BATCH = 16
"""Most rows of a Parquet file that are decoded at once; a page of each column is held beside them."""
BATCH_BYTES = 1 << 25
"""So many bytes are decoded at once. Of a column with a dictionary fewer rows are, so that as many of its
longest string, which the dictionary holds once, fill no more."""
BYTES_AT_ONCE = 1 << 22
"""A batch that holds more becomes strings of Python row by row."""
_READ_BYTES = 1 << 16
_PAGE_HEADER_BYTES = 16
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def parquet_records(opened: OpenedFile, names: FieldNames) -> Iterator[tuple[int, Record | Rejection]]:
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
        for row in _rows(opened, stored, file, columns):
            number += 1
            if refusal:
                yield number, refusal
            else:
                yield number, row if isinstance(row, Rejection) else record_of(row, names)
    except ExpandsTooFarError as error:
        yield 0, rejection("expands_too_far", f"after {number} rows: {error}", cut=True)
        return
    except (
        pyarrow.ArrowException,
        ValueError,
        KeyError,
        OSError,
    ) as error:  # ValueError: two columns of one name
        detail = f"after {number} rows: expected a whole Parquet file, found: {error}. Copy the file again."
        yield 0, rejection("unreadable_file", detail, cut=True)
        return
    if not number:
        yield 0, Rejection("empty_file", "expected Parquet with at least one row, found none")


def parquet_values(opened: OpenedFile, names: Collection[str]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The named columns of each row, a few rows at a time, or the reason why a row, or the rest, is not read.

    Columns of texts are read, too.
    """
    import pyarrow.parquet

    number = 0
    try:
        stored = opened.seekable()
        file = pyarrow.parquet.ParquetFile(stored, buffer_size=_READ_BYTES)
        schema = file.schema_arrow
        texts = [field.name for field in schema if _is_of_texts(field.type)]
        columns = sorted({*texts, *(name for name in names if _is_column(schema, name))})
        for row in _rows(opened, stored, file, columns):
            number += 1
            yield number, row.reason if isinstance(row, Rejection) else row
    except ExpandsTooFarError:
        yield number + 1, "expands_too_far"
    except (pyarrow.ArrowException, ValueError, KeyError, OSError):
        yield number + 1, "unreadable_file"


def _rows(
    opened: OpenedFile, stored: IO[bytes], file: Any, columns: Sequence[str]
) -> Iterator[dict[str, Any] | Rejection]:
    """These columns of each row, whose texts are together no longer than the limit."""
    for batch in _decoded_batches(opened, stored, file, columns):
        pieces = [batch]
        if batch.nbytes > BYTES_AT_ONCE:  # row by row
            pieces = [batch.slice(row, 1) for row in range(batch.num_rows)]
        for piece in pieces:
            if piece.num_rows == 1 and (size := _string_bytes(piece)) > files.MOST_LINE_BYTES:
                yield _too_long(size)
                continue
            if not columns:
                yield from ({} for _ in range(piece.num_rows))
                continue
            fields = [_values(piece.column(name)) for name in columns]
            for values in zip(*fields, strict=True):
                yield _decoded_row(dict(zip(columns, values, strict=True)))


def _refusal_of_schema(there: Sequence[str], columns: Sequence[str], names: FieldNames) -> Rejection | None:
    """Why no row of a file with the columns `there` is read.

    It lacks the text, or another column that the mapping names.
    """
    if names.text not in columns:
        return no_text(names, there, there)
    absent = [f"{target}={name}" for target, name in names.mapped.items() if name not in columns]
    if not absent:
        return None
    present = fields_there(there, there)
    return rejection(
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
    begins = tuple(f"{name}." for name in columns)
    for group in range(file.num_row_groups):
        row_group = file.metadata.row_group(group)
        all_chunks = map(row_group.column, range(row_group.num_columns))
        chunks = [chunk for chunk in all_chunks if f"{chunk.path_in_schema}.".startswith(begins)]
        announced_bytes = sum(chunk.total_uncompressed_size for chunk in chunks)
        opened.limits.check(opened.uri, packed_bytes, unpacked_bytes + announced_bytes)
        longest = max([_dictionary_bytes(stored, chunk) for chunk in chunks], default=0)
        rows = max(1, min(ROWS_PER_BATCH, BATCH_BYTES // max(1, longest)))
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
            decoded = []
            for name in columns:
                column = _column(batch, name)
                has_dictionary = pyarrow.types.is_dictionary(column.type)
                decoded.append(column.dictionary_decode() if has_dictionary else column)
            unpacked_bytes += max(sum(column.nbytes for column in decoded), batch.num_rows)
            opened.limits.check(opened.uri, packed_bytes, unpacked_bytes)
            yield pyarrow.RecordBatch.from_arrays(decoded, columns) if columns else batch


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
    if _is_of_texts(kind):
        return list(column.cast(pyarrow.large_binary()).to_pylist())
    if types.is_timestamp(kind) or types.is_date(kind):
        if types.is_timestamp(kind) and kind.tz:
            column = compute.local_timestamp(column)
        unit = "D" if types.is_date32(kind) else "ms" if types.is_date64(kind) else kind.unit
        a_day = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}[unit]
        counts = column.cast(pyarrow.int32() if unit == "D" else pyarrow.int64()).to_pylist()
        return [None if count is None else _date_of(_EPOCH + count // a_day) for count in counts]
    return list(column.to_pylist())


def _date_of(ordinal: int) -> datetime.date | int:
    """The date of a day; a day that no calendar has stays a number, which counts as a date that is not understood."""
    has_date = 1 <= ordinal <= datetime.date.max.toordinal()
    return datetime.date.fromordinal(ordinal) if has_date else ordinal


def _is_of_texts(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _decoded_row(row: dict[str, Any]) -> dict[str, Any] | Rejection:
    """A row whose strings are bytes, with them as texts."""
    size = sum(len(value) for value in row.values() if isinstance(value, bytes))
    if size > files.MOST_LINE_BYTES:
        return _too_long(size)
    for name, value in row.items():
        if isinstance(value, bytes):
            try:
                row[name] = value.decode("utf-8")
            except UnicodeDecodeError as error:
                return rejection("invalid_utf8", f"{name}, byte {error.start + 1:,} in {len(value):,} bytes")
    return row


def _too_long(size: int) -> Rejection:
    return rejection("line_too_long", f"expected at most {files.MOST_LINE_BYTES} bytes, found {size}")
