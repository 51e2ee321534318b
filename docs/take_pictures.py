"""Take all pictures of these pages anew, from a demo whose services are up: `python -m docs.take_pictures`.

Writes into docs/pictures, of the newest demo: the form, the run, its thresholds, its calls, one call and a call
that is judged, as Airflow shows them; and a run that works, which it starts: all texts of the demo's corpus.
With `--dark FOLDER` the same in the dark, which is for looking at.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from playwright.sync_api import Browser, FrameLocator, Page, ViewportSize, sync_playwright

from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.airflow_tasks.run_ids import ANNOTATE
from toolformer_ops.config import REPOSITORY, Settings, load_settings
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.registry import tools_on_device

AT_WORK = re.compile("(Sampling|Executing|Scoring).* for ")
CHROMIUM = Path("/usr/bin/chromium")
WINDOW = ViewportSize(width=1280, height=900)
JUDGED_HEIGHT = 320
"""A page with little on it."""
SECONDS_TO_DRAW = 1.5
"""What is drawn after a page is there."""


def newest_demo(settings: Settings) -> Any:
    """The newest demo that ended well, a row of `summary.runs`; raises `StopIteration` if there is none."""
    engine = database.connect(settings)
    runs = database.fetch_all(engine, queries.summary.runs, at_most=20, device_tools=tools_on_device())
    return next(run for run in runs if run.state == "success" and run.run_id.startswith("demo-"))


def start_another(settings: Settings, demo_id: str) -> str:
    """The id of a run over all texts of the demo's corpus, of which the demo did some; the seed is another each time."""
    run = database.fetch_one(database.connect(settings), queries.page.run, run_id=demo_id)
    run_id = f"pictures-{time.time():.0f}"
    anew = {"seed": int(time.time()) % 2**31, "document_limit": None, "finetune": False}
    with AirflowClient.of(settings) as airflow:
        airflow.trigger(ANNOTATE, run_id, run.parameters | anew)
    return run_id


def sign_in(page: Page, settings: Settings) -> None:
    """Sign in to Airflow."""
    page.goto(settings.airflow_url)
    page.locator('input[name="username"]').fill(settings.airflow_username)
    page.locator('input[name="password"]').fill(settings.airflow_password.get_secret_value())
    page.get_by_role("button", name="Sign in").click()
    page.locator('input[name="password"]').wait_for(state="detached")


def open_tab(page: Page, settings: Settings, run_id: str) -> FrameLocator:
    """The tab "Annotation" of a run."""
    page.goto(f"{settings.airflow_url}/dags/{ANNOTATE}/runs/{quote(run_id, safe='')}/plugin/annotation")
    frame = page.frame_locator('iframe[title="Annotation"]')
    frame.get_by_role("heading", name=run_id).wait_for()
    return frame


def take(page: Page, settings: Settings, demo: Any, at_work_id: str, picture: Callable[[str], None]) -> None:
    """The pictures, one after the other, as a person meets them."""
    # 1. A run that works, as soon as it keeps a call.
    frame = open_tab(page, settings, at_work_id)
    frame.get_by_role("heading", name="Best calls of each tool").wait_for()
    frame.locator(".now", has_text=AT_WORK).wait_for()
    picture("running")
    # 2. The form.
    page.goto(f"{settings.airflow_url}/dags/{ANNOTATE}")
    page.get_by_role("button", name="Trigger").first.click()
    page.get_by_role("dialog").locator('input[name="element_corpus"]').fill(demo.corpus_uri)
    picture("form")
    # 3. The demo.
    frame = open_tab(page, settings, demo.run_id)
    picture("run")
    frame.get_by_role("link", name="Thresholds", exact=True).click()
    picture("thresholds")
    frame.get_by_role("link", name="Calls", exact=True).click()
    frame.locator("table.calls tbody tr").first.wait_for()
    picture("calls")
    frame.locator("table.calls tbody tr").first.get_by_role("link").click()
    frame.locator("mark.here").wait_for()
    picture("call")
    # 4. A call that is judged.
    page.goto(f"{settings.airflow_url}/toolformer/judge?release={demo.release_id}&calls=10")
    page.locator("#verdicts").wait_for()
    page.set_viewport_size(ViewportSize(width=WINDOW["width"], height=JUDGED_HEIGHT))
    picture("judge")


def take_all(
    browser: Browser,
    settings: Settings,
    demo: Any,
    at_work_id: str,
    scheme: Literal["light", "dark"],
    folder: Path,
) -> None:
    """All pictures in one colour scheme."""
    page = browser.new_page(viewport=WINDOW, color_scheme=scheme)
    page.set_default_timeout(600_000)

    def picture(name: str) -> None:
        page.wait_for_timeout(1000 * SECONDS_TO_DRAW)
        page.screenshot(path=folder / f"{name}.png")
        sys.stdout.write(f"{folder / name}.png\n")

    folder.mkdir(parents=True, exist_ok=True)
    sign_in(page, settings)
    take(page, settings, demo, at_work_id, picture)


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dark", type=Path, help="a folder for the pictures in the dark")
    arguments = parser.parse_args()
    settings = load_settings()
    demo = newest_demo(settings)
    at_work_id = start_another(settings, demo.run_id)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        take_all(browser, settings, demo, at_work_id, "light", REPOSITORY / "docs" / "pictures")
        if arguments.dark:
            take_all(browser, settings, demo, at_work_id, "dark", arguments.dark)
        browser.close()


if __name__ == "__main__":
    main()
