"""The DAGs, parsed as Airflow's DAG processor does, under chosen settings and without a database."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"  # before the first import of airflow

from airflow.dag_processing.dagbag import BundleDagBag, DagBag
from airflow.sdk import DAG

from toolformer_ops.airflow_tasks.bundles.schedule_bundle import ScheduleBundle
from toolformer_ops.airflow_tasks.bundles.versioned_bundle import VersionedBundle
from toolformer_ops.config import REPOSITORY, load_settings

IMAGE = "registry.example/toolformer@sha256:" + "0" * 64

Parsed = dict[frozenset[tuple[str, str]], Mapping[str, DAG]]


@pytest.fixture(scope="session")
def parsed():
    """The DAGs by the settings that they were parsed with: parsing takes a second, and no test changes a DAG."""
    return {}


@pytest.fixture
def parse(monkeypatch, parsed):
    """Sets these `TOOLFORMER_` settings for the test and returns the DAGs that `dags/` makes of them, by id."""

    def parse_dags(**settings: str) -> dict[str, DAG]:
        for name, value in settings.items():
            monkeypatch.setenv(f"TOOLFORMER_{name.upper()}", value)
        load_settings.cache_clear()
        key = frozenset(settings.items())
        if key not in parsed:
            bag = DagBag(REPOSITORY / "dags")
            assert bag.import_errors == {}
            parsed[key] = bag.dags
        return dict(parsed[key])

    return parse_dags


@pytest.fixture
def local_dags(parse):
    """The DAGs of a machine that runs stages as processes."""
    return parse()


@pytest.fixture
def kubernetes_dags(parse):
    """The DAGs of a deployment that runs stages as pods, with secrets that must show nowhere."""
    return parse(
        runner="kubernetes",
        kubernetes_image=IMAGE,
        database_dsn="postgresql://owner:secret-dsn@db/toolformer",
        reader_dsn="postgresql://reader:secret-reader@db/toolformer",
        s3_access_key_id="secret-key-id",
        s3_secret_access_key="secret-access-key",
        s3_endpoint_url="http://minio:9000",
    )


@pytest.fixture
def schedules(tmp_path, monkeypatch):
    """The folder of the schedule files; empty."""
    monkeypatch.setenv("TOOLFORMER_SCHEDULES_DIR", str(tmp_path))
    load_settings.cache_clear()
    return tmp_path


@pytest.fixture
def bundle(schedules, postgres_dsn, monkeypatch, tmp_path_factory):
    """Makes a bundle as a process of Airflow does: of what there is, or of a version.

    `machine` has files of its own; `kind` is the class.
    """
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", postgres_dsn)
    load_settings.cache_clear()
    folders: dict[str, Path] = {}

    def make(
        version: str | None = None,
        machine: str = "dag-processor",
        kind: type[VersionedBundle] = ScheduleBundle,
    ) -> VersionedBundle:
        folder = folders.setdefault(machine, tmp_path_factory.mktemp(machine))
        monkeypatch.setattr(
            "airflow.dag_processing.bundles.base.get_bundle_storage_root_path", lambda: folder
        )
        return kind(name=kind.__name__, version=version)

    return make


def dags_of(bundle: VersionedBundle) -> BundleDagBag:
    """The DAGs of a bundle, as Airflow parses its files."""
    return BundleDagBag(bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
