"""The Job of `deploy/kubernetes` on the cluster of the tests, as it stands there."""

import secrets
from contextlib import closing
from typing import Any

import psycopg2
import yaml

from tests.kubernetes.cluster import IMAGE, NAMESPACE, TestCluster
from tests.servers import RunningPostgres
from toolformer_ops.config import REPOSITORY
from toolformer_ops.local_services.postgres import SUPERUSER, ensure_database
from toolformer_ops.orchestration.defaults import POOLS

BASE = REPOSITORY / "deploy" / "kubernetes" / "base"


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def test_the_job_waits_for_its_secrets_and_makes_all_tables_and_pools(
    cluster: TestCluster, postgres_server: RunningPostgres
) -> None:
    # 1. Two empty databases, and the ConfigMaps that Kustomize makes.
    address, suffix = postgres_server.address, secrets.token_hex(4)
    factory, airflow = f"factory_{suffix}", f"airflow_{suffix}"
    for name in (factory, airflow):
        ensure_database(address, name, SUPERUSER)
    lines = [line for line in (BASE / "settings.env").read_text().splitlines() if line and not line.startswith("#")]
    cluster.add_config_map("toolformer", dict(line.split("=", 1) for line in lines))
    cluster.add_config_map("toolformer-pools", {"pools.json": (BASE / "pools.json").read_text()})

    # 2. The Job's pod, which the cluster takes under "restricted". It waits until there are Secrets.
    template = yaml.safe_load((BASE / "prepare.yaml").read_text())["spec"]["template"]
    template["spec"]["containers"][0]["image"] = IMAGE
    template["metadata"]["name"] = "toolformer-prepare"
    api = cluster.client()
    api.create_namespaced_pod(NAMESPACE, template)

    def status() -> Any:
        return api.read_namespaced_pod_status("toolformer-prepare", NAMESPACE).status

    def waits() -> bool:
        found = status().container_statuses
        return bool(found and found[0].state.waiting and found[0].state.waiting.reason == "CreateContainerConfigError")

    cluster.wait_for(waits, "the pod misses its Secrets")
    cluster.add_secret("toolformer", {"TOOLFORMER_DATABASE_DSN": address.dsn(factory)})
    connection = address.dsn(airflow).replace("postgresql://", "postgresql+psycopg2://")
    cluster.add_secret("toolformer-airflow", {"connection": connection, "fernet-key": ""})

    # 3. What it made.
    cluster.wait_for(lambda: status().phase in ("Succeeded", "Failed"), "the pod ends", seconds=300)
    assert status().phase == "Succeeded", cluster.records[-1].message
    assert rows(address.dsn(factory), "select count(*) > 20 from pg_tables where schemaname = 'public'") == [(True,)]
    pools = rows(address.dsn(airflow), "select pool, include_deferred from slot_pool where pool <> 'default_pool'")
    assert dict(pools) == dict.fromkeys(POOLS, True)
