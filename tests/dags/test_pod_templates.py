"""What a pod template may say, what holds all the same, and what is refused: with file, line and remedy."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.kubernetes.admission import KUBERNETES_VERSION, pod_security_violations
from toolformer_ops.airflow_tasks.kubernetes.templates import pod_manifest
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.errors import ConfigurationError

OURS = REPOSITORY / "deploy" / "pod-templates"
SMALLEST = """\
apiVersion: v1
kind: Pod
spec:
  containers:
    - name: stage
      resources:
        limits: {memory: 8Gi}
"""


def settings(folder: Path, **values: Any) -> Settings:
    """Settings of a deployment whose templates are in this folder."""
    common = {"kubernetes_image": "registry.example/toolformer:1.2", "kubernetes_templates": folder}
    return Settings(_env_file=None, **(common | values))


def manifest(folder: Path, text: str) -> dict[str, Any]:
    """The pod of a CPU stage by this template, which Kubernetes takes."""
    (folder / "cpu.yaml").write_text(text)
    made = pod_manifest(settings(folder), "cpu")
    assert kubernetes_validate.validate(made, KUBERNETES_VERSION, strict=True) == KUBERNETES_VERSION
    return made


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}


def test_what_a_template_says_holds(tmp_path):
    pod = manifest(
        tmp_path,
        """\
apiVersion: v1
kind: Pod
metadata:
  name: ours
  labels: {kueue.x-k8s.io/queue-name: gpus}
spec:
  runtimeClassName: nvidia
  securityContext: {fsGroup: 2000, runAsUser: null}
  initContainers: [{name: warm, image: "registry.example/warm:1"}]
  containers:
    - name: sidecar
      image: registry.example/sidecar:1
    - name: stage
      resources:
        limits: {memory: 8Gi, nvidia.com/gpu: 2}
      env:
        - {name: TOOLFORMER_THREADS, value: "4"}
        - {name: HF_HOME, value: /var/cache/toolformer/hub}
      volumeMounts:
        - {name: cache, mountPath: /var/cache/toolformer, subPath: models}
  volumes:
    - {name: cache, persistentVolumeClaim: {claimName: models}}
