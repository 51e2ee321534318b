"""A statistic of log probabilities says what a call gains; comparisons rank calls by it."""

import math
from typing import Any

import numpy as np
import pytest

from studies.__main__ import ANSWERS
from studies.answers import read_answers
from studies.keep_rules import (
    BY_CHANCE,
    KINDS,
    PAPER,
    PRECISION,
    Comparison,
    KeepRule,
    LabelledAnswers,
    Statistic,
    average_precision,
    labelled_comparisons,
    least_threshold,
    pooled,
    ranking_table,
    rules_at_precision,
    threshold_table,
)
from toolformer_ops.language_model.losses import weighted_loss

HALF, QUARTER, EIGHTH = math.log(0.5), math.log(0.25), math.log(0.125)
MEAN = Statistic("geometric mean probability", 5, falling=False, placebo=True)


def line(label: str, **log_p: list[float]) -> dict[str, Any]:
    """A call; conditions that are not named are those of an unlikely text."""
    conditions = ("without_call", "without_result", "with_result", "with_placebo")
    return {"label": label, "log_p": {**{name: [EIGHTH] * 10 for name in conditions}, **log_p}}


def gain(statistic: Statistic, **log_p: list[float]) -> float:
    """What one call gains."""
    return float(statistic.gains(Comparison.of("one", [line("right", **log_p)], [True]).log_p)[0])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("nats", math.log(2)),  # the mean of log 1/2 and log 1/8 is log 1/4, before it was log 1/8
        ("mean probability", (1 / 2 + 1 / 8) / 2 - 1 / 8),
        ("geometric mean probability", 1 / 4 - 1 / 8),
    ],
)
def test_two_equal_tokens_gain(kind, expected):
    assert gain(
        Statistic(kind, 2, falling=False, placebo=False), with_result=[HALF, EIGHTH]
    ) == pytest.approx(expected)


def test_falling_weights_count_the_first_token_twice_as_much_as_the_second():
    statistic = Statistic("nats", 2, falling=True, placebo=False)
    assert gain(statistic, with_result=[HALF, EIGHTH]) == pytest.approx(2 / 3 * math.log(4))


def test_a_clipped_token_is_no_less_likely_than_a_hundredth():
    statistic = Statistic("clipped nats", 1, falling=False, placebo=False)
    assert gain(statistic, without_call=[-20.0], without_result=[-9.0], with_result=[HALF]) == pytest.approx(
        math.log(50)
    )


def test_the_likeliest_condition_without_the_result_is_compared():
    statistic = Statistic("geometric mean probability", 1, falling=False, placebo=False)
    assert gain(statistic, without_result=[QUARTER], with_result=[HALF]) == pytest.approx(1 / 4)


def test_a_placebo_that_helps_as_much_leaves_no_gain():
    statistic = Statistic("geometric mean probability", 1, falling=False, placebo=True)
    assert gain(statistic, with_placebo=[HALF], with_result=[HALF]) == 0


def test_tokens_that_the_text_lacks_are_left_out():
    statistic = Statistic("nats", 10, falling=False, placebo=False)
    short = {name: [EIGHTH] for name in ("without_call", "without_result", "with_placebo")}
    assert gain(statistic, **short, with_result=[HALF]) == pytest.approx(math.log(4))


def test_a_call_at_the_end_of_its_text_gains_nothing_that_is_known():
    assert math.isnan(gain(MEAN, without_call=[], without_result=[], with_placebo=[], with_result=[]))


@pytest.mark.parametrize("tokens", [2, 5, 10])
def test_the_papers_statistic_is_its_loss_reduction(tokens):
    with_result = [-0.1 * token for token in range(tokens)]
    reduction = weighted_loss([EIGHTH] * tokens) - weighted_loss(with_result)
    others = {name: [EIGHTH] * tokens for name in ("without_call", "without_result")}
    assert gain(PAPER, **others, with_result=with_result) == pytest.approx(reduction)


