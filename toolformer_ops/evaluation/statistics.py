"""Intervals and tests of the evaluations: pure numbers, no model.

A share has Wilson's score interval. Two variants on the same inputs are compared by those inputs that only one of them gets right:
the difference of their shares with Newcombe's interval for paired shares (Statistics in Medicine 17, 1998, method 10: Wilson's
limits of both, and the correlation of the two with its continuity correction), and McNemar's exact test. A perplexity, which is no
mean of independent inputs, has a percentile bootstrap over texts, with a seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference:
    """How much larger the first of two shares on the same inputs is."""

    difference: float
    """First minus second, in [-1, 1]."""
    interval: Interval
    only_first: int
    """Inputs that only the first gets right."""
    only_second: int
    p_value: float
    """McNemar's exact test, two-sided: the chance of so uneven a split if either were as likely to be right alone."""


def wilson_interval(successes: int, trials: int) -> Interval:
    """Wilson's 95 % interval of a share; all of [0, 1] where nothing was tried."""
    if trials == 0:
        return Interval(0.0, 1.0)
    share = successes / trials
    shrink = 1 + Z_95**2 / trials
    middle = (share + Z_95**2 / (2 * trials)) / shrink
    half = Z_95 / shrink * math.sqrt(share * (1 - share) / trials + Z_95**2 / (4 * trials**2))
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == trials else min(1.0, middle + half)
    return Interval(low, high)


def paired_difference(first: Sequence[bool], second: Sequence[bool]) -> PairedDifference:
    """Compare who got what right on the same inputs, in the same order.

    Raises:
        ValueError: there are no inputs, or not equally many.
    """
    pairs = list(zip(first, second, strict=True))
    if not pairs:
        raise ValueError("expected inputs to compare, found none")
    both, only_first = pairs.count((True, True)), pairs.count((True, False))
    only_second, neither = pairs.count((False, True)), pairs.count((False, False))
    return PairedDifference(
        (only_first - only_second) / len(pairs),
        _newcombe_interval(both, only_first, only_second, neither),
        only_first,
        only_second,
        mcnemar_p_value(only_first, only_second),
    )


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Twice the smaller tail of the binomial distribution with a half, at most 1."""
    trials = only_first + only_second
    tail = ways = 1  # ways in which `count` of `trials` may fall to one side; whole numbers, so nothing is rounded
    for count in range(min(only_first, only_second)):
        ways = ways * (trials - count) // (count + 1)
        tail += ways
    p_value: float = 2 * tail / 2**trials
    return min(1.0, p_value)


def _newcombe_interval(both: int, only_first: int, only_second: int, neither: int) -> Interval:
    inputs = both + only_first + only_second + neither
    first, second = both + only_first, both + only_second
    p, q = first / inputs, second / inputs
    of_first, of_second = wilson_interval(first, inputs), wilson_interval(second, inputs)
    correlation = _corrected_correlation(both, only_first, only_second, neither)

    def reach(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one**2 - 2 * correlation * one * other + other**2))

    return Interval(
        max(-1.0, p - q - reach(p - of_first.low, of_second.high - q)),
        min(1.0, p - q + reach(of_first.high - p, q - of_second.low)),
    )


def _corrected_correlation(both: int, only_first: int, only_second: int, neither: int) -> float:
    """Correlation of the two, its numerator moved towards 0 by half the inputs where it is positive."""
    margins = (both + only_first) * (only_second + neither) * (both + only_second) * (only_first + neither)
    if margins == 0:
        return 0.0
    together = both * neither - only_first * only_second
    inputs = both + only_first + only_second + neither
    return (max(0.0, together - inputs / 2) if together > 0 else together) / math.sqrt(margins)


def bootstrap_perplexity(nats: Sequence[float], units: Sequence[int], seed: int = 0) -> Interval:
    """95 % percentile interval of exp(sum of nats / sum of units), texts drawn with replacement `RESAMPLES` times.

    `nats` and `units` (tokens or bytes) are of the same texts in the same order. One text alone says nothing of others: its
    interval is its own perplexity.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    losses, sizes = np.asarray(nats, dtype=float), np.asarray(units, dtype=float)
    drawn = (generator.integers(0, len(losses), len(losses)) for _ in range(RESAMPLES))
    found = np.array([np.exp(losses[texts].sum() / sizes[texts].sum()) for texts in drawn])
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(float(low), float(high))
