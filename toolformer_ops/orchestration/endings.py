"""How a stage ended, in one sentence with its remedy: from the status of its pod, or from the exit status of its process.

The sentence is the failed task's message. `infrastructure` says which count of retries the failure is taken from (`retrying.py`):
what befell the stage from outside (an eviction, a lost node, a killed process, a service that is away), or its own error.
Reads what Kubernetes says and asks it nothing; imports no Kubernetes client.
"""

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolformer_ops.errors import EXIT_INFRASTRUCTURE, EXIT_TERMINATED

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Event, V1ContainerState, V1ContainerStatus, V1Pod

CONTAINER = "stage"
MESSAGE_CHARACTERS = 500
"""Most characters of what Kubernetes or the stage says that are repeated."""

STARTS_AGAIN = "the next try starts after the last committed micro-batch"

_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "removed from its node, which was tainted (not ready, or drained)",
    "EvictionByEvictionAPI": "evicted (its node is drained, or an autoscaler removes it)",
    "DeletionByPodGC": "lost with its node",
    "TerminationByKubelet": "ended by its node",
}
"""Reasons of the condition DisruptionTarget."""
_REFUSED_BY_NODE = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "AdmissionError", "TopologyAffinityError")
_REGISTRY_AWAY = re.compile(
    r"timeout|timed out|connection refused|connection reset|no such host|TLS handshake|EOF|toomanyrequests|50[0234]|unavailable",
    re.IGNORECASE,
)
_NO_NODE_WITH_LABEL = re.compile(r"didn't match Pod's node affinity/selector|didn't match node selector")
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_NO_VOLUME = re.compile(
    r"unbound immediate PersistentVolumeClaims|didn't find available persistent volumes|volume node affinity conflict"
)
_TAINT = re.compile(r"untolerated taint(?:\(s\))? \{([^:}]+): ?([^}]*)\}")
_PASSING_TAINT = re.compile(
    r"node\.kubernetes\.io/|node\.cloudprovider\.kubernetes\.io/|karpenter\.sh/|.*not-?ready|ToBeDeleted|DeletionCandidate",
    re.IGNORECASE,
)
"""Of nodes that come, go or are unwell."""
_CONTROL_PLANE = "node-role.kubernetes.io/"
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]+)")


@dataclass(frozen=True)
class PodEnding:
    """How a stage's pod ended, or why it does not start."""

    exit_code: int | None
    """Exit status of the stage's container; None where it never ran, or nobody knows."""
    infrastructure: bool
    """Whether the pod fell to something outside of the stage, so that trying again later is worth while."""
    message: str
    """One sentence for the failed task: what happened, and what to do."""


def describe_exit(status: int, last_line: str = "") -> PodEnding:
    """The ending of a stage's process that ended with this status: its own, or 128 + N where signal N killed it.

    Args:
        status: exit status, 0 to 255.
        last_line: the last line that the stage wrote to its log; its error message where it has one.
    """
    said = " ".join(last_line.split())[:MESSAGE_CHARACTERS] or "no message"
    if status == EXIT_TERMINATED:
        return PodEnding(status, True, f"ended by SIGTERM; {STARTS_AGAIN}.")
    if status == EXIT_INFRASTRUCTURE:
        return PodEnding(status, True, f"something that the stage needs is not there now: {said}")
    if 128 < status < 128 + signal.NSIG:
        try:
            name = signal.Signals(status - 128).name
        except ValueError:
            name = f"signal {status - 128}"
        why = " (the machine may be out of memory)" if name == "SIGKILL" else ""
        return PodEnding(
            status,
            True,
            f"killed by {name}{why}; {STARTS_AGAIN}. A text that kills its stage again and again is set apart by itself. "
            f"The last line: {said}",
        )
    return PodEnding(status, False, f"exit status {status}: {said}")


