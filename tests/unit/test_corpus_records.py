import datetime
import io
import json

import pytest

from toolformer_ops.records import document_id_of
from toolformer_ops.storage.corpora.files import CorpusFile
from toolformer_ops.storage.corpora.record_rules import Record, Rejection, escape_control_characters
from toolformer_ops.storage.corpora.records import read_file, read_record
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits

DAY = datetime.date(2014, 5, 6)
OF_NO_DAY = ("date_not_understood",)
NO_ID = ("id_not_a_string_or_whole_number",)


def read(**fields: object) -> Record | Rejection:
    return read_record(json.dumps({"text": "a"} | fields).encode())


def test_the_characters_of_a_record_are_those_of_the_line():
    whole = b'{"id": 7, "text": "A b.", "url": "https://x.org/a", "date": "2014-05-06", "title": "T", "other": [1]}'
    for line, record in (
        (whole, Record("A b.", "https://x.org/a", DAY, "T", "7")),
        (b'{"text": " a\\r\\n\\tb \\n"}\r', Record(" a\r\n\tb \n")),  # white space stays
        (b'{"text": "\\ud83d\\ude00"}', Record("\U0001f600")),  # two surrogates are one character
        (
            b'{"text": "a\x7f\\u001b", "title": "b\x7f"}',
            Record("a\x7f\x1b", title="b\u2421", has_control_characters=True),
        ),
        (b'{"text": "a", "url": "u\\u0000"}', Record("a", url="u\u2400")),
    ):
        assert read_record(line) == record


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"', "corrupt_json"),
        (b'{"text": "a"} {"text": "b"}', "corrupt_json"),
        (b'{"text": "raw \x01 control"}', "corrupt_json"),
        (b"[" * 100_000, "corrupt_json"),
        (b'{"text": "a", "n": ' + b"1" * 5000 + b"}", "corrupt_json"),
        (b"\x00\x01{" * 200, "corrupt_json"),
        (b'["text"]', "not_an_object"),
        (b"null", "not_an_object"),
        (b'{"\\ud800\\u0000": 1}', "no_text"),
        (b'{"text": null}', "text_not_a_string"),
        (b'{"text": 1, "\xf0\x9f\x98\x80": 2}', "text_not_a_string"),
        (b'{"text": ""}', "empty_text"),
        (b'{"text": " \\n\\u00a0"}', "empty_text"),
        (b'{"text": "caf\xe9"}', "invalid_utf8"),
        (b'{"text": "a \\ud800 b"}', "lone_surrogate"),
        *((b'{"text": "a", "%s": "\\udfff"}' % name, "lone_surrogate") for name in (b"url", b"title", b"id")),
    ],
)
def test_bad_records_are_refused_with_their_reason_which_can_be_stored(line, reason):
    found = read_record(line)
    assert isinstance(found, Rejection)
    assert found.reason == reason
    assert len(found.detail) <= 300
    assert "\x00" not in found.detail
    found.detail.encode("utf-8")


@pytest.mark.parametrize(
    ("written", "text", "escaped"),
    [
        (r"The end of page one.\n\fPage two.", "The end of page one.\n\fPage two.", 0),  # of pdftotext
        (r"\u001b[1mbold\u001b[0m", "\x1b[1mbold\x1b[0m", 0),
        (r"a\u0008\u0007\u000b\u001f", "a\b\a\v\x1f", 0),
        ("a\x7f\x85\x9b", "a\x7f\x85\x9b", 0),
        (r"a\r\n\tb\u2028\u202e", "a\r\n\tb\u2028\u202e", 0),
        ("a\u240c", "a\u240c", 0),  # a picture is a character like others
        (r"a\u0000b\u0000\f", "a\u2400b\u2400\f", 2),  # which Postgres cannot store
    ],
)
def test_a_text_keeps_its_control_characters(written, text, escaped):
    record = read_record(f'{{"text": "{written}"}}'.encode())
    assert isinstance(record, Record)
    assert (record.text, record.escaped_characters) == (text, escaped)


@pytest.mark.parametrize("text", ["Plain.\r\n\tText.", "caf\u00e9 \u2028 \x85 \u240c"])
def test_the_id_of_a_text_without_control_characters_is_that_of_before(text):
    record = read(text=text)
    assert isinstance(record, Record)
    assert record.former_document_id is None
    assert document_id_of(escape_control_characters(text)[0]) == record.document_id


