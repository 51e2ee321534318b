import gzip
import io
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pydantic import SecretStr
from sqlalchemy import Engine

from tests.run_sql import run_sql
from tests.servers import settings_of
from toolformer_ops.errors import EXIT_USAGE, CorpusError, UsageError, exit_code
from toolformer_ops.records import document_id_of
from toolformer_ops.stages import run_setup
from toolformer_ops.stages.ingestion import IngestReport, ingest_corpus
from toolformer_ops.storage.corpora import files
from toolformer_ops.storage.corpora import reading as corpus_reading
from toolformer_ops.storage.corpora.reading import REFUSED_ROWS, Reading
from toolformer_ops.storage.corpora.record_rules import escape_control_characters
from toolformer_ops.storage.corpora.records import read_records
from toolformer_ops.storage.history.forgetting import forget
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database


@pytest.fixture
def local_settings(postgres_dsn, monkeypatch):
    monkeypatch.setattr(files, "MOST_LINE_BYTES", 2000)
    return settings_of(postgres_dsn)


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


def test_a_record_arrives_with_all_that_it_says(tmp_path, local_settings, engine):
    path = tmp_path / "posts.jsonl"
    path.write_text(
        '{"id": "p1", "text": "One\\u0007\\u0000.", "url": "https://x/1", "date": "2014-05-06", "title": "T"}\n'
    )
    ingest_corpus(local_settings, str(path))
    [row] = run_sql(
        engine, "select document_id, text, url, document_date::text, title, escaped_characters from documents"
    )
    assert row == (document_id_of("One\x07\u2400."), "One\x07\u2400.", "https://x/1", "2014-05-06", "T", 1)
    assert run_sql(engine, "select uri from corpora") == [(f"file://{path}",)]


CONTROLS = "".join(map(chr, range(1, 0xA0))) + "\\N \\. \\x00 end"


def _with_controls(folder: Path, form: str) -> Path:
    texts = [CONTROLS, f"{CONTROLS} 2", "\f", "one\n\ftwo"]
    path = folder / f"posts.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"text": texts}), path)
    else:
        path.write_bytes(_lines(*texts))
    return path


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_text_is_stored_with_its_control_characters(tmp_path, local_settings, engine, form):
    report = ingest_corpus(local_settings, str(_with_controls(tmp_path, form)))
    assert _numbers(report) == (4, 3, 0, 1)
    assert report.rejected_by_reason == {"empty_text": 1}  # a form feed is white space
    texts = {text for [text] in run_sql(engine, "select text from documents")}
    assert texts == {CONTROLS, f"{CONTROLS} 2", "one\n\ftwo"}


def test_a_text_that_was_forgotten_with_pictures_of_its_control_characters_stays_forgotten(
    tmp_path, local_settings, engine
):
    former = document_id_of("one\u240ctwo")
    run_sql(engine, f"insert into forgotten_documents (document_id) values ('{former}')")
    path = tmp_path / "posts.jsonl"
    path.write_bytes(_lines("one\ftwo", "three\ffour", "one\u240ctwo"))
    assert ingest_corpus(local_settings, str(path)).rejected_by_reason == {"forgotten": 2}
    assert run_sql(engine, "select text from documents") == [("three\ffour",)]


def test_a_corpus_of_before_is_read_again_with_its_control_characters(
    tmp_path, local_settings, engine, monkeypatch
):
    def read_as_before(*arguments: Any) -> Iterator[tuple[int, Any, int | None]]:
        for line, record, line_hash in read_records(*arguments):
            yield line, record._replace(text=escape_control_characters(record.text)[0]), line_hash

    path = tmp_path / "posts.jsonl"
    path.write_bytes(_lines("one\ftwo", "three"))
    with monkeypatch.context() as before:
        before.setattr(corpus_reading, "READING_VERSION", 2)
        before.setattr(corpus_reading, "read_records", read_as_before)
        ingest_corpus(local_settings, str(path))
    report = ingest_corpus(local_settings, str(path))
    assert (report.version, report.added, report.removed, report.kept) == (2, 1, 1, 1)
    now = "select text from corpus_documents join documents using (document_id) where left_version is null"
    assert {text for [text] in run_sql(engine, now)} == {"one\ftwo", "three"}