def describe_pod_ending(pod: "V1Pod", events: Sequence["CoreV1Event"] = ()) -> PodEnding:  # noqa: PLR0911 - one a cause
    """How the pod of a stage ended, or why it did not start; its container is `stage`, else the first.

    Args:
        pod: the pod as the API shows it last; it may be deleted, or its node be lost.
        events: the pod's events, oldest first; they say why an image is not pulled, or a volume not mounted.
    """
    status = pod.status
    containers = _by_importance(pod)
    # 1. What befell the whole pod. Its containers then show a status of 137 or 143, or none.
    states = [container.state.terminated for container in containers if container.state]
    exit_code = states[-1].exit_code if states and states[-1] else None  # of the stage's container
    if status is not None and (found := _whole_pod(pod, exit_code)):
        return found
    # 2. A container that ended: an init container first, for the stage never ran then.
    for container in containers:
        ended = container.state.terminated if container.state else None
        if ended is None:
            continue
        if container.name != containers[-1].name and ended.exit_code == 0:
            continue  # an init container that did its work
        return _ended_container(pod, container, ended)
    # 3. A container that does not start.
    for container in containers:
        waiting = container.state.waiting if container.state else None
        if waiting is not None and (found := _waiting_container(pod, container, waiting, events)):
            return found
    # 4. A pod without a node.
    for condition in (status.conditions if status else None) or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return _not_scheduled(pod, condition.reason or "", condition.message or "")
    # 5. Nothing is said of the containers.
    if pod.metadata is not None and pod.metadata.deletion_timestamp is not None:
        return PodEnding(None, True, f"the pod was deleted before the stage ended; {STARTS_AGAIN}.")
    phase = (status.phase if status else None) or "Unknown"
    if phase == "Unknown":
        return PodEnding(
            None,
            True,
            f"the pod's node {_node(pod)} does not answer; {STARTS_AGAIN}, on another node. See `kubectl get nodes`.",
        )
    if phase == "Succeeded":
        return PodEnding(0, False, "the pod succeeded.")
    warnings = [event.message or "" for event in events if event.type == "Warning"]
    said = (status.message if status else None) or (warnings[-1] if warnings else "")
    name = (pod.metadata.name if pod.metadata else None) or "NAME"
    detail = _shortened(said) or "Kubernetes gives no reason"
    return PodEnding(None, False, f"the pod is {phase}: {detail}. See `kubectl describe pod {name}`.")


def describe_lost_pod(name: str) -> PodEnding:
    """The ending of a pod that the API does not show any more: somebody deleted it, or its node is gone."""
    return PodEnding(
        None,
        True,
        f"the pod {name} is gone: it was deleted, or its node was; {STARTS_AGAIN}.",
    )


def _whole_pod(pod: "V1Pod", exit_code: int | None) -> PodEnding | None:
    status = pod.status
    reason, said = status.reason or "", _shortened(status.message)
    if reason == "Evicted":
        remedy = (
            "Raise the pod template's memory or ephemeral-storage request, or let fewer pods share the node"
            if re.search(r"low on resource|exceed|usage", said)
            else "Nothing is to be done"
        )
        return PodEnding(
            exit_code, True, f"Evicted by node {_node(pod)}: {said or 'no reason given'}. {remedy}; {STARTS_AGAIN}."
        )
    if reason == "DeadlineExceeded":
        return PodEnding(
            exit_code,
            False,
            f"the pod ran longer than its deadline of {pod.spec.active_deadline_seconds} s and was ended; {STARTS_AGAIN}. "
            "Where that happens again, give the stage more shards or a longer time limit.",
        )
    if reason in ("NodeLost", "Shutdown", "Terminated", "Preempting"):
        return PodEnding(
            exit_code,
            True,
            f"lost with node {_node(pod)} ({reason}: {said or 'no message'}); {STARTS_AGAIN}, on another node.",
        )
    for condition in status.conditions or ():
        if condition.type == "DisruptionTarget" and condition.status == "True":
            what = _DISRUPTIONS.get(condition.reason or "", f"disrupted ({condition.reason})")
            return PodEnding(
                exit_code,
                True,
                f"the pod on node {_node(pod)} was {what}: {_shortened(condition.message) or 'no message'}; {STARTS_AGAIN}.",
            )
    if reason.startswith(_REFUSED_BY_NODE):
        return PodEnding(
            exit_code,
            True,
            f"node {_node(pod)} refused the pod ({reason}: {said or 'no message'}); the next try finds another.",
        )
    return None


