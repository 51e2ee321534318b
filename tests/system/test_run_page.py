"""The page of a finished, a red and a running run in Airflow, in a browser: filtered, paged, a slider moved; numbers are SQL's.

The runs are Airflow's own, and their rows those that stages would write; nothing is annotated. The screenshots go to the folder
that RUN_PAGE_PICTURES names, else to a temporary one; those of docs/run_page.md were made so.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import FrameLocator, Page, expect, sync_playwright
from sqlalchemy import text as sql

from tests.annotated_runs import AnnotatedRun
from tests.system.conftest import ANNOTATE
from toolformer_ops.config import Settings
from toolformer_ops.local_services.airflow_client import AirflowClient
from toolformer_ops.stages.release import release
from toolformer_ops.stages.run_setup import finish_run
from toolformer_ops.storage import database

CHROMIUM = Path("/usr/bin/chromium")
MILLISECONDS = 90_000
FINISHED, RED, RUNNING = "page-finished", "page-red", "page-running"
TOOL = "Calculator"
TEXTS = 80
CORPUS_VERSION = """
insert into corpus_versions
    (corpus_id, version, documents, added, removed, corrected, changed, kept, files, records, duplicates, rejected)
values (:corpus_id, 1, :texts, :texts, 0, 0, 0, 0, 1, :texts, 0, 0)
"""

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs {CHROMIUM}: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def runs(services: Settings, airflow: AirflowClient, small_corpus: Path) -> Iterator[None]:
    """DAG runs that ended well, that failed at a task, and that wait, each with the rows of its annotation; no task is started."""
    airflow.open_dag(ANNOTATE)
    with signed_in(services) as client:
        paused(client, True)
        try:
            fill(services, client, small_corpus)
            yield
        finally:
            for run_id in (FINISHED, RED, RUNNING):
                client.delete(f"/api/v2/dags/{ANNOTATE}/dagRuns/{run_id}")
            paused(client, False)


def paused(client: httpx.Client, is_paused: bool) -> None:
    client.patch(f"/api/v2/dags/{ANNOTATE}", json={"is_paused": is_paused}).raise_for_status()


def fill(settings: Settings, client: httpx.Client, corpus: Path) -> None:
    """Runs over texts with two calls each, of which the second saves the more the later its text comes."""
    of_dag = f"/api/v2/dags/{ANNOTATE}/dagRuns"
    for run_id, threshold, state in ((FINISHED, 0.25, "success"), (RED, 50.0, "failed"), (RUNNING, 0.25, "running")):
        conf = {"corpus": str(corpus), "model": "no-such-model", "tools": [TOOL]}
        answer = client.post(of_dag, json={"dag_run_id": run_id, "logical_date": None, "conf": conf})
        assert answer.is_success, answer.text
        run = AnnotatedRun(settings, {TOOL: threshold}, run_id=run_id, prune_below=0.0)
        for number in range(TEXTS):
            text = (
                f"The shop had {number + 200} shirts at the start of the week, as it says on page {number} of the book. "
                f"It sold {number} of them on day {number}, so it has 200 left for the season that comes."
            )
            document = run.add_text(text, f"https://shop.example/2023/01/{1 + number % 28:02}/shirts-{number}")
            run.add_call(TOOL, document, "of them", f"{number} / 7", f"{number / 7:.2f}", saves=-0.25 - number / 100)
            run.add_call(TOOL, document, "200 left", f"{number + 200} - {number}", "200", saves=number / 50)
        run.complete(TOOL, documents=run.documents[: TEXTS // 2] if state == "running" else None)
        if state == "success":
            with database.transaction(run.engine) as connection:
                connection.execute(sql(CORPUS_VERSION), {"corpus_id": run.corpus_id, "texts": TEXTS})
            release(settings, run_id)
        if state != "running":
            finish_run(settings, run_id, state)
            if state == "failed":
                task = client.patch(f"{of_dag}/{run_id}/taskInstances/release", json={"new_state": "failed"})
                task.raise_for_status()
            client.patch(f"{of_dag}/{run_id}", json={"state": state}).raise_for_status()


def signed_in(settings: Settings) -> httpx.Client:
    credentials = {"username": settings.airflow_username, "password": settings.airflow_password.get_secret_value()}
    token = httpx.post(f"{settings.airflow_url}/auth/token", json=credentials, timeout=60).json()["access_token"]
    return httpx.Client(base_url=settings.airflow_url, headers={"Authorization": f"Bearer {token}"}, timeout=60)


@pytest.fixture(scope="module")
def page(services: Settings, runs: None) -> Iterator[Page]:
    """A browser that is signed in; a violation of the page's content security policy fails the test that sees it."""
    expect.set_options(timeout=MILLISECONDS)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-quic", "--disable-sync"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.set_default_timeout(MILLISECONDS)
        opened.goto(services.airflow_url)
        opened.locator('input[name="username"]').fill(services.airflow_username)
        opened.locator('input[name="password"]').fill(services.airflow_password.get_secret_value())
        opened.get_by_role("button", name="Sign in").click()
        expect(opened.locator('input[name="password"]')).to_have_count(0)
        yield opened
        browser.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("RUN_PAGE_PICTURES", tmp_path_factory.mktemp("pictures")))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def one(settings: Settings, statement: str, **values: object) -> Any:
    """The one value of a statement, as the reader sees it."""
    engine = database.connect_dsn(settings.reader_dsn.get_secret_value(), "TOOLFORMER_READER_DSN")
    with engine.connect() as connection:
        return connection.execute(sql(statement), values).scalar_one()


