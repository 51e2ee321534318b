"""A user opens the form of `annotate_corpus` in a browser, fills it in, and finds calls in SQL and a release and a model on S3."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from toolformer_ops.config import Settings
from toolformer_ops.local_services.airflow_client import AirflowClient
from toolformer_ops.storage import database
from toolformer_ops.storage.object_store import ObjectStore

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-quic",
    "--disable-component-update",
    "--disable-sync",
)
DAG_ID = "annotate_corpus"
CHOSEN = ("Calculator", "Calendar")
BASELINE = ("finetune_without_calls", "publish_without_calls")
SECONDS_FOR_A_PAGE = 60
SECONDS_FOR_A_RUN = 900
FOLDED = {
    "Sampling": {"sampling_threshold": "0", "max_positions": "4", "samples_per_position": "3", "max_call_tokens": "16"},
    "Keep thresholds (tau_f)": {"keep_threshold_Calculator": "0", "keep_threshold_Calendar": "0"},
    "Finetuning": {
        "finetune_steps": "2",
        "finetune_batch": "2",
        "finetune_device_batch": "2",
        "finetune_length": "64",
    },
}
"""Fields below the fold that make a run short, by section."""

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs {CHROMIUM}: apt-get install chromium"),
]


@pytest.fixture
def page(services: Settings) -> Iterator[Page]:
    """A browser that is logged in to Airflow."""
    expect.set_options(timeout=SECONDS_FOR_A_PAGE * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        opened = browser.new_page(viewport={"width": 1400, "height": 1800})
        opened.set_default_timeout(SECONDS_FOR_A_PAGE * 1000)
        opened.goto(services.airflow_url)
        opened.locator('input[name="username"]').fill(services.airflow_username)
        opened.locator('input[name="password"]').fill(services.airflow_password.get_secret_value())
        opened.get_by_role("button", name="Sign in").click()
        expect(opened.locator('input[name="password"]')).to_have_count(0)
        yield opened
        browser.close()


def wait_until_parsed(api: AirflowClient) -> None:
    """Return once Airflow knows the DAG."""
    for _ in range(SECONDS_FOR_A_PAGE):
        if any(dag["dag_id"] == DAG_ID for dag in api.get("/dags")["dags"]):
            return
        time.sleep(1)
    pytest.fail(f"{DAG_ID} was not parsed: {api.get('/importErrors')}")


def open_form(page: Page, settings: Settings) -> Locator:
    """The dialog of the form, with the fields that every run has to think about unfolded."""
    page.goto(f"{settings.airflow_url}/dags/{DAG_ID}")
    page.get_by_test_id("trigger-dag-button").first.click()
    form = page.get_by_role("dialog")
    expect(form.locator('input[name="element_corpus"]')).to_be_visible(timeout=SECONDS_FOR_A_PAGE * 1000)
    return form


def write(form: Locator, name: str, value: str) -> None:
    """Fill one field in, and leave it, as the form reads a number when its field is left."""
    field = form.locator(f'input[name="element_{name}"]')
    field.fill(value)
    field.blur()


def sections_filled_in(form: Locator, sections: dict[str, dict[str, str]]) -> None:
    """Unfold each section, and fill its fields in."""
    for section, fields in sections.items():
        form.get_by_role("button", name=section, exact=True).click()
        for name, value in fields.items():
            write(form, name, value)


def triggered(page: Page, settings: Settings, corpus: Path, model: Path, sections: dict[str, dict[str, str]]) -> None:
    """Fill the form in, and press Trigger."""
    form = open_form(page, settings)
    trigger = form.get_by_role("button", name="Trigger", exact=True)
    expect(trigger).to_be_disabled()  # corpus and model are asked for
    write(form, "corpus", str(corpus))
    write(form, "model", str(model))
    for tool in ("WikiSearch", "QA", "MT"):
        form.get_by_label(f"Remove {tool}").click()
    sections_filled_in(form, sections)
    expect(trigger).to_be_enabled()
    trigger.click()


def test_who_presses_trigger_sees_why_the_run_cannot_start(
    page: Page, services: Settings, small_corpus: Path, writing_model_dir: Path
) -> None:
    api = AirflowClient.of(services)
    wait_until_parsed(api)
    before = run_ids(api)
    # With the usual prune_below: what such a run would keep is not computed.
    triggered(page, services, small_corpus, writing_model_dir, FOLDED)
    reason = "expected keep thresholds of at least prune_below, 0.5 nats, found 0 for Calculator"

    # Airflow opens the run's page, where the first task turns red: behind its square is the log.
    expect(page).to_have_url(re.compile("/runs/"), timeout=2 * SECONDS_FOR_A_PAGE * 1000)
    [run_id] = run_ids(api) - before
    page.locator(f'a[href$="/runs/{run_id}/tasks/ingest"]').first.click()
    in_the_log = page.get_by_test_id("virtualized-list").get_by_text(reason)
    expect(in_the_log.first).to_be_in_viewport(timeout=3 * SECONDS_FOR_A_PAGE * 1000)

    # The note is there, too, when the run's page is opened; at the end also in SQL, and nothing was tried twice.
    page.goto(f"{services.airflow_url}/dags/{DAG_ID}/runs/{quote(run_id, safe='')}")
    expect(page.get_by_text(reason).first).to_be_in_viewport()
    page.goto("about:blank")
    run = wait_until_ended(api, before)
    assert (run["state"], reason in str(run["note"])) == ("failed", True)
    assert not {"success", "up_for_retry"} & {state for _, state, _ in task_states(api, run_id)}
    engine = database.connect_dsn(services.reader_dsn.get_secret_value(), "TOOLFORMER_READER_DSN")
    with engine.connect() as connection:
        problem = connection.exec_driver_sql(
            "select problem from runs_not_started where run_id = %(run_id)s", {"run_id": run_id}
        ).scalar_one()
    assert problem.startswith(f"failed: ingest: {reason}")


def test_a_run_from_the_form_ends_with_calls_in_sql_and_a_release_and_a_model_on_s3(
    page: Page, services: Settings, small_corpus: Path, writing_model_dir: Path
) -> None:
    api = AirflowClient.of(services)
    wait_until_parsed(api)
    before = run_ids(api)
    triggered(page, services, small_corpus, writing_model_dir, FOLDED | {"Scoring": {"prune_below": "0"}})
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.goto("about:blank")  # drawn in software, the page of a running DAG takes a core that the run needs
    run = wait_until_ended(api, before)
    assert run["conf"]["tools"] == list(CHOSEN)
    assert (run["conf"]["keep_threshold_Calculator"], run["conf"]["keep_threshold_MT"]) == (0, None)
    assert run["state"] == "success", failed_tasks(api, run["dag_run_id"])
    tasks = task_states(api, str(run["dag_run_id"]))
    skipped = {name for name, state, _ in tasks if state == "skipped"}
    assert {name.partition(".")[0] for name in skipped} == {"MT", "QA", "WikiSearch", "evaluation", *BASELINE}
    assert [name for name, state, process in tasks if state == "skipped" and process] == []  # no start of 0.9 s each
    page.goto(f"{services.airflow_url}/dags/{DAG_ID}/runs/{quote(str(run['dag_run_id']), safe='')}")
    expect(page.get_by_text("Success", exact=True).filter(visible=True).first).to_be_visible()

    in_sql_and_on_s3(services, run["dag_run_id"])


def run_ids(api: AirflowClient) -> set[str]:
    """The runs of the DAG so far: the services are shared by all tests of a session."""
    return {run["dag_run_id"] for run in api.get(f"/dags/{DAG_ID}/dagRuns", limit=100)["dag_runs"]}


def wait_until_ended(api: AirflowClient, before: set[str]) -> dict[str, object]:
    """The one run that is not among `before`, once it has succeeded or failed."""
    for _ in range(SECONDS_FOR_A_RUN // 3):
        for run_id in run_ids(api) - before:
            run = api.get(f"/dags/{DAG_ID}/dagRuns/{quote(run_id, safe='')}")
            if run["state"] in ("success", "failed"):
                return dict(run)
        time.sleep(3)
    pytest.fail("the run did not end")


def task_states(api: AirflowClient, run_id: str) -> list[tuple[str, str, int | None]]:
    """Each task of a run with its state, and the process that it had."""
    tasks = api.get(f"/dags/{DAG_ID}/dagRuns/{quote(run_id, safe='')}/taskInstances", limit=200)["task_instances"]
    return [(task["task_id"], task["state"], task["pid"]) for task in tasks]


def failed_tasks(api: AirflowClient, run_id: object) -> list[tuple[str, int]]:
    """What to look at when the run is red."""
    instances = api.get(f"/dags/{DAG_ID}/dagRuns/{quote(str(run_id), safe='')}/taskInstances", limit=200)[
        "task_instances"
    ]
    return [(task["task_id"], task["map_index"]) for task in instances if task["state"] == "failed"]


def in_sql_and_on_s3(settings: Settings, run_id: object) -> None:
    """What the run was for is where a user would look for it."""
    engine = database.connect_dsn(settings.reader_dsn.get_secret_value(), "TOOLFORMER_READER_DSN")
    with engine.connect() as connection:

        def one(statement: str) -> tuple[object, ...]:
            row = connection.exec_driver_sql(statement, {"run_id": run_id}).one()
            return tuple(row)

        assert one("select state from annotation_runs where run_id = %(run_id)s") == ("success",)
        (scored,) = one("select count(*) from scored_calls where run_id = %(run_id)s and loss_reduction is not null")
        (kept,) = one("select count(*) from kept_calls where run_id = %(run_id)s")
        release_uri, calls = one(
            "select uri, calls from run_releases join dataset_releases using (release_id) where run_releases.run_id = %(run_id)s"
        )
        (model_uri,) = one(
            "select uri from run_models join finetuned_models using (model_id) where run_models.run_id = %(run_id)s"
        )
    assert int(str(scored)) >= int(str(kept)) >= int(str(calls)) > 0

    store = ObjectStore(settings)
    for uri, ending in ((release_uri, ".parquet"), (model_uri, ".safetensors")):
        manifest = store.read_manifest(store.key_of(str(uri)))
        assert manifest is not None
        assert any(file.name.endswith(ending) for file in manifest.files)
        assert all(store.exists(manifest.key_of(file)) for file in manifest.files)
