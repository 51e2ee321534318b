"""Rates and agreement of reviewers, against numbers worked by hand."""

import pytest

from toolformer_ops.evaluation.judgements import EVERYBODY, Judgement, Rate, agreements, cohens_kappa, results


def said(reviewer: str, *verdicts: str, placebo: bool = False) -> list[Judgement]:
    return [Judgement(reviewer, "T", number, placebo, verdict) for number, verdict in enumerate(verdicts)]


def test_precision_leaves_skipped_calls_out_and_placebos_apart() -> None:
    judged = said("ann", "useful", "useful", "useless", "wrong", "skip") + said("ann", "useful", "wrong", placebo=True)
    _, ann = results(judged)
    assert (ann.calls, ann.placebos) == (Rate(2, 1, 1, 1), Rate(1, 0, 1, 0))
    assert (ann.calls.judged, ann.calls.share, ann.placebos.share) == (4, 0.5, 0.5)
    # Wilson's interval of 2 of 4: centre 1/2, half width z / sqrt(n + z^2) / 2, z = 1.959964.
    assert (ann.calls.interval.low, ann.calls.interval.high) == pytest.approx((0.150036, 0.849964), abs=1e-5)
    assert Rate(0, 0, 0, 3).share is None


def test_together_a_call_is_useful_where_most_say_so_and_otherwise_the_worse() -> None:
    judged = [
        *said("ann", "useful", "useful", "useful", "wrong", "skip", "skip"),
        *said("bob", "useful", "useless", "skip", "useless", "skip", "wrong"),
        *said("cid", "useless", "wrong", "skip", "wrong"),
    ]
    everybody = results(judged)[0]
    assert everybody.reviewer == EVERYBODY
    # useful (2 of 3); one each: wrong; useful (the only one that counts); wrong (2 of 3); skipped; wrong
    assert everybody.calls == Rate(useful=2, useless=0, wrong=3, skipped=1)


def test_kappa_is_the_agreement_beyond_chance_and_reviewers_are_compared_on_what_both_judged() -> None:
    # The example of Cohen's kappa with 50 inputs: 20 both yes, 15 both no, 5 and 10 apart; o = 0.7, e = 0.5.
    pairs = [("yes", "yes")] * 20 + [("no", "no")] * 15 + [("yes", "no")] * 5 + [("no", "yes")] * 10
    assert cohens_kappa(pairs) == pytest.approx(0.4)
    assert cohens_kappa([("yes", "yes")] * 3) is None
    judged = [
        *said("ann", "useful", "wrong", "skip", "useful"),
        *said("bob", "useful", "useless", "useful"),
        *said("bob", "useful", placebo=True),
        *said("cid", "skip", "skip", "skip"),
    ]
    [one] = agreements(judged)
    assert (one.first, one.second, one.both, one.same, one.share) == ("ann", "bob", 2, 1, 0.5)
