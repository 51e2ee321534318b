"""Airflow's scheduler, API server and triggerer are killed by -9 while a run is at work, and supervisord starts them again.

The rows are those of an undisturbed run. And a run that a person ends does not stay open.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import text as sql

from tests.system.conftest import (
    ANNOTATE,
    SECONDS_FOR_A_RUN,
    annotate_anew,
    rows_of_calls,
)
from toolformer_ops.config import Settings
from toolformer_ops.errors import AirflowNotReadyError
from toolformer_ops.local_services.airflow_client import AirflowClient
from toolformer_ops.storage import database

pytestmark = pytest.mark.system

COMPONENTS = ("scheduler", "triggerer", "api-server")


def processes_of(settings: Settings, component: str) -> list[psutil.Process]:
    """The processes of a component of this state folder's Airflow."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = " ".join(process.info["cmdline"] or []).replace(
            "_", "-"
        )  # some name themselves anew: airflow api_server
        if f"airflow {component}" in words and str(process.info["cwd"]).startswith(str(settings.state_dir)):
            found.append(process)
    return found


def ask(settings: Settings, statement: str) -> list[tuple[Any, ...]]:
    with database.transaction(database.connect(settings)) as connection:
        return [tuple(row) for row in connection.execute(sql(statement))]


def wait_for(settings: Settings, statement: str) -> None:
    """Until the statement returns rows."""
    until = time.monotonic() + SECONDS_FOR_A_RUN
    while not ask(settings, statement):
        assert time.monotonic() < until, statement
        time.sleep(0.1)


def answered(airflow: AirflowClient, run_id: str) -> str:
    """The state of a run; empty while the API server is not there."""
    try:
        return airflow.run_state(ANNOTATE, run_id)
    except AirflowNotReadyError:
        return ""


def test_a_run_goes_through_the_death_of_scheduler_triggerer_and_api_server(
    services: Settings,
    airflow: AirflowClient,
    sums: Path,
    writing_model_dir: Path,
    undisturbed: dict[str, list[list[Any]]],
) -> None:
    annotate_anew(services, airflow, "orphaned", sums, writing_model_dir)
    wait_for(services, "select 1 from stage_ledger where stage = 'filter'")
    for component in COMPONENTS:
        killed = processes_of(services, component)
        assert killed, component
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before
                process.kill()
    wait_for(services, "select 1 from annotation_runs where run_id = 'orphaned' and state = 'success'")
    until = time.monotonic() + SECONDS_FOR_A_RUN
    while answered(airflow, "orphaned") != "success":
        assert time.monotonic() < until
        time.sleep(1)
    assert rows_of_calls(services) == undisturbed


def test_a_run_that_a_person_ends_is_closed(
    services: Settings, airflow: AirflowClient, small_corpus: Path, writing_model_dir: Path
) -> None:
    annotate_anew(services, airflow, "ended-by-hand", small_corpus, writing_model_dir)
    wait_for(services, "select 1 from annotation_runs where run_id = 'ended-by-hand' and state = 'running'")
    airflow.end_run(ANNOTATE, "ended-by-hand")
    wait_for(services, "select 1 from annotation_runs where run_id = 'ended-by-hand' and state = 'failed'")
