"""Airflow's scheduler, API server and triggerer, and then a stage, are killed while a run is at work, and are started again.

That what a killed stage leaves has the rows of an undisturbed one is tried in `tests/faults`.
"""

import contextlib
import signal
from dataclasses import dataclass

import psutil
import pytest

from tests.system.conftest import ANNOTATE, SAMPLING, put_lines, rows, run_stages_as, stage_process, until
from toolformer_ops.airflow_tasks.airflow_client import ENDED_STATES
from toolformer_ops.config import Settings
from toolformer_ops.errors import AirflowNotReadyError
from toolformer_ops.local.state_folder import StatePaths
from toolformer_ops.local.supervision import Supervisor

pytestmark = [pytest.mark.system, pytest.mark.slow]

RUN = "killed"
PARTS = ("scheduler", "triggerer", "api-server")
SUMS = 120
"""Enough texts that a kill meets a stage at work; all in one shard, of which a stage commits every second
text."""


@dataclass(frozen=True)
class KilledRun:
    """What became of a run whose Airflow and two of whose stages were killed."""

    killed_parts: int
    """Parts of Airflow that were killed."""
    done_when_killed: dict[str, int]
    """Texts that each killed stage had committed when it had ended."""
    state: str | None
    failed_tasks: list[str]
    tries_of_shard: int
    done: dict[str, int]
    """Rows of the ledger at the end, by stage."""
    suspected: list[tuple[object, ...]]
    """Micro-batches that a killed process left, at the end."""


def done(settings: Settings, stage: str) -> int:
    """Texts that a stage of the run has committed."""
    of_run = (
        "select 1 from run_tool_documents member join stage_ledger ledger on ledger.document_id = variant_id "
    )
    return len(rows(settings, of_run + "where run_id = :run and stage = :stage", stage=stage, run=RUN))


def kill_airflow(settings: Settings) -> int:
    """Kill all parts of Airflow at once, and what they have started; returns how many parts that were."""
    parts = [
        psutil.Process(report.process_id)
        for report in Supervisor(StatePaths(settings.state_dir)).reports()
        if report.name.removeprefix("airflow-") in PARTS
    ]
    for process in [process for part in parts for process in (part, *part.children(recursive=True))]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before
            process.kill()
    return len(parts)


def end_shard(settings: Settings, stage: str, by: signal.Signals) -> int:
    """End the process of the shard once this stage has committed something; returns how many texts it committed."""

    def shard_at_work() -> psutil.Process | None:
        return stage_process("annotate", RUN) if done(settings, stage) else None

    shard = until(f"{stage} at work", shard_at_work, seconds=0.05)
    shard.send_signal(by)
    shard.wait(30)
    return done(settings, stage)


@pytest.fixture(scope="module")
def killed_run(services, airflow, model):
    run_stages_as(services, airflow, "local")
    texts = (
        f"The shop had {n} shirts and sold {n // 2} on day {n}, so {n - n // 2} are left."
        for n in range(100, 100 + SUMS)
    )
    conf = SAMPLING | {
        "corpus": put_lines(services, "corpora/sums.jsonl", texts),
        "model": model,
        "tools": ["Calculator"],
        "keep_thresholds": {"Calculator": 0.0},
        "finetune": False,
    }
    airflow.trigger(ANNOTATE, RUN, conf)
    # 1. Airflow, and what it has started.
    until("a filter", lambda: done(services, "filter"), seconds=0.05)
    killed_parts = kill_airflow(services)
    # 2. The shard, in two of its stages.
    done_when_killed = {
        "sample": end_shard(services, "sample", signal.SIGKILL),
        "score": end_shard(services, "score", signal.SIGTERM),
    }

    # 3. The end of the run.
    def is_over() -> bool:
        with contextlib.suppress(AirflowNotReadyError):  # the API server is not there
            return airflow.run_state(ANNOTATE, RUN) in ENDED_STATES
        return False

    until("the end of the run", is_over)
    tries = {task.name: task.try_number for task in airflow.tasks(ANNOTATE, RUN, "success")}
    return KilledRun(
        killed_parts=killed_parts,
        done_when_killed=done_when_killed,
        state=airflow.run_state(ANNOTATE, RUN),
        failed_tasks=[task.name for task in airflow.tasks(ANNOTATE, RUN, "failed")],
        tries_of_shard=tries.get("Calculator.annotate [0]", 0),
        done={stage: done(services, stage) for stage in ("filter", "sample", "score")},
        suspected=rows(services, "select * from micro_batch_tries"),
    )


def test_all_parts_of_airflow_were_killed(killed_run):
    assert killed_run.killed_parts == len(PARTS)


def test_stages_were_killed_amid_their_work(killed_run):
    assert {stage: 0 < texts < SUMS for stage, texts in killed_run.done_when_killed.items()} == {
        "sample": True,
        "score": True,
    }


def test_the_run_succeeds_though_airflow_with_its_stages_is_killed(killed_run):
    assert (killed_run.state, killed_run.failed_tasks) == ("success", [])


def test_a_shard_that_is_killed_is_tried_again(killed_run):
    assert killed_run.tries_of_shard >= 3


def test_each_stage_does_each_text_once(killed_run):
    assert killed_run.done == {"filter": SUMS, "sample": SUMS, "score": SUMS}


def test_no_text_is_suspected_of_the_kills_any_more(killed_run):
    assert killed_run.suspected == []
