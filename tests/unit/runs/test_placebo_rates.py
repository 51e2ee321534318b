"""The false-discovery rate and its interval, worked out by hand."""

import pytest

from toolformer_ops.runs.placebo_rates import (
    CountedDocuments,
    Interval,
    Rate,
    lowest_interval,
    rate_of,
    shortest_between,
)


def test_the_interval_of_independent_counts_is_that_of_poisson_counts():
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


def test_a_document_with_many_placebos_counts_as_one():
    together = rate_of([CountedDocuments(0, 1, 1000), CountedDocuments(40, 0, 1)], 100.0, 100)
    apart = rate_of([CountedDocuments(0, 1, 1000), CountedDocuments(1, 0, 40)], 100.0, 100)
    assert together.false_discovery_rate == apart.false_discovery_rate == pytest.approx(0.04)
    assert (together.rate_high or 0.0) > 2 * (apart.rate_high or 1.0)


def test_a_sample_stands_for_all_calls():
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


def test_without_placebos_or_calls_no_rate_is_known():
    counted = [CountedDocuments(1, 4, 5), CountedDocuments(0, 2, 10)]
    assert rate_of(counted, 40.0, 0) == Rate(40, 5, 0, None, None, None)
    assert rate_of([], 0.0, 0) == Rate(0, 0, 0, None, None, None)


def test_a_rate_is_a_share_also_where_more_placebos_are_expected_than_calls_are_kept():
    # Four calls are kept, and of 40 sampled placebos 5, each of which represents one call: 5 / 4.
    rate = rate_of([CountedDocuments(1, 0, 5), CountedDocuments(0, 1, 4)], 40.0, 40)
    assert (rate.false_discovery_rate, rate.rate_high) == (1.0, 1.0)
    assert 0 < (rate.rate_low or 0.0) < 1


def test_a_rate_that_is_not_known_says_why():
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
def test_an_interval_from_nothing_to_all_says_nothing(low, high, expected):
    assert str(Rate(2, 0, 40, 0.0, low, high)) == expected


def test_a_threshold_is_written_with_as_few_decimals_as_it_needs():
    assert shortest_between(0.5, 0.9, is_open=False) == 0.5
    assert shortest_between(0.5, 0.9, is_open=True) == 0.6
    assert shortest_between(1.0, 1.004, is_open=True) == 1.001
    assert shortest_between(0.7131, 0.72, is_open=True) == 0.72


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
def test_one_placebo_is_added_to_those_above_a_threshold(intervals, number):
    assert lowest_interval(intervals, 1.0, 0.1) == number
