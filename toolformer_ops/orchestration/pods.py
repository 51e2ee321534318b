"""Run a stage as a pod: the same arguments in the deployment's image, hardened, with secrets by reference.

Imported only where `TOOLFORMER_RUNNER=kubernetes`, since the provider takes seconds to import. What may differ between clusters is
in the pod templates (`pod_templates`). Does not carry results back: they are in Postgres and S3.

A task makes its pod and is deferred: Airflow's triggerer then looks after all pods that run, in one process, and the task comes
back for the log and the ending. Whatever happens, a pod does not outlive its task: a task that ends before its pod deletes it, a
retry takes over or ends the pods of earlier tries, `finish_run` ends those of its run (`end_pods_of_run`), and each has a deadline.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import TRANSIENT_CONNECTION_ERRORS
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator, make_safe_label_value
from airflow.providers.cncf.kubernetes.utils.pod_manager import PodPhase
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout
from kubernetes.client import CoreV1Api
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException

from toolformer_ops.config import Settings
from toolformer_ops.errors import EXIT_TERMINATED
from toolformer_ops.orchestration.defaults import describe_assets, why_not_started, with_shard
from toolformer_ops.orchestration.endings import STARTS_AGAIN, PodEnding, describe_lost_pod, describe_pod_ending
from toolformer_ops.orchestration.lineage import TellsLineage
from toolformer_ops.orchestration.pod_templates import CONTAINER, LABELS, pod_manifest
from toolformer_ops.orchestration.pod_watching import (
    OUTAGE_SECONDS,
    SCHEDULE_SECONDS,
    START_CHECK_SECONDS,
    STARTUP_SECONDS,
    LostPodError,
    PodNotStartedError,
    StagePodManager,
    StagePodTrigger,
    has_ended,
    is_lost,
    is_outage,
    oldest_first,
    patiently,
    stage_exit_code,
)
from toolformer_ops.orchestration.retrying import stage_failure

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

LOG_SECONDS = 30
"""Between two looks at the log of a pod whose task is deferred."""
DEADLINE_MARGIN = timedelta(minutes=15)
"""A pod's deadline is its stage's time limit and this; the task ends it at the time limit, if the task is there."""
KEEP_ENDED = timedelta(days=1)
"""How long a pod that failed is kept for a look at it."""
STAGE_PODS = ",".join(f"{name}={value}" for name, value in LABELS.items()) + ",kubernetes_pod_operator=True"
"""Label selector of all pods that tasks have made."""

logger = logging.getLogger(__name__)


class StagePod(TellsLineage, KubernetesPodOperator):
    """A stage in a pod; takes the arguments of `local_process.StageProcess`, and those of KubernetesPodOperator.

    Args:
        manifest: the pod as far as it is the same for all tasks (`pod_templates.pod_manifest`).
        patience_seconds: how long a pod may show a reason not to start (a Secret, an image, a node label that is not there).
    """

    template_fields: Sequence[str] = (*KubernetesPodOperator.template_fields, "shard", "asset_extra")
    ui_color = "#e0e8f5"

    def __init__(
        self,
        *,
        manifest: Mapping[str, Any],
        patience_seconds: float = 90.0,
        shard: str | None = None,
        asset_extra: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.manifest = manifest
        self.patience_seconds = patience_seconds
        self.shard = shard
        self.asset_extra = asset_extra

    def execute(self, context: "Context") -> Any:
        """Start the pod, if the stage has work, and defer or wait; failed for good or for a retry as `StageProcess` is."""
        if reason := why_not_started(self.arguments, self.shard):
            self.log.info("%s", reason)
            return
        with self._outages_reported():
            super().execute(context)
        self._raise_if_killed()
        describe_assets(context, self.outlets, self.asset_extra)

    def trigger_reentry(self, context: "Context", event: dict[str, Any]) -> Any:
        """Continue after a deferral: fetch the log and look how the pod ended, as without a deferral.

        Args:
            context: of the task.
            event: of `StagePodTrigger`; its status is success, failed, timeout or error.
        """
        with self._outages_reported():
            self._continue(context, event)
        self._raise_if_killed()
        describe_assets(context, self.outlets, self.asset_extra)

    def _continue(self, context: "Context", event: dict[str, Any]) -> None:
        name, status = event["name"], event["status"]
        self.pod = pod = self._read(name, event["namespace"])
        if pod is None:
            if status != "success":
                raise self._failure(describe_lost_pod(name))
            return  # its success was seen before it went
        times = event.get("_redefer_count", 0)
        if status == "error" and not has_ended(pod) and stage_exit_code(pod) is None:
            if times >= self.MAX_REDEFER_ATTEMPTS:  # the pod stays: the next try takes it over
                raise self._failure(PodEnding(None, True, f"the pod {name} cannot be watched: {event['message']}"))
            self.log.warning("the pod %s runs, and was not watched: %s. Watching it again.", name, event["message"])
            self.trigger_kwargs = {**(self.trigger_kwargs or {}), "_redefer_count": times + 1}
            self.invoke_defer_method(last_log_time=event.get("last_log_time"), context=context)
        if not is_lost(pod):
            with suppress(ApiException, *TRANSIENT_CONNECTION_ERRORS):
                self._write_logs(pod, since_time=event.get("last_log_time"))
        if not self._succeeded(pod, why=event["message"] if status == "timeout" else None):
            raise self._failure(
                PodEnding(None, True, f"the pod {name} runs, and its trigger said that it had ended: {event}")
            )

    def defer(self, *, trigger: "BaseTrigger", **kwargs: Any) -> NoReturn:
        """Defer to a trigger of ours, which knows pods that cannot start and nodes that are gone."""
        _, arguments = trigger.serialize()
        # The triggerer reads kubeconfig and connection itself: what is in them is no business of Airflow's database.
        arguments |= {"config_dict": None, "connection_extras": None}
        super().defer(
            trigger=StagePodTrigger(config_file=self.config_file, patience_seconds=self.patience_seconds, **arguments),
            **kwargs,
        )

    def convert_config_file_to_dict(self) -> None:
        """Leave the kubeconfig where it is; see `defer`."""

    def build_pod_request_obj(self, context: "Context | None" = None, *, dry_run: bool = False) -> k8s.V1Pod:
        """The pod: its manifest, and what Airflow adds: a name, labels, the stage's arguments with the shard, and a deadline."""
        self.full_pod_spec = PodGenerator.deserialize_model_dict(dict(self.manifest))
        if self.execution_timeout:
            self.active_deadline_seconds = int((self.execution_timeout + DEADLINE_MARGIN).total_seconds())
        pod = super().build_pod_request_obj(context, dry_run=dry_run)
        pod.spec.containers[0].args = with_shard(self.arguments, self.shard)
        return pod

    def get_or_create_pod(self, pod_request_obj: k8s.V1Pod, context: "Context") -> k8s.V1Pod:
        """The pod of an earlier try that still works, or a new one once no pod of an earlier try is there.

        Raises:
            AirflowFailException: Kubernetes refuses the pod.
        """
        namespace = pod_request_obj.metadata.namespace
        selector = self._build_find_pod_label_selector(context)  # without pods whose end a task has seen

        def earlier() -> list[k8s.V1Pod]:
            return list(self.client.list_namespaced_pod(namespace=namespace, label_selector=selector).items)

        found = sorted(earlier(), key=lambda pod: pod.metadata.creation_timestamp)
        working = [pod for pod in found if not has_ended(pod) and pod.metadata.deletion_timestamp is None]
        for pod in found:
            if working and pod is working[-1]:
                self.log.info("taking over the pod %s of an earlier try", pod.metadata.name)
            elif pod.status.phase == PodPhase.FAILED:
                self.patch_already_checked(pod)  # kept for a look at it
            else:
                self.log.info("ending the pod %s of an earlier try", pod.metadata.name)
                delete_pod(self.client, pod)
        waits_from = time.monotonic()
        while ended := [pod for pod in earlier() if not (working and pod.metadata.name == working[-1].metadata.name)]:
            if time.monotonic() - waits_from > OUTAGE_SECONDS:
                names = ", ".join(pod.metadata.name for pod in ended)
                raise self._failure(
                    PodEnding(
                        None,
                        True,
                        f"of an earlier try {names} does not go: see `kubectl describe pod`, and its finalizers",
                    )
                )
            for pod in ended:
                if is_lost(pod):
                    delete_pod(self.client, pod, grace_seconds=0)
            time.sleep(1)
        if working:
            return working[-1]
        try:
            return self.pod_manager.create_pod(pod=pod_request_obj)
        except ApiException as error:
            message = f"Kubernetes refused the pod: {said_by_kubernetes(error)}"
            if error.status in (400, 404, 422) or (error.status == 403 and "quota" not in message):
                raise AirflowFailException(
                    f"{self._stage_name()}: {message}. `toolformer-ops doctor --kubernetes` says what is missing; "
                    "mend it and clear this task."
                ) from error
            raise stage_failure(self._stage_name(), PodEnding(None, True, message)) from error

    @cached_property
    def pod_manager(self) -> StagePodManager:
        """Watches the pod from the worker."""
        return StagePodManager(kube_client=self.client, patience_seconds=self.patience_seconds)

    def cleanup(self, pod: k8s.V1Pod, remote_pod: k8s.V1Pod, *args: Any, **kwargs: Any) -> None:
        """What follows when the task waited for the pod itself: see to its end, whatever is being raised."""
        if self._killed or not remote_pod:
            return
        problem = sys.exception()
        why = str(problem) if isinstance(problem, (PodNotStartedError, LostPodError)) else None
        if isinstance(problem, AirflowTaskTimeout):
            why = f"it ran longer than its time limit of {self.execution_timeout}"
        if not self._succeeded(remote_pod, why=why) and problem is None:
            raise self._failure(
                PodEnding(None, True, f"the pod {remote_pod.metadata.name} runs, and nobody waits for it")
            )

    def _succeeded(self, pod: k8s.V1Pod, *, why: str | None) -> bool:
        """Delete a pod that succeeded, else fail the task by how it ended, or end it for the reason `why`.

        Returns:
            False where the pod works on and there is no reason to end it: the next try takes it over.
        """
        newest = self._read(pod.metadata.name, pod.metadata.namespace)
        if newest is None:
            raise self._failure(describe_lost_pod(pod.metadata.name))
        pod, phase, lost = newest, newest.status.phase, is_lost(newest)
        exit_code = stage_exit_code(pod)
        if phase == PodPhase.SUCCEEDED or (exit_code == 0 and phase != PodPhase.FAILED):
            delete_pod(self.client, pod)
            return True
        works = phase != PodPhase.FAILED and exit_code is None and not lost
        if works and why is None:
            return False
        ending = describe_pod_ending(pod, self._events(pod))
        if works and why and phase == PodPhase.RUNNING:
            ending = PodEnding(None, False, f"{why.rstrip('.')}; {STARTS_AGAIN}.")
        if phase == PodPhase.FAILED:
            self.patch_already_checked(pod, reraise=False)  # kept for a look at it, and no retry takes it for its own
        else:
            delete_pod(self.client, pod, grace_seconds=0 if lost else None)
        raise self._failure(ending)

    @contextmanager
    def _outages_reported(self) -> Iterator[None]:
        """An API server that is away is no error of the stage's."""
        try:
            yield
        except (ApiException, *TRANSIENT_CONNECTION_ERRORS) as error:
            if not is_outage(error):
                raise
            reason = said_by_kubernetes(error) if isinstance(error, ApiException) else str(error)
            message = f"the Kubernetes API does not answer: {reason}. The pod works on; the next try takes it over."
            raise self._failure(PodEnding(None, True, message)) from error

    def _failure(self, ending: PodEnding) -> AirflowException:
        return stage_failure(self._stage_name(), ending)

    def _raise_if_killed(self) -> None:
        # After SIGTERM the provider deletes the pod, waits for its end and returns as if the stage had succeeded, since its
        # `cleanup` then skips the check of the pod's phase (cncf-kubernetes 10.25.0).
        if self._killed:
            raise self._failure(
                PodEnding(
                    EXIT_TERMINATED, True, f"the task was told to end (SIGTERM), and its pod with it; {STARTS_AGAIN}."
                )
            )

    def _read(self, name: str, namespace: str) -> k8s.V1Pod | None:
        """The pod as it is now; None where it is gone."""
        try:
            return patiently(self.hook.get_pod)(name, namespace)
        except ApiException as error:
            if error.status != 404:
                raise
            return None

    def _events(self, pod: k8s.V1Pod) -> list[Any]:
        """The pod's events, oldest first; none where they cannot be read."""
        try:
            return oldest_first(self.pod_manager.read_pod_events(pod).items)
        except Exception as error:  # the ending is described without them
            self.log.warning("the events of the pod %s cannot be read: %s", pod.metadata.name, error)
            return []

    def _stage_name(self) -> str:
        return f"stage {self.arguments[1]}" if self.arguments[:1] == ["stage"] else str(self.task_id)


