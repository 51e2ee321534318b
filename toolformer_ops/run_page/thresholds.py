"""Thresholds: what another keep threshold would keep, with examples that come in and go out.

It takes no GPU and no new run. The counts of the run's own threshold come from the view `threshold_counts`,
those of a slider's place from `gain_histogram`, which is stored with a finished run: the places of a
slider are the histogram's bounds, so that both are exact. "Trigger" starts a run of `annotate_corpus` with
the run's choices and these thresholds. Its losses are there, so that it computes nothing again but what the
corpus has anew. Airflow's form cannot be filled in by an address (3.3), so the page shows what will be sent,
and the visitor's browser sends it to Airflow's API with the visitor's own rights.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import Connection

from toolformer_ops.airflow_tasks.run_ids import ANNOTATE
from toolformer_ops.run_page.calls import Asked, FoundCalls, find_calls, largest_loss
from toolformer_ops.run_page.reading import Page, ReaderDep, answer
from toolformer_ops.run_page.rights import AskedRunDep
from toolformer_ops.run_page.shown_runs import RunTool, ShownRun, load_run, numbers_of
from toolformer_ops.runs.choices import THRESHOLD_OF, RunChoices
from toolformer_ops.runs.placebo_rates import Rate, kept_by_chance, share_of_calls
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import fetch_all, fetch_one
from toolformer_ops.tools.registry import tool_names

router = APIRouter()

EXAMPLES = 10
PLACES: Mapping[str, int] = MappingProxyType({"paper": 20, "probability": 100})
"""By keep rule, the places of a slider a nat: the bounds of the view `gain_histogram`."""
SMALLEST_TOP: Mapping[str, float] = MappingProxyType({"paper": 2.0, "probability": 1.0})
"""By keep rule, how far a slider reaches at least, nats."""
OF_TOOL = "threshold."
"""Before a tool's name in the address."""


@dataclass(frozen=True)
class Kept:
    """What a threshold keeps of one tool."""

    calls: int
    texts: int
    releasable_calls: int
    by_chance: str
    """The share of these calls that the rule would keep with a placebo as the result, in words."""


@dataclass(frozen=True)
class ToolThreshold:
    """A tool with its slider."""

    tool: RunTool
    threshold: float
    """The threshold that is asked about, nats."""
    step: float
    """Between two places of the slider."""
    bottom: float
    """Where the slider begins."""
    top: float
    """Where it ends."""
    now: Kept | None
    """At the run's own threshold; None if it is being counted. So is the next."""
    then: Kept | None
    moved: FoundCalls | None
    """Calls that come in, or go out."""


@router.get("/thresholds")
async def show(request: Request, reader: ReaderDep, run_address: AskedRunDep) -> Response:
    """The sliders; `threshold.TOOL=NUMBER` in the address moves one."""
    chosen: dict[str, float] = {}
    for name, value in request.query_params.items():
        if name.startswith(OF_TOOL):
            try:
                chosen[name.removeprefix(OF_TOOL)] = float(value)
            except ValueError:
                raise HTTPException(422, f"{name}: expected a number, found {value!r:.80}") from None

    def make(connection: Connection) -> Page:
        run = load_run(connection, run_address)
        counted = numbers_of(reader, connection, run, "histogram", load_counts)
        counts: Counts | None = counted.values if counted else None
        tools = [_of_tool(connection, run, tool, chosen.get(tool.tool), counts) for tool in run.tools]
        thresholds = {tool.tool.tool: tool.threshold for tool in tools}
        moved_rows = (tool.moved.rows for tool in tools if tool.moved)
        values = {
            "run": run,
            "view": "thresholds",
            "tools": tools,
            "counted": counted,
            "largest_loss": largest_loss(itertools.chain.from_iterable(moved_rows)),
            "conf": conf_with(run.parameters, thresholds) if tools else {},
            "annotate": ANNOTATE,
            "is_moved": any(tool.threshold != tool.tool.keep_threshold for tool in tools),
        }
        # What is being counted is asked for again in a moment.
        return Page("thresholds.html.j2", values, run.seconds_to_keep if counted else 0.0)

    return await answer(request, make)


