"""How often a failed task is tried again, and when: two counts, one for errors of its own and one for what befell it from outside.

Airflow has one count of retries for a task, and gives its `retry_policy` the error of a try that failed. So the tasks have as many
retries as both counts together, and the policy ends a task earlier: after `OWN_RETRIES` errors of its own, or after
`INFRASTRUCTURE_RETRIES` evictions, lost nodes, killed processes and outages. Both counts are in Airflow's store of task state,
which a retry keeps and a cleared task begins anew. A worker that dies takes a retry without asking the policy, and neither count.
A wrong request (exit status 2 or 3) is not tried again at all.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import urllib3.exceptions
from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from toolformer_ops.orchestration.endings import PodEnding

if TYPE_CHECKING:
    from airflow.sdk import Context

EXIT_CODES_NOT_RETRIED = frozenset({2, 3})
"""2: the request is wrong; 3: a quality gate did not pass. Trying again fails in the same way (`toolformer_ops.errors`)."""

OWN_RETRIES = 2
INFRASTRUCTURE_RETRIES = 20
"""Of a service that is away: the last ends more than three hours after the first failure (`outage_seconds`). Of a text that kills
its process: enough to set two of them apart (`runs/micro_batches.py`)."""

RETRY_DELAY = timedelta(seconds=15)
"""Before the first retry of an error, doubled before the second; and before each retry of a killed process, or of a stage that has
waited in vain. Short, since a retry starts at the next micro-batch."""
OUTAGE_DELAY = timedelta(seconds=30)
"""Before the first retry after an outage that the task itself met; doubled each time."""
MAX_RETRY_DELAY = timedelta(minutes=10)

COUNTS = "failures"
"""Key in the store of task state."""


def stage_failure(name: str, ending: PodEnding) -> AirflowException:
    """The error with which a task fails whose stage ended so; it is never tried again where the request is wrong."""
    message = f"{name}: {ending.message}"
    if ending.exit_code in EXIT_CODES_NOT_RETRIED:
        return AirflowFailException(message)
    error = AirflowException(message)
    vars(error)["ending"] = ending
    return error


class StageRetries(RetryPolicy):
    """The policy of all tasks; `stage_failure` makes the errors that it knows."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: "Context | None" = None
    ) -> RetryDecision:
        """Count the failure; end the task where its kind has used up its retries, else say when the next try starts."""
        ending: PodEnding | None = vars(exception).get("ending")
        outside = ending.infrastructure if ending else _is_outage(exception)
        kind, allowed = ("infrastructure", INFRASTRUCTURE_RETRIES) if outside else ("own", OWN_RETRIES)
        count = _count(context, kind, try_number, max_tries)
        if count > allowed:
            return RetryDecision.fail(f"{count} failures of this kind ({kind}): no further try")
        # A killed process or an ended pod can start again at once, and a stage has waited itself for what is away. What is away for
        # the task, or for a pod that did not start, needs time.
        at_once = ending is not None and ending.exit_code is not None
        if outside and at_once:
            delay = RETRY_DELAY
        else:
            delay = min((OUTAGE_DELAY if outside else RETRY_DELAY) * 2 ** (count - 1), MAX_RETRY_DELAY)
        return RetryDecision.retry(delay, f"failure {count} of this kind ({kind}), of which {allowed} are tried again")


def _is_outage(exception: BaseException) -> bool:
    """Whether a service that the task itself asks does not answer: Airflow's API, or that of Kubernetes."""
    status = vars(exception).get("status")  # of Kubernetes' ApiException
    if isinstance(status, int):
        return status >= 500 or status in (0, 408, 429)
    return isinstance(exception, (ConnectionError, TimeoutError, httpx.TransportError, urllib3.exceptions.HTTPError))


def _count(context: "Context | None", kind: str, try_number: int, max_tries: int) -> int:
    """Which failure of its kind this is, since the task was started or cleared: Airflow then raises `max_tries`."""
    store: Any = (context or {}).get("task_state_store")
    if store is None:  # no scheduler runs this task: each try counts alike
        return try_number
    stored = store.get(COUNTS)
    counts: Mapping[str, int] = stored if isinstance(stored, dict) and stored.get("max_tries") == max_tries else {}
    count = counts.get(kind, 0) + 1
    store.set(COUNTS, {**counts, "max_tries": max_tries, kind: count})
    return count
