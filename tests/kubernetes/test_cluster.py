"""The cluster of the tests does what Kubernetes does, as far as our pods and Airflow can tell.

The containers are shell scripts; each test goes through one matter from its begin to its end.
"""

import base64
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from tests.kubernetes.cgroups import cgroup_base
from tests.kubernetes.cluster import GPU, NAMESPACE, TestCluster, cpu_node, gpu_node
from tests.kubernetes.conftest import pod

ENDED = ("Succeeded", "Failed")
STOPS_WELL = "trap 'echo asked to end; exit 143' TERM; echo ready; while :; do sleep 0.05; done"
"""A process that handles SIGTERM."""
DEAF = "echo ready; while :; do sleep 0.05; done"
"""PID 1 without a handler: the kernel drops its SIGTERM."""


@pytest.fixture(scope="module")
def api(cluster: TestCluster) -> client.CoreV1Api:
    return cluster.client()


@pytest.fixture(scope="module")
def airflow(cluster: TestCluster) -> client.CoreV1Api:
    """A client with the rights of Airflow's workers."""
    return client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig)))


def read(api: client.CoreV1Api, name: str) -> Any:
    return api.read_namespaced_pod(name, NAMESPACE)


def is_gone(api: client.CoreV1Api, name: str) -> bool:
    return name not in {found.metadata.name for found in api.list_namespaced_pod(NAMESPACE).items}


def log(api: client.CoreV1Api, name: str, **query: Any) -> str:
    response = api.read_namespaced_pod_log(name, NAMESPACE, _preload_content=False, **query)
    return str(response.data.decode())


def run(cluster: TestCluster, api: client.CoreV1Api, made: dict[str, Any]) -> Any:
    """The pod when it has ended."""
    name = made["metadata"]["name"]
    api.create_namespaced_pod(NAMESPACE, made)
    cluster.wait_for(lambda: read(api, name).status.phase in ENDED, f"{name} ends")
    return read(api, name)


def start(cluster: TestCluster, api: client.CoreV1Api, made: dict[str, Any]) -> str:
    """The name of a pod that has said that it is ready."""
    name = str(made["metadata"]["name"])
    api.create_namespaced_pod(NAMESPACE, made)
    cluster.wait_for(
        lambda: read(api, name).status.phase == "Running" and "ready" in log(api, name), f"{name} is ready"
    )
    return name


def terminated(found: Any) -> Any:
    return found.status.container_statuses[0].state.terminated


def waiting(api: client.CoreV1Api, name: str) -> Any:
    statuses = read(api, name).status.container_statuses
    return statuses[0].state.waiting if statuses else None


def refusal(make: Callable[[], object]) -> tuple[int, str]:
    """The code and the message with which the API server refuses."""
    with pytest.raises(ApiException) as caught:
        make()
    return int(caught.value.status), str(json.loads(caught.value.body)["message"])


# A pod's life


def test_a_pod_runs_to_its_end_and_says_how(cluster: TestCluster, api: client.CoreV1Api) -> None:
    done = run(cluster, api, pod("done", "echo one; echo two >&2; exit 0"))
    assert done.status.phase == "Succeeded"
    assert (terminated(done).exit_code, terminated(done).reason, terminated(done).message) == (0, "Completed", "")
    assert log(api, "done") == "one\ntwo\n"

    failed = run(cluster, api, pod("failed", "echo expected a corpus, found none; exit 2"))
    assert failed.status.phase == "Failed"
    assert (terminated(failed).exit_code, terminated(failed).reason) == (2, "Error")
    assert terminated(failed).message == "expected a corpus, found none"  # FallbackToLogsOnError

    written = run(cluster, api, pod("written", "echo in the log; echo in the file > /dev/termination-log; exit 1"))
    assert terminated(written).message == "in the file\n"
    missing = run(cluster, api, pod("no-command", "", container={"command": ["no-such-program"]}))
    assert (terminated(missing).exit_code, terminated(missing).reason) == (128, "StartError")


