"""Pod templates: what a deployment says about its pods, as plain Kubernetes manifests, merged with what a stage needs.

The folder of the setting `kubernetes_templates` holds one template for each kind of stage: `gpu.yaml` for
stages with a model, `cpu.yaml` for the others, `finetune.yaml` for finetuning. What a template says holds:
resources and GPUs, volumes, service account, pull secrets, node selector, tolerations, priority, labels (a
queue of Kueue), runtime class, further containers, further variables. What a stage needs to be safe is added
if a template leaves it out. This module refuses what a stage forbids a template to say, and what the
Kubernetes client would lose. What Kubernetes itself refuses, such as a pod that is not "restricted", is found
by `toolformer-ops doctor --kubernetes`, which asks the API server of the cluster.

Does not use the merging of KubernetesPodOperator (`PodGenerator.reconcile_pods`, cncf-kubernetes 10.25.0): it
pairs containers by position and not by name, appends volumes and variables that are there already, replaces a
security context as a whole, lets a template's `true` win over `False`, and drops unknown fields without a
word.
"""

import copy
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from kubernetes.client import ApiClient
from kubernetes.utils.quantity import parse_quantity
from pydantic import SecretStr

from toolformer_ops.airflow_tasks.endings import CONTAINER
from toolformer_ops.config import ENV_PREFIX, Settings
from toolformer_ops.errors import ConfigurationError

TEMPLATES = ("cpu", "gpu", "finetune")
"""Names of the templates, each a file with `.yaml`."""
STATE_PATH = "/var/lib/toolformer"
CACHE_PATH = "/var/cache/toolformer"
WRITABLE = {"temporary": "/tmp", "state": STATE_PATH, "cache": CACHE_PATH}  # noqa: S108  (volumes of the pod alone)
"""Where a stage may write, by volume; an emptyDir if the template has no volume of that name."""
USER_ID = 10001
"""Not root, and no user of the node; the user of the image."""
SECRET = "toolformer"  # noqa: S105
"""The Kubernetes Secret of the settings that are secret, as the manifests of `deploy/kubernetes` name it."""
LABELS = {"app.kubernetes.io/part-of": "toolformer"}
"""Labels by which all stage pods of a namespace are found."""
NOT_FOR_PODS = (
    "airflow_",
    "audit_schedule",
    "cache_dir",
    "default_",
    "device",
    "image",
    "kubernetes_",
    "reader_dsn",
    "retention_",
    "reviewer_dsn",
    "schedules_dir",
    "state_dir",
)
"""Beginnings of the names of settings that a pod does not get, or gets another value for."""
MODEL_PARALLEL = f"{ENV_PREFIX}MODEL_PARALLEL"
FOR_TEMPLATES = (
    f"{ENV_PREFIX}CACHE_GIB",
    f"{ENV_PREFIX}CORPUS_ROOTS",
    f"{ENV_PREFIX}DEVICE",
    f"{ENV_PREFIX}HUB_OFFLINE",
    f"{ENV_PREFIX}MICRO_BATCH_DOCUMENTS",
    f"{ENV_PREFIX}MICRO_BATCH_TOKENS",
    MODEL_PARALLEL,
    f"{ENV_PREFIX}THREADS",
)
"""Variables of settings that a template may give a value: those that decide neither rows nor where they are
written."""
SECRETS = frozenset(
    f"{ENV_PREFIX}{name.upper()}"
    for name, field in Settings.model_fields.items()
    if "SecretStr" in str(field.annotation)
)
"""Variables of settings that only a Secret may hold."""

POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",  # or a large cache is walked through at the start of every pod
    "seccompProfile": {"type": "RuntimeDefault"},
}
LEFT_TO_THE_CLUSTER = ("runAsUser", "runAsGroup", "fsGroup")
"""Fields of `POD_SECURITY` that a template may leave to the cluster, by the value null."""
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
}
QUANTITIES = frozenset({"limits", "requests", "overhead"})
"""Fields whose values are Kubernetes quantities, which may be written as numbers."""

Keys = tuple[str | int, ...]
"""The way to a value in a manifest."""


