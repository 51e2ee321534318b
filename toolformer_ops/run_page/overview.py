"""Run: what a run is doing, what it found, whether that is good, and what to do when it is red.

A finished run's numbers are stored, and come in milliseconds. Those of a run that works are counted beside the page
(`Reader.counted`): it shows the newest count with its time, and before the first one the sums of the run's own micro-batches.

What a failed task said is in Airflow's log of it, and who may read a log is Airflow's matter: so the visitor's own browser asks
Airflow for it (`assets/page.js`), and this server never does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from toolformer_ops.run_page.reading import Page, Reader, answer
from toolformer_ops.run_page.rights import AskedRunDep
from toolformer_ops.run_page.shown_runs import SECONDS_WHILE_RUNNING, ShownRun, load_run
from toolformer_ops.storage.database import fetch_all
from toolformer_ops.tools.registry import tools_on_device

router = APIRouter()

RECENT_SECONDS = 900.0
"""The pace of a run is what it did in this time."""
FUNNEL_NAMES = {
    "texts": "texts",
    "paragraphs": "paragraphs",
    "kept_paragraphs": "paragraphs for the model",
    "positions": "positions",
    "samples": "samples",
    "candidates": "candidate calls",
    "calls": "calls",
    "inputs": "distinct inputs",
    "executed": "executed",
    "from_cache": "answered before",
    "with_result": "with a result",
    "with_placebos": "calls with placebos",
    "without_placebos": "calls without placebos",
    "placebos": "placebos",
    "scored": "scored",
    "kept": "kept",
    "kept_texts": "texts with a kept call",
    "released": "released",
}
"""What a stage counts, in the order in which it is shown."""


@dataclass(frozen=True)
class StageProgress:
    """One stage of a tool."""

    stage: str
    done: int
    total: int | None
    """None where nobody knows it yet."""
    own: int
    """Of `done`, what this run did itself."""


@dataclass(frozen=True)
class ToolProgress:
    """One tool of a run."""

    tool: str
    stages: tuple[StageProgress, ...]
    seconds_left: float | None
    """Seconds of work that are left; None where no document of a stage was ever timed."""


@dataclass(frozen=True)
class FunnelRow:
    """A count, or a reason for a loss, over all tools."""

    stage: str
    reason: str
    name: str
    is_loss: bool
    counts: Mapping[str, int]
    """By tool."""

    @property
    def total(self) -> int:
        """Over all tools."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Numbers:
    """What is counted over all documents of a run: rows of the queries of these names."""

    progress: Sequence[Any]
    funnel: Sequence[Any]
    thresholds: Sequence[Any]
    given_up: Sequence[Any]


def count_numbers(connection: Connection, run: ShownRun) -> Numbers:
    """The numbers of a run, stored or counted."""

    def rows(name: str) -> list[Any]:
        return fetch_all(connection, name, run_id=run.run_id) if run.tools else []

    return Numbers(rows("page_progress"), rows("page_yield"), rows("page_thresholds"), rows("page_given_up"))


@router.get("/run")
async def show(request: Request, asked: AskedRunDep) -> Response:
    """The view of one run."""
    reader: Reader = request.app.state.reader

    def make(connection: Connection) -> Page:
        run = load_run(connection, asked)
        ours = {"run_id": run.run_id}
        # 1. Numbers over all documents: stored ones, or the newest count; None while a large run is counted for the first time.
        counted = None
        if run.has_stored_numbers:
            numbers: Numbers | None = count_numbers(connection, run)
        else:
            counted = reader.counted(("numbers", run.run_id), lambda connection: count_numbers(connection, run))
            numbers = counted.values if counted else None
        # 2. What the run did itself, and what it made.
        work = fetch_all(connection, "page_work", **ours, recent_seconds=RECENT_SECONDS)
        tools = tool_progress(run, numbers.progress if numbers else None, work)
        outputs = fetch_all(connection, "page_outputs", **ours)
        checks = fetch_all(connection, "page_quality", **ours)
        values = {
            "run": run,
            "view": "run",
            "tools": tools,
            # A tool may have placebos where another has none.
            "stages": list(dict.fromkeys(stage.stage for tool in tools for stage in tool.stages)),
            "is_counted": numbers is not None,
            "counted": counted,
            "seconds_left": seconds_left(tools, work) if run.state == "running" else None,
            "funnel": funnel(numbers.funnel if numbers else fetch_all(connection, "page_own_counts", **ours)),
            "thresholds": numbers.thresholds if numbers else None,
            "output": outputs[0] if outputs else None,
            "failed_checks": [check for check in checks if not check.success],
            "passed_checks": sum(check.success for check in checks),
            "checked": sorted({check.subject for check in checks}),
            "given_up": numbers.given_up if numbers else [],
            "device_hours": device_hours(run, work),
            "refresh": None if run.has_stored_numbers else SECONDS_WHILE_RUNNING,
        }
        return Page("overview.html.j2", values, run.seconds_to_keep)

    return await answer(request, make)


