"""When our own DAGs start by the clock: the audit, retention, and the messages about nights."""

from airflow.sdk import CronTriggerTimetable

from toolformer_ops.airflow_tasks.nights.cron import require_cron
from toolformer_ops.airflow_tasks.nights.schedules import schedule_files
from toolformer_ops.config import ENV_PREFIX, Settings
from toolformer_ops.errors import ConfigurationError

OFF = "off"
"""The setting that leaves the audit, or retention, to people."""
EVERY_TEN_MINUTES = "*/10 * * * *"
EVERY_HOUR = "0 * * * *"


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
    return CronTriggerTimetable(expression, timezone="UTC")


def sending_timetable(settings: Settings) -> CronTriggerTimetable:
    """Return when `send_notifications` starts by itself: often where there are schedules.

    Without one it still ends runs that Airflow does not continue, such as the last run of the last schedule.
    """
    has_schedules = bool(schedule_files(settings.schedules_dir))
    return CronTriggerTimetable(EVERY_TEN_MINUTES if has_schedules else EVERY_HOUR, timezone="UTC")
