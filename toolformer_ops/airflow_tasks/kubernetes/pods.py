"""Run a stage as a pod: the same arguments in the deployment's image, hardened, with secrets by reference.

Imported only where `TOOLFORMER_RUNNER=kubernetes`, since the provider takes seconds to import. What may
differ between clusters is in the pod templates (`templates.py`). Does not carry results back, but for ids and
counts: they are in Postgres and S3.

A task makes its pod and is deferred: Airflow's triggerer then looks after all pods that run, in one process,
and the task comes back for the log and the ending.

A task instance has one pod: its name follows from the id that Airflow gives each try, and a pod that
succeeded stays until its run ends. So a task that is started twice, since the scheduler did not hear how it
ended (Airflow 3.3.2 with deferred tasks: apache/airflow#67287, #72716), finds its pod and takes its exit
status.

A pod does not outlive its task: a task that ends before its pod deletes it, a retry takes over the pod of an
earlier try, `finish_run` ends those of its run (`end_pods_of_run`), and each has a deadline.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, cast

import tenacity
from airflow.models.xcom import XCOM_RETURN_KEY
from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import (
    TRANSIENT_CONNECTION_ERRORS,
    generic_api_retry,
)
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator, make_safe_label_value
from airflow.providers.cncf.kubernetes.utils.pod_manager import PodPhase
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger
from kubernetes.client import CoreV1Api
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException

from toolformer_ops.airflow_tasks.endings import (
    CONTAINER,
    STARTS_AGAIN,
    PodEnding,
    describe_gone_pod,
    describe_pod_ending,
    is_lost,
)
from toolformer_ops.airflow_tasks.kubernetes import watching
from toolformer_ops.airflow_tasks.kubernetes.templates import LABELS, pod_manifest
from toolformer_ops.airflow_tasks.kubernetes.watching import (
    BEFORE,
    SCHEDULE_SECONDS,
    START_CHECK_SECONDS,
    STARTUP_SECONDS,
    StagePodTrigger,
    has_ended,
    is_outage,
    oldest_first,
    patiently,
    said_by_kubernetes,
    stage_exit_code,
)
from toolformer_ops.airflow_tasks.retrying import stage_failure
from toolformer_ops.airflow_tasks.stage_task import StageTask
from toolformer_ops.config import Settings

LOG_SECONDS = 30
"""Between two looks at the log of a pod."""
DEADLINE_MARGIN = timedelta(minutes=15)
"""A pod's deadline is its stage's time limit and this; the task ends it at the time limit, if the task is
there."""
TASK_CHARACTERS = 50
"""Most of the task's id in the name of its pod."""
LAST_LINES = 50
"""So many lines of a pod's log are read, among which the stage's result is: what it prints last, and its
error if it has one."""
KEEP_ENDED = timedelta(days=1)
"""How long a pod that failed is kept for a look at it."""
STAGE_PODS = ",".join(f"{name}={value}" for name, value in LABELS.items()) + ",kubernetes_pod_operator=True"
"""Label selector of all pods that tasks have made."""

logger = logging.getLogger(__name__)


