"""The task of the weekly audit: its note, its colour, and its clock, which can be switched off."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from toolformer_ops.airflow_tasks import audit_task
from toolformer_ops.airflow_tasks.audit_task import set_report
from toolformer_ops.airflow_tasks.local_process import StageProcess

REPORT = "- documents: 3 looked at, nothing found, 0.1 s"


@pytest.mark.parametrize("status", [0, 3])
def test_what_was_found_is_the_note_also_where_the_audit_is_red(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    notes: list[str] = []
    monkeypatch.setattr(audit_task, "set_note", lambda context, text: notes.append(text))
    program = f"import sys; print({json.dumps({'report': REPORT})!r}); sys.exit({status})"
    command = [sys.executable, "-c", program]
    task = StageProcess(task_id="audit", arguments=["stage", "audit"], command=command, tells=set_report)
    if status:
        with pytest.raises(AirflowFailException):
            task.execute({})
    else:
        task.execute({})
    assert notes == [REPORT]


def test_the_audit_runs_weekly_unless_it_is_switched_off(parse: Callable[..., dict[str, DAG]]) -> None:
    weekly: Any = parse()["audit"]
    assert (weekly.timetable.expression, weekly.is_paused_upon_creation) == ("0 6 * * 0", False)
    off: Any = parse(audit_schedule="off")["audit"]
    assert off.schedule is None
