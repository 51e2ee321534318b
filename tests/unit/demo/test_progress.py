"""Progress: which stage a tool is at, and when a line is printed."""

import io
from types import SimpleNamespace

from rich.console import Console

from toolformer_ops.local.demo.progress import Snapshot, ToolProgress, by_tool, progress_display

SAMPLING = ToolProgress("Calculator", "sample", 12, 21, 33, 63)


def stages(tool: str, *done_and_total: tuple[int, int]) -> list[SimpleNamespace]:
    names = ("filter", "sample", "execute", "score")
    return [
        SimpleNamespace(tool=tool, stage=name, done=done, total=total, tokens_done=None, tokens=None)
        for name, (done, total) in zip(names, done_and_total, strict=True)
    ]


def test_a_tool_is_at_its_first_stage_that_is_not_done_or_whose_work_is_not_known_yet() -> None:
    rows = [
        *stages("Calculator", (64, 64), (21, 21), (16, 21), (8, 21)),
        *stages("MT", *[(10, 10)] * 4),
        *stages("QA", (0, 64), (0, 0), (0, 0), (0, 0)),
    ]
    assert by_tool(rows) == (
        ToolProgress("Calculator", "execute", 16, 21, 64 + 21 + 16 + 8, 64 + 63),
        ToolProgress("MT", "done", 10, 10, 40, 40),
        ToolProgress("QA", "filter", 0, 64, 0, 64),
    )


def test_a_long_text_that_is_left_is_most_of_the_work() -> None:
    rows = stages("Calculator", (30, 30), (29, 30), (29, 30), (29, 30))
    for row in rows[1:]:
        row.tokens_done, row.tokens = 8_000, 20_000
    [tool] = by_tool(rows)
    assert (tool.count, tool.steps_done, tool.steps) == (
        "29/30 (40 % of the tokens)",
        30 + 24_000,
        30 + 60_000,
    )


def test_lines_come_only_when_something_changed_but_not_too_often() -> None:
    times, out = iter([0.0, 0.0, 1.0, 65.0, 70.0]), io.StringIO()
    with progress_display(Console(file=out, width=100), seconds_between=5.0, clock=times.__next__) as show:
        show(Snapshot((SAMPLING,), 1))  # at 0 s
        for _ in range(3):  # at 1 s, which is too soon; at 65 s; at 70 s, with nothing new
            show(Snapshot((SAMPLING,), 2, ("QA.annotate [0]",)))
    assert out.getvalue().splitlines() == [
        "0:00 Calculator sample 12/21; 1 calls so far",
        "1:05 Calculator sample 12/21; 2 calls so far; running: QA.annotate [0]",
    ]


def test_a_terminal_shows_bars() -> None:
    out = io.StringIO()
    with progress_display(Console(file=out, force_terminal=True, width=100)) as show:
        show(Snapshot((), None))
        show(Snapshot((SAMPLING,), 310))
    assert "\u2501" in out.getvalue(), "there is no bar"
    assert "310 calls so far" in out.getvalue()
