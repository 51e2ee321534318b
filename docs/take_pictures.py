"""Take the pictures of these pages anew, of the newest run of a demo whose services are up: `python -m docs.take_pictures`.

Writes into docs/pictures the run, its calls, one call and its thresholds, as Airflow's tab shows them; in the
dark with `--dark FOLDER`, which is for looking at.
"""

import argparse
import sys
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import FrameLocator, Page, sync_playwright

from toolformer_ops.config import REPOSITORY, Settings, load_settings
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.registry import tools_on_device

CHROMIUM = Path("/usr/bin/chromium")
WINDOW = {"width": 1280, "height": 900}
DAG = "annotate_corpus"


def newest_run(settings: Settings) -> str:
    """The id of the newest run that ended well; raises `StopIteration` if there is none."""
    rows = database.fetch_all(
        database.connect(settings), queries.summary.runs, at_most=20, device_tools=tools_on_device()
    )
    return next(row.run_id for row in rows if row.state == "success" and row.schedule is None)


def sign_in(page: Page, settings: Settings) -> None:
    """Sign in to Airflow."""
    page.goto(settings.airflow_url)
    page.locator('input[name="username"]').fill(settings.airflow_username)
    page.locator('input[name="password"]').fill(settings.airflow_password.get_secret_value())
    page.get_by_role("button", name="Sign in").click()
    page.locator('input[name="password"]').wait_for(state="detached")


def open_tab(page: Page, settings: Settings, run_id: str) -> FrameLocator:
    """The tab "Annotation" of a run."""
    page.goto(f"{settings.airflow_url}/dags/{DAG}/runs/{quote(run_id, safe='')}/plugin/annotation")
    frame = page.frame_locator('iframe[title="Annotation"]')
    frame.get_by_role("heading", name=run_id).wait_for()
    return frame


def take(page: Page, settings: Settings, run_id: str, folder: Path) -> None:
    """The pictures of a run, one after the other, as a person goes through its tab."""

    def picture(name: str) -> None:
        page.wait_for_timeout(1500)  # what is drawn after the page is there
        page.screenshot(path=folder / f"{name}.png")

    frame = open_tab(page, settings, run_id)
    picture("run")
    frame.get_by_role("link", name="Thresholds", exact=True).click()
    picture("thresholds")
    frame.get_by_role("link", name="Calls", exact=True).click()
    frame.locator("table.calls tbody tr").first.wait_for()
    picture("calls")
    frame.locator("table.calls tbody tr").first.get_by_role("link").click()
    frame.locator("mark.here").wait_for()
    picture("call")


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dark", type=Path, help="a folder for the pictures in the dark")
    parser.add_argument("--run", default="", help="another run than the newest")
    arguments = parser.parse_args()
    settings = load_settings()
    run_id = arguments.run or newest_run(settings)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        scheme = "dark" if arguments.dark else "light"
        page = browser.new_page(viewport=WINDOW, color_scheme=scheme)
        page.set_default_timeout(120_000)
        sign_in(page, settings)
        folder = arguments.dark or REPOSITORY / "docs" / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        take(page, settings, run_id, folder)
        browser.close()
    sys.stdout.write(f"{folder}: run, thresholds, calls, call, of {run_id}\n")


if __name__ == "__main__":
    main()