def pod_arguments(settings: Settings, *, template: str) -> dict[str, Any]:
    """Arguments of `StagePod` that follow from the settings and from the kind of stage: one of `pod_templates.TEMPLATES`.

    Raises:
        ConfigurationError: no image is set, or the template is wrong.
    """
    return {
        "manifest": pod_manifest(settings, template),
        "labels": dict(LABELS),
        **cluster_access(settings),
        "namespace": settings.kubernetes_namespace,
        "base_container_name": CONTAINER,
        "durable": True,
        "deferrable": settings.kubernetes_deferrable,
        "do_xcom_push": False,
        "get_logs": True,
        "logging_interval": LOG_SECONDS,
        "poll_interval": settings.kubernetes_poll_seconds,
        "base_container_status_polling_interval": settings.kubernetes_poll_seconds,
        "log_events_on_startup": False,
        "log_events_on_failure": False,  # the reason is in the task's message
        "log_pod_spec_on_failure": False,
        "on_finish_action": "keep_pod",  # see `_succeeded`
        "termination_message_policy": "FallbackToLogsOnError",
        "schedule_timeout_seconds": SCHEDULE_SECONDS,
        "startup_timeout_seconds": STARTUP_SECONDS,
        "startup_check_interval_seconds": min(START_CHECK_SECONDS, settings.kubernetes_poll_seconds),
        "patience_seconds": settings.kubernetes_patience_seconds,
    }


