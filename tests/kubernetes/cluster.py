"""A Kubernetes cluster for tests: API server, scheduler and kubelets in one thread; containers are processes of this machine.

Real are: the REST API with its refusals, the clients that talk to it, and the processes: each container has a read-only root of its
own, sees no file of the machine but its image and its volumes, is PID 1, has no rights, and dies of memory where there are cgroups.
Not real are: the images (paths of this machine), the nodes (names with numbers), GPUs (counted only), the network (the machine's).

    with TestCluster(folder, nodes=[gpu_node("gpu-0", gpus=2), cpu_node("cpu-0")]) as cluster:
        cluster.add_secret("toolformer", {"TOOLFORMER_DATABASE_DSN": "..."})
        ...  # a client with cluster.kubeconfig makes pods
        cluster.evict(name)

As kubelets do since Kubernetes 1.27, it writes a pod's terminal phase before the object goes. It needs root and Linux.
"""

import asyncio
import base64
import copy
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
import pytest
import yaml
from kubernetes import client, config
from kubernetes.utils import parse_quantity

from tests.kubernetes import container as launcher
from tests.kubernetes.api_server import ENDED_PHASES, ApiError, ApiServer, Json, Log, Objects, User, now
from toolformer_ops.config import REPOSITORY

Result = TypeVar("Result")

NAMESPACE = "toolformer"
IMAGE = "registry.example/toolformer:test"
GPU = "nvidia.com/gpu"
A100 = "NVIDIA-A100-SXM4-80GB"
AIRFLOW_ROLE: tuple[Mapping[str, Any], ...] = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
)
"""What KubernetesPodOperator 10.25 was seen to use."""
POLL_SECONDS = 0.1
MESSAGE_BYTES, MESSAGE_LINES = 2048, 80
"""Of the log's end that FallbackToLogsOnError takes."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node's name, labels, taints, and what its pods may request together."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    cpu: int = 64
    memory: str = "512Gi"
    gpus: int = 0


def gpu_node(name: str, gpus: int, product: str = A100) -> Node:
    """A node as NVIDIA's GPU operator labels it, on which only pods that tolerate it run."""
    taint = {"key": GPU, "effect": "NoSchedule"}
    return Node(name=name, gpus=gpus, labels={"nvidia.com/gpu.product": product}, taints=[taint])