def wait_for(page: Page, part: str) -> None:
    """Return once the frame is at an address with this part, whole."""
    frame = "document.querySelector('iframe').contentWindow"
    page.wait_for_function(
        f"part => {frame}.location.href.includes(part) && {frame}.document.readyState === 'complete'", arg=part
    )


def opened(
    page: Page, settings: Settings, run_id: str, view: str = "annotation", title: str = "Annotation"
) -> FrameLocator:
    """A tab of the run."""
    page.goto(f"{settings.airflow_url}/dags/{ANNOTATE}/runs/{quote(run_id)}/plugin/{view}")
    frame = page.frame_locator(f'iframe[title="{title}"]')
    expect(frame.get_by_role("heading", name=run_id)).to_be_visible()
    return frame


def test_a_finished_run_shows_the_numbers_of_sql(page: Page, services: Settings, pictures: Path) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    in_run = {"run": FINISHED, "tool": TOOL}
    scored = one(services, "select count(*) from scored_calls where run_id = :run", run=FINISHED)
    kept = one(services, "select count(*) from kept_calls where run_id = :run", run=FINISHED)
    # 1. The run.
    frame = opened(page, services, FINISHED)
    expect(frame.locator("#total-kept")).to_have_text(f"{kept:,}")
    expect(frame.locator("#total-scored")).to_have_text(f"{scored:,}")
    page.screenshot(path=pictures / "run.png")
    # 2. Its calls, to the last page.
    frame.get_by_role("link", name="Calls", exact=True).click()
    wait_for(page, "/toolformer/calls")  # the run has a table of its best calls
    rows = frame.locator("table.calls tbody tr")
    expect(rows.first).to_be_visible()
    page.screenshot(path=pictures / "calls.png")
    seen = rows.count()
    while frame.get_by_role("link", name="Next page").count():
        first = rows.first.inner_html()
        frame.get_by_role("link", name="Next page").click()
        expect(frame.get_by_role("link", name="First page")).to_be_visible()
        shown = "document.querySelector('iframe').contentDocument?.querySelector('table.calls tbody tr')?.innerHTML"
        page.wait_for_function(f"before => {shown} && {shown} !== before", arg=first)
        seen += rows.count()
    assert seen == scored > 50
    # 3. Filters.
    frame.locator('select[name="status"]').select_option("below")
    wait_for(page, "status=below")
    below = one(
        services, "select count(*) from candidates where run_id = :run and outcome = 'below_threshold'", run=FINISHED
    )
    if below:
        expect(rows).to_have_count(min(below, 50))
    else:
        expect(frame.get_by_text("There is no such call.")).to_be_visible()
    frame.locator('select[name="status"]').select_option("scored")
    wait_for(page, "status=scored")
    expect(rows).to_have_count(50)
    frame.locator('input[name="contains"]').fill("on day 41,")
    frame.get_by_role("button", name="Show").click()
    wait_for(page, "contains=on")
    of_text = one(
        services,
        "select count(*) from scored_calls join documents using (document_id) "
        "where run_id = :run and strpos(documents.text, 'on day 41,') > 0",
        run=FINISHED,
    )
    assert 0 < of_text < 50
    expect(rows).to_have_count(of_text)
    # 4. One call.
    best = one(
        services,
        "select max(loss_reduction) from scored_calls join documents using (document_id) "
        "where run_id = :run and strpos(documents.text, 'on day 41,') > 0",
        run=FINISHED,
    )
    rows.first.get_by_role("link").click()
    expect(frame.locator("#saved")).to_have_text(f"{best:.2f}".replace("-", "\u2212"))
    expect(frame.locator("mark.here")).to_have_count(1)
    page.screenshot(path=pictures / "call.png")
    # 5. Another threshold.
    frame.get_by_role("link", name="Thresholds", exact=True).click()
    wait_for(page, "/toolformer/thresholds")  # whole: its script sends what the slider says
    frame.locator('input[type="range"]').fill("0.5")
    at_half = one(services, "select count(*) from kept_calls_at(:run, :tool, 0.5)", **in_run)
    expect(frame.locator(f'[data-tool="{TOOL}"] [data-count="calls"]')).to_contain_text(f"{at_half:,}")
    expect(frame.get_by_role("heading", name=f"{TOOL}: go out")).to_be_visible()
    page.screenshot(path=pictures / "thresholds.png")
    # 6. What changed; the run asked for no evaluation.
    frame.get_by_role("link", name="Changes", exact=True).click()
    expect(frame.get_by_text("compared with")).to_be_visible()
    page.screenshot(path=pictures / "changes.png")
    expect(frame.get_by_role("link", name="Evaluation", exact=True)).to_have_count(0)
    # 7. A link leads out of the frame, to Airflow itself.
    assert [message for message in said if "Content Security Policy" in message and "toolformer" in message] == []


