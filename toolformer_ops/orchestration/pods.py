"""Run a stage as a pod: the same arguments in the deployment's image, hardened, with secrets by reference.

Imported only where `TOOLFORMER_RUNNER=kubernetes`, since the provider takes seconds to import. Everything that may differ between
clusters is a setting (`toolformer_ops.config`, `kubernetes_*`). Does not carry results back: they are in Postgres and S3.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from kubernetes.client import models as k8s
from pydantic import SecretStr

from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.orchestration.defaults import (
    EXIT_CODES_NOT_RETRIED,
    GPU_POOL,
    describe_assets,
    skip_unless,
    with_shard,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

CONTAINER = "stage"
STATE_PATH = "/var/lib/toolformer"
WRITABLE = {"temporary": "/tmp", "state": STATE_PATH}  # noqa: S108  (volumes of the pod alone)
"""Where a stage may write, by volume; each is an emptyDir."""
USER_ID = 10001
"""Not root, and no user of the node."""
ENV_PREFIX = "TOOLFORMER_"
NOT_FOR_PODS = (
    "airflow_",
    "annotation_schedule",
    "default_",
    "device",
    "image",
    "kubernetes_",
    "reader_dsn",
    "runner",
    "schedules_dir",
    "state_dir",
)
"""Beginnings of the names of settings that a pod does not get, or gets another value for."""
GPU_REQUESTS = {"cpu": "4", "memory": "32Gi", "ephemeral-storage": "40Gi"}
CPU_REQUESTS = {"cpu": "2", "memory": "8Gi", "ephemeral-storage": "20Gi"}
STARTUP_TIMEOUT_SECONDS = 1800
"""A GPU node may have to be added, and the image pulled."""


class StagePod(KubernetesPodOperator):
    """A stage in a pod; takes the arguments of `local_process.StageProcess`, and those of KubernetesPodOperator."""

    template_fields: Sequence[str] = (*KubernetesPodOperator.template_fields, "shard", "asset_extra")
    ui_color = "#e0e8f5"

    def __init__(
        self,
        *,
        shard: str | None = None,
        only_where: Mapping[str, Any] | None = None,
        asset_extra: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
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
        """The pod, with the shard among its container's arguments."""
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


def pod_arguments(settings: Settings, *, pool: str) -> dict[str, Any]:
    """Arguments of `StagePod` that follow from the settings and from whether the stage needs a GPU.

    Raises:
        ConfigurationError: no image is set, or one without tag or digest.
    """
    image = settings.kubernetes_image
    if "@sha256:" not in image and ":" not in image.rpartition("/")[2]:
        raise ConfigurationError(
            f"expected an image with a tag or a digest in {ENV_PREFIX}KUBERNETES_IMAGE, found {image!r}. "
            "Set it to what the stages are to run in, best by digest: registry/toolformer@sha256:..."
        )
    if image.endswith(":latest"):
        raise ConfigurationError(
            f"expected an image that stays the same in {ENV_PREFIX}KUBERNETES_IMAGE, found {image!r}. Name a version or a digest."
        )
    gpu = pool == GPU_POOL
    requests = GPU_REQUESTS if gpu else CPU_REQUESTS
    limits = {"memory": requests["memory"], "ephemeral-storage": requests["ephemeral-storage"]}
    if gpu:
        limits["nvidia.com/gpu"] = "1"
    return {
        "namespace": settings.kubernetes_namespace,
        "image": image,
        "image_pull_policy": "IfNotPresent",
        "cmds": ["python", "-m", "toolformer_ops"],
        "base_container_name": CONTAINER,
        "labels": {"app.kubernetes.io/part-of": "toolformer", "toolformer/pool": pool},
        "env_vars": _environment(settings, gpu=gpu),
        "node_selector": {"nvidia.com/gpu.product": settings.kubernetes_gpu_product} if gpu else {},
        "tolerations": [k8s.V1Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")] if gpu else [],
        "container_resources": k8s.V1ResourceRequirements(requests=requests, limits=limits),
        "volumes": [k8s.V1Volume(name=name, empty_dir=k8s.V1EmptyDirVolumeSource()) for name in WRITABLE],
        "volume_mounts": [k8s.V1VolumeMount(name=name, mount_path=path) for name, path in WRITABLE.items()],
        "automount_service_account_token": False,
        "security_context": k8s.V1PodSecurityContext(
            run_as_non_root=True,
            run_as_user=USER_ID,
            run_as_group=USER_ID,
            fs_group=USER_ID,
            seccomp_profile=k8s.V1SeccompProfile(type="RuntimeDefault"),
        ),
        "container_security_context": k8s.V1SecurityContext(
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            run_as_non_root=True,
            capabilities=k8s.V1Capabilities(drop=["ALL"]),
        ),
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


def _environment(settings: Settings, *, gpu: bool) -> list[k8s.V1EnvVar]:
    """The settings for the pod: plain ones by value, secret ones by reference to the deployment's Secret."""
    variables = [
        k8s.V1EnvVar(name="HOME", value=STATE_PATH),
        k8s.V1EnvVar(name="HF_HOME", value=f"{STATE_PATH}/huggingface"),
        k8s.V1EnvVar(name=f"{ENV_PREFIX}STATE_DIR", value=STATE_PATH),
        k8s.V1EnvVar(name=f"{ENV_PREFIX}DEVICE", value="cuda" if gpu else "cpu"),
        k8s.V1EnvVar(name=f"{ENV_PREFIX}IMAGE", value=settings.kubernetes_image),
    ]
    for name, field in Settings.model_fields.items():
        variable = f"{ENV_PREFIX}{name.upper()}"
        if name.startswith(NOT_FOR_PODS):
            continue
        value = getattr(settings, name)
        if "SecretStr" in str(field.annotation):
            optional = not isinstance(field.default, SecretStr)  # without S3 keys boto3 looks for the pod's identity
            reference = k8s.V1SecretKeySelector(name=settings.kubernetes_secret, key=variable, optional=optional)
            variables.append(k8s.V1EnvVar(name=variable, value_from=k8s.V1EnvVarSource(secret_key_ref=reference)))
        elif value is not None and value != field.get_default(call_default_factory=True):
            variables.append(k8s.V1EnvVar(name=variable, value=str(value)))
    return variables
