"""A release is made by one DAG, finetuned and evaluated by the other, and its page is shown in the run to who is logged in.

One suite has no data, so the run is red at its end; the other suite is evaluated all the same, and the page names the first.
"""

from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright
from sqlalchemy import text as sql

from tests.system.conftest import FINETUNE, PROBLEMS, TUNING, wait_until_ended
from toolformer_ops.config import Settings
from toolformer_ops.local_services.airflow_client import AirflowClient
from toolformer_ops.storage import database
from toolformer_ops.storage.object_store import ObjectStore

CHROMIUM = Path("/usr/bin/chromium")
VARIANTS = {"base", "without_calls", "disabled", "with_tools"}

pytestmark = pytest.mark.system


def rows(settings: Settings, query: str, **values: object) -> list[tuple[object, ...]]:
    with database.transaction(database.connect(settings)) as connection:
        return [tuple(row) for row in connection.execute(sql(query), values)]


@pytest.fixture(scope="module")
def tuned(airflow: AirflowClient, tuning: str) -> str:
    """The state in which the run ended."""
    return wait_until_ended(airflow, FINETUNE, tuning)


def names(airflow: AirflowClient, state: str) -> set[str]:
    return {task.task_id for task in airflow.tasks(FINETUNE, TUNING, state)}


def test_a_suite_without_data_fails_by_name_and_stops_no_other(airflow: AirflowClient, tuned: str) -> None:
    assert tuned == "failed"
    assert names(airflow, "failed") == {"evaluation.lama", "finish_run"}
    assert names(airflow, "success") >= {"publish", "publish_without_calls", "evaluation.math", "evaluation.report"}
    [lama] = [task for task in airflow.tasks(FINETUNE, TUNING, "failed") if task.task_id == "evaluation.lama"]
    assert "EvaluationDataError: " in "\n".join(airflow.log_tail(FINETUNE, TUNING, lama, 20))


def test_every_variant_has_a_score_and_both_models_are_published(services: Settings, tuned: str) -> None:
    found = rows(
        services, "select variant, suite, subset, inputs from evaluation_scores where run_id = :run", run=TUNING
    )
    assert {row[0] for row in found} == VARIANTS
    assert {row[1:] for row in found} == {("math", "svamp", PROBLEMS)}
    models = rows(services, "select without_calls from run_models where run_id = :run order by 1", run=TUNING)
    assert models == [(False,), (True,)]
    [[state]] = rows(services, "select state from annotation_runs where run_id = :run", run=TUNING)
    assert state == "failed"


def test_the_page_is_on_s3_and_names_what_is_lacking(services: Settings, tuned: str) -> None:
    page = ObjectStore(services).get(f"reports/{TUNING}/index.html").decode("utf-8")
    assert "<strong>Not evaluated:</strong> lama." in page
    assert "svamp" in page
    assert "n = 3" in page
    assert "Loss in nats a token by optimiser step" in page
    assert page.count('class="curve"') > 0
    assert services.s3_secret_access_key is not None
    assert services.s3_secret_access_key.get_secret_value() not in page


def test_only_who_is_logged_in_sees_the_page(services: Settings, tuned: str) -> None:
    address = f"{services.airflow_url}/toolformer/reports/{FINETUNE}/{TUNING}"
    assert httpx.get(address).status_code == 401
    credentials = {"username": services.airflow_username, "password": services.airflow_password.get_secret_value()}
    token = httpx.post(f"{services.airflow_url}/auth/token", json=credentials).json()["access_token"]
    answer = httpx.get(address, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    link = f"/api/v2/dags/{FINETUNE}/dagRuns/{TUNING}/taskInstances/evaluation.report/links"
    found = httpx.get(f"{services.airflow_url}{link}", headers={"Authorization": f"Bearer {token}"}).json()
    assert found["extra_links"] == {"Evaluation report": address}


@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs {CHROMIUM}: apt-get install chromium")
def test_the_run_has_a_tab_with_the_page(services: Settings, tuned: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(60_000)
        page.goto(services.airflow_url)
        page.locator('input[name="username"]').fill(services.airflow_username)
        page.locator('input[name="password"]').fill(services.airflow_password.get_secret_value())
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator('input[name="password"]')).to_have_count(0, timeout=60_000)
        page.goto(f"{services.airflow_url}/dags/{FINETUNE}/runs/{quote(TUNING)}")
        page.get_by_text("Annotation", exact=True).first.click()
        ours = page.frame_locator('iframe[src*="toolformer/run"]')
        ours.get_by_role("link", name="Evaluation").click()
        frame = ours.frame_locator(f'iframe[src*="reports/{FINETUNE}/"]')
        expect(frame.get_by_role("heading", name=TUNING)).to_be_visible(timeout=60_000)
        browser.close()
