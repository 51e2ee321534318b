"""A release is made by one DAG, and finetuned with and without its calls and evaluated by the other.

One suite has no data, so the run is red at its end; the other suite is evaluated all the same.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import PROBLEMS, UNDISTURBED, rows, wait_until_ended
from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.config import Settings
from toolformer_ops.storage.publication import ObjectStore

FINETUNE, TUNING = "finetune_release", "tuning"

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_a_release_of_another_run_is_finetuned_twice_and_every_variant_has_a_score(
    services: Settings, airflow: AirflowClient, undisturbed: dict[str, Any], evaluation_data: Path
) -> None:
    [(release_id,)] = rows(services, "select release_id from run_releases where run_id = :run", run=UNDISTURBED)
    conf = {
        "release": release_id, "finetune_steps": 2, "finetune_batch": 2, "finetune_device_batch": 2, "finetune_length": 64,
        "finetune_baseline": True, "evaluation_suites": ["math", "lama"], "evaluation_data": str(evaluation_data),
    }  # fmt: skip
    airflow.open_dag(FINETUNE)
    airflow.trigger(FINETUNE, TUNING, conf)
    assert wait_until_ended(airflow, FINETUNE, TUNING) == "failed"
    failed, done = (
        {task.task_id for task in airflow.tasks(FINETUNE, TUNING, state)} for state in ("failed", "success")
    )
    assert failed == {"evaluation.lama", "finish_run"}
    assert done >= {"publish", "publish_without_calls", "evaluation.math", "evaluation.report"}
    found = rows(
        services, "select variant, suite, subset, inputs from evaluation_scores where run_id = :run", run=TUNING
    )
    assert {row[0] for row in found} == {"base", "without_calls", "disabled", "with_tools"}
    assert {row[1:] for row in found} == {("math", "svamp", PROBLEMS)}
    models = rows(services, "select without_calls from run_models where run_id = :run order by 1", run=TUNING)
    assert models == [(False,), (True,)]
    assert rows(services, "select state from annotation_runs where run_id = :run", run=TUNING) == [("failed",)]
    page = ObjectStore(services).get(f"reports/{TUNING}/index.html").decode("utf-8")
    assert "<strong>Not evaluated:</strong> lama." in page
