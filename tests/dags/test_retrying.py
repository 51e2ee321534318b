"""How often and when a failed task is tried again: by what ended it, over all of its tries."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import AirflowException
from kubernetes.client.exceptions import ApiException

from toolformer_ops.airflow_tasks.endings import PodEnding, describe_exit, describe_gone_pod
from toolformer_ops.airflow_tasks.retrying import (
    INFRASTRUCTURE_RETRIES,
    OWN_RETRIES,
    StageRetries,
    stage_failure,
)

MAX_TRIES = OWN_RETRIES + INFRASTRUCTURE_RETRIES


class Tries:
    """The tries of one task, with as much of Airflow's store of task state as the policy uses."""

    def __init__(self) -> None:
        stored: dict[str, Any] = {}
        self.context: Any = {"task_state_store": SimpleNamespace(get=stored.get, set=stored.__setitem__)}
        self.number = 0
        self.max_tries = MAX_TRIES

    def fail(self, error: BaseException) -> float | None:
        """The seconds before the next try; None if there is none."""
        self.number += 1
        decision = StageRetries().evaluate(error, self.number, self.max_tries, self.context)
        assert self.number <= self.max_tries or decision.action is RetryAction.FAIL
        return decision.retry_delay.total_seconds() if decision.action is RetryAction.RETRY else None


def failure(ending: PodEnding) -> AirflowException:
    return stage_failure("stage sample", ending)


def ended(status: int) -> AirflowException:
    return failure(describe_exit(status, "DatabaseError: deadlock"))


OWN, KILLED = [15.0, 30.0, None], [15.0] * 20 + [None]
AWAY = [30.0, 60.0, 120.0, 240.0, 480.0] + [600.0] * 15 + [None]  # more than two hours
DELAYS: list[tuple[BaseException, list[float | None]]] = [
    (ended(1), OWN),
    (failure(PodEnding("setup", "no Secret")), OWN),
    (ValueError("a bug"), OWN),
    (ApiException(status=403), OWN),
    *((ended(status), KILLED) for status in (137, 143, 75)),
    (failure(describe_gone_pod("sample-x1")), KILLED),
    (failure(PodEnding("away", "no GPU is free")), AWAY),
    (ConnectionResetError(), AWAY),
    (ApiException(status=503), AWAY),
    (ApiException(status=429), AWAY),
    (ApiException(status=408), AWAY),
    (ApiException(status=0), AWAY),
]


@pytest.mark.parametrize(("error", "delays"), DELAYS)
def test_what_ended_a_task_decides_when_it_is_tried_again(error, delays):
    tries = Tries()
    assert [tries.fail(error) for _ in delays] == delays


def test_each_count_is_used_up_by_its_own_errors_until_a_person_clears_the_task():
    tries = Tries()
    assert all(tries.fail(ended(status)) for status in (137, 75, 1, 143, 137, 1, 75))
    assert tries.fail(ended(1)) is None
    tries.max_tries = tries.number + MAX_TRIES  # what Airflow does when a person clears the task
    assert tries.fail(ended(1)) == 15


def test_without_airflows_store_each_try_counts_alike():
    decisions = [StageRetries().evaluate(ended(1), number, MAX_TRIES).action for number in (1, 2, 3)]
    assert decisions == [RetryAction.RETRY, RetryAction.RETRY, RetryAction.FAIL]
