"""What the page of a run says of its work now, and how a count that is some minutes old gets what was stored since."""

from types import SimpleNamespace
from typing import Any

import pytest

from toolformer_ops.run_page.current_work import (
    CountedReason,
    what_it_does,
    why_no_time_left,
    with_own_counts,
)


def work(tool: str = "QA", stage: str = "sample", **values: Any) -> Any:
    return SimpleNamespace(
        **{"tool": tool, "stage": stage, "documents": 0, "tokens": 0, "newest_age": None, **values}
    )


def process(tool: str, stage: str, seconds: float) -> Any:
    return SimpleNamespace(tool=tool, stage=stage, seconds=seconds)


TASKS = "Airflow's page of this run shows its tasks."
STATES: list[tuple[list[Any], list[Any], dict[str, Any], str]] = [
    (
        [work(), work(stage="score")],
        [],
        {},
        f"Now no text is done yet: a process starts and loads its model, or waits for a slot. {TASKS}",
    ),
    (
        [work(newest_age=12.0), work("MT", newest_age=100.0)],
        [process("QA", "sample", 40.0), process("QA", "sample", 3.0), process("MT", "score", 8.0)],
        {"tokens_per_second": 1234.5},
        "Now 3 processes are at work: 2 sampling for QA, 1 scoring for MT; the oldest of their micro-batches for 40 s; "
        "the model reads 1,234 tokens/s. The newest texts were stored 12 s ago.",
    ),
    (
        [work(newest_age=-0.2)],
        [process("QA", "sample", -0.1)],
        {},
        "Now 1 process is at work: 1 sampling for QA; the oldest of their micro-batches for 0.0 s. "
        "The newest texts were stored 0.0 s ago.",
    ),
    (
        [work(newest_age=130.0)],
        [],
        {},
        "Now no process is at work on texts: the next one starts and loads its model, or rows are checked and released. "
        f"The newest texts were stored 2.2 min ago. {TASKS}",
    ),
    (
        [work(newest_age=130.0)],
        [],
        {"has_release": True, "waits_for_yes": "before_finetuning"},
        "Now the release is made, and a person is asked before the run finetunes on it (Required Actions in Airflow). "
        + TASKS,
    ),
    (
        [work(newest_age=130.0)],
        [],
        {"has_release": True, "waits_for_yes": "none"},
        f"Now the release is made; a model is trained, published or evaluated if the run asks for it. {TASKS}",
    ),
    ([], [], {"annotates": False}, f"Now a model is trained, published or evaluated. {TASKS}"),
]
"""Rows of the run's work, its processes at work, what else is known, and the words."""


@pytest.mark.parametrize(("rows", "at_work", "known", "words"), STATES)
def test_what_a_run_does_is_said_in_words(rows, at_work, known, words):
    assert what_it_does(rows, at_work, **{"annotates": True, "has_release": False, **known}) == words


def tool(name: str, seconds_left: float | None, **done: int) -> Any:
    stages = [
        SimpleNamespace(stage=stage, done=number, units_left=3 - number) for stage, number in done.items()
    ]
    return SimpleNamespace(tool=name, seconds_left=seconds_left, stages=stages)


def test_the_time_left_waits_for_the_first_text_of_a_stage():
    tools = [tool("QA", 12.0, filter=3, sample=2), tool("MT", None, filter=3, sample=0)]
    assert why_no_time_left(tools, is_counted=True) == "known once MT has sampled a text"


def test_the_time_left_waits_for_the_count():
    words = "known once the texts of this run are counted"
    assert why_no_time_left([tool("MT", None, filter=0)], is_counted=False) == words


def test_the_time_left_waits_for_the_filter():
    """The stages behind it have nothing to do yet, and would count as done."""
    words = "known once the texts are filtered for MT"
    assert why_no_time_left([tool("MT", None, filter=1, sample=0)], is_counted=True) == words


def test_the_time_left_of_a_run_that_stands_still_is_not_known():
    words = "not known: nothing was stored lately"
    assert why_no_time_left([tool("MT", 30.0, filter=3, sample=2)], is_counted=True) == words


def test_the_funnel_has_what_the_run_counted_since_then():
    def row(reason: str, number: int) -> CountedReason:
        return CountedReason("QA", 2, "sample", reason, is_loss=False, count=number)

    rows = with_own_counts(
        [row("candidates", 300), row("kept", 4)],
        [row("candidates", 40)],
        [row("candidates", 55), row("samples", 9)],
    )
    assert {item.reason: item.count for item in rows} == {"candidates": 315, "kept": 4, "samples": 9}
