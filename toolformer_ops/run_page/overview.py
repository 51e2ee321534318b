"""Run: what a run is doing, what it found, whether that is good, and what to do when it is red.

A finished run's numbers are stored, and come in milliseconds. Those of a run that works are counted beside
the page (`Reader.counted`): it shows the newest count with what the run itself has stored since then, and
before the first one the sums of its own micro-batches.

What a failed task said is in Airflow's log of it, and who may read a log is Airflow's matter: so the
visitor's own browser asks Airflow for it (`assets/page.js`), and this server never does.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from toolformer_ops.run_page.calls import Asked, find_calls
from toolformer_ops.run_page.current_work import (
    what_it_does,
    why_no_time_left,
    with_own_counts,
)
from toolformer_ops.run_page.reading import Page, ReaderDep, answer
from toolformer_ops.run_page.rights import AskedRunDep
from toolformer_ops.run_page.shown_runs import SECONDS_WHILE_RUNNING, ShownRun, load_run, numbers_of
from toolformer_ops.runs.progress import Progress, own_work, seconds_left, tools_of_run
from toolformer_ops.runs.reasons import COUNTED, title
from toolformer_ops.runs.summary import answer_in_words
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import fetch_all
from toolformer_ops.tools.registry import tools_on_device

router = APIRouter()

BEST_CALLS = 8
BEST_SO_FAR = 5
"""So many calls of a run that works, whose page is looked at every few seconds."""
RUNNING = "running"


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


def count_numbers(connection: Connection, run: ShownRun) -> dict[str, list[Any]]:
    """What is stored or counted over all documents of a run: rows of four queries."""
    statements = {
        "progress": queries.page.progress,
        "funnel": queries.page.yield_by_stage,
        "thresholds": queries.page.thresholds,
        "given_up": queries.page.given_up,
    }
    numbers: dict[str, list[Any]] = {}
    for name, statement in statements.items():
        numbers[name] = fetch_all(connection, statement, run_id=run.run_id) if run.tools else []
    if run.state == RUNNING:
        # Last, so that nothing that was counted above is added again: a page shows what came since then.
        numbers["kept"] = fetch_all(connection, queries.until_kept.so_far, run_id=run.run_id)
        numbers["own_work"] = own_work(connection, run.run_id)
        numbers["own_counts"] = fetch_all(connection, queries.page.own_counts, run_id=run.run_id)
    return numbers


@router.get("/run")
async def show(request: Request, reader: ReaderDep, run_address: AskedRunDep) -> Response:
    """The view of one run."""

    def make(connection: Connection) -> Page:
        run = load_run(connection, run_address)
        ours = {"run_id": run.run_id}
        # 1. Numbers over all documents; none while a large run is counted for the first time.
        counted = numbers_of(reader, connection, run, "numbers", count_numbers)
        numbers = counted.values if counted else {}
        # 2. What the run did itself, and what it made.
        is_running = run.state == RUNNING
        work = own_work(connection, run.run_id)
        rows = numbers.get("funnel")
        if rows is None:
            rows = fetch_all(connection, queries.page.own_counts, **ours)
        elif is_running and "own_work" in numbers:
            own_counts = fetch_all(connection, queries.page.own_counts, **ours)
            rows = with_own_counts(rows, numbers["own_counts"], own_counts)
        tools = tools_of_run(numbers.get("progress"), work, numbers.get("own_work"), numbers.get("kept", ()))
        outputs = fetch_all(connection, queries.page.outputs, **ours)
        answers = fetch_all(connection, queries.summary.approvals, **ours)
        checks = fetch_all(connection, queries.page.quality, **ours)
        counts = funnel(rows)
        best_status, best = best_calls(connection, run, BEST_SO_FAR if is_running else BEST_CALLS)
        network = next(iter(fetch_all(connection, queries.page.network, **ours)), None)
        at_work = fetch_all(connection, queries.page.at_work, **ours) if is_running else []
        stages = itertools.chain.from_iterable(tool.stages for tool in tools)
        tokens_per_second = network.tokens_per_second if network else None
        phase = what_it_does(
            work,
            at_work,
            annotates=bool(run.tools),
            has_release=bool(outputs),
            waits_for_yes=None if answers else run.parameters.get("approve"),
            tokens_per_second=tokens_per_second,
        )
        values = {
            "run": run,
            "view": "run",
            "best_status": best_status,
            "best": best,
            "waits_for_placebos": is_running and best_status == "scored" and any(map(_gains_enough, best)),
            "progress": Progress(
                tools=tools,
                phase=phase if is_running else "",
                tokens_per_second=tokens_per_second,
                seconds_left=seconds_left(tools, work, at_work) if is_running else None,
            ),
            # A tool may have placebos if another has none.
            "stages": list(dict.fromkeys(stage.stage for stage in stages)),
            "counted": counted,
            # What is kept was counted before the release was made.
            "is_stale": bool(counted and outputs and counted.at < outputs[0].made_at.timestamp()),
            "why_no_time_left": why_no_time_left(tools, is_counted=counted is not None),
            "funnel": counts,
            "lost_samples": fetch_all(connection, queries.page.lost_samples, **ours),
            "found_by_tool": {
                row.reason: row.counts for row in counts if not row.is_loss and row.stage != "placebo"
            },
            "thresholds": numbers.get("thresholds"),
            "output": outputs[0] if outputs else None,
            "answers": [
                answer_in_words(row.step, row.is_approved, row.answered_by, row.answered_at)
                for row in answers
            ],
            "failed_checks": [check for check in checks if not check.success],
            "passed_checks": sum(check.success for check in checks),
            "given_up": numbers.get("given_up", []),
            "device_hours": device_hours(run, work),
            "network": network,
            "refresh": None if run.has_stored_numbers else SECONDS_WHILE_RUNNING,
        }
        return Page("overview.html.j2", values, run.seconds_to_keep)

    return await answer(request, make)


def best_calls(
    connection: Connection, run: ShownRun, at_most: int
) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Status and rows of the kept calls of a run that save most; of a run that keeps none, of the scored ones."""
    if kept := find_calls(connection, run, Asked(status="kept"), at_most).rows:
        return "kept", kept
    return "scored", find_calls(connection, run, Asked(status="scored"), at_most).rows


def _gains_enough(call: Mapping[str, Any]) -> bool:
    """Whether a scored call gains what its tool asks for, before its placebo."""
    return call["gain_bound"] is not None and call["gain_bound"] >= call["keep_threshold"]


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