def pod_manifest(settings: Settings, template: str) -> dict[str, Any]:
    """The pod of a stage, without its name, its arguments and its deadline.

    Args:
        settings: of the deployment.
        template: one of `TEMPLATES`.

    Returns:
        A manifest whose first container is `stage`. Secret settings are references to the deployment's
        Secret.

    Raises:
        ConfigurationError: no image is set, or its content may change; the template is missing or wrong, with
        file and line.
    """
    # 1. An image that stays the same, and the template.
    image = settings.kubernetes_image
    setting = f"in {ENV_PREFIX}KUBERNETES_IMAGE, found {image!r}"
    if "@sha256:" not in image and ":" not in image.rpartition("/")[2]:
        raise ConfigurationError(
            f"expected an image with a tag or a digest {setting}. Set it to what the stages are to run in, "
            "best by digest: registry/toolformer@sha256:..."
        )
    if image.endswith(":latest"):
        raise ConfigurationError(
            f"expected an image that stays the same {setting}. Name a version or a digest."
        )
    path = settings.kubernetes_templates / f"{template}.yaml"
    if not path.is_file():
        raise ConfigurationError(
            f"expected the pod template {path}, found no such file. {ENV_PREFIX}KUBERNETES_TEMPLATES is a "
            f"folder with {', '.join(f'{name}.yaml' for name in TEMPLATES)}; deploy/pod-templates/ has two "
            "such folders to start from."
        )
    pod = copy.deepcopy(_read_template(path, path.read_text(encoding="utf-8"), settings.kubernetes_namespace))
    spec = pod["spec"]

    # 2. The stage comes first: KubernetesPodOperator adds arguments to the first container.
    spec["containers"].sort(key=lambda container: container["name"] != CONTAINER)
    stage = spec["containers"][0]
    gpus = gpus_of(stage)
    stage["image"] = image
    stage.setdefault("imagePullPolicy", "IfNotPresent")
    stage["command"] = ["python", "-m", "toolformer_ops"]
    stage.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")

    # 3. Variables: the settings, then the template's.
    variables = _environment(settings, gpus, is_split=template == "gpu" and gpus > 1)
    variables |= {variable["name"]: variable for variable in part_of(stage, "env")}
    stage["env"] = list(variables.values())

    # 4. Where a stage writes.
    volumes, mounts = part_of(spec, "volumes"), part_of(stage, "volumeMounts")
    named = {volume["name"] for volume in volumes}
    mounted = {mount["mountPath"] for mount in mounts}
    spec["volumes"] = [*volumes, *({"name": name, "emptyDir": {}} for name in WRITABLE if name not in named)]
    stage["volumeMounts"] = [
        *mounts,
        *({"name": name, "mountPath": path} for name, path in WRITABLE.items() if path not in mounted),
    ]

    # 5. Safety: the Pod Security that the template left out.
    spec["restartPolicy"] = "Never"
    spec["automountServiceAccountToken"] = False
    chosen = part_of(spec, "securityContext")
    if chosen.get("runAsUser", USER_ID) is None:  # no runtime starts a pod that has a group and no user
        chosen = {"runAsGroup": None, **chosen}
    spec["securityContext"] = _filled(chosen, POD_SECURITY)
    for container in (*spec["containers"], *part_of(spec, "initContainers")):
        container["securityContext"] = _filled(part_of(container, "securityContext"), CONTAINER_SECURITY)

    pod["metadata"] = {
        "namespace": settings.kubernetes_namespace,
        "labels": {**part_of(pod, "metadata", "labels"), **LABELS, "toolformer/template": template},
        "annotations": part_of(pod, "metadata", "annotations"),
    }
    return pod


def gpus_of(container: Mapping[str, Any]) -> int:
    """How many GPUs the container asks for."""
    return gpu_count(
        {**part_of(container, "resources", "requests"), **part_of(container, "resources", "limits")}
    )


def gpu_count(amounts: Mapping[str, Any]) -> int:
    """How many GPUs (whole ones, or parts as of MIG) of any vendor are among these resources."""
    count = 0
    for name, amount in amounts.items():
        if name.endswith("/gpu") or name.startswith("nvidia.com/mig-"):
            count += int(parse_quantity(amount))
    return count


def part_of(manifest: Mapping[str, Any], *names: str) -> Any:
    """The mapping or list at a place of a manifest; empty if there is none."""
    part: Any = manifest
    for name in names:
        part = part.get(name) or {}
    return part


