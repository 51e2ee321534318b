"""How many of its kept calls a run would keep with any result: the false-discovery rate (docs/placebo.md).

    rate(t) = expected placebos that the run's keep rule keeps at threshold t / calls that it keeps
    expected placebos = (sampled placebos kept / sampled placebos scored) (calls sampled / share of the calls
    that is sampled)

The 95 % interval resamples documents, since calls of a document depend on each other, and so do its placebos.
It is the Bayesian bootstrap (Rubin, 1981): each document gets an exponential weight, numerator and
denominator are weighted sums, and the interval runs from the 2.5 % to the 97.5 % quantile of their ratio.
Documents with equal counts are one group, whose weight is gamma-distributed: only the numbers of such
documents are needed (`placebo_counts`). For the upper end one more document with one placebo is added. With
one placebo a document the numerator then has the exact interval of a Poisson count (Garwood, 1936), and no
placebos among few calls do not pass for a rate of zero. The draws are seeded: the same counts have the same
interval.

A check of a tool counts, before it judges. What it counts follows what changed since an earlier run with the
same placebos and rule. Owns the tables `placebo_counts` and `placebo_rates`.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from toolformer_ops.runs.numbers import what_to_count
from toolformer_ops.runs.run_tools import RunTool, load_run_tools, unfinished_documents
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)

FEWEST_PLACEBOS = 30
"""A rate on fewer placebos says too little: it is not shown, and no check judges it."""
RESAMPLES = 4000
SEED = 15


@dataclass(frozen=True)
class CountedDocuments:
    """So many documents with the same counts."""

    placebos: int
    """Sampled placebos of a document that the rule would keep."""
    calls: int
    """Calls of a document that the rule keeps."""
    documents: int


def kept_by_chance(rate: Any) -> str:
    """A rate as every report shows it: `12 % (3 to 31 %), 120 placebos`, or `too few: 12 placebos` below `FEWEST_PLACEBOS`.

    An interval from 0 to 100 % says nothing: `cannot be said yet: 40 placebos`.

    `rate` is a `Rate` or another row with its last four fields: `placebos_scored` is None for a run without
    placebos, the rate for a tool without kept calls, `rate_low` and `rate_high` if no interval was computed.
    """
    if rate.placebos_scored is None:
        return "no placebos"
    if not rate.placebos_scored:
        return "no placebo possible"
    if rate.placebos_scored < FEWEST_PLACEBOS:
        return f"too few: {rate.placebos_scored} placebos"
    if rate.false_discovery_rate is None:
        return "no kept call"
    interval = ""
    if rate.rate_low is not None:
        low, high = _percent(rate.rate_low), _percent(rate.rate_high)
        if (low, high) == ("0", "100"):
            return f"cannot be said yet: {rate.placebos_scored:,} placebos"
        interval = f" ({low} to {high} %)"
    return f"{_percent(rate.false_discovery_rate)} %{interval}, {rate.placebos_scored:,} placebos"


def _percent(share: float) -> str:
    """A share in per cent with one digit after the point, if that is not 0."""
    return f"{100 * share:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Rate:
    """A false-discovery rate, 0 to 1, with its 95 % interval; None if there is nothing to divide by."""

    calls: int
    placebos: int
    placebos_scored: int | None
    """Sampled calls that have a placebo: what the rate rests on. None for a run without placebos."""
    false_discovery_rate: float | None
    rate_low: float | None
    rate_high: float | None

    def __str__(self) -> str:
        return kept_by_chance(self)


def share_of_calls(expected_placebos: float, calls: int) -> float:
    """Expected placebos as a share of the kept calls: at most 1, since by chance no more than all of them are kept."""
    return min(1.0, expected_placebos / calls)


def calls_represented(sampled: int, sample_share: float) -> float:
    """How many calls the sampled ones stand for; 0 of a run that samples none."""
    return sampled / sample_share if sampled else 0.0


def rate_of(counted: Sequence[CountedDocuments], represented: float, placebos_scored: int) -> Rate:
    """The rate that follows from the documents' counts; `represented` is as of `calls_represented`."""
    import numpy as np

    placebos = sum(group.placebos * group.documents for group in counted)
    calls = sum(group.calls * group.documents for group in counted)
    if not placebos_scored or not calls:
        return Rate(
            calls=calls,
            placebos=placebos,
            placebos_scored=placebos_scored,
            false_discovery_rate=None,
            rate_low=None,
            rate_high=None,
        )
    scale = represented / placebos_scored
    groups = [
        group
        for group in sorted(counted, key=lambda group: (group.placebos, group.calls))
        if group.documents > 0
    ]
    random = np.random.default_rng(SEED)
    weights = random.gamma(
        [group.documents for group in groups], size=(RESAMPLES, len(groups))
    )  # (resamples, groups)
    weighted_placebos = weights @ np.array([group.placebos for group in groups], dtype=float)  # (resamples,)
    weighted_calls = weights @ np.array([group.calls for group in groups], dtype=float)
    one_more = random.gamma(1.0, size=RESAMPLES)
    low = float(np.quantile(weighted_placebos / weighted_calls, 0.025)) * scale
    high = float(np.quantile((weighted_placebos + one_more) / weighted_calls, 0.975)) * scale
    rate = share_of_calls(placebos * scale, calls)
    return Rate(
        calls=calls,
        placebos=placebos,
        placebos_scored=placebos_scored,
        false_discovery_rate=rate,
        rate_low=min(low, rate),
        rate_high=min(max(high, rate), 1.0),
    )


