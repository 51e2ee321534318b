"""`python -m benchmarks.thresholds`: how many calls above a given threshold are useless.

Worlds are drawn in which it is known which calls are good. What a useless call saves and what a placebo saves
have the same normal distribution; a good call saves more by `separation` of its standard deviations. Prints
the table of docs/placebo.md. Stores nothing and needs no model.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import typer

from benchmarks.command_line import run_app
from benchmarks.report import table
from toolformer_ops.runs.placebo_rates import Interval, lowest_interval

LARGEST_RATE = 0.1
PLACEBO_A_CALL = 1.0
WORLDS = 2000
CALLS = (120, 1000)
SEPARATIONS = (1.5, 4.0)
PERCENT_GOOD = (5, 25, 50)

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class Kind:
    """What the worlds of one row have in common."""

    calls: int
    """Scored calls of a tool, each with a placebo."""
    percent_good: int
    """The share of good calls, 0 to 100."""
    separation: float
    """What a good call saves beyond a useless one, in standard deviations of either."""


def intervals_between(reductions: Sequence[float], placebos: Sequence[float]) -> list[Interval]:
    """The intervals of these reductions, as sql/queries/placebos.sql counts them without `prune_below`."""
    ordered = np.sort(reductions)
    ends = [-math.inf, *sorted(placebos)]
    first_above = [*np.searchsorted(ordered, ends, side="right").tolist(), len(ordered)]
    intervals = []
    for number, (first, end) in enumerate(itertools.pairwise(first_above)):
        intervals.append(
            Interval(
                lower_end=ends[number],
                placebos_at_lower_end=int(number > 0),
                calls=end - first,
                smallest_call=float(ordered[first]) if end > first else None,
            )
        )
    return intervals


def useless_share(kind: Kind, seed: int) -> float | None:
    """The share of useless calls above the threshold that one world is given; None if it is given none."""
    random = np.random.default_rng([kind.calls, kind.percent_good, seed])
    is_good = random.random(kind.calls) < kind.percent_good / 100
    reductions = random.normal(0.0, 1.0, kind.calls) + kind.separation * is_good  # (call,)
    intervals = intervals_between(reductions.tolist(), random.normal(0.0, 1.0, kind.calls).tolist())
    number = lowest_interval(intervals, PLACEBO_A_CALL, LARGEST_RATE)
    if number is None:
        return None
    is_kept = reductions > intervals[number].lower_end
    return float((is_kept & ~is_good).sum() / is_kept.sum())


def percent(share: float) -> str:
    """A share as the table shows it."""
    return f"{100 * share:.1f} %"


def row(kind: Kind, worlds: int = WORLDS) -> dict[str, str]:
    """The table's row of a kind of worlds; in the last column a world without a threshold counts as 0."""
    outcomes = [useless_share(kind, seed) for seed in range(worlds)]
    shares = [share for share in outcomes if share is not None]
    return {
        "calls": f"{kind.calls:,}",
        "good": f"{kind.percent_good} %",
        "a good call saves more by": f"{kind.separation:g} sd",
        "worlds with a threshold": percent(len(shares) / worlds),
        "useless calls above it": percent(statistics.fmean(shares)),
        "more than 10 % useless": percent(sum(share > LARGEST_RATE for share in shares) / len(shares)),
        "useless calls in all worlds": percent(sum(shares) / worlds),
    }


@app.command()
def thresholds() -> None:
    """Print the share of useless calls above a threshold for each kind of worlds; takes half a minute."""
    kinds = itertools.starmap(Kind, itertools.product(CALLS, PERCENT_GOOD, SEPARATIONS))
    typer.echo(table([row(kind) for kind in kinds]))


if __name__ == "__main__":
    run_app(app)
