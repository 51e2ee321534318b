"""The Calendar knows a document's day from its record or its address, and never fills in what is missing."""

import datetime

from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision
from toolformer_ops.tools.calendar import TOOL, date_in_url, write_day

JANUARY_30 = datetime.date(2023, 1, 30)

OF_JANUARY_30 = [
    "2023/01/30/a-title/",
    "2023/1/30.html",
    "politics/2023/jan/30/a-title",
    "2023/0130/c90000.html",
    "2023-01/30/content_1.htm",
    "posts/2023-01-30-a-title/",
    "posts/a_title_2023_01_30",
    "meldung/20230130T1015/a-title",
    "30-01-2023-a-title",  # there is no month 30
    "30-jan-2023/",
    "a-title-january-30-2023",
    "show?path=%2F2023%2F01%2F30%2Fa-title",
    "2023/01/30/what-happened-on-2001-09-11/",  # the folders go before the name
]
ADDRESSES = {
    **{f"https://example.org/{path}": "2023-01-30" for path in OF_JANUARY_30},
    "example.org/2023/01/30/a-title": "2023-01-30",
    "https://example.org/03-03-2023": "2023-03-03",
    "https://example.org/02-01-2023-a-title": "date_ambiguous_in_url",
    "https://example.org/2023/01/a-title/": "date_incomplete_in_url",
    # a title of January, not its 30th
    "https://example.org/2023/01/30-things-to-do/": "date_incomplete_in_url",
    "https://example.org/a-title-2023-01": "date_incomplete_in_url",
    "https://example.org/2023/02/30/a-title": "date_invalid_in_url",
    "https://example.org/1989/sept/30/a-title": "date_invalid_in_url",
    "https://example.org/1990/sept/30/a-title": "1990-09-30",
    "https://example.org/2040/sept/30/a-title": "date_invalid_in_url",
    "https://example.org/2023-01-30-to-2023-02-02": "dates_conflict_in_url",
    "https://example.org/a-title": "no_date_in_url",
    "https://example.org/ireland-19056312": "no_date_in_url",  # eight digits, but no month 63
    "https://example.org/?hash=ab20230130cd": "no_date_in_url",
    "https://web.archive.org/web/20230130194448/http://example.org": "no_date_in_url",  # when it was archived
    "https://web.archive.org/web/20150102/http://example.org/2023/01/30/a": "2023-01-30",  # the archived page's
    "https://example.org/2021/09/september-11-2001-remembered": "dates_conflict_in_url",  # its folder says another month
    "https://example.org/2023/01/january-30-2023-remembered": "2023-01-30",
    "https://example.org/search?from=2020-01-01&q=bread": "no_date_in_url",  # what is asked for
    "https://example.org/search?start_date=2020-01-01&until=2020-02-01": "no_date_in_url",
    "https://example.org/page?date=2023-01-30": "2023-01-30",
    "https://2023-01-30.example.org/a-title": "no_date_in_url",  # the host is not looked at
    "http://[::1/2023/01/30": "no_date_in_url",
}
"""Addresses with their day, or with the reason why they have none."""


def test_a_date_is_only_found_complete():
    found = {url: date_in_url(url) for url in ADDRESSES}
    assert {url: one.date.isoformat() if one.date else one.reason for url, one in found.items()} == ADDRESSES
    assert all((one.reason == "date_in_url") == (one.date is not None) for one in found.values())


LEAP_DAY = "https://example.org/2020/02/29/a-title/"


def test_calls_of_a_document_with_a_day_ask_for_that_day():
    for url, document_date, reason, day in (
        (LEAP_DAY, JANUARY_30, "earlier_date_in_url", "2020-02-29"),  # the record has the day of the crawl
        (LEAP_DAY, datetime.date(2019, 1, 1), "date_in_record", "2019-01-01"),
        ("https://example.org/a-title", JANUARY_30, "date_in_record", "2023-01-30"),
        (LEAP_DAY, None, "date_in_url", "2020-02-29"),
        (None, None, "no_url", None),
        ("https://example.org/2023/01/", None, "date_incomplete_in_url", None),
    ):
        document = Document.of("Some text.", url, document_date)
        assert TOOL.filter(document) == [FilterDecision(day is not None, reason, end_char=10)]
        assert TOOL.effective_input("", document) == day


def test_a_call_that_asks_for_another_day_has_no_result():
    chosen = TOOL.effective_input("2020-01-01", Document.of("Some text.", document_date=JANUARY_30))
    assert chosen is not None
    assert TOOL.run([chosen])[0].reason == "takes_no_input"


def test_weekdays_follow_one_another_through_a_leap_year():
    days = [
        datetime.date(2024, 1, 1) + datetime.timedelta(days=number) for number in range(366)
    ]  # from a Monday
    names = ["Monday,", "Tuesday,", "Wednesday,", "Thursday,", "Friday,", "Saturday,", "Sunday,"]
    assert [write_day(day).split()[2] for day in days] == (names * 53)[:366]
    assert TOOL.run(["2017-03-09"])[0].results == ("Today is Thursday, March 9, 2017.",)  # of the paper


def test_a_wrong_input_does_not_stop_the_others():
    outputs = TOOL.run(["2023-02-30", "2023-01-30", "soon", "", "20230130"])
    assert [output.reason for output in outputs] == [
        "not_a_date",
        None,
        "not_a_date",
        "not_a_date",
        "not_a_date",
    ]