def _ended_container(pod: "V1Pod", container: "V1ContainerStatus", ended: "V1ContainerState") -> PodEnding:
    code, reason = ended.exit_code, ended.reason or ""
    last_line = next((line for line in reversed((ended.message or "").splitlines()) if line.strip()), "")
    init = "" if container.name in (CONTAINER, _main_name(pod)) else f"init container {container.name}: "
    if reason == "OOMKilled":
        specified = [*(pod.spec.init_containers or ()), *pod.spec.containers] if pod.spec else []
        resources = [one.resources for one in specified if one.name == container.name]
        limits = (resources[0].limits if resources and resources[0] else None) or {}
        memory = limits.get("memory")
        limit = f"{memory} of memory" if memory else "the node's memory (the pod has no memory limit)"
        return PodEnding(
            code,
            True,
            f"{init}OOMKilled at its limit of {limit}; {STARTS_AGAIN}. A text that needs too much memory is set apart by itself; "
            "where the stage is killed while it loads its model, raise resources.limits.memory in the pod template.",
        )
    if reason in ("ContainerCannotRun", "StartError"):
        return PodEnding(
            code,
            False,
            f"{init}the container cannot start ({reason}): {_shortened(ended.message) or 'no message'}. Check command and runtime "
            "class of the pod template, and that the image holds Python and this project.",
        )
    if reason == "ContainerStatusUnknown":
        return PodEnding(
            None, True, f"{init}lost with node {_node(pod)}: nobody knows how the container ended; {STARTS_AGAIN}."
        )
    found = describe_exit(code, last_line)
    return PodEnding(code, found.infrastructure, init + found.message)


def _waiting_container(
    pod: "V1Pod", container: "V1ContainerStatus", waiting: "V1ContainerState", events: Sequence["CoreV1Event"]
) -> PodEnding | None:
    reason, said = waiting.reason or "", _shortened(waiting.message)
    if reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"):
        # After a while the status says "Back-off pulling image" only; the reason is in the events.
        why = said
        if not why or why.startswith("Back-off"):
            failed = [event.message or "" for event in events if event.reason in ("Failed", "InspectFailed")]
            why = (
                _shortened(next((text for text in reversed(failed) if "Failed to pull" in text), ""))
                or why
                or "no message"
            )
        asked = [one.image for one in (pod.spec.containers if pod.spec else ()) if one.name == container.name]
        image = container.image or (asked[0] if asked else "of the pod")
        return PodEnding(
            None,
            bool(_REGISTRY_AWAY.search(why)),
            f"the image {image} cannot be pulled ({reason}: {why}). Check "
            "TOOLFORMER_KUBERNETES_IMAGE, the pull secret in the pod template, and that the nodes reach the registry.",
        )
    if reason == "CreateContainerConfigError":
        return PodEnding(
            None,
            False,
            f"the container cannot be made: {said or 'no message'}. Make that Secret or ConfigMap in namespace "
            f"{_namespace(pod)} with every key that the pod names, or correct TOOLFORMER_KUBERNETES_SECRET.",
        )
    if reason in ("CreateContainerError", "RunContainerError"):
        return PodEnding(
            None,
            False,
            f"the container cannot be started ({reason}): {said or 'no message'}. Check command, mounts and runtime class of the "
            "pod template.",
        )
    mount = next(
        (event.message for event in reversed(events) if event.reason in ("FailedMount", "FailedAttachVolume")), None
    )
    if mount:
        return PodEnding(
            None,
            True,
            f"a volume cannot be mounted: {_shortened(mount)}. Check the volumes of the pod template: the claim must exist in "
            f"namespace {_namespace(pod)}, and a ReadWriteOnce one serves one node.",
        )
    return None


