"""What docs/placebo.md says of the calls above a threshold is what the simulation finds."""

import statistics

import pytest

from benchmarks.report import table
from benchmarks.thresholds import LARGEST_RATE, Kind, intervals_between, row, useless_share
from toolformer_ops.config import REPOSITORY
from toolformer_ops.runs.placebo_rates import Interval

PAGE = REPOSITORY / "docs" / "placebo.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [Kind(120, 5, 1.5), Kind(120, 5, 4.0), Kind(120, 25, 1.5), Kind(120, 50, 4.0)],
    ids=str,
)
def test_the_page_has_the_row_of_a_kind_of_worlds(kind):
    heading, _, numbers = table([row(kind)]).splitlines()
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line in (heading, numbers)] == [heading, numbers]


@pytest.mark.parametrize("percent_good", [0, 5, 25, 50])
def test_the_rate_holds_on_average_over_all_worlds(percent_good):
    kind = Kind(120, percent_good, 4.0)
    shares = [useless_share(kind, seed) or 0.0 for seed in range(200)]
    assert statistics.fmean(shares) <= LARGEST_RATE


def test_a_call_equal_to_a_placebo_lies_below_it():
    # Of the calls 1, 2, 2 and 5 with the placebos 2 and 3: three up to 2, none up to 3, one beyond.
    intervals = intervals_between([1.0, 2.0, 2.0, 5.0], [3.0, 2.0])
    assert intervals == [
        Interval(lower_end=float("-inf"), placebos_at_lower_end=0, calls=3, smallest_call=1.0),
        Interval(lower_end=2.0, placebos_at_lower_end=1, calls=0, smallest_call=None),
        Interval(lower_end=3.0, placebos_at_lower_end=1, calls=1, smallest_call=5.0),
    ]
