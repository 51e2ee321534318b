"""The pods of `TOOLFORMER_RUNNER=kubernetes`: valid, hardened, on the right nodes, and without a secret in them."""

import copy
import json
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from kubernetes.client import ApiClient

from tests.kubernetes.admission import KUBERNETES_VERSION
from toolformer_ops.airflow_tasks.defaults import TIME_LIMITS
from toolformer_ops.airflow_tasks.kubernetes.pods import StagePod
from toolformer_ops.airflow_tasks.model_tasks import SUITES
from toolformer_ops.airflow_tasks.run_ids import RUN_ID
from toolformer_ops.config import REPOSITORY

SECRETS = ("secret-dsn", "secret-reader", "secret-key-id", "secret-access-key")


def context(task_id: str, map_index: int) -> Any:
    """As much of Airflow's context as a pod's labels are made from."""
    instance = SimpleNamespace(
        id=uuid.uuid4(), dag_id="annotate_corpus", task_id=task_id, map_index=map_index, try_number=1, max_tries=22
    )
    dag = SimpleNamespace(dag_id="annotate_corpus")
    return {"ti": instance, "run_id": "manual__2026-11-21T10:00:00+00:00", "dag": dag, "params": {}}


def pods(dags: dict[str, DAG]) -> dict[str, dict[str, Any]]:
    """The manifest of every stage that runs in a pod, by task; of a mapped stage the one for shard 1/3."""
    manifests = {}
    for dag in dags.values():
        for task in dag.tasks:
            if not issubclass(task.operator_class if task.is_mapped else type(task), StagePod):
                continue
            operator = task.unmap({**task.partial_kwargs, "shard": "1/3"}) if task.is_mapped else task
            made = operator.build_pod_request_obj(context(task.task_id, 1 if task.is_mapped else -1), dry_run=True)
            manifests[f"{dag.dag_id}.{task.task_id}"] = ApiClient().sanitize_for_serialization(made)
    return manifests


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, Any]]:
    """What `manifests` copies, once a test has asked for it."""
    return {}


@pytest.fixture
def manifests(kubernetes_dags: dict[str, DAG], made: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """All pods of all DAGs, which a test may change."""
    if not made:
        made.update(pods(kubernetes_dags))
    return copy.deepcopy(made)


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    """The only container."""
    (only,) = manifest["spec"]["containers"]
    return dict(only)


def is_gpu(name: str) -> bool:
    """Whether this task loads a model."""
    ends = (
        ".annotate",
        ".placebo",
        ".finetune",
        ".finetune_without_calls",
        *(f".evaluation.{suite}" for suite in SUITES),
    )
    return name.endswith(ends)


def test_every_pod_is_valid_to_the_letter_of_kubernetes(manifests: dict[str, dict[str, Any]]) -> None:
    models = 2 * 2 + 6  # with and without calls: finetune and publish; and the suites
    assert len(manifests) == (5 * 4 + 3 + models) + models + 3
    for manifest in manifests.values():
        assert kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True) == KUBERNETES_VERSION


def test_a_pod_runs_the_same_command_as_a_local_process(manifests: dict[str, dict[str, Any]]) -> None:
    annotate = container(manifests["annotate_corpus.MT.annotate"])
    assert annotate["command"] == ["python", "-m", "toolformer_ops"]
    assert annotate["args"] == ["stage", "annotate", "--run", RUN_ID, "--tool", "MT", "--shard", "1/3"]
    suite = container(manifests["finetune_release.evaluation.math"])
    assert suite["args"] == ["stage", "evaluate", "--run", RUN_ID, "--suite", "math"]
    check = container(manifests["annotate_corpus.MT.check"])
    assert check["args"] == ["stage", "check", "--run", RUN_ID, "--tool", "MT"]


def test_a_pod_is_hardened(manifests: dict[str, dict[str, Any]]) -> None:
    for manifest in manifests.values():
        spec, only = manifest["spec"], container(manifest)
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        }
        assert spec["restartPolicy"] == "Never"
        assert "hostNetwork" not in spec or spec["hostNetwork"] is False
        kinds = {"emptyDir", "persistentVolumeClaim", "configMap"}
        assert all(set(volume) <= {"name"} | kinds for volume in spec["volumes"])
        assert only["terminationMessagePolicy"] == "FallbackToLogsOnError"
        assert "@sha256:" in only["image"]


def test_a_pod_can_write_where_the_stages_write(manifests: dict[str, dict[str, Any]]) -> None:
    for manifest in manifests.values():
        only = container(manifest)
        mounts = {mount["mountPath"] for mount in only["volumeMounts"]}
        values = {variable["name"]: variable.get("value") for variable in only["env"]}
        written = {mount["mountPath"] for mount in only["volumeMounts"] if not mount.get("readOnly")}
        assert written - {"/dev/shm"} == {"/tmp", "/var/lib/toolformer", "/var/cache/toolformer"}  # noqa: S108
        assert mounts - written == {"/config/tools"}
        assert values["TOOLFORMER_STATE_DIR"] in mounts
        assert values["TOOLFORMER_CACHE_DIR"] in mounts
        assert str(values["HF_HOME"]).startswith("/var/lib/toolformer/")


def test_stages_with_a_model_get_an_a100_and_others_get_none(manifests: dict[str, dict[str, Any]]) -> None:
    for name, manifest in manifests.items():
        spec, only = manifest["spec"], container(manifest)
        device = next(variable["value"] for variable in only["env"] if variable["name"] == "TOOLFORMER_DEVICE")
        assert {"cpu", "memory"} <= set(only["resources"]["requests"])
        if is_gpu(name):
            assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
            assert spec["tolerations"] == [{"effect": "NoSchedule", "key": "nvidia.com/gpu", "operator": "Exists"}]
            assert only["resources"]["limits"]["nvidia.com/gpu"] == ("4" if "finetune" in name.split(".")[1] else "1")
            assert device == "cuda"
        else:
            assert not spec.get("nodeSelector")
            assert not spec.get("tolerations")
            assert "nvidia.com/gpu" not in only["resources"]["limits"]
            assert device == "cpu"