def test_a_text_with_control_characters_had_another_id():
    record = read(text="a\fb")
    assert isinstance(record, Record)
    assert record.document_id == document_id_of("a\fb")
    assert record.former_document_id == document_id_of("a\u240cb")


def test_control_characters_are_counted_as_they_become_their_pictures():
    escaped, count = escape_control_characters("".join(map(chr, range(33))) + "\x7f\x80")
    assert count == 30  # 32 but tab, line feed, carriage return; and delete
    kept = {9: "\t", 10: "\n", 13: "\r"}
    pictures = "".join(kept.get(number, chr(0x2400 + number)) for number in range(32))
    assert escaped == f"{pictures} \u2421\x80"


def test_a_date_is_the_day_that_is_written_or_left_out_with_a_reason():
    for value, day, ignored in (
        ("2014-05-06", DAY, ()),
        ("2014-05-06T23:59:59-08:00", DAY, ()),  # the day that is written
        (None, None, ()),
        ("", None, ()),
        *(
            (value, None, OF_NO_DAY)
            for value in ("2014-02-30", "05/06/2014", "2014", "2014-05-061", 16110109000000)
        ),
        ("1970-01-01", None, ("date_stands_for_none",)),
        ("1914-05-06", None, ("date_out_of_range",)),
        (1399334400000, DAY, ()),
    ):
        assert read(date=value) == Record("a", document_date=day, ignored=ignored)


def test_an_id_is_a_string_or_a_whole_number_or_left_out_with_a_reason():
    for value, record_id, ignored in (
        ("p 1", "p 1", ()),
        (0, "0", ()),
        ("", None, ()),
        (None, None, ()),
        ("a\x00", "a\u2400", ()),
        ("x" * 300, "x" * 300, ()),
        ("x" * 301, None, ("id_too_long",)),
        (10**301, None, ("id_too_long",)),
        *((value, None, NO_ID) for value in (True, 1.5, [1])),
    ):
        assert read(id=value) == Record("a", record_id=record_id, ignored=ignored)


def test_a_title_or_address_that_is_no_string_is_left_out_with_a_reason():
    for value in (5, ["b"], 0, False):
        assert read(url=value, title=value) == Record("a", ignored=("url_not_a_string", "title_not_a_string"))


def _read_lines(*lines: bytes) -> list[tuple[int, Record | Rejection]]:
    content = b"\n".join(lines) + b"\n"
    limits = UnpackingLimits()
    return list(read_file(CorpusFile("file:///a.jsonl", lambda: io.BytesIO(content)), limits))


@pytest.mark.parametrize(
    ("lines", "reason", "remedy"),
    [
        ((b"[", b'{"text": "a"},', b'{"text": "b"}', b"]"), "json_array", "jq -c '.[]'"),
        ((b'[{"text": "a"},', b' {"text": "b"}]'), "json_array", "jq -c '.[]'"),
        ((b'[{"text": "a"}, {"text": "b"}]',), "json_array", "jq -c '.[]'"),
        ((b"{", b'  "text": "a"', b"}"), "pretty_printed_json", "jq -c ."),
        ((b"text,url", b"It is one, or two,https://x.org"), "delimited_text", "read_csv(FILE).to_json"),
        ((b"id\tbody", b"7\tIt is."), "delimited_text", "read_csv(FILE).to_json"),
    ],
)
def test_a_file_of_other_json_is_refused_once_with_the_remedy(lines, reason, remedy):
    [(line, refused)] = _read_lines(*lines)
    assert isinstance(refused, Rejection)
    assert (line, refused.reason) == (0, reason)
    assert remedy in refused.detail


def test_prose_with_commas_is_no_table():
    records = _read_lines(b"Well, it is a text of some length, and no table.", b"So, it is, too, no record.")
    assert [refused.reason for _, refused in records if isinstance(refused, Rejection)] == [
        "corrupt_json"
    ] * 2


@pytest.mark.parametrize("first", [b'[{"text": "a"}]', b"[]", b"{", b'["text"]'])
def test_a_line_that_is_no_object_does_not_refuse_the_file(first):
    records = _read_lines(first, b'{"text": "b"}')
    assert [number for number, _ in records] == [1, 2]
    assert records[1] == (2, Record("b"))
