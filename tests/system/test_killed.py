"""Airflow's scheduler, API server and triggerer, and then a stage, are killed while a run is at work, and are started again.

That what a killed stage leaves has the rows of an undisturbed one is tried in `tests/faults`.
"""

import contextlib
import signal

import psutil
import pytest

from tests.system.conftest import ANNOTATE, SAMPLING, put_lines, rows, run_stages_as, stage_process, until
from toolformer_ops.airflow_tasks.airflow_client import ENDED_STATES, AirflowClient
from toolformer_ops.config import Settings
from toolformer_ops.errors import AirflowNotReadyError
from toolformer_ops.local.state_folder import StatePaths, write_environment
from toolformer_ops.local.supervision import Supervisor

pytestmark = [pytest.mark.system, pytest.mark.slow]

RUN = "killed"
PARTS = ("scheduler", "triggerer", "api-server")
SUMS = 120
"""Enough texts that a kill meets a stage at work; all in one shard, of which a stage commits every second
text."""


def test_a_run_does_each_text_once_though_airflow_with_its_stages_is_killed(
    services: Settings, airflow: AirflowClient, model: str
) -> None:
    def done(stage: str) -> int:
        of_run = "select 1 from run_tool_documents member join stage_ledger ledger on ledger.document_id = variant_id "
        return len(rows(services, of_run + "where run_id = :run and stage = :stage", stage=stage, run=RUN))

    write_environment(services.state_dir / "environment", {"seconds_per_document": "0.01"})
    run_stages_as(services, airflow, "local")
    numbers = range(100, 100 + SUMS)
    texts = (
        f"The shop had {n} shirts and sold {n // 2} on day {n}, so {n - n // 2} are left." for n in numbers
    )
    conf = {
        "corpus": put_lines(services, "corpora/sums.jsonl", texts),
        "model": model,
        "tools": ["Calculator"],
    }
    airflow.trigger(
        ANNOTATE, RUN, conf | SAMPLING | {"keep_thresholds": {"Calculator": 0.0}, "finetune": False}
    )

    # 1. All parts of Airflow at once, and what they have started.
    until("a filter", lambda: done("filter"), seconds=0.05)
    reports = Supervisor(StatePaths(services.state_dir)).reports()
    parts = [
        psutil.Process(report.process_id)
        for report in reports
        if report.name.removeprefix("airflow-") in PARTS
    ]
    assert len(parts) == len(PARTS)
    for process in [process for part in parts for process in (part, *part.children(recursive=True))]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before
            process.kill()

    # 2. The shard, in two of its stages, once each has committed something.
    for stage, by in (("sample", signal.SIGKILL), ("score", signal.SIGTERM)):

        def shard_at_work(stage: str = stage) -> psutil.Process | None:
            return stage_process("annotate", RUN) if done(stage) else None

        shard = until(f"{stage} at work", shard_at_work, seconds=0.05)
        shard.send_signal(by)
        shard.wait(30)
        assert 0 < done(stage) < SUMS

    # 3. The run ends well.
    def is_over() -> bool:
        with contextlib.suppress(AirflowNotReadyError):  # the API server is not there
            return airflow.run_state(ANNOTATE, RUN) in ENDED_STATES
        return False

    until("the end of the run", is_over)
    assert airflow.run_state(ANNOTATE, RUN) == "success", airflow.tasks(ANNOTATE, RUN, "failed")
    tries = {task.name: task.try_number for task in airflow.tasks(ANNOTATE, RUN, "success")}
    assert tries["Calculator.annotate [0]"] >= 3
    assert [done(stage) for stage in ("filter", "sample", "score")] == [SUMS] * 3
    assert rows(services, "select * from micro_batch_tries") == []  # no text is suspected any more
