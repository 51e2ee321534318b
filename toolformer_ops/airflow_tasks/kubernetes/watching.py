"""How a pod is watched: by Airflow's triggerer while its task is deferred.

What the provider's own watching (cncf-kubernetes 10.25.0) lacks: it waits for the whole startup time if a
Secret, an image or a node label is missing, follows a pod for ever whose node is gone, and gives up on an API
server that is away for half a minute.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tenacity
import yaml
from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import (
    API_TIMEOUT,
    TRANSIENT_CONNECTION_ERRORS,
)
from airflow.providers.cncf.kubernetes.triggers.pod import ContainerState, KubernetesPodTrigger
from airflow.providers.cncf.kubernetes.utils.pod_manager import (
    AsyncPodManager,
    PodLaunchTimeoutException,
    PodPhase,
)
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException
from kubernetes_asyncio.client.exceptions import ApiException as AsyncApiException

from toolformer_ops.airflow_tasks.endings import CONTAINER, describe_pod_ending, is_lost, what_befell

SCHEDULE_SECONDS = 6 * 3600
"""Longest wait for a node. A GPU may be busy, a node may have to be added; a deferred task that waits costs
next to nothing."""
STARTUP_SECONDS = 1800
"""Longest time from a node to a running container: a large image is pulled, volumes are mounted."""
PATIENCE_SECONDS = 90.0
"""How long a pod may lack its Secret, image or node, unless a node is being added: long enough for a person
who has just made the Secret, or pushed the image."""
POLL_SECONDS = 10.0
"""Between two looks at a pod that runs."""
START_CHECK_SECONDS = 5
OUTAGE_SECONDS = 600
"""How long an API server that does not answer is asked again before a task gives up watching its pod."""
CLIENT_SECONDS = 600
"""How long a client of the triggerer is used; credentials that a cluster hands out live longer."""
BEFORE = "before"
"""Key in a trigger's event of what was said of the whole pod when it was seen last."""
SAY_AGAIN_SECONDS = 1800
"""Before the log says the same reason for waiting again."""


def has_ended(pod: Any) -> bool:
    """Whether nothing of the pod runs any more."""
    return pod.status.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


def stage_exit_code(pod: Any) -> int | None:
    """Exit status of the stage's container; None while it runs.

    Other containers of its pod may run on for a moment.
    """
    for status in pod.status.container_statuses or ():
        if status.name == CONTAINER and status.state and status.state.terminated:
            return int(status.state.terminated.exit_code)
    return None


def oldest_first(events: Iterable[Any]) -> list[Any]:
    """Events in the order in which they happened last."""
    return sorted(
        events,
        key=lambda event: event.last_timestamp or event.event_time or event.metadata.creation_timestamp,
    )


def patiently(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called again if the API server does not answer, or answers that it cannot, for `OUTAGE_SECONDS`."""
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
    """Looks after a pod whose task is deferred, in the triggerer, which reads the kubeconfig `config_file` itself."""

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
    def hook(self) -> "SharedHook":
        """Access to the cluster, which all triggers of the triggerer share."""
        access = (self.config_file, self.kubernetes_conn_id, self.in_cluster, self.cluster_context)
        hooks = _HOOKS.setdefault(asyncio.get_running_loop(), {})
        if access not in hooks:
            hooks[access] = SharedHook(
                conn_id=self.kubernetes_conn_id,
                in_cluster=self.in_cluster,
                config_dict=yaml.safe_load(Path(self.config_file).read_text("utf-8"))
                if self.config_file
                else None,
                cluster_context=self.cluster_context,
            )
        return hooks[access]

    @cached_property
    def pod_manager(self) -> AsyncPodManager:
        """Waits for the start of the pod."""
        return AsyncStagePodManager(async_hook=self.hook, patience_seconds=self.patience_seconds)

    def define_pod_container_state(self, pod: k8s.V1Pod) -> ContainerState:
        """The state of the stage.

        It has failed, too, if its node is gone, since such a pod runs for ever in the API. What happened to
        the whole pod goes into the trigger's event: once it is gone, only that tells an eviction from a
        deletion.
        """
        if before := what_befell(pod):
            self.trigger_kwargs[BEFORE] = before
        return ContainerState.FAILED if is_lost(pod) else super().define_pod_container_state(pod)


async def event_of(trigger: StagePodTrigger) -> dict[str, Any]:
    """What the trigger says of its pod, waited for in this process."""
    try:
        return dict((await anext(trigger.run())).payload)
    finally:
        await trigger.hook.close()


class SharedHook(AsyncKubernetesHook):
    """Keeps one client for all, and asks an API server that does not answer again, for `OUTAGE_SECONDS`.

    The provider makes a client for each request, which reads all root certificates anew: most of what a trigger
    costs. A client is renewed now and then, since credentials change.
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
                    _CLOSING.add(asyncio.create_task(_close(self._opened[0], after_seconds=2 * API_TIMEOUT)))
                self._opened, self._renew_at = (manager, client), time.monotonic() + CLIENT_SECONDS
            client = self._opened[1]
        yield client

    async def close(self) -> None:
        """Close the client."""
        if self._opened is not None:
            await _close(self._opened[0])
            self._opened = None

    async def get_pod(self, name: str, namespace: str) -> Any:
        """The pod.

        Raises:
            PodLaunchTimeoutException: it is gone. The provider's trigger makes a `timeout` event of this, and
            writes no traceback.
        """
        try:
            return await patiently(super().get_pod)(name, namespace)
        except (ApiException, AsyncApiException) as error:
            if error.status != 404:
                raise
            raise PodLaunchTimeoutException(f"the pod {name} is gone") from None

    read_logs = AsyncKubernetesHook.read_logs.__wrapped__  # asked once: the next look asks again


async def _close(manager: AbstractAsyncContextManager[Any], after_seconds: float = 0.0) -> None:
    await asyncio.sleep(after_seconds)
    await manager.__aexit__(None, None, None)


_HOOKS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Any, ...], SharedHook]] = WeakKeyDictionary()
"""By event loop (the triggerer has one), and by how the cluster is reached."""
_CLOSING: set[asyncio.Task[None]] = set()


