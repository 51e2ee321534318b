"""How a pod ended, from statuses and events as clusters write them: the sentence of the failed task, and whose fault it is.

What Kubernetes says in these cases was read from a cluster of version 1.36.2 with containerd 2.1.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes.client import models as k8s

from toolformer_ops.airflow_tasks.endings import (
    Fault,
    describe_exit,
    describe_gone_pod,
    describe_pod_ending,
    what_befell,
)

IMAGE = "registry.example/toolformer:1.4"


def terminated(exit_code: int, reason: str = "Error", message: str | None = None) -> k8s.V1ContainerState:
    return k8s.V1ContainerState(
        terminated=k8s.V1ContainerStateTerminated(exit_code=exit_code, reason=reason, message=message)
    )


def waiting(reason: str, message: str | None = None) -> k8s.V1ContainerState:
    return k8s.V1ContainerState(waiting=k8s.V1ContainerStateWaiting(reason=reason, message=message))


def status_of(state: k8s.V1ContainerState, name: str = "stage") -> k8s.V1ContainerStatus:
    return k8s.V1ContainerStatus(name=name, image=IMAGE, image_id="", ready=False, restart_count=0, state=state)


def pod(
    state: k8s.V1ContainerState | None = None,
    *,
    init: k8s.V1ContainerState | None = None,
    limits: dict[str, str] | None = None,
    deleted: int = 0,
    **status: Any,
) -> k8s.V1Pod:
    """A stage's pod on node gpu-7 whose container is in this state; `deleted`: to be gone in so many minutes."""
    return k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(
            name="sample-x1",
            namespace="toolformer",
            deletion_timestamp=datetime.now(UTC) + timedelta(minutes=deleted) if deleted else None,
        ),
        spec=k8s.V1PodSpec(
            node_name="gpu-7",
            node_selector={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
            active_deadline_seconds=43200,
            volumes=[
                k8s.V1Volume(name="temporary", empty_dir=k8s.V1EmptyDirVolumeSource()),
                k8s.V1Volume(
                    name="cache",
                    persistent_volume_claim=k8s.V1PersistentVolumeClaimVolumeSource(claim_name="toolformer-cache"),
                ),
            ],
            containers=[
                k8s.V1Container(name="stage", image=IMAGE, resources=k8s.V1ResourceRequirements(limits=limits)),
                k8s.V1Container(name="istio-proxy", image="istio"),
            ],
        ),
        status=k8s.V1PodStatus(
            container_statuses=[
                status_of(terminated(0, "Completed"), "istio-proxy"),
                *([status_of(state)] if state else []),
            ],
            init_container_statuses=[status_of(init, "fetch")] if init else None,
            **{"phase": "Failed"} | status,
        ),
    )


def event(reason: str, message: str, kind: str = "Warning") -> k8s.CoreV1Event:
    return k8s.CoreV1Event(
        reason=reason, message=message, type=kind, metadata=k8s.V1ObjectMeta(), involved_object=k8s.V1ObjectReference()
    )


def condition(kind: str, status: str, reason: str, message: str) -> k8s.V1PodCondition:
    return k8s.V1PodCondition(type=kind, status=status, reason=reason, message=message)


def unschedulable(message: str) -> k8s.V1Pod:
    return pod(phase="Pending", conditions=[condition("PodScheduled", "False", "Unschedulable", message)])


NODE_LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. "
PULLS = 'failed to pull and unpack image "registry.example/toolformer:1.4": failed to resolve image: '
PULL = f'Failed to pull image "registry.example/toolformer:1.4": {PULLS}'
NO_SUCH_MAP = 'MountVolume.SetUp failed for volume "tools" : configmap "toolformer-tools" not found'
NO_PREEMPTION = (
    "no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
)
SANDBOX = "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to start sandbox: "


def disrupted(reason: str, message: str) -> k8s.V1Pod:
    return pod(terminated(143), conditions=[condition("DisruptionTarget", "True", reason, message)])


def pending(state: k8s.V1ContainerState | None = None) -> k8s.V1Pod:
    return pod(state or waiting("ContainerCreating"), phase="Pending")


def pulling(reason: str, message: str) -> k8s.V1Pod:
    return pending(waiting(reason, f'Back-off pulling image "{IMAGE}": ErrImagePull: {PULLS}{message}'))


