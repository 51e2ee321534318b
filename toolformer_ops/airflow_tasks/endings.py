"""How a stage ended, in one sentence with its remedy.

Read from status and events of its pod, or from the exit status of its process.

The sentence is the failed task's message. `ENDINGS` is the table of all: where it is said, a pattern, whose
fault it is, the sentence. `retrying.RETRIES` says how often each fault is tried again. Reads what Kubernetes
says and asks it nothing; imports no Kubernetes client.
"""

import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from toolformer_ops.errors import EXIT_INFRASTRUCTURE, EXIT_NO_RESULT, EXIT_TERMINATED, EXIT_USAGE

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Event, V1Pod

CONTAINER = "stage"
MESSAGE_CHARACTERS = 500
"""Most characters of what Kubernetes or the stage says that are repeated."""
LOST_SECONDS = 60
"""A deleted pod that still exists so long after its grace period is on a node that does not answer."""
STARTS_AGAIN = "the next try starts after the last committed micro-batch"

Fault = Literal["request", "setup", "stage", "outside", "away"]
"""request: what was asked for is wrong. setup: the pod names something that is not there, so that waiting is
in vain. stage: an error of its own. outside: something else ended it. away: what it needs is not there now,
and comes by itself."""


@dataclass(frozen=True)
class PodEnding:
    """How a stage ended, or why its pod does not start."""

    fault: Fault
    message: str
    """One sentence for the failed task: what happened, and what to do."""


class Ending(NamedTuple):
    """A row of `ENDINGS`."""

    where: str
    """pod, condition, terminated, exit, waiting, event, node added, unscheduled, gone, lost, deleted,
    phase."""
    pattern: str
    """What `reason: message` has to match, or of `status: last line` for an exit."""
    fault: Fault
    sentence: str
    """With the names of `_values`, and the pattern's own groups."""


_DISRUPTED = "the pod on {node} was %s: {said}; {again}."
_OWN_DISK = (
    "Evicted by {node}, since the stage needs more disk than its own limit: {said}. Raise that limit in the "
    "pod template (ephemeral-storage, or the volume's sizeLimit), or make the cache smaller "
    "(TOOLFORMER_CACHE_GIB); {again}."
)
_NODE_LOW = (
    "Evicted by {node}: {said}. Raise the pod template's memory or ephemeral-storage request, or let fewer "
    "pods share the node; {again}."
)
_KILLED = (
    "{init}killed by {signal}%s; {again}. A text that kills its stage again and again is set apart by "
    "itself. The last line: {said}"
)
_IMAGE = (
    "the image {image} cannot be pulled ({text}). Check TOOLFORMER_KUBERNETES_IMAGE, the pull secret in the "
    "pod template, and that the nodes reach the registry."
)
_PULL = "^(ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull|ImageInspectError|RegistryUnavailable): "
_REGISTRY_AWAY = (
    r".*(timeout|timed out|connection (refused|reset)|no such host|TLS handshake|\bEOF\b|too ?many ?requests|"
    r"\b(429|50[0234]) [A-Z]|unavailable|QPS exceeded)"
)
_NO_NODE = "no node takes the pod: {said}. "
_TAINT = r"untolerated taint(?:\(s\))?"
_PASSING_TAINT = (
    r"node\.kubernetes\.io/|node\.cloudprovider\.kubernetes\.io/|karpenter\.sh/|[^:}]*not-?ready|ToBeDeleted|"
    "DeletionCandidate"
)
"""The events of nodes that come, go or are unwell."""
_CONTROL_PLANE = r"node-role\.kubernetes\.io/"