def test_a_red_run_says_what_its_failed_task_said(page: Page, services: Settings, pictures: Path) -> None:
    frame = opened(page, services, RED)
    expect(frame.get_by_text("This run is red.")).to_be_visible()
    failed = frame.locator("[data-failed-tasks] .notice")
    expect(failed.filter(has_text="release").first).to_be_visible()
    page.screenshot(path=pictures / "red.png")
    failed.filter(has_text="release").first.get_by_role("link", name="Log of the task").click()
    page.wait_for_url(f"**/dags/{ANNOTATE}/runs/{RED}/tasks/**")  # the window itself, not the frame


def test_a_running_run_shows_how_far_it_is(page: Page, services: Settings, pictures: Path) -> None:
    frame = opened(page, services, RUNNING)
    expect(frame.locator("h1 .state")).to_have_text("running")
    progress = "select done || ' of ' || total from annotation_progress where run_id = :run and stage = :stage"
    for stage in ("filter", "sample", "score"):
        cell = frame.locator(f'[data-stage="{TOOL}.{stage}"]')
        expect(cell).to_contain_text(one(services, progress, run=RUNNING, stage=stage))
    page.screenshot(path=pictures / "running.png")


def test_the_navigation_leads_to_the_calls_of_each_run(page: Page, services: Settings, pictures: Path) -> None:
    page.goto(f"{services.airflow_url}/plugin/calls")
    frame = page.frame_locator('iframe[title="Calls"]')
    for run_id in (RUNNING, FINISHED):
        expect(frame.locator('select[name="of"]')).to_be_visible()
        wait_for(page, "/toolformer/calls")  # whole: its script sends the form
        frame.locator('select[name="of"]').select_option(run_id)
        wait_for(page, f"of={run_id}")
        expect(frame.get_by_role("heading", name=run_id)).to_be_visible()
    for width, scheme in ((800, "light"), (1920, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.screenshot(path=pictures / f"calls-{width}.png")


def test_a_call_of_a_release_is_judged(page: Page, services: Settings, pictures: Path) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{services.airflow_url}/plugin/review")
    frame = page.frame_locator('iframe[title="Review"]')
    release_id = one(services, "select release_id from run_releases where run_id = :run", run=FINISHED)
    frame.get_by_role("link", name=release_id).first.click()
    wait_for(page, release_id)
    frame.get_by_role("button", name="Review").click()
    expect(frame.get_by_text(" judged.").first).to_be_visible()
    wait_for(page, "/toolformer/")
    page.screenshot(path=pictures / "judged-in-airflow.png")
    judgements = "select count(*) from judgements where verdict = 'useful'"
    assert one(services, judgements) == 0
    frame.get_by_role("button", name="useful").click()
    expect(frame.get_by_text("1 of ").first).to_be_visible()
    assert one(services, judgements) == 1


def test_the_corpora_lead_to_the_release(page: Page, services: Settings, pictures: Path) -> None:
    page.goto(f"{services.airflow_url}/plugin/corpora")
    frame = page.frame_locator('iframe[title="Corpora and releases"]')
    release_id = one(services, "select release_id from run_releases where run_id = :run", run=FINISHED)
    frame.get_by_role("link", name=release_id).first.click()
    expect(frame.locator("#fetch")).to_contain_text(f"toolformer-ops download s3://toolformer/releases/{release_id}")
    page.screenshot(path=pictures / "release.png")


def test_nobody_sees_it_without_signing_in(services: Settings, runs: None) -> None:
    of_run = f"dag_id={ANNOTATE}&run_id={FINISHED}"
    for path in (
        "run",
        "calls",
        "call",
        "thresholds",
        "changes",
        "evaluation",
        "assets/page.js",
        "no/such/page",
        f"reports/{ANNOTATE}/x",
    ):
        answer = httpx.get(f"{services.airflow_url}/toolformer/{path}?{of_run}", timeout=60)
        assert answer.status_code == 401, path
        assert TOOL not in answer.text
