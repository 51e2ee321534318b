"""Progress: which stage a tool is at, and when a line is printed."""

import io
from dataclasses import replace
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


def lines_of(*snapshots: tuple[float, Snapshot]) -> list[str]:
    """What is printed without a terminal of a run that is looked at at these seconds."""
    times, out = iter([0.0, *(seconds for seconds, _ in snapshots)]), io.StringIO()
    with progress_display(Console(file=out, width=100), seconds_between=5.0, clock=times.__next__) as show:
        for _, snapshot in snapshots:
            show(snapshot)
    return out.getvalue().splitlines()


def test_a_line_names_the_tools_that_came_to_another_stage() -> None:
    scoring = replace(SAMPLING, stage="score", done=3)
    other = ToolProgress("MT", "sample", 1, 9, 1, 27)
    assert lines_of((0.0, Snapshot((SAMPLING, other), 1)), (9.0, Snapshot((scoring, other), 8))) == [
        "0:00 Calculator sample 12/21, MT sample 1/9; 1 calls so far",
        "0:09 Calculator score 3/21; 8 calls so far",
    ]


def test_a_line_comes_after_a_minute_though_no_stage_has_changed() -> None:
    later = Snapshot((replace(SAMPLING, done=13),), 2, ("QA.annotate [0]",))
    assert lines_of((0.0, Snapshot((SAMPLING,), 1)), (59.0, later), (60.0, later)) == [
        "0:00 Calculator sample 12/21; 1 calls so far",
        "1:00 Calculator sample 13/21; 2 calls so far; running: QA.annotate [0]",
    ]


def test_stages_that_change_in_quick_succession_are_one_line() -> None:
    scoring, done = replace(SAMPLING, stage="score"), replace(SAMPLING, stage="done")
    seconds_of_stages = ((0.0, SAMPLING), (1.0, scoring), (5.0, done))
    assert lines_of(*((seconds, Snapshot((tool,), 1)) for seconds, tool in seconds_of_stages)) == [
        "0:00 Calculator sample 12/21; 1 calls so far",
        "0:05 Calculator done; 1 calls so far",
    ]


def test_no_line_comes_of_a_run_that_does_nothing_new() -> None:
    assert len(lines_of((0.0, Snapshot((SAMPLING,), 1)), (600.0, Snapshot((SAMPLING,), 1)))) == 1


def test_a_share_of_no_token_is_not_said() -> None:
    assert replace(SAMPLING, tokens_done=0.0).count == "12/21"


def test_a_terminal_shows_bars() -> None:
    out = io.StringIO()
    with progress_display(Console(file=out, force_terminal=True, width=100)) as show:
        show(Snapshot((), None))
        show(Snapshot((SAMPLING,), 310))
    assert "\u2501" in out.getvalue(), "there is no bar"
    assert "310 calls so far" in out.getvalue()