def store_rates(connection: Connection, run: RunTool) -> dict[float, Rate]:
    """Count a tool's rates in a run, instead of what was counted before.

    Returns them by threshold, the lowest first. Empty for a run without placebos. Call it if the placebos of
    all documents are scored.
    """
    if run.placebo_recipe_id is None:
        return {}
    database.execute(connection, queries.placebos.forget_rates, run_id=run.run_id, tool=run.tool)
    # 1. What an earlier run counted, if one did, and what joined and left the corpus since.
    scope = what_to_count(connection, run.run_id, run.tool, "placebo_counts")
    scope["placebo_recipe_id"] = run.placebo_recipe_id
    thresholds = scope["thresholds"]
    rows = database.fetch_all(connection, queries.placebos.add_counts, **scope, at_least=thresholds[0])
    sample = database.fetch_one(connection, queries.placebos.sample_size, **scope)
    pool = database.fetch_one(
        connection, queries.placebo_pools.by_id, placebo_recipe_id=run.placebo_recipe_id
    )
    # 2. The rates.
    rates: dict[float, Rate] = {}
    for threshold in thresholds:
        counted = [
            CountedDocuments(r.placebos, r.calls, r.documents) for r in rows if r.threshold == threshold
        ]
        rate = rate_of(counted, calls_represented(sample.sampled, pool.sample_share), sample.scored)
        rates[threshold] = rate
        database.execute(
            connection,
            queries.placebos.insert_rates,
            run_id=run.run_id,
            tool=run.tool,
            threshold=threshold,
            placebo_recipe_id=run.placebo_recipe_id,
            calls_sampled=sample.sampled,
            **vars(rate),
        )
    return rates


def store_missing_rates(connection: Connection, run_id: str) -> None:
    """Count the rates of the tools whose check another run passed, so that this run has none.

    It stores nothing if documents are undone.
    """
    for run in load_run_tools(connection, run_id):
        if run.placebo_recipe_id is None or database.fetch_all(
            connection, queries.placebos.rates_of_run, **run.ids
        ):
            continue
        if any(unfinished_documents(connection, run)):
            logger.warning(
                "%s of run %s has no false-discovery rate: not all placebos are scored", run.tool, run_id
            )
        else:
            store_rates(connection, run)


@dataclass(frozen=True)
class HeldThreshold:
    """The lowest threshold of a tool that holds a false-discovery rate."""

    tool: str
    threshold: float | None
    """None if no threshold holds it."""
    calls: int = 0
    rate: Rate | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Interval:
    """The calls of a tool between two neighbouring placebos, by the gains of both."""

    lower_end: float
    """The gain of the placebo below, or prune_below."""
    placebos_at_lower_end: int
    """0 at prune_below."""
    calls: int
    """Above it, up to the next placebo."""
    smallest_call: float | None
    """What the least of these calls gains."""


