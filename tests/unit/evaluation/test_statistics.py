"""Intervals, tests, and rates and agreement of reviewers, against published examples and numbers worked by hand."""

import math

import pytest

from toolformer_ops.evaluation.statistics import (
    bootstrap_perplexity,
    detectable_difference,
    mcnemar_p_value,
    mcnemar_power,
    paired_difference,
    wilson_interval,
)
from toolformer_ops.run_page.judgements import EVERYBODY, Judgement, Rate, agreements, cohens_kappa, results


def test_wilson_agrees_with_published_examples():
    # Newcombe, Statistics in Medicine 17 (1998), Table I, method 3
    for successes, trials, low, high in (
        (81, 263, 0.2553, 0.3662),
        (0, 20, 0.0, 0.1611),
        (29, 29, 0.8830, 1.0),  # (n - z * 0) / (n + z * z) of 29, z = 1.96: 29 / 32.84
        (0, 0, 0.0, 1.0),
    ):
        found = wilson_interval(successes, trials)
        assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def outcomes(both: int, only_first: int, only_second: int, neither: int) -> tuple[list[bool], list[bool]]:
    first = [True] * (both + only_first) + [False] * (only_second + neither)
    second = [True] * both + [False] * only_first + [True] * only_second + [False] * neither
    return first, second


def test_the_paired_difference_agrees_with_a_published_example():
    # 36, 12, 2 and 0 of 50: the difference 0.2 has the limits 0.0569 and 0.3404 (the same journal, method 10)
    found = paired_difference(*outcomes(36, 12, 2, 0))
    assert found.difference == pytest.approx(0.2)
    assert (round(found.interval.low, 4), round(found.interval.high, 4)) == (0.0569, 0.3404)
    assert (found.only_first, found.only_second) == (12, 2)
    assert found.p_value == pytest.approx(2 * (1 + 14 + 91) / 2**14)


def test_the_difference_turns_round_with_its_order():
    first, second = outcomes(10, 7, 3, 20)
    forth, back = paired_difference(first, second), paired_difference(second, first)
    assert back.difference == -forth.difference
    assert (back.interval.low, back.interval.high) == pytest.approx(
        (-forth.interval.high, -forth.interval.low)
    )
    assert back.p_value == forth.p_value
    with pytest.raises(ValueError, match="found none"):
        paired_difference([], [])
    assert back.detectable == forth.detectable == detectable_difference(40, 0.25)  # what 40 inputs could show


def test_mcnemar_counts_coins():
    assert mcnemar_p_value(0, 0) == 1.0
    assert mcnemar_p_value(0, 5) == pytest.approx(2 / 32)
    assert mcnemar_p_value(4, 1) == pytest.approx(2 * (1 + 5) / 32)
    assert 0 <= mcnemar_p_value(4000, 3000) < 1e-30


def test_the_power_of_six_inputs_is_counted_by_hand():
    # All six are right for only one of the two: the test rejects where they are all on one side (2 / 64 <
    # 0.05 < 14 / 64).
    assert mcnemar_power(6, 0.8, 1.0) == pytest.approx(0.9**6 + 0.1**6)
    assert mcnemar_power(6, 0.4, 0.5) == pytest.approx(0.5**6 * (0.9**6 + 0.1**6))
    assert mcnemar_power(5, 1.0, 1.0) == 0.0  # 2 / 32 is more than 0.05
    assert mcnemar_power(6, 0.0, 1.0) == pytest.approx(
        2 / 64
    )  # without a difference, the chance of a false one


def test_so_many_inputs_show_so_large_a_difference():
    assert detectable_difference(5, 0.5) is None
    # p**6 + (1 - p)**6 = 0.8 with p = 0.96350, of 6 inputs that all differ: 2 p - 1
    assert detectable_difference(6, 1.0) == pytest.approx(0.9270, abs=2e-4)
    # Connor (Biometrics 43, 1987): sqrt(n) d = z sqrt(discordant) + 0.8416 sqrt(discordant - d * d), z =
    # 1.9600; a little less than the exact test needs.
    found = detectable_difference(1000, 0.2)
    assert found is not None
    assert 0.0396 < found < 1.06 * 0.0396
    assert (
        detectable_difference(200, 0.0) or 0
    ) > 6 / 200  # at least as many must differ as the difference says


