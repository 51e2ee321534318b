"""Stages in pods whose last line the DAG needs: the release with the tasks it makes needless, and the audit with its note."""

import json
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tests.kubernetes.cluster import TestCluster
from tests.kubernetes.tasks import Task
from tests.kubernetes.test_stage_pods import airflow
from toolformer_ops.airflow_tasks.kubernetes.pods import StagePod

__all__ = ["airflow"]  # a fixture

RELEASE = {"release_id": "4f0c91b2d4a7e633", "changed_examples": 12, "unchanged_since": None}


class ResultTask(Task):
    """A task that returns what its pod prints; `pushed` has its XComs."""

    def __init__(self, cluster: TestCluster, name: str, script: str, **more: Any) -> None:
        super().__init__(cluster, name, script, **more)
        self.pushed: dict[str, Any] = {}

    def new_operator(self) -> StagePod:
        return StagePod(
            task_id=self.name,
            arguments=["stage", "release"],
            manifest=self.manifest,
            **(self.arguments | self.more),
        )

    def context(self) -> Any:
        context = super().context()
        context["ti"].xcom_push = lambda key, value: self.pushed.update({key: value})
        return context


def printing(value: Any, status: int = 0) -> str:
    """A script that writes its log on both sides of its result, as a stage does."""
    return f"echo working >&2; echo '{json.dumps(value)}'; sleep 0.1; echo '12:00 [error] found {{much}}' >&2; exit {status}"


def test_a_release_in_a_pod_says_which_tasks_are_not_needed_after_it(cluster):
    few = {"finetune": "12 are too few"}
    mute = "echo '{not json'; exit 0"
    task = ResultTask(cluster, "release", mute, not_needed=lambda *_: few)
    with pytest.raises(AirflowException, match="expected its ids or counts") as raised:
        task.run()
    assert not isinstance(raised.value, AirflowFailException)
    assert "return_value" not in task.pushed
    task.stage["command"] = ["sh", "-c", printing(RELEASE)]
    task.run()  # in a pod of this try alone
    assert task.pushed["return_value"] == RELEASE
    assert task.pushed["skipped"] == few
    assert task.pushed["skipmixin_key"] == {"skipped": ["finetune"]}  # what Airflow's scheduler reads
