"""Whether a cluster has what the stage pods need, asked before the first run: `toolformer-ops doctor --kubernetes`.

Looks with the rights that the tasks have, which are few: what they do not show is `unknown` here, and the pods that it starts, one
by each template, prove it all the same: image, Secret, volumes, nodes, and from inside Postgres, S3 and the GPU
(`runs/self_check.py`).
"""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, get_args

from kubernetes.client import AuthorizationV1Api, CoreV1Api, VersionApi
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException
from kubernetes.utils.quantity import parse_quantity

from toolformer_ops.airflow_tasks.defaults import POOLS
from toolformer_ops.airflow_tasks.endings import describe_pod_ending
from toolformer_ops.airflow_tasks.kubernetes.pods import cluster_access, cluster_client, delete_pod
from toolformer_ops.airflow_tasks.kubernetes.templates import (
    CONTAINER,
    MODEL_PARALLEL,
    TEMPLATES,
    gpus_of,
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
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.runs.self_check import Finding, State

RIGHTS = (
    *(("pods", "", verb) for verb in ("create", "get", "list", "patch", "delete")),
    ("pods", "log", "get"),
    ("events", "", "list"),
)
"""What tasks and triggerer ask of the API: resource, part of it, verb."""
RIGHTS_FILE = "deploy/kubernetes/base/rights.yaml"
POD_SECURITY = "pod-security.kubernetes.io/enforce"
DRIVER_LABEL = "nvidia.com/cuda.driver-version.full"
"""Of NVIDIA's GPU feature discovery."""
GPU_RESOURCES = re.compile(r".*/gpu|nvidia\.com/mig-.*")
LINE = re.compile(rf"({'|'.join(get_args(State))})\s+([^:]+): (.*)")
"""How `Finding` is written; a pod's log holds such lines."""


def findings_of_cluster(settings: Settings, *, pods: bool, wait_seconds: float) -> Iterator[Finding]:
    """A line for each thing that a run on the cluster needs.

    Args:
        settings: of the deployment, as Airflow has them.
        pods: whether to start a short pod by each template.
        wait_seconds: longest wait for such a pod.
    """
    # 1. What needs no cluster.
    manifests: dict[str, dict[str, Any]] = {}
    for template in TEMPLATES:
        try:
            manifests[template] = pod_manifest(settings, template)
        except ConfigurationError as error:
            yield Finding("missing", f"template {template}", str(error))
        else:
            stage = manifests[template]["spec"]["containers"][0]
            gpus = gpus_of(stage)
            [way] = [one.get("value", "") for one in stage["env"] if one["name"] == MODEL_PARALLEL] or ["off"]
            if template == "gpu" and (gpus > 1) != (way != "off"):
                path = settings.kubernetes_templates / f"{template}.yaml"
                yield Finding(
                    "missing",
                    f"template {template}",
                    f"{path}: expected several GPUs and {MODEL_PARALLEL} layers, or one GPU and off, found {gpus} and "
                    f"{way}. Change one of them.",
                )
                continue
            yield Finding(
                "ok",
                f"template {template}",
                f"{settings.kubernetes_templates / template}.yaml is valid; GPUs of a pod: {gpus}",
            )
    yield from _airflow(settings)
    # 2. The cluster as the API shows it.
    try:
        client = cluster_client(settings)
        version = VersionApi(client.api_client).get_code().git_version
    except (
        Exception
    ) as error:  # a kubeconfig that is not there, an address that does not answer, a token that is refused
        yield Finding(
            "missing",
            "cluster",
            f"cannot be reached: {_reason(error)}. Run this in the pod of Airflow's scheduler, or set "
            f"{ENV_PREFIX}KUBERNETES_CONFIG_FILE or {ENV_PREFIX}KUBERNETES_CONNECTION.",
        )
        return
    yield Finding("ok", "cluster", f"answers: Kubernetes {version}")
    yield _rights(client, settings.kubernetes_namespace)
    yield _seen("namespace", lambda: _namespace(client, settings.kubernetes_namespace))
    yield _seen("Secret", lambda: _secret(client, settings))
    volumes = [volume for manifest in manifests.values() for volume in manifest["spec"]["volumes"]]
    for claim in sorted(
        {volume["persistentVolumeClaim"]["claimName"] for volume in volumes if volume.get("persistentVolumeClaim")}
    ):
        yield _seen(f"claim {claim}", lambda: _claim(client, settings.kubernetes_namespace, claim))  # noqa: B023 - called at once
    for template, manifest in manifests.items():
        yield _seen(f"nodes for {template}", lambda: _nodes(client, manifest))  # noqa: B023 - called at once
        yield _dry_run(client, settings.kubernetes_namespace, template, manifest)
    # 3. The cluster as a pod finds it.
    if pods:
        with ThreadPoolExecutor(len(TEMPLATES)) as threads:  # at once: each may wait for a node
            for found in threads.map(
                lambda named: list(_pod(client, settings, *named, wait_seconds=wait_seconds)), manifests.items()
            ):
                yield from found


def _seen(subject: str, look: Callable[[], tuple[State, str]]) -> Finding:
    """What a look at an object shows; unknown where the rights do not show it."""
    try:
        state, detail = look()
    except ApiException as error:
        if error.status == 403:
            return Finding(
                "unknown", subject, "not shown with these rights; the pods below need it, and say if it is missing"
            )
        return Finding("missing", subject, _reason(error))
    return Finding(state, subject, detail)


def _dry_run(client: CoreV1Api, namespace: str, template: str, manifest: Mapping[str, Any]) -> Finding:
    """What the API server says of a pod by this template: its fields and values, the namespace's Pod Security, quotas."""
    subject = f"dry run of {template}"
    pod = {**manifest, "metadata": {**manifest["metadata"], "name": f"toolformer-doctor-{template}"}}
    try:
        client.create_namespaced_pod(namespace, pod, dry_run="All", field_validation="Strict")
    except ApiException as error:
        return Finding("missing", subject, f"Kubernetes refuses the pod: {_reason(error)}. Correct the pod template.")
    return Finding("ok", subject, "Kubernetes takes the pod")


def _rights(client: CoreV1Api, namespace: str) -> Finding:
    review = AuthorizationV1Api(client.api_client)
    lacking = []
    for resource, part, verb in RIGHTS:
        asked = k8s.V1ResourceAttributes(namespace=namespace, resource=resource, subresource=part or None, verb=verb)
        body = k8s.V1SelfSubjectAccessReview(spec=k8s.V1SelfSubjectAccessReviewSpec(resource_attributes=asked))
        if not review.create_self_subject_access_review(body).status.allowed:
            lacking.append(f"{verb} {resource}{'/' + part if part else ''}")
    if lacking:
        return Finding(
            "missing",
            "rights",
            f"in namespace {namespace}: {', '.join(lacking)}. `kubectl apply --filename {RIGHTS_FILE}` gives them to the service "
            "account airflow.",
        )
    return Finding("ok", "rights", f"all {len(RIGHTS)} that tasks and triggerer use")


def _namespace(client: CoreV1Api, name: str) -> tuple[State, str]:
    """A namespace that says another level does so for a reason, such as a template with a hostPath."""
    level = (client.read_namespace(name).metadata.labels or {}).get(POD_SECURITY)
    if level == "restricted":
        return "ok", f"{name}, with Pod Security `restricted`"
    return (
        "missing" if level is None else "ok",
        f"{name} has Pod Security {level or 'not set'}; all stage pods pass `restricted`: "
        f"kubectl label namespace {name} {POD_SECURITY}=restricted",
    )


def _secret(client: CoreV1Api, settings: Settings) -> tuple[State, str]:
    name, namespace = settings.kubernetes_secret, settings.kubernetes_namespace
    try:
        keys = set(client.read_namespaced_secret(name, namespace).data or {})
    except ApiException as error:
        if error.status != 404:
            raise
        return (
            "missing",
            f"{name} is not in namespace {namespace}. Make it from deploy/kubernetes/secrets/toolformer.env.",
        )
    needed = {f"{ENV_PREFIX}DATABASE_DSN"}
    optional = {f"{ENV_PREFIX}S3_ACCESS_KEY_ID", f"{ENV_PREFIX}S3_SECRET_ACCESS_KEY"}
    if lacking := needed - keys:
        return "missing", f"{name} lacks the key {', '.join(sorted(lacking))}."
    without = optional - keys
    more = f"; without {', '.join(sorted(without))}: pods get S3 by their identity" if without else ""
    return "ok", f"{name} has {', '.join(sorted((needed | optional) & keys))}{more}"


def _claim(client: CoreV1Api, namespace: str, name: str) -> tuple[State, str]:
    try:
        claim = client.read_namespaced_persistent_volume_claim(name, namespace)
    except ApiException as error:
        if error.status != 404:
            raise
        return (
            "missing",
            f"is not in namespace {namespace}. See deploy/kubernetes/shared-cache/cache.yaml, or take it out of the templates.",
        )
    if claim.status.phase == "Bound":
        return "ok", f"bound, {', '.join(claim.spec.access_modes or ['access mode not said'])}"
    storage_class = claim.spec.storage_class_name or "the cluster's default storage class"
    modes = ", ".join(claim.spec.access_modes or ["an access mode"])
    return (
        "unknown",
        f"is {claim.status.phase}: {storage_class} may wait for the first pod, or may not have {modes}. If it stays so, `kubectl "
        f"describe pvc {name}` says why, and `kubectl get storageclass` which others there are.",
    )


def _nodes(client: CoreV1Api, manifest: Mapping[str, Any]) -> tuple[State, str]:
    """Nodes that the template's node selector and tolerations allow, their disk and driver, and GPUs that no pod has asked for."""
    spec = manifest["spec"]
    selector = ",".join(f"{name}={value}" for name, value in (spec.get("nodeSelector") or {}).items())
    # 1. Labels, taints, disk: nodes that no pod by this template can have.
    labelled = client.list_node(label_selector=selector).items
    if not labelled:
        return (
            "missing",
            f"no node with {selector}. `kubectl get nodes --show-labels` says what there is: correct nodeSelector in the template. "
            "Where an autoscaler adds such nodes, the pod below gets one.",
        )
    described = f"{len(labelled)} nodes, {selector or 'no selector'}"
    untolerated = {node.metadata.name: _untolerated(node, spec.get("tolerations") or ()) for node in labelled}
    nodes = [node for node in labelled if not untolerated[node.metadata.name]]
    if not nodes:
        taints = ", ".join(sorted(set().union(*untolerated.values())))
        return "missing", f"{described}; all have taints ({taints}). Add them to tolerations in the template."
    resources = spec["containers"][0].get("resources") or {}
    asked = str((resources.get("requests") or {}).get("ephemeral-storage", 0))
    disks = [
        node.status.allocatable["ephemeral-storage"] for node in nodes if "ephemeral-storage" in node.status.allocatable
    ]
    if disks:
        largest_disk = max(disks, key=parse_quantity)
        described += f"; disk for pods {parse_quantity(largest_disk) / 2**30:.0f} GiB, a pod asks for {asked}"
        if parse_quantity(largest_disk) < parse_quantity(asked):
            return (
                "missing",
                f"{described}. Give the nodes a larger boot disk, or lower ephemeral-storage in the template.",
            )
    # 2. GPUs: whether a node has as many as a pod asks for, and what is free.
    wanted = _gpu_count(resources.get("limits") or {})
    if not wanted:
        return "ok", described
    drivers = sorted({version for node in nodes if (version := (node.metadata.labels or {}).get(DRIVER_LABEL))})
    free = {node.metadata.name: _gpu_count(node.status.allocatable) for node in nodes}
    for pod in client.list_pod_for_all_namespaces().items:
        if pod.spec.node_name in free and not has_ended(pod):
            free[pod.spec.node_name] -= sum(
                _gpu_count((one.resources and one.resources.limits) or {}) for one in pod.spec.containers
            )
    found = (
        f"{described}; GPUs free: {sum(free.values())}, on one node {max(free.values())}; a pod wants {wanted}"
        f"{'; driver ' if drivers else ''}{', '.join(drivers)}"
    )
    if max(_gpu_count(node.status.allocatable) for node in nodes) < wanted:
        return "missing", f"{found}. No node has so many: lower the number in the template."
    return "ok", found


def _untolerated(node: k8s.V1Node, tolerations: Sequence[Mapping[str, Any]]) -> set[str]:
    """The node's taints that keep a pod with these tolerations away, as `kubectl taint` writes them."""
    return {
        f"{taint.key}={taint.value or ''}:{taint.effect}"
        for taint in node.spec.taints or ()
        if taint.effect != "PreferNoSchedule"
        and not any(
            known.get("key") in (None, taint.key)
            and (known.get("operator") == "Exists" or (known.get("value") or "") == (taint.value or ""))
            and known.get("effect") in (None, taint.effect)
            for known in tolerations
        )
    }


def _gpu_count(amounts: Mapping[str, Any]) -> int:
    return int(sum(parse_quantity(number) for name, number in amounts.items() if GPU_RESOURCES.fullmatch(name)))


def _airflow(settings: Settings) -> Iterator[Finding]:
    """Airflow's pools, and its triggerer where tasks are deferred."""
    from airflow.jobs.job import most_recent_job
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with create_session() as session:
            pools = {pool.pool: (pool.slots, pool.include_deferred) for pool in Pool.get_pools(session=session)}
            triggerer = most_recent_job("TriggererJob", session=session)
            triggerer_lives = triggerer is not None and triggerer.is_alive()
    except SQLAlchemyError as error:
        yield Finding(
            "unknown",
            "Airflow",
            f"its database cannot be read from here: {_reason(error)}. Run this where Airflow runs.",
        )
        return
    remedy = "`airflow pools import toolformer_ops/airflow_tasks/pools.json` makes them"
    for name in POOLS:
        slots, include_deferred = pools.get(name, (0, False))
        if not slots:
            yield Finding("missing", f"pool {name}", f"Airflow has none, or one without slots. {remedy}.")
        elif settings.kubernetes_deferrable and not include_deferred:
            yield Finding(
                "missing", f"pool {name}", f"does not count deferred tasks, and so limits nothing. {remedy} so."
            )
        else:
            yield Finding("ok", f"pool {name}", f"{slots} slots: as many pods at once")
    if settings.kubernetes_deferrable:
        yield (
            Finding("ok", "triggerer", "is alive")
            if triggerer_lives
            else Finding(
                "missing", "triggerer", "none is alive, and it looks after the pods. Start `airflow triggerer`."
            )
        )


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
        poll_interval=settings.kubernetes_poll_seconds,
        schedule_timeout=SCHEDULE_SECONDS,
        startup_timeout=int(wait_seconds),
        startup_check_interval=settings.kubernetes_poll_seconds,
        patience_seconds=settings.kubernetes_patience_seconds,
        trigger_kwargs={"_execution_deadline": time.time() + wait_seconds},
        **{"kubernetes_conn_id": None, **cluster_access(settings)},
    )
    try:
        pod = client.create_namespaced_pod(namespace, manifest)
    except ApiException as error:
        yield Finding("missing", subject, f"Kubernetes refused it: {_reason(error)}.")
        return
    try:
        asyncio.run(event_of(trigger))
        pod = client.read_namespaced_pod(name, namespace)
        lines = _lines(client, pod) if has_ended(pod) else []
        if not lines:
            events = client.list_namespaced_event(namespace, field_selector=f"involvedObject.name={name}").items
            yield Finding("missing", subject, describe_pod_ending(pod, oldest_first(events)).message)
            return
        yield Finding("ok", subject, f"ran on node {pod.spec.node_name}")
        for found in lines:
            yield Finding(found.state, f"{subject}, {found.subject}", found.detail)
    except Exception as error:
        yield Finding("missing", subject, f"cannot be watched: {_reason(error)}.")
    finally:
        delete_pod(client, pod)


def _lines(client: CoreV1Api, pod: k8s.V1Pod) -> list[Finding]:
    """What the doctor in the pod has said."""
    log = client.read_namespaced_pod_log(
        pod.metadata.name, pod.metadata.namespace, container=CONTAINER, _preload_content=False
    )
    matches = (LINE.fullmatch(line.strip()) for line in log.data.decode("utf-8", errors="replace").splitlines())
    states: dict[str, State] = {state: state for state in get_args(State)}
    return [Finding(states[match[1]], match[2], match[3]) for match in matches if match]


def _reason(error: BaseException) -> str:
    if isinstance(error, ApiException):
        return said_by_kubernetes(error).rstrip(".")
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
