"""The judge of the experiments on yield: places, placebos, thresholds that hold a false-discovery rate."""

from typing import Any

import pytest

from benchmarks.yields import (
    Scored,
    Setting,
    Yield,
    best_places,
    drawn_placebos,
    false_discovery_rate,
    lowest_threshold,
    next_number,
    times_as_many,
    yields,
)
from toolformer_ops.call_syntax import Call
from toolformer_ops.records import CallPosition


def call(
    reduction: float, placebo: float | None, token: int = 3, first_sample: int = 0, *, input_only_after: bool = False
) -> Scored:
    other = None if placebo is None else "12"
    return Scored("Calculator|a", "demo", token, first_sample, "7", reduction, other, placebo, input_only_after)


def test_the_best_places_are_the_likeliest_or_those_where_a_call_can_save_most() -> None:
    places = [(CallPosition(1, 4, 0.5), 0.6), (CallPosition(2, 9, 0.2), 4.0), (CallPosition(3, 12, 0.9), 0.4)]
    assert best_places(places, 1, "probability") == [1]  # the likeliest of all is pruned: nothing there loses 0.5 nats
    assert best_places(places, 1, "probability_times_loss") == [2]
    assert best_places(places, 3, "probability") == [1, 2]


def test_a_threshold_is_the_lowest_that_holds_the_rate() -> None:
    calls = [call(0.6, 0.9), call(0.8, 0.1), call(1.5, 0.2), call(2.0, None), call(0.2, 0.7)]
    # of the calls with a placebo, three reach 0.5 nats and so do two placebos; from 1.5 on one call does, and none
    assert false_discovery_rate(calls, 0.5) == pytest.approx(2 / 3)
    assert false_discovery_rate(calls, 1.5) == 0.0
    assert false_discovery_rate(calls, 3.0) is None
    assert lowest_threshold(calls) == 1.5
    assert lowest_threshold([call(0.6, 0.9)]) is None


def test_a_placebo_is_another_texts_result_and_depends_on_the_call_alone() -> None:
    lines = [{"id": f"Calculator|{key}", "tool": "Calculator"} for key in "abc"]
    results = {"a": "1", "b": "2", "c": "3"}
    calls = {
        f"Calculator|{key}": [(1, 0, Call("Calculator", f"{key} + 0"), result, False)]
        for key, result in results.items()
    }
    drawn = drawn_placebos(lines, calls)
    assert all(drawn[f"Calculator|{key}"][0] in set(results.values()) - {result} for key, result in results.items())
    assert drawn_placebos(lines[::-1], calls) == drawn
    equal = {key: [(*call[:3], "1", False) for call in of_text] for key, of_text in calls.items()}
    assert drawn_placebos(lines, equal) == {key: [None] for key in calls}


def test_a_second_round_is_where_the_first_saved_and_costs_its_samples() -> None:
    line: dict[str, Any] = {
        "id": "Calculator|a",
        "tool": "Calculator",
        "seconds": {"positions": 1.0, "losses": 1.0, "sampling": 6.0},
        "places": [[3, 10, 0.5, 2.0], [7, 30, 0.4, 2.0]],
        "samples": {"3": [["", True]] * 3, "7": [["", True]] * 3},
    }
    calls = [call(0.3, 0.0), call(2.0, 0.0, first_sample=1), call(0.0, 0.0, 7), call(3.0, 0.0, 7, first_sample=2)]
    scores = {"Calculator|a": {"seconds": 4.0, "calls": [one.__dict__ for one in calls]}}
    all_of_them, *_ = yields(Setting("all", places=2, samples=3), [line], scores)
    two_rounds, *_ = yields(Setting("rounds", places=2, samples=3, first_round=1), [line], scores)
    assert (all_of_them.calls, all_of_them.kept, all_of_them.cpu_seconds) == (4, 2, 12.0)
    # the first call at 7 saves nothing: four of the six samples, three of the four calls
    assert (two_rounds.calls, two_rounds.kept, two_rounds.cpu_seconds) == (3, 1, 9.0)


def test_a_call_that_no_release_takes_costs_its_seconds_and_is_not_counted() -> None:
    line: dict[str, Any] = {
        "id": "Calculator|a",
        "tool": "Calculator",
        "seconds": {"positions": 1.0, "losses": 1.0, "sampling": 2.0},
        "places": [[3, 10, 0.5, 2.0]],
        "samples": {"3": [["", True]] * 2},
    }
    calls = [call(3.0, 2.0, input_only_after=True), call(1.0, 0.0, first_sample=1)]
    scores = {"Calculator|a": {"seconds": 4.0, "calls": [one.__dict__ for one in calls]}}
    found, *_ = yields(Setting("all", places=1, samples=2), [line], scores)
    assert (found.calls, found.kept, found.rate_at_half, found.cpu_seconds) == (1, 1, 0.0, 8.0)
    assert found.by_text == {"Calculator|a": (1, 8.0)}
    spared, *_ = yields(Setting("spared", places=1, samples=2, score_unreleasable=False), [line], scores)
    assert spared.by_text == {"Calculator|a": (1, 6.0)}


def test_settings_are_compared_by_calls_less_placebos_a_cpu_second_over_the_same_texts() -> None:
    def with_texts(by_text: dict[str, tuple[int, float]]) -> Yield:
        return Yield("Calculator", len(by_text), 0, None, 0, 0, None, 0, None, 0, 0.0, by_text)

    one = with_texts({str(text): (2, 1.0) for text in range(20)} | {"other": (50, 1.0)})
    half = with_texts({str(text): (2, 2.0) for text in range(20)})
    assert times_as_many(one, half) == pytest.approx((2.0, 2.0, 2.0))
    uneven = with_texts({str(text): (text % 2, 1.0) for text in range(20)})
    ratio, low, high = times_as_many(uneven, one)
    assert ratio == pytest.approx(0.25)
    assert 0.13 < low < 0.17
    assert 0.33 < high < 0.38


def test_the_next_number_is_read_behind_space_sign_and_currency() -> None:
    assert [next_number(text) for text in (" 182 for the", "=$1,400 in all", " 0.5.", " of 12", "")] == [
        "182", "1400", "0.5", None, None,
    ]  # fmt: skip
