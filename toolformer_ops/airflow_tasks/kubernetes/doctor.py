"""Whether a cluster has what the stage pods need, asked before the first run: `toolformer-ops doctor --kubernetes`.

Looks with the rights that the tasks have, which are few: what they do not show is `unknown` here, and the
pods that it starts, one by each template, prove it all the same: image, Secret, volumes, nodes, and from
inside Postgres, S3 and the GPU (`runs/self_check.py`).
"""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast, get_args

from kubernetes.client import AuthorizationV1Api, CoreV1Api, VersionApi
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException
from kubernetes.utils.quantity import parse_quantity

from toolformer_ops.airflow_tasks.defaults import POOLS
from toolformer_ops.airflow_tasks.endings import CONTAINER, describe_pod_ending
from toolformer_ops.airflow_tasks.kubernetes import templates, watching
from toolformer_ops.airflow_tasks.kubernetes.pods import cluster_access, cluster_client, delete_pod
from toolformer_ops.airflow_tasks.kubernetes.templates import (
    MODEL_PARALLEL,
    TEMPLATES,
    gpu_count,
    gpus_of,
    part_of,
    pod_manifest,
)
from toolformer_ops.airflow_tasks.kubernetes.watching import (
    SCHEDULE_SECONDS,
    StagePodTrigger,
    event_of,
    has_ended,
    oldest_first,
    said_by_kubernetes,
)
from toolformer_ops.config import ENV_PREFIX, Settings
from toolformer_ops.errors import ConfigurationError, UnseenError
from toolformer_ops.runs.self_check import Finding, State, looked

RIGHTS = (
    *(("pods", "", verb) for verb in ("create", "get", "list", "patch", "delete")),
    ("pods", "log", "get"),
    ("events", "", "list"),
)
"""What tasks and triggerer ask of the API: resource, part of it, verb."""
RIGHTS_FILE = "deploy/kubernetes/base/rights.yaml"
POD_SECURITY = "pod-security.kubernetes.io/enforce"
DRIVER_LABEL = "nvidia.com/cuda.driver-version.full"
"""NVIDIA's GPU feature discovery gives nodes this label."""
LINE = re.compile(rf"({'|'.join(get_args(State))})\s+([^:]+): (.*)")
"""How `Finding` is written; a pod's log holds such lines."""


def findings_of_cluster(settings: Settings, *, pods: bool, wait_seconds: float) -> Iterator[Finding]:
    """A line for each thing that a run on the cluster needs.

    Args:
        settings: of the deployment, as Airflow has them.
        pods: whether to start a short pod by each template.
        wait_seconds: longest wait for such a pod.
    """
    # 1. The templates, and Airflow.
    manifests = {}
    for template in TEMPLATES:
        subject, path = f"template {template}", settings.kubernetes_templates / f"{template}.yaml"
        try:
            manifest = pod_manifest(settings, template)
        except ConfigurationError as error:
            yield Finding("missing", subject, str(error))
            continue
        manifests[template] = manifest
        stage = manifest["spec"]["containers"][0]
        gpus = gpus_of(stage)
        [way] = [
            variable.get("value", "") for variable in stage["env"] if variable["name"] == MODEL_PARALLEL
        ] or ["off"]
        if template == "gpu" and (gpus > 1) != (way != "off"):
            mistake = f"{path}: expected several GPUs and {MODEL_PARALLEL} layers, or one GPU and off, found {gpus} and {way}"
            yield Finding("missing", subject, f"{mistake}. Change one of them.")
        else:
            yield Finding("ok", subject, f"{path} is valid; GPUs of a pod: {gpus}")
    yield from _airflow(settings)
    # 2. The cluster as the API shows it.
    namespace = settings.kubernetes_namespace
    try:
        client = cluster_client(settings)
        version = VersionApi(client.api_client).get_code().git_version
    except Exception as error:  # no such kubeconfig, an address that does not answer, a token that is refused
        remedy = f"Run this in the pod of Airflow's scheduler, or set {ENV_PREFIX}KUBERNETES_CONFIG_FILE."
        yield Finding("missing", "cluster", f"cannot be reached: {_reason(error)}. {remedy}")
        return
    yield Finding("ok", "cluster", f"answers: Kubernetes {version}")
    yield _asked("rights", _rights, client, namespace)
    yield _asked("namespace", _namespace, client, namespace)
    yield _asked("Secret", _secret, client, namespace, templates.SECRET)
    for claim in sorted(_claims_of(manifests.values())):
        yield _asked(f"claim {claim}", _claim, client, namespace, claim)
    for template, manifest in manifests.items():
        yield _asked(f"nodes for {template}", _nodes, client, manifest)
        # Its fields and values, the namespace's Pod Security, quotas.
        pod = {**manifest, "metadata": {**manifest["metadata"], "name": f"toolformer-doctor-{template}"}}
        try:
            client.create_namespaced_pod(namespace, pod, dry_run="All", field_validation="Strict")
        except ApiException as error:
            refused = f"Kubernetes refuses the pod: {_reason(error)}. Correct the pod template."
            yield Finding("missing", f"dry run of {template}", refused)
        else:
            yield Finding("ok", f"dry run of {template}", "Kubernetes takes the pod")
    # 3. The cluster as a pod finds it.
    if pods:
        with ThreadPoolExecutor(len(TEMPLATES)) as threads:  # at once: each may wait for a node
            for lines in threads.map(
                lambda named: list(_pod(client, settings, *named, wait_seconds=wait_seconds)),
                manifests.items(),
            ):
                yield from lines


