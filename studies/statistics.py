"""Means over seeds with their intervals, and differences of arms that are paired by seed and sentence.

Two intervals of 95 % stand beside one another. Student's is over the seeds' means: how another seed would come out;
with two or three seeds it is wide, as it should be. The bootstrap draws seeds with replacement, and within each the
sentences (a cluster bootstrap in two stages; Davison and Hinkley 1997, section 3.8): it also uses how many sentences
a seed has, and is too narrow where seeds are few.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Counts = NDArray[np.float32]

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
class Estimate:
    """A mean over seeds, with both intervals."""

    student: Interval
    bootstrap: Interval

    def __str__(self) -> str:
        """The mean, Student's interval and the bootstrap's."""
        student, bootstrap = self.student, self.bootstrap
        intervals = f"{student.low:.3f} to {student.high:.3f}; {bootstrap.low:.3f} to {bootstrap.high:.3f}"
        return f"{student.mean:.3f} ({intervals})"

    def within(self, least: float, most: float) -> "Estimate":
        """Both intervals cut to what a share can be."""
        return Estimate(self.student.within(least, most), self.bootstrap.within(least, most))


@dataclass(frozen=True)
class Share:
    """Of each seed, of each of its texts: how many calls have something, of how many."""

    parts: "tuple[Counts, ...]"
    wholes: "tuple[Counts, ...]"

    def in_seeds(self, seeds: Sequence[int]) -> "Share":
        """The same of some of the seeds, by their index."""
        return Share(tuple(self.parts[seed] for seed in seeds), tuple(self.wholes[seed] for seed in seeds))

    @property
    def by_seed(self) -> "Numbers":
        """The share in each seed; nan where it is of no call."""
        import numpy as np

        parts = np.array([part.sum() for part in self.parts])
        wholes = np.array([whole.sum() for whole in self.wholes])
        return _divided(parts, wholes)

    @property
    def resampled(self) -> "Numbers":
        """The mean over seeds of each resample of seeds, and within these of texts."""
        import numpy as np

        draws = _draws(tuple(len(whole) for whole in self.wholes))
        shares = np.empty(draws.seeds.shape)
        for number, counts in enumerate(draws.texts):
            shares[draws.seeds == number] = _divided(
                counts @ self.parts[number], counts @ self.wholes[number]
            )
        there = ~np.isnan(shares)
        return _divided(np.where(there, shares, 0.0).sum(axis=1), there.sum(axis=1))


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


def paired_difference(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Estimate:
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
    return Estimate(student(means), Interval(math.fsum(means) / len(means), float(low), float(high)))


def share(of: Share, less: Share | None = None) -> Estimate:
    """A share, mean over seeds, or its difference from another one of the same texts.

    Only seeds count in which each share is of at least one call.
    """
    import numpy as np

    # 1. The seeds that have all shares.
    has_calls = ~np.isnan(of.by_seed)
    if less is not None:
        has_calls &= ~np.isnan(less.by_seed)
    seeds = np.flatnonzero(has_calls).tolist()
    if not seeds:
        nothing = Interval(math.nan, math.nan, math.nan)
        return Estimate(nothing, nothing)
    # 2. The share in each, and in each resample; a resample in which a share is of no call says nothing.
    of = of.in_seeds(seeds)
    by_seed, resampled = of.by_seed, of.resampled
    if less is not None:
        less = less.in_seeds(seeds)
        by_seed, resampled = by_seed - less.by_seed, resampled - less.resampled
    low, high = np.percentile(resampled[~np.isnan(resampled)], [2.5, 97.5])
    return Estimate(student(by_seed.tolist()), Interval(float(by_seed.mean()), float(low), float(high)))


@dataclass(frozen=True)
class _Draws:
    """Seeds and texts as a bootstrap draws them, the same for all shares, so that their differences are paired."""

    seeds: "NDArray[np.int64]"
    """By resample, the seeds that are drawn."""
    texts: "list[NDArray[np.float32]]"
    """By seed, for each time that it is drawn, how often each of its texts is."""


@functools.lru_cache(maxsize=1)
def _draws(texts: tuple[int, ...]) -> _Draws:
    import numpy as np

    generator = np.random.default_rng(0)
    seeds = generator.integers(0, len(texts), (RESAMPLES, len(texts)))
    counts = []
    for number, of_seed in enumerate(texts):
        times = int((seeds == number).sum())
        drawn = generator.integers(0, of_seed, (times, of_seed)) + of_seed * np.arange(times)[:, None]
        counted = np.bincount(drawn.ravel(), minlength=times * of_seed)
        counts.append(counted.reshape(times, of_seed).astype(np.float32))
    return _Draws(seeds, counts)


def _divided(parts: "NDArray[Any]", wholes: "NDArray[Any]") -> "Numbers":
    """Each part of its whole; nan of a whole that is 0."""
    import numpy as np

    shares = np.full(len(parts), np.nan)
    np.divide(parts, wholes, out=shares, where=wholes > 0)
    return shares
