import gzip
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pydantic import SecretStr
from sqlalchemy import Engine

from tests.run_sql import run_sql
from toolformer_ops.config import Settings
from toolformer_ops.errors import EXIT_USAGE, CorpusError, UsageError, exit_code
from toolformer_ops.records import document_id_of
from toolformer_ops.stages.ingestion import REFUSED_ROWS, IngestReport, ingest_corpus
from toolformer_ops.storage import database
from toolformer_ops.storage.publication import ObjectStore


@pytest.fixture
def local_settings(postgres_dsn: str) -> Settings:
    return Settings(_env_file=None, database_dsn=SecretStr(postgres_dsn), max_line_bytes=2000)  # type: ignore[call-arg]


def _lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": item}).encode() + b"\n" for item in texts)


def _ordinals(engine: Engine) -> list[tuple[object, ...]]:
    return run_sql(
        engine,
        """select ordinal, text, line from corpus_documents join documents using (document_id)
           where left_version is null order by ordinal""",
    )


def _numbers(report: IngestReport) -> tuple[int, int, int, int]:
    return report.records, report.documents, report.duplicates, report.rejected


def test_a_record_arrives_with_all_that_it_says(tmp_path: Path, local_settings: Settings, engine: Engine) -> None:
    path = tmp_path / "posts.jsonl"
    path.write_text('{"id": "p1", "text": "One\\u0007.", "url": "https://x/1", "date": "2014-05-06", "title": "T"}\n')
    ingest_corpus(local_settings, str(path))
    [row] = run_sql(
        engine, "select document_id, text, url, document_date::text, title, escaped_characters from documents"
    )
    assert row == (document_id_of("One\u2407."), "One\u2407.", "https://x/1", "2014-05-06", "T", 1)
    assert run_sql(engine, "select uri from corpora") == [(f"file://{path}",)]


def test_every_record_is_accepted_or_a_duplicate_or_rejected_with_file_line_and_reason(
    tmp_path: Path, local_settings: Settings, engine: Engine
) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(
        _lines("one", "two", "one")
        + b"\n{broken\n[1]\n"
        + b'{"question": "2 + 2?", "answer": "4"}\n{"text": 5}\n{"text": " "}\n{"text": "\xff"}\n{"text": "\\ud800"}\n'
        + b'{"text": "'
        + b"x" * 3000
        + b'"}\n'
        + _lines("three")
    )
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(_lines("two", "four")))
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(_lines("five")))
    (folder / "d.jsonl").write_bytes(b"")
    (folder / "e.jsonl.gz").write_bytes(gzip.compress(_lines("six"))[:-4])
    report = ingest_corpus(local_settings, str(folder), accept_shrink=True)
    assert _numbers(report) == (18, 6, 2, 10)
    assert report.files == 5
    assert report.added == 6
    rejected = run_sql(
        engine,
        "select split_part(file_uri, '/corpus/', 2), line, reason from rejected_documents order by file_uri, line",
    )
    assert rejected == [
        ("a.jsonl", 5, "corrupt_json"),
        ("a.jsonl", 6, "not_an_object"),
        ("a.jsonl", 7, "no_text"),
        ("a.jsonl", 8, "text_not_a_string"),
        ("a.jsonl", 9, "empty_text"),
        ("a.jsonl", 10, "invalid_utf8"),
        ("a.jsonl", 11, "lone_surrogate"),
        ("a.jsonl", 12, "line_too_long"),
        ("d.jsonl", 0, "empty_file"),
        ("e.jsonl.gz", 0, "unreadable_file"),
    ]
    assert dict.fromkeys((row[2] for row in rejected), 1) == report.rejected_by_reason
    files = run_sql(engine, "select records, accepted, duplicates, rejected from corpus_files order by file_uri")
    assert files == [(12, 3, 1, 8), (2, 1, 1, 0), (1, 1, 0, 0), (1, 0, 0, 1), (2, 1, 0, 1)]
    assert _ordinals(engine) == [
        (0, "one", 1),
        (1, "two", 2),
        (2, "three", 13),
        (3, "four", 2),
        (4, "five", 1),
        (5, "six", 1),
    ]


PASSWORD = "hunter2-of-the-owner"


def _everything(engine: Engine) -> str:
    """All rows of all tables as text."""
    tables = run_sql(engine, "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = 'public'")
    return "\n".join(str(run_sql(engine, f"select * from {table}")) for [table] in tables)


