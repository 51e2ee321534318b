"""Progress: which stage a tool is at, and when a line is printed."""

import io
from types import SimpleNamespace

from rich.console import Console

from toolformer_ops.local.demo.progress import Snapshot, ToolProgress, by_tool, progress_display

SAMPLING = ToolProgress("Calculator", "sample", 12, 21, 33, 63)
DONE = ToolProgress("MT", "done", 10, 10, 40, 40)


def stages(tool: str, *done_and_total: tuple[int, int]) -> list[SimpleNamespace]:
    names = ("filter", "sample", "execute", "score")
    return [
        SimpleNamespace(tool=tool, stage=name, done=done, total=total, tokens_done=None, tokens=None)
        for name, (done, total) in zip(names, done_and_total, strict=True)
    ]


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_tool_stands_at_its_first_stage_that_is_not_done() -> None:
    rows = stages("Calculator", (64, 64), (21, 21), (16, 21), (8, 21))
    assert by_tool(rows) == (ToolProgress("Calculator", "execute", 16, 21, 64 + 21 + 16 + 8, 64 + 63),)


def test_a_long_text_that_is_left_is_most_of_the_work() -> None:
    rows = stages("Calculator", (30, 30), (29, 30), (29, 30), (29, 30))
    for row in rows[1:]:
        row.tokens_done, row.tokens = 8_000, 20_000
    [tool] = by_tool(rows)
    assert (tool.count, tool.steps_done, tool.steps) == ("29/30 (40 % of the tokens)", 30 + 24_000, 30 + 60_000)


def test_a_tool_that_has_filtered_nothing_yet_is_at_its_filter_though_later_stages_have_no_work() -> None:
    [tool, done] = by_tool([*stages("QA", (0, 64), (0, 0), (0, 0), (0, 0)), *stages("MT", *[(10, 10)] * 4)])
    assert (tool.stage, tool.done, tool.total) == ("filter", 0, 64)
    assert done == DONE


def test_lines_come_only_when_something_changed_and_not_too_often() -> None:
    times = iter([0.0, 0.0, 1.0, 65.0, 70.0])
    out = console(terminal=False)
    with progress_display(out, seconds_between=5.0, clock=lambda: next(times)) as show:
        show(Snapshot((SAMPLING,), 1))  # at 0 s
        show(Snapshot((SAMPLING,), 2))  # at 1 s: too soon
        show(Snapshot((SAMPLING,), 2))  # at 65 s
        show(Snapshot((SAMPLING,), 2))  # at 70 s: nothing new
    assert printed(out).splitlines() == [  # no bars
        "0:00 Calculator sample 12/21; 1 calls so far",
        "1:05 Calculator sample 12/21; 2 calls so far",
    ]


def test_bars_show_stage_numbers_and_calls() -> None:
    out = console(terminal=True)
    with progress_display(out) as show:
        show(Snapshot((), None))
        show(Snapshot((SAMPLING, DONE), 310, ("Calculator.annotate [0]",)))
    shown = printed(out)
    assert "\u2501" in shown, "there is no bar"
    for part in ("Calculator", "sample", "12/21", "MT", "done", "310 calls so far", "Calculator.annotate [0]"):
        assert part in shown
