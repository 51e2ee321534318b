"""DATESET: its size, its templates, and answers that were worked out with a calendar on paper."""

import datetime
import re
from collections import Counter

import pytest

from toolformer_ops.evaluation.dateset import (
    SIZES,
    federal_holidays,
    generate_dateset,
    units_before,
    whole_units,
)


def day(text: str) -> datetime.date:
    return datetime.date.fromisoformat(text)


@pytest.fixture(scope="module")
def dateset():
    return generate_dateset()


def test_each_template_has_as_many_questions_as_in_the_paper(dateset):
    assert Counter(question.template for question in dateset) == {
        "days_between": 400,
        "was_ago": 800,
        "will_be_in": 800,
        "day_of_date": 400,
        "around_today": 4000,
        "holiday_date": 1800,
        "holiday_from": 1200,
    }
    assert len(dateset) == 9400 == sum(SIZES.values())
    assert len({question.current_date for question in dateset}) == 500
    asked = Counter(
        (one.template, one.current_date, one.question) for one in dateset if one.template != "was_ago"
    )
    assert max(asked.values()) == 1  # no date asks the same twice in one template


def test_past_days_are_asked_as_often_as_future_ones_in_words_of_their_own(dateset):
    counts: Counter[tuple[str, bool]] = Counter()
    for asked in dateset:
        if asked.template not in {"days_between", "day_of_date"}:
            continue
        other = re.sub(r".*(ago was|until|it on) ", "", asked.question)
        date = datetime.datetime.strptime(other, "%B %d, %Y?").date()  # noqa: DTZ007 - a day
        is_past = date < asked.current_date
        assert is_past == bool(re.search(r"ago was|was it on", asked.question))
        days = abs((date - asked.current_date).days)
        assert days <= 1461
        assert asked.answers[0] == (str(days) if asked.template == "days_between" else f"{date:%A}")
        counts[asked.template, is_past] += 1
    assert set(counts.values()) == {200}
    assert len(counts) == 4


def test_whole_units_are_counted_as_calendars_do():
    for today, other, unit, count in (
        ("2020-11-22", "2020-08-14", "days", 100),  # 17 + 30 + 31 + 22
        ("2020-03-01", "2020-02-28", "days", 2),  # a leap year
        ("2020-03-01", "2020-02-17", "weeks", 1),  # 13 days
        ("2021-03-31", "2021-02-28", "months", 1),  # a month before March 31 is February 28
        ("2021-03-27", "2021-02-28", "months", 0),
        ("2021-01-31", "2021-02-28", "months", 1),  # in a month it is February 28
        ("2021-01-31", "2021-02-27", "months", 0),
        (
            "2021-02-28",
            "2020-02-29",
            "years",
            0,
        ),  # a year before is February 28, 2020, which lies further back
        ("2020-11-21", "2016-11-22", "months", 47),
    ):
        assert whole_units(day(today), day(other), unit) == count


def test_whole_units_are_subtracted_as_calendars_do():
    assert units_before(day("2021-03-31"), 1, "months") == day("2021-02-28")
    assert units_before(day("2021-03-31"), 4, "months") == day("2020-11-30")
    assert units_before(day("2020-02-29"), 1, "years") == day("2019-02-28")
    assert units_before(day("2020-03-01"), 2, "weeks") == day("2020-02-16")


def test_the_federal_holidays_of_2022_are_on_their_own_days():
    days = {name: f"{date:%m-%d}" for date, name in federal_holidays(2022)}
    assert len(days) == 11
    assert days["New Year's Day"] == "01-01"  # a Saturday, observed on the Friday before
    moving = (
        "Martin Luther King Jr. Day",
        "Washington's Birthday",
        "Memorial Day",
        "Labor Day",
        "Columbus Day",
    )
    assert [days[name] for name in moving] == ["01-17", "02-21", "05-30", "09-05", "10-10"]
    assert days["Thanksgiving Day"] == "11-24"
    assert len(federal_holidays(2020)) == 10  # Juneteenth since 2021


def test_holiday_questions_agree_with_their_holiday(dateset):
    for one in (one for one in dateset if one.template == "holiday_from"):
        parts = re.fullmatch(r"How many (\w+) (ago was|are there until) (.+) this year\?", one.question)
        assert parts is not None
        unit, words, name = parts.groups()
        date = next(date for date, holiday in federal_holidays(one.current_date.year) if holiday == name)
        assert (date < one.current_date) == (words == "ago was")
        assert date != one.current_date
        if unit == "days":
            assert one.answers[0] == str(abs((date - one.current_date).days))


def test_a_unit_is_singular_or_plural(dateset):
    assert not [
        one for one in dateset if re.search(r"\b1 (days|weeks|months|years)\b|\b0 \w+ ago", one.question)
    ]


def test_a_day_of_the_month_is_a_number_or_an_ordinal(dateset):
    answers = {one.answers for one in dateset if "day of the month" in one.question}
    assert {
        ("2", "2nd"),
        ("3", "3rd"),
        ("11", "11th"),
        ("12", "12th"),
        ("13", "13th"),
        ("21", "21st"),
    } <= answers