def _environment(settings: Settings, gpus: int, *, is_split: bool) -> dict[str, dict[str, Any]]:
    """The settings for the pod, by variable: plain ones by value, secret ones by reference to the deployment's Secret."""
    variables: dict[str, Any] = {
        "HOME": STATE_PATH,
        "HF_HOME": f"{STATE_PATH}/huggingface",
        f"{ENV_PREFIX}STATE_DIR": STATE_PATH,
        f"{ENV_PREFIX}CACHE_DIR": CACHE_PATH,
        f"{ENV_PREFIX}DEVICE": "cuda" if gpus else "cpu",
        f"{ENV_PREFIX}IMAGE": settings.kubernetes_image,
        # Named always: its default follows the device, and the recipes hold the device that the run was
        # started with.
        f"{ENV_PREFIX}DTYPE": settings.dtype,
        **({MODEL_PARALLEL: "layers"} if is_split else {}),
    }
    references = {}
    for name, field in Settings.model_fields.items():
        variable, value = f"{ENV_PREFIX}{name.upper()}", getattr(settings, name)
        if name.startswith(NOT_FOR_PODS):
            continue
        if variable in SECRETS:
            optional = not isinstance(
                field.default, SecretStr
            )  # without S3 keys boto3 looks for the pod's identity
            references[variable] = {"name": SECRET, "key": variable, "optional": optional}
        elif value is not None and value != field.get_default(call_default_factory=True):
            variables[variable] = str(value)
    return {name: {"name": name, "value": value} for name, value in variables.items()} | {
        name: {"name": name, "valueFrom": {"secretKeyRef": reference}}
        for name, reference in references.items()
    }


