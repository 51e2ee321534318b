"""Run: what a run is doing, what it found, whether that is good, and what to do when it is red.

A finished run's numbers are stored, and come in milliseconds. Those of a run that works are counted beside
the page (`Reader.counted`): it shows the newest count, all of it read at one time, and before the first one
the sums of the run's own micro-batches.

What a failed task said is in Airflow's log of it, and who may read a log is Airflow's matter: so the
visitor's own browser asks Airflow for it (`assets/page.js`), and this server never does.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from toolformer_ops.run_page.calls import SECONDS_TO_LOOK, Asked, find_calls
from toolformer_ops.run_page.reading import Page, ReaderDep, answer
from toolformer_ops.run_page.rights import AskedRunDep
from toolformer_ops.run_page.shown_runs import SECONDS_WHILE_RUNNING, ShownRun, load_run, numbers_of
from toolformer_ops.runs.progress import RECENT_SECONDS, Progress, read_progress
from toolformer_ops.runs.reasons import COUNTED, title
from toolformer_ops.runs.summary import CountedFailure, answer_in_words
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import fetch_all
from toolformer_ops.tools.registry import tools_on_device

router = APIRouter()

BEST_CALLS = 5
FAILURES = 5
"""So many reasons why calls have no result."""
RUNNING = "running"
ASKED_FOR = {"before_finetuning": "finetunes on it", "before_publishing": "publishes its model"}
"""By the choice `approve`, what a person is asked for a yes to."""


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
        """Over all tools; each of them counts the same texts."""
        return max(self.counts.values()) if self.reason == "texts" else sum(self.counts.values())


def read_numbers(connection: Connection, run: ShownRun, *, counts_texts: bool = True) -> dict[str, Any]:
    """What a run has done and made, read at one time.

    counts_texts: whether all texts of the run are counted, or only what it did itself.
    """
    ours = {"run_id": run.run_id}
    statements = {
        "funnel": queries.page.yield_by_stage,
        "thresholds": queries.page.thresholds,
        "given_up": queries.page.given_up,
    }
    counted: dict[str, Sequence[Any]] = {}
    for name, statement in statements.items():
        counted[name] = fetch_all(connection, statement, **ours) if counts_texts and run.tools else []
    if not counts_texts:
        counted["funnel"] = fetch_all(connection, queries.page.own_counts, **ours)
    progress = read_progress(connection, run.run_id, counts_texts=counts_texts)
    waits_for_placebos = set()
    for tool in progress.tools:
        if any(stage.stage == "placebo" and stage.done < (stage.total or 0) for stage in tool.stages):
            waits_for_placebos.add(tool.tool)
    funnel_rows = funnel(
        # What is not kept yet may be: that is no loss.
        row
        for row in counted["funnel"]
        if not (row.stage == "keep" and row.is_loss and row.tool in waits_for_placebos)
    )
    failures: Sequence[Any] = []
    if funnel_rows:
        failures = fetch_all(connection, queries.summary.failures, **ours, at_most=FAILURES)
    best_status, best = best_calls(connection, run)
    stages = itertools.chain.from_iterable(tool.stages for tool in progress.tools)
    outputs = fetch_all(connection, queries.page.outputs, **ours)
    answers = fetch_all(connection, queries.summary.approvals, **ours)
    checks = fetch_all(connection, queries.page.quality, **ours)
    network = fetch_all(connection, queries.page.network, **ours)
    work = fetch_all(connection, queries.page.work, **ours, recent_seconds=RECENT_SECONDS)
    return {
        **counted,
        "progress": progress,
        "phase": progress.now if progress.phase else between_tasks(run, progress, outputs, answers),
        # A tool may have placebos if another has none.
        "stages": list(dict.fromkeys(stage.stage for stage in stages)),
        "best_status": best_status,
        "best": best,
        "funnel": funnel_rows,
        "counts_by_tool": {
            row.reason: row.counts for row in funnel_rows if not row.is_loss and row.stage != "placebo"
        },
        "failures": [CountedFailure(**row._asdict()) for row in failures],
        "lost_samples": fetch_all(connection, queries.page.lost_samples, **ours),
        "output": outputs[0] if outputs else None,
        "answers": [
            answer_in_words(row.step, row.is_approved, row.answered_by, row.answered_at) for row in answers
        ],
        "failed_checks": [check for check in checks if not check.success],
        "passed_checks": sum(check.success for check in checks),
        "device_hours": device_hours(run, work),
        "network": network[0] if network else None,
    }


def between_tasks(run: ShownRun, progress: Progress, outputs: Sequence[Any], answers: Sequence[Any]) -> str:
    """What a run does while none of its processes is at work on texts."""
    if outputs and not answers and (step := ASKED_FOR.get(run.parameters.get("approve", ""))):
        return f"waiting for a person's yes before the run {step} (Required Actions in Airflow)"
    if outputs or not run.tools:
        return "the release is made: a model is trained, published or evaluated if the run asks for it"
    stages = itertools.chain.from_iterable(tool.stages for tool in progress.tools)
    is_begun = any(stage.own for stage in stages)
    return "the next process starts, or rows are checked" if is_begun else "a first process starts"


@router.get("/run")
async def show(request: Request, reader: ReaderDep, run_address: AskedRunDep) -> Response:
    """The view of one run."""

    def make(connection: Connection) -> Page:
        run = load_run(connection, run_address)
        counted = numbers_of(reader, connection, run, "numbers", read_numbers)
        numbers = counted.values if counted else read_numbers(connection, run, counts_texts=False)
        values = {
            "run": run,
            "view": "run",
            "counted": counted,
            "is_running": run.state == RUNNING,
            "refresh": None if run.has_stored_numbers else SECONDS_WHILE_RUNNING,
        }
        return Page("overview.html.j2", values | numbers, run.seconds_to_keep)

    return await answer(request, make)


def best_calls(connection: Connection, run: ShownRun) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Status and rows of the calls that gain most, the best of each tool first: kept ones, or else scored ones."""
    for status in ("kept", "scored"):
        ranked: list[tuple[int, float, Mapping[str, Any]]] = []
        for tool in run.tools:
            selection = Asked(status=status, tool=tool.tool)
            rows = find_calls(connection, run, selection, BEST_CALLS, SECONDS_TO_LOOK / len(run.tools)).rows
            ranked += [(rank, -(row["gain_bound"] or 0.0), row) for rank, row in enumerate(rows)]
        if ranked:
            ranked.sort(key=lambda item: item[:2])
            return status, [row for _, _, row in ranked[:BEST_CALLS]]
    return "scored", []


