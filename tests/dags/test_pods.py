"""The pods of `TOOLFORMER_RUNNER=kubernetes`: valid, hardened, on the right nodes, and without a secret in them."""

import json
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from kubernetes.client import ApiClient

from tests.kubernetes.admission import KUBERNETES_VERSION, pod_security_violations
from toolformer_ops.airflow_tasks.defaults import TIME_LIMITS
from toolformer_ops.airflow_tasks.kubernetes.pods import StagePod
from toolformer_ops.airflow_tasks.model_tasks import SUITES
from toolformer_ops.airflow_tasks.run_ids import RUN_ID
from toolformer_ops.config import REPOSITORY

IMAGE = "registry.example/toolformer:1.2"
WITHOUT_GPUS = {
    "runner": "kubernetes",
    "kubernetes_image": IMAGE,
    "kubernetes_templates": str(REPOSITORY / "deploy" / "pod-templates" / "cpu-only"),
    "kubernetes_config_file": "/k/config",
}
SECRETS = ("secret-dsn", "secret-reader", "secret-key-id", "secret-access-key")
OF_A_MODEL = (
    ".annotate",
    ".placebo",
    ".finetune",
    ".finetune_without_calls",
    *(f".evaluation.{one}" for one in SUITES),
)


def context(task_id: str, map_index: int) -> Any:
    """As much of Airflow's context as a pod's labels are made from."""
    instance = SimpleNamespace(
        id=uuid.uuid4(),
        dag_id="annotate_corpus",
        task_id=task_id,
        map_index=map_index,
        try_number=1,
        max_tries=22,
    )
    dag = SimpleNamespace(dag_id="annotate_corpus")
    return {"ti": instance, "run_id": "manual__2026-11-21T10:00:00+00:00", "dag": dag, "params": {}}


_MADE: dict[int, dict[str, dict[str, Any]]] = {}


def pods(dags: dict[str, DAG]) -> dict[str, dict[str, Any]]:
    """The manifest of every stage that runs in a pod, by task; of a mapped stage the one for shard 1/3."""
    if manifests := _MADE.setdefault(id(dags["annotate_corpus"]), {}):
        return manifests
    for task in [task for dag in dags.values() for task in dag.tasks]:
        if not issubclass(task.operator_class if task.is_mapped else type(task), StagePod):
            continue
        operator = task.unmap({**task.partial_kwargs, "shard": "1/3"}) if task.is_mapped else task
        made = operator.build_pod_request_obj(
            context(task.task_id, 1 if task.is_mapped else -1), dry_run=True
        )
        manifests[f"{task.dag_id}.{task.task_id}"] = ApiClient().sanitize_for_serialization(made)
    return manifests


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    (only,) = manifest["spec"]["containers"]
    return dict(only)


def test_every_stage_has_a_pod(kubernetes_dags):
    models = 2 * 2 + 6  # with and without calls: finetune and publish; and the suites
    assert len(pods(kubernetes_dags)) == (5 * 3 + 4 + models) + models + 3


def test_every_pod_is_valid_within_a_time_limit(kubernetes_dags):
    for manifest in pods(kubernetes_dags).values():
        assert kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True) == KUBERNETES_VERSION
        assert manifest["spec"]["activeDeadlineSeconds"] > 0


def test_every_pod_is_restricted(kubernetes_dags):
    for manifest in pods(kubernetes_dags).values():
        spec, only = manifest["spec"], container(manifest)
        assert list(pod_security_violations(spec)) == []
        assert (spec["automountServiceAccountToken"], spec["restartPolicy"]) == (False, "Never")
        assert only["securityContext"]["readOnlyRootFilesystem"] is True


def test_every_pod_runs_the_package_of_a_pinned_image(kubernetes_dags):
    for manifest in pods(kubernetes_dags).values():
        only = container(manifest)
        assert only["command"] == ["python", "-m", "toolformer_ops"]
        assert "@sha256:" in only["image"]
        assert only["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_every_pod_can_write_where_the_stages_write(kubernetes_dags):
    for manifest in pods(kubernetes_dags).values():
        only = container(manifest)
        values = {variable["name"]: variable.get("value") for variable in only["env"]}
        mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in only["volumeMounts"]}
        written = {path for path, is_read_only in mounts.items() if not is_read_only}
        assert written - {"/dev/shm"} == {"/tmp", "/var/lib/toolformer", "/var/cache/toolformer"}  # noqa: S108
        assert mounts.keys() - written == {"/config/tools"}
        assert {values["TOOLFORMER_STATE_DIR"], values["TOOLFORMER_CACHE_DIR"]} <= written
        assert str(values["HF_HOME"]).startswith("/var/lib/toolformer/")


