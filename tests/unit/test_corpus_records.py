import datetime
import json
from typing import Any

import pytest

from toolformer_ops.storage.corpus_records import Record, Rejection, escape_control_characters, read_record

DAY = datetime.date(2014, 5, 6)
OF_NO_DAY = ("date_not_understood",)
NO_ID = ("id_not_a_string_or_whole_number",)


def read(**fields: object) -> Record | Rejection:
    return read_record(json.dumps({"text": "a"} | fields).encode())


def test_a_whole_record_is_read() -> None:
    line = b'{"id": 7, "text": "A b.", "url": "https://x.org/2014/05/06/a", "date": "2014-05-06", "title": "T", "other": [1]}'
    assert read_record(line) == Record("A b.", "https://x.org/2014/05/06/a", DAY, "T", "7")


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"text": " a\\r\\n\\tb \\n"}\r', Record(" a\r\n\tb \n")),
        (b'{"text": "\\ud83d\\ude00"}', Record("\U0001f600")),
        (b'{"text": "a\x7f", "title": "b\x7f"}', Record("a\u2421", title="b\u2421", escaped_characters=1)),
    ],
    ids=["white space stays", "two surrogates are one character", "delete is escaped where JSON needs no backslash"],
)
def test_the_characters_of_a_text_are_those_of_the_line(line: bytes, record: Record) -> None:
    assert read_record(line) == record


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"', "corrupt_json"),
        (b'{"text": "a"} {"text": "b"}', "corrupt_json"),
        (b'{"text": "raw \x01 control"}', "corrupt_json"),
        (b"[" * 100_000, "corrupt_json"),
        (b'{"text": "a", "n": ' + b"1" * 5000 + b"}", "corrupt_json"),
        (b'["text"]', "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"null", "not_an_object"),
        (b'{"question": "2 + 2?", "answer": "4"}', "no_text"),
        (b"{}", "no_text"),
        (b'{"text": null}', "text_not_a_string"),
        (b'{"text": ["a"]}', "text_not_a_string"),
        (b'{"text": ""}', "empty_text"),
        (b'{"text": " \\n\\u00a0"}', "empty_text"),
        (b'{"text": "caf\xe9"}', "invalid_utf8"),
        (b"\xff\xfe{\x00", "invalid_utf8"),
        (b'{"text": "a \\ud800 b"}', "lone_surrogate"),
        (b'{"text": "a", "url": "\\udfff"}', "lone_surrogate"),
        (b'{"text": "a", "title": "\\udfff"}', "lone_surrogate"),
        (b'{"text": "a", "id": "\\udfff"}', "lone_surrogate"),
    ],
)
def test_bad_records_are_refused_with_their_reason(line: bytes, reason: str) -> None:
    found = read_record(line)
    assert isinstance(found, Rejection)
    assert found.reason == reason
    assert len(found.detail) <= 300


def test_details_of_refusals_can_be_stored() -> None:
    for line in (b'{"\\ud800\\u0000": 1}', b"\x00\x01{" * 200, b'{"text": 1, "\xf0\x9f\x98\x80": 2}'):
        found = read_record(line)
        assert isinstance(found, Rejection)
        assert "\x00" not in found.detail
        found.detail.encode("utf-8")


def test_control_characters_become_their_pictures_and_are_counted() -> None:
    text = "".join(map(chr, range(33))) + "\x7f\x80"
    escaped, count = escape_control_characters(text)
    assert count == 30  # 32 but tab, line feed, carriage return; and delete
    assert escaped[0] == "\u2400"
    assert escaped[27] == "\u241b"
    assert escaped[9:11] == "\t\n"
    assert escaped[13] == "\r"
    assert escaped[32:] == " \u2421\x80"


def test_a_record_with_control_characters_is_kept_escaped() -> None:
    record = read(text="a\x00b\x1b[31m", title="t\x07", url="u\x00")
    assert record == Record("a\u2400b\u241b[31m", url="u\u2400", title="t\u2407", escaped_characters=2)


@pytest.mark.parametrize(
    ("value", "day", "ignored"),
    [
        ("2014-05-06", DAY, ()),
        ("2014-05-06T23:59:59-08:00", DAY, ()),  # the day that is written
        ("2014-05-06 10:00", DAY, ()),
        (None, None, ()),
        ("", None, ()),
        *((value, None, OF_NO_DAY) for value in ("2014-02-30", "May 6, 2014", "2014", "1611010900000", "2014-05-061")),
        *((value, None, OF_NO_DAY) for value in (1611010900000, {})),
    ],
)
def test_a_date_is_the_day_that_is_written_or_left_out_and_said_so(value: object, day: Any, ignored: Any) -> None:
    assert read(date=value) == Record("a", document_date=day, ignored=ignored)


@pytest.mark.parametrize(
    ("value", "record_id", "ignored"),
    [
        ("p 1", "p 1", ()),
        (7, "7", ()),
        (-7, "-7", ()),
        (0, "0", ()),
        ("", None, ()),
        (None, None, ()),
        ("a\x00", "a\u2400", ()),
        ("x" * 300, "x" * 300, ()),
        ("x" * 301, None, ("id_too_long",)),
        (10**301, None, ("id_too_long",)),
        *((value, None, NO_ID) for value in (True, 1.5, [1], {})),
    ],
)
def test_an_id_is_a_string_or_a_whole_number_or_left_out_and_said_so(
    value: object, record_id: Any, ignored: Any
) -> None:
    assert read(id=value) == Record("a", record_id=record_id, ignored=ignored)


@pytest.mark.parametrize("value", [5, ["b"], 0, False, [], {}])
def test_urls_and_titles_that_are_no_strings_are_left_out_and_said_so(value: object) -> None:
    assert read(url=value, title=value) == Record("a", ignored=("url_not_a_string", "title_not_a_string"))
