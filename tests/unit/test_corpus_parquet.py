"""Parquet files are read by the rules of JSON Lines, row by row."""

import datetime
import io
import random
import tracemalloc
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolformer_ops.storage.corpora import files
from toolformer_ops.storage.corpora.files import CorpusFile
from toolformer_ops.storage.corpora.record_rules import Record, Rejection
from toolformer_ops.storage.corpora.records import read_file, read_record
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits

DAY = datetime.date(2014, 5, 6)


def _packed(**columns: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target, row_group_size=2)
    return target.getvalue()


@pytest.fixture
def short_lines(monkeypatch):
    monkeypatch.setattr(files, "MOST_LINE_BYTES", 1000)


def _read(content: bytes) -> list[tuple[int, Record | Rejection]]:
    file = CorpusFile("file:///a.parquet", lambda: io.BytesIO(content))
    return list(read_file(file, UnpackingLimits()))


def test_a_row_is_the_record_that_json_would_be():
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


def test_a_date_of_any_type_is_a_day():
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


@pytest.mark.usefixtures("short_lines")
def test_rows_are_refused_for_the_reasons_of_json():
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


def test_a_file_that_is_no_whole_table_with_rows_is_refused():
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


def test_a_small_file_that_holds_megabytes_is_read_no_further():
    target = io.BytesIO()
    pq.write_table(pa.table({"text": ["a" * 900] * 6000}), target)  # one string and its repetitions: some kB
    *read, (row, refused) = _read(target.getvalue())
    assert 4000 <= len(read) < 6000
    assert row == 0
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.cut) == ("expands_too_far", True)


RANDOM = random.Random(0)  # noqa: S311


def _table(texts: Any, **options: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), target, **options)
    return target.getvalue()


def _read_with_peak(content: bytes) -> tuple[list[tuple[int, Record | Rejection]], int]:
    """The records, and the most bytes that pyarrow took at once to read them."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        return _read(content), pool.max_memory()
    finally:
        pa.set_memory_pool(before)


@pytest.mark.parametrize("is_categorical", [False, True])
def test_a_long_string_that_a_dictionary_repeats_is_not_repeated_in_memory(is_categorical):
    texts = pa.array(["x" * 600_000] * 1000)
    content = _table(texts.dictionary_encode() if is_categorical else texts)
    [(row, refused)], peak = _read_with_peak(content)
    assert isinstance(refused, Rejection)
    assert (row, refused.reason) == (0, "expands_too_far")
    assert 1_000_000 < peak < 50_000_000


def test_large_rows_are_read_a_few_at_a_time():
    texts = [RANDOM.randbytes(500_000).hex() for _ in range(64)]  # 64 MB
    records, peak = _read_with_peak(_table(texts, write_batch_size=1, use_dictionary=False))
    assert records == list(enumerate(map(Record, texts), 1))
    assert 1_000_000 < peak < 50_000_000


def test_a_row_group_that_says_it_holds_too_much_is_not_unpacked():
    content = _table(["x" * 50_000_000], compression="zstd", use_dictionary=False)
    [(row, refused)], peak = _read_with_peak(content)
    assert isinstance(refused, Rejection)
    assert (row, refused.reason) == (0, "expands_too_far")
    assert peak < 1_000_000


@pytest.mark.usefixtures("short_lines")
def test_the_string_of_a_row_that_is_too_long_is_never_one_of_python():
    long = RANDOM.randbytes(100_000).hex() * 50  # 10 MB, which pack well
    content = _table([long, "short"], compression="zstd")
    tracemalloc.start()
    (row, refused), second = _read(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(refused, Rejection)
    assert (row, refused.reason, refused.detail[-14:]) == (1, "line_too_long", "found 10000000")
    assert second == (2, Record("short"))
    assert peak < 5_000_000


def test_a_file_without_the_column_text_names_its_columns():
    (row, refused), *others = _read(_packed(raw_content=["a", "b"], crawled=[1, 2]))
    assert isinstance(refused, Rejection)
    assert (row, refused.reason) == (1, "no_text")
    assert refused.detail.endswith("--field text=raw_content, found raw_content, crawled")
    assert others == [(2, refused)]
