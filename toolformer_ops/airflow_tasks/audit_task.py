"""The task of the weekly audit: red if something is wrong, with what was found as the note of the DAG run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator, CronTriggerTimetable

from toolformer_ops.airflow_tasks.notifying import set_note
from toolformer_ops.airflow_tasks.stage_tasks import stage_operator
from toolformer_ops.config import Settings

if TYPE_CHECKING:
    from airflow.sdk import Context

OFF = "off"
"""The value of the setting `audit_schedule` that leaves audits to people."""


def set_report(context: "Context", printed: Mapping[str, str]) -> None:
    """Set what the audit found, as its stage prints it, as the run's note."""
    set_note(context, printed["report"])


def audit_schedule(settings: Settings) -> CronTriggerTimetable | None:
    """The clock of the audit, in UTC; None where people start it."""
    return None if settings.audit_schedule == OFF else CronTriggerTimetable(settings.audit_schedule, timezone="UTC")


def audit_task() -> BaseOperator:
    """The only task of the DAG."""
    operator, common = stage_operator("audit", arguments=("--sample", "{{ params.sample }}", "--seed", "{{ run_id }}"))
    return operator(**common, tells=set_report)
