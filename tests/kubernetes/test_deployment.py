"""The trial of `deploy/kubernetes` on the cluster of the tests: its Secrets, its settings, and its Job, which migrates."""

import re
import secrets
import shutil
import subprocess
from contextlib import closing
from typing import Any

import psycopg2
import pytest
import yaml

from tests.kubernetes.cluster import NAMESPACE, TestCluster, cpu_node, skip_where_no_cluster_runs
from tests.kubernetes.kubelet import local_image
from toolformer_ops.airflow_tasks.defaults import POOLS
from toolformer_ops.config import REPOSITORY
from toolformer_ops.local.postgres import SUPERUSER, ensure_database

REGISTRY = "registry.tests/team"


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def test_the_pages_commands_lead_to_tables_with_pools(postgres_server, tmp_path):
    skip_where_no_cluster_runs()
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: nothing renders the trial")
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    (block,) = re.findall(r"```\nexport REGISTRY=.*?\n(.*?)\n```", page, re.DOTALL)
    build, name_registry, _, make_secrets, keep_secrets, apply, helm, *kubectl_exec = block.splitlines()
    assert len(kubectl_exec) == 3
    assert build.startswith("docker build ")
    assert helm.startswith("helm upgrade ")

    def follow(command: str) -> str:
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "REGISTRY": REGISTRY}
        words = ["/bin/bash", "-euc", command]
        return subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    # 1. The commands up to the Secrets, of which only the addresses of the databases are others here.
    shutil.copytree(REPOSITORY / "deploy", tmp_path / "deploy")
    follow(name_registry)
    follow(make_secrets)
    address, suffix = postgres_server.address, secrets.token_hex(4)
    databases = {name: f"{name.replace('-', '_')}_{suffix}" for name in ("toolformer", "toolformer-airflow")}
    made = {}
    for name in re.findall(r"for name in (.*?);", keep_secrets)[0].split():
        lines = (tmp_path / "secrets" / f"{name}.env").read_text().splitlines()
        made[name] = dict(line.split("=", 1) for line in lines)
        if name in databases:
            ensure_database(address, databases[name], SUPERUSER)
            here = address.dsn(databases[name]).partition("://")[2]
            made[name] = {key: re.sub(r"(?<=://).*", here, value) for key, value in made[name].items()}

    # 2. What `kubectl apply` would make. The Job's pod runs to its end.
    assert apply.startswith("kubectl apply --kustomize deploy/kubernetes/trial && ")
    rendered = list(yaml.safe_load_all(follow("kubectl kustomize deploy/kubernetes/trial")))
    (job,) = [found for found in rendered if found["kind"] == "Job"]
    (tmp_path / "cluster").mkdir()
    images = {f"{REGISTRY}/toolformer-ops:0.1.0": local_image()}
    with TestCluster(tmp_path / "cluster", [cpu_node("cpu-0")], images=images) as cluster:
        for name, values in made.items():
            cluster.add_secret(name, values)
        for found in rendered:
            if found["kind"] == "ConfigMap":
                cluster.add_config_map(found["metadata"]["name"], found["data"])
        template = job["spec"]["template"]
        cluster.client().create_namespaced_pod(
            NAMESPACE, {**template, "metadata": {**template["metadata"], "name": "prepare"}}
        )
        (record,) = cluster.records
        cluster.wait_for(lambda: record.ended, "the Job's pod ends", seconds=180)
        assert record.exit_code == 0, record.message
    factory, airflow = (address.dsn(database) for database in databases.values())
    assert rows(factory, "select count(*) > 20 from pg_tables where schemaname = 'public'") == [(True,)]
    pools = rows(airflow, "select pool, include_deferred from slot_pool where pool <> 'default_pool'")
    assert dict(pools) == dict.fromkeys(POOLS, True)
