"""What a run does now and how long it still takes, in words that are there at once, however long its numbers take to count.

They come from the run's own micro-batches: those that it stored, and those at which its processes are at
work.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolformer_ops.runs.durations import duration
from toolformer_ops.runs.progress import KEPT

DOING = {
    "filter": "filtering",
    "sample": "sampling",
    "execute": "executing",
    "score": "scoring",
    "placebo": "scoring placebos",
}
"""By stage, what a process does."""
DONE = {
    "filter": "filtered",
    "sample": "sampled",
    "execute": "executed",
    "score": "scored",
    "placebo": "scored with placebos",
}
"""By stage, what was done with a text."""
TASKS = "Airflow's page of this run shows its tasks."
ASKED_FOR = {"before_finetuning": "finetunes on it", "before_publishing": "publishes its model"}
"""By the choice `approve`, what a person is asked for a yes to."""


@dataclass(frozen=True)
class CountedReason:
    """What a stage of a tool counted under a reason."""

    tool: str
    step: int
    stage: str
    reason: str
    is_loss: bool
    count: int


def what_it_does(
    work: Sequence[Any],
    at_work: Sequence[Any],
    *,
    annotates: bool,
    has_release: bool,
    waits_for_yes: str | None = None,
    tokens_per_second: float | None = None,
) -> str:
    """One or two sentences.

    Args:
        work: rows of `page.work`.
        at_work: rows of `page.at_work`.
        annotates: whether the run has tools.
        has_release: whether its release is made.
        waits_for_yes: its choice `approve`, if a person is asked who has not answered.
        tokens_per_second: that the model has read so far; None if that is not known.
    """
    if not annotates:
        return f"Now a model is trained, published or evaluated. {TASKS}"
    ages = [row.newest_age for row in work if row.newest_age is not None]
    # What began after the page began to read has an age below zero.
    stored = f" The newest texts were stored {duration(max(0.0, min(ages)))} ago." if ages else ""
    if at_work:
        processes = Counter((row.stage, row.tool) for row in at_work)
        parts = [f"{number} {DOING[stage]} for {tool}" for (stage, tool), number in processes.items()]
        longest = duration(max(0.0, *(row.seconds for row in at_work)))
        reads = "" if tokens_per_second is None else f"; the model reads {tokens_per_second:,.0f} tokens/s"
        are = "process is" if len(at_work) == 1 else "processes are"
        return (
            f"Now {len(at_work)} {are} at work: {', '.join(parts)}; the oldest of their micro-batches for "
            f"{longest}{reads}.{stored}"
        )
    if has_release and waits_for_yes in ASKED_FOR:
        return (
            f"Now the release is made, and a person is asked before the run {ASKED_FOR[waits_for_yes]} "
            f"(Required Actions in Airflow). {TASKS}"
        )
    if has_release:
        return f"Now the release is made; a model is trained, published or evaluated if the run asks for it. {TASKS}"
    if not ages:
        return f"Now no text is done yet: a process starts and loads its model, or waits for a slot. {TASKS}"
    return (
        "Now no process is at work on texts: the next one starts and loads its model, or rows are checked "
        f"and released.{stored} {TASKS}"
    )


def why_no_time_left(tools: Sequence[Any], *, is_counted: bool) -> str:
    """Why it is not known how long the run still takes; `tools` are `overview.ToolProgress`."""
    if not is_counted:
        return "known once the texts of this run are counted"
    for tool in tools:
        for stage in tool.stages:
            if stage.stage == KEPT:
                return f"not known: {tool.tool} works until {stage.total:,} calls are kept"
            if tool.seconds_left is None and stage.stage == "filter" and stage.units_left:
                return f"known once the texts are filtered for {tool.tool}"
            if tool.seconds_left is None and not stage.done:
                return f"known once {tool.tool} has {DONE[stage.stage]} a text"
    return "not known: nothing was stored lately"


def with_own_counts(
    counted: Sequence[Any], own_then: Sequence[Any], own_now: Sequence[Any]
) -> list[CountedReason]:
    """Rows of `page.yield_by_stage` with what the run's micro-batches have counted since then (`page.own_counts`)."""
    totals = Counter[tuple[str, int, str, str, bool]]()
    for rows, sign in ((counted, 1), (own_now, 1), (own_then, -1)):
        for row in rows:
            totals[row.tool, row.step, row.stage, row.reason, row.is_loss] += sign * row.count
    return [CountedReason(*place, count=number) for place, number in totals.items()]
