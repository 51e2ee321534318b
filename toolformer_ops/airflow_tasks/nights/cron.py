"""Whether a cron expression fires, and at times that a person can foresee.

croniter, by which Airflow reads expressions, also accepts fields that it draws at random, and days that no
month has: for those Airflow starts no run, and says nothing.
"""

import datetime
import re

from croniter import croniter
from croniter.croniter import CroniterBadDateError

CRON_FIELDS = 5
DRAWN = re.compile(r"\b[rh]\b", re.IGNORECASE)
"""croniter draws a number for R, and takes one from a hash for H."""


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
