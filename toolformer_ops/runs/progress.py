"""How far work is: one record of a run and of a file, which a terminal and the run page show.

It is read from a run's ledger and micro-batches here; of a file `on_a_file` counts it. `shown_progress.py` shows
it on a terminal, `run_page/overview.py` on the page.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from toolformer_ops.runs.durations import duration
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import fetch_all, fetch_one

if TYPE_CHECKING:
    from rich.text import Text

KEPT = "kept"
"""Replaces the stages of a tool that works until enough calls are kept (`until_kept`)."""
DOING = {
    "filter": "filtering",
    "sample": "sampling",
    "execute": "executing",
    "score": "scoring",
    "placebo": "scoring placebos",
}
"""By stage, what a process does."""
RECENT_SECONDS = 900.0
"""The pace of a run is what it did in this time."""


@dataclass(frozen=True)
class StageProgress:
    """One stage of a tool."""

    stage: str
    done: int
    total: int | None
    """None if it is not known yet."""
    own: int = 0
    """The part of `done` that this run did itself."""
    tokens_done: int | None = None
    tokens: int | None = None
    """About how many the documents of `done` and of `total` have; None if it is not known, and for the
    filter."""
    texts_share: float | None = None
    """The share of the corpus, 0 to 1, that was looked at; of `KEPT` alone."""

    @property
    def share_done(self) -> float:
        """The share of the work, 0 to 1, that is done: by tokens, if they are known."""
        done, of = (self.done, self.total) if not self.tokens else (self.tokens_done, self.tokens)
        return done / of if done and of else 0.0

    @property
    def units_left(self) -> int | None:
        """What is left to do: tokens, and documents of the filter; None if it is not known."""
        if self.stage != "filter" and self.tokens is not None:
            return self.tokens - (self.tokens_done or 0)
        return None if self.total is None else self.total - self.done

    @property
    def words(self) -> str:
        """How far it is: `sample 28/29 (37 % of the tokens)`."""
        share = f" ({100 * self.share_done:.0f} % of the tokens)" if self.tokens_done else ""
        if self.texts_share is not None:
            share = f" ({100 * self.texts_share:.1f} % of the texts)"
        return f"{self.stage} {self.done:,}/{self.total or 0:,}{share}"


@dataclass(frozen=True)
class ToolProgress:
    """One tool of a run or of a file."""

    tool: str
    stages: tuple[StageProgress, ...]
    seconds_left: float | None = None
    """Seconds of work that are left; None if no document of a stage was ever timed, or not all are
    filtered."""

    @property
    def at_work(self) -> StageProgress | None:
        """The first stage that is not done; None after the last."""
        return next((stage for stage in self.stages if stage.done < (stage.total or 0)), None)


@dataclass(frozen=True)
class Progress:
    """How far a run or a file is."""

    tools: tuple[ToolProgress, ...] = ()
    phase: str = ""
    """What is done now; of a run empty while none of its processes is at work on texts."""
    counts: str = ""
    """What came of it so far: `310 calls, 12 gain enough`."""
    tokens_per_second: float | None = None
    """Tokens that the language model reads; None before the first text."""
    seconds_left: float | None = None
    """None if it is not known."""
    newest: "Text | None" = None
    """The newest call that gains enough, in its text."""
    best: "Text | None" = None
    """The call that gains most so far, in its text."""

    @property
    def now(self) -> str:
        """What is done now, how fast, and how long it still takes."""
        words = [self.phase, self.counts]
        if self.tokens_per_second is not None:
            words.append(f"{self.tokens_per_second:,.0f} tokens/s")
        if self.seconds_left:
            words.append(f"about {duration(self.seconds_left)} left")
        return ", ".join(filter(None, words))

    @property
    def line(self) -> str:
        """What is done now, and how far the tools at work are: `running: QA.annotate; QA sample 12/46`."""
        tools = [f"{tool.tool} {tool.at_work.words}" for tool in self.tools if tool.at_work is not None]
        return "; ".join([self.now, *tools])


def read_progress(connection: Connection, run_id: str, *, counts_texts: bool = True) -> Progress:
    """The progress of a run, without tools before it is registered.

    counts_texts: whether all texts of the run are counted, which takes seconds with a million; otherwise the
    stages have what the run did itself, without a total.
    """
    work = fetch_all(connection, queries.page.work, run_id=run_id, recent_seconds=RECENT_SECONDS)
    at_work = fetch_all(connection, queries.page.at_work, run_id=run_id)
    network = fetch_all(connection, queries.page.network, run_id=run_id)
    counted, kept, counts = [], [], ""
    if not work:
        return Progress()
    if counts_texts:
        counted = fetch_all(connection, queries.page.progress, run_id=run_id)
        kept = fetch_all(connection, queries.until_kept.so_far, run_id=run_id)
        calls = fetch_one(connection, queries.demo.calls_so_far, run_id=run_id)
        counts = f"{calls.calls:,} calls, {calls.kept:,} kept"
    tools = tools_of_run(counted, work, kept)
    return Progress(
        tools=tools,
        phase=phase_of(at_work),
        counts=counts,
        tokens_per_second=network[0].tokens_per_second if network else None,
        seconds_left=seconds_left(tools, work, at_work),
    )


def phase_of(at_work: Sequence[Any]) -> str:
    """What the run's processes do, such as `sampling for QA, scoring for Calendar and MT`; empty if none is at work on texts."""
    tools_by_stage: dict[str, list[str]] = {}
    for row in at_work:
        tools = tools_by_stage.setdefault(row.stage, [])
        if row.tool not in tools:
            tools.append(row.tool)
    return ", ".join(f"{DOING[stage]} for {' and '.join(tools)}" for stage, tools in tools_by_stage.items())