def _filled(said: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What the template says, and the defaults for what it does not say.

    `null` leaves a user or group to the cluster; any other field that is null gets its default.
    """
    filled = copy.deepcopy(dict(defaults))
    for name, value in said.items():
        if value is not None:
            filled[name] = value
        elif name in LEFT_TO_THE_CLUSTER:
            filled.pop(name, None)
    return filled


# Reading and checking a template


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that occurs twice; YAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for index, (key, _) in enumerate(node.value):
            if key.value in names[:index]:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


@functools.lru_cache(maxsize=16)
def _read_template(path: Path, text: str, namespace: str) -> dict[str, Any]:
    """The template as values, checked; a DAG asks for it once for each of its tasks."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        pod = loader.construct_document(root) if isinstance(root, yaml.MappingNode) else None
    except yaml.YAMLError as error:
        marked = isinstance(error, yaml.MarkedYAMLError)
        mark = (error.problem_mark or error.context_mark) if marked else None
        problem = (error.problem or error.context) if marked else error
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError(
            f"{path}{line}: expected one YAML document, found: {problem}. Mend the template there."
        ) from error
    if not isinstance(pod, dict):
        raise ConfigurationError(
            f"{path}: expected the manifest of a Pod, found none. Begin with `kind: Pod`."
        )
    try:
        taken = ApiClient().sanitize_for_serialization(PodGenerator.deserialize_model_dict(pod))
    except ValueError as error:
        raise ConfigurationError(
            f"{path}: expected the manifest of a Pod, found that the Kubernetes client refuses it: {error}. "
            "`kubectl explain pod.spec --recursive` lists the fields, their types, and which have to be "
            "there."
        ) from error
    for keys, message in (*_not_taken(pod, taken), *_problems(pod, namespace)):
        node = root  # the value at `keys`, or the last of its parents that exists
        for key in keys:
            members: dict[str | int, yaml.Node] = {}
            if isinstance(node, yaml.CollectionNode):
                is_list = isinstance(node, yaml.SequenceNode)
                members = (
                    dict(enumerate(node.value))
                    if is_list
                    else {name.value: value for name, value in node.value}
                )
            if key not in members:
                break
            node = members[key]
        field = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
        raise ConfigurationError(
            f"{path}, line {node.start_mark.line + 1}: {field or 'the manifest'}: {message}"
        )
    return pod


def _not_taken(said: Any, taken: Any, keys: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """The fields of a template that the Kubernetes client drops or changes, which it does without a word."""
    if isinstance(said, dict) and isinstance(taken, dict):
        for name, value in said.items():
            yield from _not_taken(value, taken.get(name), (*keys, name))
    elif isinstance(said, list) and isinstance(taken, list):
        for index, (member, kept) in enumerate(zip(said, taken, strict=True)):
            yield from _not_taken(member, kept, (*keys, index))
    elif said is not None and taken is None:
        parent = ".".join(("pod", *(key for key in keys[:-1] if isinstance(key, str))))
        yield (
            keys,
            f"is no field that Kubernetes knows here. `kubectl explain {parent}` lists the fields.",
        )
    elif said != taken and not (isinstance(said, (int, float)) and QUANTITIES.intersection(keys[-2:-1])):
        yield keys, f"expected {type(taken).__name__}, found {said!r:.60}."


def _problems(pod: dict[str, Any], namespace: str) -> Iterator[tuple[Keys, str]]:
    """What a stage forbids in a pod that Kubernetes would take, each with the keys that lead to it."""
    # 1. A pod with one container `stage`.
    if pod.get("kind") != "Pod" or pod.get("apiVersion") != "v1":
        yield (), "expected `kind: Pod` and `apiVersion: v1`."
    if (said := part_of(pod, "metadata").get("namespace", namespace)) != namespace:
        message = f"is {said!r}, and {ENV_PREFIX}KUBERNETES_NAMESPACE is {namespace!r}. Take it out here."
        yield ("metadata", "namespace"), message
    spec = part_of(pod, "spec")
    names = [container["name"] for container in part_of(spec, "containers")]
    if names.count(CONTAINER) != 1:
        yield (
            ("spec", "containers"),
            f"expected one container with `name: {CONTAINER}`, found {', '.join(names) or 'none'}. "
            "It is the one that the stage runs in; others may stand beside it.",
        )
        return
    at: Keys = ("spec", "containers", names.index(CONTAINER))
    stage = spec["containers"][at[2]]

    # 2. Fields that a template must not set.
    for holder, place, field, instead in (
        (stage, at, "image", f"the stages' image is the setting {ENV_PREFIX}KUBERNETES_IMAGE"),
        (stage, at, "command", "the stage is the command"),
        (stage, at, "args", "the stage's arguments come from the DAG"),
        (stage, at, "workingDir", "the image says where a stage starts"),
        (spec, ("spec",), "activeDeadlineSeconds", "it follows from the stage's time limit"),
        (spec, ("spec",), "restartPolicy", "it is Never, since Airflow starts a failed stage again"),
    ):
        if holder.get(field) is not None:
            yield (*place, field), f"is not for a template to say: {instead}. Take it out."
    if spec.get("automountServiceAccountToken"):
        yield (
            ("spec", "automountServiceAccountToken"),
            "expected false: a stage needs nothing of the Kubernetes API.",
        )
    if part_of(stage, "securityContext").get("readOnlyRootFilesystem") is False:
        yield (
            (*at, "securityContext", "readOnlyRootFilesystem"),
            f"expected true: a stage writes to its volumes ({', '.join(WRITABLE.values())}).",
        )

    yield from _container_problems(stage, at)


def _container_problems(stage: Mapping[str, Any], at: Keys) -> Iterator[tuple[Keys, str]]:
    """What is wrong with resources, variables and mounts of the container `stage`."""
    # 1. Resources: without a limit of memory one stage can take a whole node down.
    if not part_of(stage, "resources", "limits", "memory"):
        yield (
            (*at, "resources", "limits", "memory"),
            "expected a limit of memory for the container `stage`, found none. Set "
            "`resources.limits.memory`, such as 8Gi.",
        )
    for group in ("limits", "requests"):
        for name, amount in part_of(stage, "resources", group).items():
            try:
                is_several = parse_quantity(amount) > 1
            except ValueError:
                yield (
                    (*at, "resources", group, name),
                    f"expected a quantity such as 500m, 4 or 32Gi, found {amount!r}.",
                )
                continue
            if name.startswith("nvidia.com/mig-") and is_several:
                yield (
                    (*at, "resources", group, name),
                    f"expected 1, found {amount}: a process sees one MIG slice alone. Ask for a larger "
                    "slice, or whole GPUs.",
                )

    # 2. Variables that would hold a secret, or that decide what the deployment decides.
    for index, name in enumerate(variable["name"] for variable in part_of(stage, "env")):
        if name in SECRETS:
            yield (
                (*at, "env", index),
                f"{name} comes from the Secret {SECRET}. Take it out.",
            )
        elif name.startswith(ENV_PREFIX) and name not in FOR_TEMPLATES:
            yield (
                (*at, "env", index),
                f"{name} is the deployment's to say: set it for Airflow, and the pods get it. A template "
                f"may set {', '.join(FOR_TEMPLATES)}, and variables that are not the project's.",
            )

    # 3. Volumes that stages write to, mounted elsewhere than where they write.
    for index, mount in enumerate(part_of(stage, "volumeMounts")):
        expected = WRITABLE.get(mount["name"], mount["mountPath"])
        if mount["mountPath"] != expected:
            yield (
                (*at, "volumeMounts", index, "mountPath"),
                f"expected {expected} for the volume {mount['name']!r}, found {mount['mountPath']!r}. "
                "Mount it there, or give the volume another name.",
            )
