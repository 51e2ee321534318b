"""DATESET (appendix D and Table 11 of the paper): questions whose answers need the current date.

The 9,400 questions are made from a seed. The paper draws 500 current dates and for each a past or future date
within four years, and states how many questions each of its seven templates gives. These numbers come out
exactly so (the dates counted in the order in which they were drawn):

    template     question                           which current dates        a date gives         questions
    days_between How many days ago was / until      1-200 past, 201-400 future 1                          400
    was_ago      What ... was it N units ago?       1-200, a past date         4 what                     800
    will_be_in   What ... will it be in N days?     201-400, a future date     4 what                     800
    day_of_date  What day of the week is/was it on  1-400                      1                          400
    around_today What ... is/was it today, ...?     301-500                    4 what x 5 days          4,000
    holiday_date What ... is/was HOLIDAY this year? 401-500                    3 what x 6 holidays      1,800
    holiday_from How many units ago/until HOLIDAY?  401-500                    4 units x 3 of these     1,200

"what" is day of the week, day of the month, month and year (no year for a holiday of this year); units are
days, weeks, months and years. In was_ago the unit is drawn for each question from those of which at least one
is between the two dates; the answer is the current date minus so many units, which for weeks, months and
years need not be the past date itself.

Months and years are counted as calendars do (dateutil's relativedelta): the same day of another month, or its
last day if it has no such day, so a month before March 31 is the last of February. Between two dates only
whole ones count, from the current date on, and so with weeks. Holidays are the US federal holidays of the
current year (package `holidays`, on their own dates and not where they are observed), never one of the
current day itself.

Everything drawn comes from SHA-256 of the seed and of what is drawn, so that the same seed gives the same
bytes on every machine.
"""

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from dateutil.relativedelta import relativedelta

from toolformer_ops.tools.calendar import DAYS, MONTHS

FIRST_DAY = datetime.date(2010, 1, 1)
LAST_DAY = datetime.date(2025, 12, 31)
"""Between these the current dates are drawn; the paper does not say from which years."""
YEARS_APART = 4
"""Most years between a current date and its past or future date."""
CURRENT_DATES = 500
SIZES = {
    "days_between": 400,
    "was_ago": 800,
    "will_be_in": 800,
    "day_of_date": 400,
    "around_today": 4000,
    "holiday_date": 1800,
    "holiday_from": 1200,
}
"""Questions of each template (Table 11)."""
UNITS = ("days", "weeks", "months", "years")
WHAT = ("day of the week", "day of the month", "month", "year")
DAYS_AROUND = {
    "the day before yesterday": -2,
    "yesterday": -1,
    "today": 0,
    "tomorrow": 1,
    "the day after tomorrow": 2,
}
_SMALL_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class DateQuestion:
    """One question of DATESET."""

    template: str
    """One of `SIZES`."""
    current_date: datetime.date
    question: str
    """With its question mark."""
    answers: tuple[str, ...]
    """The answer, then other ways to write it."""


def generate_dateset(seed: int = 0) -> list[DateQuestion]:
    """All 9,400 questions, template by template."""
    dates = _drawn(_days(FIRST_DAY, LAST_DAY), CURRENT_DATES, seed, "current date")
    past = [(today, _other_date(today, -1, seed)) for today in dates[:200]]
    future = [(today, _other_date(today, 1, seed)) for today in dates[200:400]]
    questions: list[DateQuestion] = []

    def ask(template: str, today: datetime.date, question: str, answers: tuple[str, ...]) -> None:
        questions.append(DateQuestion(template, today, question, answers))

    # Questions about a past or a future date.
    for today, other in past + future:
        days = whole_units(today, other, "days")
        ask(
            "days_between",
            today,
            f"How many days {_distance(other, today)} {write_date(other)}?",
            _count(days),
        )
    for today, other in past:
        for what in WHAT:
            possible = [unit for unit in UNITS if whole_units(today, other, unit) > 0]
            unit = _one_of(possible, seed, f"unit {today} {what}")
            count = whole_units(today, other, unit)
            answers = _named(units_before(today, count, unit), what)
            ask("was_ago", today, f"What {what} was it {_quantity(count, unit)} ago?", answers)
    for today, other in future:
        until = _quantity(whole_units(today, other, "days"), "days")
        for what in WHAT:
            ask("will_be_in", today, f"What {what} will it be in {until}?", _named(other, what))
    for today, other in past + future:
        question = f"What day of the week {_verb(other, today)} it on {write_date(other)}?"
        ask("day_of_date", today, question, _named(other, WHAT[0]))
    return questions + _around_today(dates[300:]) + _on_holidays(dates[400:], seed)


def _around_today(dates: Sequence[datetime.date]) -> list[DateQuestion]:
    """Questions about the days around the current date."""
    questions = []
    for today in dates:
        for what in WHAT:
            for day, shift in DAYS_AROUND.items():
                date = today + datetime.timedelta(days=shift)
                question = f"What {what} {_verb(date, today)} it {day}?"
                questions.append(DateQuestion("around_today", today, question, _named(date, what)))
    return questions