# The looks at the API: each returns what exists, and raises ConfigurationError for what is missing, with
# the remedy


def _claims_of(manifests: Iterable[Mapping[str, Any]]) -> set[str]:
    """The names of the persistent volume claims that pods ask for."""
    claims = set()
    for manifest in manifests:
        for volume in manifest["spec"]["volumes"]:
            if claim := volume.get("persistentVolumeClaim"):
                claims.add(str(claim["claimName"]))
    return claims


def _asked(subject: str, look: Callable[..., str], *arguments: Any) -> Finding:
    """What a look at the API shows; unknown if the rights do not show it."""
    try:
        return looked(subject, partial(look, *arguments))
    except ApiException as error:
        if error.status == 403:
            unseen = "not shown with these rights; the pods below need it, and say if it is missing"
            return Finding("unknown", subject, unseen)
        return Finding("missing", subject, _reason(error))


def _there(read: Callable[..., Any], name: str, namespace: str, missing: str) -> Any:
    """What the API shows under this name.

    Raises ConfigurationError with what is `missing` if that is nothing.
    """
    try:
        return read(name, namespace)
    except ApiException as error:
        if error.status != 404:
            raise
        raise ConfigurationError(missing) from None


def _rights(client: CoreV1Api, namespace: str) -> str:
    review = AuthorizationV1Api(client.api_client)
    lacking = []
    for resource, part, verb in RIGHTS:
        attributes = k8s.V1ResourceAttributes(
            namespace=namespace, resource=resource, subresource=part or None, verb=verb
        )
        body = k8s.V1SelfSubjectAccessReview(
            spec=k8s.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
        )
        if not review.create_self_subject_access_review(body).status.allowed:
            lacking.append(f"{verb} {resource}{'/' + part if part else ''}")
    if lacking:
        raise ConfigurationError(
            f"in namespace {namespace}: {', '.join(lacking)}. `kubectl apply --filename {RIGHTS_FILE}` gives "
            "them to the service account airflow."
        )
    return f"all {len(RIGHTS)} that tasks and triggerer use"


def _namespace(client: CoreV1Api, name: str) -> str:
    """A namespace that says another level does so for a reason, such as a template with a hostPath."""
    level = (client.read_namespace(name).metadata.labels or {}).get(POD_SECURITY)
    if level == "restricted":
        return f"{name}, with Pod Security `restricted`"
    advice = (
        f"{name} has Pod Security {level or 'not set'}; all stage pods pass `restricted`: "
        f"kubectl label namespace {name} {POD_SECURITY}=restricted"
    )
    if level is None:
        raise ConfigurationError(advice)
    return advice


def _secret(client: CoreV1Api, namespace: str, name: str) -> str:
    missing = (
        f"{name} is not in namespace {namespace}. Make it from deploy/kubernetes/secrets/toolformer.env."
    )
    keys = set(_there(client.read_namespaced_secret, name, namespace, missing).data or {})
    needed = {f"{ENV_PREFIX}DATABASE_DSN"}
    optional = {f"{ENV_PREFIX}S3_ACCESS_KEY_ID", f"{ENV_PREFIX}S3_SECRET_ACCESS_KEY"}
    if lacking := needed - keys:
        raise ConfigurationError(f"{name} lacks the key {', '.join(sorted(lacking))}.")
    without = optional - keys
    more = f"; without {', '.join(sorted(without))}: pods get S3 by their identity" if without else ""
    return f"{name} has {', '.join(sorted((needed | optional) & keys))}{more}"


