"""The false-discovery rate and its interval, worked out by hand."""

import itertools
import math
import statistics

import numpy as np
import pytest

from toolformer_ops.runs.placebo_rates import (
    CountedDocuments,
    Interval,
    Rate,
    lowest_interval,
    rate_of,
    shortest_between,
)


def test_the_interval_of_independent_counts_is_that_of_poisson_counts() -> None:
    # 97.5 % quantiles of Poisson means (Garwood): 3.69 for a count of 0; 1.62 to 8.77... for 4: 1.09 and
    # 10.24.
    calls = CountedDocuments(0, 1, 10_000)
    none = rate_of([calls], 1.0, 1)
    assert (none.false_discovery_rate, none.rate_low) == (0.0, 0.0)
    assert none.rate_high == pytest.approx(3.69 / 10_000, rel=0.08)
    four = rate_of([calls, CountedDocuments(1, 0, 4)], 1.0, 1)
    assert four.false_discovery_rate == pytest.approx(4 / 10_000)
    assert four.rate_low == pytest.approx(1.09 / 10_000, rel=0.08)
    assert four.rate_high == pytest.approx(10.24 / 10_000, rel=0.08)


def test_a_document_with_many_placebos_counts_as_one() -> None:
    together = rate_of([CountedDocuments(0, 1, 1000), CountedDocuments(40, 0, 1)], 100.0, 100)
    apart = rate_of([CountedDocuments(0, 1, 1000), CountedDocuments(1, 0, 40)], 100.0, 100)
    assert together.false_discovery_rate == apart.false_discovery_rate == pytest.approx(0.04)
    assert (together.rate_high or 0.0) > 2 * (apart.rate_high or 1.0)


def test_a_sample_stands_for_all_calls() -> None:
    counted = [CountedDocuments(1, 4, 5), CountedDocuments(0, 2, 10)]
    one, four = (
        rate_of(counted, 40.0, 40),
        rate_of(counted, 80.0, 20),
    )  # a placebo represents one call, or four
    assert one.false_discovery_rate == pytest.approx(5 / 40)
    assert four.false_discovery_rate == pytest.approx(20 / 40)
    low, high = one.rate_low or 0.0, one.rate_high or 0.0
    assert (four.rate_low, four.rate_high) == pytest.approx((4 * low, min(4 * high, 1.0)))
    assert four == rate_of(counted[::-1], 80.0, 20)  # seeded


def test_without_placebos_or_calls_no_rate_is_known() -> None:
    counted = [CountedDocuments(1, 4, 5), CountedDocuments(0, 2, 10)]
    assert rate_of(counted, 40.0, 0) == Rate(40, 5, 0, None, None, None)
    assert rate_of([], 0.0, 0) == Rate(0, 0, 0, None, None, None)


def test_a_rate_is_a_share_also_where_more_placebos_are_expected_than_calls_are_kept() -> None:
    # Four calls are kept, and of 40 sampled placebos 5, each of which represents one call: 5 / 4.
    rate = rate_of([CountedDocuments(1, 0, 5), CountedDocuments(0, 1, 4)], 40.0, 40)
    assert (rate.false_discovery_rate, rate.rate_high) == (1.0, 1.0)
    assert 0 < (rate.rate_low or 0.0) < 1


def test_a_rate_that_is_not_known_says_why() -> None:
    assert str(Rate(0, 6, 30, None, None, None)) == "no kept call"
    assert str(Rate(4, 0, 0, None, None, None)) == "no placebo possible"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, "cannot be said yet: 40 placebos"),
        (0.0, 0.9, "0 % (0 to 90 %), 40 placebos"),
        (0.01, 1.0, "0 % (1 to 100 %), 40 placebos"),
    ],
)
def test_an_interval_from_nothing_to_all_says_nothing(low: float, high: float, expected: str) -> None:
    assert str(Rate(2, 0, 40, 0.0, low, high)) == expected


def test_a_threshold_is_written_with_as_few_decimals_as_it_needs() -> None:
    assert shortest_between(0.5, 0.9, is_open=False) == 0.5
    assert shortest_between(0.5, 0.9, is_open=True) == 0.6
    assert shortest_between(1.0, 1.004, is_open=True) == 1.001
    assert shortest_between(0.7131, 0.72, is_open=True) == 0.72


def intervals_between(calls: np.ndarray, placebos: np.ndarray) -> list[Interval]:
    """The intervals of these reductions, as Postgres counts them."""
    ends = [-math.inf, *sorted(placebos)]
    intervals = []
    for number, (low, high) in enumerate(itertools.pairwise([*ends, math.inf])):
        inside = calls[(calls > low) & (calls <= high)]
        smallest = float(inside.min()) if len(inside) else None
        intervals.append(Interval(max(low, -9.0), int(number > 0), len(inside), smallest))
    return intervals


def useless_share(calls: int, good_share: float, largest_rate: float, seed: int) -> float:
    """Of the calls above the threshold that is taken, the share that is no better than its placebo."""
    random = np.random.default_rng(seed)
    is_good = random.random(calls) < good_share
    reductions = np.where(is_good, random.normal(4.0, 1.0, calls), random.normal(0.0, 1.0, calls))
    intervals = intervals_between(reductions, random.normal(0.0, 1.0, calls))
    number = lowest_interval(intervals, 1.0, largest_rate)
    if number is None:
        return 0.0
    smallest = intervals[number].smallest_call
    assert smallest is not None
    above = reductions >= smallest
    return float((above & ~is_good).sum() / above.sum())


@pytest.mark.parametrize("good_share", [0.05, 0.25, 0.5])
def test_the_threshold_that_is_taken_holds_the_rate_in_the_mean(good_share: float) -> None:
    shares = [useless_share(120, good_share, 0.1, seed) for seed in range(200)]
    assert statistics.fmean(shares) <= 0.1


@pytest.mark.parametrize(
    ("intervals", "number"),
    [
        ([Interval(0.0, 0, 12, 0.1)], 0),  # no placebo, one added: 1 of 12
        ([Interval(0.0, 0, 9, 0.1)], None),  # 1 of 9
        ([Interval(0.0, 0, 5, 0.1), Interval(0.5, 1, 12, 0.6)], 1),  # 2 of 17, above the placebo 1 of 12
        ([Interval(0.0, 0, 9, 0.1), Interval(0.5, 1, 12, 0.6)], 0),  # 2 of 21
        ([Interval(0.0, 0, 0, None), Interval(0.5, 1, 20, 0.6)], 1),  # an interval without calls
        ([], None),
    ],
)
def test_one_placebo_is_added_to_those_above_a_threshold(
    intervals: list[Interval], number: int | None
) -> None:
    assert lowest_interval(intervals, 1.0, 0.1) == number