def _on_holidays(dates: Sequence[datetime.date], seed: int) -> list[DateQuestion]:
    """Questions about six drawn federal holidays of the year, and how far the first three of them are."""
    when, how_far = [], []
    for today in dates:
        others = [(date, name) for date, name in federal_holidays(today.year) if date != today]
        for number, (date, name) in enumerate(_drawn(others, 6, seed, f"holidays {today}")):
            for what in WHAT[:3]:
                question = f"What {what} {_verb(date, today)} {name} this year?"
                when.append(DateQuestion("holiday_date", today, question, _named(date, what)))
            for unit in UNITS if number < 3 else ():
                question = f"How many {unit} {_distance(date, today)} {name} this year?"
                how_far.append(
                    DateQuestion("holiday_from", today, question, _count(whole_units(today, date, unit)))
                )
    return when + how_far


def _verb(date: datetime.date, today: datetime.date) -> str:
    return "was" if date < today else "is"


def _distance(date: datetime.date, today: datetime.date) -> str:
    return "ago was" if date < today else "are there until"


def dateset_lines(seed: int = 0) -> bytes:
    """DATESET as JSON Lines: question, answer (a list), date and template of each."""
    lines = [
        json.dumps(
            {
                "question": question.question,
                "answer": list(question.answers),
                "date": question.current_date.isoformat(),
                "template": question.template,
            },
            ensure_ascii=False,
        )
        for question in generate_dateset(seed)
    ]
    return ("\n".join(lines) + "\n").encode()


def whole_units(today: datetime.date, other: datetime.date, unit: str) -> int:
    """How many whole days, weeks, months or years are between today and another date.

    The date is before or after today, and they are counted from today.
    """
    days = abs((other - today).days)
    if unit == "days":
        return days
    if unit == "weeks":
        return days // 7
    apart = relativedelta(other, today)
    years, months = abs(int(apart.years)), abs(int(apart.months))
    return years * 12 + months if unit == "months" else years


def units_before(date: datetime.date, count: int, unit: str) -> datetime.date:
    """The date so many days, weeks, months or years before another."""
    if unit in {"days", "weeks"}:
        return date - datetime.timedelta(days=count * (7 if unit == "weeks" else 1))
    months_before: datetime.date = date - relativedelta(months=count * (12 if unit == "years" else 1))
    return months_before


def federal_holidays(year: int) -> list[tuple[datetime.date, str]]:
    """The US federal holidays of a year by date, on their own dates: ten, and Juneteenth from 2021 on."""
    import holidays

    return sorted(holidays.country_holidays("US", years=year, observed=False).items())


def write_date(date: datetime.date) -> str:
    """As the paper writes it: `August 14, 2020`, in every locale."""
    return f"{MONTHS[date.month - 1]} {date.day}, {date.year}"


def _named(date: datetime.date, what: str) -> tuple[str, ...]:
    if what == "day of the week":
        return (DAYS[date.weekday()],)
    if what == "day of the month":
        ending = "th" if date.day in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(date.day % 10, "th")
        return str(date.day), f"{date.day}{ending}"
    if what == "month":
        return (MONTHS[date.month - 1],)
    return (str(date.year),)


def _count(number: int) -> tuple[str, ...]:
    return (str(number), _SMALL_NUMBERS[number]) if number < len(_SMALL_NUMBERS) else (str(number),)


def _quantity(count: int, unit: str) -> str:
    return f"{count} {unit[:-1] if count == 1 else unit}"


def _days(first: datetime.date, last: datetime.date) -> list[datetime.date]:
    return [first + datetime.timedelta(days=shift) for shift in range((last - first).days + 1)]


def _other_date(today: datetime.date, direction: int, seed: int) -> datetime.date:
    """A date at least a day and at most `YEARS_APART` years before (-1) or after (1) another."""
    farthest = today + relativedelta(years=direction * YEARS_APART)
    nearest = today + datetime.timedelta(days=direction)
    possible = _days(*sorted((nearest, farthest)))
    return _one_of(possible, seed, f"other date {today} {direction}")


def _one_of(items: Sequence[_Item], seed: int, purpose: str) -> _Item:
    return items[int.from_bytes(_digest(seed, purpose)) % len(items)]


def _drawn(items: Sequence[_Item], count: int, seed: int, purpose: str) -> list[_Item]:
    """So many different ones of `items`."""
    return sorted(items, key=lambda item: _digest(seed, f"{purpose}\n{item}"))[:count]


def _digest(seed: int, purpose: str) -> bytes:
    """What decides a draw: no random generator, whose stream another Python could change."""
    return hashlib.sha256(f"dateset {seed}\n{purpose}".encode()).digest()
