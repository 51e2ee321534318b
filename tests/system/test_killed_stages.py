"""A shard's process is killed by -9 while it samples, and told to end (SIGTERM) while it scores, and Airflow tries again.

The rows are then those of an undisturbed run.
"""

import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine
from sqlalchemy import text as sql

from tests.system.conftest import ANNOTATE, SECONDS_FOR_A_RUN, SUMS, annotate_anew, rows_of_calls, wait_until_ended
from toolformer_ops.config import Settings
from toolformer_ops.local_services.airflow_client import AirflowClient
from toolformer_ops.storage import database

pytestmark = pytest.mark.system


def documents_done(engine: Engine, stage: str) -> int:
    with database.transaction(engine) as connection:
        done: int = connection.execute(
            sql("select count(*) from stage_ledger where stage = :stage"), {"stage": stage}
        ).scalar_one()
        return done


def shard_process(run_id: str) -> psutil.Process | None:
    """The process of a shard of that run, as a task started it."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if {"toolformer_ops", "stage", "annotate", run_id} <= set(words):
            return process
    return None


def end_in_mid_shard(settings: Settings, stage: str, run_id: str, by: signal.Signals) -> int:
    """End the shard by this signal once the stage has committed something; returns how many documents it had done."""
    engine = database.connect(settings)
    until = time.monotonic() + SECONDS_FOR_A_RUN
    while time.monotonic() < until:
        if documents_done(engine, stage) and (process := shard_process(run_id)):
            process.send_signal(by)
            process.wait(30)
            return documents_done(engine, stage)
        time.sleep(0.05)
    pytest.fail(f"{stage} never committed a document while it ran")


def test_killed_stages_leave_the_rows_of_an_undisturbed_run(
    services: Settings,
    airflow: AirflowClient,
    sums: Path,
    writing_model_dir: Path,
    undisturbed: dict[str, list[list[Any]]],
    tuning: str,
) -> None:
    """The run of `finetune_release` goes on meanwhile: it reads a release and no call."""
    annotate_anew(services, airflow, "killed", sums, writing_model_dir)
    for stage, by in (("sample", signal.SIGKILL), ("score", signal.SIGTERM)):
        assert 0 < end_in_mid_shard(services, stage, "killed", by) < SUMS
    state = wait_until_ended(airflow, ANNOTATE, "killed")
    assert state == "success", [task.name for task in airflow.tasks(ANNOTATE, "killed", "failed")]

    tries = {task.name: task.try_number for task in airflow.tasks(ANNOTATE, "killed", "success")}
    assert tries["Calculator.annotate [0]"] == 3
    disturbed = rows_of_calls(services)
    for table, expected in undisturbed.items():
        assert disturbed[table] == expected, table
    with database.transaction(database.connect(services)) as connection:  # no text is suspected any more
        assert connection.execute(sql("select count(*) from micro_batch_tries")).scalar_one() == 0