def test_a_pod_of_a_shard_is_told_its_shard(kubernetes_dags):
    shard = container(pods(kubernetes_dags)["annotate_corpus.MT.annotate"])
    assert shard["args"] == ["stage", "annotate", "--run", RUN_ID, "--tool", "MT", "--shard", "1/3"]


def test_the_deadline_of_a_pod_is_after_the_time_limit_of_its_stage(kubernetes_dags):
    deadline = pods(kubernetes_dags)["annotate_corpus.finetune"]["spec"]["activeDeadlineSeconds"]
    assert deadline == TIME_LIMITS["finetune"].total_seconds() + 15 * 60


def test_only_stages_with_a_model_get_an_a100_where_the_cluster_has_any(kubernetes_dags, parse):
    without = parse(**WITHOUT_GPUS)
    for dags, has_gpus in ((kubernetes_dags, True), (without, False)):
        for name, manifest in pods(dags).items():
            spec, only = manifest["spec"], container(manifest)
            device = next(
                variable["value"] for variable in only["env"] if variable["name"] == "TOOLFORMER_DEVICE"
            )
            limits = only["resources"]["limits"]
            assert {"cpu", "memory"} <= set(only["resources"]["requests"])
            if has_gpus and name.endswith(OF_A_MODEL):
                assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
                assert spec["tolerations"] == [
                    {"effect": "NoSchedule", "key": "nvidia.com/gpu", "operator": "Exists"}
                ]
                assert (limits["nvidia.com/gpu"], device) == ("4" if ".finetune" in name else "1", "cuda")
            else:
                assert [spec.get("nodeSelector") or {}, spec.get("tolerations") or []] == [{}, []]
                assert ("nvidia.com/gpu" in limits, device) == (False, "cpu")


def test_airflow_reaches_the_cluster_as_the_settings_say(parse, kubernetes_dags):
    def access(dags: dict[str, DAG]) -> tuple[Any, ...]:
        task = dags["annotate_corpus"].task_dict["finetune"]
        return task.in_cluster, task.config_file, task.kubernetes_conn_id, task.deferrable

    assert access(kubernetes_dags) == (True, None, None, True)
    assert access(parse(**WITHOUT_GPUS)) == (None, "/k/config", None, True)


def test_a_pod_names_only_the_secret_of_the_factory(kubernetes_dags):
    def secrets(value: Any) -> Iterator[str]:
        inner = (
            value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
        )
        for key, part in inner:
            if key in ("secretKeyRef", "secretRef", "secret"):  # the last of a volume
                yield part.get("secretName") or part["name"]
            else:
                yield from secrets(part)

    manifests = pods(kubernetes_dags)
    assert {name for manifest in manifests.values() for name in secrets(manifest)} == {"toolformer"}


def test_a_pod_takes_only_the_secrets_of_stages_from_it(kubernetes_dags):
    manifests = pods(kubernetes_dags)
    environment = {one["name"]: one for one in container(manifests["annotate_corpus.QA.annotate"])["env"]}
    for key, is_optional in (
        ("DATABASE_DSN", False),
        ("S3_ACCESS_KEY_ID", True),
        ("S3_SECRET_ACCESS_KEY", True),
    ):
        reference = environment[f"TOOLFORMER_{key}"]["valueFrom"]["secretKeyRef"]
        assert reference == {"key": f"TOOLFORMER_{key}", "name": "toolformer", "optional": is_optional}
    assert environment["TOOLFORMER_S3_ENDPOINT_URL"]["value"] == "http://minio:9000"
    assert environment["TOOLFORMER_RUNNER"]["value"] == "kubernetes"  # a pod searches the published index
    assert not {"TOOLFORMER_READER_DSN", "TOOLFORMER_AIRFLOW_PASSWORD"} & set(environment)


def test_no_secret_is_in_a_pod_or_in_a_serialised_dag(kubernetes_dags):
    manifests = pods(kubernetes_dags)
    # No secret is in a pod, in what Airflow renders, or in a serialised DAG.
    texts = [json.dumps(manifest) for manifest in manifests.values()]
    for dag in kubernetes_dags.values():
        texts.append(json.dumps(DagSerialization.to_dict(dag)))
        for task in dag.tasks:
            values = task.partial_kwargs if task.is_mapped else vars(task)
            texts += [str(values.get(field)) for field in task.template_fields]
    assert not [secret for secret in SECRETS for text in texts if secret in text]


def test_a_stage_without_work_has_no_pod(monkeypatch):
    monkeypatch.setattr("toolformer_ops.stages.placebo.why_nothing_to_do", lambda *_: "all is scored")
    task = StagePod(
        task_id="placebo",
        manifest={"spec": {"containers": [{"name": "stage"}]}},
        arguments=["stage", "placebo", "--run", "r", "--tool", "MT"],
        namespace="toolformer",
        config_file="/not/there",  # whoever asked the API server would fail
    )
    task.execute(context("placebo", -1))