def cluster_access(settings: Settings) -> dict[str, Any]:
    """How Airflow reaches the cluster: arguments of KubernetesPodOperator.

    Without a kubeconfig and a connection it is the pod that Airflow runs in that has the rights, which has to be said:
    the provider's synchronous client finds that out, its asynchronous one looks for ~/.kube/config (10.25.0).
    """
    if settings.kubernetes_connection:
        return {"kubernetes_conn_id": settings.kubernetes_connection}
    without_connection = {"kubernetes_conn_id": None}  # else each task looks for `kubernetes_default`
    if settings.kubernetes_config_file:
        return without_connection | {"config_file": str(settings.kubernetes_config_file)}
    return without_connection | {"in_cluster": True}


def cluster_client(settings: Settings) -> CoreV1Api:
    """A client of the cluster, with the rights that the tasks have."""
    access = cluster_access(settings)
    return KubernetesHook(
        conn_id=access.get("kubernetes_conn_id"),
        in_cluster=access.get("in_cluster"),
        config_file=access.get("config_file"),
    ).core_v1_client


def end_pods_of_run(settings: Settings, *, dag_id: str, run_id: str) -> None:
    """End what still runs of a DAG run whose tasks are over, and remove pods of any run that ended more than a day ago.

    An error is logged and no more: each pod has a deadline, and the next run removes what is left.
    """
    labels = {"dag_id": make_safe_label_value(dag_id), "run_id": make_safe_label_value(run_id)}
    try:
        client = cluster_client(settings)
        for pod in client.list_namespaced_pod(settings.kubernetes_namespace, label_selector=STAGE_PODS).items:
            if has_ended(pod):
                if _ended_at(pod) < datetime.now(UTC) - KEEP_ENDED:
                    delete_pod(client, pod)
            elif labels.items() <= pod.metadata.labels.items():
                logger.warning("the pod %s outlived its task: ending it", pod.metadata.name)
                delete_pod(client, pod, grace_seconds=0 if is_lost(pod) else None)
    except Exception:
        logger.exception("pods that the run left behind could not be ended; each ends at its deadline")


def delete_pod(client: CoreV1Api, pod: k8s.V1Pod, *, grace_seconds: int | None = None) -> None:
    """Tell a pod to end, within its own grace period unless told otherwise; nothing happens where it is gone."""
    try:
        client.delete_namespaced_pod(
            name=pod.metadata.name, namespace=pod.metadata.namespace, grace_period_seconds=grace_seconds
        )
    except ApiException as error:
        if error.status != 404:
            raise


def _ended_at(pod: k8s.V1Pod) -> datetime:
    """When the last container ended; where that is not said, when the pod was made."""
    ended = [
        status.state.terminated.finished_at
        for status in pod.status.container_statuses or ()
        if status.state and status.state.terminated and status.state.terminated.finished_at
    ]
    latest: datetime = max(ended, default=pod.metadata.creation_timestamp)
    return latest


def said_by_kubernetes(error: ApiException) -> str:
    """What the API server says about a refusal."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