class StagePod(StageTask, KubernetesPodOperator):
    """A stage in a pod; takes the arguments of `StageTask`, and those of KubernetesPodOperator.

    What the stage printed last is read from the pod's log, and not by the provider's own way, `do_xcom_push`:
    a container beside the stage, and the right to run commands in pods.

    Args:
        manifest: the pod as far as it is the same for all tasks (`templates.pod_manifest`).
        patience_seconds: how long a pod may show a reason not to start (a Secret, an image, a node label that
        is not there).
    """

    template_fields: Sequence[str] = (*KubernetesPodOperator.template_fields, "shard", "asset_extra")
    ui_color = "#e0e8f5"

    def __init__(self, *, manifest: Mapping[str, Any], patience_seconds: float = 90.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.manifest = manifest
        self.patience_seconds = patience_seconds

    def execute(self, context: Context) -> Any:
        """Start the pod, if the stage has work, and defer.

        The task fails for good or for a retry as `StageProcess` does.
        """
        if self.has_nothing_to_do():
            return
        with self._failures_described():
            super().execute(context)

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after a deferral: fetch the log and look how the pod ended.

        Args:
            context: of the task.
            event: of `StagePodTrigger`; its status is success, failed, timeout or error.

        Raises:
            AirflowException: the stage failed, or its result cannot be read any more.
        """
        try:
            with self._failures_described():
                self._continue(context, event)
        finally:
            self.tell(context)
        if self.reads_result and self.printed is None:
            if self.pod:  # else the next try takes it for its own
                delete_pod(self.client, self.pod)
            raise AirflowException(
                f"{self.stage_name}: expected its ids or counts in the log of its pod, found none. What it "
                "did is stored; the next try finds it done."
            )
        result = self.finish(context)
        if self.returns_result:  # the provider has Airflow push nothing by itself
            context["ti"].xcom_push(key=XCOM_RETURN_KEY, value=result)
        return result

    def _continue(self, context: Context, event: dict[str, Any]) -> None:
        name, status = event["name"], event["status"]
        self.pod = pod = self._read(name, event["namespace"])
        if pod is None:
            if status != "success":
                raise self._failure(describe_gone_pod(name, self._events(name), event.get(BEFORE)))
            return  # its success was seen before it went
        times = event.get("_redefer_count", 0)
        if status == "error" and not has_ended(pod) and stage_exit_code(pod) is None:
            if times >= self.MAX_REDEFER_ATTEMPTS:  # the pod stays: the next try takes it over
                raise self._failure(
                    PodEnding("away", f"the pod {name} cannot be watched: {event['message']}")
                )
            self.log.warning(
                "the pod %s runs, and was not watched: %s. Watching it again.", name, event["message"]
            )
            self.trigger_kwargs = {**(self.trigger_kwargs or {}), "_redefer_count": times + 1}
            self.invoke_defer_method(last_log_time=event.get("last_log_time"), context=context)
        if not is_lost(pod):
            with suppress(ApiException, *TRANSIENT_CONNECTION_ERRORS):
                self._write_logs(pod, since_time=event.get("last_log_time"))
        self._require_success(pod, event)

    # A pod that is gone by now has no log, however often one asks; and the provider would log whole answers.
    _write_logs = KubernetesPodOperator._write_logs.retry_with(
        retry=tenacity.retry_if_exception(is_outage), before_sleep=tenacity.before_sleep_nothing
    )

    def defer(self, *, trigger: BaseTrigger, **kwargs: Any) -> NoReturn:
        """Defer to a trigger of ours, which knows pods that cannot start and nodes that are gone."""
        _, arguments = trigger.serialize()
        # The triggerer reads kubeconfig and connection itself: what is in them is no business of Airflow's
        # database.
        arguments |= {"config_dict": None, "connection_extras": None}
        super().defer(
            trigger=StagePodTrigger(
                config_file=self.config_file, patience_seconds=self.patience_seconds, **arguments
            ),
            **kwargs,
        )

    def convert_config_file_to_dict(self) -> None:
        """Leave the kubeconfig where it is; see `defer`."""

    def build_pod_request_obj(self, context: Context | None = None, *, dry_run: bool = False) -> k8s.V1Pod:
        """The pod: its manifest, and what Airflow adds: a name, labels, the stage's arguments with the shard, and a deadline."""
        self.full_pod_spec = PodGenerator.deserialize_model_dict(dict(self.manifest))
        if self.execution_timeout:
            self.active_deadline_seconds = int((self.execution_timeout + DEADLINE_MARGIN).total_seconds())
        pod = super().build_pod_request_obj(context, dry_run=dry_run)
        pod.spec.containers[0].args = self.stage_arguments
        if context:
            pod.metadata.name = (
                f"{pod.metadata.name[:TASK_CHARACTERS].rstrip('-.')}-{context['ti'].id.hex[-12:]}"
            )
        return pod

    def get_or_create_pod(self, pod_request_obj: k8s.V1Pod, context: Context) -> k8s.V1Pod:
        """The pod of this task that exists, also a pod that has ended and whose end no task has told.

        It starts a new one otherwise.
        """
        metadata = pod_request_obj.metadata
        selector = self._build_find_pod_label_selector(context)  # without pods whose failure was told
        labelled_pods = self.client.list_namespaced_pod(metadata.namespace, label_selector=selector).items
        # Clearing a task raises this number: what the tries before did is then done anew.
        cleared = context["ti"].max_tries - (self.retries or 0)
        pods = [
            pod
            for pod in labelled_pods
            if not has_ended(pod) or int(pod.metadata.labels["try_number"]) > cleared
        ]
        # The last counts: a pod that succeeded, else a working one, one being deleted, a pod that
        # failed.
        pods.sort(
            key=lambda pod: (
                pod.status.phase == PodPhase.SUCCEEDED,
                not has_ended(pod),
                not pod.metadata.deletion_timestamp,
                pod.metadata.creation_timestamp,
            )
        )
        for pod in pods[:-1]:
            if not has_ended(pod):
                self.log.info("ending the pod %s of an earlier try", pod.metadata.name)
                delete_pod(self.client, pod)
        if pods:
            self.log.info("taking over the pod %s", pods[-1].metadata.name)
            return pods[-1]
        try:
            return self._created(pod_request_obj)
        except ApiException as error:
            message = f"Kubernetes refused the pod: {said_by_kubernetes(error)}"
            if error.status in (400, 404, 422) or (error.status == 403 and "quota" not in message):
                message += ". `toolformer-ops doctor --kubernetes` says what is missing; mend it and clear this task."
                raise self._failure(PodEnding("request", message)) from None
            if is_outage(error):
                raise
            raise self._failure(PodEnding("away", message)) from None

    @generic_api_retry  # type: ignore[untyped-decorator]
    def _created(self, pod: k8s.V1Pod) -> k8s.V1Pod:
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            return self.client.create_namespaced_pod(namespace, pod)
        except ApiException as error:
            if error.status != 409 or "already exists" not in said_by_kubernetes(error):
                raise
            self.log.info("this try has made the pod %s before: taking it over", name)
            return self.client.read_namespaced_pod(name, namespace)

    def on_kill(self) -> None:
        """End the pod with its task."""
        self._killed = True
        if self.pod:
            patiently(delete_pod)(self.client, self.pod)

    def _require_success(self, pod: k8s.V1Pod, event: Mapping[str, Any]) -> None:
        """Return if the stage did its work.

        Else fail the task by how the pod ended, and end the pod if its time is up.
        """
        if self.reads_result:
            self.printed = self._last_value(pod)  # now: a pod that succeeded may go, and its log with it
        name = pod.metadata.name
        why = event["message"] if event["status"] == "timeout" else None
        newest = self._read(name, pod.metadata.namespace)
        if newest is None:
            raise self._failure(describe_gone_pod(name, self._events(name), event.get(BEFORE)))
        phase, lost, exit_code = newest.status.phase, is_lost(newest), stage_exit_code(newest)
        if phase == PodPhase.SUCCEEDED:
            return
        if exit_code == 0 and phase != PodPhase.FAILED:  # a container beside it runs on
            delete_pod(self.client, newest)
            return
        works = phase != PodPhase.FAILED and exit_code is None and not lost
        if works and why is None:  # there is no reason to end it: the next try takes it over
            why = f"the pod {name} runs, and its trigger said that it had ended: {event}"
            raise self._failure(PodEnding("away", why))
        ending = describe_pod_ending(newest, self._events(name))
        if works and why and phase == PodPhase.RUNNING:
            ending = PodEnding("stage", f"{why.rstrip('.')}; {STARTS_AGAIN}.")
        if phase == PodPhase.FAILED:
            try:  # kept for a look at it; no retry takes it for its own
                self.patch_already_checked(newest)
            except (ApiException, *TRANSIENT_CONNECTION_ERRORS) as error:  # it may be gone by now
                self.log.warning("the pod %s cannot be marked as told: %s", name, said_by_kubernetes(error))
        else:
            delete_pod(self.client, newest, grace_seconds=0 if lost else None)
        raise self._failure(ending)

    def _last_value(self, pod: k8s.V1Pod) -> Any:
        """The last JSON object on a line of the pod's log.

        It is None if there is none, or the log cannot be read.
        """
        options = {"container": CONTAINER, "tail_lines": LAST_LINES, "_preload_content": False}
        try:
            log = self.client.read_namespaced_pod_log(pod.metadata.name, pod.metadata.namespace, **options)
        except ApiException as error:
            self.log.warning("the log of the pod %s cannot be read: %s", pod.metadata.name, error.reason)
            return None
        # stdout and stderr are one there, and lines of the log begin with a time.
        for line in reversed(log.data.decode("utf-8", errors="replace").splitlines()):
            if line.startswith("{"):
                with suppress(ValueError):
                    return json.loads(line)
        return None

    @contextmanager
    def _failures_described(self) -> Iterator[None]:
        """A pod that is gone, an API server that is away and a SIGTERM to the task are no errors of the stage's."""
        try:
            yield
        except (ApiException, *TRANSIENT_CONNECTION_ERRORS) as error:
            if not self._killed:
                if not is_outage(error):
                    raise
                pod = "The pod works on; the next try takes it over." if self.pod else "No pod was made."
                message = f"the Kubernetes API does not answer: {said_by_kubernetes(error)}. {pod}"
                raise self._failure(PodEnding("away", message)) from None
        # SIGTERM calls `on_kill` and ends nothing else: a pod that ended with 0 then would be a success.
        if self._killed:
            message = f"the task was told to end (SIGTERM), and its pod with it; {STARTS_AGAIN}."
            raise self._failure(PodEnding("outside", message))

    def _failure(self, ending: PodEnding) -> AirflowException:
        return stage_failure(self.stage_name, ending)

    def _read(self, name: str, namespace: str) -> k8s.V1Pod | None:
        """The pod as it is now; None if it is gone."""
        try:
            return patiently(self.hook.get_pod)(name, namespace)
        except ApiException as error:
            if error.status != 404:
                raise
            return None

    def _events(self, pod: str) -> list[Any]:
        """A pod's events, oldest first, which outlive it; none if they cannot be read."""
        try:
            events = self.client.list_namespaced_event(
                self.namespace, field_selector=f"involvedObject.name={pod}"
            )
        except Exception as error:  # the ending is described without them
            self.log.warning("the events of the pod %s cannot be read: %s", pod, said_by_kubernetes(error))
            return []
        return oldest_first(events.items)


def pod_arguments(settings: Settings, *, template: str) -> dict[str, Any]:
    """Arguments of `StagePod` that follow from the settings and from the kind of stage: one of `templates.TEMPLATES`.

    Raises:
        ConfigurationError: no image is set, or the template is wrong.
    """
    return {
        "manifest": pod_manifest(settings, template),
        "labels": dict(LABELS),
        **cluster_access(settings),
        "namespace": settings.kubernetes_namespace,
        "random_name_suffix": False,
        "base_container_name": CONTAINER,
        "deferrable": True,
        "do_xcom_push": False,
        "get_logs": True,
        "logging_interval": LOG_SECONDS,
        "poll_interval": watching.POLL_SECONDS,
        "log_events_on_startup": False,
        "on_finish_action": "keep_pod",  # see `_require_success`
        "termination_message_policy": "FallbackToLogsOnError",
        "schedule_timeout_seconds": SCHEDULE_SECONDS,
        "startup_timeout_seconds": STARTUP_SECONDS,
        "startup_check_interval_seconds": min(START_CHECK_SECONDS, watching.POLL_SECONDS),
        "patience_seconds": watching.PATIENCE_SECONDS,
    }


def cluster_access(settings: Settings) -> dict[str, Any]:
    """How Airflow reaches the cluster: arguments of KubernetesPodOperator.

    Without a kubeconfig the pod that Airflow runs in has the rights, which has to be said: the provider's
    synchronous client finds that out, its asynchronous one looks for ~/.kube/config (10.25.0).
    """
    without_connection = {"kubernetes_conn_id": None}  # else each task looks for `kubernetes_default`
    if settings.kubernetes_config_file:
        return without_connection | {"config_file": str(settings.kubernetes_config_file)}
    return without_connection | {"in_cluster": True}


def cluster_client(settings: Settings) -> CoreV1Api:
    """A client of the cluster, with the rights that the tasks have."""
    access = cluster_access(settings)
    return KubernetesHook(conn_id=access.pop("kubernetes_conn_id"), **access).core_v1_client


def end_pods_of_run(settings: Settings, *, dag_id: str, run_id: str) -> None:
    """End what still runs of a DAG run whose tasks are over, and remove its pods that succeeded, and pods that ended a day ago.

    An error is logged and no more: each pod has a deadline, and the next run removes what is left.
    """
    labels = {"dag_id": make_safe_label_value(dag_id), "run_id": make_safe_label_value(run_id)}
    try:
        client = cluster_client(settings)
        for pod in client.list_namespaced_pod(settings.kubernetes_namespace, label_selector=STAGE_PODS).items:
            ours = labels.items() <= pod.metadata.labels.items()
            if has_ended(pod):
                is_old = _ended_at(pod) < datetime.now(UTC) - KEEP_ENDED
                if is_old or (ours and pod.status.phase == PodPhase.SUCCEEDED):
                    delete_pod(client, pod)
            elif ours:
                logger.warning("the pod %s outlived its task: ending it", pod.metadata.name)
                delete_pod(client, pod, grace_seconds=0 if is_lost(pod) else None)
    except Exception:
        logger.exception("pods that the run left behind could not be ended; each ends at its deadline")


def delete_pod(client: CoreV1Api, pod: k8s.V1Pod, *, grace_seconds: int | None = None) -> None:
    """Tell a pod to end, within its own grace period unless told otherwise; nothing happens if it is gone."""
    try:
        client.delete_namespaced_pod(
            name=pod.metadata.name, namespace=pod.metadata.namespace, grace_period_seconds=grace_seconds
        )
    except ApiException as error:
        if error.status != 404:
            raise


def _ended_at(pod: k8s.V1Pod) -> datetime:
    """When the last container of a pod ended; when the pod was created, if none says."""
    times: list[datetime] = []
    for status in pod.status.container_statuses or ():
        terminated = status.state and status.state.terminated
        if terminated and terminated.finished_at:
            times.append(terminated.finished_at)
    return max(times) if times else cast(datetime, pod.metadata.creation_timestamp)
