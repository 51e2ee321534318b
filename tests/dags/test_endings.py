"""How a pod ended, from statuses and events as clusters write them: the sentence of the failed task, and its kind of retry."""

from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes.client import models as k8s

from toolformer_ops.orchestration.endings import describe_exit, describe_lost_pod, describe_pod_ending

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
    deleted: bool = False,
    **status: Any,
) -> k8s.V1Pod:
    """A stage's pod on node gpu-7 whose container is in this state."""
    return k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(
            name="sample-x1",
            namespace="toolformer",
            deletion_timestamp=datetime(2026, 11, 22, tzinfo=UTC) if deleted else None,
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
PULL = 'Failed to pull image "registry.example/toolformer:1.4": '

BEFALLEN = {
    "OOMKilled": (
        pod(terminated(137, "OOMKilled"), limits={"memory": "32Gi"}),
        137,
        ["OOMKilled at its limit of 32Gi of memory", "resources.limits.memory"],
    ),
    "OOMKilled without a limit": (pod(terminated(137, "OOMKilled")), 137, ["no memory limit"]),
    "evicted": (
        pod(terminated(137), reason="Evicted", message=NODE_LOW),
        137,
        ["Evicted by node gpu-7: The node was low on resource: memory. Threshold quantity: 100Mi", "request"],
    ),
    "evicted before it ran": (
        pod(reason="Evicted", message="Usage of EmptyDir volume exceeds"),
        None,
        ["EmptyDir volume"],
    ),
    "drained": (
        pod(
            terminated(143),
            conditions=[condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")],
        ),
        143,
        ["evicted (its node is drained", "last committed micro-batch"],
    ),
    "preempted": (
        pod(
            terminated(143),
            conditions=[
                condition("DisruptionTarget", "True", "PreemptionByScheduler", "preempting to accommodate a pod")
            ],
        ),
        143,
        ["preempted by a pod of higher priority"],
    ),
    "node lost": (pod(reason="NodeLost", message="Node gpu-7 which was running pod is unresponsive"), None, ["gpu-7"]),
    "node shut down": (
        pod(reason="Terminated", message="Pod was terminated in response to imminent node shutdown."),
        None,
        ["imminent node shutdown", "another node"],
    ),
    "node silent": (pod(phase="Unknown"), None, ["node gpu-7 does not answer", "kubectl get nodes"]),
    "node gone": (
        pod(terminated(137, "ContainerStatusUnknown", "The container could not be located")),
        None,
        ["nobody knows how the container ended"],
    ),
    "refused by node": (
        pod(reason="OutOfnvidia.com/gpu", message="Pod was rejected: Node didn't have enough resource"),
        None,
        ["node gpu-7 refused the pod"],
    ),
    "deleted": (pod(deleted=True, phase="Running"), None, ["was deleted before the stage ended"]),
    "SIGTERM": (
        pod(terminated(143, message="sample: told to end")),
        143,
        ["ended by SIGTERM", "last committed micro-batch"],
    ),
    "segmentation fault": (pod(terminated(139)), 139, ["killed by SIGSEGV", "set apart by itself"]),
    "infrastructure": (
        pod(
            terminated(
                75, message="10:00:01 INFO sample\n10:00:02 ERROR ModelHubError: expected the hub to answer.\n\n"
            )
        ),
        75,
        ["not there now: 10:00:02 ERROR ModelHubError: expected the hub to answer"],
    ),
    "registry away": (
        pod(waiting("ErrImagePull", PULL + "dial tcp 10.0.0.9:443: i/o timeout"), phase="Pending"),
        None,
        [IMAGE, "i/o timeout", "pull secret"],
    ),
    "no GPU free": (
        unschedulable(
            "0/9 nodes are available: 1 Insufficient nvidia.com/gpu, 8 didn't match Pod's node affinity/selector."
        ),
        None,
        ["Insufficient nvidia.com/gpu", "pool `gpu`"],
    ),
    "no GPU free on the nodes that may be used": (
        unschedulable(
            "0/4 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 3 Insufficient "
            "nvidia.com/gpu."
        ),
        None,
        ["pool `gpu`"],
    ),
    "a node that is not ready": (
        unschedulable(
            "0/3 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }, 2 node(s) didn't match "
            "Pod's node affinity/selector."
        ),
        None,
        ["kubectl get nodes"],
    ),
    "no memory free": (unschedulable("0/2 nodes are available: 2 Insufficient memory."), None, ["lower resources"]),
    "queued": (
        pod(
            phase="Pending", conditions=[condition("PodScheduled", "False", "SchedulingGated", "Scheduling is blocked")]
        ),
        None,
        ["queue"],
    ),
}
"""What befell the pod: its status, the exit code to be found, and what the message says."""

OWN_FAULT = {
    "error": (
        pod(terminated(1, message="ERROR DatabaseError: deadlock")),
        1,
        ["exit status 1: ERROR DatabaseError: deadlock"],
    ),
    "wrong request": (
        pod(terminated(2, message="a\nERROR CorpusError: expected x")),
        2,
        ["exit status 2: ERROR CorpusError"],
    ),
    "no result": (pod(terminated(3)), 3, ["exit status 3: no message"]),
    "deadline": (
        pod(terminated(137), reason="DeadlineExceeded", message="Pod was active on the node longer"),
        137,
        ["deadline of 43200 s", "more shards"],
    ),
    "no such image": (
        pod(waiting("ImagePullBackOff", 'Back-off pulling image "registry.example/toolformer:1.4"'), phase="Pending"),
        None,
        [IMAGE, "manifest unknown", "TOOLFORMER_KUBERNETES_IMAGE"],
    ),
    "no Secret": (
        pod(waiting("CreateContainerConfigError", 'secret "toolformer" not found'), phase="Pending"),
        None,
        ['secret "toolformer" not found', "namespace toolformer", "TOOLFORMER_KUBERNETES_SECRET"],
    ),
    "no key": (
        pod(
            waiting(
                "CreateContainerConfigError",
                "couldn't find key TOOLFORMER_DATABASE_DSN in Secret toolformer/toolformer",
            ),
            phase="Pending",
        ),
        None,
        ["couldn't find key TOOLFORMER_DATABASE_DSN in Secret toolformer/toolformer"],
    ),
    "unknown label": (
        unschedulable(
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes"
        ),
        None,
        ["nvidia.com/gpu.product=NVIDIA-A100-SXM4-80GB", "--show-labels"],
    ),
    "taints of a cloud": (
        unschedulable(
            "0/6 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 1 node(s) had "
            "untolerated taint {sku: gpu}, 1 node(s) had untolerated taint(s) {cloud.google.com/gke-spot: true}, 1 node(s) had "
            "untolerated taint {nvidia.com/gpu: }, 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/6 nodes are "
            "available: 6 Preemption is not helpful for scheduling."
        ),
        None,
        [
            "not a lack of room",
            'tolerations in the pod template: {key: sku, operator: Equal, value: "gpu"}, {key: cloud.google.com/gke-spot, '
            'operator: Equal, value: "true"}, {key: nvidia.com/gpu, operator: Exists}.',
        ],
    ),
    "the taint of a control plane": (
        unschedulable(
            "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 node(s) didn't "
            "match Pod's node affinity/selector."
        ),
        None,
        ["nvidia.com/gpu.product=NVIDIA-A100-SXM4-80GB"],
    ),
    "unbound claim": (
        unschedulable(
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/3 nodes"
        ),
        None,
        ["its claim toolformer-cache;", "kubectl describe pvc toolformer-cache", "storage class"],
    ),
    "no such program": (
        pod(terminated(128, "StartError", 'exec: "python": executable file not found in $PATH')),
        128,
        ["cannot start (StartError)", "executable file not found"],
    ),
    "init container": (
        pod(waiting("PodInitializing"), init=terminated(1, message="no such manifest"), phase="Failed"),
        1,
        ["init container fetch: exit status 1: no such manifest"],
    ),
}


@pytest.mark.parametrize("case", BEFALLEN)
def test_what_befell_a_pod_is_named_and_retried_as_infrastructure(case: str) -> None:
    ended, exit_code, parts = BEFALLEN[case]
    found = describe_pod_ending(ended, [event("Failed", PULL + "manifest unknown")])
    assert found.infrastructure
    assert found.exit_code == exit_code
    assert [part for part in parts if part not in found.message] == []
    assert "\n" not in found.message


@pytest.mark.parametrize("case", OWN_FAULT)
def test_what_a_later_try_would_meet_again_is_named_and_not_taken_for_infrastructure(case: str) -> None:
    ended, exit_code, parts = OWN_FAULT[case]
    found = describe_pod_ending(
        ended, [event("Failed", PULL + "manifest unknown"), event("Failed", "Error: ErrImagePull")]
    )
    assert not found.infrastructure
    assert found.exit_code == exit_code
    assert [part for part in parts if part not in found.message] == []


def test_a_volume_that_cannot_be_mounted_is_in_the_events_alone() -> None:
    pending = pod(waiting("ContainerCreating"), phase="Pending")
    found = describe_pod_ending(
        pending, [event("FailedMount", 'MountVolume failed: persistentvolumeclaim "cache" not found')]
    )
    assert 'persistentvolumeclaim "cache" not found' in found.message


def test_a_pod_that_did_its_work_has_status_0_whatever_a_container_beside_it_did() -> None:
    assert describe_pod_ending(pod(terminated(0, "Completed"), phase="Succeeded")).exit_code == 0
    assert describe_pod_ending(pod(phase="Succeeded")).exit_code == 0


def test_a_pod_that_the_api_does_not_show_is_infrastructure() -> None:
    found = describe_lost_pod("sample-x1")
    assert found.infrastructure
    assert "sample-x1 is gone" in found.message


def test_a_signal_without_a_name_is_shown_by_its_number() -> None:
    assert "signal 33" in describe_exit(128 + 33).message
    assert describe_exit(200, "odd").message == "exit status 200: odd"
