"""Calls of a run as a file to be downloaded: CSV for a spreadsheet, Parquet for programs.

What a document or a model wrote is hostile by assumption: a cell of CSV that a spreadsheet would take for a
formula begins with an apostrophe. Parquet has every text as it is.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from toolformer_ops.run_page.reading import File

COLUMNS = (
    "tool", "outcome", "release_outcome", "reason", "gain", "keep_threshold", "keep_rule", "probability_without",
    "placebo_probability", "probability_with", "loss_reduction", "information", "loss_without_call", "loss_without_result",
    "loss_with_result", "text_before", "call_text", "result", "text_after", "url", "position_char",
    "document_id", "call_id",
)  # fmt: skip
"""Columns of the view `candidates`."""
NUMBERS = frozenset(name for name in COLUMNS if name.startswith(("loss_", "probability_"))) | {
    "gain", "keep_threshold", "information", "placebo_probability",
}  # fmt: skip
_FORMULA = re.compile(r"\s*[=+\-@\t\r]")
"""How a cell begins that a spreadsheet computes."""


class FileKind(StrEnum):
    """What a download is."""

    CSV = "csv"
    PARQUET = "parquet"


def file_of(rows: Sequence[Mapping[str, Any]], kind: FileKind, run_id: str, *, is_whole: bool) -> File:
    """The calls as a file, which says in its name if there are more than it has."""
    part = "" if is_whole else f"-first-{len(rows)}"
    name = f"calls-{re.sub(r'[^A-Za-z0-9._-]', '_', run_id)}{part}.{kind}"
    if kind is FileKind.CSV:
        return File(name, "text/csv; charset=utf-8", as_csv(rows))
    return File(name, "application/vnd.apache.parquet", as_parquet(rows))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """CSV with a head, in UTF-8 with the mark by which spreadsheets know it."""
    written = io.StringIO()
    writer = csv.writer(written)
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(row[name]) for name in COLUMNS])
    return written.getvalue().encode("utf-8-sig", "replace")


def _cell(value: Any) -> Any:
    """A value that no spreadsheet computes."""
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if _FORMULA.match(text) else text


def as_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Parquet with numbers as float64, places as int64 and all else as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {name: pa.float64() if name in NUMBERS else pa.string() for name in COLUMNS}
    types["position_char"] = pa.int64()
    columns: dict[str, list[Any]] = {}
    for name in COLUMNS:
        is_text = types[name] == pa.string()
        values = []
        for row in rows:
            value = row[name]
            if is_text and value is not None:
                value = str(value).encode("utf-8", "replace").decode()
            values.append(value)
        columns[name] = values
    table = pa.table(columns, schema=pa.schema(types.items()))
    written = io.BytesIO()
    pq.write_table(table, written)
    return written.getvalue()