# fmt: off
ENDINGS = tuple(Ending(*row) for row in (
    # The whole pod.
    ("lost", "", "outside", "{node} does not answer; {again}, on another node. See `kubectl get nodes`."),
    ("pod", "^Evicted: .*(EmptyDir volume|local (ephemeral )?storage)", "stage", _OWN_DISK),
    ("pod", "^Evicted", "outside", _NODE_LOW),
    ("pod", "^DeadlineExceeded", "stage",
     "the pod ran longer than its deadline of {deadline} s and was ended; {again}. If that happens again, "
     "give the stage more "
     "shards or a longer time limit."),
    ("pod", "^(NodeLost|NodeShutdown|Shutdown|Terminated|Preempting)", "outside",
     "lost with {node} ({text}); {again}, on another node."),
    ("pod", "^(OutOf|UnexpectedAdmissionError|NodeAffinity|AdmissionError|TopologyAffinityError)", "away",
     "{node} refused the pod ({text}); the next try finds another."),
    ("condition", "^PreemptionByScheduler", "outside", _DISRUPTED % "preempted by a pod of higher priority"),
    ("condition", "^DeletionBy(Device)?TaintManager", "outside", _DISRUPTED % "removed from its node, which was tainted"),
    ("condition", "^EvictionByEvictionAPI", "outside", _DISRUPTED % "evicted (its node is drained, or an autoscaler removes it)"),
    ("condition", "^DeletionByPodGC", "outside", _DISRUPTED % "lost with its node"),
    ("condition", "", "outside", _DISRUPTED % "ended by its node ({reason})"),

    # A pod that the API does not show any more, by its events. After a deletion or the Eviction API only
    # Killing is left.
    ("gone", "^Evicted: .*(EmptyDir volume|local (ephemeral )?storage)", "stage", _OWN_DISK),
    ("gone", "^Evicted: .*low on resource", "outside", _NODE_LOW),
    ("gone", "^(Evicted|ScaleDown)", "outside", "the pod {name} was evicted: {said}; {again}."),
    ("gone", "^Preempt", "outside", "the pod {name} was preempted by a pod of higher priority: {said}; {again}."),
    ("gone", "TaintManagerEviction: Marking", "outside",
     "the pod {name} was removed from its node, which was tainted (not ready, or drained); {again}."),
    ("gone", "^Killing", "outside", "the pod {name} was deleted, or evicted since its node is drained; {again}."),
    ("gone", "^NodeNotReady", "outside", "the pod {name} is gone with its node, which did not answer; {again}, on another node."),
    ("gone", "", "outside", "the pod {name} is gone: it was deleted, or its node was; {again}."),

    # A container that ended.
    ("terminated", "^OOMKilled", "outside",
     "{init}OOMKilled at its limit of {memory}; {again}. A text that needs too much memory is set apart by "
     "itself; if the stage "
     "is killed while it loads its model, raise resources.limits.memory in the pod template."),
    ("terminated", "^(ContainerCannotRun|StartError)", "setup",
     "{init}the container cannot start ({text}). Check command and runtime class of the pod template, and "
     "that the image holds "
     "Python and this project."),
    ("terminated", "^(ContainerStatusUnknown|Unknown)", "outside",
     "{init}{node} or its container runtime restarted, and how the container ended is unknown; {again}."),
    ("exit", f"^{EXIT_TERMINATED}:", "outside", "{init}ended by SIGTERM; {again}."),
    ("exit", f"^{EXIT_INFRASTRUCTURE}:", "outside", "{init}something that the stage needs is not there now: {said}"),
    ("exit", f"^({EXIT_USAGE}|{EXIT_NO_RESULT}):", "request", "{init}exit status {reason}: {said}"),
    ("exit", "^137:", "outside", _KILLED % " (the machine may be out of memory)"),
    ("exit", r"^(129|1[3-8]\d|19[0-2]):", "outside", _KILLED % ""),
    ("exit", "", "stage", "{init}exit status {reason}: {said}"),

    # A container that does not start.
    ("waiting", _PULL + _REGISTRY_AWAY, "away", _IMAGE),
    ("waiting", _PULL, "setup", _IMAGE),
    ("waiting", "^Create(Container|ContainerConfig)Error: .*(timed out|deadline exceeded|is reserved|failed to sync)", "away",
     "the container is not made yet: {said}. See `kubectl describe pod {name}` if that lasts."),
    ("waiting", "^CreateContainerConfigError: .*non-?root", "setup",
     "the container cannot be made: {said}. Take an image whose user is a number other than 0, or set "
     "securityContext.runAsUser in "
     "the pod template."),
    ("waiting", "^CreateContainerConfigError", "setup",
     "the container cannot be made: {said}. Make that Secret or ConfigMap in namespace {namespace} with "
     "every key that the pod "
     "names."),
    ("waiting", "^(CreateContainerError|RunContainerError)", "setup",
     "the container cannot be started ({text}). Check command, mounts, seccomp profile and runtime class of the pod template."),
    ("event", r"^Failed(Mount|AttachVolume): .*((configmap|secret) \S+ not found|non-existent (config|secret) key)", "setup",
     "a volume cannot be mounted: {said}. Make that ConfigMap or Secret in namespace {namespace}, or correct "
     "the volumes of the "
     "pod template."),
    ("event", r"^Failed(Mount|AttachVolume): .*persistentvolumeclaim \S+ not found", "setup",
     "a volume cannot be mounted: {said}. Make that claim in namespace {namespace}, or correct the volumes of the pod template."),
    ("event", "^Failed(Mount|AttachVolume)", "away",
     "a volume cannot be mounted: {said}. Check the volumes of the pod template; a ReadWriteOnce claim serves one node."),
    ("event", "^FailedCreatePodSandBox: .*OOM-killed", "setup",
     "the pod's sandbox cannot be made: {said}. Raise resources.limits.memory in the pod template."),
    ("event", "^FailedCreatePodSandBox: .*no runtime for", "setup",
     "the pod's sandbox cannot be made: {said}. Correct runtimeClassName in the pod template."),
    ("event", "^FailedCreatePodSandBox: .*group .* is specified without user", "setup",
     "the pod's sandbox cannot be made: {said}. Set runAsUser beside runAsGroup in the pod template, or take both out."),
    ("event", "^FailedCreatePodSandBox", "away",
     "{node} cannot make the pod's sandbox: {said}. See the node's network plugin if that lasts."),

    # A pod without a node.
    ("node added", "", "away", "a node is being added for the pod: {said}."),
    ("unscheduled", "^SchedulingGated", "away",
     "the pod waits for a queue (scheduling gate): {said}. See the queue's quota and its order."),
    ("unscheduled", 'persistentvolumeclaim "(?P<claim>[^"]+)" not found', "setup",
     _NO_NODE + "Make the claim {claim} in namespace {namespace}, or correct the volumes of the pod template."),
    ("unscheduled", rf"{_TAINT} \{{({_PASSING_TAINT})", "away",
     _NO_NODE + "Nodes come, go or are not ready (`kubectl get nodes`)."),
    ("unscheduled", r"Insufficient \S*gpu", "away",
     _NO_NODE + "Wait until a GPU is free, add a GPU node, or make the pool `gpu` in Airflow as small as the number of GPUs."),
    ("unscheduled", "Insufficient ", "away", _NO_NODE + "Free some, add a node, or lower resources in the pod template."),
    ("unscheduled", "unbound immediate PersistentVolumeClaims|available persistent volumes|volume node affinity conflict", "setup",
     _NO_NODE + "No volume that the nodes reach is bound to its claim {claims}; `kubectl describe pvc {claims}` says why. Name a "
     "storage class with the claim's access mode in it (`kubectl get storageclass`), or take the volume out of the pod template."),
    ("unscheduled", rf"{_TAINT} \{{(?!{_CONTROL_PLANE})", "setup",
     _NO_NODE + "A taint keeps it away, and not a lack of room: if stages are to run there, add to tolerations in the pod "
     "template: {tolerations}."),
    ("unscheduled", "didn't match (Pod's node affinity/selector|node selector)", "setup",
     _NO_NODE + "Its node selector is {selector}: correct it in the pod template (`kubectl get nodes --show-labels` says what "
     "there is), or add such a node."),
    ("unscheduled", "", "away", _NO_NODE + "See `kubectl describe pod {name}`."),

    # Nothing is said of the containers.
    ("deleted", "", "outside", "the pod was deleted before the stage ended; {again}."),
    ("phase", "^Succeeded", "stage", "the pod succeeded."),
    ("phase", "^Pending", "away", "the pod is Pending: {said}. See `kubectl describe pod {name}`."),
    ("phase", "", "stage", "the pod is {reason}: {said}. See `kubectl describe pod {name}`."),
))
# fmt: on
"""The first row that matches counts."""


