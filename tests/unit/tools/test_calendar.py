"""The Calendar knows a document's day from its record or its address, and never fills in what is missing."""

import datetime
import locale

import pytest

from toolformer_ops.records import Document
from toolformer_ops.tools.calendar import TOOL, date_in_url, write_day

JANUARY_30 = datetime.date(2023, 1, 30)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/2023/01/30/a-title/",
        "https://example.org/2023/1/30/a-title",
        "https://example.org/news/2023/01/30",
        "https://example.org/2023/01/30.html",
        "https://example.org/politics/2023/jan/30/a-title",
        "https://example.org/2023/January/30/a-title",
        "https://example.org/2023/0130/c90000.html",
        "https://example.org/2023-01/30/content_1.htm",
        "https://example.org/posts/2023-01-30-a-title/",
        "https://example.org/posts/a-title-2023-01-30",
        "https://example.org/posts/2023_01_30_a_title",
        "https://example.org/posts/2023.01.30",
        "https://example.org/a-title-20230130.html",
        "https://example.org/meldung/20230130T1015/a-title",
        "https://example.org/30-01-2023-a-title",  # there is no month 30
        "https://example.org/a-title-01-30-2023",
        "https://example.org/30-jan-2023/",
        "https://example.org/a-title-january-30-2023",
        "https://example.org/show?id=5&date=2023-01-30",
        "https://example.org/show?path=%2F2023%2F01%2F30%2Fa-title",
        "https://example.org/2023/01/30/what-happened-on-2001-09-11/",  # the folders go before the name
        "https://example.org/2023/01/30/a-title-20230130/",
        "example.org/2023/01/30/a-title",
    ],
)
def test_a_complete_date_in_the_address_is_found(url: str) -> None:
    found = date_in_url(url)
    assert (found.date, found.reason) == (JANUARY_30, "date_in_url")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://example.org/2023/01/a-title/", "date_incomplete_in_url"),
        ("https://example.org/2023/01/30-things-to-do/", "date_incomplete_in_url"),  # a title of January, not its 30th
        ("https://example.org/2023/a-title/", "date_incomplete_in_url"),
        ("https://example.org/archive/2023", "date_incomplete_in_url"),
        ("https://example.org/a-title-2023-01", "date_incomplete_in_url"),
        ("https://example.org/02-01-2023-a-title", "date_ambiguous_in_url"),
        ("https://example.org/2023/02/30/a-title", "date_invalid_in_url"),
        ("https://example.org/2023/13/01/a-title", "date_invalid_in_url"),
        ("https://example.org/2023-00-10", "date_invalid_in_url"),
        ("https://example.org/1950/01/30/a-title", "date_invalid_in_url"),
        ("https://example.org/2099/01/30/a-title", "date_invalid_in_url"),
        ("https://example.org/2023-01-30-to-2023-02-02", "dates_conflict_in_url"),
        ("https://example.org/a-title", "no_date_in_url"),
        ("https://example.org/article/120230130/x", "no_date_in_url"),  # nine digits
        ("https://example.org/ireland-19056312", "no_date_in_url"),  # eight digits, but no month 63
        ("https://example.org/?hash=ab20230130cd", "no_date_in_url"),
        ("https://web.archive.org/web/20230130194448/http://example.org", "no_date_in_url"),  # when it was archived
        ("https://2023-01-30.example.org/a-title", "no_date_in_url"),  # the host is not looked at
        ("", "no_date_in_url"),
        ("http://[::1/2023/01/30", "no_date_in_url"),
    ],
)
def test_what_is_missing_or_unclear_is_never_filled_in(url: str, reason: str) -> None:
    found = date_in_url(url)
    assert (found.date, found.reason) == (None, reason)


def test_a_year_is_one_from_1990_to_2039() -> None:
    for year in (1990, 2039):
        assert date_in_url(f"https://example.org/{year}/sept/30/a-title").date == datetime.date(year, 9, 30)
    for year in (1989, 2040):
        assert date_in_url(f"https://example.org/{year}/sept/30/a-title").reason == "date_invalid_in_url"


def test_the_same_number_for_day_and_month_is_not_ambiguous() -> None:
    assert date_in_url("https://example.org/03-03-2023").date == datetime.date(2023, 3, 3)


def test_the_record_goes_before_the_address() -> None:
    url = "https://example.org/2020/02/29/a-title/"
    [decision] = TOOL.filter(Document.of("Some text.", url, JANUARY_30))
    assert (decision.kept, decision.reason, decision.start_char, decision.end_char) == (True, "date_in_record", 0, 10)
    assert TOOL.effective_input("", Document.of("Some text.", url, JANUARY_30)) == "2023-01-30"
    assert TOOL.effective_input("", Document.of("Some text.", url)) == "2020-02-29"


def test_a_document_without_a_day_is_left_out() -> None:
    [decision] = TOOL.filter(Document.of("Today is a day."))
    assert (decision.kept, decision.reason) == (False, "no_url")
    [decision] = TOOL.filter(Document.of("Today is a day.", "https://example.org/2023/01/"))
    assert (decision.kept, decision.reason) == (False, "date_incomplete_in_url")
    assert TOOL.effective_input("", Document.of("Today is a day.")) is None


@pytest.mark.parametrize(
    ("day", "sentence"),
    [
        ("2023-01-30", "Today is Monday, January 30, 2023."),
        ("2017-03-09", "Today is Thursday, March 9, 2017."),
        ("2013-04-19", "Today is Friday, April 19, 2013."),
        ("2011-06-25", "Today is Saturday, June 25, 2011."),
        ("2020-02-29", "Today is Saturday, February 29, 2020."),
    ],
)
def test_examples_of_the_paper(day: str, sentence: str) -> None:
    assert TOOL.run([day])[0].results == (sentence,)


def test_every_day_of_a_leap_year_has_its_name() -> None:
    # January 1, 2024 was a Monday; weekdays then follow one another for 366 days.
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=number) for number in range(366)]
    weekdays = [write_day(day).split()[2] for day in days]
    assert weekdays[:7] == ["Monday,", "Tuesday,", "Wednesday,", "Thursday,", "Friday,", "Saturday,", "Sunday,"]
    assert all(weekdays[number] == weekdays[number % 7] for number in range(366))


def test_the_sentence_does_not_depend_on_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locale, "getlocale", lambda *_: ("de_DE", "UTF-8"))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert write_day(JANUARY_30) == "Today is Monday, January 30, 2023."


def test_a_call_cannot_choose_its_own_day() -> None:
    document = Document.of("Some text.", document_date=JANUARY_30)
    chosen = TOOL.effective_input("2020-01-01", document)
    assert chosen is not None
    assert TOOL.run([chosen])[0].reason == "takes_no_input"


def test_one_bad_input_does_not_stop_the_others() -> None:
    outputs = TOOL.run(["2023-02-30", "2023-01-30", "soon", "", "20230130"])
    assert [output.reason for output in outputs] == ["not_a_date", None, "not_a_date", "not_a_date", "not_a_date"]


def test_the_call_is_never_only_known_from_what_follows() -> None:
    assert not TOOL.input_only_after("", "Today is", " Monday.")
