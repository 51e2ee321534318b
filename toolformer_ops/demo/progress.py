"""Show how far a run is: a bar a tool where there is a terminal, else a line every few seconds.

Reads the view `annotation_progress` and the ledger's counts. Knows nothing of Airflow: the names of the tasks that run now are
handed to it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from sqlalchemy import Connection

from toolformer_ops.storage import database

SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True)
class StageProgress:
    """Documents of one stage of one tool."""

    tool: str
    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class ToolProgress:
    """Where one tool is: its first stage that is not done, and how much of all its stages is."""

    tool: str
    stage: str
    """The stage at work; `done` after the last."""
    done: int
    """Documents that the stage at work has done."""
    total: int
    """Documents that it has to do."""
    steps_done: int
    """Documents done, summed over the stages."""
    steps: int
    """Documents to do, summed over the stages."""


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    tools: tuple[ToolProgress, ...]
    calls: int | None
    """Distinct calls sampled so far; None where there is no run yet that samples any."""
    running: tuple[str, ...] = ()
    """Airflow's tasks that run now."""


def read_progress(connection: Connection, run_id: str) -> Snapshot:
    """The run's progress as the ledger has it; no tools before the run is registered."""
    rows = database.fetch_all(connection, "demo_progress", run_id=run_id)
    [counted] = database.fetch_all(connection, "demo_calls_so_far", run_id=run_id)
    tools = by_tool([StageProgress(row.tool, row.stage, row.done, row.total) for row in rows])
    return Snapshot(tools, counted.calls if tools else None)


def by_tool(rows: Sequence[StageProgress]) -> tuple[ToolProgress, ...]:
    """One line a tool, from its stages in their order.

    The totals of later stages are known only when the filter is done; until then the filter alone counts.
    """
    tools: dict[str, list[StageProgress]] = {}
    for row in rows:
        tools.setdefault(row.tool, []).append(row)
    return tuple(_tool_progress(tool, stages) for tool, stages in tools.items())


def _tool_progress(tool: str, stages: Sequence[StageProgress]) -> ToolProgress:
    steps_done, steps = sum(stage.done for stage in stages), sum(stage.total for stage in stages)
    for stage in stages:
        if stage.done < stage.total:
            return ToolProgress(tool, stage.stage, stage.done, stage.total, steps_done, steps)
    last = stages[-1]
    return ToolProgress(tool, "done", last.done, last.total, steps_done, steps)


class ProgressDisplay(Protocol):
    """Somewhere that snapshots are shown; a context manager."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the newest state of the run."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def display_for(console: Console) -> ProgressDisplay:
    """Bars where `console` is a terminal, else lines."""
    return BarDisplay(console) if console.is_terminal else LineDisplay(console)


class BarDisplay:
    """One bar a tool, and a last line with the calls so far and what runs now."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.fields[name]:<11}"),
            TextColumn("{task.fields[stage]:<8}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[count]:>9}"),
        )
        self._footer = Progress(TimeElapsedColumn(), TextColumn("{task.description}"))
        self._tasks: dict[str, TaskID] = {}
        self._live = Live(Group(self._bars, self._footer), console=console, refresh_per_second=4)
        self._line = self._footer.add_task("starting", total=None)

    def show(self, snapshot: Snapshot) -> None:
        """Move the bars."""
        for tool in snapshot.tools:
            if tool.tool not in self._tasks:
                self._tasks[tool.tool] = self._bars.add_task(tool.tool, total=1, name=tool.tool, stage="", count="")
            self._bars.update(
                self._tasks[tool.tool],
                completed=tool.steps_done,
                total=max(tool.steps, 1),
                stage=tool.stage,
                count=f"{tool.done}/{tool.total}",
            )
        self._footer.update(self._line, description=_footer(snapshot))

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)


class LineDisplay:
    """A line when something has changed, but not more often than every few seconds."""

    def __init__(
        self,
        console: Console,
        seconds_between: float = SECONDS_BETWEEN_LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._seconds_between = seconds_between
        self._clock = clock
        self._started = clock()
        self._last_line = ""
        self._last_time = float("-inf")

    def show(self, snapshot: Snapshot) -> None:
        """Print the state unless it is the same as before, or the last line is too young."""
        now = self._clock()
        line = progress_line(snapshot)
        if line in ("", self._last_line) or now - self._last_time < self._seconds_between:
            return
        self._last_line, self._last_time = line, now
        elapsed = int(now - self._started)
        self._console.print(f"{elapsed // 60}:{elapsed % 60:02} {line}", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return


def progress_line(snapshot: Snapshot) -> str:
    """The snapshot in one line: `Calculator sample 12/46, MT done 22/22; 310 calls; running: Calculator.sample [0]`."""
    tools = ", ".join(f"{tool.tool} {tool.stage} {tool.done}/{tool.total}" for tool in snapshot.tools)
    return "; ".join(part for part in (tools, _footer(snapshot)) if part)


def _footer(snapshot: Snapshot) -> str:
    calls = f"{snapshot.calls} calls so far" if snapshot.calls is not None else ""
    running = f"running: {', '.join(snapshot.running)}" if snapshot.running else ""
    return "; ".join(part for part in (calls, running) if part)