def cpu_node(name: str, **more: Any) -> Node:
    """A node without a GPU."""
    return Node(name=name, **more)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that is not pulled from anywhere: which paths of this machine a container sees, and its environment."""

    paths: Sequence[Path]
    environment: Mapping[str, str]
    user: int = 10001
    directory: str = "/"


def local_image() -> Image:
    """The Dockerfile's image, with this checkout and this Python environment in place of its folders."""
    system = [Path(name) for name in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")]
    project = [REPOSITORY / name for name in ("toolformer_ops", "dags", "sql")]
    return Image(
        paths=[
            path for path in (*system, Path(sys.base_prefix), Path(sys.prefix).resolve(), *project) if path.exists()
        ],
        environment={
            "PATH": f"{Path(sys.prefix).resolve()}/bin:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "LANG": "C.UTF-8",
            "TOOLFORMER_STATE_DIR": "/var/lib/toolformer",
        },
    )


@dataclass
class PodRecord:
    """What became of a pod; kept when the pod is gone."""

    name: str
    labels: Mapping[str, str]
    arguments: Sequence[str]
    gpus: int
    node: str = ""
    started: float | None = None
    """Seconds since the cluster's start, of the container's start; None: it never started."""
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    """The container's last words: its termination message, or the end of its log."""
    peak_memory_bytes: int = 0

    @property
    def stage(self) -> str:
        """The stage that it ran; the first argument where it ran none."""
        words = [*self.arguments, "", ""]
        return words[1] if words[0] == "stage" else words[0]


@dataclass
class Ending:
    """Who told a pod to end, and how long it may take."""

    grace_seconds: float
    reason: str = ""
    message: str = ""


@dataclass
class Work:
    """A pod, and the kubelet's work on it."""

    pod: Json
    record: PodRecord
    ending: Ending | None = None
    told: asyncio.Event = field(default_factory=asyncio.Event)
    log: Log | None = None
    process: asyncio.subprocess.Process | None = None
    cgroup: Path | None = None
    lost: bool = False
    """Its node is gone, and nobody can say what became of it."""

    @property
    def container(self) -> Json:
        return dict(self.pod["spec"]["containers"][0])

    def end(self, ending: Ending) -> None:
        """Tell it to end; a later word counts only if it leaves less time."""
        if self.ending is None or ending.grace_seconds < self.ending.grace_seconds:
            self.ending = ending
        self.told.set()

    async def pause(self, seconds: float) -> bool:
        """Wait, and return at once if it was told to end; returns whether it was."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.told.wait(), seconds)
        return self.told.is_set()

    def kill(self, number: int) -> None:
        """Signal the container's first process; SIGKILL ends all others with it."""
        if self.process is not None and self.process.returncode is None:
            with suppress(psutil.Error, ProcessLookupError):
                for process in psutil.Process(self.process.pid).children():
                    process.send_signal(number)


class TestCluster:
    """See the module. Methods are called from any thread but its own; they return when it is done."""

    __test__ = False

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[Node] = (Node(name="node-0"),),
        *,
        images: Mapping[str, Image] | None = None,
        role: Sequence[Mapping[str, Any]] = AIRFLOW_ROLE,
        pod_security: str = "restricted",
    ) -> None:
        self.folder = folder
        self.images = dict(images or {IMAGE: local_image()})
        self.records: list[PodRecord] = []
        """All pods that ever were, in the order of their making."""
        self.errors: list[BaseException] = []
        """Of the cluster itself; `wait_for` and `close` raise the first."""
        self.most_at_work = 0
        self.most_gpus_in_use = 0
        self.image_pull_seconds = 0.0
        self.pull_error = ""
        """What the registry answers in place of an image, while it is set."""
        self.seconds_shown_after_end = 1.0
        """How long the API shows a deleted pod's terminal phase."""
        self.kubeconfig = folder / "kubeconfig"
        """For a client with the rights of `role`, as Airflow's workers have."""
        self.admin_kubeconfig = folder / "admin-kubeconfig"
        self._pulled: set[tuple[str, str]] = set()  # node, image
        self._nodes = {node.name: node for node in nodes}
        self._works: dict[str, Work] = {}  # by the pod's uid
        self._tasks: set[asyncio.Task[None]] = set()
        self._objects = Objects()
        self._tokens = {"airflow": secrets.token_hex(16), "admin": secrets.token_hex(16)}
        self._started_at = time.monotonic()
        users = {
            self._tokens["airflow"]: User(f"system:serviceaccount:{NAMESPACE}:airflow", tuple(role)),
            self._tokens["admin"]: User("admin"),
        }
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        self.api = self._call(self._new_api(users))
        labels = {"pod-security.kubernetes.io/enforce": pod_security}
        self._add("namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}, "status": {"phase": "Active"}})
        self._add("serviceaccounts", {"metadata": {"name": "default", "namespace": NAMESPACE}})
        self._add("storageclasses", {"metadata": {"name": "standard"}, "provisioner": "tests/folder"})
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
        for name in ("pods", "claims"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        if self.errors:
            raise self.errors[0]

    def client(self) -> client.CoreV1Api:
        """A client that may do everything."""
        return client.CoreV1Api(config.new_client_from_config(str(self.admin_kubeconfig)))

    def pods(self) -> list[Json]:
        """All pods, as the API shows them now."""
        return self._do(lambda: copy.deepcopy(self._objects.list("pods")))

    def events(self, pod: str) -> list[str]:
        """`Reason: message` of all events of a pod, also of one that is gone."""
        events = self._do(lambda: self._objects.list("events"))
        return [f"{event['reason']}: {event['message']}" for event in events if event["involvedObject"]["name"] == pod]

    def started_by_stage(self) -> Counter[str]:
        """How many containers were started of each stage."""
        return Counter(record.stage for record in self.records if record.started is not None)

    def gpus_in_use(self) -> int:
        """GPUs of pods that have a node and have not ended."""
        return self._do(lambda: int(sum(self._requested(name, GPU) for name in self._nodes)))

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
        """Add a node, or bring one back."""
        self._nodes[node.name] = node
        numbers = {"cpu": str(node.cpu), "memory": node.memory, **({GPU: str(node.gpus)} if node.gpus else {})}
        status = {"allocatable": numbers, "capacity": numbers, "conditions": [{"type": "Ready", "status": "True"}]}
        spec = {"taints": [dict(taint) for taint in node.taints]}
        self._add(
            "nodes", {"metadata": {"name": node.name, "labels": dict(node.labels)}, "spec": spec, "status": status}
        )

    def add_secret(self, name: str, values: Mapping[str, str]) -> None:
        """Make or replace a Secret."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        with suppress(ApiError):
            self._do(lambda: self._objects.remove("secrets", self._objects.get("secrets", NAMESPACE, name)))
        self._add("secrets", {"metadata": {"name": name, "namespace": NAMESPACE}, "type": "Opaque", "data": data})

    def add_claim(self, name: str) -> Path:
        """Make a PersistentVolumeClaim with a volume; returns its folder."""
        status = {"phase": "Bound"}
        self._add("persistentvolumeclaims", {"metadata": {"name": name, "namespace": NAMESPACE}, "status": status})
        return self._claim_folder(name)

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

    def outage(self, seconds: float) -> None:
        """The API server refuses and cuts connections for so long; returns once it does. Pods run on."""

        async def pause() -> None:
            await asyncio.sleep(seconds)
            await self.api.listen()

        async def refuse() -> None:
            await self.api.refuse()
            self._spawn(pause())

        self._call(refuse())

    # What the API server asks of the kubelets

    def refuse_unsupported(self, pod: Json) -> None:
        """See `PodWorkers`."""
        spec = pod["spec"]
        kinds = {kind for volume in spec.get("volumes") or [] for kind in volume if kind != "name"}
        sources = {
            name for variable in spec["containers"][0].get("env") or [] for name in variable.get("valueFrom") or {}
        }
        for what, found in (
            ("one container and no other", len(spec["containers"]) == 1 and not spec.get("initContainers")),
            ("restartPolicy Never", spec["restartPolicy"] == "Never"),
            (
                "volumes of kinds emptyDir, hostPath, persistentVolumeClaim",
                kinds <= {"emptyDir", "hostPath", "persistentVolumeClaim"},
            ),
            ("env from secretKeyRef and fieldRef", sources <= {"secretKeyRef", "fieldRef"}),
        ):
            if not found:
                raise ApiError(400, "BadRequest", f"the cluster of the tests runs pods with {what}")

    def accept(self, pod: Json) -> None:
        """See `PodWorkers`."""
        metadata, only = pod["metadata"], pod["spec"]["containers"][0]
        arguments = only.get("args") or only.get("command") or []
        record = PodRecord(metadata["name"], metadata.get("labels") or {}, arguments, int(requests(pod).get(GPU, 0)))
        self.records.append(record)
        work = self._works[metadata["uid"]] = Work(pod, record)
        self._spawn(self._run(work))

    def end(self, pod: Json, grace_seconds: int) -> None:
        """See `PodWorkers`."""
        if grace_seconds == 0:  # by force: nobody waits for the kubelet
            self._objects.remove("pods", pod)
        self._works[pod["metadata"]["uid"]].end(Ending(grace_seconds))

    def log(self, pod: Json) -> Log:
        """See `PodWorkers`."""
        work = self._works[pod["metadata"]["uid"]]
        if work.lost:
            raise ApiError(500, "InternalError", f"dial tcp {work.record.node}:10250: i/o timeout")
        if work.log is None:
            name, pod_name = work.container["name"], pod["metadata"]["name"]
            waiting = "ContainerCreating" if work.record.node else "PodScheduled"
            raise ApiError(400, "BadRequest", f'container "{name}" in pod "{pod_name}" is waiting to start: {waiting}')
        return work.log

    # The scheduler

    def _choose_node(self, pod: Json) -> tuple[str | None, str]:
        """A node for the pod, or why there is none."""
        spec, wanted = pod["spec"], requests(pod)
        claims = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in spec.get("volumes") or []
            if "persistentVolumeClaim" in volume
        ]
        known = {claim["metadata"]["name"] for claim in self._objects.list("persistentvolumeclaims")}
        if missing := [claim for claim in claims if claim not in known]:
            return None, f'persistentvolumeclaim "{missing[0]}" not found'
        reasons: Counter[str] = Counter()
        for node in self._nodes.values():
            untolerated = [
                taint
                for taint in node.taints
                if not any(tolerates(known, taint) for known in spec.get("tolerations") or [])
            ]
            capacity = {"cpu": node.cpu, "memory": parse_quantity(node.memory), GPU: node.gpus}
            short = [
                name
                for name, amount in wanted.items()
                if name in capacity and amount + self._requested(node.name, name) > capacity[name]
            ]
            if not (spec.get("nodeSelector") or {}).items() <= node.labels.items():
                reasons["node(s) didn't match Pod's node affinity/selector"] += 1
            elif untolerated:
                reasons[
                    f"node(s) had untolerated taint(s) {{{untolerated[0]['key']}: {untolerated[0].get('value', '')}}}"
                ] += 1
            elif short:
                reasons[f"Insufficient {short[0]}"] += 1
            else:
                return node.name, ""
        listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        return None, f"0/{len(self._nodes)} nodes are available: {listed}."

    def _requested(self, node: str, resource: str) -> Any:
        """How much of a resource the node's pods that have not ended hold."""
        held = [work.pod for work in self._works.values() if work.record.node == node and work.record.ended is None]
        return sum(requests(pod).get(resource, 0) for pod in held)

    # The kubelet

    async def _run(self, work: Work) -> None:
        """A pod's whole way."""
        pod, spec, status, record = work.pod, work.pod["spec"], work.pod["status"], work.record

        # 1. Wait for a node.
        why = ""
        while True:
            node, found = self._choose_node(pod)
            if node is not None:
                break
            if found != why:
                why = found
                self._set_condition(work, "PodScheduled", "False", "Unschedulable", why)
                self._tell(work, "Warning", "FailedScheduling", why)
            if await work.pause(POLL_SECONDS):
                record.ended = self._seconds()
                self._objects.remove("pods", pod)
                return
        spec["nodeName"] = record.node = node
        self.most_gpus_in_use = max(self.most_gpus_in_use, sum(int(self._requested(name, GPU)) for name in self._nodes))
        status["startTime"] = now()
        self._tell(work, "Normal", "Scheduled", f"Successfully assigned {NAMESPACE}/{record.name} to {node}")
        self._set_condition(work, "PodScheduled", "True")

        # 2. Image, Secrets, volumes, container.
        deadline = spec.get("activeDeadlineSeconds")
        if deadline is not None:
            message = "Pod was active on the node longer than the specified deadline"
            timer = self._loop.call_later(deadline, work.end, Ending(0, "DeadlineExceeded", message))
        exit_code = None
        if await self._pull_image(work):
            environment = await self._environment(work)
            if environment is not None:
                exit_code = await self._run_container(work, environment)
        if deadline is not None:
            timer.cancel()

        # 3. The terminal phase, and only then the object's end.
        record.ended, record.exit_code = self._seconds(), exit_code
        if work.lost:
            return
        self._write_end(work, exit_code)
        if "deletionTimestamp" in pod["metadata"]:
            await asyncio.sleep(self.seconds_shown_after_end)
            self._objects.remove("pods", pod)
        else:  # it stays until somebody deletes it
            work.told.clear()
            await work.told.wait()
            self._objects.remove("pods", pod)

    async def _pull_image(self, work: Work) -> bool:
        """Whether the image is there; tries again until the pod is told to end."""
        image, node = work.container["image"], work.record.node
        while (node, image) not in self._pulled:
            self._tell(work, "Normal", "Pulling", f'Pulling image "{image}"')
            self._set_waiting(work, "ContainerCreating")
            if await work.pause(self.image_pull_seconds):
                return False
            if image in self.images and not self.pull_error:
                self._tell(work, "Normal", "Pulled", f'Successfully pulled image "{image}"')
                self._pulled.add((node, image))
                break
            answer = self.pull_error or f"{image}: not found"
            error = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {answer}'
            self._tell(work, "Warning", "Failed", f'Failed to pull image "{image}": {error}')
            self._set_waiting(work, "ErrImagePull", error)
            if await work.pause(1.0):
                return False
            self._tell(work, "Normal", "BackOff", f'Back-off pulling image "{image}"')
            self._set_waiting(work, "ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {error}')
            if await work.pause(1.0):
                return False
        return not work.told.is_set()

    async def _environment(self, work: Work) -> dict[str, str] | None:
        """The container's variables; waits for Secrets that are missing, and is None when the pod was told to end meanwhile."""
        while True:
            try:
                return self._variables(work)
            except ApiError as error:
                self._tell(work, "Warning", "Failed", f"Error: {error}")
                self._set_waiting(work, "CreateContainerConfigError", str(error))
            if await work.pause(0.5):
                return None

    def _variables(self, work: Work) -> dict[str, str]:
        """The image's variables and the pod's; ApiError where a Secret or its key is missing."""
        image, context = self.images[work.container["image"]], security_context(work.pod)
        if context.get("runAsNonRoot") and context.get("runAsUser", image.user) == 0:
            raise ApiError(400, "CreateContainerConfigError", "container has runAsNonRoot and image will run as root")
        found = {**image.environment, "HOSTNAME": work.record.name}
        for variable in work.container.get("env") or []:
            source = variable.get("valueFrom") or {}
            if "secretKeyRef" in source:
                value = self._secret_value(source["secretKeyRef"])
                if value is not None:
                    found[variable["name"]] = value
            elif "fieldRef" in source:
                part: Any = work.pod
                for name in source["fieldRef"]["fieldPath"].split("."):
                    part = part[name]
                found[variable["name"]] = str(part)
            else:
                found[variable["name"]] = str(variable.get("value", ""))
        return found

    def _secret_value(self, reference: Json) -> str | None:
        """The value of a Secret's key; None where it is missing and optional, otherwise ApiError."""
        try:
            data = self._objects.get("secrets", NAMESPACE, reference["name"]).get("data") or {}
        except ApiError:
            if reference.get("optional"):
                return None
            raise
        if reference["key"] in data:
            return base64.b64decode(data[reference["key"]]).decode()
        if reference.get("optional"):
            return None
        missing = f"couldn't find key {reference['key']} in Secret {NAMESPACE}/{reference['name']}"
        raise ApiError(404, "NotFound", missing)

    async def _run_container(self, work: Work, environment: Mapping[str, str]) -> int | None:
        """The container's exit status; None if it could not be started."""
        record = work.record
        # 1. What it is to see.
        image, context = self.images[work.container["image"]], security_context(work.pod)
        home = self.folder / "pods" / work.pod["metadata"]["uid"]
        (home / "root").mkdir(parents=True)
        message_file = home / "termination-log"
        message_file.touch()
        message_file.chmod(0o666)
        mounts = [*self._mounts(work, home), mounted(message_file, "/dev/termination-log")]
        limit = (work.container.get("resources") or {}).get("limits", {}).get("memory")
        work.cgroup = make_cgroup(work.pod["metadata"]["uid"], int(parse_quantity(limit))) if limit else None
        user = context.get("runAsUser", image.user)
        spec = {
            "root": str(home / "root"),
            "image_paths": [str(path) for path in image.paths],
            "mounts": mounts,
            "read_only_root": bool(context.get("readOnlyRootFilesystem")),
            "cgroup": str(work.cgroup or ""),
            "hostname": record.name[:63],
            "directory": work.container.get("workingDir", image.directory),
            "user": user,
            "group": context.get("runAsGroup", user),
            "groups": [context[name] for name in ("fsGroup",) if name in context],
            "no_new_privileges": context.get("allowPrivilegeEscalation") is False,
            "command": [*(work.container.get("command") or []), *(work.container.get("args") or [])],
            "environment": dict(environment),
        }

        # 2. Start it, and wait until the command runs.
        reading, writing = os.pipe()
        command = [sys.executable, "-I", "-S", str(Path(launcher.__file__)), str(writing)]
        pipe = asyncio.subprocess.PIPE
        work.process = process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT, pass_fds=(writing,), process_group=0
        )
        os.close(writing)
        assert process.stdin is not None
        process.stdin.write(json.dumps(spec).encode())
        process.stdin.close()
        with os.fdopen(reading, "rb") as started:
            failure = await self._loop.run_in_executor(None, started.read)
        if failure:
            await process.wait()
            work.end(Ending(0, "StartError", failure.decode()))
            self._tell(work, "Warning", "Failed", f"Error: failed to create containerd task: {failure.decode()}")
            return 128
        work.log = Log()
        record.started = self._seconds()
        at_work = [other for other in self.records if other.started is not None and other.ended is None]
        self.most_at_work = max(self.most_at_work, len(at_work))
        self._tell(work, "Normal", "Started", f"Started container {work.container['name']}")
        work.pod["status"].update(phase="Running", hostIP="127.0.0.1", podIP="127.0.0.1")
        self._set_state(work, {"running": {"startedAt": now()}})

        # 3. Wait for its end, or for a word to end it: SIGTERM, the grace period, SIGKILL.
        copying = self._spawn(copy_log(process, work.log))
        ended = asyncio.ensure_future(process.wait())
        watched = [(home / "volumes" / volume["name"], volume) for volume in limited_volumes(work.pod)]
        while not ended.done() and not work.told.is_set():
            telling = asyncio.ensure_future(work.told.wait())
            await asyncio.wait([ended, telling], timeout=0.5 if watched else None, return_when=asyncio.FIRST_COMPLETED)
            telling.cancel()
            for folder, volume in watched:
                if used_bytes(folder) > parse_quantity(volume["emptyDir"]["sizeLimit"]):
                    message = f'Usage of EmptyDir volume "{volume["name"]}" exceeds the limit "{volume["emptyDir"]["sizeLimit"]}". '
                    work.end(Ending(0, "Evicted", message))
        while not ended.done():
            assert work.ending is not None
            grace = work.ending.grace_seconds
            work.told.clear()  # a second word may shorten the time
            if grace > 0:
                work.kill(signal.SIGTERM)
            telling = asyncio.ensure_future(work.told.wait())
            await asyncio.wait([ended, telling], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and not telling.done():
                work.kill(signal.SIGKILL)
                await ended
            telling.cancel()

        # 4. What is left of it. A process that outlived the first one died with its PID namespace.
        await copying
        work.log.close()
        exit_code = int(process.returncode or 0)
        if work.cgroup is not None:
            record.peak_memory_bytes, killed = close_cgroup(work.cgroup)
            if killed and exit_code == 137 and (work.ending is None or not work.ending.reason):
                work.ending = Ending(0, "OOMKilled")
        fallback = work.container.get("terminationMessagePolicy") == "FallbackToLogsOnError" and exit_code != 0
        written = message_file.read_text(errors="replace")[:4096]
        tail = b"\n".join(line for _, line in work.log.lines[-MESSAGE_LINES:])[-MESSAGE_BYTES:].decode(errors="replace")
        record.message = written or (tail if fallback else "")
        shutil.rmtree(home, ignore_errors=True)
        return exit_code

    def _mounts(self, work: Work, home: Path) -> list[Json]:
        """The folders of the machine that the container sees, made with the owner that Kubernetes gives them."""
        fs_group = (work.pod["spec"].get("securityContext") or {}).get("fsGroup")
        folders: dict[str, tuple[Path, str]] = {}
        for volume in work.pod["spec"].get("volumes") or []:
            memory = ""
            if "emptyDir" in volume:
                folder = home / "volumes" / volume["name"]
                folder.mkdir(parents=True)
                folder.chmod(0o777)
                settings = volume["emptyDir"] or {}
                if settings.get("medium") == "Memory":
                    size = f",size={int(parse_quantity(settings['sizeLimit']))}" if "sizeLimit" in settings else ""
                    memory = f"mode=1777{f',gid={fs_group}' if fs_group is not None else ''}{size}"
            elif "hostPath" in volume:
                folder = Path(volume["hostPath"]["path"])
                if volume["hostPath"].get("type") == "DirectoryOrCreate":
                    folder.mkdir(parents=True, exist_ok=True)
            else:
                folder = self._claim_folder(volume["persistentVolumeClaim"]["claimName"])
            if fs_group is not None and "hostPath" not in volume:  # Kubernetes leaves a hostPath as it is
                os.chown(folder, -1, fs_group)
                folder.chmod(folder.stat().st_mode | 0o2770)
            folders[volume["name"]] = (folder, memory)
        found = []
        for mount in work.container.get("volumeMounts") or []:
            folder, memory = folders[mount["name"]]
            if mount.get("subPath"):
                folder = folder / mount["subPath"]
                folder.mkdir(parents=True, exist_ok=True)
            found.append(mounted(folder, mount["mountPath"], read_only=bool(mount.get("readOnly")), memory=memory))
        return found

    def _claim_folder(self, name: str) -> Path:
        folder = self.folder / "claims" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _write_end(self, work: Work, exit_code: int | None) -> None:
        """The pod's last status."""
        status, ending = work.pod["status"], work.ending
        reason = ending.reason if ending else ""
        work.record.reason = reason
        status["phase"] = "Succeeded" if exit_code == 0 and reason not in ("Evicted", "DeadlineExceeded") else "Failed"
        if reason in ("Evicted", "DeadlineExceeded"):
            status.update(reason=reason, message=ending.message if ending else "")
        if exit_code is not None:
            plain = "Completed" if exit_code == 0 else "Error"
            running = status["containerStatuses"][0]["state"].get("running") if "containerStatuses" in status else None
            terminated = {
                "exitCode": exit_code,
                "reason": reason if reason in ("OOMKilled", "StartError") else plain,
                "message": ending.message if ending and reason == "StartError" else work.record.message,
                "startedAt": running["startedAt"] if running else now(),
                "finishedAt": now(),
            }
            self._set_state(work, {"terminated": terminated})
        else:
            self._objects.changed("pods", work.pod)
        if reason == "Evicted":
            self._tell(work, "Warning", "Evicted", status["message"])

    async def _forget_node(self, name: str, works: Sequence[Work], seconds: float) -> None:
        """The node's controller and the pods' garbage collector: first unknown, then gone."""
        for work in works:
            if work.pod["status"]["phase"] not in ENDED_PHASES:
                self._tell(work, "Warning", "NodeNotReady", "Node is not ready")
                self._set_condition(work, "Ready", "False", "NodeNotReady")
        await asyncio.sleep(seconds)
        self._objects.remove("nodes", self._objects.get("nodes", "", name))
        for work in works:
            if work.record.ended is None:
                work.record.ended = self._seconds()
            if work.pod["status"]["phase"] not in ENDED_PHASES:
                work.pod["status"]["phase"] = "Failed"
                work.record.reason = "DeletionByPodGC"
                self._set_condition(work, "DisruptionTarget", "True", "DeletionByPodGC", "PodGC: node no longer exists")
            await asyncio.sleep(0)
            self._objects.remove("pods", work.pod)

    # Status and events

    def _set_condition(self, work: Work, kind: str, value: str, reason: str = "", message: str = "") -> None:
        conditions = work.pod["status"].setdefault("conditions", [])
        conditions[:] = [condition for condition in conditions if condition["type"] != kind]
        new = {"type": kind, "status": value, "lastTransitionTime": now()}
        conditions.append(
            {**new, **({"reason": reason} if reason else {}), **({"message": message} if message else {})}
        )
        self._objects.changed("pods", work.pod)

    def _set_waiting(self, work: Work, reason: str, message: str = "") -> None:
        self._set_state(work, {"waiting": {"reason": reason, **({"message": message} if message else {})}})

    def _set_state(self, work: Work, state: Json) -> None:
        running = "running" in state
        container = {key: work.container[key] for key in ("name", "image")}
        status = {**container, "imageID": "", "ready": running, "started": running, "restartCount": 0, "state": state}
        work.pod["status"]["containerStatuses"] = [status]
        self._objects.changed("pods", work.pod)

    def _tell(self, work: Work, kind: str, reason: str, message: str) -> None:
        """Write an event."""
        metadata = work.pod["metadata"]
        involved = {"kind": "Pod", "apiVersion": "v1", "fieldPath": f"spec.containers{{{work.container['name']}}}"}
        involved |= {key: metadata[key] for key in ("name", "namespace", "uid")}
        name = f"{metadata['name']}.{uuid.uuid4().hex[:16]}"
        event = {
            "metadata": {"name": name, "namespace": NAMESPACE},
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
        }
        event |= {
            "message": message,
            "count": 1,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "source": {"component": "kubelet"},
        }
        self._objects.add("events", event)

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

    def _seconds(self) -> float:
        return time.monotonic() - self._started_at

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
        """Run it in the cluster's thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _do(self, work: Callable[[], Result]) -> Result:
        """Call it in the cluster's thread."""

        async def call() -> Result:
            return work()

        return self._call(call())


def requests(pod: Json) -> dict[str, Any]:
    """What the pod's containers request; of GPUs a limit is a request."""
    found: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            found[name] += parse_quantity(amount)
    return dict(found)


def tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    """Whether a pod with this toleration may run on a node with this taint."""
    same_value = toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
    return (
        toleration.get("key") in (None, taint["key"])
        and same_value
        and toleration.get("effect") in (None, taint["effect"])
    )


def security_context(pod: Json) -> Json:
    """The container's security context; what it leaves open is the pod's."""
    return {**(pod["spec"].get("securityContext") or {}), **(pod["spec"]["containers"][0].get("securityContext") or {})}


def mounted(source: Path, target: str, *, read_only: bool = False, memory: str = "") -> Json:
    """A mount as `container.py` takes it; `memory`: options of a tmpfs in place of the source."""
    return {"source": str(source), "target": target, "read_only": read_only, "memory": memory}


def limited_volumes(pod: Json) -> list[Json]:
    """The volumes on the node's disk that have a size limit."""
    volumes = pod["spec"].get("volumes") or []
    return [
        volume
        for volume in volumes
        if "sizeLimit" in (volume.get("emptyDir") or {}) and volume["emptyDir"].get("medium") != "Memory"
    ]


def used_bytes(folder: Path) -> int:
    """Bytes on the disk below a folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_blocks * 512
    return total


async def copy_log(process: asyncio.subprocess.Process, log: Log) -> None:
    """Each line that the container writes."""
    assert process.stdout is not None
    rest = b""
    while chunk := await process.stdout.read(2**16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            log.add(line)
    if rest:
        log.add(rest)


# Memory limits: cgroups of version 1 or 2, where this machine lets us make one


def cgroup_base() -> Path | None:
    """The folder in which memory cgroups can be made, or None."""
    for base in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        probe = base / f"toolformer-probe-{os.getpid()}"
        try:
            if not (base / "cgroup.procs").exists():
                continue
            if (base / "cgroup.subtree_control").exists():
                (base / "cgroup.subtree_control").write_text("+memory")
            probe.mkdir()
            limited = any((probe / name).exists() for name in LIMIT_FILES)
            probe.rmdir()
        except OSError:
            continue
        if limited:
            return base
    return None


LIMIT_FILES = ("memory.limit_in_bytes", "memory.max")  # of version 1, of version 2
PEAK_FILES = ("memory.max_usage_in_bytes", "memory.peak")
OOM_FILES = ("memory.oom_control", "memory.events")


def make_cgroup(name: str, limit_bytes: int) -> Path | None:
    """A cgroup with that limit; None where there are none."""
    base = cgroup_base()
    if base is None:
        return None
    folder = base / f"toolformer-{name}"
    folder.mkdir()
    for file in LIMIT_FILES:
        if (folder / file).exists():
            (folder / file).write_text(str(limit_bytes))
    return folder


def close_cgroup(folder: Path) -> tuple[int, bool]:
    """Remove it; returns its peak in bytes, and whether the kernel killed one of its processes."""
    peak = [int((folder / name).read_text()) for name in PEAK_FILES if (folder / name).exists()]
    words = " ".join((folder / name).read_text() for name in OOM_FILES if (folder / name).exists()).split()
    killed = "oom_kill" in words and words[words.index("oom_kill") + 1] != "0"
    with suppress(OSError):
        folder.rmdir()
    return max(peak, default=0), killed


def skip_where_no_cluster_runs() -> None:
    """Skip a test, with a warning that is printed, where this machine can run no cluster."""
    if sys.platform != "linux" or os.geteuid() != 0:
        reason = f"found {sys.platform} and user {os.geteuid()}"
    else:
        tried = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
        )
        reason = tried.stderr.strip()
    if reason:
        needs = "they need Linux, root and the right to make namespaces"
        message = f"tests on Kubernetes are skipped: {needs}; {reason}. Run them as root."
        warnings.warn(message, stacklevel=2)
        pytest.skip(message)