def _claim(client: CoreV1Api, namespace: str, name: str) -> str:
    remedy = "See deploy/kubernetes/shared-cache/cache.yaml, or take it out of the templates."
    missing = f"is not in namespace {namespace}. {remedy}"
    claim = _there(client.read_namespaced_persistent_volume_claim, name, namespace, missing)
    if claim.status.phase == "Bound":
        return f"bound, {', '.join(claim.spec.access_modes or ['access mode not said'])}"
    storage_class = claim.spec.storage_class_name or "the cluster's default storage class"
    modes = ", ".join(claim.spec.access_modes or ["an access mode"])
    raise UnseenError(
        f"is {claim.status.phase}: {storage_class} may wait for the first pod, or may not have {modes}. If "
        f"it stays so, `kubectl describe pvc {name}` says why, and `kubectl get storageclass` which others "
        "there are."
    )


def _nodes(client: CoreV1Api, manifest: Mapping[str, Any]) -> str:
    """Nodes that the template's node selector and tolerations allow, their disk, and their GPUs if a pod wants some."""
    spec = manifest["spec"]
    stage = spec["containers"][0]
    selector = ",".join(f"{name}={value}" for name, value in part_of(spec, "nodeSelector").items())
    labelled = client.list_node(label_selector=selector).items
    if not labelled:
        raise ConfigurationError(
            f"no node with {selector}. `kubectl get nodes --show-labels` says what there is: correct "
            "nodeSelector in the template. If an autoscaler adds such nodes, the pod below gets one."
        )
    described = f"{len(labelled)} nodes, {selector or 'no selector'}"
    untolerated = {node.metadata.name: _untolerated(node, part_of(spec, "tolerations")) for node in labelled}
    nodes = [node for node in labelled if not untolerated[node.metadata.name]]
    if not nodes:
        taints = ", ".join(sorted(set().union(*untolerated.values())))
        raise ConfigurationError(
            f"{described}; all have taints ({taints}). Add them to tolerations in the template."
        )
    disk_request = str(part_of(stage, "resources", "requests").get("ephemeral-storage", 0))
    disks = [disk for node in nodes if (disk := node.status.allocatable.get("ephemeral-storage"))]
    if disks:
        largest_disk = max(map(parse_quantity, disks))
        described += f"; disk for pods {largest_disk / 2**30:.0f} GiB, a pod asks for {disk_request}"
        if largest_disk < parse_quantity(disk_request):
            raise ConfigurationError(
                f"{described}. Give the nodes a larger boot disk, or lower ephemeral-storage in the template."
            )
    return _with_gpus(client, described, nodes, wanted) if (wanted := gpus_of(stage)) else described


def _with_gpus(client: CoreV1Api, described: str, nodes: Sequence[k8s.V1Node], wanted: int) -> str:
    """The described nodes with their drivers, and the GPUs that no pod has asked for."""
    drivers = sorted(
        {version for node in nodes if (version := (node.metadata.labels or {}).get(DRIVER_LABEL))}
    )
    free = {node.metadata.name: gpu_count(node.status.allocatable) for node in nodes}
    largest = max(free.values())
    for pod in client.list_pod_for_all_namespaces().items:
        if pod.spec.node_name in free and not has_ended(pod):
            limits = [
                (container.resources and container.resources.limits) or {}
                for container in pod.spec.containers
            ]
            free[pod.spec.node_name] -= sum(map(gpu_count, limits))
    described += f"; GPUs free: {sum(free.values())}, on one node {max(free.values())}; a pod wants {wanted}"
    described += f"; driver {', '.join(drivers)}" if drivers else ""
    if largest < wanted:
        raise ConfigurationError(f"{described}. No node has so many: lower the number in the template.")
    return described


def _untolerated(node: k8s.V1Node, tolerations: Sequence[Mapping[str, Any]]) -> set[str]:
    """The node's taints that keep a pod with these tolerations away, as `kubectl taint` writes them."""
    repelling = set()
    for taint in node.spec.taints or ():
        is_tolerated = any(_tolerates(toleration, taint) for toleration in tolerations)
        if taint.effect != "PreferNoSchedule" and not is_tolerated:
            repelling.add(f"{taint.key}={taint.value or ''}:{taint.effect}")
    return repelling


