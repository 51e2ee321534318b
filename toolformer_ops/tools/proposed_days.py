"""The calls that the Calendar proposes for a text: before each phrase that follows from the day of the text.

1. A date (`Wednesday, October 13, 2021`, `13 October`, `2021-10-13`) within `NEAR_DAYS` of the day. Its
   weekday has to be right; without a year it is the nearest such date.
2. A month, a year, or a month with its year, if it is that of the day.
3. A weekday, if it is that of the day or of the next one.
4. Words that say a day by another: `today`, `last Friday`, `next month`, `three days ago`. Whether they are
   true is not known.

 Reads English; the time is linear in the length of the text.
"""

import datetime
import re
from collections.abc import Iterator

from toolformer_ops.tools.base import ProposedCall, place_before

NEAR_DAYS = 31
"""A date so near has the day's month or one of its neighbours."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKDAY = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_ANY_WEEKDAY = rf"(?:{_WEEKDAY}|(?:Mon|Tue|Tues|Wed|Thu|Thur|Thurs|Fri|Sat|Sun)\b\.?)"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = r"(?:3[01]|[12][0-9]|0?[1-9])(?![0-9])(?:st|nd|rd|th)?"
_YEAR = r"(?:19|20)[0-9]{2}(?![0-9])"
_SPAN = "(?:day|week|month|year)s?"
_NUMBER = (
    "(?:[1-9][0-9]{0,2}|a|an|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|several|few)"
)
_STRETCH = re.compile(
    "|".join(
        (
            rf"\b(?:(?P<weekday_a>{_ANY_WEEKDAY}),?\s+)?(?P<month_a>{_MONTH})\b\.?\s+(?P<day_a>{_DAY})\b"
            rf"(?!\.?[0-9])(?:,?\s+(?P<year_a>{_YEAR}))?",
            rf"\b(?:(?P<weekday_b>{_ANY_WEEKDAY}),?\s+)?(?P<day_b>{_DAY})\s+(?:of\s+)?(?P<month_b>{_MONTH})\b"
            rf"\.?(?:,?\s+(?P<year_b>{_YEAR}))?",
            rf"(?<![\w/.-])(?P<year_c>{_YEAR})-(?P<month_c>[0-9]{{2}})-(?P<day_c>[0-9]{{2}})(?![\w-])",
            rf"\b(?P<month_d>{_MONTH})\b\.?,?\s+(?:of\s+)?(?P<year_d>{_YEAR})\b",
            r"\b(?P<relative>(?i:today|tonight|tomorrow|yesterday|(?:last|past|next|this|coming)\s+"
            rf"(?:{_WEEKDAY}|week|weekend|month|year)|{_NUMBER}\s+{_SPAN}\s+(?:ago|from\s+(?:now|today))))\b",
            rf"\b(?P<weekday_e>{_WEEKDAY})\b",
            rf"\b(?P<month_f>{_MONTH})\b(?!\.?\s?[0-9])",
            rf"(?<![\w$€£¥#.,/:-])(?P<year_g>{_YEAR})(?![\w%/:-]|[.,][0-9])",
        )
    )
)
_MONTH_BEFORE = re.compile(
    r"\b(?:in|of|since|by|until|till|during|for|from|to|through|this|early|late|mid|and)[\s-]\Z",
    re.IGNORECASE,
)
"""Before `May` or `March` alone, which are other words as well."""


def proposed_days(text: str, day: datetime.date) -> Iterator[ProposedCall]:
    """The calls of a text that was written on this day, in its order."""
    for match in _STRETCH.finditer(text):
        if _is_told(match, day):
            yield ProposedCall(place_before(text, match.start()), "")


def _is_told(match: re.Match[str], day: datetime.date) -> bool:
    """Whether a stretch follows from the day."""
    for kind in "abc":
        if match[f"month_{kind}"]:
            return _is_near(match, kind, day)
    is_told = match["relative"] is not None
    if match["weekday_e"]:
        days_ahead = (_number_of(match["weekday_e"], _WEEKDAYS) - day.weekday()) % 7
        is_told = days_ahead <= 1
    elif match["month_d"]:
        is_told = (_number_of(match["month_d"], _MONTHS), int(match["year_d"])) == (day.month - 1, day.year)
    elif match["month_f"]:
        # `May` and `March` alone are months after a word such as `in`.
        before = match.string[max(0, match.start() - 10) : match.start()]
        is_month = match["month_f"] not in ("May", "March", "Mar", "Jan") or _MONTH_BEFORE.search(before)
        is_told = bool(is_month) and _number_of(match["month_f"], _MONTHS) == day.month - 1
    elif match["year_g"]:
        is_told = int(match["year_g"]) == day.year
    return is_told


def _is_near(match: re.Match[str], kind: str, day: datetime.date) -> bool:
    """Whether a date is near the day, and its weekday is right; one that does not exist is not."""
    month, year = match[f"month_{kind}"], match[f"year_{kind}"]
    month_number = int(month) if kind == "c" else _number_of(month, _MONTHS) + 1
    dates = []
    for one_year in (int(year),) if year else (day.year - 1, day.year, day.year + 1):
        try:
            dates.append(datetime.date(one_year, month_number, int(match[f"day_{kind}"].rstrip("stndrh"))))
        except ValueError:  # the 30th of February
            continue
    date = min(dates, key=lambda date: abs((date - day).days), default=None)
    if date is None or abs((date - day).days) > NEAR_DAYS:
        return False
    weekday = None if kind == "c" else match[f"weekday_{kind}"]
    return weekday is None or _number_of(weekday, _WEEKDAYS) == date.weekday()


def _number_of(name: str, names: tuple[str, ...]) -> int:
    """The place of a month or weekday in the list of their first three letters, from 0."""
    return names.index(name[:3].lower())
