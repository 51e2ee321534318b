"""How often and when a failed task is tried again: by what ended it, over all of its tries."""

from datetime import timedelta
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
        self._stored: dict[str, Any] = {}
        self._number = 0
        self._max_tries = MAX_TRIES
        self._store = SimpleNamespace(get=self._stored.get, set=self._stored.__setitem__)

    def fail(self, error: BaseException) -> timedelta | None:
        """The delay before the next try; None where there is none."""
        self._number += 1
        context: Any = {"task_state_store": self._store}
        decision = StageRetries().evaluate(error, self._number, self._max_tries, context)
        assert self._number <= self._max_tries or decision.action is RetryAction.FAIL
        return decision.retry_delay if decision.action is RetryAction.RETRY else None

    def clear(self) -> None:
        """What Airflow does where a person clears the task."""
        self._max_tries = self._number + MAX_TRIES


def failure(ending: PodEnding) -> AirflowException:
    return stage_failure("stage sample", ending)


def ended(status: int) -> AirflowException:
    return failure(describe_exit(status, "DatabaseError: deadlock"))


@pytest.mark.parametrize(
    "error",
    [
        ended(1),
        failure(PodEnding("setup", "no Secret")),
        AirflowException("no ids on stdout"),
        ValueError("a bug"),
        ApiException(status=403),
    ],
)
def test_an_error_of_its_own_is_tried_again_twice(error: BaseException) -> None:
    tries = Tries()
    assert [tries.fail(error) for _ in range(3)] == [timedelta(seconds=15), timedelta(seconds=30), None]


@pytest.mark.parametrize("error", [*map(ended, (137, 139, 143, 75)), failure(describe_gone_pod("sample-x1"))])
def test_what_was_killed_or_has_waited_in_vain_starts_again_at_once_and_often_enough_to_set_a_text_apart(
    error: BaseException,
) -> None:
    tries = Tries()
    assert [tries.fail(error) for _ in range(21)] == [timedelta(seconds=15)] * 20 + [None]


@pytest.mark.parametrize(
    "error", [failure(PodEnding("away", "no GPU is free")), ConnectionResetError(), ApiException(status=503)]
)
def test_an_outage_is_waited_for_longer_each_time(error: BaseException) -> None:
    tries = Tries()
    delays = [tries.fail(error) for _ in range(21)]
    assert delays[:6] == [timedelta(seconds=seconds) for seconds in (30, 60, 120, 240, 480, 600)]
    assert sum(filter(None, delays), timedelta()) > timedelta(hours=2)
    assert delays[-1] is None


def test_what_befell_a_task_does_not_use_up_the_retries_of_its_own_errors() -> None:
    tries = Tries()
    assert all(tries.fail(ended(status)) for status in (137, 75, 1, 143, 137, 1, 75))
    assert tries.fail(ended(1)) is None


def test_a_task_that_a_person_clears_has_all_of_its_retries_again() -> None:
    tries = Tries()
    for _ in range(3):
        last = tries.fail(ended(1))
    assert last is None
    tries.clear()
    assert tries.fail(ended(1)) == timedelta(seconds=15)


def test_without_airflows_store_each_try_counts_alike() -> None:
    decisions = [StageRetries().evaluate(ended(1), number, MAX_TRIES).action for number in (1, 2, 3)]
    assert decisions == [RetryAction.RETRY, RetryAction.RETRY, RetryAction.FAIL]
