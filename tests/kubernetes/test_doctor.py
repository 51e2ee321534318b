"""`toolformer-ops doctor --kubernetes` on the cluster of the tests: what is there, what is missing, and the remedy."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import yaml
from airflow.jobs import job
from airflow.models.pool import Pool
from airflow.utils import session as airflow_session
from sqlalchemy.exc import SQLAlchemyError
from typer.testing import CliRunner

from tests.kubernetes.cluster import GPU, IMAGE, NAMESPACE, Node
from toolformer_ops.__main__ import app
from toolformer_ops.airflow_tasks.kubernetes import templates
from toolformer_ops.config import REPOSITORY, load_settings

TEMPLATES = REPOSITORY / "deploy" / "pod-templates"


@pytest.fixture
def deployment(cluster, settings, monkeypatch):
    """A deployment that lacks nothing, on a cluster without GPUs; the caller has all rights."""
    names = ("database_dsn", "s3_access_key_id", "s3_secret_access_key")
    secrets = {f"TOOLFORMER_{name.upper()}": getattr(settings, name).get_secret_value() for name in names}
    monkeypatch.setattr(templates, "SECRET", "doctor")
    cluster.add_secret(templates.SECRET, secrets)
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", "kubernetes://")
    change(
        monkeypatch,
        runner="kubernetes",
        kubernetes_config_file=cluster.admin_kubeconfig,
        kubernetes_image=IMAGE,
        kubernetes_namespace=NAMESPACE,
        kubernetes_templates=TEMPLATES / "cpu-only",
    )
    return load_settings()


@pytest.fixture(autouse=True)
def airflow(monkeypatch):
    """Airflow's database: pools by name with whether they count deferred tasks, and a triggerer that is alive."""
    pools = {"cpu": True, "gpu": True}

    @contextmanager
    def session() -> Iterator[None]:
        yield None

    monkeypatch.setattr(airflow_session, "create_session", session)
    monkeypatch.setattr(
        job, "most_recent_job", lambda *_, **__: SimpleNamespace(is_alive=lambda: pools["cpu"])
    )
    monkeypatch.setattr(
        Pool,
        "get_pools",
        lambda **_: [
            SimpleNamespace(pool=name, slots=2, include_deferred=counts) for name, counts in pools.items()
        ],
    )
    return pools


def change(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"TOOLFORMER_{name.upper()}", str(value))
    load_settings.cache_clear()


