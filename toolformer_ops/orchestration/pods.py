"""Run a stage as a pod: the same arguments in the deployment's image, hardened, with secrets by reference.

Imported only where `TOOLFORMER_RUNNER=kubernetes`, since the provider takes seconds to import. What may differ between clusters is
in the pod templates (`pod_templates`). Does not carry results back: they are in Postgres and S3.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from kubernetes.client import models as k8s

from toolformer_ops.config import Settings
from toolformer_ops.orchestration.defaults import EXIT_CODES_NOT_RETRIED, describe_assets, skip_unless, with_shard
from toolformer_ops.orchestration.pod_templates import CONTAINER, LABELS, pod_manifest

if TYPE_CHECKING:
    from airflow.sdk import Context

STARTUP_TIMEOUT_SECONDS = 1800
"""A GPU node may have to be added, and the image pulled."""


class StagePod(KubernetesPodOperator):
    """A stage in a pod; takes the arguments of `local_process.StageProcess`, and those of KubernetesPodOperator.

    Args:
        manifest: the pod as far as it is the same for all tasks (`pod_templates.pod_manifest`).
    """

    template_fields: Sequence[str] = (*KubernetesPodOperator.template_fields, "shard", "asset_extra")
    ui_color = "#e0e8f5"

    def __init__(
        self,
        *,
        manifest: Mapping[str, Any],
        shard: str | None = None,
        only_where: Mapping[str, Any] | None = None,
        asset_extra: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.manifest = manifest
        self.shard = shard
        self.only_where = only_where
        self.asset_extra = asset_extra

    def execute(self, context: "Context") -> Any:
        """Run the pod to its end; skipped, failed for good or failed for a retry as `StageProcess` is."""
        skip_unless(context["params"], self.only_where)
        super().execute(context)
        self._raise_if_killed()
        describe_assets(context, self.outlets, self.asset_extra)

    def trigger_reentry(self, context: "Context", event: dict[str, Any]) -> Any:
        """Continue after a deferral; raises where `execute` would."""
        super().trigger_reentry(context, event)
        self._raise_if_killed()
        describe_assets(context, self.outlets, self.asset_extra)

    def _raise_if_killed(self) -> None:
        # After SIGTERM the provider deletes the pod, waits for its end and returns as if the stage had succeeded, since its
        # `cleanup` then skips the check of the pod's phase (cncf-kubernetes 10.25.0).
        if self._killed:
            raise AirflowException(
                "the task was told to end (SIGTERM), and its pod with it; the next try starts after the last committed micro-batch."
            )

    def build_pod_request_obj(self, context: "Context | None" = None, *, dry_run: bool = False) -> k8s.V1Pod:
        """The pod: its manifest, and what Airflow adds: a name, labels, and the stage's arguments, with the shard."""
        self.full_pod_spec = PodGenerator.deserialize_model_dict(dict(self.manifest))
        pod = super().build_pod_request_obj(context, dry_run=dry_run)
        pod.spec.containers[0].args = with_shard(self.arguments, self.shard)
        return pod

    def cleanup(self, pod: k8s.V1Pod, remote_pod: k8s.V1Pod, *args: Any, **kwargs: Any) -> None:
        """End a task for good where its stage said that a retry cannot help."""
        try:
            super().cleanup(pod, remote_pod, *args, **kwargs)
        except AirflowException as error:
            statuses = (remote_pod.status.container_statuses if remote_pod and remote_pod.status else None) or []
            ended = [status.state.terminated for status in statuses if status.name == CONTAINER and status.state]
            if any(ending and ending.exit_code in EXIT_CODES_NOT_RETRIED for ending in ended):
                raise AirflowFailException(str(error)) from error
            raise


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
        "deferrable": False,
        "do_xcom_push": False,
        "get_logs": True,
        "log_events_on_failure": True,
        "log_pod_spec_on_failure": False,
        "on_finish_action": "delete_succeeded_pod",
        "termination_message_policy": "FallbackToLogsOnError",
        "startup_timeout_seconds": STARTUP_TIMEOUT_SECONDS,
    }


def cluster_access(settings: Settings) -> dict[str, Any]:
    """How Airflow reaches the cluster: arguments of KubernetesPodOperator.

    Without a kubeconfig and a connection it is the pod that Airflow runs in that has the rights, which has to be said:
    the provider's synchronous client finds that out, its asynchronous one looks for ~/.kube/config (10.25.0).
    """
    if settings.kubernetes_config_file:
        return {"config_file": str(settings.kubernetes_config_file)}
    if settings.kubernetes_connection:
        return {"kubernetes_conn_id": settings.kubernetes_connection}
    return {"in_cluster": True}
