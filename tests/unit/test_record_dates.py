"""The day that a record's date says, as corpora write it."""

import datetime

import pytest

from toolformer_ops.storage.corpora.record_rules import NOT_UNDERSTOOD, OUT_OF_RANGE, STANDS_FOR_NONE, day_of

TODAY = datetime.date(2026, 11, 26)
JANUARY_30 = datetime.date(2023, 1, 30)


@pytest.mark.parametrize(
    "value",
    [
        "2023-01-30",
        "2023-01-30T22:02:02Z",
        "2023-01-30T22:02:02+09:00",
        "2023-01-30 10:00:00 UTC",
        "2023/01/30",
        "2023/01/30 10:00:00",
        "2023-W05-1",
        "Mon, 30 Jan 2023 10:00:00 GMT",
        "30 Jan 2023 10:00:00 -0800",
        1675036800,
        1675036800.0,
        1675036800000,
        "1675036800",
        "20230130",
        20230130,
        "30.01.2023",
        "January 30, 2023",
        "Jan. 30, 2023",
        "30 January 2023",
        "2023-01-30T10:00:00+01:00[Europe/Berlin]",
        "2023-01-30T10:00:00.123456Z",
        1675036800000000,
        {"$date": "2023-01-30T10:00:00Z"},
        {"$date": {"$numberLong": "1675036800000"}},
        datetime.date(2023, 1, 30),
    ],
)
def test_a_day_is_read_in_the_ways_in_which_corpora_write_it(value):
    assert day_of(value, TODAY) == (JANUARY_30, None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("May", NOT_UNDERSTOOD),
        ("2023-02-30", NOT_UNDERSTOOD),
        ("2023-01-30 of a long year", NOT_UNDERSTOOD),
        ("01/02/2023", NOT_UNDERSTOOD),  # day or month first?
        (True, NOT_UNDERSTOOD),
        (float("nan"), NOT_UNDERSTOOD),
        ([2023], NOT_UNDERSTOOD),
        ("Monday 30, 2023", NOT_UNDERSTOOD),
        ("99999999", NOT_UNDERSTOOD),
        ({"day": "2023-01-30"}, NOT_UNDERSTOOD),
        ({"$date": {"$date": {"$oid": "1"}}}, NOT_UNDERSTOOD),
        ("Mon, 99 Jan 2023 10:00:00 GMT", NOT_UNDERSTOOD),
        ("0001-01-01T00:00:00", STANDS_FOR_NONE),
        ("1970-01-01", STANDS_FOR_NONE),
        ("1900-01-01", STANDS_FOR_NONE),
        ("9999-12-31", STANDS_FOR_NONE),
        ("1989-12-31", OUT_OF_RANGE),
        ("2026-11-28", OUT_OF_RANGE),
        ("2039-01-01", OUT_OF_RANGE),
    ],
)
def test_what_says_no_day_has_its_reason(value, reason):
    assert day_of(value, TODAY) == (None, reason)


@pytest.mark.parametrize("value", [None, ""])
def test_no_date_has_no_reason(value):
    assert day_of(value, TODAY) == (None, None)


@pytest.mark.parametrize("value", ["1990-01-01", "2026-11-26", "2026-11-27"])
def test_days_of_the_web_up_to_tomorrow_are_dates(value):
    assert day_of(value, TODAY) == (datetime.date.fromisoformat(value), None)
