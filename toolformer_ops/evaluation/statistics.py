"""Intervals and tests of the evaluations: pure numbers, no model.

A share has Wilson's score interval (scipy). Two variants on the same inputs are compared by those inputs that
only one of them gets right. The difference of their shares has Newcombe's interval for paired shares, which
no library has (Statistics in Medicine 17, 1998, method 10: Wilson's limits of both, and the correlation of
the two with its continuity correction); McNemar's exact test is scipy's binomial test with a half. How large
a difference that test can show follows from its exact power (Duffy, Biometrics 40, 1984): over all numbers of
inputs that only one gets right, and all splits of them. A perplexity, which is no mean of independent inputs,
has a percentile bootstrap over texts, with a seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000
SIGNIFICANCE = 0.05
POWER = 0.8


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
    """McNemar's exact test, two-sided: the chance of so uneven a split if either were as likely to be right
    alone."""
    detectable: float | None
    """The smallest true difference that so many inputs show with 80 % power at the 5 % level, where as large
    a share of them as here is right for only one of the two; None if they are too few for any."""


def wilson_interval(successes: int, trials: int) -> Interval:
    """Wilson's 95 % interval of a share; all of [0, 1] if nothing was tried."""
    from scipy.stats import binomtest

    if trials == 0:
        return Interval(0.0, 1.0)
    interval = binomtest(successes, trials).proportion_ci(confidence_level=0.95, method="wilson")
    return Interval(float(interval.low), float(interval.high))


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Twice the smaller tail of the binomial distribution with a half, at most 1."""
    from scipy.stats import binomtest

    trials = only_first + only_second
    return float(binomtest(only_first, trials, 0.5).pvalue) if trials else 1.0


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
        difference=(only_first - only_second) / len(pairs),
        interval=newcombe_interval(both, only_first, only_second, neither),
        only_first=only_first,
        only_second=only_second,
        p_value=mcnemar_p_value(only_first, only_second),
        detectable=detectable_difference(len(pairs), (only_first + only_second) / len(pairs)),
    )


def detectable_difference(inputs: int, discordant: float) -> float | None:
    """The smallest difference of two paired shares that McNemar's exact test shows with `POWER`.

    `POWER` is a probability. `discordant` is the share of the inputs that only one of the two gets right; it
    is at least the difference itself, and is raised to it if it is given smaller. None if even a difference
    of 1 is not shown, with fewer than 6 inputs.
    """
    if mcnemar_power(inputs, 1.0, 1.0) < POWER:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if mcnemar_power(inputs, middle, max(discordant, middle)) < POWER:
            low = middle
        else:
            high = middle
    return high


def mcnemar_power(inputs: int, difference: float, discordant: float) -> float:
    """The probability that McNemar's exact test shows a true difference of two paired shares.

    The test is at the 5 % level. Each input is right for only one of the two with the probability
    `discordant`, which is at least `difference` and above 0.
    """
    import numpy as np
    from scipy.stats import binom

    counts = np.arange(inputs + 1)  # of inputs that only one gets right
    # The test rejects if the smaller side has at most so many; -1 if it never does.
    largest = binom.ppf(SIGNIFICANCE / 2, counts, 0.5)
    largest -= binom.cdf(largest, counts, 0.5) > SIGNIFICANCE / 2
    first_alone = min(1.0, (1 + difference / discordant) / 2)  # the share of these that the first gets right
    shown = binom.cdf(largest, counts, first_alone) + binom.cdf(largest, counts, 1 - first_alone)
    return float((binom.pmf(counts, inputs, discordant) * shown).sum())


def newcombe_interval(both: int, only_first: int, only_second: int, neither: int) -> Interval:
    """Newcombe's 95 % interval of the difference of two paired shares, from the four counts of inputs."""
    inputs = both + only_first + only_second + neither
    p, q = (both + only_first) / inputs, (both + only_second) / inputs
    first_interval, second_interval = (
        wilson_interval(both + only_first, inputs),
        wilson_interval(both + only_second, inputs),
    )
    # The correlation of the two; its numerator is moved towards 0 by half the inputs if it is positive.
    margins = (both + only_first) * (only_second + neither) * (both + only_second) * (only_first + neither)
    numerator: float = both * neither - only_first * only_second
    if numerator > 0:
        numerator = max(0.0, numerator - inputs / 2)
    correlation = numerator / math.sqrt(margins) if margins else 0.0

    def reach(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one**2 - 2 * correlation * one * other + other**2))

    return Interval(
        max(-1.0, p - q - reach(p - first_interval.low, second_interval.high - q)),
        min(1.0, p - q + reach(first_interval.high - p, q - second_interval.low)),
    )


def bootstrap_perplexity(nats: Sequence[float], units: Sequence[int], seed: int = 0) -> Interval:
    """95 % percentile interval of exp(sum of nats / sum of units).

    Texts are drawn with replacement `RESAMPLES` times. `nats` and `units` (tokens or bytes) are of the same
    texts in the same order. One text alone says nothing of others: its interval is that perplexity alone.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    losses, sizes = np.asarray(nats, dtype=float), np.asarray(units, dtype=float)
    drawn = (generator.integers(0, len(losses), len(losses)) for _ in range(RESAMPLES))
    perplexities = np.array([np.exp(losses[texts].sum() / sizes[texts].sum()) for texts in drawn])
    low, high = np.percentile(perplexities, [2.5, 97.5])
    return Interval(float(low), float(high))
