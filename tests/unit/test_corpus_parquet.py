"""Parquet files are read by the rules of JSON Lines, row by row."""

import datetime
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from toolformer_ops.config import Settings
from toolformer_ops.storage.corpus_files import CorpusFile, UnpackingLimits
from toolformer_ops.storage.corpus_records import Record, Rejection, read_file, read_record

DAY = datetime.date(2014, 5, 6)


def _packed(**columns: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target, row_group_size=2)
    return target.getvalue()


def _read(content: bytes) -> list[tuple[int, Record | Rejection]]:
    limits = UnpackingLimits.of(Settings(_env_file=None))  # type: ignore[call-arg]
    return list(read_file(CorpusFile("file:///a.parquet", lambda: io.BytesIO(content)), 1000, limits))


def test_a_row_is_the_record_that_json_would_be() -> None:
    content = _packed(
        id=[7, None, 8], text=["A b.", " a\n", "x\x07"], url=["https://x/1", None, ""], date=["2014-05-06", None, "May"],
        title=["T", "", None], other=[[1], [], None],
    )  # fmt: skip
    lines = (
        b'{"id": 7, "text": "A b.", "url": "https://x/1", "date": "2014-05-06", "title": "T"}',
        b'{"text": " a\\n", "title": ""}',
        b'{"id": 8, "text": "x\\u0007", "url": "", "date": "May"}',
    )
    assert _read(content) == list(enumerate(map(read_record, lines), 1))


def test_dates_and_times_of_any_type_are_days() -> None:
    for dates in (
        pa.array([DAY, None], pa.date32()),
        pa.array([DAY, None], pa.date64()),
        pa.array(["2014-05-06 01:00:00.000000001", None]).cast(pa.timestamp("ns")),
        # 23:30 UTC on the day before is the 6th in Berlin, as the time zone of the column writes it.
        pa.array([datetime.datetime(2014, 5, 5, 23, 30), None], pa.timestamp("s", "Europe/Berlin")),  # noqa: DTZ001
        pa.array(["2014-05-06T10:00", None]).dictionary_encode(),
    ):
        found = _read(_packed(text=["a", "b"], date=dates))
        assert found == [(1, Record("a", document_date=DAY)), (2, Record("b"))], dates.type


def test_rows_are_refused_for_the_reasons_of_json() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"other": [1]}, "no_text"),
        ({"text": [1]}, "text_not_a_string"),
        ({"text": pa.array([None], pa.string())}, "text_not_a_string"),
        ({"text": [" \n"]}, "empty_text"),
        ({"text": ["a"], "url": [b"\xff"]}, "invalid_utf8"),
        ({"text": ["x" * 1001]}, "line_too_long"),
    ]
    for columns, reason in refused:
        assert _refused(_packed(**columns)) == (1, reason)
    assert _read(_packed(text=["café".encode()])) == [(1, Record("café"))]  # not marked as a string, and read


def _refused(content: bytes) -> tuple[int, str]:
    [(row, record)] = _read(content)
    assert isinstance(record, Rejection)
    return row, record.reason


def test_a_file_that_is_no_whole_table_with_rows_is_refused() -> None:
    two_of_one_name = io.BytesIO()
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), two_of_one_name)
    for content, reason in (
        (_packed(text=pa.array([], pa.string())), "empty_file"),
        (b'{"text": "a"}\n', "unreadable_file"),
        (_packed(text=["a" * 99] * 9)[:-20], "unreadable_file"),
        (b"PAR1" + b"\x00" * 99, "unreadable_file"),
        (two_of_one_name.getvalue(), "unreadable_file"),
    ):
        assert _refused(content) == (0, reason)


def test_a_small_file_that_holds_megabytes_is_read_no_further() -> None:
    target = io.BytesIO()
    pq.write_table(pa.table({"text": ["a" * 900] * 6000}), target)  # one string and its repetitions: some kB
    *read, (row, refused) = _read(target.getvalue())
    assert 4000 <= len(read) < 6000
    assert row == 0
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.cut) == ("expands_too_far", True)
