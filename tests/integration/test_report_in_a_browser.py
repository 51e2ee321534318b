"""The page of evaluations in a real browser without a network: it shows, in light and in dark, and nothing in it runs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.unit.test_evaluation_report import CALL, FACTS, evaluated, score
from toolformer_ops.evaluation.report.contents import ReportContents, TrainedModel
from toolformer_ops.evaluation.report.page import render

CHROMIUM = Path("/usr/bin/chromium")
HOSTILE = (
    "</pre><script>document.title = 'taken'</script><img src='https://evil.example/x' onerror='document.title = 1'>"
)

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs {CHROMIUM}: apt-get install chromium")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small page with hostile text in it."""
    model = TrainedModel("with_tools", "0123", "s3://b/models/0123", {"steps": 2}, ((1, 3.0), (2, 2.0)))
    call = replace(CALL, start_char=0, end_char=28)
    shown = replace(
        evaluated(1, True, (call,)), prompt=HOSTILE, answers=(HOSTILE,), predicted=HOSTILE,
        written=f"[Calculator(1 + 1) -> 2] 2 {HOSTILE}",
    )  # fmt: skip
    contents = ReportContents(replace(FACTS, models=(model,)), (score("with_tools", 0.4, k=10),), (shown,))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(contents), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_without_a_network_and_asks_for_nothing(browser: Browser, page_file: Path, scheme: str) -> None:
    page = browser.new_context(color_scheme=scheme, offline=True).new_page()  # type: ignore[arg-type]
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(page_file.as_uri())
    assert asked == [page_file.as_uri()]
    assert said == []
    assert page.title() == "Evaluation of run-1"
    assert page.locator("section h2").all_inner_texts() == [
        "Math word problems", "When tools are called", "Training", "1 example", "Where this comes from",
    ]  # fmt: skip
    assert page.locator("td.best").inner_text().startswith("40.0")
    assert page.locator("svg .bar").bounding_box() is not None
    [red, *_] = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (red > 200) is (scheme == "light")


def test_what_a_model_wrote_stands_there_as_text(browser: Browser, page_file: Path) -> None:
    page = browser.new_page()
    page.goto(page_file.as_uri())
    assert HOSTILE in page.locator("pre.written").inner_text()
    assert page.locator("pre.written mark").count() == 1
    assert page.locator("script, img").count() == 0


def test_a_narrow_window_scrolls_its_tables_and_not_the_page(browser: Browser, page_file: Path) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 700})
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 360
