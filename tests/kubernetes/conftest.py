"""A cluster for the tests of this folder."""

import pytest

from tests.kubernetes.cluster import TestCluster, cpu_node, gpu_node, skip_where_no_cluster_runs


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two GPUs on one node, and a node without."""
    skip_where_no_cluster_runs()
    with TestCluster(
        tmp_path_factory.mktemp("cluster"), [gpu_node("gpu-0", gpus=2), cpu_node("cpu-0")]
    ) as running:
        running.kubelet.seconds_shown_after_end = (
            0.03  # to the looks every 0.2 s what a kubelet's 1 to 2 s are to those every 10 s
        )
        yield running


@pytest.fixture(autouse=True)
def _looks_at_pods_often(monkeypatch):
    from toolformer_ops.airflow_tasks.kubernetes import watching

    monkeypatch.setattr(watching, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(watching, "PATIENCE_SECONDS", 0.5)