def doctor(*options: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit status, and state and detail by subject."""
    done = CliRunner().invoke(app, ["doctor", "--kubernetes", *options], catch_exceptions=False)
    found = [re.fullmatch(r"(ok|missing|unknown) +(.+?): (.*)", line) for line in done.stdout.splitlines()]
    assert all(found), "Airflow's log lines are on stderr"
    return done.exit_code, {line[2]: (line[1], line[3]) for line in found if line}


def states(found: dict[str, tuple[str, str]], state: str) -> list[str]:
    return sorted(subject for subject, (said, _) in found.items() if said == state)


def test_a_cluster_that_has_everything_is_well(cluster, deployment):
    status, found = doctor()
    assert [found[name] for name in states(found, "missing") + states(found, "unknown")] == []
    assert status == 0
    assert found["rights"][1] == "all 7 that tasks and triggerer use"
    assert "TOOLFORMER_S3_SECRET_ACCESS_KEY" in found["Secret"][1]
    assert found["pod by gpu, Postgres"] == ("ok", "answers, and has this version's tables")
    assert found["pod by finetune, S3"][1] == f"the bucket {deployment.s3_bucket} can be read and written"
    assert found["pod by cpu, cache folder"] == ("ok", "/var/cache/toolformer can be written")
    cluster.wait_for(
        lambda: not [pod for pod in cluster.pods() if "doctor" in pod["metadata"]["name"]], "pods are gone"
    )


def test_what_the_rights_of_airflow_do_not_show_the_pods_prove(cluster, deployment, monkeypatch):
    change(monkeypatch, kubernetes_config_file=cluster.kubeconfig)
    dsn = "postgresql://owner:not-shown@127.0.0.1:9/none"
    cluster.add_secret(templates.SECRET, {"TOOLFORMER_DATABASE_DSN": dsn})
    status, found = doctor()
    unseen = ["Secret", "namespace", "nodes for cpu", "nodes for finetune", "nodes for gpu"]
    assert states(found, "unknown") == unseen
    assert found["rights"][0] == "ok"
    assert found["pod by gpu"][0] == "ok"
    assert found["pod by gpu, Postgres"][0] == "missing"
    assert "expected Postgres at owner@127.0.0.1:9/none" in found["pod by gpu, Postgres"][1]
    assert "not-shown" not in str(found)
    assert status == 1


def test_each_thing_that_is_missing_is_named_with_its_remedy(
    cluster, deployment, airflow, monkeypatch, tmp_path
):
    airflow |= {"cpu": False, "gpu": False}
    for name in ("gpu", "finetune"):
        pod = yaml.safe_load((TEMPLATES / "a100" / f"{name}.yaml").read_text())
        pod["spec"]["volumes"].append(
            {"name": "cache", "persistentVolumeClaim": {"claimName": "toolformer-cache"}}
        )
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(pod))
    (tmp_path / "cpu.yaml").write_text("kind: Deployment\n")
    (tmp_path / "gpu.yaml").write_text((tmp_path / "gpu.yaml").read_text().replace("A100-SXM4", "H900"))
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    (tmp_path / "finetune.yaml").write_text(yaml.safe_dump(pod))
    monkeypatch.setattr(templates, "SECRET", "not-there")
    change(monkeypatch, kubernetes_templates=tmp_path)
    status, found = doctor()
    assert status == 1
    for subject, remedy in {
        "template cpu": f"{tmp_path}/cpu.yaml, line 1",
        "pool gpu": "airflow pools import",
        "triggerer": "airflow triggerer",
        "Secret": "deploy/kubernetes/secrets/toolformer.env",
        "claim toolformer-cache": "deploy/kubernetes/shared-cache/cache.yaml",
        "nodes for gpu": "no node with nvidia.com/gpu.product=NVIDIA-H900-80GB",
        "nodes for finetune": "No node has so many: lower the number",
        "dry run of finetune": "privileged (container stage). Correct the pod template.",
        "pod by gpu": "no node takes the pod",
    }.items():
        assert (found[subject][0], remedy in found[subject][1]) == ("missing", True), found[subject]


def test_whatever_is_wrong_with_a_node_is_named(cluster, deployment, monkeypatch, tmp_path):
    """Three kinds of GPU nodes: with a taint of AKS, with a small boot disk, and with an old driver, which the pod then names."""
    labels = {"nvidia.com/cuda.driver-version.full": "550.54.15"}
    taint = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
    cluster.add_node(Node(name="tainted", gpus=1, labels={"kind": "tainted"}, taints=[taint]))
    cluster.add_node(Node(name="small", gpus=1, labels={"kind": "small"}, disk="20Gi"))
    cluster.add_node(Node(name="old", gpus=1, labels={"kind": "old", **labels}))
    cluster.add_claim("toolformer-cache", bound=False)
    pod = yaml.safe_load((TEMPLATES / "a100" / "gpu.yaml").read_text())
    pod["spec"]["volumes"].append(
        {"name": "cache", "persistentVolumeClaim": {"claimName": "toolformer-cache"}}
    )
    for name, kind in (("cpu", "tainted"), ("gpu", "small"), ("finetune", "old")):
        pod["spec"]["nodeSelector"] = {"kind": kind}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(pod))
    change(monkeypatch, kubernetes_templates=tmp_path)
    _, found = doctor("--no-pods")
    for subject, state, words in (
        ("nodes for cpu", "missing", "all have taints (sku=gpu:NoSchedule). Add them to tolerations"),
        (
            "nodes for gpu",
            "missing",
            "disk for pods 20 GiB, a pod asks for 24Gi. Give the nodes a larger boot disk",
        ),
        ("nodes for finetune", "ok", "a pod wants 1; driver 550.54.15"),
        ("claim toolformer-cache", "unknown", "may wait for the first pod, or may not have ReadWriteMany"),
    ):
        assert (found[subject][0], words in found[subject][1]) == (state, True), found[subject]


def test_templates_are_looked_at_where_the_cluster_cannot_be_reached(deployment, monkeypatch, tmp_path):
    change(monkeypatch, kubernetes_config_file=tmp_path / "none")
    monkeypatch.setattr(airflow_session, "create_session", mock.Mock(side_effect=SQLAlchemyError("is away")))
    status, found = doctor("--no-pods")
    said = "its database cannot be read from here: is away. Run this where Airflow runs."
    assert found["Airflow"] == ("unknown", said)
    assert status == 1
    assert states(found, "missing") == ["cluster"]
    assert "TOOLFORMER_KUBERNETES_CONFIG_FILE" in found["cluster"][1]
    shutil.copytree(TEMPLATES / "a100", tmp_path / "a100")
    change(monkeypatch, kubernetes_templates=tmp_path / "a100")
    pod = yaml.safe_load((TEMPLATES / "a100" / "gpu.yaml").read_text())
    [stage] = pod["spec"]["containers"]
    environment = list(stage.get("env", ()))
    for gpus, way in ((4, "off"), (1, "layers")):  # GPUs that a model cannot use
        stage["resources"]["limits"][GPU] = gpus
        stage["env"] = [*environment, {"name": "TOOLFORMER_MODEL_PARALLEL", "value": way}]
        (tmp_path / "a100" / "gpu.yaml").write_text(yaml.safe_dump(pod))
        _, found = doctor("--no-pods")
        assert states(found, "missing") == ["cluster", "template gpu"]
        assert f"found {gpus} and {way}" in found["template gpu"][1]
