"""The false-discovery rate and its interval, worked out by hand."""

import pytest

from toolformer_ops.runs.placebo_rates import CountedDocuments, Rate, rate_of, shortest_between


def test_the_interval_of_independent_counts_is_that_of_poisson_counts() -> None:
    # 97.5 % quantiles of Poisson means (Garwood): 3.69 for a count of 0; 1.62 to 8.77... for 4: 1.09 and 10.24.
    calls = CountedDocuments(0, 1, 10_000)
    none = rate_of([calls], 1.0)
    assert (none.false_discovery_rate, none.rate_low) == (0.0, 0.0)
    assert none.rate_high == pytest.approx(3.69 / 10_000, rel=0.08)
    four = rate_of([calls, CountedDocuments(1, 0, 4)], 1.0)
    assert four.false_discovery_rate == pytest.approx(4 / 10_000)
    assert four.rate_low == pytest.approx(1.09 / 10_000, rel=0.08)
    assert four.rate_high == pytest.approx(10.24 / 10_000, rel=0.08)


def test_a_document_with_many_placebos_counts_as_one() -> None:
    together = rate_of([CountedDocuments(0, 1, 1000), CountedDocuments(40, 0, 1)], 1.0)
    apart = rate_of([CountedDocuments(0, 1, 1000), CountedDocuments(1, 0, 40)], 1.0)
    assert together.false_discovery_rate == apart.false_discovery_rate == pytest.approx(0.04)
    assert together.rate_high is not None
    assert apart.rate_high is not None
    assert together.rate_high > 2 * apart.rate_high


def test_a_sample_stands_for_all_calls_and_nothing_has_no_rate() -> None:
    counted = [CountedDocuments(1, 4, 5), CountedDocuments(0, 2, 10)]
    assert rate_of(counted, 1.0).false_discovery_rate == pytest.approx(5 / 40)
    assert rate_of(counted, 4.0).false_discovery_rate == pytest.approx(20 / 40)
    one, four = rate_of(counted, 1.0), rate_of(counted, 4.0)
    assert one.rate_low is not None
    assert one.rate_high is not None
    assert (four.rate_low, four.rate_high) == pytest.approx((4 * one.rate_low, 4 * one.rate_high))
    assert four == rate_of(counted[::-1], 4.0) == rate_of([*counted, CountedDocuments(1, 0, 0)], 4.0)  # seeded
    assert rate_of(counted, None) == Rate(40, 5, None, None, None)
    assert rate_of([CountedDocuments(2, 0, 1)], 1.0) == Rate(0, 2, None, None, None)
    assert rate_of([], 1.0) == Rate(0, 0, None, None, None)


@pytest.mark.parametrize(
    ("low", "high", "is_open", "found"),
    [
        (0.5, 0.9, False, 0.5),
        (0.5, 0.9, True, 0.6),
        (0.612, 0.618, True, 0.613),
        (1.0, 1.004, True, 1.001),
        (0.7131, 0.72, True, 0.72),
    ],
)
def test_a_threshold_is_written_with_as_few_decimals_as_it_needs(
    low: float, high: float, is_open: bool, found: float
) -> None:
    assert shortest_between(low, high, is_open=is_open) == found