def test_the_bootstrap_reaches_from_text_to_text():
    # Both drawn twice happen in a quarter of the draws each, so the percentiles are the texts' own
    # perplexities.
    found = bootstrap_perplexity([math.log(2), math.log(8)], [1, 1])
    assert (found.low, found.high) == pytest.approx((2.0, 8.0))
    # 1 token at log 4 and 3 tokens at 0 in all: together exp(log 4 / 4) = 4 ** 0.25; alone 4 and 1.
    found = bootstrap_perplexity([math.log(4), 0.0], [1, 3])
    assert (found.low, found.high) == pytest.approx((1.0, 4.0))


def test_the_bootstrap_is_the_same_each_time():
    assert bootstrap_perplexity([math.log(4), 0.0], [1, 3]) == bootstrap_perplexity(
        [math.log(4), 0.0], [1, 3]
    )


def said(reviewer: str, *verdicts: str, placebo: bool = False) -> list[Judgement]:
    return [Judgement(reviewer, "T", number, placebo, verdict) for number, verdict in enumerate(verdicts)]


def test_precision_is_of_judged_calls_apart_from_placebos():
    judged = said("ann", "useful", "useful", "useless", "wrong", "skip") + said(
        "ann", "useful", "wrong", placebo=True
    )
    _, ann = results(judged)
    assert (ann.calls, ann.placebos) == (Rate(2, 1, 1, 1), Rate(1, 0, 1, 0))
    assert (ann.calls.judged, ann.calls.share, ann.placebos.share) == (4, 0.5, 0.5)
    # Wilson's interval of 2 of 4: centre 1/2, half width z / sqrt(n + z^2) / 2, z = 1.959964.
    assert (ann.calls.interval.low, ann.calls.interval.high) == pytest.approx((0.150036, 0.849964), abs=1e-5)


def test_calls_that_were_all_skipped_have_no_precision():
    assert Rate(0, 0, 0, 3).share is None


def test_together_a_call_is_useful_where_most_say_so_otherwise_the_worse():
    judged = [
        *said("ann", "useful", "useful", "useful", "wrong", "skip", "skip"),
        *said("bob", "useful", "useless", "skip", "useless", "skip", "wrong"),
        *said("cid", "useless", "wrong", "skip", "wrong"),
    ]
    everybody = results(judged)[0]
    assert everybody.reviewer == EVERYBODY
    # useful (2 of 3); one each: wrong; useful (the only one that counts); wrong (2 of 3); skipped; wrong
    assert everybody.calls == Rate(useful=2, useless=0, wrong=3, skipped=1)


def test_kappa_is_the_agreement_beyond_chance():
    # The example of Cohen's kappa with 50 inputs: 20 both yes, 15 both no, 5 and 10 apart; o = 0.7, e = 0.5.
    pairs = [("yes", "yes")] * 20 + [("no", "no")] * 15 + [("yes", "no")] * 5 + [("no", "yes")] * 10
    assert cohens_kappa(pairs) == pytest.approx(0.4)
    assert cohens_kappa([("yes", "yes")] * 3) is None


def test_reviewers_are_compared_on_what_both_judged():
    judged = [
        *said("ann", "useful", "wrong", "skip", "useful"),
        *said("bob", "useful", "useless", "useful"),
        *said("bob", "useful", placebo=True),
        *said("cid", "skip", "skip", "skip"),
    ]
    [one] = agreements(judged)
    assert (one.first, one.second, one.both, one.same, one.share) == ("ann", "bob", 2, 1, 0.5)
