"""Progress: at which stage a tool is, and what a line or a panel shows of it."""

import io
import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text

from toolformer_ops.runs import shown_progress
from toolformer_ops.runs.progress import Progress, StageProgress, ToolProgress, phase_of
from toolformer_ops.runs.shown_progress import panel, shown

FILTERED = StageProgress("filter", 64, 64)
SAMPLING = ToolProgress(
    "Calculator", (FILTERED, StageProgress("sample", 12, 21), StageProgress("score", 0, 21))
)
PROGRESS = Progress(
    tools=(SAMPLING, ToolProgress("MT", (FILTERED,))),
    phase="running: MT.check",
    counts="310 calls",
    tokens_per_second=1234.5,
    seconds_left=180.0,
    newest=Text("[Calculator(2 + 3) -> 5]"),
)


def process(tool: str, stage: str) -> SimpleNamespace:
    return SimpleNamespace(tool=tool, stage=stage)


def test_what_processes_do_is_said_by_stage():
    at_work = [
        process("QA", "sample"),
        process("MT", "score"),
        process("QA", "sample"),
        process("MT", "sample"),
    ]
    assert phase_of(at_work) == "sampling for QA and MT, scoring for MT"


def test_a_tool_is_at_its_first_stage_that_is_not_done():
    assert SAMPLING.at_work == StageProgress("sample", 12, 21)


def test_a_tool_whose_work_is_not_known_yet_is_at_its_filter():
    filtering = StageProgress("filter", 0, 64)
    assert ToolProgress("QA", (filtering, StageProgress("sample", 0, 0))).at_work == filtering


def test_a_long_text_that_is_left_is_most_of_the_work():
    stage = StageProgress("sample", 29, 30, tokens_done=8_000, tokens=20_000)
    assert (stage.words, stage.share_done) == ("sample 29/30 (40 % of the tokens)", 0.4)


def test_a_share_of_no_token_is_not_said():
    assert StageProgress("sample", 12, 21, tokens_done=0, tokens=20).words == "sample 12/21"


def test_a_line_names_the_tools_at_work():
    assert PROGRESS.line == (
        "running: MT.check, 310 calls, 1,234 tokens/s, about 3.0 min left; Calculator sample 12/21"
    )


@pytest.fixture
def lines_of(monkeypatch):
    """What is printed without a terminal of a progress that is looked at until there is none left."""
    monkeypatch.setattr(shown_progress, "SECONDS_TO_FIRST_LINE", 0.001)
    return _lines_of


def _lines_of(progresses: list[Progress]) -> list[str]:
    out, looks = io.StringIO(), iter(progresses)
    newest = progresses[-1]
    with shown(lambda: next(looks, newest), Console(file=out, width=200)):
        time.sleep(0.2)
    return out.getvalue().splitlines()


def test_no_line_comes_of_work_that_does_nothing_new(lines_of):
    assert lines_of([PROGRESS]) == [f"0:00 {PROGRESS.line}"]


def test_each_line_comes_after_twice_the_time_of_the_one_before(lines_of):
    counting = (replace(PROGRESS, counts=f"{number} calls") for number in itertools.count())
    assert 4 <= len(lines_of(list(itertools.islice(counting, 100)))) <= 9  # 1, 2, 4 ... 128 ms


def test_a_line_comes_of_what_has_changed(lines_of):
    done = replace(PROGRESS, counts="311 calls")
    assert lines_of([PROGRESS] * 4 + [done])[-1] == f"0:00 {done.line}"


def test_a_terminal_shows_bars_with_the_newest_call():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with console.capture() as shown_panel:
        console.print(panel(PROGRESS, 75.0))
    first, second, now, newest = shown_panel.get().splitlines()
    assert "\u2501" in first, "there is no bar"
    assert first.rstrip().endswith("sample 12/21")
    assert second.rstrip().endswith("done")
    assert now.startswith("1:15 running: MT.check, 310 calls")
    assert newest == "newest, [Calculator(2 + 3) -> 5]"


def test_a_terminal_shows_the_best_call_so_far():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with console.capture() as shown_panel:
        console.print(panel(Progress(best=Text("gains 2.02 nats")), 75.0))
    assert shown_panel.get().splitlines()[-1] == "best so far, gains 2.02 nats"