class _Said(NamedTuple):
    """What is said of a pod or a process."""

    where: str
    reason: str | None = ""
    message: str | None = ""
    container: str = CONTAINER

    @property
    def text(self) -> str:
        return f"{self.reason or ''}: {_shortened(self.message) or 'no message'}"


def describe_exit(status: int, last_line: str = "") -> PodEnding:
    """The ending of a stage's process that ended with this status: its own, or 128 + N if signal N killed it.

    Args:
        status: exit status, 0 to 255.
        last_line: the last line that the stage wrote to its log; its error message if it has one.
    """
    return _described([_Said("exit", str(status), last_line)], None)


def describe_pod_ending(pod: "V1Pod", events: Sequence["CoreV1Event"] = ()) -> PodEnding:
    """How the pod of a stage ended, or why it did not start; its container is `stage`, else the first.

    Args:
        pod: the pod as the API shows it last; it may be deleted, or its node be lost.
        events: the pod's events, oldest first; they say why an image is not pulled, or a volume not mounted.
    """
    said = list(_said_of_pod(pod))
    # 1. A container that ended, an init container first: the stage never ran then. A container that does not
    #    start.
    main = [status for status in _of(pod, "status.container_statuses", ()) if status.name == _main_name(pod)]
    for container in (*_of(pod, "status.init_container_statuses", ()), *main):
        if (ended := _of(container, "state.terminated")) and ended.exit_code != 0:
            lines = ["", *filter(str.strip, _of(ended, "message", "").splitlines())]
            said.append(_Said("terminated", ended.reason, ended.message, container.name))
            said.append(_Said("exit", str(ended.exit_code), lines[-1], container.name))
        if waiting := _of(container, "state.waiting"):
            message = _of(waiting, "message", "")
            # While an image's pull is backed off, the reason is in the events, the newest last.
            if not message or message.startswith("Back-off pulling image"):
                pulls = [
                    event.message or "" for event in events if event.reason in ("Failed", "InspectFailed")
                ]
                message = next((text for text in reversed(pulls) if "Failed to pull" in text), message)
            said.append(_Said("waiting", waiting.reason, message, container.name))
    phase = _of(pod, "status.phase", "Unknown")
    if phase == "Pending":
        said += [_Said("event", event.reason, event.message) for event in reversed(events)]
    # 2. A pod without a node, and what adds one: the cluster autoscaler, or Karpenter.
    for condition in _of(pod, "status.conditions", ()):
        if condition.type == "PodScheduled" and condition.status == "False":
            said += [
                _Said("node added", event.reason, event.message)
                for event in events
                if event.reason in ("TriggeredScaleUp", "Nominated")
            ]
            said.append(_Said("unscheduled", condition.reason, condition.message))
    # 3. Nothing of these.
    if _of(pod, "metadata.deletion_timestamp"):
        said.append(_Said("deleted"))
    newest = events[-1].message if events else None
    said.append(_Said("phase", phase, _of(pod, "status.message") or newest or "Kubernetes gives no reason"))
    return _described(said, pod)