class AsyncStagePodManager(AsyncPodManager):
    """Waits for the start of a pod, and reads its log now and then."""

    def __init__(self, *, patience_seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patience_seconds = patience_seconds
        self._said_at: dict[str, float] = {}

    def say(self, message: str) -> None:
        """Log it, unless that was done less than `SAY_AGAIN_SECONDS` ago."""
        if time.monotonic() > self._said_at.get(message, -math.inf) + SAY_AGAIN_SECONDS:
            self.log.info("%s", message)
            self._said_at[message] = time.monotonic()

    async def await_pod_start(
        self,
        pod: k8s.V1Pod,
        schedule_timeout: float = SCHEDULE_SECONDS,
        startup_timeout: float = STARTUP_SECONDS,
        check_interval: float = START_CHECK_SECONDS,
    ) -> None:
        """Wait until the pod runs or has ended.

        Raises:
            PodLaunchTimeoutException: it shows a reason that waiting does not mend, or takes longer than the
            limits.
        """
        while True:
            pod = await self.read_pod(pod)
            if pod.status.phase not in (PodPhase.PENDING, PodPhase.UNKNOWN):
                return
            # 1. How long has it waited for its node, or with a node for its container?
            node = next(
                (condition for condition in pod.status.conditions or () if condition.type == "PodScheduled"),
                None,
            )
            scheduled = node if node is not None and node.status == "True" else None
            since = (scheduled and scheduled.last_transition_time) or pod.metadata.creation_timestamp
            waited = (datetime.now(UTC) - since).total_seconds()
            if waited > self.patience_seconds or is_lost(pod):
                # 2. Why does it wait so long?
                ending = describe_pod_ending(pod, oldest_first((await self.read_pod_events(pod)).items))
                self.say(f"the pod {pod.metadata.name} waits: {ending.message}")
                # 3. Whether waiting is of any use.
                limit = startup_timeout if scheduled else schedule_timeout
                if is_lost(pod) or waited > limit or ending.fault == "setup":
                    raise PodLaunchTimeoutException(ending.message)
            await asyncio.sleep(check_interval)

    async def fetch_container_logs_before_current_sec(
        self, pod: k8s.V1Pod, container_name: str, since_time: Any = None
    ) -> Any:
        """Log what is new and return until when.

        A log that cannot be read is left for the next look, and ends nothing.
        """
        try:
            return await super().fetch_container_logs_before_current_sec(pod, container_name, since_time)
        except Exception as error:
            if not is_outage(error):
                raise
            where = f"the log of the pod {pod.metadata.name} on node {pod.spec.node_name}"
            self.say(f"{where} cannot be read now, and will be: {said_by_kubernetes(error)}")
            return since_time


def said_by_kubernetes(error: Exception) -> str:
    """What the API server says about a refusal; of another error its text."""
    if not isinstance(error, (ApiException, AsyncApiException)):
        return str(error) or type(error).__name__
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