def test_one_file_under_two_mappings_is_two_corpora(tmp_path, local_settings, engine):
    path = tmp_path / "posts.jsonl"
    path.write_text('{"text": "One.", "body": "Two."}\n')
    ingest_corpus(local_settings, str(path))
    ingest_corpus(local_settings, f"{path} --field text=body")
    corpora = run_sql(
        engine,
        "select corpora.uri, documents.text from corpora join corpus_documents using (corpus_id) "
        "join documents using (document_id) order by uri",
    )
    assert [tuple(row) for row in corpora] == [
        (f"file://{path}", "One."),
        (f"file://{path} --field text=body", "Two."),
    ]


def test_a_corpus_with_a_mapping_is_forgotten_by_its_address(tmp_path, local_settings, engine):
    path = tmp_path / "posts.jsonl"
    path.write_text('{"text": "One.", "body": "Two."}\n')
    for address in (str(path), f"{path} --field text=body"):
        ingest_corpus(local_settings, address)
    forget(local_settings, corpus=f"{path} --field text=body")
    assert run_sql(engine, "select text from documents") == [("One.",)]


def test_a_corpus_of_other_fields_cannot_be_run_before_they_are_named(tmp_path, local_settings):
    path = tmp_path / "posts.jsonl"
    path.write_text('{"url": "u", "raw_content": "Two."}\n' * 2)
    ingest_corpus(local_settings, str(path))
    with (
        database.transaction(database.connect(local_settings)) as connection,
        pytest.raises(CorpusError, match=r"no_text: .* --field text=raw_content, found url, raw_content"),
    ):
        run_setup._require_corpus(connection, f"file://{path}")


