"""`deploy/kubernetes` on the cluster of the tests, by the commands of docs/kubernetes.md as they stand there."""

import re
import secrets
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import yaml

from tests.kubernetes.cluster import NAMESPACE, TestCluster, cpu_node, skip_where_no_cluster_runs
from tests.kubernetes.kubelet import local_image
from tests.servers import RunningPostgres
from toolformer_ops.config import REPOSITORY
from toolformer_ops.local_services.postgres import SUPERUSER, ensure_database
from toolformer_ops.orchestration.defaults import POOLS

REGISTRY = "registry.tests/team"


def commands() -> list[str]:
    """The ten commands of the page, after the variable."""
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    (block,) = re.findall(r"```\n(export REGISTRY=.*?)\n```", page, re.DOTALL)
    return str(block).splitlines()[1:]


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def test_the_pages_commands_lead_to_tables_pools_and_everything_that_airflow_needs(
    postgres_server: RunningPostgres, tmp_path: Path
) -> None:
    skip_where_no_cluster_runs()
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: nothing follows docs/kubernetes.md")
    build, name_registry, make_namespace, make_secrets, keep_secrets, apply, helm, *_ = commands()
    assert build.startswith("docker build ")
    assert helm.startswith("helm upgrade ")
    assert len(commands()) == 10
    address, suffix = postgres_server.address, secrets.token_hex(4)
    factory, airflow = f"factory_{suffix}", f"airflow_{suffix}"
    for database in (factory, airflow):
        ensure_database(address, database, SUPERUSER)
    images = {f"{REGISTRY}/toolformer-ops:0.1.0": local_image()}
    (tmp_path / "cluster").mkdir()
    with TestCluster(tmp_path / "cluster", [cpu_node("cpu-0")], images=images) as cluster:
        shutil.copytree(REPOSITORY / "deploy", tmp_path / "deploy")
        access = yaml.safe_load(cluster.admin_kubeconfig.read_text())
        access["clusters"][0]["cluster"]["server"] += f"/token/{access['users'][0]['user']['token']}"
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(access))
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "KUBECONFIG": str(tmp_path / "kubeconfig"),
            "REGISTRY": REGISTRY,
        }

        def follow(command: str) -> str:
            done = subprocess.run(
                ["/bin/bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (
                f"{command}\n{done.stdout}{done.stderr}\n{[r.message for r in cluster.records]}"
            )
            return done.stdout

        # 1. Up to the Secrets, of which only the addresses of the databases are others here.
        for command in (name_registry, make_namespace, make_secrets):
            follow(command)
        for file, database in (("toolformer", factory), ("toolformer-airflow", airflow)):
            path = tmp_path / "secrets" / f"{file}.env"
            text = path.read_text()
            for dsn in set(re.findall(r"://(\S+)", text)):
                text = text.replace(dsn, address.dsn(database).partition("://")[2])
            path.write_text(text)
        follow(keep_secrets)

        # 2. Everything else; the Job runs to its end.
        assert "job.batch/toolformer-prepare condition met" in follow(apply)
        assert rows(address.dsn(factory), "select count(*) > 20 from pg_tables where schemaname = 'public'") == [
            (True,)
        ]
        pools = rows(address.dsn(airflow), "select pool, include_deferred from slot_pool where pool <> 'default_pool'")
        assert dict(pools) == dict.fromkeys(POOLS, True)

        # 3. Applied again, as by an upgrade, it changes nothing.
        again = follow(
            f"kubectl apply --kustomize deploy/kubernetes/trial; kubectl get secret,configmap --namespace {NAMESPACE}"
        )
        assert "created" not in again
        assert {"toolformer", "toolformer-airflow", "toolformer-services"} <= set(re.findall(r"secret/(\S+)", again))
