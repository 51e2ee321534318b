"""A corpus may name the fields of its records otherwise."""

import datetime
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolformer_ops.errors import CorpusError, UsageError
from toolformer_ops.storage.corpora.addresses import (
    PRESETS,
    CorpusAddress,
    FieldNames,
    corpus_id_of,
    corpus_uri_of,
    normal_uri,
)
from toolformer_ops.storage.corpora.files import CorpusFile
from toolformer_ops.storage.corpora.record_rules import Record, Rejection
from toolformer_ops.storage.corpora.records import read_file
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits

DAY = datetime.date(2014, 5, 6)
LATER = "2019-04-20T22:02:02Z"

Kind = Callable[[dict[str, Any]], tuple[str, bytes]]


def _json_lines(fields: dict[str, Any]) -> tuple[str, bytes]:
    return "file:///a.jsonl", b"%s\n" % json.dumps(fields).encode() * 2


def _parquet(fields: dict[str, Any]) -> tuple[str, bytes]:
    target = io.BytesIO()
    pq.write_table(pa.table({name: [value] * 2 for name, value in fields.items()}), target)
    return "file:///a.parquet", target.getvalue()


def _read(kind: Kind, fields: dict[str, Any], *items: str) -> Record | Rejection:
    name, content = kind(fields)
    limits = UnpackingLimits()
    file = CorpusFile(name, lambda: io.BytesIO(content))
    records = [record for _, record in read_file(file, limits, FieldNames.of(items))]
    assert records == records[:1] * 2
    return records[0]


BOTH = pytest.mark.parametrize("kind", [_json_lines, _parquet])


@BOTH
@pytest.mark.parametrize(
    ("fields", "items", "record"),
    [
        ({"raw_content": "a"}, ["text=raw_content"], Record("a")),
        ({"raw_content": "a", "text": "b"}, ["text=raw_content"], Record("a")),
        ({"content": "a", "link": "u", "day": "2014-05-06", "head": "t", "key": 7},
         ["text=content", "url=link", "date=day", "title=head", "id=key"], Record("a", "u", DAY, "t", "7")),
        ({"Document Text": "a"}, ["text=Document Text"], Record("a")),
        ({"text": "a", "meta": {"date": "2014-05-06", "x": 1}}, ["date=meta.date"], Record("a", None, DAY)),
        ({"text": "a", "meta": {"page": {"url": "u"}}}, ["url=meta.page.url"], Record("a", "u")),
        ({"text": "a", "meta.date": "2014-05-06"}, ["date=meta.date"], Record("a", None, DAY)),
        # The day of a crawl is no day of writing, but bounds it.
        ({"text": "a", "date": LATER}, [], Record("a", None, datetime.date(2019, 4, 20))),
        ({"text": "a", "date": LATER}, ["crawled=date"], Record("a")),
        ({"text": "a", "date": LATER, "got": "2014-05-06"}, ["crawled=got"], Record("a", ignored=("date_after_crawl",))),
        ({"text": "a", "date": "2014-05-06", "got": LATER}, ["crawled=got"], Record("a", None, DAY)),
        # As their publishers write them.
        ({"text": "a", "url": "u", "timestamp": LATER}, ["c4"], Record("a", "u")),
        ({"raw_content": "a", "date_download": LATER, "title": "t"}, ["ccnet"], Record("a", title="t")),
        ({"text": "a", "created": "2014-05-06", "metadata": {"url": "u"}}, ["dolma"], Record("a", "u", DAY)),
        ({"text": "a", "id": "i", "url": "u", "date": LATER}, ["fineweb"], Record("a", "u", record_id="i")),
        ({"content": "a", "warc_headers": {"warc-target-uri": "u", "warc-date": LATER}}, ["oscar"], Record("a", "u")),
        ({"content": "a", "lang": "C"}, ["the_stack"], Record("a")),
    ],
)  # fmt: skip
def test_a_field_is_read_by_the_name_that_the_mapping_gives(kind, fields, items, record):
    assert _read(kind, fields, *items) == record


@BOTH
@pytest.mark.parametrize(
    ("fields", "items", "reason", "detail"),
    [
        ({"url": "u", "raw_content": "a"}, [], "no_text",
         "the field text, or another one by --field text=raw_content, found url, raw_content"),
        ({"url": "u", "raw_content": "a"}, ["text=raw"], "no_text",
         "the field raw, or another one by --field text=raw_content, found url, raw_content"),
        ({"Story": "a"}, [], "no_text", "by --field text=NAME, found Story"),
        ({"text": [1]}, [], "text_not_a_string", "found list"),
    ],
)  # fmt: skip
def test_a_record_without_the_text_names_the_fields_that_are_there(kind, fields, items, reason, detail):
    refusal = _read(kind, fields, *items)
    assert isinstance(refusal, Rejection)
    assert (refusal.reason, detail in refusal.detail) == (reason, True), refusal.detail


