"""The day that the date of a record says, in the ways in which corpora write it, or why it says none.

Read are ISO 8601 (`2023-01-30`, with a time, `2021-W37-3`), the same with slashes (`2023/01/30`), RFC 2822
(`Mon, 30 Jan 2023 10:00:00 GMT`), `20230130`, `30.01.2023`, `January 30, 2023`, `30 January 2023`, and
seconds, milli- or microseconds since 1970 (ten, thirteen or sixteen digits, in UTC); each also as MongoDB exports it
(`{"$date": ...}`). The day is that which is written: no change of time zone.

Days that programs write where they know none (1970-01-01) are no dates, and neither are days before the web
or after today.
"""

import datetime
import email.utils
import functools
import re
from collections.abc import Mapping

NOT_UNDERSTOOD = "date_not_understood"
STANDS_FOR_NONE = "date_stands_for_none"
OUT_OF_RANGE = "date_out_of_range"
FIRST_DAY = datetime.date(1990, 1, 1)
SENTINELS = frozenset(
    datetime.date(year, month, day)
    for year, month, day in ((1, 1, 1), (1900, 1, 1), (1970, 1, 1), (1969, 12, 31), (9999, 12, 31))
)
"""What programs write for no date: the least and the largest day of a type, and the beginning of a count."""
_ISO_DAY = re.compile(
    r"(?P<year>[0-9]{4})(?P<sign>[-/])(?P<month>[0-9]{2})(?P=sign)(?P<day>[0-9]{2})(?![0-9])"
)
_ISO_WEEK = re.compile(r"[0-9]{4}-W[0-9]{2}-[1-7]")
_EIGHT_DIGITS = re.compile(r"(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})")
_WITH_POINTS = re.compile(r"(?P<day>[0-9]{1,2})\.(?P<month>[0-9]{1,2})\.(?P<year>[0-9]{4})")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?"
    r"|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?))\.?"
)
_MONTH_FIRST = re.compile(rf"{_MONTH} (?P<day>[0-9]{{1,2}}),? (?P<year>[0-9]{{4}})")
_DAY_FIRST = re.compile(rf"(?P<day>[0-9]{{1,2}}) {_MONTH},? (?P<year>[0-9]{{4}})")
_ZONE = re.compile(r"\s*(?:UTC|GMT|Z)$")
_ZONE_NAME = re.compile(r"\[[A-Za-z0-9_+/-]{1,40}\]$")
_RFC_2822 = re.compile(
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), )?[0-9]{1,2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}"
)
_SECONDS, _MILLISECONDS = re.compile(r"[0-9]{9,10}"), re.compile(r"[0-9]{12,13}")
_MICROSECONDS = re.compile(r"[0-9]{15,16}")


def day_of(value: object, today: datetime.date | None = None) -> tuple[datetime.date | None, str | None]:
    """Return the day that `value` says and None, or None and the reason; None and None for no value.

    `today` is the day of reading, that of this process if it is None.
    """
    if value is None or value == "":
        return None, None
    day = _read(value)
    if day is None:
        return None, NOT_UNDERSTOOD
    if day in SENTINELS:
        return None, STANDS_FOR_NONE
    # A day more, since it is tomorrow somewhere.
    if not FIRST_DAY <= day <= (today or _today()) + datetime.timedelta(days=1):
        return None, OUT_OF_RANGE
    return day, None


@functools.cache
def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def _read(value: object) -> datetime.date | None:
    """The day as it is written, or None if no day is."""
    if isinstance(value, Mapping) and len(value) == 1:
        return _read(value.get("$date", value.get("$numberLong")))
    if isinstance(value, datetime.date):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = value.strip() if isinstance(value, str) else str(int(value)) if value == value // 1 else ""
    try:
        return _day_in(text)
    except (ValueError, OverflowError, OSError, TypeError):
        return None  # such as 2023-02-30


def _day_in(text: str) -> datetime.date | None:
    if iso := _ISO_DAY.match(text):
        day = datetime.date(int(iso["year"]), int(iso["month"]), int(iso["day"]))
        if rest := _ZONE_NAME.sub("", text[iso.end() :]):  # a time, which must be one
            datetime.datetime.fromisoformat(f"{day.isoformat()}{_ZONE.sub('', rest)}")
        return day
    if numbers := _EIGHT_DIGITS.fullmatch(text) or _WITH_POINTS.fullmatch(text):
        return datetime.date(int(numbers["year"]), int(numbers["month"]), int(numbers["day"]))
    if named := _MONTH_FIRST.fullmatch(text) or _DAY_FIRST.fullmatch(text):
        return datetime.date(
            int(named["year"]), _MONTHS.index(named["month"][:3].lower()) + 1, int(named["day"])
        )
    if _ISO_WEEK.fullmatch(text):
        return datetime.date.fromisoformat(text)
    if _RFC_2822.match(text):
        return email.utils.parsedate_to_datetime(text).date()
    seconds = 0.0
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    elif _MILLISECONDS.fullmatch(text):
        seconds = int(text) / 1000
    elif _MICROSECONDS.fullmatch(text):
        seconds = int(text) / 10**6
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date() if seconds else None
