"""How a pod is watched, from the worker or, while its task is deferred, from Airflow's triggerer.

What the provider's own watching (cncf-kubernetes 10.25.0) lacks: it waits for the whole startup time where a Secret, an image or a
node label is missing, follows a pod for ever whose node is gone, and gives up on an API server that is away for half a minute.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from inspect import isawaitable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tenacity
import yaml
from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import API_TIMEOUT, TRANSIENT_CONNECTION_ERRORS
from airflow.providers.cncf.kubernetes.triggers.pod import ContainerState, KubernetesPodTrigger
from airflow.providers.cncf.kubernetes.utils.pod_manager import (
    AsyncPodManager,
    PodLaunchTimeoutException,
    PodManager,
    PodPhase,
)
from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import TriggerEvent
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException
from kubernetes_asyncio.client.exceptions import ApiException as AsyncApiException

from toolformer_ops.orchestration.endings import describe_pod_ending
from toolformer_ops.orchestration.pod_templates import CONTAINER

SCHEDULE_SECONDS = 6 * 3600
"""Longest wait for a node. A GPU may be busy, a node may have to be added; a deferred task that waits costs next to nothing."""
STARTUP_SECONDS = 1800
"""Longest time from a node to a running container: a large image is pulled, volumes are mounted."""
START_CHECK_SECONDS = 5
LOST_SECONDS = 60
"""A deleted pod that is there so long after its grace period is on a node that does not answer."""
OUTAGE_SECONDS = 600
"""How long an API server that does not answer is asked again before a task gives up watching its pod."""
CLIENT_SECONDS = 600
"""How long a client of the triggerer is used; credentials that a cluster hands out live longer."""
SETTLE_SECONDS = 5
"""Before a deferred task comes back. Where it runs again before the scheduler heard that the process that deferred it has ended,
Airflow 3.3.2 takes that for the end of the task, and starts its next try (apache/airflow#71580, #72716)."""
SCALE_UP_EVENTS = frozenset({"TriggeredScaleUp", "Nominated"})
"""Of the cluster autoscaler, and of Karpenter: a node is being added for the pod."""


def has_ended(pod: Any) -> bool:
    """Whether nothing of the pod runs any more."""
    return pod.status.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


def stage_exit_code(pod: Any) -> int | None:
    """Exit status of the stage's container; None while it runs. Other containers of its pod may run on for a moment."""
    for status in pod.status.container_statuses or ():
        if status.name == CONTAINER and status.state and status.state.terminated:
            return int(status.state.terminated.exit_code)
    return None


def is_lost(pod: Any) -> bool:
    """Whether the pod should have been gone for a while, so that nobody on its node ends it."""
    gone_by = pod.metadata.deletion_timestamp  # the time of the deletion, and the grace period
    return gone_by is not None and datetime.now(UTC) > gone_by + timedelta(seconds=LOST_SECONDS)


def oldest_first(events: Iterable[Any]) -> list[Any]:
    """Events in the order in which they happened last."""
    return sorted(
        events, key=lambda event: event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    )


def patiently(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called again where the API server does not answer, or answers that it cannot, for `OUTAGE_SECONDS`."""
    return tenacity.retry(
        stop=tenacity.stop_after_delay(OUTAGE_SECONDS),
        wait=tenacity.wait_exponential(min=1, max=15),
        retry=tenacity.retry_if_exception(is_outage),
        reraise=True,
    )(function)


def is_outage(error: BaseException) -> bool:
    """Whether the API server did not answer, or answered that it cannot now."""
    if isinstance(error, (ApiException, AsyncApiException)):
        return error.status in (0, None, 429) or error.status >= 500
    return isinstance(error, (*TRANSIENT_CONNECTION_ERRORS, TimeoutError))


class StagePodTrigger(KubernetesPodTrigger):
    """Looks after a pod whose task is deferred; in the triggerer.

    Args:
        config_file: kubeconfig, read here.
        patience_seconds: see `StagePod`.
    """

    def __init__(self, *, config_file: str | None = None, patience_seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config_file = config_file
        self.patience_seconds = patience_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The trigger's class and arguments."""
        _, arguments = super().serialize()
        own = {"config_file": self.config_file, "patience_seconds": self.patience_seconds}
        return f"{__name__}.{type(self).__name__}", arguments | own

    @cached_property
    def hook(self) -> AsyncKubernetesHook:
        """Access to the cluster, which all triggers of the triggerer share."""
        access = (self.config_file, self.kubernetes_conn_id, self.in_cluster, self.cluster_context)
        hooks = _HOOKS.setdefault(asyncio.get_running_loop(), {})
        if access not in hooks:
            hooks[access] = SharedHook(
                conn_id=self.kubernetes_conn_id,
                in_cluster=self.in_cluster,
                config_dict=yaml.safe_load(Path(self.config_file).read_text("utf-8")) if self.config_file else None,
                cluster_context=self.cluster_context,
            )
        return hooks[access]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """What befalls the pod, `SETTLE_SECONDS` after the deferral at the earliest."""
        began = time.monotonic()
        async for event in super().run():
            await asyncio.sleep(SETTLE_SECONDS - (time.monotonic() - began))
            yield event

    @cached_property
    def pod_manager(self) -> AsyncPodManager:
        """Waits for the start of the pod."""
        return AsyncStagePodManager(async_hook=self.hook, patience_seconds=self.patience_seconds)

    def define_pod_container_state(self, pod: k8s.V1Pod) -> ContainerState:
        """The state of the stage; failed, too, where its node is gone, since such a pod runs for ever in the API."""
        return ContainerState.FAILED if is_lost(pod) else super().define_pod_container_state(pod)


class SharedHook(AsyncKubernetesHook):
    """Keeps one client for all, and asks an API server that does not answer again, for `OUTAGE_SECONDS`.

    The provider makes a client for each request, which reads all root certificates anew: that is most of what a trigger costs
    (docs/measurements.md). A client is renewed now and then, since credentials change.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._opening = asyncio.Lock()
        self._opened: tuple[AbstractAsyncContextManager[Any], Any] | None = None
        self._renew_at = 0.0

    @asynccontextmanager
    async def get_conn(self) -> AsyncIterator[Any]:
        """The client."""
        async with self._opening:
            if self._opened is None or time.monotonic() > self._renew_at:
                manager = super().get_conn()
                client = await manager.__aenter__()
                if self._opened is not None:  # requests under way end before it is closed
                    _CLOSING.add(asyncio.create_task(_close_later(self._opened[0])))
                self._opened, self._renew_at = (manager, client), time.monotonic() + CLIENT_SECONDS
            client = self._opened[1]
        yield client

    async def get_pod(self, name: str, namespace: str) -> Any:
        """The pod."""
        return await patiently(super().get_pod)(name, namespace)

    async def read_logs(self, *args: Any, **kwargs: Any) -> list[str]:
        """Lines of the pod's log."""
        lines: list[str] = await patiently(super().read_logs)(*args, **kwargs)
        return lines


async def _close_later(manager: AbstractAsyncContextManager[Any]) -> None:
    await asyncio.sleep(2 * API_TIMEOUT)
    await manager.__aexit__(None, None, None)


_HOOKS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Any, ...], SharedHook]] = WeakKeyDictionary()
"""By event loop, of which the triggerer has one, and by how the cluster is reached."""
_CLOSING: set[asyncio.Task[None]] = set()