def tools_of_run(
    counted: Sequence[Any], work: Sequence[Any], kept: Sequence[Any] = ()
) -> tuple[ToolProgress, ...]:
    """How far each tool of a run is: rows of `page.progress`, or of the run's own micro-batches (`page.work`).

    A stage that was never timed takes as long a token as with other tools of the run, or else as scoring. A
    run that works until enough calls are kept (`kept`, rows of `until_kept.so_far`) is as far as these are:
    how many texts that takes is not known.
    """
    counts = {(row.tool, row.stage): row for row in counted}
    kept_calls = {row.tool: row for row in kept}
    tools = []
    for tool in dict.fromkeys(row.tool for row in work):
        stages, left = [], 0.0
        is_timed = True
        for row in (row for row in work if row.tool == tool):
            at = counts.get((row.tool, row.stage))
            stage = StageProgress(row.stage, row.documents, None, own=row.documents)
            if at is not None:
                stage = StageProgress(
                    stage=row.stage,
                    done=at.done,
                    total=at.total,
                    own=min(row.documents, at.done),
                    tokens_done=at.tokens_done,
                    tokens=at.tokens,
                )
            stages.append(stage)
            seconds = seconds_a_unit(row, work)
            if stage.stage == "filter" and stage.units_left:
                is_timed = False  # how many texts the other stages get is not known yet
            if stage.units_left is None or (stage.units_left and seconds is None):
                is_timed = False
            elif stage.units_left and seconds is not None:
                left += stage.units_left * seconds
        if (goal := kept_calls.get(tool)) is not None:
            share = stages[0].share_done
            stages, is_timed = [StageProgress(KEPT, goal.calls, goal.until_kept, texts_share=share)], False
        tools.append(ToolProgress(tool, tuple(stages), left if is_timed else None))
    return tuple(tools)


def seconds_a_unit(row: Any, work: Sequence[Any]) -> float | None:
    """What a token takes a stage of a tool (the filter: a document), measured or, as `tools_of_run` says, guessed."""
    if row.seconds_a_unit is not None:
        return float(row.seconds_a_unit)
    if row.stage == "filter":
        return None
    timed = [other for other in work if other.seconds_a_unit is not None]
    for stage in (row.stage, "score"):
        if seconds := [other.seconds_a_unit for other in timed if other.stage == stage]:
            return float(sum(seconds) / len(seconds))
    return None


def seconds_left(tools: Sequence[ToolProgress], work: Sequence[Any], at_work: Sequence[Any]) -> float | None:
    """How long the run still takes at its pace: the work that is left, by the work that it did a second lately. None: not known.

    Micro-batches at work count for the seconds that they have taken so far, of those that their tokens should
    take. A tool with fewer processes at work than the run had lately takes as much longer: most runs end so.
    """
    ages = [row.age for row in work if row.age is not None] + [row.seconds for row in at_work]
    recent = sum(row.recent_seconds for row in work) + sum(
        min(row.seconds, RECENT_SECONDS) for row in at_work
    )
    if not ages or recent <= 0 or any(tool.seconds_left is None for tool in tools):
        return None
    expected = {(row.tool, row.stage): seconds_a_unit(row, work) or 0.0 for row in work}
    left = {tool.tool: tool.seconds_left or 0.0 for tool in tools}
    processes = Counter(row.tool for row in at_work)
    for row in at_work:
        left[row.tool] -= min(row.seconds, row.units * expected.get((row.tool, row.stage), 0.0))
    pace = recent / min(max(*ages, 1.0), RECENT_SECONDS)
    return float(
        max(sum(left.values()) / pace, *(left[tool] / count for tool, count in processes.items()), 0.0)
    )