def what_befell(pod: "V1Pod") -> dict[str, Any] | None:
    """What is said of the whole pod, for `describe_gone_pod`, as plain values; None if nothing is."""
    said = [[statement.where, statement.reason, statement.message] for statement in _said_of_pod(pod)]
    return {"said": said, "node": _of(pod, "spec.node_name")} if said else None


def describe_gone_pod(
    name: str, events: Sequence["CoreV1Event"] = (), before: Mapping[str, Any] | None = None
) -> PodEnding:
    """The ending of a pod that the API no longer shows, by its events and by what befell it `before`."""
    said = [_Said("gone", event.reason, event.message) for event in reversed(events)]
    node = {"node": f"node {before['node']}"} if before and before["node"] else {}
    earlier = [_Said(*values) for values in before["said"]] if before else []
    return _described([*earlier, *said, _Said("gone")], None, name=name, **node)


def is_lost(pod: "V1Pod") -> bool:
    """Whether the pod should have been gone for a while, so that no kubelet on its node ends it."""
    gone_by = pod.metadata.deletion_timestamp  # the time of the deletion, and the grace period
    return gone_by is not None and datetime.now(UTC) > gone_by + timedelta(seconds=LOST_SECONDS)


def _described(said: Sequence[_Said], pod: "V1Pod | None", **more: str) -> PodEnding:
    for row in ENDINGS:
        for statement in said:
            if row.where == statement.where and (
                match := re.search(row.pattern, statement.text, re.IGNORECASE)
            ):
                values = _values(statement, pod) | match.groupdict() | more
                return PodEnding(row.fault, row.sentence.format_map(values))
    raise AssertionError(f"no row of ENDINGS for {said}")