def lowest_interval(intervals: Sequence[Interval], scale: float, largest_rate: float) -> int | None:
    """The number of the lowest interval at whose calls the rate is held, from below.

    It is None if it is held nowhere. Looking at every threshold finds one at which few placebos happen to lie
    above. So one placebo is added to those above, as in the selection by knockoffs (Barber and Candes, 2015,
    "knockoff+"): the expected share of useless calls is then at most `largest_rate`, if a useless call lies
    above a threshold as often as its placebo. No threshold counts as a share of 0: among those that get one
    the share is higher (benchmarks/thresholds.py). `scale` is the number of calls that a sampled placebo
    represents.
    """
    calls = sum(interval.calls for interval in intervals)
    placebos = sum(interval.placebos_at_lower_end for interval in intervals)
    for number, interval in enumerate(intervals):
        placebos -= interval.placebos_at_lower_end
        if interval.calls and (placebos + 1) * scale <= largest_rate * calls:
            return number
        calls -= interval.calls
    return None


def lowest_threshold(connection: Connection, run: RunTool, largest_rate: float) -> HeldThreshold:
    """The lowest threshold at which a tool's rate in a run is at most `largest_rate` (`lowest_interval`).

    The rate falls as a threshold falls, except when it passes a placebo. So it is looked at just above each
    placebo, and at prune_below: thresholds below are not computed.
    """
    if run.placebo_recipe_id is None:
        return HeldThreshold(
            run.tool, None, why_not="no placebos: a run that asks for them scores them alone"
        )
    scope = what_to_count(connection, run.run_id, run.tool, "placebo_counts")
    scope |= {"base": None, "base_run_id": None, "placebo_recipe_id": run.placebo_recipe_id}
    sample = database.fetch_one(connection, queries.placebos.sample_size, **scope)
    pool = database.fetch_one(
        connection, queries.placebo_pools.by_id, placebo_recipe_id=run.placebo_recipe_id
    )
    if not sample.scored:
        return HeldThreshold(
            run.tool, None, why_not="no placebo is possible: no call of another text has another result"
        )
    represented = calls_represented(sample.sampled, pool.sample_share)
    rows = database.fetch_all(
        connection, queries.placebos.thresholds, **scope, prune_below=run.choices.prune_below
    )
    intervals = [Interval(**row._asdict()) for row in rows]
    if not any(interval.calls for interval in intervals):
        return HeldThreshold(run.tool, None, why_not=f"no call gains {run.choices.prune_below:g}")
    scale = represented / sample.scored
    number = lowest_interval(intervals, scale, largest_rate)
    if number is None:
        fewest = math.ceil(scale / largest_rate) if largest_rate else 0
        enough = f": {fewest} calls above every placebo would" if fewest else ""
        return HeldThreshold(run.tool, None, why_not=f"no threshold holds it{enough}")
    chosen = intervals[number]
    assert chosen.smallest_call is not None  # noqa: S101 - it has calls
    threshold = shortest_between(
        chosen.lower_end, chosen.smallest_call, is_open=chosen.placebos_at_lower_end > 0
    )
    counted = database.fetch_all(connection, queries.placebos.counts_at, **scope, threshold=threshold)
    documents = [CountedDocuments(**group._asdict()) for group in counted]
    return HeldThreshold(
        run.tool,
        threshold,
        sum(interval.calls for interval in intervals[number:]),
        rate_of(documents, represented, sample.scored),
    )


def shortest_between(low: float, high: float, *, is_open: bool) -> float:
    """The number with the fewest decimals from `low` (beyond it, where `is_open`) to `high`."""
    for digits in range(1, 16):
        number = round(math.ceil(low * 10.0**digits) / 10.0**digits, digits)
        if number == low and is_open:
            number = round(number + 10.0**-digits, digits)
        if low <= number <= high and not (is_open and number == low):
            return number
    return high