class LostPodError(AirflowException):
    """The pod's node is gone."""


class PodNotStartedError(PodLaunchTimeoutException):
    """The pod does not start, and the message says why; the provider's trigger makes a `timeout` event of it."""


class _WaitsForStart:
    """How both managers of the provider wait for the start of a pod: one reads it in the worker, the other awaits it."""

    read_pod: Any
    read_pod_events: Any
    log: Any

    def __init__(self, *, patience_seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patience_seconds = patience_seconds

    async def await_pod_start(
        self,
        pod: k8s.V1Pod,
        schedule_timeout: float = SCHEDULE_SECONDS,
        startup_timeout: float = STARTUP_SECONDS,
        check_interval: float = START_CHECK_SECONDS,
    ) -> None:
        """Wait until the pod runs or has ended.

        Raises:
            PodNotStartedError: it shows a reason that waiting does not mend, or takes longer than the limits.
        """
        said = ""
        while True:
            pod = await _awaited(self.read_pod(pod))
            if pod.status.phase not in (PodPhase.PENDING, PodPhase.UNKNOWN):
                return
            # 1. How long has it waited for its node, or with a node for its container?
            node = next((one for one in pod.status.conditions or () if one.type == "PodScheduled"), None)
            scheduled = node if node is not None and node.status == "True" else None
            since = (scheduled and scheduled.last_transition_time) or pod.metadata.creation_timestamp
            waited = (datetime.now(UTC) - since).total_seconds()
            is_late = waited > self.patience_seconds
            # 2. Why does it wait? Said once in the log.
            events = oldest_first((await _awaited(self.read_pod_events(pod))).items) if is_late else []
            why = describe_pod_ending(pod, events).message
            if why != said and (events or pod.status.conditions or pod.status.container_statuses):
                self.log.info("the pod %s waits: %s", pod.metadata.name, why)
                said = why
            # 3. Is there any use in waiting?
            limit = startup_timeout if scheduled else schedule_timeout
            if is_lost(pod) or waited > limit or (is_late and _waits_in_vain(pod, events)):
                raise PodNotStartedError(why)
            await asyncio.sleep(check_interval)


async def _awaited(value: Any) -> Any:
    """The value, or what it is when it has been awaited."""
    return await value if isawaitable(value) else value


class StagePodManager(_WaitsForStart, PodManager):
    """Watches a pod from the worker, patient with an API server that does not answer."""

    def read_pod(self, pod: k8s.V1Pod) -> k8s.V1Pod:
        """The pod as it is now.

        Raises:
            LostPodError: its node is gone.
        """
        newest = patiently(super().read_pod)(pod)
        if is_lost(newest):
            raise LostPodError(f"the node of the pod {pod.metadata.name} does not answer")
        return newest


class AsyncStagePodManager(_WaitsForStart, AsyncPodManager):
    """Waits for the start of a pod whose task is deferred."""


def _waits_in_vain(pod: Any, events: Sequence[Any]) -> bool:
    """Whether what the pod waits for does not come by itself: a Secret, an image, a claim, a node that nobody adds."""
    ending = describe_pod_ending(pod, events)
    missing = "not found" in ending.message
    waiting = [
        status.state.waiting.reason
        for status in (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))
        if status.state and status.state.waiting
    ]
    if any(reason not in (None, "ContainerCreating", "PodInitializing") for reason in waiting):
        return missing or not ending.infrastructure  # a registry that is away is waited for
    if waiting:
        return missing  # of a volume
    unschedulable = any(
        one.type == "PodScheduled" and one.reason == "Unschedulable" for one in pod.status.conditions or ()
    )
    node_comes = any(event.reason in SCALE_UP_EVENTS for event in events)
    return unschedulable and not node_comes and (missing or not ending.infrastructure)