def _values(said: _Said, pod: "V1Pod | None") -> dict[str, str]:
    """What a sentence may name."""
    containers = [*_of(pod, "spec.init_containers", ()), *_of(pod, "spec.containers", ())]
    container = next((container for container in containers if container.name == said.container), None)
    memory = _of(container, "resources.limits", {}).get("memory")
    selector = ", ".join(f"{key}={value}" for key, value in _of(pod, "spec.node_selector", {}).items())
    killed_by = int(said.reason or 0) - 128 if said.where == "exit" else 0
    is_signal = killed_by in {number.value for number in signal.Signals}
    claims = (_of(volume, "persistent_volume_claim.claim_name") for volume in _of(pod, "spec.volumes", ()))
    node = _of(pod, "spec.node_name")
    return {
        "claims": ", ".join(filter(None, claims)),
        "tolerations": _tolerations(said.message or ""),
        "reason": said.reason or "",
        "said": (_one_line if said.where == "exit" else _shortened)(said.message) or "no message",
        "text": said.text,
        "signal": signal.Signals(killed_by).name if is_signal else f"signal {killed_by}",
        "again": STARTS_AGAIN,
        "init": "" if not pod or said.container == _main_name(pod) else f"init container {said.container}: ",
        "image": _of(container, "image", "of the pod"),
        "memory": f"{memory} of memory" if memory else "the node's memory (the pod has no memory limit)",
        "node": f"node {node}" if node else "its node",
        "selector": selector or "in its affinity",
        "deadline": str(_of(pod, "spec.active_deadline_seconds")),
        "name": _of(pod, "metadata.name", "NAME"),
        "namespace": _of(pod, "metadata.namespace", "of the pods"),
    }


def _tolerations(message: str) -> str:
    """Tolerations, as in a manifest, of the taints in the scheduler's message, except the control plane's."""
    taints = re.findall(rf"{_TAINT} \{{(?!{_CONTROL_PLANE})([^:}}]+): ?([^}}]*)\}}", message)
    equal = "{{key: {}, operator: Equal, value: {}}}"
    tolerations = []
    for key, value in taints:
        tolerations.append(
            equal.format(key, json.dumps(value)) if value else f"{{key: {key}, operator: Exists}}"
        )
    return ", ".join(tolerations)


def _of(shown: object, path: str, otherwise: Any = None) -> Any:
    """The attribute at a path of names such as `spec.node_name`.

    `otherwise` if it is empty, or something on the way not set.
    """
    for name in path.split("."):
        shown = getattr(shown, name, None)
    return shown or otherwise


def _said_of_pod(pod: "V1Pod") -> Iterator[_Said]:
    """What befell the whole pod. Its containers then show a status of 137 or 143, or none."""
    if _of(pod, "status.phase") == "Unknown" or (pod.metadata and is_lost(pod)):
        yield _Said("lost")
    if reason := _of(pod, "status.reason"):
        yield _Said("pod", reason, _of(pod, "status.message"))
    for condition in _of(pod, "status.conditions", ()):
        if condition.type == "DisruptionTarget" and condition.status == "True":
            yield _Said("condition", condition.reason, condition.message)


def _main_name(pod: "V1Pod") -> str:
    names = [container.name for container in _of(pod, "spec.containers", ())]
    return CONTAINER if CONTAINER in names or not names else str(names[0])


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())[:MESSAGE_CHARACTERS]


def _shortened(text: str | None) -> str:
    """One line without a full stop at its end: the sentence continues."""
    return _one_line(text).rstrip(".")
