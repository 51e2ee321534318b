"""How a pod ended, from statuses and events as clusters write them: the sentence of the failed task, and whose fault it is.

What Kubernetes says in these cases was read from a cluster of version 1.36.2 with containerd 2.1.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from kubernetes.client import models as k8s

from toolformer_ops.airflow_tasks.endings import (
    Fault,
    describe_exit,
    describe_gone_pod,
    describe_pod_ending,
    what_befell,
)

IMAGE = "registry.example/toolformer:1.4"
State = k8s.V1ContainerState


def terminated(exit_code: int, reason: str = "Error", message: str | None = None) -> State:
    return State(
        terminated=k8s.V1ContainerStateTerminated(exit_code=exit_code, reason=reason, message=message)
    )


def waiting(reason: str, message: str | None = None) -> State:
    return State(waiting=k8s.V1ContainerStateWaiting(reason=reason, message=message))


def status_of(state: State, name: str) -> k8s.V1ContainerStatus:
    return k8s.V1ContainerStatus(
        name=name, image=IMAGE, image_id="", ready=False, restart_count=0, state=state
    )


def pod(
    state: State | None = None,
    *,
    init: State | None = None,
    limits: dict[str, str] | None = None,
    deleted: int = 0,
    condition: tuple[str, str, str, str] | None = None,
    **status: Any,
) -> k8s.V1Pod:
    """A stage's pod on node gpu-7 whose container is in this state; `deleted`: to be gone in so many minutes."""
    gone_at = datetime.now(UTC) + timedelta(minutes=deleted) if deleted else None
    claim = k8s.V1PersistentVolumeClaimVolumeSource(claim_name="toolformer-cache")
    statuses = [
        status_of(terminated(0, "Completed"), "istio-proxy"),
        *([status_of(state, "stage")] if state else []),
    ]
    names = ("type", "status", "reason", "message")
    conditions = [k8s.V1PodCondition(**dict(zip(names, condition, strict=True)))] if condition else None
    return k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(name="sample-x1", namespace="toolformer", deletion_timestamp=gone_at),
        spec=k8s.V1PodSpec(
            node_name="gpu-7",
            node_selector={"nvidia.com/gpu.product": "A100"},
            active_deadline_seconds=43200,
            volumes=[k8s.V1Volume(name="cache", persistent_volume_claim=claim)],
            containers=[
                k8s.V1Container(
                    name="stage", image=IMAGE, resources=k8s.V1ResourceRequirements(limits=limits)
                ),
                k8s.V1Container(name="istio-proxy", image="istio"),
            ],
        ),
        status=k8s.V1PodStatus(
            container_statuses=statuses,
            init_container_statuses=[status_of(init, "fetch")] if init else None,
            conditions=conditions,
            **{"phase": "Failed"} | status,
        ),
    )


def test_the_status_of_a_container_beside_the_stage_says_nothing():
    ended = pod(terminated(2, message="ERROR UsageError: expected a corpus."))
    ended.status.container_statuses[0] = status_of(terminated(137, "OOMKilled"), "istio-proxy")
    ending = describe_pod_ending(ended)
    assert "expected a corpus" in ending.message
    assert "OOMKilled" not in ending.message


def event(reason: str, message: str) -> k8s.CoreV1Event:
    return k8s.CoreV1Event(
        reason=reason, message=message, metadata=k8s.V1ObjectMeta(), involved_object=k8s.V1ObjectReference()
    )


def unscheduled(message: str, reason: str = "Unschedulable") -> k8s.V1Pod:
    return pod(
        phase="Pending", condition=("PodScheduled", "False", reason, f"0/9 nodes are available: {message}")
    )


def disrupted(reason: str, message: str = "said so") -> k8s.V1Pod:
    return pod(terminated(143), condition=("DisruptionTarget", "True", reason, message))


def pending(reason: str = "ContainerCreating", message: str | None = None) -> k8s.V1Pod:
    return pod(waiting(reason, message), phase="Pending")


def pulling(message: str) -> k8s.V1Pod:
    text = f'Back-off pulling image "{IMAGE}": ErrImagePull: failed to pull and unpack image: {message}'
    return pending("ImagePullBackOff", text)


