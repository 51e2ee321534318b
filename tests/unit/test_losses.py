"""The paper's weights and loss reduction, against numbers worked by hand."""

import math

import pytest

from toolformer_ops.language_model.losses import (
    PROBABILITY_PRUNE_BELOW,
    PROBABILITY_THRESHOLD,
    SCORED_TOKENS,
    TOKEN_WEIGHTS,
    is_kept,
    probability,
    token_weights,
    tokens_scored_by,
    weighted_loss,
)
from toolformer_ops.records import CallLosses


def test_the_weights_are_those_of_the_paper():
    assert pytest.approx([1 / 3, 0.8 / 3, 0.6 / 3, 0.4 / 3, 0.2 / 3]) == list(TOKEN_WEIGHTS)
    assert len(TOKEN_WEIGHTS) == SCORED_TOKENS


def test_weights_of_any_number_of_tokens_sum_to_one():
    for tokens in (1, 4, 5, 8):
        weights = token_weights(tokens)
        falling = [
            max(0.0, 1 - t / tokens) for t in range(tokens + 3)
        ]  # the paper's formula, 1 / tokens for its 0.2
        assert list(weights) == pytest.approx([weight / sum(falling) for weight in falling if weight > 1e-12])
        assert math.fsum(weights) == pytest.approx(1.0, abs=1e-15)


def test_the_loss_is_the_weighted_sum_of_at_most_five_tokens():
    for log_ps, nats in (
        ([-1.0] * 5, 1.0),
        ([-1.0] * 5 + [-100.0] * 20, 1.0),  # the sixth does not count
        ([-3.0, -6.0], 2.6),  # where the text ends no weight is scaled up: 5/15 * 3 + 4/15 * 6 = 1 + 1.6
    ):
        assert weighted_loss(log_ps) == pytest.approx(nats)


@pytest.mark.parametrize(
    ("log_probabilities", "mean"),
    [
        ([-1.0] * 7, math.exp(-1)),
        ([-1.0] * 7 + [-4.0] * 3, math.exp(-1)),  # the eighth does not count
        ([-1.0] * 6 + [-4.5], math.exp(-1.5)),
        ([-1.0, -3.0], math.exp(-2)),  # where the text ends, what lacks is left out
        ([-100.0, 0.0], 0.1),  # an unlikely token counts as one of 1 %
        ([-math.inf], 0.01),
    ],
)
def test_the_probability_of_the_next_tokens_is_the_geometric_mean_of_seven(log_probabilities, mean):
    assert probability(log_probabilities) == pytest.approx(mean)


@pytest.mark.parametrize(("keep_rule", "tokens"), [("paper", 5), ("probability", 10)])
def test_a_keep_rule_says_how_many_tokens_are_scored(keep_rule, tokens):
    assert tokens_scored_by(keep_rule) == tokens


def test_the_thresholds_of_the_rule_probability_are_those_that_the_evidence_chose():
    assert (PROBABILITY_THRESHOLD, PROBABILITY_PRUNE_BELOW) == (0.22, 0.1)


def test_a_token_without_a_number_leaves_no_probability():
    assert math.isnan(probability([-1.0, math.nan]))


def test_the_reduction_is_against_the_better_of_the_two_rivals():
    assert CallLosses(5.0, 4.0, 2.5).reduction_bound == pytest.approx(1.5)
    assert CallLosses(4.0, 5.0, 2.5).reduction_bound == pytest.approx(1.5)


def test_a_call_is_kept_at_exactly_the_threshold():
    assert [is_kept(0.5, 0.5), is_kept(0.4999, 0.5)] == [True, False]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_never_keeps_a_call(bad):
    for losses in ((bad, 1.0, 0.0), (1.0, bad, 0.0), (1.0, 1.0, bad)):
        assert not is_kept(CallLosses(*losses).reduction_bound, 0.0)
    assert not is_kept(bad, 0.0)  # of a reduction, too
