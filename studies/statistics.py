"""Means over seeds with their intervals, and differences of arms that are paired by seed and sentence.

Two intervals of 95 % stand beside one another. Student's is over the seeds' means: how another seed would come out;
with two or three seeds it is wide, as it should be. The bootstrap draws seeds with replacement, and within each the
sentences (a cluster bootstrap in two stages; Davison and Hinkley 1997, section 3.8): it also uses how many sentences
a seed has, and is too narrow where seeds are few.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A mean with its interval of 95 %."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """With three digits."""
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"

    def within(self, least: float, most: float) -> "Interval":
        """The interval cut to what a share can be."""
        return Interval(self.mean, max(least, self.low), min(most, self.high))


@dataclass(frozen=True)
class Difference:
    """A difference of two arms over seeds."""

    student: Interval
    bootstrap: Interval


def student(values: Sequence[float]) -> Interval:
    """Mean, and Student's interval of it; the interval of one value is all numbers."""
    from scipy.stats import ttest_1samp

    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    if len(set(values)) == 1:
        return Interval(mean, mean, mean)
    interval = ttest_1samp(values, mean).confidence_interval(0.95)
    return Interval(mean, float(interval.low), float(interval.high))


def paired_difference(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Difference:
    """First minus second, mean over seeds of the mean over sentences; both by seed, by sentence.

    Raises:
        ValueError: they are not of the same seeds and sentences.
    """
    import numpy as np

    differences = []
    for of_first, of_second in zip(first, second, strict=True):
        pairs = zip(of_first, of_second, strict=True)
        differences.append(np.array([float(one) - float(other) for one, other in pairs]))
    means = [float(of_seed.mean()) for of_seed in differences]
    generator = np.random.default_rng(0)
    seeds = generator.integers(0, len(differences), (RESAMPLES, len(differences)))
    # A resample of a seed's sentences: its mean, drawn anew for each time that the seed is drawn.
    resampled = np.empty(seeds.shape)
    for number, of_seed in enumerate(differences):
        drawn = seeds == number
        places = generator.integers(0, len(of_seed), (int(drawn.sum()), len(of_seed)))
        resampled[drawn] = of_seed[places].mean(axis=1)
    low, high = np.percentile(resampled.mean(axis=1), [2.5, 97.5])
    return Difference(student(means), Interval(math.fsum(means) / len(means), float(low), float(high)))
