"""Stages, and Airflow's scheduler, API server and triggerer, are killed by -9 while a run is at work, and are started again.

The rows are those of an undisturbed run.
"""

import contextlib
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system.conftest import (
    ANNOTATE,
    SUMS,
    annotate_anew,
    processes_of,
    rows,
    rows_of_calls,
    stage_process,
    until,
    wait_until_ended,
)
from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.config import Settings
from toolformer_ops.errors import AirflowNotReadyError

pytestmark = [pytest.mark.system, pytest.mark.slow]

COMPONENTS = ("scheduler", "triggerer", "api-server")


def documents_done(settings: Settings, stage: str) -> int:
    [(done,)] = rows(settings, "select count(*) from stage_ledger where stage = :stage", stage=stage)
    return int(done)


def end_in_mid_shard(settings: Settings, stage: str, run_id: str, by: signal.Signals) -> int:
    """End the shard by this signal once the stage has committed something; returns how many documents it had done."""
    process: psutil.Process = until(
        f"{stage} at work", lambda: documents_done(settings, stage) and stage_process("annotate", run_id), seconds=0.05
    )
    process.send_signal(by)
    process.wait(30)
    return documents_done(settings, stage)


def test_killed_stages_leave_the_rows_of_an_undisturbed_run(
    services: Settings,
    airflow: AirflowClient,
    sums: Path,
    writing_model_dir: Path,
    undisturbed: dict[str, list[list[Any]]],
) -> None:
    annotate_anew(services, airflow, "killed", sums, writing_model_dir)
    for stage, by in (("sample", signal.SIGKILL), ("score", signal.SIGTERM)):
        assert 0 < end_in_mid_shard(services, stage, "killed", by) < SUMS
    state = wait_until_ended(airflow, ANNOTATE, "killed")
    assert state == "success", [task.name for task in airflow.tasks(ANNOTATE, "killed", "failed")]

    tries = {task.name: task.try_number for task in airflow.tasks(ANNOTATE, "killed", "success")}
    assert tries["Calculator.annotate [0]"] == 3
    assert rows_of_calls(services) == undisturbed
    assert rows(services, "select * from micro_batch_tries") == []  # no text is suspected any more


def test_a_run_goes_through_the_death_of_scheduler_triggerer_and_api_server(
    services: Settings,
    airflow: AirflowClient,
    sums: Path,
    writing_model_dir: Path,
    undisturbed: dict[str, list[list[Any]]],
) -> None:
    annotate_anew(services, airflow, "orphaned", sums, writing_model_dir)
    until("a filter", lambda: documents_done(services, "filter"))
    for component in COMPONENTS:
        killed = processes_of(services, component)
        assert killed, component
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before
                process.kill()
    ended = "select 1 from annotation_runs where run_id = 'orphaned' and state = 'success'"
    until("the end of the run", lambda: rows(services, ended))

    def is_over() -> bool:
        with contextlib.suppress(AirflowNotReadyError):  # the API server is not there
            return airflow.run_state(ANNOTATE, "orphaned") == "success"
        return False

    until("Airflow's word for it", is_over)
    assert rows_of_calls(services) == undisturbed