def test_everything_runs_on_a_cluster_without_gpus(parse: Callable[..., dict[str, DAG]]) -> None:
    folder = str(REPOSITORY / "deploy" / "pod-templates" / "cpu-only")
    image = "registry.example/toolformer:1.2"
    made = pods(parse(runner="kubernetes", kubernetes_image=image, kubernetes_templates=folder))
    for manifest in made.values():
        only = container(manifest)
        assert not manifest["spec"].get("nodeSelector")
        assert set(only["resources"]["limits"]) == {"memory", "ephemeral-storage"}
        assert {"name": "TOOLFORMER_DEVICE", "value": "cpu"} in only["env"]


def test_airflow_reaches_the_cluster_as_the_settings_say(
    parse: Callable[..., dict[str, DAG]], kubernetes_dags: dict[str, DAG]
) -> None:
    def access(dags: dict[str, DAG]) -> tuple[Any, ...]:
        task = dags["annotate_corpus"].task_dict["finetune"]
        return task.in_cluster, task.config_file, task.kubernetes_conn_id

    assert access(kubernetes_dags) == (True, None, None)
    common = {"runner": "kubernetes", "kubernetes_image": "registry.example/toolformer:1.2"}
    assert access(parse(**common, kubernetes_config_file="/k/config")) == (None, "/k/config", None)
    assert access(parse(**common, kubernetes_connection="ours")) == (None, None, "ours")


def test_secrets_are_references_and_plain_settings_are_values(manifests: dict[str, dict[str, Any]]) -> None:
    environment = {
        variable["name"]: variable for variable in container(manifests["annotate_corpus.QA.annotate"])["env"]
    }
    assert environment["TOOLFORMER_DATABASE_DSN"]["valueFrom"] == {
        "secretKeyRef": {"key": "TOOLFORMER_DATABASE_DSN", "name": "toolformer", "optional": False}
    }
    for key in ("TOOLFORMER_S3_ACCESS_KEY_ID", "TOOLFORMER_S3_SECRET_ACCESS_KEY"):
        assert environment[key]["valueFrom"]["secretKeyRef"] == {"key": key, "name": "toolformer", "optional": True}
    assert environment["TOOLFORMER_S3_ENDPOINT_URL"]["value"] == "http://minio:9000"
    assert environment["TOOLFORMER_RUNNER"]["value"] == "kubernetes"  # a pod searches the published index
    assert not {"TOOLFORMER_READER_DSN", "TOOLFORMER_AIRFLOW_PASSWORD"} & set(environment)


def test_a_pod_names_the_secret_of_the_factory_and_no_other(manifests: dict[str, dict[str, Any]]) -> None:
    def secrets(value: Any) -> Iterator[str]:
        for key, inner in (
            value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
        ):
            if key in ("secretKeyRef", "secretRef"):
                yield inner["name"]
            elif key == "secret":  # of a volume, or of a part of a projected one
                yield inner.get("secretName") or inner["name"]
            else:
                yield from secrets(inner)

    for manifest in manifests.values():
        assert set(secrets(manifest)) == {"toolformer"}
    spoiled = manifests["annotate_corpus.release"]
    spoiled["spec"]["volumes"].append(
        {"name": "keys", "projected": {"sources": [{"secret": {"name": "toolformer-airflow"}}]}}
    )
    assert set(secrets(spoiled)) == {"toolformer", "toolformer-airflow"}


def test_no_secret_stands_in_a_pod_in_a_template_or_in_a_serialised_dag(
    kubernetes_dags: dict[str, DAG], manifests: dict[str, dict[str, Any]]
) -> None:
    texts = [json.dumps(manifest) for manifest in manifests.values()]
    texts += [json.dumps(DagSerialization.to_dict(dag)) for dag in kubernetes_dags.values()]
    for dag in kubernetes_dags.values():
        for task in dag.tasks:
            values = task.partial_kwargs if task.is_mapped else vars(task)
            texts += [str(values.get(field)) for field in task.template_fields]
    assert not [secret for secret in SECRETS for text in texts if secret in text]


def test_a_pod_is_deferred_ends_by_its_deadline_and_has_no_side_container(
    kubernetes_dags: dict[str, DAG], manifests: dict[str, dict[str, Any]], parse: Callable[..., dict[str, DAG]]
) -> None:
    task = kubernetes_dags["annotate_corpus"].task_dict["finetune"]
    assert task.do_xcom_push is False
    assert task.deferrable is True
    for manifest in manifests.values():
        assert manifest["spec"]["activeDeadlineSeconds"] > 0
    deadline = manifests["annotate_corpus.finetune"]["spec"]["activeDeadlineSeconds"]
    assert deadline == TIME_LIMITS["finetune"].total_seconds() + 15 * 60
    image = "registry.example/toolformer:1.2"
    waiting = parse(runner="kubernetes", kubernetes_image=image, kubernetes_deferrable="false")
    assert waiting["annotate_corpus"].task_dict["finetune"].deferrable is False


def test_a_stage_without_work_has_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolformer_ops.stages.placebo.why_nothing_to_do", lambda *_: "all is scored")
    task = StagePod(
        task_id="placebo",
        manifest={"spec": {"containers": [{"name": "stage"}]}},
        arguments=["stage", "placebo", "--run", "r", "--tool", "MT"],
        namespace="toolformer",
        config_file="/not/there",  # whoever asked the API server would fail
    )
    task.execute(context("placebo", -1))