""",
    )
    spec = pod["spec"]
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert "name" not in pod["metadata"]
    assert spec["runtimeClassName"] == "nvidia"
    stage, sidecar = spec["containers"]  # the stage first: Airflow adds its arguments there
    assert (stage["name"], sidecar["name"]) == ("stage", "sidecar")
    assert stage["image"] == "registry.example/toolformer:1.2"
    values = environment(pod)
    assert len(values) == len(stage["env"])
    assert (values["TOOLFORMER_THREADS"], values["HF_HOME"]) == ("4", "/var/cache/toolformer/hub")
    # The deployment's, which the recipes hold, and not the device's default.
    assert (values["TOOLFORMER_DEVICE"], values["TOOLFORMER_DTYPE"]) == ("cuda", "float32")
    mounts = {mount["mountPath"]: mount for mount in stage["volumeMounts"]}
    assert set(mounts) == {"/tmp", "/var/lib/toolformer", "/var/cache/toolformer"}  # noqa: S108
    assert mounts["/var/cache/toolformer"]["subPath"] == "models"
    assert [volume["name"] for volume in spec["volumes"]] == ["cache", "temporary", "state"]
    context = spec["securityContext"]
    assert (context["fsGroup"], context["runAsNonRoot"]) == (2000, True)
    assert {"runAsUser", "runAsGroup"}.isdisjoint(context)  # the cluster chooses, as OpenShift does
    for part in (*spec["containers"], *spec["initContainers"]):
        assert part["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert part["securityContext"]["allowPrivilegeEscalation"] is False


def test_a_model_is_spread_over_the_gpus_of_its_pod(tmp_path):
    def spread(template: str, gpus: int, own: str = "") -> str | None:
        (tmp_path / f"{template}.yaml").write_text(
            SMALLEST.replace("limits: {", f"limits: {{nvidia.com/gpu: {gpus}, ") + own
        )
        return environment(pod_manifest(settings(tmp_path), template)).get("TOOLFORMER_MODEL_PARALLEL")

    assert spread("gpu", 1) is None
    assert spread("gpu", 4) == "layers"
    assert spread("gpu", 4, '\n      env: [{name: TOOLFORMER_MODEL_PARALLEL, value: "off"}]') == "off"
    assert spread("finetune", 4) is None  # which takes all GPUs in its own way


def test_a_template_that_leaves_safety_out_gives_a_safe_pod(tmp_path):
    for null in ("", "  securityContext: {runAsNonRoot: null, seccompProfile: null}\n"):
        pod = manifest(tmp_path, SMALLEST.replace("spec:\n", f"spec:\n{null}"))
        spec = pod["spec"]
        assert list(pod_security_violations(spec)) == []
        assert (spec["automountServiceAccountToken"], spec["restartPolicy"]) == (False, "Never")
        assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
        assert environment(pod)["TOOLFORMER_DEVICE"] == "cpu"
        assert {"name": "cache", "emptyDir": {}} in spec["volumes"]


def changed(old: str, new: str) -> str:
    """The smallest template with a part of it replaced."""
    assert old in SMALLEST
    return SMALLEST.replace(old, new)


STAGE = "    - name: stage\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("kind: [Pod\nspec: {}\n", 2, "expected one YAML document"),
        ("", None, "expected the manifest of a Pod"),
        (changed("kind: Pod", "kind: Deployment"), 1, "kind: Pod"),
        (changed("limits:", "limit:"), 7, "resources.limit: is no field that Kubernetes knows here.*pod.spec.containers.res"),
        (changed("spec:\n", "spec:\n  nodeselector: {a: b}\n"), 4, "spec.nodeselector: is no field that Kubernetes knows"),
        (changed("spec:\n", "spec:\n  containers: []\n"), 5, "containers is there twice"),
        (changed("spec:\n", "spec:\n  tolerations: {key: gpu}\n"), 4, "expected list"),
        (changed("spec:\n", "spec:\n  volumes:\n    - emptyDir: {}\n"), None, "client refuses it: Invalid value for `name`"),
        (changed("name: stage", "name: base"), 5, "expected one container with `name: stage`, found base"),
        (changed("memory", "cpu"), 7, "expected a limit of memory"),
        (changed("8Gi", "8 GB"), 7, "expected a quantity"),
        (changed("8Gi", "8Gi, nvidia.com/mig-3g.40gb: 2"), 7, "expected 1, found 2: a process sees one MIG slice alone"),
        (changed(STAGE, STAGE + "      image: python:3\n"), 6, "TOOLFORMER_KUBERNETES_IMAGE"),
        (changed("spec:\n", "spec:\n  activeDeadlineSeconds: 60\n"), 4, "time limit"),
        (changed("spec:\n", "metadata:\n  namespace: other\nspec:\n"), 4, "TOOLFORMER_KUBERNETES_NAMESPACE is 'toolformer'"),
        (changed("spec:\n", "spec:\n  automountServiceAccountToken: true\n"), 4, "expected false"),
        (changed(STAGE, STAGE + "      securityContext:\n        readOnlyRootFilesystem: false\n"), 7, "/var/lib/toolformer"),
        (changed(STAGE, STAGE + "      env:\n        - {name: TOOLFORMER_DATABASE_DSN, value: x}\n"), 7, "from the Secret"),
        (changed(STAGE, STAGE + "      env:\n        - {name: TOOLFORMER_DTYPE, value: x}\n"), 7, "the deployment's to say"),
        (changed(STAGE, STAGE + "      volumeMounts:\n        - {name: cache, mountPath: /c}\n"), 7, "/var/cache/toolformer"),
    ],
)  # fmt: skip
def test_a_wrong_template_is_refused_at_its_line_with_the_remedy(tmp_path, text, line, message):
    place = f"cpu.yaml, line {line}: " if line else "cpu.yaml: "
    with pytest.raises(ConfigurationError, match=message) as caught:
        manifest(tmp_path, text)
    assert place in str(caught.value)


def test_neither_a_missing_template_nor_an_image_that_may_change_is_taken(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"gpu\.yaml, found no such file.*TOOLFORMER_KUBERNETES_TEMPLATES"
    ):
        pod_manifest(settings(tmp_path), "gpu")
    for image in ("", "localhost:5000/toolformer", "registry.example/toolformer:latest"):
        with pytest.raises(ConfigurationError, match="TOOLFORMER_KUBERNETES_IMAGE"):
            pod_manifest(settings(OURS / "a100", kubernetes_image=image), "cpu")
