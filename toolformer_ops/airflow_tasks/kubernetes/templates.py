"""Pod templates: what a deployment says about its pods, as plain Kubernetes manifests, merged with what a stage needs.

The folder of the setting `kubernetes_templates` holds one template for each kind of stage: `gpu.yaml` for stages with a model,
`cpu.yaml` for the others, `finetune.yaml` for finetuning. What a template says holds: resources and GPUs, volumes, service
account, pull secrets, node selector, tolerations, priority, labels (a queue of Kueue), runtime class, further containers, further
variables. What a stage needs to be safe is added where a template leaves it out, and a template that says otherwise is refused.

Does not use the merging of KubernetesPodOperator (`PodGenerator.reconcile_pods`, cncf-kubernetes 10.25.0): it pairs containers by
position and not by name, appends volumes and variables that are there already, replaces a security context as a whole, lets a
template's `true` win over `False`, and drops unknown fields without a word.
"""

import copy
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import models as k8s
from kubernetes.utils.quantity import parse_quantity
from pydantic import SecretStr

from toolformer_ops.config import ENV_PREFIX, Settings
from toolformer_ops.errors import ConfigurationError

TEMPLATES = ("cpu", "gpu", "finetune")
"""Names of the templates, each a file with `.yaml`."""
CONTAINER = "stage"
STATE_PATH = "/var/lib/toolformer"
CACHE_PATH = "/var/cache/toolformer"
WRITABLE = {"temporary": "/tmp", "state": STATE_PATH, "cache": CACHE_PATH}  # noqa: S108  (volumes of the pod alone)
"""Where a stage may write, by volume; an emptyDir where the template has no volume of that name."""
USER_ID = 10001
"""Not root, and no user of the node; the user of the image."""
LABELS = {"app.kubernetes.io/part-of": "toolformer"}
"""By which all stage pods of a namespace are found."""
NOT_FOR_PODS = (
    "airflow_",
    "audit_schedule",
    "cache_dir",
    "default_",
    "device",
    "image",
    "kubernetes_",
    "reader_dsn",
    "reviewer_dsn",
    "schedules_dir",
    "state_dir",
)
"""Beginnings of the names of settings that a pod does not get, or gets another value for."""
SETTINGS_OF_TEMPLATES = (
    "cache_gib",
    "corpus_roots",
    "device",
    "hub_offline",
    "micro_batch_documents",
    "micro_batch_tokens",
    "model_parallel",
    "search_threads",
    "threads",
)
"""Settings that a template may give a value: those that decide neither rows nor where they are written."""

MODEL_PARALLEL = f"{ENV_PREFIX}MODEL_PARALLEL"

POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",  # or a large cache is walked through at the start of every pod
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
}
QUANTITIES = frozenset({"limits", "requests", "overhead"})
"""Fields whose values are Kubernetes quantities, which may be written as numbers."""
SCALARS = {
    "str": ("str",),
    "int": ("int",),
    "bool": ("bool",),
    "float": ("float", "int"),
    "datetime": ("timestamp", "str"),
}
"""By type of a field in the Kubernetes client, the YAML types that Kubernetes takes for it."""

Keys = tuple[str | int, ...]
"""The way to a value in a manifest."""