def _tolerates(toleration: Mapping[str, Any], taint: "k8s.V1Taint") -> bool:
    has_value = toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (
        taint.value or ""
    )
    return (
        toleration.get("key") in (None, taint.key)
        and has_value
        and toleration.get("effect") in (None, taint.effect)
    )


def _airflow(settings: Settings) -> Iterator[Finding]:
    """Airflow's pools, and its triggerer."""
    from airflow.jobs.job import most_recent_job
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with create_session() as session:
            pools = {
                pool.pool: (pool.slots, pool.include_deferred) for pool in Pool.get_pools(session=session)
            }
            triggerer = most_recent_job("TriggererJob", session=session)
            triggerer_lives = triggerer is not None and triggerer.is_alive()
    except SQLAlchemyError as error:
        detail = f"its database cannot be read from here: {_reason(error)}. Run this where Airflow runs."
        yield Finding("unknown", "Airflow", detail)
        return

    remedy = "`airflow pools import toolformer_ops/airflow_tasks/pools.json` makes them"
    for name in POOLS:
        slots, include_deferred = pools.get(name, (0, False))
        if not slots:
            yield Finding("missing", f"pool {name}", f"Airflow has none, or one without slots. {remedy}.")
        elif not include_deferred:
            limits_nothing = "does not count deferred tasks, and so limits nothing"
            yield Finding("missing", f"pool {name}", f"{limits_nothing}. {remedy} so.")
        else:
            yield Finding("ok", f"pool {name}", f"{slots} slots: as many pods at once")
    alive = Finding("ok", "triggerer", "is alive")
    dead = Finding(
        "missing", "triggerer", "none is alive, and it looks after the pods. Start `airflow triggerer`."
    )
    yield alive if triggerer_lives else dead


def _pod(
    client: CoreV1Api, settings: Settings, template: str, manifest: dict[str, Any], *, wait_seconds: float
) -> Iterator[Finding]:
    """What a pod by this template finds; the pod is gone afterwards."""
    subject, namespace = f"pod by {template}", settings.kubernetes_namespace
    name = f"toolformer-doctor-{template}-{uuid.uuid4().hex[:6]}"
    manifest["metadata"]["name"] = name
    manifest["spec"]["activeDeadlineSeconds"] = int(wait_seconds)
    manifest["spec"]["containers"][0]["args"] = ["doctor"]
    trigger = StagePodTrigger(
        pod_name=name,
        pod_namespace=namespace,
        trigger_start_time=datetime.now(UTC),
        base_container_name=CONTAINER,
        get_logs=False,
        log_events_on_startup=False,
        poll_interval=watching.POLL_SECONDS,
        schedule_timeout=SCHEDULE_SECONDS,
        startup_timeout=int(wait_seconds),
        startup_check_interval=watching.POLL_SECONDS,
        patience_seconds=watching.PATIENCE_SECONDS,
        trigger_kwargs={"_execution_deadline": time.time() + wait_seconds},
        **cluster_access(settings),
    )
    try:
        pod = client.create_namespaced_pod(namespace, manifest)
    except ApiException as error:
        yield Finding("missing", subject, f"Kubernetes refused it: {_reason(error)}.")
        return
    try:
        asyncio.run(event_of(trigger))
        pod = client.read_namespaced_pod(name, namespace)
        said = ""
        if has_ended(pod):
            log = client.read_namespaced_pod_log(name, namespace, container=CONTAINER, _preload_content=False)
            said = log.data.decode("utf-8", errors="replace")
        lines = [match for line in said.splitlines() if (match := LINE.fullmatch(line.strip()))]
        if not lines:
            events = client.list_namespaced_event(
                namespace, field_selector=f"involvedObject.name={name}"
            ).items
            yield Finding("missing", subject, describe_pod_ending(pod, oldest_first(events)).message)
            return
        yield Finding("ok", subject, f"ran on node {pod.spec.node_name}")
        for match in lines:
            yield Finding(cast(State, match[1]), f"{subject}, {match[2]}", match[3])
    except Exception as error:
        yield Finding("missing", subject, f"cannot be watched: {_reason(error)}.")
    finally:
        delete_pod(client, pod)


def _reason(error: BaseException) -> str:
    if isinstance(error, ApiException):
        return said_by_kubernetes(error).rstrip(".")
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
