"""When our own DAGs start by the clock, and which cron expressions are taken."""

import pendulum
import pytest
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import TimeRestriction

from toolformer_ops.airflow_tasks.nights.cron import require_cron
from toolformer_ops.airflow_tasks.nights.timetables import weekly_timetable
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ConfigurationError


@pytest.mark.parametrize(
    "expression",
    [
        "0 2 * * *",
        "*/10 * * * *",
        "0 2 29 2 *",  # every leap year
        "0 2 30 2 mon",  # each Monday in February
        "0 2 * mar fri",
        "0 2 l * *",  # the last day of a month
        "0 2 * * 5#2",  # its second Friday
    ],
)
def test_an_expression_that_fires_is_taken(expression):
    require_cron(expression)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("0 2 30 2 *", "a day that some month has"),
        ("0 2 31 4,6,9,11 *", "a day that some month has"),
        ("R 2 * * *", "drawn at random"),
        ("R(0-29) 2 * * *", "drawn at random"),
        ("0 h * * *", "drawn at random"),
        ("61 2 * * *", "five fields"),
        ("0 2 * *", "five fields"),
        ("0 2 * * * 30", "five fields"),
        ("@daily", "five fields"),
    ],
)
def test_an_expression_that_fires_never_or_by_chance_is_refused(expression, said):
    with pytest.raises(ValueError, match=said):
        require_cron(expression)


def test_an_airflow_that_is_first_started_on_a_sunday_waits_for_the_next(monkeypatch):
    timetable = coerce_to_core_timetable(weekly_timetable(load_settings(), "audit_schedule"))
    monkeypatch.setattr("airflow.timetables.trigger.utcnow", lambda: pendulum.datetime(2026, 11, 29, 6, 5))
    first = timetable.next_dagrun_info(
        last_automated_data_interval=None, restriction=TimeRestriction(None, None, catchup=False)
    )
    assert first.run_after == pendulum.datetime(2026, 12, 6, 6)


def test_an_audit_that_would_never_start_is_an_error_that_names_the_setting(monkeypatch):
    monkeypatch.setenv("TOOLFORMER_AUDIT_SCHEDULE", "0 6 31 2 *")
    load_settings.cache_clear()
    with pytest.raises(
        ConfigurationError, match="TOOLFORMER_AUDIT_SCHEDULE: expected a day that some month has"
    ):
        weekly_timetable(load_settings(), "audit_schedule")
