"""The date that a document's address carries, such as `https://example.org/2023/01/30/title` (Toolformer, appendix A.1, Calendar).

Only a complete date counts: what is missing is never filled in, and no clock is read, so that the same address gives the same
answer every night. Looked at are the path and the query, not the host. In this order:

    /2023/01/30/  /2023/jan/30/  /2023/0130/  /2023-01/30/     the date as folders: how web logs and newspapers file their pages
    2023-01-30  2023_01_30  2023.01.30  20230130  30-01-2023  30-jan-2023  january-30-2023      the date within a name

Folders go before names, since a name may speak of another day. A day in a folder must fill it: `/2023/10/3-questions/` is an
article of October with a number in its title. Numbers in the order day-month-year or month-day-year count only where one of the
two is above 12, or both are equal. Two different dates of one kind contradict each other and none is taken.
"""

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

FIRST_YEAR = 1990
LAST_YEAR = 2039
"""A fixed bound, not the clock; beyond it four digits are seldom a year."""
MAX_URL_CHARS = 8192

_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTH_NUMBER = {name: number for number, full in enumerate(_MONTHS, start=1) for name in (full, full[:3])} | {
    "sept": 9
}
_MONTH_NAME = "(?P<name>" + "|".join(sorted(_MONTH_NUMBER, key=len, reverse=True)) + ")"
_YEAR = "(?P<year>(?:19|20)[0-9]{2})"
_NO_DIGIT_BEFORE, _NO_DIGIT_AFTER = "(?<![0-9])", "(?![0-9])"
_NO_WORD_BEFORE, _NO_WORD_AFTER = "(?<![0-9A-Za-z])", "(?![0-9A-Za-z])"
_END_OF_FOLDER = r"(?=[/.?&#]|$)"
_TWO = "[0-9]{2}"
_ONE_OR_TWO = "[0-9]{1,2}"

_FOLDERS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:^|[/=]){_YEAR}/(?P<month>{_ONE_OR_TWO})/(?P<day>{_ONE_OR_TWO}){_END_OF_FOLDER}",
        rf"(?:^|[/=]){_YEAR}/{_MONTH_NAME}/(?P<day>{_ONE_OR_TWO}){_END_OF_FOLDER}",
        rf"(?:^|[/=]){_YEAR}/(?P<month>{_TWO})-?(?P<day>{_TWO}){_END_OF_FOLDER}",
        rf"(?:^|[/=]){_YEAR}-(?P<month>{_TWO})/(?P<day>{_TWO}){_END_OF_FOLDER}",
    )
)
_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_NO_DIGIT_BEFORE}{_YEAR}(?P<sep>[-_.])(?P<month>{_ONE_OR_TWO})(?P=sep)(?P<day>{_ONE_OR_TWO}){_NO_DIGIT_AFTER}",
        # Eight digits are often a mere number, so here only a month and a day that can be one are looked at.
        rf"{_NO_WORD_BEFORE}(?P<year>(?:199|20[0-3])[0-9])(?P<month>0[1-9]|1[0-2])(?P<day>0[1-9]|[12][0-9]|3[01])"
        rf"(?=T[0-9]{{4}}|{_NO_WORD_AFTER})",
        rf"{_NO_DIGIT_BEFORE}{_YEAR}(?P<sep>[-_.]){_MONTH_NAME}(?P=sep)(?P<day>{_ONE_OR_TWO}){_NO_DIGIT_AFTER}",
        rf"{_NO_DIGIT_BEFORE}(?P<day>{_ONE_OR_TWO})(?P<sep>[-_.]){_MONTH_NAME}(?P=sep){_YEAR}{_NO_DIGIT_AFTER}",
        rf"{_NO_WORD_BEFORE}{_MONTH_NAME}(?P<sep>[-_.])(?P<day>{_ONE_OR_TWO})(?P=sep){_YEAR}{_NO_DIGIT_AFTER}",
        rf"{_NO_DIGIT_BEFORE}(?P<first>{_ONE_OR_TWO})(?P<sep>[-_./])(?P<second>{_ONE_OR_TWO})(?P=sep){_YEAR}{_NO_DIGIT_AFTER}",
    )
)
_INCOMPLETE = re.compile(
    r"(?:^|[/=])(?:19|20)[0-9]{2}(?=[-/._?&#]|$)|(?<![0-9])(?:19|20)[0-9]{2}[-_.][0-9]{2}(?![0-9])"
)
"""A year that begins a folder, or a year and a month."""


@dataclass(frozen=True)
class UrlDate:
    """A date, or why there is none."""

    date: datetime.date | None
    reason: str
    """`date_in_url`; or `no_date_in_url`, `date_incomplete_in_url`, `date_ambiguous_in_url` (day or month first?),
    `date_invalid_in_url` (no such day, or a year out of range), `dates_conflict_in_url`."""


def date_in_url(url: str) -> UrlDate:
    """The publication date that `url` carries."""
    where = _path_and_query(url)
    refused = set()
    for patterns in (_FOLDERS, _NAMES):
        found = [_read(match) for pattern in patterns for match in pattern.finditer(where)]
        dates = {date for date in found if isinstance(date, datetime.date)}
        if len(dates) > 1:
            return UrlDate(None, "dates_conflict_in_url")
        if dates:
            return UrlDate(dates.pop(), "date_in_url")
        refused |= {reason for reason in found if isinstance(reason, str)}
    for reason in ("date_ambiguous_in_url", "date_invalid_in_url"):
        if reason in refused:
            return UrlDate(None, reason)
    return UrlDate(None, "date_incomplete_in_url" if _INCOMPLETE.search(where) else "no_date_in_url")


def _path_and_query(url: str) -> str:
    """What stands after the host, with percent escapes undone; empty where `url` cannot be read as an address."""
    try:
        parts = urlsplit(url[:MAX_URL_CHARS])
    except ValueError:  # for example an unclosed bracket in the host
        return ""
    return unquote(f"{parts.path}?{parts.query}" if parts.query else parts.path)


def _read(match: re.Match[str]) -> datetime.date | str:
    """The date of one match, or the reason why it is none."""
    parts = match.groupdict()
    readings = set(_readings(parts))
    if len(readings) > 1:
        return "date_ambiguous_in_url"
    if not readings:
        return "date_invalid_in_url"
    return readings.pop()


def _readings(parts: dict[str, str | None]) -> Iterator[datetime.date]:
    """The existing days, within the years allowed, that the parts may mean."""
    year = int(parts["year"] or 0)
    if not FIRST_YEAR <= year <= LAST_YEAR:
        return
    if parts.get("first"):
        first, second = int(parts["first"] or 0), int(parts["second"] or 0)
        candidates = [(first, second), (second, first)]
    else:
        name = parts.get("name")
        month = _MONTH_NUMBER[name.lower()] if name else int(parts["month"] or 0)
        candidates = [(int(parts["day"] or 0), month)]
    for day, month in candidates:
        try:
            yield datetime.date(year, month, day)
        except ValueError:
            continue  # no such day: not a reading