def _not_scheduled(pod: "V1Pod", reason: str, said: str) -> PodEnding:
    said = _shortened(said)
    if reason == "SchedulingGated":
        return PodEnding(
            None,
            True,
            f"the pod waits for a queue (scheduling gate): {said or 'no message'}. See the queue's quota and its order.",
        )
    if claim := _NO_CLAIM.search(said):
        return PodEnding(
            None,
            False,
            f"no node takes the pod: {said}. Make the claim {claim[1]} in namespace {_namespace(pod)}, or correct the volumes of "
            "the pod template.",
        )
    scarce = sorted(set(_INSUFFICIENT.findall(said)))
    if _NO_VOLUME.search(said) and not scarce:
        claims = [one.persistent_volume_claim for one in (pod.spec.volumes if pod.spec else None) or ()]
        named = ", ".join(claim.claim_name for claim in claims if claim is not None)
        return PodEnding(
            None,
            False,
            f"no node takes the pod: {said}. No volume that the nodes reach is bound to its claim {named}; `kubectl describe pvc "
            f"{named}` says why. Name a storage class with the claim's access mode in it (`kubectl get storageclass`), or take the "
            "volume out of the pod template.",
        )
    taints = dict(_TAINT.findall(said))
    nodes_change = any(_PASSING_TAINT.match(key) for key in taints)
    tolerations = ", ".join(
        f"{{key: {key}, operator: Equal, value: {json.dumps(value)}}}" if value else f"{{key: {key}, operator: Exists}}"
        for key, value in taints.items()
        if not key.startswith(_CONTROL_PLANE)
    )
    if tolerations and not scarce and not nodes_change:
        return PodEnding(
            None,
            False,
            f"no node takes the pod: {said}. A taint keeps it away, and not a lack of room: if stages are to run there, add to "
            f"tolerations in the pod template: {tolerations}.",
        )
    selector = ", ".join(
        f"{key}={value}" for key, value in ((pod.spec.node_selector if pod.spec else None) or {}).items()
    )
    if _NO_NODE_WITH_LABEL.search(said) and not scarce and not nodes_change:
        return PodEnding(
            None,
            False,
            f"no node takes the pod: {said}. Its node selector is {selector or 'in its affinity'}: correct it in the pod template "
            "(`kubectl get nodes --show-labels` says what there is), or add such a node.",
        )
    remedy = "Free some, add a node, or lower resources in the pod template"
    if any("gpu" in name for name in scarce):
        remedy = (
            "Wait until a GPU is free, add a GPU node, or make the pool `gpu` in Airflow as small as the number of GPUs"
        )
    if nodes_change:
        remedy = "Nodes come, go or are not ready (`kubectl get nodes`)"
    return PodEnding(None, True, f"no node takes the pod: {said or reason or 'no message'}. {remedy}.")


def _by_importance(pod: "V1Pod") -> list["V1ContainerStatus"]:
    """Statuses of the init containers, and then of the stage's container."""
    if pod.status is None:
        return []
    main = [status for status in pod.status.container_statuses or () if status.name == _main_name(pod)]
    return [*(pod.status.init_container_statuses or ()), *main]


def _main_name(pod: "V1Pod") -> str:
    names = [container.name for container in (pod.spec.containers if pod.spec else ())]
    return CONTAINER if CONTAINER in names or not names else str(names[0])


def _node(pod: "V1Pod") -> str:
    return (pod.spec.node_name if pod.spec else None) or "of the pod"


def _namespace(pod: "V1Pod") -> str:
    return (pod.metadata.namespace if pod.metadata else None) or "of the pods"


def _shortened(text: str | None) -> str:
    """One line without a full stop at its end."""
    return " ".join((text or "").split())[:MESSAGE_CHARACTERS].rstrip(".")
