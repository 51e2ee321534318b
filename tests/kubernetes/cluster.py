"""A Kubernetes cluster for tests: API server, scheduler and kubelets in one thread; containers are processes of this machine.

Real are the REST API with its refusals, the clients that talk to it, and the processes: each container has a
read-only root of its own, sees no file of the machine but its image and its volumes, is PID 1, and has no
rights. Not real are the images (paths of this machine), nodes, GPUs and memory limits (numbers), and the
network (the machine's). `tests/kubernetes/real` asks a real cluster.
"""

import asyncio
import base64
import copy
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
import yaml
from kubernetes import client, config

from tests.kubernetes.api_server import ApiError, ApiServer, Json, Log, Objects, User, now
from tests.kubernetes.kubelet import NAMESPACE, Ending, Image, Kubelet, PodRecord, Work, local_image
from toolformer_ops.config import REPOSITORY

Result = TypeVar("Result")

IMAGE = "registry.example/toolformer:test"
GPU = "nvidia.com/gpu"
A100 = "NVIDIA-A100-SXM4-80GB"
RIGHTS = tuple(
    yaml.safe_load_all((REPOSITORY / "deploy" / "kubernetes" / "base" / "rights.yaml").read_text())
)
"""Service accounts, Role and RoleBinding of a deployment."""
AIRFLOW_ROLE: tuple[Mapping[str, Any], ...] = tuple(
    rule for manifest in RIGHTS if manifest["kind"] == "Role" for rule in manifest["rules"]
)
POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node's name, labels, taints, and how many GPUs its pods may request together."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    disk: str = "512Gi"
    gpus: int = 0


def gpu_node(name: str, gpus: int, product: str = A100) -> Node:
    """A node as NVIDIA's GPU operator labels it, on which only pods that tolerate it run."""
    taint = {"key": GPU, "effect": "NoSchedule"}
    return Node(name=name, gpus=gpus, labels={"nvidia.com/gpu.product": product}, taints=[taint])


def cpu_node(name: str, **more: Any) -> Node:
    return Node(name=name, **more)