def pod_manifest(settings: Settings, template: str) -> dict[str, Any]:
    """The pod of a stage, without its name, its arguments and its deadline.

    Args:
        settings: of the deployment.
        template: one of `TEMPLATES`.

    Returns:
        A manifest whose first container is `stage`. Secret settings are references to the deployment's Secret.

    Raises:
        ConfigurationError: no image is set, or one that may change; the template is missing or wrong, with file and line.
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
    path = settings.kubernetes_templates / f"{template}.yaml"
    if not path.is_file():
        raise ConfigurationError(
            f"expected the pod template {path}, found no such file. {ENV_PREFIX}KUBERNETES_TEMPLATES is a folder with "
            f"{', '.join(f'{name}.yaml' for name in TEMPLATES)}; deploy/pod-templates/ has two such folders to start from."
        )
    pod = copy.deepcopy(_read_template(path, path.read_text(encoding="utf-8"), settings.kubernetes_namespace))
    spec = pod["spec"]

    # 1. The stage comes first: KubernetesPodOperator adds arguments to the first container.
    spec["containers"].sort(key=lambda container: container["name"] != CONTAINER)
    stage = spec["containers"][0]
    gpus = gpus_of(stage)
    stage["image"] = image
    stage.setdefault("imagePullPolicy", "IfNotPresent")
    stage["command"] = ["python", "-m", "toolformer_ops"]
    stage.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")

    # 2. Variables: the settings, then the template's.
    variables = {variable["name"]: variable for variable in _environment(settings, gpu=gpus > 0)}
    if template == "gpu" and gpus > 1:
        variables[MODEL_PARALLEL] = {"name": MODEL_PARALLEL, "value": "layers"}
    variables.update({variable["name"]: variable for variable in stage.get("env") or ()})
    stage["env"] = list(variables.values())

    # 3. Where a stage writes.
    volumes, mounts = spec.get("volumes") or [], stage.get("volumeMounts") or []
    named = {volume["name"] for volume in volumes}
    mounted = {mount["mountPath"] for mount in mounts}
    spec["volumes"] = [*volumes, *({"name": name, "emptyDir": {}} for name in WRITABLE if name not in named)]
    stage["volumeMounts"] = [
        *mounts,
        *({"name": name, "mountPath": path} for name, path in WRITABLE.items() if path not in mounted),
    ]

    # 4. Safety, wherever the template left it out.
    spec["restartPolicy"] = "Never"
    spec["automountServiceAccountToken"] = False
    chosen = spec.get("securityContext") or {}
    if "runAsUser" in chosen and chosen["runAsUser"] is None:  # no runtime starts a pod that has a group and no user
        chosen = {"runAsGroup": None, **chosen}
    spec["securityContext"] = _filled(chosen, POD_SECURITY)
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        container["securityContext"] = _filled(container.get("securityContext"), CONTAINER_SECURITY)

    metadata = pod.get("metadata") or {}
    pod["metadata"] = {
        "namespace": settings.kubernetes_namespace,
        "labels": {**(metadata.get("labels") or {}), **LABELS, "toolformer/template": template},
        "annotations": metadata.get("annotations") or {},
    }
    return pod


def gpus_of(container: Mapping[str, Any]) -> int:
    """How many GPUs (whole ones, or parts as of MIG) of any vendor the container asks for."""
    resources = container.get("resources") or {}
    asked_for = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return sum(
        int(parse_quantity(number))
        for name, number in asked_for.items()
        if name.endswith("/gpu") or name.startswith("nvidia.com/mig-")
    )


def _environment(settings: Settings, *, gpu: bool) -> list[dict[str, Any]]:
    """The settings for the pod: plain ones by value, secret ones by reference to the deployment's Secret."""
    variables: list[dict[str, Any]] = [
        {"name": "HOME", "value": STATE_PATH},
        {"name": "HF_HOME", "value": f"{STATE_PATH}/huggingface"},
        {"name": f"{ENV_PREFIX}STATE_DIR", "value": STATE_PATH},
        {"name": f"{ENV_PREFIX}CACHE_DIR", "value": CACHE_PATH},
        {"name": f"{ENV_PREFIX}DEVICE", "value": "cuda" if gpu else "cpu"},
        {"name": f"{ENV_PREFIX}IMAGE", "value": settings.kubernetes_image},
        # Said always: its default follows the device, and the recipes hold the one that the run was started with.
        {"name": f"{ENV_PREFIX}DTYPE", "value": settings.dtype},
    ]
    for name, field in Settings.model_fields.items():
        variable = f"{ENV_PREFIX}{name.upper()}"
        if name.startswith(NOT_FOR_PODS) or name == "dtype":
            continue
        value = getattr(settings, name)
        if name in _secret_settings():
            optional = not isinstance(field.default, SecretStr)  # without S3 keys boto3 looks for the pod's identity
            reference = {"name": settings.kubernetes_secret, "key": variable, "optional": optional}
            variables.append({"name": variable, "valueFrom": {"secretKeyRef": reference}})
        elif value is not None and value != field.get_default(call_default_factory=True):
            variables.append({"name": variable, "value": str(value)})
    return variables


def _secret_settings() -> frozenset[str]:
    return frozenset(name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation))


