"""How often a failed task is tried again, and when: two counts, one for its own errors and one for what ended it from outside.

Airflow has one count of retries for a task, and gives its `retry_policy` the error of a try that failed. So
the tasks have as many retries as both counts together, and the policy ends a task earlier, by `RETRIES`. Both
counts are in Airflow's store of task state, which a retry keeps and a cleared task begins anew. A worker that
dies takes a retry without asking the policy, and neither count.
"""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import urllib3.exceptions
from airflow.sdk import Context
from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from toolformer_ops.airflow_tasks.endings import Fault, PodEnding

OWN_RETRIES = 2
INFRASTRUCTURE_RETRIES = 20
"""So often a task is tried again. If a service is away, the last try ends more than three hours after the
first failure (`outage_seconds`). If texts kill their process, these are enough to set two of them apart
(`runs/micro_batches.py`)."""
RETRY_DELAY = timedelta(seconds=15)
MAX_RETRY_DELAY = timedelta(minutes=10)


class Retries(NamedTuple):
    """By which count, how often, and the delays: the first, doubled each time up to the longest."""

    kind: str
    allowed: int
    first: timedelta
    longest: timedelta


_OWN = Retries("own", OWN_RETRIES, RETRY_DELAY, MAX_RETRY_DELAY)
RETRIES: Mapping[Fault, Retries] = MappingProxyType(
    {
        "request": Retries("own", 0, RETRY_DELAY, RETRY_DELAY),  # trying again fails in the same way
        "setup": _OWN,
        "stage": _OWN,
        # What was killed starts again at once, at the next micro-batch, and a stage has waited itself for
        # what is away.
        "outside": Retries("infrastructure", INFRASTRUCTURE_RETRIES, RETRY_DELAY, RETRY_DELAY),
        "away": Retries("infrastructure", INFRASTRUCTURE_RETRIES, timedelta(seconds=30), MAX_RETRY_DELAY),
    }
)
COUNTS = "failures"
"""Key in the store of task state."""


def stage_failure(name: str, ending: PodEnding) -> AirflowException:
    """The error with which a task fails whose stage ended so.

    It is never tried again if the request is wrong.
    """
    error = (AirflowException if RETRIES[ending.fault].allowed else AirflowFailException)(
        f"{name}: {ending.message}"
    )
    vars(error)["fault"] = ending.fault
    return error


class StageRetries(RetryPolicy):
    """The policy of all tasks; `stage_failure` makes the errors that it knows."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Count the failure.

        End the task if its kind has used up its retries, else say when the next try starts.
        """
        status = vars(exception).get("status")  # of Kubernetes' ApiException
        if isinstance(status, int):
            is_away = status >= 500 or status in (0, 408, 429)
        else:  # the task itself has asked Airflow or Kubernetes
            is_away = isinstance(
                exception, (ConnectionError, TimeoutError, httpx.TransportError, urllib3.exceptions.HTTPError)
            )
        fault: Fault = vars(exception).get("fault") or ("away" if is_away else "stage")
        kind, allowed, first, longest = RETRIES[fault]
        count, store = try_number, (context or {}).get("task_state_store")
        if store is not None:  # else no scheduler runs this task: each try counts alike
            # Since the task was started or cleared: Airflow then raises `max_tries`.
            stored: Any = store.get(COUNTS)
            counts = stored if isinstance(stored, dict) and stored.get("max_tries") == max_tries else {}
            count = counts.get(kind, 0) + 1
            store.set(COUNTS, {**counts, "max_tries": max_tries, kind: count})
        if count > allowed:
            return RetryDecision.fail(f"{count} failures of this kind ({kind}): no further try")
        delay = min(first * 2 ** (count - 1), longest)
        return RetryDecision.retry(delay, f"failure {count} of this kind ({kind}); {allowed} are tried again")
