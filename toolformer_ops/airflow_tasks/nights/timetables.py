"""When our own DAGs start by the clock: the audit, and the messages about nights."""

from airflow.sdk import CronTriggerTimetable

from toolformer_ops.airflow_tasks.nights.cron import require_cron
from toolformer_ops.airflow_tasks.nights.schedules import schedule_files
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError

OFF = "off"
"""The audit's setting that leaves it to people."""
EVERY_TEN_MINUTES = "*/10 * * * *"
EVERY_HOUR = "0 * * * *"


def audit_timetable(settings: Settings) -> CronTriggerTimetable | None:
    """Return when the audit starts; None if people alone start it.

    Raises:
        ConfigurationError: the setting is no cron expression, or never fires.
    """
    expression = settings.audit_schedule
    if expression == OFF:
        return None
    try:
        require_cron(expression)
    except ValueError as error:
        raise ConfigurationError(
            f"TOOLFORMER_AUDIT_SCHEDULE: {error} (found {expression!r}). `{OFF}` leaves audits to people."
        ) from error
    return CronTriggerTimetable(expression, timezone="UTC")


def sending_timetable(settings: Settings) -> CronTriggerTimetable:
    """Return when `send_notifications` starts by itself: often where there are schedules.

    Without one it still ends runs that Airflow does not continue, such as the last run of the last schedule.
    """
    has_schedules = bool(schedule_files(settings.schedules_dir))
    return CronTriggerTimetable(EVERY_TEN_MINUTES if has_schedules else EVERY_HOUR, timezone="UTC")
