"""When the audit and retention start by the clock."""

import datetime

from airflow.sdk import CronTriggerTimetable

from toolformer_ops.airflow_tasks.nights.cron import require_cron
from toolformer_ops.config import ENV_PREFIX, Settings
from toolformer_ops.errors import ConfigurationError

OFF = "off"
"""The setting that leaves the audit, or retention, to people."""


def weekly_timetable(settings: Settings, name: str) -> CronTriggerTimetable | None:
    """Return when a DAG starts by the setting of this name; None if people alone start it.

    Raises:
        ConfigurationError: the setting is no cron expression, or never fires.
    """
    expression = str(getattr(settings, name))
    if expression == OFF:
        return None
    try:
        require_cron(expression)
    except ValueError as error:
        raise ConfigurationError(
            f"{ENV_PREFIX}{name.upper()}: {error} (found {expression!r}). `{OFF}` leaves it to people."
        ) from error
    # By default an Airflow that is first started within the 17 hours after a Sunday's time makes up for it, beside
    # the first run of a person.
    return CronTriggerTimetable(expression, timezone="UTC", run_immediately=datetime.timedelta())