NODE_LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. "
OWN_DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "
SELECTOR = "2 node(s) didn't match Pod's node affinity/selector."
NO_PREEMPTION = ". preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
CONTROL_PLANE = "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
TAINTS = (
    "1 node(s) had untolerated taint {sku: gpu}, 1 node(s) had untolerated taint(s) {cloud.google.com/gke-spot: true}, "
    "1 node(s) had untolerated taint {nvidia.com/gpu: }, "
)
SANDBOX = "FailedCreatePodSandBox"
# fmt: off
CASES: list[tuple[k8s.V1Pod, Fault, str, list[tuple[str, str]]]] = [
    # What ended the pod from outside.
    (pod(terminated(137, "OOMKilled"), limits={"memory": "32Gi"}), "outside", "OOMKilled at its limit of 32Gi of memory", []),
    (pod(terminated(137, "OOMKilled")), "outside", "no memory limit", []),
    (pod(terminated(137), reason="Evicted", message=NODE_LOW), "outside", "Evicted by node gpu-7: The node was low", []),
    (disrupted("EvictionByEvictionAPI"), "outside", "its node is drained", []),
    (disrupted("PreemptionByScheduler"), "outside", "preempted by a pod of higher priority", []),
    (disrupted("SomethingNew"), "outside", "ended by its node (SomethingNew): said so", []),
    (pod(phase="Unknown"), "outside", "node gpu-7 does not answer", []),
    (pod(phase="Running", deleted=-5), "outside", "node gpu-7 does not answer", []),
    (pod(terminated(255, "Unknown", "scored 3 texts")), "outside", "its container runtime restarted", []),
    (pod(terminated(143)), "outside", "ended by SIGTERM", []),
    (pod(terminated(139)), "outside", "killed by SIGSEGV", []),
    (pod(terminated(75, message="INFO a\nERROR HubError: no hub.\n\n")), "outside", "not there now: ERROR HubError: no hub", []),
    # What comes by itself.
    (pod(reason="OutOfcpu", message="not enough cpu"), "away", "node gpu-7 refused the pod", []),
    (pulling("unexpected status from HEAD request: 503 Service Unavailable"), "away", IMAGE, []),
    (pulling("dial tcp 10.0.0.9:5000: connect: connection refused"), "away", "refused", []),
    (unscheduled(f"1 Insufficient nvidia.com/gpu, {SELECTOR}"), "away", "pool `gpu`", []),
    (unscheduled(f"{CONTROL_PLANE}3 Insufficient nvidia.com/gpu."), "away", "pool `gpu`", []),
    (unscheduled(f"1 node(s) had untolerated taint {{node.kubernetes.io/not-ready: }}, {SELECTOR}"), "away", "get nodes", []),
    (unscheduled(f"2 Insufficient memory{NO_PREEMPTION}"), "away", "lower resources", []),
    (unscheduled(SELECTOR), "away", "a node is being added", [("TriggeredScaleUp", "gpus 0->1")]),
    (pending("CreateContainerConfigError", "failed to sync secret cache: timed out"), "away", "sync", []),
    (pending(), "away", "ReadWriteOnce", [("FailedAttachVolume", "Multi-Attach error for volume")]),
    (pending(), "away", "network plugin", [(SANDBOX, "plugin type=cilium")]),
    (pending(), "away", "is Pending: Pulling image x", [("Pulling", "Pulling image x")]),
    (pod(phase="Pending"), "away", "Kubernetes gives no reason", []),
    # What the pod names and the cluster lacks.
    (pulling("registry.example:5000/toolformer:1.4: not found"), "setup", "TOOLFORMER_KUBERNETES_IMAGE", []),
    (pending("ImagePullBackOff", "Back-off pulling image x"), "setup", "manifest unknown",
     [("Failed", "Failed to pull image: manifest unknown"), ("Failed", "ErrImagePull")]),
    (pending("CreateContainerConfigError", 'secret "toolformer" not found'), "setup", "Make that Secret or ConfigMap", []),
    (pending("CreateContainerConfigError", "runAsNonRoot and image will run as root"), "setup", "runAsUser", []),
    (pending(), "setup", "Make that ConfigMap", [("FailedMount", 'configmap "tools" not found'), ("FailedMount", "timed out")]),
    (pending(), "setup", "resources.limits.memory", [(SANDBOX, "container init was OOM-killed")]),
    (pending(), "setup", "runAsUser", [(SANDBOX, 'user group "10001" is specified without user')]),
    (pending(), "setup", "runtimeClassName", [(SANDBOX, 'no runtime for "nvidia" is configured')]),
    (unscheduled(SELECTOR + NO_PREEMPTION), "setup", "nvidia.com/gpu.product=A100", []),
    (unscheduled(CONTROL_PLANE + TAINTS + SELECTOR), "setup", 'template: {key: sku, operator: Equal, value: "gpu"}, {key: '
     'cloud.google.com/gke-spot, operator: Equal, value: "true"}, {key: nvidia.com/gpu, operator: Exists}.', []),
    (unscheduled("pod has unbound immediate PersistentVolumeClaims."), "setup", "describe pvc toolformer-cache", []),
    (unscheduled('persistentvolumeclaim "cache" not found.'), "setup", "Make the claim cache in namespace toolformer", []),
    (pod(terminated(128, "StartError", 'exec: "/no": no such file')), "setup", "cannot start (StartError", []),
    # The stage's own errors, and what was asked for.
    (pod(terminated(1, message="ERROR DatabaseError: deadlock")), "stage", "exit status 1: ERROR DatabaseError: deadlock", []),
    (pod(waiting("PodInitializing"), init=terminated(7, message="none")), "stage", "init container fetch: exit status 7: none", []),
    (pod(terminated(137), reason="DeadlineExceeded", message="Pod was active"), "stage", "deadline of 43200 s", []),
    (pod(reason="Evicted", message=OWN_DISK), "stage", "TOOLFORMER_CACHE_GIB", []),
    (pod(terminated(2, message="a\nERROR CorpusError: expected x")), "request", "exit status 2: ERROR CorpusError", []),
    (pod(), "stage", "kubectl describe pod sample-x1", []),
    # A container beside the stage decides nothing.
    (pod(terminated(0, "Completed"), phase="Succeeded"), "stage", "the pod succeeded.", []),
]
KILLING = ("Killing", "Stopping container stage")
GONE: list[tuple[list[tuple[str, str]], Fault, str]] = [
    ([("Evicted", NODE_LOW), KILLING], "outside", "Evicted by its node: The node was low on resource: memory"),
    ([("Evicted", OWN_DISK)], "stage", "TOOLFORMER_CACHE_GIB"),
    ([KILLING, ("Preempted", "Preempted by pod 4f1c on node gpu-7")], "outside", "preempted by a pod of higher priority"),
    ([("NodeNotReady", "no"), ("TaintManagerEviction", "Marking for deletion")], "outside", "which was tainted (not ready"),
    ([("TaintManagerEviction", "Cancelling deletion of Pod"), KILLING], "outside", "was deleted, or evicted"),
    ([("NodeNotReady", "Node is not ready")], "outside", "gone with its node"),
    ([], "outside", "is gone: it was deleted, or its node was"),
]
# fmt: on


def test_how_a_pod_ended_is_said_in_one_sentence_with_whose_fault_it_is():
    for ended, fault, part, events in CASES:
        found = describe_pod_ending(ended, [event(*one) for one in events])
        assert (found.fault, part in found.message) == (fault, True), found
        assert not re.search(r"\n|\{\w+\}", found.message)


def test_a_pod_that_the_api_does_not_show_is_described_by_its_events():
    for events, fault, part in GONE:
        description = describe_gone_pod("sample-x1", [event(*one) for one in events])
        assert (description.fault, part in description.message) == (fault, True), description


def test_a_pod_that_is_gone_is_described_by_what_was_seen_before():
    seen = what_befell(disrupted("EvictionByEvictionAPI"))
    assert "its node is drained" in describe_gone_pod("sample-x1", [event(*KILLING)], seen).message
    assert what_befell(pod(terminated(0, "Completed"), phase="Succeeded")) is None


def test_a_signal_without_a_name_is_shown_by_its_number():
    assert "signal 33" in describe_exit(128 + 33).message
    assert describe_exit(200, "odd").message == "exit status 200: odd"