def tool_progress(run: ShownRun, progress: Sequence[Any] | None, work: Sequence[Any]) -> list[ToolProgress]:
    """How far each tool is; by the run's own micro-batches where the ledger was not counted (`progress` is None)."""
    counted = {(row.tool, row.stage): row for row in progress or ()}
    found = []
    for tool in run.tools:
        stages, left = [], 0.0
        is_timed = True
        for row in (row for row in work if row.tool == tool.tool):
            at = counted.get((row.tool, row.stage))
            done, total = (at.done, at.total) if at else (row.documents, None)
            stages.append(StageProgress(row.stage, done, total, own=min(row.documents, done)))
            if total is None or (total > done and row.seconds_a_document is None):
                is_timed = False
            elif total > done:
                left += (total - done) * row.seconds_a_document
        found.append(ToolProgress(tool.tool, tuple(stages), left if is_timed else None))
    return found


def seconds_left(tools: Sequence[ToolProgress], work: Sequence[Any]) -> float | None:
    """How long the run still takes at its pace: the work that is left, by the work that it did a second lately. None: not known."""
    firsts = [row.first_at for row in work if row.first_at is not None]
    recent = sum(row.recent_seconds for row in work)
    if not firsts or recent <= 0 or any(tool.seconds_left is None for tool in tools):
        return None
    lasts = [row.last_at for row in work if row.last_at is not None]
    span = min(max((max(lasts) - min(firsts)).total_seconds(), 1.0), RECENT_SECONDS)
    work_left = sum(tool.seconds_left or 0.0 for tool in tools)
    return float(work_left / max(recent / span, 1e-6))


def funnel(rows: Iterable[Any]) -> list[FunnelRow]:
    """The counts of all tools side by side, stage by stage: what went on, then why the rest did not, the most frequent first."""
    found: dict[tuple[int, str, bool, str], dict[str, int]] = {}
    for row in rows:
        found.setdefault((row.step, row.stage, row.is_loss, row.reason), {})[row.tool] = row.count
    order = list(FUNNEL_NAMES)
    made = [
        (step, FunnelRow(stage, reason, FUNNEL_NAMES.get(reason, reason.replace("_", " ")), is_loss, counts))
        for (step, stage, is_loss, reason), counts in found.items()
    ]

    def place(item: tuple[int, FunnelRow]) -> tuple[int, bool, int]:
        step, row = item
        known = order.index(row.reason) if row.reason in order else len(order)
        return step, row.is_loss, -row.total if row.is_loss else known

    return [row for _, row in sorted(made, key=place) if row.total or not row.is_loss]


def device_hours(run: ShownRun, work: Sequence[Any]) -> dict[str, float | None]:
    """Hours on the device: what the run took so far, and between which bounds it was expected."""
    of_device = tools_on_device()
    seconds = sum(
        row.seconds
        for row in work
        if row.stage in ("sample", "score", "placebo") or (row.stage == "execute" and row.tool in of_device)
    )
    expected = (run.estimate or {}).get("total") or {}
    return {
        "taken": seconds / 3600,
        "expected": expected.get("device_hours"),
        "low": expected.get("device_hours_low"),
        "high": expected.get("device_hours_high"),
    }