def test_a_corpus_leads_to_no_secret_and_what_leads_out_of_its_folder_is_counted(
    tmp_path: Path, local_settings: Settings, engine: Engine
) -> None:
    state = local_settings.state_dir
    state.mkdir()
    (state / "secrets.json").write_text(json.dumps({"postgres_owner": PASSWORD}, indent=1))
    for address in (f"{state}/secrets.json", str(state), f"{state}/../state/secrets.json", "/proc/self/environ"):
        with pytest.raises(UsageError, match="expected files that may be read"):
            ingest_corpus(local_settings, address)
    assert run_sql(engine, "select * from corpora") == []
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(_lines("a", "b"))
    (folder / "b.jsonl").symlink_to(state / "secrets.json")
    for _ in range(2):  # again: nothing is read twice
        report = ingest_corpus(local_settings, str(folder))
        assert (_numbers(report), report.rejected_by_reason) == ((3, 2, 0, 1), {"outside_corpus": 1})
    assert (report.version, report.unchanged_files) == (1, 2)
    assert run_sql(
        engine, "select split_part(file_uri, '/corpus/', 2), line, reason, detail from rejected_documents"
    ) == [("b.jsonl", 0, "outside_corpus", "it is a link that leads out of the folder")]
    assert PASSWORD not in _everything(engine)
    (folder / "b.jsonl").unlink()
    (folder / "b.jsonl").write_bytes(_lines("c"))  # the file itself is read
    assert _numbers(ingest_corpus(local_settings, str(folder))) == (3, 3, 0, 0)
    assert run_sql(engine, "select * from rejected_documents") == []


@pytest.mark.parametrize("quotes", [False, True], ids=["by default", "where it is asked for"])
def test_a_refused_record_is_quoted_only_where_that_is_asked_for(
    tmp_path: Path, local_settings: Settings, engine: Engine, quotes: bool
) -> None:
    table = pa.table({"text": pa.array([PASSWORD.encode() + b"\xff"], pa.binary()).cast(pa.large_binary())})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_bytes(
        b"\n".join(
            line.replace(b"PASSWORD", PASSWORD.encode())
            for line in (
                b"PASSWORD",
                b'{"text": "PASSWORD"',
                b'{"PASSWORD": 1}',
                b'["PASSWORD"]',
                b'{"text": ["PASSWORD"]}',
                b'{"text": "PASSWORD \xff"}',
                b'{"text": "PASSWORD \\ud800"}',
                b'{"text": "PASSWORD \\x"}',
                b'{"n": 1' + b"1" * 5000 + b', "t": "PASSWORD"}',
                b'{"text": "PASSWORD' + b"x" * 3000 + b'"}',
            )
        )
        + b"\n"
    )
    (tmp_path / "c.jsonl.gz").write_bytes(PASSWORD.encode())
    settings = local_settings.model_copy(update={"quote_rejected": quotes, "max_line_bytes": 2900 if quotes else 2000})
    report = ingest_corpus(settings, str(tmp_path), accept_shrink=True)
    assert report.documents == 0
    assert report.rejected == len(run_sql(engine, "select * from rejected_documents")) >= 11
    details = [str(detail) for [detail] in run_sql(engine, "select detail from rejected_documents")]
    assert any(PASSWORD in detail for detail in details) is quotes
    assert quotes or not any(word[:4] in detail for detail in details for word in (PASSWORD, PASSWORD[8:]))
    assert any("a line of 20 bytes" in detail for detail in details)