def _filled(said: Mapping[str, Any] | None, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What the template says, and the defaults where it says nothing; `null` for a user or group leaves it to the cluster."""
    filled = {**copy.deepcopy(dict(defaults)), **(said or {})}
    return {name: value for name, value in filled.items() if value is not None}


# Reading and checking a template


class _Template:
    """A template's text as values and as YAML nodes, which know their lines."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f", line {mark.line + 1}" if mark else ""
            raise ConfigurationError(
                f"{path}{line}: expected one YAML document, found: {error.problem or error.context}. Mend the template there."
            ) from error
        except yaml.YAMLError as error:
            raise ConfigurationError(f"{path}: expected a YAML document, found: {error}. Mend the template.") from error
        if not isinstance(root, yaml.MappingNode):
            raise ConfigurationError(f"{path}: expected the manifest of a Pod, found none. Begin with `kind: Pod`.")
        self.root = root
        self._check_fields(root, "V1Pod", ())
        self.values: dict[str, Any] = yaml.safe_load(text)

    def refuse(self, keys: Keys, message: str) -> ConfigurationError:
        """The error about the value at `keys`, or the last of its parents that is there, with file, line and field."""
        node: yaml.Node = self.root
        for key in keys:
            if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
                node = node.value[key]
                continue
            children = node.value if isinstance(node, yaml.MappingNode) else ()
            found = next((value for name, value in children if name.value == key), None)
            if found is None:
                break
            node = found
        return self._error(node, keys, message)

    def _error(self, node: yaml.Node, keys: Keys, message: str) -> ConfigurationError:
        field = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
        return ConfigurationError(f"{self.path}, line {node.start_mark.line + 1}: {field or 'the manifest'}: {message}")

    def _check_fields(self, node: yaml.Node, kind: str, keys: Keys) -> None:
        """Refuse fields that Kubernetes does not know, and values of another type; `kind` as the Kubernetes client names types."""
        if kind == "object" or node.tag == "tag:yaml.org,2002:null":
            return
        of = re.fullmatch(r"(list|dict)[\[(](?:str, )?(\w+)[\])]", kind)
        if of and of[1] == "list":
            if not isinstance(node, yaml.SequenceNode):
                raise self._error(node, keys, "expected a list. Begin each of its members with `- `.")
            for index, member in enumerate(node.value):
                self._check_fields(member, of[2], (*keys, index))
        elif of or kind not in SCALARS:
            if not isinstance(node, yaml.MappingNode):
                raise self._error(node, keys, f"expected fields, found {node.value!r:.60}.")
            self._check_mapping(node, None if of else kind, of[2] if of else "", keys)
        else:
            found = node.tag.rpartition(":")[2]
            taken = (*SCALARS[kind], "int", "float") if keys[-2:-1] and keys[-2] in QUANTITIES else SCALARS[kind]
            if not isinstance(node, yaml.ScalarNode) or found not in taken:
                remedy = (
                    f" Write it in quotes: {node.value!r}."
                    if kind == "str" and found in ("int", "bool", "float")
                    else ""
                )
                raise self._error(node, keys, f"expected {taken[0]}, found {found} {node.value!r:.60}.{remedy}")

    def _check_mapping(self, node: yaml.MappingNode, model: str | None, kind: str, keys: Keys) -> None:
        """Check the members of a mapping: the fields of the client's `model`, or any names with values of one `kind`."""
        types: dict[str, str] = {}
        if model:
            described = getattr(k8s, model)
            types = {name: described.openapi_types[field] for field, name in described.attribute_map.items()}
        seen = set()
        for key, value in node.value:
            name = key.value
            if name in seen:
                raise self._error(key, (*keys, name), "is there twice. Keep one of them.")
            seen.add(name)
            if model and name not in types:
                near = get_close_matches(name, types, n=1)
                remedy = f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(sorted(types))}."
                raise self._error(key, (*keys, name), f"is no field that Kubernetes knows here. {remedy}")
            self._check_fields(value, types.get(name, kind), (*keys, name))
        if model:
            given = {field for field, name in described.attribute_map.items() if name in seen}
            try:
                described(
                    **dict.fromkeys(given, True)
                )  # a model refuses to be made without the fields that must be there
            except ValueError as error:
                missing = described.attribute_map[re.findall(r"`(\w+)`", str(error))[0]]
                raise self._error(node, keys, f"expected the field {missing!r}, found none. Add it.") from error


@functools.lru_cache(maxsize=16)
def _read_template(path: Path, text: str, namespace: str) -> dict[str, Any]:
    """The template as values, checked; a DAG asks for it once for each of its tasks."""
    template = _Template(path, text)
    pod = template.values
    for keys, message in _problems(pod, namespace):
        raise template.refuse(keys, message)
    return pod