@pytest.mark.parametrize("kind", KINDS)
def test_a_likelier_token_never_lowers_a_statistic(kind):
    statistic = Statistic(kind, 7, falling=True, placebo=False)
    log_p = np.log(np.random.default_rng(0).uniform(1e-4, 1, (50, 10)))
    assert (statistic.of(np.minimum(log_p + 0.1, 0)) >= statistic.of(log_p)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_certain_tokens_have_the_greatest_value_of_a_statistic(kind):
    statistic = Statistic(kind, 7, falling=True, placebo=False)
    greatest = 1.0 if "probability" in kind else 0.0
    assert statistic.of(np.zeros((1, 10))) == pytest.approx(greatest)


def test_average_precision_is_the_mean_over_right_calls():
    ranked = average_precision(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
    assert ranked == pytest.approx((1 / 1 + 2 / 3) / 2)


def test_calls_of_equal_gain_are_ranked_together():
    assert average_precision(np.array([0.5, 0.5, 0.1]), np.array([True, False, False])) == pytest.approx(
        1 / 2
    )


def test_a_call_without_a_gain_is_ranked_last():
    assert average_precision(np.array([math.nan, 0.1]), np.array([True, False])) == pytest.approx(1 / 2)


LINES = [
    line("right", with_result=[HALF] * 10, with_placebo=[EIGHTH] * 10, with_other_placebo=[EIGHTH] * 10),
    line("operand", with_result=[QUARTER] * 10),
    line("place -1", with_result=[EIGHTH] * 10),
]


def test_a_right_call_with_its_placebo_is_a_wrong_call_of_other_content():
    content, _ = labelled_comparisons("sums", LINES)
    assert MEAN.gains(content.log_p) == pytest.approx([3 / 8, 1 / 8, 0])


def test_a_moved_call_is_compared_by_its_place():
    _, place = labelled_comparisons("sums", LINES)
    assert MEAN.gains(place.log_p) == pytest.approx([3 / 8, 0])


@pytest.fixture
def ranked():
    """Of gains 3/8, 1/8, 1/8 and 0 the first and the third are right."""
    values = (HALF, QUARTER, QUARTER, EIGHTH)
    return [
        Comparison.of("first", [line("", with_result=[value] * 10) for value in values[:2]], [True, False]),
        Comparison.of("second", [line("", with_result=[value] * 10) for value in values[2:]], [True, False]),
    ]


def test_one_threshold_counts_the_calls_of_all_comparisons(ranked):
    assert pooled(ranked, KeepRule(MEAN, 0.1)) == (pytest.approx(2 / 3), 1.0)


@pytest.mark.parametrize(("precision", "threshold"), [(1.0, 3 / 8), (0.6, 1 / 8)])
def test_the_least_threshold_reaches_its_precision(ranked, precision, threshold):
    assert least_threshold(ranked, MEAN, precision) == pytest.approx(threshold)


def test_a_precision_that_no_threshold_reaches_has_none(ranked):
    wrong = Comparison("wrong", ranked[0].log_p, np.array([False, False]))
    assert math.isnan(least_threshold([wrong], MEAN, 0.5))


def test_the_table_of_thresholds_counts_kept_calls_before_right_ones():
    content, _ = labelled_comparisons("sums", LINES)
    row = threshold_table([content], [KeepRule(MEAN, 0.1)]).splitlines()[-1]
    assert row == "| geometric mean probability, 5 equal, placebo: at least 0.1 | 2; 1 | 0.50 | 1.00 |"


@pytest.fixture(scope="module")
def choose():
    return LabelledAnswers.read(ANSWERS, "choose")


@pytest.mark.slow
def test_a_rule_reaches_its_precision_on_the_half_that_chose_it(choose):
    rules = rules_at_precision(choose)
    assert min(choose.precision(rule) for rule in rules) >= PRECISION


@pytest.mark.slow
def test_the_halves_share_no_text(choose):
    sealed = LabelledAnswers.read(ANSWERS, "sealed")
    sizes = [sum(len(item.is_right) for item in half.labels) for half in (choose, sealed)]
    stored = sum(len(read_answers(file)) for file in ANSWERS.glob("labelled-*"))
    by_chance = sum(
        len(item.is_right) for half in (choose, sealed) for item in half.labels if BY_CHANCE in item.name
    )
    assert sum(sizes) - by_chance == stored


def test_the_table_of_ranks_begins_with_chance():
    content, _ = labelled_comparisons("sums", LINES)
    assert ranking_table([content], [MEAN]).splitlines()[2] == "| chance | 0.333 | 0.333 | -0.667 |"
