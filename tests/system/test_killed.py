"""Stages, and Airflow's scheduler, API server and triggerer, are killed by -9 while a run is at work, and are started again.

The rows are those of an undisturbed run.
"""

import contextlib
import json
import signal
from typing import Any

import psutil
import pytest
from sqlalchemy import text as sql

from tests.system.conftest import (
    ANNOTATE,
    SAMPLING,
    put_lines,
    rows,
    run_stages_as,
    stage_process,
    until,
    wait_until_ended,
)
from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.config import Settings
from toolformer_ops.errors import AirflowNotReadyError
from toolformer_ops.local.state_folder import write_environment
from toolformer_ops.storage import database

pytestmark = [pytest.mark.system, pytest.mark.slow]

COMPONENTS = ("scheduler", "triggerer", "api-server")
SUMS = 120
"""Enough texts that a kill meets a stage at work; all in one shard, of which a stage commits every second text."""
ROWS = {
    "candidate_calls": "select * from candidate_calls order by sampling_recipe_id, call_id",
    "call_losses": "select * from call_losses order by scoring_recipe_id, call_id",
    "stage_ledger": "select stage, recipe_id, document_id, case when stage <> 'execute' then rows_written end, "
    "counts - '{executed,from_cache}'::text[] from stage_ledger order by 1, 2, 3",
    "executed": "select recipe_id, sum(rows_written), sum((counts ->> 'executed')::integer), "
    "sum((counts ->> 'from_cache')::integer) from stage_ledger where stage = 'execute' group by 1 order by 1",
}
"""What a killed run and an undisturbed one have in common, the ledger without its times. Of documents that ask the same, the first
one executes it, and those at which a process died come last: what is executed is compared in sum."""
OF_CALLS = (
    "candidate_calls, pruned_positions, call_losses, call_results, stage_ledger, filter_decisions, quality_results, "
    "finished_work, placebo_losses, placebo_counts, placebo_rates, placebo_pool_results, placebo_pools"
)
"""What a run leaves of a text, and from which the next one knows that a tool has nothing to do."""


def annotate_anew(settings: Settings, airflow: AirflowClient, run_id: str, model: str) -> None:
    """Forget all calls, and that they passed their checks, and start a run with the Calculator."""
    write_environment(settings.state_dir / "environment", {"seconds_per_document": "0.01"})
    run_stages_as(settings, airflow, "local")
    texts = (f"The shop had {n} shirts and sold {n // 2} on day {n}, so {n - n // 2} are left." for n in range(SUMS))
    with database.transaction(database.connect(settings)) as connection:
        connection.execute(sql(f"truncate {OF_CALLS}"))
    conf = {"corpus": put_lines(settings, "corpora/sums.jsonl", texts), "model": model, "tools": ["Calculator"]}
    choices = {"keep_thresholds": {"Calculator": 0.0}, "finetune": False}
    airflow.trigger(ANNOTATE, run_id, conf | choices | SAMPLING)


def rows_of_calls(settings: Settings) -> dict[str, list[list[Any]]]:
    """All rows by table, as JSON has them."""
    found = {table: rows(settings, query) for table, query in ROWS.items()}
    assert all(found.values())
    return dict(json.loads(json.dumps(found, default=str)))


def documents_done(settings: Settings, stage: str) -> int:
    [(done,)] = rows(settings, "select count(*) from stage_ledger where stage = :stage", stage=stage)
    return int(done)


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


def test_a_run_whose_stages_and_whose_airflow_are_killed_leaves_the_rows_of_an_undisturbed_one(
    services: Settings, airflow: AirflowClient, model: str
) -> None:
    annotate_anew(services, airflow, "undisturbed", model)
    assert wait_until_ended(airflow, ANNOTATE, "undisturbed") == "success"
    undisturbed = rows_of_calls(services)

    # 1. All parts of Airflow at once, and what they have started.
    annotate_anew(services, airflow, "killed", model)
    until("a filter", lambda: documents_done(services, "filter"), seconds=0.05)
    for component in COMPONENTS:
        killed = processes_of(services, component)
        assert killed, component
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before
                process.kill()

    # 2. The shard, in two of its stages, once each has committed something.
    for stage, by in (("sample", signal.SIGKILL), ("score", signal.SIGTERM)):
        until(f"rows of {stage}", lambda: documents_done(services, stage), seconds=0.05)
        shard = until(f"{stage} at work", lambda: stage_process("annotate", "killed"), seconds=0.05)
        shard.send_signal(by)
        shard.wait(30)
        assert documents_done(services, stage) < SUMS

    # 3. The run ends well, in Airflow too.
    def is_over() -> bool:
        with contextlib.suppress(AirflowNotReadyError):  # the API server is not there
            return airflow.run_state(ANNOTATE, "killed") in ("success", "failed")
        return False

    until("the end of the run", is_over)
    assert airflow.run_state(ANNOTATE, "killed") == "success", airflow.tasks(ANNOTATE, "killed", "failed")
    tries = {task.name: task.try_number for task in airflow.tasks(ANNOTATE, "killed", "success")}
    assert tries["Calculator.annotate [0]"] == 3
    assert rows_of_calls(services) == undisturbed
    assert rows(services, "select * from micro_batch_tries") == []  # no text is suspected any more
