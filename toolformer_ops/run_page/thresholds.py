"""Thresholds: what another keep threshold would keep, with examples that come in and go out; no GPU and no new run.

The counts of the run's own thresholds come from the view `threshold_counts`; those of another are counted as in `kept_calls_at`.
"Trigger" starts a run of `annotate_corpus` with the run's choices and these thresholds. Its losses are there, so that it computes
nothing again but what the corpus has anew. Airflow's form cannot be filled in by an address (3.3), so the page shows what will be
sent, and the visitor's browser sends it to Airflow's API with the visitor's own rights.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import Connection

from toolformer_ops.config import load_settings
from toolformer_ops.orchestration.forms import annotation_form
from toolformer_ops.run_page.calls import Asked, FoundCalls, find_calls
from toolformer_ops.run_page.reading import Page, answer, within
from toolformer_ops.run_page.rights import ANNOTATE, AskedRunDep
from toolformer_ops.run_page.shown_runs import RunTool, ShownRun, load_run
from toolformer_ops.storage.database import fetch_all

router = APIRouter()

SECONDS_TO_COUNT = 4.0
EXAMPLES = 10
STEP = 0.05
"""Nats between two places of a slider."""
SMALLEST_TOP = 2.0
"""A slider reaches at least so far, nats."""
OF_TOOL = "threshold."
"""Before a tool's name in the address."""


@dataclass(frozen=True)
class Kept:
    """What a threshold keeps of one tool."""

    calls: int
    texts: int
    releasable_calls: int
    false_discovery_rate: float | None
    """Share of these calls that the rule keeps whatever their result is; None without placebos."""


@dataclass(frozen=True)
class ToolThreshold:
    """A tool with its slider."""

    tool: RunTool
    threshold: float
    """The one that is asked about, nats."""
    top: float
    """Where the slider ends."""
    now: Kept | None
    """At the run's own threshold; None where that takes too long to count."""
    then: Kept | None
    moved: FoundCalls | None
    """Calls that come in, or go out."""


@router.get("/thresholds")
async def show(request: Request, asked: AskedRunDep) -> Response:
    """The sliders; `threshold.TOOL=NATS` in the address moves one."""
    chosen: dict[str, float] = {}
    for name, value in request.query_params.items():
        if name.startswith(OF_TOOL):
            try:
                chosen[name.removeprefix(OF_TOOL)] = float(value)
            except ValueError:
                raise HTTPException(422, f"{name}: expected a number of nats, found {value!r:.80}") from None

    def make(connection: Connection) -> Page:
        run = load_run(connection, asked)
        stored = within(connection, SECONDS_TO_COUNT, "page_thresholds", run_id=run.run_id) or []
        counts = {(row.tool, row.threshold): row for row in stored}
        released = fetch_all(connection, "release_of_run", run_id=run.run_id)
        release_id = released[0].release_id if released else None
        tools = [_of_tool(connection, run, tool, chosen.get(tool.tool), counts, release_id) for tool in run.tools]
        losses = [
            loss
            for tool in tools if tool.moved
            for row in tool.moved.rows
            for loss in (row["loss_without_call"], row["loss_without_result"], row["loss_with_result"], row["loss_with_placebo"])
            if loss is not None
        ]  # fmt: skip
        thresholds = {tool.tool.tool: tool.threshold for tool in tools}
        values = {
            "run": run,
            "view": "thresholds",
            "tools": tools,
            "step": STEP,
            "largest_loss": max(losses, default=1.0),
            "conf": conf_with(run.parameters, thresholds) if tools else {},
            "annotate": ANNOTATE,
            "is_moved": any(tool.threshold != tool.tool.keep_threshold for tool in tools),
        }
        return Page("thresholds.html.j2", values, run.seconds_to_keep)

    return await answer(request, make)


def _of_tool(
    connection: Connection,
    run: ShownRun,
    tool: RunTool,
    chosen: float | None,
    counts: Mapping[tuple[str, float], Any],
    release_id: str | None,
) -> ToolThreshold:
    [found] = fetch_all(connection, "page_largest_reduction", scoring_recipe_id=tool.scoring_recipe_id)
    top = max(SMALLEST_TOP, 2 * tool.keep_threshold, math.ceil(found.largest or 0.0))
    tau = tool.keep_threshold
    threshold = tau
    # A slider that nobody moved is at the place nearest to the run's own threshold.
    if chosen is not None and math.isfinite(chosen) and abs(chosen - tau) > STEP / 2:
        threshold = min(max(round(chosen, 4), tool.prune_below), top)
    moved = None
    if threshold != tau:
        asked = Asked(
            tool=tool.tool,
            status="kept",
            contains="",
            information=None,
            sort="most_saved",
            after="",
            between=(min(tau, threshold), max(tau, threshold)),
        )
        moved = find_calls(connection, run, asked, release_id, at_most=EXAMPLES)
    now = _kept(connection, run, tool, tau, counts)
    then = now if threshold == tau else _kept(connection, run, tool, threshold, counts)
    return ToolThreshold(tool, threshold, top=top, now=now, then=then, moved=moved)


def _kept(
    connection: Connection, run: ShownRun, tool: RunTool, threshold: float, counts: Mapping[tuple[str, float], Any]
) -> Kept | None:
    if (stored := counts.get((tool.tool, threshold))) is not None:
        return Kept(stored.calls, stored.texts, stored.releasable_calls, stored.false_discovery_rate)
    values = {
        "run_id": run.run_id,
        "tool": tool.tool,
        "threshold": threshold,
        "tau_information": tool.tau_information,
    }
    recipes = {
        "sampling_recipe_id": tool.sampling_recipe_id,
        "scoring_recipe_id": tool.scoring_recipe_id,
        "placebo_recipe_id": tool.placebo_recipe_id,
    }
    rows = within(connection, SECONDS_TO_COUNT, "page_threshold_count", **values, **recipes)
    if rows is None:
        return None
    [row] = rows
    rate = None
    by_chance = within(connection, SECONDS_TO_COUNT, "page_false_discovery", **values) if tool.placebo_recipe_id else []
    if by_chance and by_chance[0].placebos_scored and row.calls:
        [chance] = by_chance
        rate = chance.placebos / chance.placebos_scored * float(chance.calls_with_result or 0.0) / row.calls
    return Kept(row.calls, row.texts, row.releasable_calls, rate)


def conf_with(parameters: Mapping[str, Any], thresholds: Mapping[str, float]) -> dict[str, Any]:
    """What the form of `annotate_corpus` would send for a run with these choices and thresholds, and without a finetuning."""
    fields = set(annotation_form(load_settings()))
    conf = {name: value for name, value in parameters.items() if name in fields}
    if "keep_thresholds" in fields:
        conf["keep_thresholds"] = dict(thresholds)
    conf |= {
        f"keep_threshold_{tool}": value for tool, value in thresholds.items() if f"keep_threshold_{tool}" in fields
    }
    return conf | {"finetune": False}