def test_a_text_has_the_url_of_the_first_record_with_it(tmp_path, local_settings, engine):
    path = tmp_path / "posts.jsonl"
    records = (
        {"text": "One.", "url": f"https://x/{number}", "date": f"2014-05-0{number}"} for number in (1, 2)
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    ingest_corpus(local_settings, str(path))
    rows = run_sql(
        engine, "select url, document_date::text from documents where text = 'One.' and variant_of is null"
    )
    assert [tuple(row) for row in rows] == [("https://x/1", "2014-05-01")]


def test_a_batch_ends_when_its_characters_are_many(tmp_path, local_settings, engine, monkeypatch):
    monkeypatch.setattr(corpus_reading, "CHARACTERS_PER_TRANSACTION", 25)
    sizes: list[int] = []
    write_batch = Reading.write_batch

    def counted(reading: Reading) -> None:
        sizes.append(len(reading.unwritten))
        write_batch(reading)

    monkeypatch.setattr(Reading, "write_batch", counted)
    path = tmp_path / "posts.jsonl"
    path.write_bytes(_lines(*(f"ten characters and more {number}" for number in range(3))))
    ingest_corpus(local_settings, str(path))
    assert [size for size in sizes if size] == [1, 1, 1]
    assert run_sql(engine, "select count(*) from documents") == [(3,)]


def _folder_of_small_files(folder: Path, files: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(files):
        (folder / f"{number:02d}.jsonl").write_bytes(_lines(f"text {number}"))


@pytest.fixture
def transactions(monkeypatch):
    """How many files each micro-batch ends."""
    files: list[int] = []
    write_batch = Reading.write_batch

    def counted(reading: Reading) -> None:
        files.append(len(reading.ended))
        write_batch(reading)

    monkeypatch.setattr(Reading, "write_batch", counted)
    return files


def test_many_small_files_go_through_one_transaction(tmp_path, local_settings, engine, transactions):
    _folder_of_small_files(tmp_path / "posts", 40)
    assert _numbers(ingest_corpus(local_settings, str(tmp_path / "posts"))) == (40, 40, 0, 0)
    assert transactions == [40]


def test_a_transaction_ends_when_its_files_are_many(
    tmp_path, local_settings, engine, transactions, monkeypatch
):
    monkeypatch.setattr(corpus_reading, "FILES_PER_TRANSACTION", 15)
    _folder_of_small_files(tmp_path / "posts", 40)
    assert _numbers(ingest_corpus(local_settings, str(tmp_path / "posts"))) == (40, 40, 0, 0)
    assert transactions == [15, 15, 10]


def test_the_lines_that_changed_files_held_are_fetched_by_one_statement(
    tmp_path, local_settings, engine, monkeypatch
):
    _folder_of_small_files(tmp_path / "posts", 40)
    ingest_corpus(local_settings, str(tmp_path / "posts"))
    for path in (tmp_path / "posts").iterdir():
        path.write_bytes(path.read_bytes() + _lines(f"more of {path.name}"))
    statements = Counter[str]()
    fetch_all = database.fetch_all

    def counted(on: Any, statement: Any, /, **parameters: object) -> Any:
        statements[statement.name] += 1
        return fetch_all(on, statement, **parameters)

    monkeypatch.setattr(database, "fetch_all", counted)
    report = ingest_corpus(local_settings, str(tmp_path / "posts"))
    assert (report.added, report.kept) == (40, 40)
    assert [count for name, count in statements.items() if "held_lines" in name] == [1]


def test_the_log_says_how_far_an_ingestion_is(tmp_path, local_settings, engine, monkeypatch, caplog):
    monkeypatch.setattr(corpus_reading, "PROGRESS_SECONDS", 0)
    _folder_of_small_files(tmp_path / "posts", 3)
    with caplog.at_level("INFO"):
        ingest_corpus(local_settings, str(tmp_path / "posts"))
    uri = f"file://{tmp_path}/posts"
    assert f"ingesting {uri}: 2 of 3 files done, at line 1 of {uri}/02.jsonl" in caplog.messages


def test_every_record_is_accepted_or_a_duplicate_or_rejected_at_its_line_for_a_reason(
    tmp_path, local_settings, engine
):
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
    assert (_numbers(report), report.files, report.added) == ((18, 6, 2, 10), 5, 6)
    rejected = run_sql(
        engine, "select right(file_uri, 10), line, reason from rejected_documents order by file_uri, line"
    )
    reasons = "corrupt_json not_an_object no_text text_not_a_string empty_text invalid_utf8 lone_surrogate line_too_long"
    assert rejected[:8] == [
        ("us/a.jsonl", line, reason) for line, reason in enumerate(reasons.split(), start=5)
    ]
    assert rejected[8:] == [("us/d.jsonl", 0, "empty_file"), ("e.jsonl.gz", 0, "unreadable_file")]
    assert dict.fromkeys((row[2] for row in rejected), 1) == report.rejected_by_reason
    assert run_sql(engine, "select sum(records) from rejected_records") == [(10,)]
    files = run_sql(
        engine, "select records, accepted, duplicates, rejected from corpus_files order by file_uri"
    )
    assert files == [(12, 3, 1, 8), (2, 1, 1, 0), (1, 1, 0, 0), (1, 0, 0, 1), (2, 1, 0, 1)]
    lines = {"one": 1, "two": 2, "three": 13, "four": 2, "five": 1, "six": 1}
    assert _ordinals(engine) == [(ordinal, text, line) for ordinal, (text, line) in enumerate(lines.items())]
    # Again: no file is read, and nothing changes.
    before = run_sql(engine, "select *, xmin from corpus_documents")
    again = ingest_corpus(local_settings, f"file://{folder}")
    assert (_numbers(again), again.unchanged_files, again.added) == (_numbers(report), 5, 0)
    assert run_sql(engine, "select *, xmin from corpus_documents") == before


PASSWORD = "hunter2-of-the-owner"


def test_a_corpus_leads_to_no_secret(local_settings, engine):
    state = local_settings.state_dir
    state.mkdir()
    (state / "secrets.json").write_text(json.dumps({"postgres_owner": PASSWORD}, indent=1))
    for address in (
        f"{state}/secrets.json",
        str(state),
        f"{state}/../state/secrets.json",
        "/proc/self/environ",
    ):
        with pytest.raises(UsageError, match="expected files that may be read"):
            ingest_corpus(local_settings, address)
    assert run_sql(engine, "select * from corpora") == []


def test_what_leads_out_of_the_folder_of_a_corpus_is_counted(tmp_path, local_settings, engine):
    state = local_settings.state_dir
    state.mkdir()
    (state / "secrets.json").write_text(json.dumps({"postgres_owner": PASSWORD}, indent=1))
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(_lines("a", "b"))
    (folder / "b.jsonl").symlink_to(state / "secrets.json")
    for _ in range(2):  # again: nothing is read twice
        report = ingest_corpus(local_settings, str(folder))
        assert (_numbers(report), report.rejected_by_reason) == ((3, 2, 0, 1), {"outside_corpus": 1})
    assert (report.version, report.unchanged_files) == (1, 2)
    assert run_sql(engine, "select line, reason from rejected_documents") == [(0, "outside_corpus")]
    tables = run_sql(
        engine, "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = 'public'"
    )
    assert not any(PASSWORD in str(run_sql(engine, f"select * from {table}")) for [table] in tables)
    (folder / "b.jsonl").unlink()
    (folder / "b.jsonl").write_bytes(_lines("c"))  # the file itself is read
    assert _numbers(ingest_corpus(local_settings, str(folder))) == (3, 3, 0, 0)
    assert run_sql(engine, "select * from rejected_documents") == []


def test_a_refused_record_is_not_quoted_in_the_database(tmp_path, local_settings, engine):
    table = pa.table({"text": pa.array([PASSWORD.encode() + b"\xff"], pa.binary()).cast(pa.large_binary())})
    pq.write_table(table, tmp_path / "a.parquet")
    refused = (
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
    (tmp_path / "b.jsonl").write_bytes(b"\n".join(refused).replace(b"PASSWORD", PASSWORD.encode()) + b"\n")
    (tmp_path / "c.jsonl.gz").write_bytes(PASSWORD.encode())
    report = ingest_corpus(local_settings, str(tmp_path), accept_shrink=True)
    assert report.documents == 0
    assert report.rejected == len(run_sql(engine, "select * from rejected_documents")) >= 11
    details = [str(detail) for [detail] in run_sql(engine, "select detail from rejected_documents")]
    assert not any(word[:4] in detail for detail in details for word in (PASSWORD, PASSWORD[8:]))
    assert any("a line of 20 bytes" in detail for detail in details)


def test_of_many_refused_records_few_have_rows_though_all_are_counted(tmp_path, local_settings, engine):
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
    rows = "select reason, count(*), max(line) from rejected_documents group by 1 order by 1"
    assert run_sql(engine, rows) == [
        ("corrupt_json", REFUSED_ROWS, REFUSED_ROWS),
        ("no_text", REFUSED_ROWS, 4 * REFUSED_ROWS + 2),
        ("not_an_object", 1, 4 * REFUSED_ROWS + 4),
    ]


def test_of_ingestions_at_once_none_writes_anything_twice(tmp_path, local_settings, engine):
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


def test_a_corpus_that_is_not_there_or_has_no_name_in_utf_8_fails_before_the_database_is_asked(
    tmp_path, s3_settings
):
    nowhere = s3_settings.model_copy(update={"database_dsn": SecretStr("postgresql://u@127.0.0.1:1/d")})
    (tmp_path / "caf\udce9.jsonl").write_bytes(_lines("one"))  # the byte E9 alone, as Latin-1 writes it
    for address, named in (
        (str(tmp_path / "no_such_file.jsonl"), r"no_such_file\.jsonl"),
        (str(tmp_path / "caf\udce9.jsonl"), r"in UTF-8, found b'file:///.*caf\\xe9\.jsonl'"),
        ("s3://no-such-bucket/corpora/x", "no-such-bucket.*TOOLFORMER_S3_ENDPOINT_URL"),
        (f"s3://{s3_settings.s3_bucket}/corpora/nothing", "corpora/nothing.*TOOLFORMER_S3_ENDPOINT_URL"),
    ):
        with pytest.raises(CorpusError, match=named) as caught:
            ingest_corpus(nowhere, address)
        assert exit_code(caught.value) == EXIT_USAGE


def test_a_folder_on_s3_is_read_in_the_order_of_its_keys_each_etag_once(settings, monkeypatch):
    store, parquet = ObjectStore(settings), io.BytesIO()
    pq.write_table(pa.table({"text": ["6", "7"]}), parquet)
    for key, content in (
        ("x/b.jsonl.gz", gzip.compress(_lines("4", "5"))),
        ("x/c.parquet", parquet.getvalue()),
        ("x/a.jsonl", _lines(*"123") + b"{\n"),
        ("x/README.md", b"no corpus"),
        ("xy.jsonl", _lines("another corpus")),
    ):
        store.put_if_absent(f"corpora/{key}", content)
    first = ingest_corpus(settings, f"s3://{settings.s3_bucket}/corpora/x/")
    assert _numbers(first) == (8, 7, 0, 1)
    assert "".join(str(text) for _, text, _ in _ordinals(database.connect(settings))) == "1234567"
    store.put("corpora/x/b.jsonl.gz", gzip.compress(_lines("4", "8")), "application/gzip")  # as many bytes
    store.delete("corpora/x/c.parquet")
    opened: list[str] = []
    open_uri = ObjectStore.open_uri
    monkeypatch.setattr(
        ObjectStore, "open_uri", lambda self, uri: (opened.append(uri), open_uri(self, uri))[1]
    )
    report = ingest_corpus(settings, f"s3://{settings.s3_bucket}/corpora/x")
    assert {uri.rpartition("/")[2] for uri in opened} == {"b.jsonl.gz", "README.md"}  # how the latter begins
    assert (report.files, report.unchanged_files) == (2, 1)
    assert (report.added, report.removed, report.kept) == (1, 3, 4)
