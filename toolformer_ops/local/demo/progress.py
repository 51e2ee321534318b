"""Show how far a run is: a bar a tool if there is a terminal, else a line when a tool has come to its next stage.

Reads the view `annotation_progress` and the ledger's counts. Knows nothing of Airflow: the names of the tasks
that run now are handed to it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from toolformer_ops.storage.postgres import database, queries

SECONDS_BETWEEN_LINES = 20.0
"""Without a terminal, lines of stages that changed are so far apart."""
SECONDS_OF_SILENCE = 60.0
"""Without a terminal, a line comes after so long, though no stage has changed."""
DONE = "done"
"""In place of a stage: all of a tool's are done."""


@dataclass(frozen=True)
class ToolProgress:
    """Where one tool is: its first stage that is not done, and how much of all its stages is."""

    tool: str
    stage: str
    """The stage at work; `DONE` after the last."""
    done: int
    """Documents that the stage at work has done."""
    total: int
    """Documents that it has to do."""
    steps_done: int
    """Tokens done, summed over the stages; documents of the filter, and of a finished run."""
    steps: int
    """What is to be done, in the unit of `steps_done`."""
    tokens_done: float | None = None
    """Share of its tokens that the stage at work has done, 0 to 1; None for the filter, and for a finished
    run."""

    @property
    def count(self) -> str:
        """How far the stage at work is, as `28/29 (37 % of the tokens)`."""
        token_share = f" ({100 * self.tokens_done:.0f} % of the tokens)" if self.tokens_done else ""
        return f"{self.done}/{self.total}{token_share}"


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    tools: tuple[ToolProgress, ...]
    calls: int | None
    """Distinct calls sampled so far; None if there is no run yet that samples any."""
    running: tuple[str, ...] = ()
    """Airflow's tasks that run now."""

    @property
    def footer(self) -> str:
        """The calls so far, and what runs now."""
        calls = f"{self.calls} calls so far" if self.calls is not None else ""
        running = f"running: {', '.join(self.running)}" if self.running else ""
        return "; ".join(part for part in (calls, running) if part)

    def stages(self) -> dict[str, str]:
        """The stage at work by tool."""
        return {tool.tool: tool.stage for tool in self.tools}

    def line(self, stages_before: Mapping[str, str]) -> str:
        """What is new in one line: `Calculator sample 12/46 (21 % of the tokens), MT done; 310 calls so far; running: MT.check`.

        It names the tools at another stage than before, and those at work if there are none.
        """
        moved = [tool for tool in self.tools if stages_before.get(tool.tool) != tool.stage]
        shown = moved or [tool for tool in self.tools if tool.stage != DONE]
        parts = [
            tool.tool + (" done" if tool.stage == DONE else f" {tool.stage} {tool.count}") for tool in shown
        ]
        return "; ".join(part for part in (", ".join(parts), self.footer) if part)


def read_progress(connection: Connection, run_id: str) -> Snapshot:
    """Return the run's progress as the ledger has it; no tools before the run is registered."""
    tools = by_tool(database.fetch_all(connection, queries.page.progress, run_id=run_id))
    counted = database.fetch_one(connection, queries.demo.calls_so_far, run_id=run_id)
    return Snapshot(tools, counted.calls if tools else None)


def by_tool(rows: Sequence[Any]) -> tuple[ToolProgress, ...]:
    """Return the progress of each tool from the rows of its stages, as `page.progress` gives them, in their order.

    The totals of later stages are known only when the filter is done; until then the filter alone counts.
    """
    stages_of: dict[str, list[Any]] = {}
    for row in rows:
        stages_of.setdefault(row.tool, []).append(row)
    tools = []
    for tool, stages in stages_of.items():
        at_work = next((stage for stage in stages if stage.done < stage.total), None)
        shown = at_work or stages[-1]
        steps = steps_done = 0
        for stage in stages:  # tokens, if a model reads the texts
            steps += stage.total if stage.tokens is None else stage.tokens
            steps_done += stage.done if stage.tokens is None else stage.tokens_done
        tools.append(
            ToolProgress(
                tool=tool,
                stage=at_work.stage if at_work else DONE,
                done=shown.done,
                total=shown.total,
                steps_done=steps_done,
                steps=steps,
                tokens_done=at_work.tokens_done / at_work.tokens if at_work and at_work.tokens else None,
            )
        )
    return tuple(tools)


@contextmanager
def progress_display(
    console: Console,
    seconds_between: float = SECONDS_BETWEEN_LINES,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[Snapshot], None]]:
    """Give a function that shows the newest state of a run.

    On a terminal: a bar a tool, and a line with the time, the calls so far and what runs now. Elsewhere: a
    line when a tool has come to another stage, at most every `seconds_between`, and a line after
    `SECONDS_OF_SILENCE` if anything has changed.
    """
    began = clock()

    def elapsed(now: float) -> str:
        return f"{int(now - began) // 60}:{int(now - began) % 60:02}"

    if console.is_terminal:
        newest = Snapshot((), None)

        def drawn() -> Group:
            bars = Table.grid(padding=(0, 1))
            for tool in newest.tools:
                bar = ProgressBar(total=max(tool.steps, 1), completed=tool.steps_done, width=30)
                bars.add_row(tool.tool, tool.stage, bar, tool.count)
            return Group(bars, Text(f"{elapsed(clock())} {newest.footer or 'starting'}"))

        def keep(snapshot: Snapshot) -> None:
            nonlocal newest
            newest = snapshot

        with Live(get_renderable=drawn, console=console, refresh_per_second=4):
            yield keep
        return

    printed, printed_at = Snapshot((), None), float("-inf")

    def print_line(snapshot: Snapshot) -> None:
        nonlocal printed, printed_at
        now = clock()
        has_moved = snapshot.stages() != printed.stages()
        if snapshot == printed or now - printed_at < (seconds_between if has_moved else SECONDS_OF_SILENCE):
            return
        line = snapshot.line(printed.stages())
        printed, printed_at = snapshot, now
        console.print(f"{elapsed(now)} {line}", markup=False, highlight=False, soft_wrap=True)

    yield print_line
