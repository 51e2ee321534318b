"""A sampling and a scoring process are killed by -9 in mid-shard, and Airflow tries again.

The rows are then those of an undisturbed run.
"""

import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import text as sql

from toolformer_ops.config import Settings
from toolformer_ops.local_services.airflow_client import ENDED_STATES, AirflowClient
from toolformer_ops.local_services.state_folder import write_environment
from toolformer_ops.storage import database

DAG_ID = "annotate_corpus"
DOCUMENTS = 120
SECONDS_FOR_A_RUN = 600
ROWS = {
    "candidate_calls": "select * from candidate_calls order by sampling_recipe_id, call_id",
    "call_losses": "select * from call_losses order by scoring_recipe_id, call_id",
    "stage_ledger": "select stage, recipe_id, document_id, rows_written, counts from stage_ledger order by 1, 2, 3",
}
"""What must be equal; the ledger without its times."""

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough texts for the Calculator that a kill meets the stage at work."""
    path = tmp_path_factory.mktemp("sums") / "sums.jsonl"
    texts = [
        f"The shop had {n} shirts and sold {n // 2} of them on day {n}, so it has {n - n // 2} left."
        for n in range(100, 100 + DOCUMENTS)
    ]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture
def settings(services: Settings) -> Settings:
    """The services, with stages that commit every second document, and all documents in one shard."""
    write_environment(
        services.state_dir / "environment", {"micro_batch_documents": "2", "seconds_per_document": "0.01"}
    )
    return services


@pytest.fixture
def airflow(settings: Settings) -> AirflowClient:
    return AirflowClient.of(settings)


def trigger(airflow: AirflowClient, run_id: str, corpus: Path, model: Path) -> None:
    conf = {
        "corpus": str(corpus),
        "model": str(model),
        "tools": ["Calculator"],
        "sampling_threshold": 0.0,
        "max_positions": 4,
        "samples_per_position": 3,
        "max_call_tokens": 16,
        "keep_thresholds": {"Calculator": 0.0},
        "prune_below": 0.0,
        "finetune": False,
    }
    airflow.open_dag(DAG_ID)
    airflow.trigger(DAG_ID, run_id, conf)


def wait_for_success(airflow: AirflowClient, run_id: str) -> None:
    until = time.monotonic() + SECONDS_FOR_A_RUN
    while (state := airflow.run_state(DAG_ID, run_id)) not in ENDED_STATES:
        assert time.monotonic() < until, f"{run_id} is still {state}"
        time.sleep(2)
    assert state == "success", [task.name for task in airflow.tasks(DAG_ID, run_id, "failed")]


def rows(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    with database.transaction(database.connect(settings)) as connection:
        return {table: [tuple(row) for row in connection.execute(sql(query))] for table, query in ROWS.items()}


def documents_done(settings: Settings, stage: str) -> int:
    with database.transaction(database.connect(settings)) as connection:
        done: int = connection.execute(
            sql("select count(*) from stage_ledger where stage = :stage"), {"stage": stage}
        ).scalar_one()
        return done


def stage_process(stage: str, run_id: str) -> psutil.Process | None:
    """The process of a stage of that run, as a task started it."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if {"toolformer_ops", "stage", stage, run_id} <= set(words):
            return process
    return None


def kill_in_mid_shard(settings: Settings, stage: str, run_id: str) -> int:
    """Kill the stage by -9 once it has committed something; returns how many documents it had done."""
    until = time.monotonic() + SECONDS_FOR_A_RUN
    while time.monotonic() < until:
        if documents_done(settings, stage) and (process := stage_process(stage, run_id)):
            process.kill()
            process.wait(30)
            return documents_done(settings, stage)
        time.sleep(0.02)
    pytest.fail(f"{stage} never committed a document while it ran")


def test_killed_stages_leave_the_rows_of_an_undisturbed_run(
    settings: Settings, airflow: AirflowClient, sums: Path, writing_model_dir: Path
) -> None:
    with database.transaction(database.connect(settings)) as connection:
        connection.execute(
            sql("truncate candidate_calls, pruned_positions, call_losses, call_results, stage_ledger, filter_decisions")
        )
    trigger(airflow, "undisturbed", sums, writing_model_dir)
    wait_for_success(airflow, "undisturbed")
    undisturbed = rows(settings)
    assert undisturbed["candidate_calls"]
    assert undisturbed["call_losses"]

    with database.transaction(database.connect(settings)) as connection:
        connection.execute(
            sql("truncate candidate_calls, pruned_positions, call_losses, call_results, stage_ledger, filter_decisions")
        )
    trigger(airflow, "killed", sums, writing_model_dir)
    for stage in ("sample", "score"):
        assert 0 < kill_in_mid_shard(settings, stage, "killed") < DOCUMENTS
    wait_for_success(airflow, "killed")

    tries = {task.name: task.try_number for task in airflow.tasks(DAG_ID, "killed", "success")}
    assert tries["Calculator.sample [0]"] == tries["Calculator.score [0]"] == 2
    disturbed = rows(settings)
    for table, expected in undisturbed.items():
        assert disturbed[table] == expected, table
