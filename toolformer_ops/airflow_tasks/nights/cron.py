"""When a cron expression fires, and whether at times that a person can foresee.

croniter, by which Airflow reads expressions, also accepts fields that it draws at random, and days that no
month has: for those Airflow starts no run, and says nothing.
"""

import datetime
import difflib
import re
import zoneinfo
from itertools import islice

from croniter import croniter
from croniter.croniter import CroniterBadDateError

CRON_FIELDS = 5
DRAWN = re.compile(r"\b[rh]\b", re.IGNORECASE)
"""croniter draws a number for R, and takes one from a hash for H."""


_OFFSET = re.compile(r"(?:UTC|GMT)?(?P<sign>[+-])(?P<hours>\d{1,2})(?::?00)?")


def require_cron(expression: str) -> None:
    """Check a cron expression.

    Raises:
        ValueError: it does not have five fields, never fires, or fires at random; the message says what is
        expected.
    """
    if DRAWN.search(expression):
        raise ValueError("expected times, found a field that is drawn at random (R or H): write the number")
    if len(expression.split()) != CRON_FIELDS or not croniter.is_valid(expression):
        raise ValueError(
            "expected five fields, minute, hour, day of month, month, day of week, such as 0 2 * * * for two "
            "at night"
        )
    try:
        croniter(expression, datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)).get_next()
    except CroniterBadDateError:
        raise ValueError("expected a day that some month has, found none: no run would ever start") from None


def require_time_zone(name: str) -> None:
    """Check the name of a time zone.

    Raises:
        ValueError: it is none, or means another one on each machine; the message has a similar name.
    """
    names = zoneinfo.available_timezones() - {"localtime"}
    if name in names:
        return
    if offset := _OFFSET.fullmatch(name):
        # The sign is POSIX's: west of Greenwich is positive.
        sign = "-" if offset["sign"] == "+" else "+"
        fixed = f"Etc/GMT{sign}{int(offset['hours'])}"
        if fixed in names:
            raise ValueError(
                f"expected the name of a time zone; this offset, without summer time, is {fixed}"
            )
    places = sorted(zone for zone in names if "/" in zone)
    near = difflib.get_close_matches(name, places, n=1, cutoff=0.75)
    raise ValueError(f"expected the name of a time zone, such as {near[0] if near else 'Europe/Berlin'}")


def next_starts(
    expression: str, time_zone: str, moment: datetime.datetime, count: int = 5
) -> list[datetime.datetime]:
    """Return the first `count` times after `moment` at which the expression fires, in its time zone."""
    times = croniter(expression, moment.astimezone(zoneinfo.ZoneInfo(time_zone)), ret_type=datetime.datetime)
    return list(islice(times, count))


def surprises(expression: str) -> list[str]:
    """Return a sentence for each thing about a valid expression that people often do not mean."""
    _, _, day_of_month, _, day_of_week = expression.split()
    sentences = []
    if not day_of_month.startswith("*") and not day_of_week.startswith("*"):
        sentences.append(
            f"cron takes each day of the month {day_of_month} and each day of the week {day_of_week}, not only days that are both"
        )
    first, second = next_starts(
        expression, "UTC", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), count=2
    )
    if second - first < datetime.timedelta(hours=1):
        sentences.append(
            "it starts more often than once an hour; a run waits for the one before, and of missed starts the last counts"
        )
    return sentences