def test_a_container_sees_its_image_and_its_volumes_and_may_nothing(
    cluster: TestCluster, api: client.CoreV1Api
) -> None:
    script = """
    id -u; id -G; echo pid $$
    touch /here 2>/dev/null || echo root is read-only
    touch /tmp/here && stat -c '%g' /tmp/here
    ls /claim; touch /claim/from-pod
    grep NoNewPrivs /proc/self/status; grep CapEff /proc/self/status
    cat /etc/shadow 2>/dev/null || echo no rights
    python -c 'import toolformer_ops, sys; print(sys.prefix)'
    df --output=size -B1 /memory | tail -1
    """
    folder = cluster.add_claim("cache")
    (folder / "from-node").touch()
    volumes = [
        {"name": "temporary", "emptyDir": {}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    mounts = [
        {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108
        {"name": "cache", "mountPath": "/claim"},
        {"name": "memory", "mountPath": "/memory"},
    ]
    Path("/tmp/on-the-node").touch()  # noqa: S108
    run(cluster, api, pod("sees", script + "ls /tmp", container={"volumeMounts": mounts}, volumes=volumes))
    Path("/tmp/on-the-node").unlink()  # noqa: S108
    lines = log(api, "sees").splitlines()
    assert lines[:6] == ["10001", "10001", "pid 1", "root is read-only", "10001", "from-node"]
    assert lines[6:9] == ["NoNewPrivs:\t1", "CapEff:\t0000000000000000", "no rights"]
    assert int(lines[10]) == 2**20
    assert lines[11:] == ["here"]  # nothing of the machine's /tmp
    assert (folder / "from-pod").stat().st_gid == 10001


def test_the_environment_comes_from_the_image_the_pod_and_secrets(cluster: TestCluster, api: client.CoreV1Api) -> None:
    reference = {"name": "late", "key": "password"}
    variables = [
        {"name": "PLAIN", "value": "plain"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": reference}},
        {"name": "OPTIONAL", "valueFrom": {"secretKeyRef": {"name": "never", "key": "k", "optional": True}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    script = "echo $PLAIN $SECRET ${OPTIONAL-unset} $NODE $OMP_NUM_THREADS"
    api.create_namespaced_pod(NAMESPACE, pod("environment", script, container={"env": variables}))
    found = cluster.wait_for(lambda: waiting(api, "environment"), "the Secret is missing")
    assert (found.reason, found.message) == ("CreateContainerConfigError", 'secrets "late" not found')
    cluster.add_secret("late", {"user": "somebody"})
    cluster.wait_for(
        lambda: "couldn't find key password" in (waiting(api, "environment").message or ""), "the key is missing"
    )
    cluster.add_secret("late", {"password": "hidden"})
    cluster.wait_for(lambda: read(api, "environment").status.phase == "Succeeded", "it runs")
    assert log(api, "environment") == "plain hidden unset cpu-0 1\n"
    assert base64.b64decode(api.read_namespaced_secret("late", NAMESPACE).data["password"]) == b"hidden"


def test_an_image_that_cannot_be_pulled_is_said_and_tried_again(cluster: TestCluster, api: client.CoreV1Api) -> None:
    api.create_namespaced_pod(NAMESPACE, pod("no-image", "true", container={"image": "registry.example/other:1"}))
    cluster.wait_for(lambda: getattr(waiting(api, "no-image"), "reason", "") == "ErrImagePull", "the pull fails")
    assert "registry.example/other:1: not found" in waiting(api, "no-image").message
    cluster.wait_for(lambda: waiting(api, "no-image").reason == "ImagePullBackOff", "it waits")
    cluster.kubelet.images["registry.example/other:1"] = next(iter(cluster.kubelet.images.values()))
    cluster.kubelet.image_pull_seconds = 0.2
    cluster.wait_for(lambda: read(api, "no-image").status.phase == "Succeeded", "the image is there")
    cluster.kubelet.image_pull_seconds = 0.0
    assert any(event.startswith("Failed: Failed to pull image") for event in cluster.events("no-image"))


def test_gpus_are_counted_and_pods_wait_for_a_node_that_fits(cluster: TestCluster, api: client.CoreV1Api) -> None:
    on_gpu = {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
    }

    def wants(count: int) -> dict[str, Any]:
        return {"resources": {"limits": {GPU: str(count)}}}

    both = start(cluster, api, pod("both-gpus", STOPS_WELL, container=wants(2), **on_gpu))
    assert cluster.gpus_in_use() == 2
    api.create_namespaced_pod(NAMESPACE, pod("third-gpu", "true", container=wants(1), **on_gpu))
    api.create_namespaced_pod(NAMESPACE, pod("intolerant", "true", container=wants(1)))
    cluster.wait_for(lambda: cluster.events("third-gpu") and cluster.events("intolerant"), "both are refused a node")
    (condition,) = read(api, "third-gpu").status.conditions
    assert (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable")
    assert "1 Insufficient nvidia.com/gpu" in condition.message
    assert "untolerated taint(s) {nvidia.com/gpu: }" in cluster.events("intolerant")[0]

    api.delete_namespaced_pod(both, NAMESPACE)
    cluster.wait_for(lambda: read(api, "third-gpu").status.phase == "Succeeded", "a GPU is free")
    api.delete_namespaced_pod("intolerant", NAMESPACE)  # a pod without a node goes at once
    assert is_gone(api, "intolerant")
    assert cluster.gpus_in_use() == 0
    assert cluster.most_gpus_in_use == 2


# How pods end


def test_the_terminal_phase_is_written_before_a_deleted_pod_goes(cluster: TestCluster, api: client.CoreV1Api) -> None:
    """What Airflow sees in between makes its task a success or a failure."""
    name = start(cluster, api, pod("asked", STOPS_WELL))
    seen: list[tuple[str, str, bool]] = []

    def look() -> None:
        selected = {"field_selector": f"metadata.name={name}", "timeout_seconds": 10}
        for change in watch.Watch().stream(api.list_namespaced_pod, NAMESPACE, **selected):
            found = change["object"]
            seen.append((change["type"], found.status.phase, found.metadata.deletion_timestamp is not None))
            if change["type"] == "DELETED":
                return

    watching = threading.Thread(target=look)
    watching.start()
    cluster.wait_for(lambda: seen, "the watch has begun")
    api.delete_namespaced_pod(name, NAMESPACE)
    watching.join()
    assert seen == [
        ("ADDED", "Running", False),
        ("MODIFIED", "Running", True),
        ("MODIFIED", "Failed", True),
        ("DELETED", "Failed", True),
    ]
    (record,) = [record for record in cluster.records if record.name == name]
    assert (record.exit_code, record.message) == (143, "ready\nasked to end")


def test_who_ignores_sigterm_is_killed_after_the_grace_period(cluster: TestCluster, api: client.CoreV1Api) -> None:
    name = start(cluster, api, pod("deaf", DEAF, terminationGracePeriodSeconds=1))
    api.delete_namespaced_pod(name, NAMESPACE)
    cluster.wait_for(lambda: is_gone(api, name), "it is killed")
    assert cluster.records[-1].exit_code == 137

    name = start(cluster, api, pod("deaf-for-long", DEAF, terminationGracePeriodSeconds=600))
    api.delete_namespaced_pod(name, NAMESPACE)
    api.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=1)  # a later word shortens the time
    cluster.wait_for(lambda: is_gone(api, name), "it is killed soon")

    name = start(cluster, api, pod("by-force", DEAF))
    api.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)
    assert is_gone(api, name)
    cluster.wait_for(lambda: cluster.records[-1].ended is not None, "its process is gone, too")


def test_a_deadline_an_eviction_and_a_full_volume_end_a_pod_with_their_reason(
    cluster: TestCluster, api: client.CoreV1Api
) -> None:
    late = run(cluster, api, pod("late", DEAF, activeDeadlineSeconds=1))
    assert (late.status.phase, late.status.reason) == ("Failed", "DeadlineExceeded")

    name = start(cluster, api, pod("evicted", DEAF))
    cluster.evict(name, "The node was low on resource: ephemeral-storage.")
    cluster.wait_for(lambda: read(api, name).status.phase == "Failed", "it is evicted")
    evicted = read(api, name)
    assert (evicted.status.reason, terminated(evicted).exit_code) == ("Evicted", 137)
    assert evicted.status.message == "The node was low on resource: ephemeral-storage."
    (event,) = [
        event
        for event in api.list_namespaced_event(NAMESPACE).items
        if event.reason == "Evicted" and event.involved_object.name == name
    ]
    assert event.message == evicted.status.message

    volume = {"name": "small", "emptyDir": {"sizeLimit": "64Ki"}}
    mount = {"volumeMounts": [{"name": "small", "mountPath": "/small"}]}
    script = "head -c 1000000 /dev/zero > /small/file; sleep 60"
    full = run(cluster, api, pod("full", script, container=mount, volumes=[volume]))
    assert full.status.message == 'Usage of EmptyDir volume "small" exceeds the limit "64Ki". '


def test_a_container_over_its_memory_limit_is_killed(cluster: TestCluster, api: client.CoreV1Api) -> None:
    name = start(cluster, api, pod("told-oom", DEAF))
    cluster.oom(name)
    cluster.wait_for(lambda: read(api, name).status.phase == "Failed", "it is killed")
    assert (terminated(read(api, name)).reason, terminated(read(api, name)).exit_code) == ("OOMKilled", 137)
    if cgroup_base() is None:
        pytest.skip("no memory cgroup can be made here: limits are not enforced, only `oom` is tested")
    limited = {"command": ["python", "-c", "bytearray(10**9)"], "resources": {"limits": {"memory": "64Mi"}}}
    killed = terminated(run(cluster, api, pod("over", "", container=limited)))
    assert (killed.reason, killed.exit_code) == ("OOMKilled", 137)
    assert 2**25 < cluster.records[-1].peak_memory_bytes <= 2**26


def test_a_lost_node_leaves_its_pods_running_until_they_are_gone(cluster: TestCluster, api: client.CoreV1Api) -> None:
    cluster.add_node(cpu_node("lost", labels={"pool": "lost"}))
    name = start(cluster, api, pod("on-lost-node", DEAF, nodeSelector={"pool": "lost"}))
    cluster.kill_node("lost", gone_after=0.5)
    assert read(api, name).status.phase == "Running"
    assert refusal(lambda: log(api, name))[0] == 500
    cluster.wait_for(lambda: is_gone(api, name), "the garbage collector takes it")
    assert cluster.records[-1].exit_code is None or cluster.records[-1].reason == "DeletionByPodGC"
    assert "lost" not in {node.metadata.name for node in api.list_node().items}


# The API


def test_a_role_allows_what_it_says_and_nothing_else(cluster: TestCluster, airflow: client.CoreV1Api) -> None:
    assert isinstance(airflow.list_namespaced_pod(NAMESPACE).items, list)
    before = len(cluster.api.forbidden)
    code, message = refusal(lambda: airflow.list_namespaced_secret(NAMESPACE))
    assert code == 403
    assert message == (
        'secrets is forbidden: User "system:serviceaccount:toolformer:airflow" cannot list resource "secrets" in API group "" '
        'in the namespace "toolformer"'
    )
    assert refusal(airflow.list_node)[0] == 403
    assert refusal(lambda: airflow.read_namespaced_pod_status("none", NAMESPACE))[0] == 403
    assert len(cluster.api.forbidden) == before + 3
    asked = client.V1SelfSubjectAccessReviewSpec
    reviews = client.AuthorizationV1Api(airflow.api_client)

    def may(verb: str, resource: str) -> bool:
        attributes = client.V1ResourceAttributes(namespace=NAMESPACE, verb=verb, resource=resource)
        review = client.V1SelfSubjectAccessReview(spec=asked(resource_attributes=attributes))
        return bool(reviews.create_self_subject_access_review(review).status.allowed)

    assert [may("create", "pods"), may("get", "secrets"), may("watch", "pods")] == [True, False, False]

    settings = yaml.safe_load(cluster.kubeconfig.read_text())
    server = settings["clusters"][0]["cluster"]["server"]
    wrong = urllib3.request("GET", f"{server}/api/v1/nodes", headers={"Authorization": "Bearer guessed"})
    assert wrong.status == 401


def test_what_kubernetes_would_refuse_is_refused(cluster: TestCluster, api: client.CoreV1Api) -> None:
    def created(made: dict[str, Any]) -> tuple[int, str]:
        return refusal(lambda: api.create_namespaced_pod(NAMESPACE, made))

    code, message = created(pod("typo", "true", container={"resource": {}}))
    assert (code, "'resource' was unexpected" in message) == (400, True)
    bare = pod("bare", "true", container={"securityContext": {}})
    bare["spec"]["securityContext"] = {}
    code, message = created(bare)
    assert code == 403
    assert message == (
        'pods "bare" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false '
        '(container "stage" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities '
        '(container "stage" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true '
        '(pod or container "stage" must set securityContext.runAsNonRoot=true), seccompProfile '
        '(pod or container "stage" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'
    )
    on_host = {"name": "host", "hostPath": {"path": "/tmp"}}  # noqa: S108
    assert 'hostPath volumes (volume "host")' in created(pod("host", "true", volumes=[on_host]))[1]
    assert (
        "must be no more than 63 characters"
        in created({**pod("l", ""), "metadata": {"name": "l", "labels": {"a": "x" * 64}}})[1]
    )
    assert created(pod("Upper", "true"))[0] == 422
    assert "service account toolformer/none" in created(pod("account", "true", serviceAccountName="none"))[1]
    api.create_namespaced_pod(NAMESPACE, pod("twice", "true"))
    assert created(pod("twice", "true")) == (409, 'pods "twice" already exists')
    assert refusal(lambda: api.delete_namespaced_pod("nobody", NAMESPACE)) == (404, 'pods "nobody" not found')


def test_pods_are_selected_patched_and_deleted_by_their_id(cluster: TestCluster, api: client.CoreV1Api) -> None:
    for number in ("1", "2"):
        made = pod(f"selected-{number}", "true")
        made["metadata"]["labels"] = {"run": "selected", "try_number": number}
        run(cluster, api, made)

    def names(labels: str, fields: str = "") -> list[str]:
        found = api.list_namespaced_pod(NAMESPACE, label_selector=labels, field_selector=fields).items
        return [item.metadata.name for item in found]

    assert names("run=selected,try_number!=1") == ["selected-2"]
    assert names("run in (selected, other),!checked") == ["selected-1", "selected-2"]
    assert names("run", "metadata.name=selected-1,status.phase=Succeeded") == ["selected-1"]
    assert names("try_number notin (1,2),run=selected") == []

    api.patch_namespaced_pod(
        "selected-1", NAMESPACE, {"metadata": {"labels": {"checked": "True"}, "finalizers": ["a/b"]}}
    )
    assert names("run=selected,checked!=True") == ["selected-2"]
    uid = read(api, "selected-1").metadata.uid
    other = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="other"))
    assert refusal(lambda: api.delete_namespaced_pod("selected-1", NAMESPACE, body=other))[0] == 409
    same = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=uid))
    api.delete_namespaced_pod("selected-1", NAMESPACE, body=same)
    cluster.wait_for(lambda: read(api, "selected-1").metadata.deletion_timestamp, "it waits for its finalizer")
    api.patch_namespaced_pod("selected-1", NAMESPACE, {"metadata": {"finalizers": None}})
    cluster.wait_for(lambda: is_gone(api, "selected-1"), "the finalizer is gone")


def test_a_log_is_followed_and_read_in_part(cluster: TestCluster, api: client.CoreV1Api) -> None:
    name = start(cluster, api, pod("talks", "echo first; sleep 1.2; echo ready; sleep 0.2; printf last"))
    stream = api.read_namespaced_pod_log(name, NAMESPACE, follow=True, timestamps=True, _preload_content=False)
    lines = b"".join(stream.stream()).decode().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["first", "ready", "last"]
    assert all(line[4] == "-" and line.partition(" ")[0].endswith("Z") for line in lines)
    assert log(api, name, tail_lines=1) == "last\n"
    assert "first" not in log(api, name, since_seconds=1)


def test_an_outage_cuts_connections_and_pods_run_on(cluster: TestCluster, api: client.CoreV1Api) -> None:
    name = start(cluster, api, pod("through-outage", "echo ready; sleep 1; echo done"))
    cluster.outage(1.0)
    asking = client.CoreV1Api(config.new_client_from_config(str(cluster.admin_kubeconfig)))
    with pytest.raises(urllib3.exceptions.HTTPError):
        asking.api_client.rest_client.pool_manager.request("GET", asking.api_client.configuration.host, retries=False)
    cluster.wait_for(lambda: cluster.records[-1].ended is not None, "it ends meanwhile or after")
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            assert read(asking, name).status.phase == "Succeeded"
            break
        except urllib3.exceptions.HTTPError:
            time.sleep(0.1)
    assert log(api, name) == "ready\ndone\n"


def test_what_happened_is_counted(cluster: TestCluster, api: client.CoreV1Api) -> None:
    before = cluster.started_by_stage()["sample"]
    stage = {"command": ["sh", "-c", "exit 0", "--"], "args": ["stage", "sample", "--run", "r"]}
    run(cluster, api, pod("counted", "", container=stage))
    assert cluster.started_by_stage()["sample"] == before + 1
    assert cluster.api.requests["create", "pods", "admin"] >= 1
    assert cluster.most_at_work >= 1


def test_no_process_and_no_mount_outlives_the_cluster(tmp_path: Path, cluster: TestCluster) -> None:
    folder = {"name": "host", "hostPath": {"path": str(tmp_path / "on-node"), "type": "DirectoryOrCreate"}}
    mount = {"volumeMounts": [{"name": "host", "mountPath": "/host"}]}
    privileged = pod(
        "as-root", f"touch /host/file; {DEAF}", container={"securityContext": {}, **mount}, volumes=[folder]
    )
    privileged["spec"]["securityContext"] = {"runAsUser": 0}
    with TestCluster(tmp_path, [gpu_node("gpu-0", 1), cpu_node("cpu-0")], pod_security="privileged") as other:
        start(other, other.client(), privileged)
        assert (tmp_path / "on-node/file").stat().st_uid == 0
        assert processes_of("as-root")
    assert not processes_of("as-root")
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert not (tmp_path / "pods").exists()


def processes_of(pod_name: str) -> list[Path]:
    """All processes of this machine that run in the container of that pod."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"HOSTNAME={pod_name}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(process)
    return found