def _problems(pod: dict[str, Any], namespace: str) -> Iterator[tuple[Keys, str]]:
    """What is wrong with a template whose fields are all known, each with its place."""
    # 1. A pod with one container `stage`.
    if pod.get("kind") != "Pod" or pod.get("apiVersion") != "v1":
        yield (), "expected `kind: Pod` and `apiVersion: v1`."
    said = (pod.get("metadata") or {}).get("namespace", namespace)
    if said != namespace:
        yield (
            ("metadata", "namespace"),
            f"is {said!r}, and {ENV_PREFIX}KUBERNETES_NAMESPACE is {namespace!r}. Take it out here.",
        )
    spec = pod.get("spec") or {}
    containers = spec.get("containers") or []
    names = [container.get("name") for container in containers]
    if names.count(CONTAINER) != 1:
        yield (
            ("spec", "containers"),
            f"expected one container with `name: {CONTAINER}`, found {', '.join(map(str, names)) or 'none'}. "
            "It is the one that the stage runs in; others may stand beside it.",
        )
        return
    index = names.index(CONTAINER)
    stage, at = containers[index], ("spec", "containers", index)

    # 2. Resources: without a limit of memory one stage can take a whole node down.
    yield from _resource_problems(stage.get("resources") or {}, (*at, "resources"))

    # 3. What is not a template's to say.
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
    yield from _variable_problems(stage.get("env") or [], (*at, "env"))
    yield from _mount_problems(stage.get("volumeMounts") or [], (*at, "volumeMounts"))

    # 4. What would make a stage unsafe.
    for field in ("hostNetwork", "hostPID", "hostIPC", "automountServiceAccountToken"):
        if spec.get(field):
            yield (
                ("spec", field),
                "expected false: a stage needs nothing of its node, and nothing of the Kubernetes API.",
            )
    if (stage.get("securityContext") or {}).get("readOnlyRootFilesystem") is False:
        yield (
            (*at, "securityContext", "readOnlyRootFilesystem"),
            f"expected true: a stage writes to its volumes ({', '.join(WRITABLE.values())}).",
        )
    yield from _security_problems(spec, ("spec",))
    for group in ("containers", "initContainers"):
        for number, container in enumerate(spec.get(group) or []):
            yield from _security_problems(container, ("spec", group, number))


def _resource_problems(resources: Mapping[str, Any], keys: Keys) -> Iterator[tuple[Keys, str]]:
    """A limit of memory that is missing, amounts that are no Kubernetes quantities, and MIG slices that a stage could not use."""
    if not (resources.get("limits") or {}).get("memory"):
        yield (
            (*keys, "limits", "memory"),
            "expected a limit of memory for the container `stage`, found none. Set `resources.limits.memory`, such as 8Gi.",
        )
    for group in ("limits", "requests"):
        for name, amount in (resources.get(group) or {}).items():
            try:
                number = parse_quantity(amount)
            except ValueError:
                yield (*keys, group, name), f"expected a quantity such as 500m, 4 or 32Gi, found {amount!r}."
            else:
                if name.startswith("nvidia.com/mig-") and number > 1:
                    yield (
                        (*keys, group, name),
                        f"expected 1, found {amount}: a process sees one MIG slice alone. Ask for a larger slice, or whole GPUs.",
                    )


def _security_problems(holder: Mapping[str, Any], holder_keys: Keys) -> Iterator[tuple[Keys, str]]:
    """What the security context of a pod's specification, or of a container, must not say."""
    context, keys = holder.get("securityContext") or {}, (*holder_keys, "securityContext")
    for field in ("privileged", "allowPrivilegeEscalation"):
        if context.get(field):
            yield (*keys, field), "expected false: no container of a stage needs rights on its node."
    if "runAsNonRoot" in context and not context["runAsNonRoot"]:
        yield (*keys, "runAsNonRoot"), "expected true: a stage does not run as root."
    if context.get("runAsUser") == 0:
        yield (*keys, "runAsUser"), f"expected a user that is not root, such as {USER_ID}, which is the image's."
    if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
        yield (*keys, "seccompProfile", "type"), "expected RuntimeDefault or Localhost."
    capabilities = context.get("capabilities") or {}
    if capabilities and (capabilities.get("add") or "ALL" not in (capabilities.get("drop") or ())):
        yield (*keys, "capabilities"), "expected `drop: [ALL]` and nothing added. Take it out."


def _variable_problems(variables: Sequence[Mapping[str, Any]], keys: Keys) -> Iterator[tuple[Keys, str]]:
    """Variables of a template that would hold a secret, or that decide what the deployment decides."""
    secret = {f"{ENV_PREFIX}{name.upper()}" for name in _secret_settings()}
    allowed = [f"{ENV_PREFIX}{name.upper()}" for name in SETTINGS_OF_TEMPLATES]
    for index, variable in enumerate(variables):
        name = str(variable.get("name"))
        if name in secret:
            yield (*keys, index), f"{name} comes from the Secret of {ENV_PREFIX}KUBERNETES_SECRET. Take it out."
        elif name.startswith(ENV_PREFIX) and name not in allowed:
            yield (
                (*keys, index),
                f"{name} is the deployment's to say: set it for Airflow, and the pods get it. A template may set "
                f"{', '.join(allowed)}, and variables that are not the project's.",
            )


def _mount_problems(mounts: Sequence[Mapping[str, Any]], keys: Keys) -> Iterator[tuple[Keys, str]]:
    """Mounts of the volumes that stages write to, elsewhere than where they write."""
    for index, mount in enumerate(mounts):
        expected = WRITABLE.get(str(mount.get("name")), mount.get("mountPath"))
        if mount.get("mountPath") != expected:
            yield (
                (*keys, index, "mountPath"),
                f"expected {expected} for the volume {mount.get('name')!r}, found {mount.get('mountPath')!r}. "
                "Mount it there, or give the volume another name.",
            )