class TestCluster:
    """See the module. Methods are called from any thread but its own; they return when it is done."""

    __test__ = False
    image, namespace = IMAGE, NAMESPACE

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[Node] = (Node(name="node-0"),),
        *,
        images: Mapping[str, Image] | None = None,
        role: Sequence[Mapping[str, Any]] = AIRFLOW_ROLE,
    ) -> None:
        self.role = tuple(role)
        self.records: list[PodRecord] = []
        """All pods that ever were, in the order of their making."""
        self.errors: list[BaseException] = []
        """Of the cluster itself; `wait_for` and `close` raise the first."""
        self.most_gpus_in_use = 0
        self.kubeconfig = folder / "kubeconfig"
        """For a client with the rights of `role`, as Airflow's workers have."""
        self.admin_kubeconfig = folder / "admin-kubeconfig"
        self._nodes = {node.name: node for node in nodes}
        self._works: dict[str, Work] = {}  # by the pod's uid
        self._tasks: set[asyncio.Task[None]] = set()
        self._objects = Objects()
        self.kubelet = Kubelet(folder, self._objects, images or {IMAGE: local_image()})
        self._tokens = {"airflow": secrets.token_hex(16), "admin": secrets.token_hex(16)}
        users = {
            self._tokens["airflow"]: User(f"system:serviceaccount:{NAMESPACE}:airflow", tuple(role)),
            self._tokens["admin"]: User("admin"),
        }
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        self.api = self._call(self._new_api(users))
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self._add(
            "namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}, "status": {"phase": "Active"}}
        )
        accounts = [found["metadata"]["name"] for found in RIGHTS if found["kind"] == "ServiceAccount"]
        for account in ("default", *accounts):
            self._add("serviceaccounts", {"metadata": {"name": account, "namespace": NAMESPACE}})
        for node in nodes:
            self.add_node(node)
        for user, path in (("airflow", self.kubeconfig), ("admin", self.admin_kubeconfig)):
            path.write_text(yaml.safe_dump(self._kubeconfig(user)))
            path.chmod(0o600)

    # What tests ask and do

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all containers, close the port, remove what was on the nodes, and raise what went wrong in the cluster itself."""

        async def stop() -> None:
            await self.api.stop()
            for work in self._works.values():
                work.lost = True
                work.end(Ending(0))
                work.kill(signal.SIGKILL)
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.kubelet.remove_files()
        if self.errors:
            raise self.errors[0]

    def records_of(self, task: str) -> list[PodRecord]:
        return [record for record in self.records if record.labels.get("task_id") == task]

    def client(self) -> client.CoreV1Api:
        return client.CoreV1Api(config.new_client_from_config(str(self.admin_kubeconfig)))

    def pods(self) -> list[Json]:
        return self._do(lambda: copy.deepcopy(self._objects.list("pods")))

    def started_by_stage(self) -> Counter[str]:
        """How many containers were started of each stage."""
        return Counter(record.stage for record in self.records if record.started is not None)

    def gpus_in_use(self) -> int:
        """GPUs of pods that have a node and have not ended."""
        return self._do(lambda: self._gpus_held(*self._nodes))

    def wait_for(self, condition: Callable[[], Result], what: str, seconds: float = 60) -> Result:
        """The first true value of the condition; fails with what the cluster's pods do after that time."""
        until = time.monotonic() + seconds
        while not (value := condition()):
            if self.errors:
                raise self.errors[0]
            if time.monotonic() > until:
                shown = [(pod["metadata"]["name"], pod["status"]) for pod in self.pods()]
                raise AssertionError(f"expected within {seconds:.0f} s: {what}; the cluster's pods: {shown}")
            time.sleep(0.05)
        return value

    def add_node(self, node: Node) -> None:
        self._nodes[node.name] = node
        numbers = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": node.disk, GPU: str(node.gpus)}
        status = {
            "allocatable": numbers,
            "capacity": numbers,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        spec = {"taints": [dict(taint) for taint in node.taints]}
        self._add(
            "nodes",
            {"metadata": {"name": node.name, "labels": dict(node.labels)}, "spec": spec, "status": status},
        )

    def add_secret(self, name: str, values: Mapping[str, str]) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        with suppress(ApiError):
            self._do(lambda: self._objects.remove("secrets", self._objects.get("secrets", NAMESPACE, name)))
        self._add(
            "secrets", {"metadata": {"name": name, "namespace": NAMESPACE}, "type": "Opaque", "data": data}
        )

    def add_config_map(self, name: str, values: Mapping[str, str]) -> None:
        self._add("configmaps", {"metadata": {"name": name, "namespace": NAMESPACE}, "data": dict(values)})

    def add_claim(self, name: str, *, bound: bool = True) -> Path:
        """Make a PersistentVolumeClaim with a volume, or one that gets none; returns its folder."""
        claim = {
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"accessModes": ["ReadWriteMany"]},
            "status": {"phase": "Bound" if bound else "Pending"},
        }
        self._add("persistentvolumeclaims", claim)
        return self.kubelet.claim_folder(name)

    # Faults

    def delete(self, name: str) -> None:
        """What `kubectl delete pod` does; does not wait for its end."""
        self.client().delete_namespaced_pod(name, NAMESPACE)

    def evict(self, name: str, message: str = "The node was low on resource: memory.") -> None:
        """The kubelet kills the pod at once, for it needs what the pod uses."""
        self._do(lambda: self._work(name).end(Ending(0, "Evicted", message)))

    def oom(self, name: str) -> None:
        """The kernel kills the container since it is over its memory limit."""
        self._do(lambda: self._work(name).end(Ending(0, "OOMKilled")))

    def kill_node(self, name: str, gone_after: float = 2.0) -> None:
        """The node's power fails: nobody writes what became of its pods; the node and its pods go after that time."""

        def kill() -> None:
            lost = [work for work in self._works.values() if work.record.node == name]
            del self._nodes[name]
            for work in lost:
                work.lost = True
                work.kill(signal.SIGKILL)
            self._spawn(self._forget_node(name, lost, gone_after))

        self._do(kill)

    def outage(self) -> None:
        """The API server refuses and cuts connections, until `back`. Pods run on."""
        self._call(self.api.refuse())

    def back(self) -> None:
        self._call(self.api.listen())

    # What the API server asks of the kubelets

    def accept(self, pod: Json) -> None:
        """Start to work on a pod that was just made."""
        metadata, only = pod["metadata"], pod["spec"]["containers"][0]
        arguments = only.get("args") or only.get("command") or []
        record = PodRecord(metadata["name"], metadata.get("labels") or {}, arguments)
        self.records.append(record)
        work = self._works[metadata["uid"]] = Work(pod, record, self._objects)
        self._spawn(self._run(work))

    def end(self, pod: Json, grace_seconds: int) -> None:
        """A pod is to be deleted: its object goes when it has ended."""
        if grace_seconds == 0:  # by force: nobody waits for the kubelet
            self._objects.remove("pods", pod)
        self._works[pod["metadata"]["uid"]].end(Ending(grace_seconds))

    def log(self, pod: Json) -> Log:
        """The log of its container; ApiError while there is none."""
        work = self._works[pod["metadata"]["uid"]]
        if work.lost:
            raise ApiError(500, "InternalError", f"dial tcp {work.record.node}:10250: i/o timeout")
        if work.log is None:
            name, pod_name = work.container["name"], pod["metadata"]["name"]
            waiting = "ContainerCreating" if work.record.node else "PodScheduled"
            raise ApiError(
                400, "BadRequest", f'container "{name}" in pod "{pod_name}" is waiting to start: {waiting}'
            )
        return work.log

    # The scheduler

    def _choose_node(self, pod: Json) -> tuple[str | None, str]:
        """A node for the pod, or why there is none."""
        spec = pod["spec"]
        reasons: Counter[str] = Counter()
        for node in self._nodes.values():
            tolerated = {known["key"] for known in spec.get("tolerations") or []}
            if not (spec.get("nodeSelector") or {}).items() <= node.labels.items():
                reasons["node(s) didn't match Pod's node affinity/selector"] += 1
            elif untolerated := [taint["key"] for taint in node.taints if taint["key"] not in tolerated]:
                reasons[f"node(s) had untolerated taint(s) {{{untolerated[0]}: }}"] += 1
            elif 0 < gpus_of(pod) > node.gpus - self._gpus_held(node.name):
                reasons[f"Insufficient {GPU}"] += 1
            else:
                return node.name, ""
        listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        return None, f"0/{len(self._nodes)} nodes are available: {listed}."

    def _gpus_held(self, *nodes: str) -> int:
        """How many GPUs the nodes' pods that have not ended hold."""
        return sum(
            gpus_of(work.pod)
            for work in self._works.values()
            if work.record.node in nodes and work.record.ended is None
        )

    # A pod's way

    async def _run(self, work: Work) -> None:
        """Find a node for the pod, and give it to the kubelet."""
        pod, record = work.pod, work.record
        why = ""
        while True:
            node, found = self._choose_node(pod)
            if node is not None:
                break
            if found != why:
                why = found
                work.set_scheduled("False", reason="Unschedulable", message=why)
            if await work.pause(POLL_SECONDS):
                record.ended = time.time()
                self._objects.remove("pods", pod)
                return
        pod["spec"]["nodeName"] = record.node = node
        self.most_gpus_in_use = max(self.most_gpus_in_use, self._gpus_held(*self._nodes))
        pod["status"]["startTime"] = now()
        work.set_scheduled("True")
        await self.kubelet.run(work)

    async def _forget_node(self, name: str, works: Sequence[Work], seconds: float) -> None:
        """What the pods' garbage collector does."""
        await asyncio.sleep(seconds)
        self._objects.remove("nodes", self._objects.get("nodes", "", name))
        for work in works:
            work.record.ended = work.record.ended or time.time()
            self._objects.remove("pods", work.pod)

    # Threads

    async def _new_api(self, users: Mapping[str, User]) -> ApiServer:
        api = ApiServer(self._objects, self, users)
        await api.start()
        return api

    def _kubeconfig(self, user: str) -> Json:
        named = {"name": "tests"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{self.api.port}"}}],
            "users": [{**named, "user": {"token": self._tokens[user]}}],
            "contexts": [{**named, "context": {"cluster": "tests", "user": "tests", "namespace": NAMESPACE}}],
        }

    def _add(self, resource: str, new: Json) -> None:
        self._do(lambda: self._objects.add(resource, new))

    def _work(self, name: str) -> Work:
        pod = self._objects.get("pods", NAMESPACE, name)
        return self._works[pod["metadata"]["uid"]]

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    def _call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _do(self, work: Callable[[], Result]) -> Result:

        async def call() -> Result:
            return work()

        return self._call(call())


def gpus_of(pod: Json) -> int:
    """How many GPUs the pod's containers may use together."""
    limits = [(found.get("resources") or {}).get("limits") or {} for found in pod["spec"]["containers"]]
    return sum(int(limit.get(GPU, 0)) for limit in limits)


def skip_where_no_cluster_runs() -> None:
    """Skip a test, with a warning that is printed, if this machine can run no cluster."""
    reason = f"found {sys.platform} and user {os.geteuid()}"
    if sys.platform == "linux" and os.geteuid() == 0:
        tried = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
        )
        reason = tried.stderr.strip()
        if not reason and Path("/tmp") in REPOSITORY.parents:  # noqa: S108
            reason = f"{REPOSITORY} lies under /tmp, which a pod's own volume hides"
    if reason:
        needs = "they need Linux, root, the right to make namespaces, and a checkout that pods see"
        message = f"tests on Kubernetes are skipped: {needs}; {reason}."
        warnings.warn(message, stacklevel=2)
        pytest.skip(message)
