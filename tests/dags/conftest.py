"""The DAGs, parsed as Airflow's DAG processor does, under chosen settings and without a database."""

import os
import tempfile
from collections.abc import Callable

import pytest

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-home-of-tests-")  # before the first import of airflow
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from toolformer_ops.config import REPOSITORY, load_settings

IMAGE = "registry.example/toolformer@sha256:" + "0" * 64


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, DAG]]:
    """Parses `dags/` with these `TOOLFORMER_` settings and returns the DAGs by id."""

    def parse_dags(**settings: str) -> dict[str, DAG]:
        for name, value in settings.items():
            monkeypatch.setenv(f"TOOLFORMER_{name.upper()}", value)
        load_settings.cache_clear()
        bag = DagBag(REPOSITORY / "dags")
        assert bag.import_errors == {}
        return bag.dags

    return parse_dags


@pytest.fixture
def local_dags(parse: Callable[..., dict[str, DAG]]) -> dict[str, DAG]:
    """The DAGs of a machine that runs stages as processes."""
    return parse()


@pytest.fixture
def kubernetes_dags(parse: Callable[..., dict[str, DAG]]) -> dict[str, DAG]:
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