def funnel(rows: Iterable[Any]) -> list[FunnelRow]:
    """The counts of all tools side by side, stage by stage: what went on, then why the rest did not, the most frequent first."""
    counts_by_tool: dict[tuple[int, str, bool, str], dict[str, int]] = {}
    for row in rows:
        counts_by_tool.setdefault((row.step, row.stage, row.is_loss, row.reason), {})[row.tool] = row.count
    order = list(COUNTED)
    numbered_rows = []
    for (step, stage, is_loss, reason), counts in counts_by_tool.items():
        row = FunnelRow(stage, reason, title(reason), is_loss, counts)
        if row.total or not is_loss:
            numbered_rows.append((step, row))

    def place(item: tuple[int, FunnelRow]) -> tuple[int, bool, int]:
        step, row = item
        rank = order.index(row.reason) if row.reason in order else len(order)
        return step, row.is_loss, -row.total if row.is_loss else rank

    return [row for _, row in sorted(numbered_rows, key=place)]


def device_hours(run: ShownRun, work: Sequence[Any]) -> dict[str, float | None]:
    """Hours on the device: what the run took so far, and between which bounds it was expected."""
    device_tools = tools_on_device()
    seconds = 0.0
    for row in work:
        executes_on_device = row.stage == "execute" and row.tool in device_tools
        if executes_on_device or row.stage in ("sample", "score", "placebo"):
            seconds += row.seconds
    expected = (run.estimate or {}).get("total") or {}
    return {
        "taken": seconds / 3600,
        "expected": expected.get("device_hours"),
        "low": expected.get("device_hours_low"),
        "high": expected.get("device_hours_high"),
    }
