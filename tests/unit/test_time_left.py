"""The time that a run still takes: counted in tokens, with what its processes are at, and guessed for what was never timed."""

from types import SimpleNamespace
from typing import Any

import pytest

from toolformer_ops.runs.progress import StageProgress, seconds_left, tools_of_run

SHORT, LONG = 29 * 300, 12_500  # tokens of 29 texts, and of one


def work(
    stage: str,
    seconds_a_unit: float | None,
    *,
    tool: str = "QA",
    recent: float = 0.0,
    age: float | None = None,
) -> Any:
    return SimpleNamespace(
        tool=tool,
        stage=stage,
        documents=29,
        tokens=SHORT,
        seconds_a_unit=seconds_a_unit,
        recent_seconds=recent,
        age=age,
    )


def progress(stage: str, tokens_done: int, tool: str = "QA") -> Any:
    done = 30 if tokens_done == SHORT + LONG else 29 if tokens_done else 0
    return SimpleNamespace(
        tool=tool, stage=stage, done=done, total=30, tokens_done=tokens_done, tokens=SHORT + LONG
    )


def left(rows: list[Any], counted: list[Any], at_work: list[Any] | None = None) -> float | None:
    return seconds_left(tools_of_run(counted, rows), rows, at_work or [])


def at_work(seconds: float, tool: str = "QA", stage: str = "sample") -> Any:
    return SimpleNamespace(tool=tool, stage=stage, seconds=seconds, units=LONG)


def test_one_long_text_that_is_left_is_most_of_the_work():
    rows = [work("sample", 0.02, recent=174.0, age=200.0), work("score", 0.01, recent=87.0, age=200.0)]
    counted = [progress("sample", SHORT), progress("score", SHORT)]
    # 12,500 tokens at 0.03 s; lately 261 s of work in 200 s
    assert left(rows, counted) == pytest.approx(375.0 * 200 / 261)
    # Nothing was committed for a quarter of an hour: its process was at the long text, and has some of it
    # behind it.
    rows = [work("sample", 0.08, age=1200.0), work("score", 0.02, age=1200.0)]
    assert left(rows, counted, [at_work(900.0)]) == pytest.approx(1250.0 - 900.0)
    # Two are left, of two tools: each has its own process, since a text is not divided between two.
    two = [work("sample", 0.08, recent=1700.0, age=1200.0), work("score", 0.02, age=1200.0)]
    both = [*two, work("sample", 0.08, tool="MT", age=1200.0), work("score", 0.02, tool="MT", age=1200.0)]
    of_both = [*counted, progress("sample", SHORT, "MT"), progress("score", SHORT, "MT")]
    assert left(both, of_both, [at_work(50.0), at_work(50.0, "MT")]) == pytest.approx(1200.0)


def test_what_was_never_timed_takes_as_long_as_with_other_tools_or_as_scoring():
    timed = [work("sample", 0.02, recent=100.0, age=100.0), work("score", None), work("placebo", None)]
    untimed = [work("sample", None, tool="MT"), work("score", None, tool="MT")]
    counted = [progress("sample", SHORT + LONG), progress("score", 0), progress("placebo", 0)]
    none = [progress("sample", 0, "MT"), progress("score", 0, "MT")]
    assert left(untimed, none) is None  # nobody has done anything
    assert left([*timed, *untimed], [*counted, *none]) is None  # nobody has scored yet
    timed[1].seconds_a_unit = 0.01
    seconds = 0.01 + 0.01 + 0.02 + 0.01
    assert left([*timed, *untimed], [*counted, *none]) == pytest.approx((SHORT + LONG) * seconds)


def test_a_share_is_of_documents_where_no_tokens_are_counted():
    assert StageProgress("filter", 15, 30, 15).share_done == 0.5
    assert StageProgress("sample", 0, 0, 0, 0, 0).share_done == 0.0


def test_a_stage_that_is_not_listed_counts_for_nothing():
    rows, counted = [work("sample", 0.02, recent=100.0, age=100.0)], [progress("sample", 0)]
    expected = (SHORT + LONG) * 0.02  # it has one process
    assert left(rows, counted, [at_work(50.0, stage="placebo")]) == pytest.approx(expected)


def test_the_time_left_is_not_known_while_texts_are_filtered():
    filtering = SimpleNamespace(tool="QA", stage="filter", done=10, total=30, tokens_done=None, tokens=None)
    rows = [work("filter", 0.01, recent=1.0, age=2.0), work("sample", 0.02), work("score", 0.01)]
    nothing = [
        SimpleNamespace(tool="QA", stage=stage, done=0, total=0, tokens_done=0, tokens=0)
        for stage in ("sample", "score")
    ]
    assert left(rows, [filtering, *nothing]) is None
