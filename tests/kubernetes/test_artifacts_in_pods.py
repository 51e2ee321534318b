"""Pods of one node share a cache: an artifact is downloaded once, and a pod that is killed leaves nothing that is used."""

import json
from pathlib import Path
from typing import Any

from kubernetes import client

from tests.kubernetes.cluster import NAMESPACE, TestCluster
from tests.kubernetes.conftest import pod
from toolformer_ops import artifacts
from toolformer_ops.config import Settings

FETCH = """
import hashlib, os, signal, sys
from toolformer_ops import artifacts
from toolformer_ops.config import load_settings
from toolformer_ops.storage.object_store import ObjectStore
address, is_killed = sys.argv[1], len(sys.argv) > 2
if is_killed:
    ObjectStore.read_part = lambda *_: os.kill(os.getpid(), signal.SIGTERM) or signal.pause()
settings = load_settings()
folder = artifacts.fetch(settings, artifacts.find(settings, address, "model"))
print(hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())
"""
ENDED = ("Succeeded", "Failed")


def fetching_pod(name: str, settings: Settings, *arguments: str) -> dict[str, Any]:
    """A pod that fetches a model into the volume `cache` and prints the hash of its weights."""
    key, secret = settings.s3_access_key_id, settings.s3_secret_access_key
    variables = {
        "TOOLFORMER_STATE_DIR": "/tmp/state",  # noqa: S108
        "TOOLFORMER_CACHE_DIR": "/cache",
        "TOOLFORMER_S3_ENDPOINT_URL": settings.s3_endpoint_url,
        "TOOLFORMER_S3_BUCKET": settings.s3_bucket,
        "TOOLFORMER_S3_ACCESS_KEY_ID": key.get_secret_value() if key else "",
        "TOOLFORMER_S3_SECRET_ACCESS_KEY": secret.get_secret_value() if secret else "",
    }
    mounts = [{"name": "temporary", "mountPath": "/tmp"}, {"name": "cache", "mountPath": "/cache"}]  # noqa: S108
    container = {
        # A process that is no init process: signals that it sends itself end it.
        "command": ["sh", "-c", 'python -c "$0" "$@"; exit $?', FETCH, *arguments],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": mounts,
    }
    volumes = [
        {"name": "temporary", "emptyDir": {}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "artifacts"}},
    ]
    return pod(name, "", container=container, volumes=volumes, nodeName="cpu-0")


def ends(cluster: TestCluster, api: client.CoreV1Api, name: str) -> str:
    """The phase in which a pod ends."""
    cluster.wait_for(lambda: api.read_namespaced_pod(name, NAMESPACE).status.phase in ENDED, f"{name} ends", 120)
    return str(api.read_namespaced_pod(name, NAMESPACE).status.phase)


def test_pods_of_a_node_download_a_model_once_and_use_nothing_that_a_killed_one_left(
    cluster: TestCluster, s3_settings: Settings, tmp_path: Path
) -> None:
    api, cache = cluster.client(), cluster.add_claim("artifacts")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(range(256)) * 2**16)
    model = artifacts.publish(s3_settings, "model", "m@1", "models/m", {weights.name: weights}, source="a test")

    api.create_namespaced_pod(NAMESPACE, fetching_pod("killed", s3_settings, model.address, "killed"))
    assert ends(cluster, api, "killed") == "Failed"
    assert [path.name for path in (cache / "entries").iterdir()] == []
    assert len(list((cache / "partial").iterdir())) == 1

    names = ("first", "second")
    for name in names:
        api.create_namespaced_pod(NAMESPACE, fetching_pod(name, s3_settings, model.address))
    assert [ends(cluster, api, name) for name in names] == ["Succeeded", "Succeeded"]
    logs = [api.read_namespaced_pod_log(name, NAMESPACE, _preload_content=False) for name in names]
    assert {log.data.decode().strip() for log in logs} == {model.manifest.files[0].sha256}
    [line] = (cache / "downloads.jsonl").read_text().splitlines()
    assert json.loads(line)["artifact"] == model.address
    assert list((cache / "partial").iterdir()) == []