def test_keys_of_json_that_are_no_names_are_not_said():
    refusal = _read(_json_lines, {"ann.smith@example.org": "a", "12 Elm Street": 1, "body": 2})
    assert isinstance(refusal, Rejection)
    assert "found body, 2 more (a line of" in refusal.detail


def test_keys_of_json_that_one_record_alone_has_are_not_said():
    content = b'{"Smith": 1, "url": "u"}\n{"Jones": 2, "url": "v"}\n{"Miller": 3, "url": "w"}\n'
    limits = UnpackingLimits()
    refusals = [record for _, record in read_file(CorpusFile("a", lambda: io.BytesIO(content)), limits)]
    assert len(refusals) == 3
    for refusal in refusals:
        assert isinstance(refusal, Rejection)
        assert "found url, 1 more (a line of" in refusal.detail


def test_a_parquet_file_without_an_optional_field_that_the_mapping_names_is_refused():
    refusal = _read(_parquet, {"text": "a", "link": "u"}, "url=lnik")
    assert isinstance(refusal, Rejection)
    assert refusal.reason == "no_field"
    assert "expected the columns of url=lnik" in refusal.detail
    assert "found text, link" in refusal.detail


def test_a_json_record_without_an_optional_field_that_the_mapping_names_is_counted():
    assert _read(_json_lines, {"text": "a"}, "url=lnik") == Record("a", ignored=("no_url_field",))


def test_a_null_in_a_field_that_the_mapping_names_is_not_counted():
    assert _read(_json_lines, {"text": "a", "link": None}, "url=link") == Record("a")


@pytest.mark.parametrize(
    ("items", "found"),
    [
        (["raw_content"], "raw_content"),
        (["txt=raw_content"], "txt=raw_content"),
        (["text="], "text="),
        (["text=a\x1b[31m"], r"a\x1b"),
        (["text=" + "a" * 201], "200 characters"),
        (["text=a", "text=b"], "one name for text"),
        (["ccnet", "text=b"], "one name for text"),
        (["text=a --field url=b"], "expected a name"),
    ],
)
def test_what_is_no_mapping_is_refused(items, found):
    with pytest.raises(UsageError, match="--field: ") as refusal:
        FieldNames.of(items)
    assert found in str(refusal.value)


def test_lines_are_items_of_their_own():
    assert FieldNames.of(["text=a\nurl=b", "", "\n"]) == FieldNames(text="a", url="b")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_the_mapping_that_it_stands_for(preset):
    assert FieldNames.of([preset]) == FieldNames.of(PRESETS[preset]) != FieldNames()


URI = "s3://bucket/posts"


def test_a_corpus_without_a_mapping_keeps_its_id():
    assert corpus_id_of(URI) == "50176b9bd4f96e8b"


@pytest.mark.parametrize("items", [["text=text"], ["url=url", "date=date"], [""]])
def test_a_mapping_to_the_usual_names_is_no_mapping(items):
    assert str(CorpusAddress(URI, FieldNames.of(items))) == URI


def test_the_same_files_under_another_mapping_are_another_corpus():
    mappings: list[list[str]] = [
        [],
        ["text=raw_content"],
        ["text=content"],
        ["text=content", "url=link"],
        ["ccnet"],
    ]
    addresses = [str(CorpusAddress(URI, FieldNames.of(items))) for items in mappings]
    assert len({corpus_id_of(address) for address in addresses}) == len(mappings)


def test_the_order_of_the_items_changes_no_corpus():
    one, other = FieldNames.of(["url=b", "text=a"]), FieldNames.of(["text=a", "url=b"])
    assert (
        str(CorpusAddress(URI, one))
        == str(CorpusAddress(URI, other))
        == f"{URI} --field text=a --field url=b"
    )


@pytest.mark.parametrize("item", ["text=a", "text=a b", "text=--field", "url=x/y.z=1", "text=\u00e9 --field"])
def test_an_address_is_read_back_as_it_was_written(item):
    address = CorpusAddress("s3://bucket/a --field b/#?x=1", FieldNames.of([item]))
    assert CorpusAddress.parse(str(address)) == address


def test_the_files_of_an_address_are_written_in_one_way():
    assert corpus_uri_of("s3://bucket/posts/ --field text=a") == f"{URI} --field text=a"


def test_a_path_that_looks_like_a_mapping_is_refused():
    with pytest.raises(CorpusError, match="Give the names of fields apart"):
        normal_uri("/posts --field text=a")