Case = tuple[k8s.V1Pod, Fault, list[str]] | tuple[k8s.V1Pod, Fault, list[str], list[k8s.CoreV1Event]]
# fmt: off
CASES: dict[str, Case] = {
    # What ended the pod from outside.
    "OOMKilled": (pod(terminated(137, "OOMKilled"), limits={"memory": "32Gi"}), "outside",
                  ["OOMKilled at its limit of 32Gi of memory", "resources.limits.memory"]),
    "OOMKilled without a limit": (pod(terminated(137, "OOMKilled")), "outside", ["no memory limit"]),
    "node low": (pod(terminated(137), reason="Evicted", message=NODE_LOW), "outside",
                 ["Evicted by node gpu-7: The node was low on resource: memory. Threshold quantity: 100Mi", "request"]),
    "drained": (disrupted("EvictionByEvictionAPI", "Eviction API: evicting"), "outside",
                ["evicted (its node is drained", "last committed micro-batch"]),
    "preempted": (disrupted("PreemptionByScheduler", "preempting to accommodate a pod"), "outside",
                  ["preempted by a pod of higher priority"]),
    "tainted": (disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), "outside",
                ["removed from its node, which was tainted"]),
    "another disruption": (disrupted("SomethingNew", "said so"), "outside", ["ended by its node (SomethingNew): said so"]),
    "node lost": (pod(reason="NodeLost", message="Node gpu-7 is unresponsive"), "outside", ["gpu-7"]),
    "node shut down": (pod(reason="Terminated", message="Pod was terminated in response to imminent node shutdown."), "outside",
                       ["imminent node shutdown", "another node"]),
    "room for a critical pod": (pod(reason="Preempting", message="Preempted in order to admit critical pod"), "outside",
                                ["lost with node gpu-7"]),
    "node silent": (pod(phase="Unknown"), "outside", ["node gpu-7 does not answer", "kubectl get nodes"]),
    "node cut off": (pod(phase="Running", deleted=-5), "outside", ["node gpu-7 does not answer", "another node"]),
    "node gone": (pod(terminated(137, "ContainerStatusUnknown", "The container could not be located")), "outside",
                  ["nobody knows how the container ended"]),
    "node rebooted, or container runtime restarted": (pod(terminated(255, "Unknown", "scored 3 texts")), "outside",
                                                      ["node gpu-7 or its container runtime restarted"]),
    "refused by node": (pod(reason="OutOfcpu", message="Pod was rejected: Node didn't have enough resource: cpu"), "away",
                        ["node gpu-7 refused the pod"]),
    "deleted": (pod(phase="Running", deleted=1440), "outside", ["was deleted before the stage ended"]),
    "SIGTERM": (pod(terminated(143, message="sample: told to end")), "outside", ["ended by SIGTERM", "last committed micro-batch"]),
    "segmentation fault": (pod(terminated(139)), "outside", ["killed by SIGSEGV", "set apart by itself"]),
    "infrastructure": (pod(terminated(75, message="INFO sample\nERROR ModelHubError: expected the hub to answer.\n\n")), "outside",
                       ["not there now: ERROR ModelHubError: expected the hub to answer"]),
    # What comes by itself.
    "registry answers 503": (pulling("ImagePullBackOff", "unexpected status from HEAD request: 503 Service Unavailable"), "away",
                             [IMAGE, "503 Service Unavailable", "pull secret"]),
    "registry answers 429": (pulling("ErrImagePull", "unexpected status from HEAD request: 429 Too Many Requests"),
                             "away", ["429"]),
    "registry unknown": (pulling("ImagePullBackOff", "dial tcp: lookup registry.example: no such host"), "away", ["no such host"]),
    "registry refuses": (pulling("ErrImagePull", "dial tcp 10.0.0.9:5000: connect: connection refused"), "away", ["refused"]),
    "no GPU free": (unschedulable("0/9 nodes are available: 1 Insufficient nvidia.com/gpu, 8 didn't match Pod's node "
                                  "affinity/selector."), "away", ["Insufficient nvidia.com/gpu", "pool `gpu`"]),
    "no GPU free on the nodes that may be used": (
        unschedulable("0/4 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 3 "
                      "Insufficient nvidia.com/gpu."), "away", ["pool `gpu`"]),
    "a node that is not ready": (
        unschedulable("0/3 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }, 2 node(s) didn't "
                      "match Pod's node affinity/selector."), "away", ["kubectl get nodes"]),
    "no memory free": (unschedulable("0/2 nodes are available: 2 Insufficient memory. " + NO_PREEMPTION),
                       "away", ["lower resources"]),
    "queued": (pod(phase="Pending", conditions=[condition("PodScheduled", "False", "SchedulingGated", "blocked")]),
               "away", ["queue"]),
    "a node is coming": (unschedulable("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."), "away",
                         ["a node is being added", "gpus 0->1"], [event("TriggeredScaleUp", "gpus 0->1", "Normal")]),
    "Secret not synced": (pending(waiting("CreateContainerConfigError", "failed to sync secret cache: timed out")),
                          "away", ["sync"]),
    "volume on another node": (pending(), "away", ["Multi-Attach", "ReadWriteOnce"],
                               [event("FailedAttachVolume", "Multi-Attach error for volume")]),
    "network not ready": (pending(), "away", ["network plugin"], [event("FailedCreatePodSandBox", SANDBOX + "plugin type=cilium")]),
    "being pulled": (pending(), "away", ["is Pending: Pulling image x"], [event("Pulling", "Pulling image x", "Normal")]),
    "nothing said": (pod(phase="Pending"), "away", ["Kubernetes gives no reason"]),
    # What the pod names and the cluster lacks.
    "no such image": (pulling("ErrImagePull", f"{IMAGE}: not found"), "setup", [IMAGE, "not found", "TOOLFORMER_KUBERNETES_IMAGE"]),
    "port 5000": (pulling("ErrImagePull", "registry.example:5000/toolformer:1.4: not found"), "setup", ["5000"]),
    "only the events say why": (pending(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')), "setup",
                                ["manifest unknown"], [event("Failed", PULL + "manifest unknown"),
                                 event("Failed", "ErrImagePull")]),
    "no right to the image": (pulling("ImagePullBackOff", "pull access denied: authorization failed: no basic auth credentials"),
                              "setup", ["pull secret"]),
    "image name": (pending(waiting("InvalidImageName", "couldn't parse image name: must be lowercase")), "setup", ["lowercase"]),
    "image never pulled": (pending(waiting("ErrImageNeverPull", "not present with pull policy of Never")), "setup", ["Never"]),
    "no Secret": (pending(waiting("CreateContainerConfigError", 'secret "toolformer" not found')), "setup",
                  ['secret "toolformer" not found', "namespace toolformer", "TOOLFORMER_KUBERNETES_SECRET"]),
    "no key": (pending(waiting("CreateContainerConfigError", "couldn't find key DSN in Secret toolformer/toolformer")), "setup",
               ["couldn't find key DSN in Secret toolformer/toolformer"]),
    "image of root": (pending(waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")),
                      "setup", ["runAsUser"]),
    "no seccomp profile": (pending(waiting("CreateContainerError", "cannot load seccomp profile: no such file")),
                           "setup", ["seccomp"]),
    "no ConfigMap for a volume": (pending(), "setup", ['configmap "toolformer-tools" not found', "Make that ConfigMap"],
                                  [event("FailedMount", NO_SUCH_MAP),
                                   event("FailedMount", "Unable to attach or mount: timed out")]),
    "no claim for a volume": (pending(), "setup", ["Make that claim"],
                              [event("FailedMount", 'MountVolume failed: persistentvolumeclaim "cache" not found')]),
    "sandbox too small": (pending(), "setup", ["resources.limits.memory"],
                          [event("FailedCreatePodSandBox", SANDBOX + "container init was OOM-killed (memory limit too low?)")]),
    "group without user": (pending(), "setup", ["Set runAsUser beside runAsGroup"],
                           [event("FailedCreatePodSandBox", SANDBOX + "failed to generate sandbox container spec options: "
                                  'failed to generate user string: user group "10001" is specified without user')]),
    "no runtime": (pending(), "setup", ["runtimeClassName"],
                   [event("FailedCreatePodSandBox", SANDBOX + 'no runtime for "nvidia" is configured')]),
    "unknown label": (unschedulable("0/1 nodes: 1 node(s) didn't match Pod's node affinity/selector. " + NO_PREEMPTION), "setup",
                      ["nvidia.com/gpu.product=NVIDIA-A100-SXM4-80GB", "--show-labels"]),
    "taints of a cloud": (
        unschedulable("0/6 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 1 "
                      "node(s) had untolerated taint {sku: gpu}, 1 node(s) had untolerated taint(s) {cloud.google.com/gke-spot: "
                      "true}, 1 node(s) had untolerated taint {nvidia.com/gpu: }, 2 node(s) didn't match Pod's node "
                      "affinity/selector. preemption: 0/6 nodes are available: 6 Preemption is not helpful."), "setup",
        ["not a lack of room",
         'tolerations in the pod template: {key: sku, operator: Equal, value: "gpu"}, {key: cloud.google.com/gke-spot, operator: '
         'Equal, value: "true"}, {key: nvidia.com/gpu, operator: Exists}.']),
    "the taint of a control plane": (
        unschedulable("0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 "
                      "node(s) didn't match Pod's node affinity/selector."), "setup", ["product=NVIDIA-A100-SXM4-80GB"]),
    "unbound claim": (
        unschedulable("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/3 nodes"), "setup",
        ["its claim toolformer-cache;", "kubectl describe pvc toolformer-cache", "storage class"]),
    "no claim": (unschedulable('0/1 nodes are available: persistentvolumeclaim "cache" not found. not found'), "setup",
                 ["Make the claim cache in namespace toolformer"]),
    "no such program": (pod(terminated(128, "StartError", 'exec: "/no/such/program": no such file or directory')), "setup",
                        ["cannot start (StartError", "no such file or directory"]),
    # The stage's own errors, and what was asked for.
    "error": (pod(terminated(1, message="ERROR DatabaseError: deadlock")),
              "stage", ["exit status 1: ERROR DatabaseError: deadlock"]),
    "init container": (pod(waiting("PodInitializing"), init=terminated(7, message="no such manifest")), "stage",
                       ["init container fetch: exit status 7: no such manifest"]),
    "deadline": (pod(terminated(137), reason="DeadlineExceeded", message="Pod was active on the node longer"), "stage",
                 ["deadline of 43200 s", "more shards"]),
    "more disk than its limit": (pod(reason="Evicted", message="Pod ephemeral local storage usage exceeds the total limit of "
                                     "containers 20Mi. "), "stage", ["own limit", "20Mi", "TOOLFORMER_CACHE_GIB"]),
    "a container's disk": (pod(reason="Evicted", message='Container stage exceeded its local ephemeral storage limit "24Gi". '),
                           "stage", ["24Gi"]),
    "a volume's disk": (pod(reason="Evicted", message='Usage of EmptyDir volume "cache" exceeds the limit "24Gi". '), "stage",
                        ["EmptyDir volume", "sizeLimit"]),
    "wrong request": (pod(terminated(2, message="a\nERROR CorpusError: expected x")),
                      "request", ["exit status 2: ERROR CorpusError"]),
    "no result": (pod(terminated(3)), "request", ["exit status 3: no message"]),
    "failed without a word": (pod(), "stage", ["the pod is Failed", "kubectl describe pod sample-x1"]),
}
GONE: dict[str, tuple[list[tuple[str, str]], Fault, str]] = {
    "evicted by its node": ([("Evicted", NODE_LOW), ("Killing", "Stopping container stage")], "outside",
                            "Evicted by its node: The node was low on resource: memory"),
    "over its own disk": ([("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ")], "stage",
                          "TOOLFORMER_CACHE_GIB"),
    "node removed by the autoscaler": ([("ScaleDown", "deleting pod for node scale down")], "outside", "was evicted: deleting pod"),
    "preempted": ([("Killing", "Stopping container stage"), ("Preempted", "Preempted by pod 4f1c on node gpu-7")], "outside",
                  "preempted by a pod of higher priority: Preempted by pod 4f1c"),
    "node cut off": ([("NodeNotReady", "Node is not ready"), ("TaintManagerEviction", "Marking for deletion Pod toolformer/x")],
                     "outside", "removed from its node, which was tainted (not ready"),
    "eviction cancelled, then deleted": ([("TaintManagerEviction", "Cancelling deletion of Pod toolformer/x"),
                                          ("Killing", "Stopping container stage")], "outside", "was deleted, or evicted"),
    "deleted, or drained": ([("Started", "Started container stage"), ("Killing", "Stopping container stage")], "outside",
                            "was deleted, or evicted since its node is drained"),
    "node gone": ([("NodeNotReady", "Node is not ready")], "outside", "gone with its node"),
    "no events": ([], "outside", "is gone: it was deleted, or its node was"),
}
# fmt: on


@pytest.mark.parametrize("case", CASES)
def test_how_a_pod_ended_is_said_in_one_sentence_with_whose_fault_it_is(case: str) -> None:
    ended, fault, parts, *events = CASES[case]
    found = describe_pod_ending(ended, *events)
    assert found.fault == fault, found.message
    assert [part for part in parts if part not in found.message] == []
    assert "\n" not in found.message
    assert not re.search(r"\{\w+\}", found.message)


@pytest.mark.parametrize("case", GONE)
def test_a_pod_that_the_api_does_not_show_is_described_by_its_events(case: str) -> None:
    events, fault, part = GONE[case]
    found = describe_gone_pod("sample-x1", [event(*one) for one in events])
    assert found.fault == fault
    assert part in found.message


def test_a_pod_that_is_gone_is_described_by_its_condition_if_that_was_seen() -> None:
    last = disrupted("EvictionByEvictionAPI", "Eviction API: evicting")
    found = describe_gone_pod("sample-x1", [event("Killing", "Stopping container stage", "Normal")], what_befell(last))
    assert "evicted (its node is drained" in found.message
    assert what_befell(pod(terminated(0, "Completed"), phase="Succeeded")) is None


def test_a_pod_that_did_its_work_succeeded_whatever_a_container_beside_it_did() -> None:
    assert describe_pod_ending(pod(terminated(0, "Completed"), phase="Succeeded")).message == "the pod succeeded."


def test_a_signal_without_a_name_is_shown_by_its_number() -> None:
    assert "signal 33" in describe_exit(128 + 33).message
    assert describe_exit(200, "odd").message == "exit status 200: odd"
