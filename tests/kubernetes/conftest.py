"""A cluster for the tests of this folder, and a pod that every cluster takes."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.cluster import IMAGE, TestCluster, cpu_node, gpu_node, skip_where_no_cluster_runs


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Two GPUs on one node, and a node without."""
    skip_where_no_cluster_runs()
    with TestCluster(tmp_path_factory.mktemp("cluster"), [gpu_node("gpu-0", gpus=2), cpu_node("cpu-0")]) as running:
        running.kubelet.seconds_shown_after_end = (
            0.03  # to the looks every 0.2 s what a kubelet's 1 to 2 s are to those every 10 s
        )
        yield running


def pod(name: str, script: str, *, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A hardened pod that runs a shell script; `container` and the rest replace parts of it."""
    only = {
        "name": "stage",
        "image": IMAGE,
        "command": ["sh", "-c", script],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **(container or {}),
    }
    context = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"name": name}},
        "spec": {"restartPolicy": "Never", "securityContext": context, "containers": [only], **spec},
    }
