"""Airflow serves reports: only to users, only those that are there, and so that nothing in them can run."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from fastapi.testclient import TestClient

from toolformer_ops.errors import ObjectNotFoundError, ObjectStoreError
from toolformer_ops.orchestration.report_plugin import ReportLink, ReportPlugin, application, serve
from toolformer_ops.storage import object_store

RUN_ID = "manual__2026-11-21T16:30:00+00:00"
URL = "/reports/finetune_release/manual__2026-11-21T16%3A30%3A00%2B00%3A00"


class FakeStore:
    """A store with one page in it."""

    error: Exception | None = None

    def __init__(self, settings: Any) -> None:
        pass

    def get(self, key: str) -> bytes:
        if self.error:
            raise self.error
        if key != f"reports/{RUN_ID}/index.html":
            raise ObjectNotFoundError(f"expected object {key}, found nothing")
        return b"<!doctype html><p>page</p>"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A client of a user who may see everything."""
    from airflow.api_fastapi.core_api import security

    async def user() -> Any:
        return SimpleNamespace(get_id=lambda: "1", get_name=lambda: "somebody")

    manager = SimpleNamespace(is_authorized_dag=lambda **_: True)
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(security.DagModel, "get_team_name", lambda dag_id: None)
    monkeypatch.setattr(object_store, "ObjectStore", FakeStore)
    monkeypatch.setattr(FakeStore, "error", None)
    application.cache_clear()
    app = application()
    app.dependency_overrides[security.get_user] = user
    yield TestClient(app)
    application.cache_clear()


def test_a_page_is_served_and_may_run_nothing(client: TestClient) -> None:
    answer = client.get(URL)
    assert (answer.status_code, answer.text) == (200, "<!doctype html><p>page</p>")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert policy.endswith("sandbox")
    assert "script-src" not in policy


def test_a_run_without_a_report_is_said_without_markup_from_its_name(client: TestClient) -> None:
    answer = client.get("/reports/finetune_release/%3Cscript%3E")
    assert answer.status_code == 404
    assert "No evaluation was reported for the run &lt;script&gt; of finetune_release." in answer.text
    assert client.get("/reports/finetune_release/..%2F..%2Fmodels").status_code in (404, 502)


def test_an_s3_that_cannot_be_read_is_said_without_its_secrets(client: TestClient) -> None:
    FakeStore.error = ObjectStoreError("refused, key-id AKIA")
    answer = client.get(URL)
    assert answer.status_code == 502
    assert "AKIA" not in answer.text
    assert "TOOLFORMER_S3_" in answer.text


def test_who_is_not_logged_in_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "ObjectStore", FakeStore)
    application.cache_clear()
    assert TestClient(application()).get(URL).status_code == 401
    application.cache_clear()


def test_the_task_that_reports_links_to_where_the_page_is_served(
    local_dags: dict[str, DAG], monkeypatch: pytest.MonkeyPatch
) -> None:
    key: Any = SimpleNamespace(dag_id="finetune_release", run_id=RUN_ID)
    assert ReportLink().get_link(SimpleNamespace(), ti_key=key) == f"http://127.0.0.1:8080/toolformer{URL}"  # type: ignore[arg-type]
    for dag_id in ("finetune_release", "annotate_corpus"):
        again = DagSerialization.from_dict(DagSerialization.to_dict(local_dags[dag_id]))
        assert again.task_dict["evaluation.report"].extra_links == ["Evaluation report"]


def test_the_plugin_is_what_airflow_mounts() -> None:
    [app] = ReportPlugin.fastapi_apps
    assert (app["app"], app["url_prefix"]) == (serve, "/toolformer")
    [view] = ReportPlugin.external_views
    assert view["href"] == "/toolformer/reports/{DAG_ID}/{RUN_ID}"
    assert view["destination"] == "dag_run"