@dataclass(frozen=True)
class Counts:
    """What thresholds keep of the tools of a run."""

    at_own: Mapping[str, Kept]
    """By tool, at its own keep threshold."""
    histogram: Mapping[str, Sequence[Any]]
    """By tool, rows of `page.histogram`: calls by what they save."""
    placebos: Mapping[str, Any]
    """By tool with placebos, the row of `page.false_discovery`."""

    def at(self, tool: str, place: int) -> Kept:
        """What a tool keeps at a slider's place, in the intervals of its histogram."""
        rows = [row for row in self.histogram.get(tool, ()) if row.bucket >= place]
        calls = sum(row.calls for row in rows)
        sample = self.placebos.get(tool)
        placebos, share = sum(row.placebos for row in rows), None
        if calls and sample is not None and sample.calls_a_placebo is not None:
            share = share_of_calls(sample.calls_a_placebo * placebos, calls)
        rate = Rate(
            calls=calls,
            placebos=placebos,
            placebos_scored=sample and sample.placebos_scored,
            false_discovery_rate=share,
            rate_low=None,
            rate_high=None,
        )
        return Kept(
            calls, sum(row.texts for row in rows), sum(row.releasable_calls for row in rows), str(rate)
        )


def load_counts(connection: Connection, run: ShownRun) -> Counts:
    """The counts of a run, stored or counted."""
    own = fetch_all(connection, queries.page.thresholds, run_id=run.run_id)
    histogram: dict[str, list[Any]] = {}
    for row in fetch_all(connection, queries.page.histogram, run_id=run.run_id):
        histogram.setdefault(row.tool, []).append(row)
    return Counts(
        {
            row.tool: Kept(row.calls, row.texts, row.releasable_calls, kept_by_chance(row))
            for row in own
            if row.is_keep_threshold
        },
        histogram,
        {row.tool: row for row in fetch_all(connection, queries.page.false_discovery, run_id=run.run_id)},
    )


def _of_tool(
    connection: Connection,
    run: ShownRun,
    tool: RunTool,
    chosen: float | None,
    counts: Counts | None,
) -> ToolThreshold:
    # 1. The places of the slider: from the first one at which all calls were computed.
    gains = fetch_one(connection, queries.page.largest_gain, scoring_recipe_id=tool.scoring_recipe_id)
    tau = tool.keep_threshold
    places = PLACES[tool.keep_rule]
    first = round(tool.prune_below * places)
    first += first / places < tool.prune_below
    last = max(first, math.ceil(places * max(SMALLEST_TOP[tool.keep_rule], 2 * tau, gains.largest or 0.0)))
    # 2. The place that is asked for. A slider that was not moved is at the place nearest to the run's own
    #    threshold.
    place = None
    if chosen is not None and math.isfinite(chosen) and abs(chosen - tau) > 0.5 / places:
        place = min(max(round(chosen * places), first), last)
    threshold = tau if place is None else place / places
    now = counts.at_own.get(tool.tool) if counts else None
    # 3. What it keeps there, and calls that come in or go out.
    then, moved = now, None
    if place is not None and threshold != tau:
        selection = Asked(tool=tool.tool, status="kept", between=(min(tau, threshold), max(tau, threshold)))
        moved = find_calls(connection, run, selection, at_most=EXAMPLES)
        then = counts.at(tool.tool, place) if counts else None
    return ToolThreshold(
        tool=tool,
        threshold=threshold,
        step=1 / places,
        bottom=first / places,
        top=last / places,
        now=now,
        then=then,
        moved=moved,
    )


def conf_with(parameters: Mapping[str, Any], thresholds: Mapping[str, float]) -> dict[str, Any]:
    """The conf of a run with these choices and thresholds, and without a finetuning.

    `annotate_corpus` takes it.
    """
    conf = {name: parameters[name] for name in RunChoices.model_fields if name in parameters}
    conf.pop("keep_thresholds", None)
    conf |= {f"{THRESHOLD_OF}{tool}": value for tool, value in thresholds.items() if tool in tool_names()}
    return conf | {"finetune": False}
