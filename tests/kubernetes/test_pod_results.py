"""Stages in pods whose last line the DAG needs: the release with the tasks it makes needless, and the audit with its note."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tests.kubernetes.cluster import TestCluster
from tests.kubernetes.tasks import STOPS_WELL, Task
from tests.kubernetes.test_stage_pods import airflow, background
from toolformer_ops.airflow_tasks.kubernetes.pods import StagePod

__all__ = ["airflow", "background"]  # fixtures

RELEASE = {"release_id": "4f0c91b2d4a7e633", "changed_examples": 12, "unchanged_since": None}


class ResultTask(Task):
    """A task that returns what its pod prints; `pushed` has its XComs."""

    def __init__(self, cluster: TestCluster, name: str, script: str, **more: Any) -> None:
        super().__init__(cluster, name, script, **more)
        self.pushed: dict[str, Any] = {}

    def new_operator(self) -> StagePod:
        return StagePod(
            task_id=self.name, arguments=["stage", "release"], manifest=self.manifest, **(self.arguments | self.more)
        )

    def context(self) -> Any:
        context = super().context()
        context["ti"].xcom_push = lambda key, value: self.pushed.update({key: value})
        return context


def printing(value: Any, status: int = 0) -> str:
    """A script that writes its log on both sides of its result, as a stage does."""
    return f"echo working >&2; echo '{json.dumps(value)}'; sleep 0.1; echo '12:00 [error] found {{much}}' >&2; exit {status}"


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_release_in_a_pod_says_what_it_made_and_which_tasks_are_not_needed(
    cluster: TestCluster, deferrable: bool
) -> None:
    task = ResultTask(
        cluster,
        f"release-{deferrable}",
        printing(RELEASE),
        deferrable=deferrable,
        not_needed=lambda _context, release: {"finetune": f"{release['changed_examples']} are too few"},
    )
    task.run()
    assert task.deferrals == int(deferrable)
    assert task.pushed["return_value"] == RELEASE
    assert task.pushed["skipped"] == {"finetune": "12 are too few"}
    assert task.pushed["skipmixin_key"] == {"skipped": ["finetune"]}  # what Airflow's scheduler reads
    assert [record.exit_code for record in cluster.records_of(task.name)] == [0]


def test_a_release_that_is_out_of_memory_takes_its_own_pod_alone_and_the_retry_makes_it(
    cluster: TestCluster, background: ThreadPoolExecutor
) -> None:
    task = ResultTask(cluster, "release-oom", STOPS_WELL, deferrable=True, returns_result=True)
    future = task.in_background(background)
    cluster.oom(task.pod())
    error = future.exception(timeout=60)
    assert isinstance(error, AirflowException)
    assert "OOMKilled at its limit of 4Gi of memory" in str(error)
    assert "return_value" not in task.pushed
    task.stage["command"] = ["sh", "-c", printing(RELEASE)]
    task.run()
    assert task.pushed["return_value"] == RELEASE


def test_a_result_that_nobody_can_read_is_tried_again(cluster: TestCluster) -> None:
    task = ResultTask(cluster, "release-mute", "echo '{not json'; exit 0", deferrable=True, returns_result=True)
    with pytest.raises(
        AirflowException, match="expected its ids or counts in the log of its pod, found none"
    ) as raised:
        task.run()
    assert not isinstance(raised.value, AirflowFailException)


@pytest.mark.parametrize(("deferrable", "status"), [(False, 0), (True, 3)])
def test_what_an_audit_in_a_pod_found_is_told_also_where_it_is_red(
    cluster: TestCluster, deferrable: bool, status: int
) -> None:
    told: list[dict[str, str]] = []
    report = {"report": "- documents: 3 looked at, 1 lost"}
    task = ResultTask(
        cluster,
        f"audit-{status}-{deferrable}",
        printing(report, status),
        deferrable=deferrable,
        tells=lambda _context, printed: told.append(printed),
    )
    if status:
        with pytest.raises(AirflowFailException, match=r"found \{much\}"):
            task.run()
    else:
        task.run()
    assert told == [report]
    assert "return_value" not in task.pushed
