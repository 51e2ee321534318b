"""The kubelet of the cluster of the tests: it runs a pod's container as processes of this machine, and writes what becomes of it.

One kubelet serves all nodes. A pod that has a node gets its image, Secrets, volumes and container, and at its
end the terminal phase, which is written before the pod's object goes, as kubelets do since Kubernetes 1.27.
"""

import asyncio
import base64
import json
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.kubernetes import container as launcher
from tests.kubernetes.api_server import ApiError, Json, Log, Objects, now
from toolformer_ops.config import REPOSITORY

NAMESPACE = "toolformer"
MESSAGE_BYTES, MESSAGE_LINES = 2048, 80
"""Of the log's end that FallbackToLogsOnError takes."""


@dataclass(frozen=True)
class Image:
    """An image that is not pulled from anywhere: which paths of this machine a container sees, and its environment."""

    paths: Sequence[Path]
    environment: Mapping[str, str]
    user: int = 10001


def local_image() -> Image:
    """The Dockerfile's image, with this checkout and this Python environment in place of its folders."""
    system = [Path(name) for name in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")]
    project = [REPOSITORY / name for name in ("toolformer_ops", "dags", "deploy", "sql")]
    environment = Path(sys.prefix).resolve()
    return Image(
        [path for path in (*system, Path(sys.base_prefix), environment, *project) if path.exists()],
        {
            "PATH": f"{environment}/bin:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "LANG": "C.UTF-8",
            "TOOLFORMER_STATE_DIR": "/var/lib/toolformer",
            "AIRFLOW_HOME": "/var/lib/airflow",
            "HOME": "/var/lib/toolformer",
            "HF_HOME": "/var/lib/toolformer/huggingface",
            "USER": "toolformer",  # uid 10001 of the image, whom this machine does not know
        },
    )


@dataclass
class PodRecord:
    """What became of a pod; kept when the pod is gone."""

    name: str
    labels: Mapping[str, str]
    arguments: Sequence[str]
    node: str = ""
    started: float | None = None
    """When the container started, in seconds since 1970; None: it never did."""
    ended: float | None = None
    exit_code: int | None = None
    message: str = ""
    """The container's last words: the end of its log."""

    @property
    def is_at_work(self) -> bool:
        return self.started is not None and self.ended is None

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
    objects: Objects
    ending: Ending | None = None
    told: asyncio.Event = field(default_factory=asyncio.Event)
    log: Log | None = None
    process: asyncio.subprocess.Process | None = None
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

    def set_scheduled(self, status: str, **why: str) -> None:
        condition = {"type": "PodScheduled", "status": status, "lastTransitionTime": now(), **why}
        self.pod["status"]["conditions"] = [condition]

    def set_waiting(self, reason: str, message: str = "") -> None:
        self.set_state({"waiting": {"reason": reason, "message": message}})

    def set_state(self, state: Json) -> None:
        running = "running" in state
        container = {key: self.container[key] for key in ("name", "image")}
        status = {
            **container,
            "imageID": "",
            "ready": running,
            "started": running,
            "restartCount": 0,
            "state": state,
        }
        self.pod["status"]["containerStatuses"] = [status]

    def tell(self, reason: str, message: str) -> None:
        metadata = self.pod["metadata"]
        involved = {"kind": "Pod", **{key: metadata[key] for key in ("name", "namespace", "uid")}}
        named = {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": NAMESPACE}
        event = {"metadata": named, "involvedObject": involved, "reason": reason, "message": message}
        self.objects.add("events", event | {"firstTimestamp": now(), "lastTimestamp": now()})


class Kubelet:
    """See the module. Runs in the cluster's event loop."""

    def __init__(self, folder: Path, objects: Objects, images: Mapping[str, Image]) -> None:
        self.images = dict(images)
        self.seconds_shown_after_end = 1.0
        """How long the API shows a deleted pod's terminal phase; after that its events alone are left."""
        self._folder = folder
        self._objects = objects

    def claim_folder(self, name: str) -> Path:
        folder = self._folder / "claims" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def remove_files(self) -> None:
        for name in ("pods", "claims"):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    async def run(self, work: Work) -> None:
        """The pod's way from its node to its end."""
        pod, record = work.pod, work.record
        # 1. Image, Secrets, volumes, container.
        exit_code = None
        if await self._pull_image(work):
            environment = await self._environment(work)
            if environment is not None:
                exit_code = await self._run_container(work, environment)

        # 2. The terminal phase, and only then the object's end.
        record.ended, record.exit_code = time.time(), exit_code
        if work.lost:
            return
        self._write_end(work, exit_code)
        if "deletionTimestamp" in pod["metadata"]:
            await asyncio.sleep(self.seconds_shown_after_end)
        else:  # it stays until somebody deletes it
            work.told.clear()
            await work.told.wait()
        self._objects.remove("pods", pod)

    async def _pull_image(self, work: Work) -> bool:
        """Whether the image is there; tries again until the pod is told to end."""
        image = work.container["image"]
        while image not in self.images:
            error = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {image}: not found'
            work.tell("Failed", f'Failed to pull image "{image}": {error}')
            work.set_waiting("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {error}')
            if await work.pause(0.5):
                return False
        return not work.told.is_set()

    async def _environment(self, work: Work) -> dict[str, str] | None:
        """The container's variables; None when the pod was told to end while a Secret or a ConfigMap was missing."""
        while not work.told.is_set():
            volume: Json = {}
            try:
                for volume in work.pod["spec"].get("volumes") or []:
                    if "configMap" in volume:
                        self._data("configmaps", volume["configMap"])
                volume = {}
                return self._variables(work)
            except ApiError as error:
                if volume:
                    why = str(error).replace("configmaps", "configmap")  # as the kubelet says it
                    work.tell(
                        "FailedMount", f'MountVolume.SetUp failed for volume "{volume["name"]}" : {why}'
                    )
                    work.set_waiting("ContainerCreating")
                else:
                    work.set_waiting("CreateContainerConfigError", str(error))
            await work.pause(0.5)
        return None

    def _variables(self, work: Work) -> dict[str, str]:
        """The image's variables and the pod's; ApiError if a Secret, its key or a ConfigMap is missing."""
        found = {**self.images[work.container["image"]].environment, "HOSTNAME": work.record.name}
        for source in work.container.get("envFrom") or []:
            for kind, resource in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
                if kind in source:
                    found.update(self._data(resource, source[kind]))
        for variable in work.container.get("env") or []:
            source = variable.get("valueFrom") or {}
            if "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                data, key = self._data("secrets", reference), reference["key"]
                if key in data:
                    found[variable["name"]] = data[key]
                elif not reference.get("optional"):
                    missing = f"couldn't find key {key} in Secret {NAMESPACE}/{reference['name']}"
                    raise ApiError(404, "NotFound", missing)
            else:
                found[variable["name"]] = str(variable.get("value", ""))
        return found

    def _data(self, resource: str, reference: Json) -> dict[str, str]:
        """What a Secret or a ConfigMap holds; nothing where it is missing and optional, otherwise ApiError."""
        try:
            data = self._objects.get(resource, NAMESPACE, reference["name"]).get("data") or {}
        except ApiError:
            if reference.get("optional"):
                return {}
            raise
        if resource == "secrets":
            return {key: base64.b64decode(value).decode() for key, value in data.items()}
        return dict(data)

    async def _run_container(self, work: Work, environment: Mapping[str, str]) -> int | None:
        """The container's exit status; None if it could not be started."""
        record = work.record
        # 1. What it is to see.
        image, context = self.images[work.container["image"]], security_context(work.pod)
        home = self._folder / "pods" / work.pod["metadata"]["uid"]
        (home / "root").mkdir(parents=True)
        user = context.get("runAsUser", image.user)
        spec = {
            "root": str(home / "root"),
            "image_paths": [str(path) for path in image.paths],
            "mounts": self._mounts(work, home),
            "read_only_root": bool(context.get("readOnlyRootFilesystem")),
            "hostname": record.name[:63],
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
            *command,
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(writing,),
            process_group=0,
        )
        os.close(writing)
        assert process.stdin is not None
        process.stdin.write(json.dumps(spec).encode())
        process.stdin.close()
        with os.fdopen(reading, "rb") as started:
            failure = await asyncio.get_running_loop().run_in_executor(None, started.read)
        if failure:
            await process.wait()
            work.end(Ending(0, "StartError", failure.decode()))
            return 128
        work.log = Log()
        record.started = time.time()
        work.tell("Started", f"Started container {work.container['name']}")
        work.pod["status"].update(phase="Running", hostIP="127.0.0.1", podIP="127.0.0.1")
        work.set_state({"running": {"startedAt": now()}})

        # 3. Wait for its end, or for a word to end it: SIGTERM, the grace period, SIGKILL.
        copying = asyncio.ensure_future(copy_log(process, work.log))
        ended = asyncio.ensure_future(process.wait())
        telling = asyncio.ensure_future(work.told.wait())
        await asyncio.wait([ended, telling], return_when=asyncio.FIRST_COMPLETED)
        telling.cancel()
        if not ended.done() and work.ending is not None and not work.lost:
            if work.ending.reason == "Evicted":
                work.tell("Evicted", work.ending.message)
            if work.ending.reason != "OOMKilled":  # of which only the kernel knows
                work.tell("Killing", f"Stopping container {work.container['name']}")
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
        exit_code = int(process.returncode or 0)
        fallback = (
            work.container.get("terminationMessagePolicy") == "FallbackToLogsOnError" and exit_code != 0
        )
        tail = b"\n".join(line for _, line in work.log.lines[-MESSAGE_LINES:])[-MESSAGE_BYTES:].decode(
            errors="replace"
        )
        record.message = tail if fallback else ""
        shutil.rmtree(home, ignore_errors=True)
        return exit_code

    def _mounts(self, work: Work, home: Path) -> list[Json]:
        """The folders of the machine that the container sees, made with the owner that Kubernetes gives them."""
        fs_group = (work.pod["spec"].get("securityContext") or {}).get("fsGroup")
        folders: dict[str, Path] = {}
        for volume in work.pod["spec"].get("volumes") or []:
            if "emptyDir" in volume:
                folder = home / "volumes" / volume["name"]
                folder.mkdir(parents=True)
                folder.chmod(0o777)
            elif "configMap" in volume:
                folder = home / "volumes" / volume["name"]
                folder.mkdir(parents=True)
                for name, text in self._data("configmaps", volume["configMap"]).items():
                    (folder / name).write_text(text)
            else:
                folder = self.claim_folder(volume["persistentVolumeClaim"]["claimName"])
            if fs_group is not None:
                os.chown(folder, -1, fs_group)
                folder.chmod(folder.stat().st_mode | 0o2770)
            folders[volume["name"]] = folder
        return [
            {
                "source": str(folders[mount["name"]]),
                "target": mount["mountPath"],
                "read_only": bool(mount.get("readOnly")),
            }
            for mount in work.container.get("volumeMounts") or []
        ]

    def _write_end(self, work: Work, exit_code: int | None) -> None:
        status, ending = work.pod["status"], work.ending
        reason = ending.reason if ending else ""
        status["phase"] = "Succeeded" if exit_code == 0 and reason != "Evicted" else "Failed"
        if ending and reason == "Evicted":
            status.update(reason=reason, message=ending.message)
        if exit_code is not None:
            plain = "Completed" if exit_code == 0 else "Error"
            terminated = {
                "exitCode": exit_code,
                "reason": reason if reason in ("OOMKilled", "StartError") else plain,
                "message": ending.message if ending and reason == "StartError" else work.record.message,
                "finishedAt": now(),
            }
            work.set_state({"terminated": terminated})


def security_context(pod: Json) -> Json:
    """The container's security context; what it leaves open is the pod's."""
    return {
        **(pod["spec"].get("securityContext") or {}),
        **(pod["spec"]["containers"][0].get("securityContext") or {}),
    }


async def copy_log(process: asyncio.subprocess.Process, log: Log) -> None:
    assert process.stdout is not None
    rest = b""
    while chunk := await process.stdout.read(2**16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            log.add(line)
    if rest:
        log.add(rest)