def test_of_many_refused_records_few_have_rows_and_all_are_counted(
    tmp_path: Path, local_settings: Settings, engine: Engine
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{\n" * 3 * REFUSED_ROWS + _lines("a", "a") + b"{}\n" * (REFUSED_ROWS + 1) + b"[]\n")
    for again in (b"", b"{\n"):
        with path.open("ab") as file:
            file.write(again)
        for _ in range(2):
            report = ingest_corpus(local_settings, str(path), records_per_transaction=70)
            corrupt = 3 * REFUSED_ROWS + len(again) // 2
            assert report.rejected_by_reason == {
                "corrupt_json": corrupt, "no_text": REFUSED_ROWS + 1, "not_an_object": 1,
            }  # fmt: skip
            assert _numbers(report) == (corrupt + REFUSED_ROWS + 4, 1, 1, corrupt + REFUSED_ROWS + 2)
    assert run_sql(
        engine, "select reason, count(*), min(line), max(line) from rejected_documents group by 1 order by 1"
    ) == [
        ("corrupt_json", REFUSED_ROWS, 1, REFUSED_ROWS),
        ("no_text", REFUSED_ROWS, 3 * REFUSED_ROWS + 3, 4 * REFUSED_ROWS + 2),
        ("not_an_object", 1, 4 * REFUSED_ROWS + 4, 4 * REFUSED_ROWS + 4),
    ]
    assert run_sql(engine, "select sum(records) from rejected_records") == [(report.rejected,)]


def test_a_corpus_whose_path_is_no_utf_8_is_a_wrong_request(tmp_path: Path, local_settings: Settings) -> None:
    path = tmp_path / "caf\udce9.jsonl"  # the byte E9 alone, as Latin-1 writes it
    path.write_bytes(_lines("one"))
    with pytest.raises(CorpusError, match=r"in UTF-8, found b'file:///.*caf\\xe9\.jsonl'\. Rename") as caught:
        ingest_corpus(local_settings, str(path))
    assert exit_code(caught.value) == EXIT_USAGE


def test_ingesting_again_reads_no_file_and_changes_nothing(
    tmp_path: Path, local_settings: Settings, engine: Engine
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(_lines("one", "two", "one") + b"{\n")
    first = ingest_corpus(local_settings, str(path))
    before = run_sql(engine, "select *, xmin from corpus_documents")
    second = ingest_corpus(local_settings, f"file://{path}")
    assert _numbers(second) == _numbers(first) == (4, 2, 1, 1)
    assert (first.unchanged_files, second.unchanged_files, second.added) == (0, 1, 0)
    assert run_sql(engine, "select *, xmin from corpus_documents") == before


def test_two_ingestions_at_once_both_end_well_and_write_nothing_twice(
    tmp_path: Path, local_settings: Settings, engine: Engine
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(_lines(*(f"text {number % 80}" for number in range(100))))
    start = threading.Barrier(3)

    def ingest(_: int) -> IngestReport:
        start.wait()
        return ingest_corpus(local_settings, str(path), records_per_transaction=7)

    with ThreadPoolExecutor(3) as threads:
        reports = list(threads.map(ingest, range(3)))
    assert [_numbers(report) for report in reports] == [(100, 80, 20, 0)] * 3
    assert sorted(report.added for report in reports) == [0, 0, 80]
    assert [row[0] for row in _ordinals(engine)] == list(range(80))


def test_a_corpus_that_is_not_there_fails_before_the_database_is_asked(tmp_path: Path) -> None:
    nowhere = Settings(_env_file=None, database_dsn=SecretStr("postgresql://u@127.0.0.1:1/d"))  # type: ignore[call-arg]
    with pytest.raises(CorpusError, match=r"no_such_file\.jsonl"):
        ingest_corpus(nowhere, str(tmp_path / "no_such_file.jsonl"))


# S3


def _put(settings: Settings, key: str, content: bytes) -> str:
    ObjectStore(settings).put_if_absent(key, content)
    return f"s3://{settings.s3_bucket}/{key}"


def test_a_folder_on_s3_is_ingested_in_the_order_of_its_keys(settings: Settings) -> None:
    _put(settings, "corpora/x/b.jsonl.gz", gzip.compress(_lines("three")))
    _put(settings, "corpora/x/a.jsonl", _lines("one", "two") + b"{\n")
    _put(settings, "corpora/x/README.md", b"no corpus")
    _put(settings, "corpora/xy.jsonl", _lines("another corpus"))
    engine = database.connect(settings)
    report = ingest_corpus(settings, f"s3://{settings.s3_bucket}/corpora/x/")
    assert _numbers(report) == (4, 3, 0, 1)
    assert _ordinals(engine) == [(0, "one", 1), (1, "two", 2), (2, "three", 1)]
    assert ingest_corpus(settings, f"s3://{settings.s3_bucket}/corpora/x").unchanged_files == 2


def test_an_object_with_the_same_etag_is_not_read_and_one_that_is_gone_is_removed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(settings)
    for name, texts in (("a", "123"), ("b", "45"), ("c", "67")):
        _put(settings, f"corpora/x/{name}.jsonl", _lines(*texts))
    ingest_corpus(settings, f"s3://{settings.s3_bucket}/corpora/x")
    store.put("corpora/x/b.jsonl", _lines("4", "8"), "application/jsonl")  # as many bytes
    store.delete("corpora/x/c.jsonl")
    opened: list[str] = []
    open_uri = ObjectStore.open_uri
    monkeypatch.setattr(ObjectStore, "open_uri", lambda self, uri: (opened.append(uri), open_uri(self, uri))[1])
    report = ingest_corpus(settings, f"s3://{settings.s3_bucket}/corpora/x")
    assert {uri.rpartition("/")[2] for uri in opened} == {"b.jsonl"}
    assert (report.files, report.unchanged_files) == (2, 1)
    assert (report.added, report.removed, report.kept) == (1, 3, 4)


def test_an_object_on_s3_of_any_format_is_a_corpus(settings: Settings) -> None:
    parquet = io.BytesIO()
    pq.write_table(pa.table({"text": ["one", "two"]}), parquet)
    for name, content, texts in (
        ("posts.parquet", parquet.getvalue(), 2),
        ("posts.txt.zst", zstandard.compress(_lines("one")), 1),
    ):
        uri = _put(settings, f"corpora/{name}", content)
        assert _numbers(ingest_corpus(settings, uri)) == (texts, texts, 0, 0)


def test_a_bucket_or_key_that_is_not_there_is_named_with_the_setting(settings: Settings) -> None:
    for address in ("s3://no-such-bucket/corpora/x", f"s3://{settings.s3_bucket}/corpora/nothing"):
        with pytest.raises(CorpusError, match=rf"{address}.*TOOLFORMER_S3_ENDPOINT_URL"):
            ingest_corpus(settings, address)
