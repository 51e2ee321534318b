"""What is drawn for a call, what is computed and stored of it, and what a rate counts."""

import dataclasses
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolformer_ops.annotation.placebo import (
    NO_OTHER_RESULT,
    ONLY_COMPARED,
    JudgedCall,
    PlaceboDraw,
    PlaceboLoss,
    gain_of,
    placebo_reduction,
    score_placebos,
)
from toolformer_ops.annotation.scoring import NOT_FINITE, PRUNED, ScoredCall
from toolformer_ops.call_syntax import Call
from toolformer_ops.on_a_file.annotate.pooled_placebos import PlaceboCounts
from toolformer_ops.records import LossWithResult, PlacedCall, content_uuid
from toolformer_ops.runs.choices import PlaceboChoices, ScoringChoices
from toolformer_ops.runs.placebo_pools import Pool, PooledResult
from toolformer_ops.runs.placebo_rates import Rate

WITHOUT = 3.0
"""L- of every call, nats."""
SCORED = ScoredCall(
    result="7", loss_without_call=WITHOUT, loss_without_result=WITHOUT, loss_with_result=2.5, reduction_bound=0.5,
    number_format="float32",
)  # fmt: skip


def judged_call(name: str, document: str = "home", **changes: Any) -> JudgedCall:
    """A call of its name and document, with `SCORED` but for the changes."""
    scored = replace(SCORED, **changes)
    return JudgedCall(
        content_uuid("call", name), content_uuid("document", document), 1, Call("Made", name), scored
    )


def results_elsewhere(count: int) -> list[PooledResult]:
    return [
        PooledResult(
            source, content_uuid("pooled", str(source)), content_uuid("elsewhere"), f"result {source}"
        )
        for source in range(count)
    ]


@dataclass
class ScriptedModel:
    """Says the loss of each call, and the probability 1 - loss / 10, and remembers what it was asked."""

    loss: Callable[[PlacedCall], float]
    number_format: str = "float32"
    asked: list[str] = field(default_factory=list)
    formats: list[tuple[str, int]] = field(default_factory=list)
    context_tokens: set[int | None] = field(default_factory=set)

    def surely_below(self, bound: float, prune_below: float, keep_rule: str = "paper") -> bool:
        return prune_below > 0 and bound < prune_below

    def verifies(self, choice: str) -> bool:
        return choice == "auto"

    def losses_with_result(
        self,
        texts: Sequence[tuple[str, Sequence[PlacedCall]]],
        *,
        context_tokens: int | None,
        number_format: str,
        keep_rule: str,
    ) -> list[list[LossWithResult]]:
        self.context_tokens.add(context_tokens)
        asked = [call.result for _, calls in texts for call in calls]
        self.asked += asked
        self.formats.append((number_format, len(asked)))
        return [[self.said_of(call, keep_rule) for call in calls] for _, calls in texts]

    def said_of(self, call: PlacedCall, keep_rule: str) -> LossWithResult:
        loss = self.loss(call)
        return LossWithResult(loss, None if keep_rule == "paper" else 1 - loss / 10)


def placebos_of(
    model: ScriptedModel, calls: Sequence[JudgedCall], pool: Pool, **choices: Any
) -> list[list[PlaceboLoss]]:
    """The placebos of each call of one text."""
    draw = PlaceboDraw(pool)
    [found] = score_placebos(lambda: model, ScoringChoices(**choices), [("a text", calls)], draw)  # type: ignore[arg-type, return-value]
    return found


def test_placebos_are_computed_in_the_format_of_the_calls_own_loss():
    model = ScriptedModel(lambda call: 1.5 + int(call.result.removeprefix("result ")), "bfloat16")
    pool = Pool(placebos=3, sample_share=0.0, results=results_elsewhere(6))
    calls = [
        judged_call(str(number), loss_with_result=1.0, reduction_bound=2.0, number_format=number_format)
        for number, number_format in enumerate(["bfloat16", "float32", "bfloat16"])
    ]
    found = placebos_of(model, calls, pool)
    for placebos in found:
        assert [one.information for one in placebos] == [
            (one.loss_with_result or 0.0) - 1.0 for one in placebos
        ]
    # Where there are no float32 weights, none are asked for.
    assert found == placebos_of(model, calls, pool, verify_in_float32="off")
    # Three placebos a call. Weights may take each other's place, so those of a format are computed together.
    assert model.formats == [("float32", 3), ("bfloat16", 6), ("bfloat16", 9)]


OWN = replace(SCORED, result="own", loss_without_result=3.5, loss_with_result=2.0, reduction_bound=1.0)
SMALL = replace(OWN, loss_with_result=2.75, reduction_bound=0.25)
UNKNOWN = replace(SMALL, loss_without_result=None, reason=PRUNED)
"""Its own result saves too little, so that L(e(c, "")) was not computed."""
SURE = ScoredCall(
    result="own", loss_without_call=0.25, reason=PRUNED, reduction_bound=0.25, number_format="float32"
)
SURE_IN_FULL = replace(SURE, loss_without_call=3.0, loss_without_call_full_context=0.25)
NAN = math.nan


@pytest.mark.parametrize(
    ("own", "is_sampled", "losses", "rows", "asked"),
    [
        # A row: number, sampled, reason, L(e(c, r')), reduction or bound, information, probability, gain.
        # Two placebos a call (K) that reaches 0.5 nats: each against L- = 3.0 and the call's own 2.0.
        (
            OWN, False, (2.25, 2.75, 1.0),
            [(1, False, None, 2.25, 0.75, 0.25, None, None), (2, False, None, 2.75, 0.25, 0.75, None, None)], [1, 2],
        ),
        (SMALL, False, (1.0, 1.0, 1.0), [], []),
        # A sampled call: one, whatever the call saves.
        (SMALL, True, (2.75, 1.0, 1.0), [(1, True, None, 2.75, 0.25, 0.0, None, 0.25)], [1]),
        # By the paper's rule it is compared with no other, whatever it saves.
        (SMALL, True, (2.5, 2.0, 3.5), [(1, True, None, 2.5, 0.5, -0.25, None, 0.5)], [1]),
        (
            OWN, True, (2.0, 2.25, 1.25),
            [(1, True, None, 2.0, 1.0, 0.0, None, 1.0), (2, False, None, 2.25, 0.75, 0.25, None, None)], [1, 2],
        ),
        # A term of L- that is known proves enough: the model is not asked.
        (SURE, True, (0.0, 0.0, 0.0), [(1, True, PRUNED, None, 0.25, None, None, None)], []),
        (SURE_IN_FULL, True, (0.0, 0.0, 0.0), [(1, True, PRUNED, None, 0.25, None, None, None)], []),
        # L(e(c, "")) = 2.875 is computed where it decides, and not where 3.0 - L(e(c, r')) proves enough.
        (UNKNOWN, True, (2.25, 2.0, 3.0), [(1, True, None, 2.25, 0.625, -0.5, None, 0.625)], [1, 0]),
        (UNKNOWN, True, (2.75, 1.0, 1.0), [(1, True, PRUNED, 2.75, 0.25, 0.0, None, None)], [1]),
        # No number, no reduction.
        (SMALL, True, (NAN, 1.0, 1.0), [(1, True, NOT_FINITE, None, None, None, None, None)], [1]),
        (SMALL, True, (math.inf, 1.0, 1.0), [(1, True, NOT_FINITE, None, None, None, None, None)], [1]),
        # A pool without another result.
        (OWN, False, (), [(1, False, NO_OTHER_RESULT, None, None, None, None, None)], []),
        (SMALL, True, (), [(1, True, NO_OTHER_RESULT, None, None, None, None, None)], []),
        (SMALL, False, (), [], []),
    ],
)  # fmt: skip
def test_what_is_stored_of_a_calls_placebos(own, is_sampled, losses, rows, asked):
    call_id = uuid.UUID(int=0 if is_sampled else 2**64 - 1)
    call = JudgedCall(call_id, content_uuid("home"), 1, Call("Made", "in"), own)
    pool = Pool(placebos=2, sample_share=0.5, results=results_elsewhere(len(losses)))
    drawn = PlaceboDraw(pool).of_call(call, len(losses))
    said = {"": 2.875, **{one.result: loss for one, loss in zip(drawn, losses, strict=True)}}
    model = ScriptedModel(lambda call: said[call.result])
    [found] = placebos_of(model, [call], pool, prune_below=0.5, scoring_context_tokens=16)
    assert [dataclasses.astuple(replace(one, source=None)) for one in found] == [
        (number, None, *row) for number, *row in rows
    ]
    assert [one.source for one in found] == [
        drawn[one.number - 1].source if losses else None for one in found
    ]
    assert model.asked == [drawn[number - 1].result if number else "" for number in asked]
    assert model.context_tokens <= {16}


PROBABLE = replace(OWN, probability_without=0.5, probability_with=0.875)
"""By the rule `probability`: its result gains log(0.875 / 0.5) nats before a placebo."""
IMPROBABLE = replace(PROBABLE, probability_with=0.5)
UNPROBED = replace(PROBABLE, probability_with=0.5, loss_without_result=None, reason=PRUNED)
"""Its own result gains too little, so that the probability with the call and no result was not computed."""
CERTAIN = replace(PROBABLE, probability_without=0.75, probability_with=None, reason=PRUNED)


@pytest.mark.parametrize(
    ("own", "is_sampled", "losses", "rows", "asked"),
    [
        # A row: number, sampled, reason, probability of the next tokens, and the factor that is gained.
        (PROBABLE, False, (5.0, 2.5), [(1, False, None, 0.5, None)], [1]),
        # A sampled placebo that gains too little before a second one is compared with none.
        (IMPROBABLE, True, (3.75, 2.5), [(1, True, None, 0.625, 1.25)], [1]),
        # One that gains enough is compared with the second: 0.875 / max(0.5, 0.75 or 0.25).
        (IMPROBABLE, True, (1.25, 2.5), [(1, True, None, 0.875, 0.875 / 0.75), (2, False, None, 0.75, None)], [1, 2]),
        (PROBABLE, True, (1.25, 7.5), [(1, True, None, 0.875, 1.75), (2, False, None, 0.25, None)], [1, 2]),
        # The probability with the call but no result, 0.75, is computed where it decides.
        (UNPROBED, True, (1.25, 5.0), [(1, True, None, 0.875, 0.875 / 0.75)], [1, 0]),
        (UNPROBED, True, (3.75, 5.0), [(1, True, PRUNED, 0.625, None)], [1]),
        # One of 0.75 without the result proves that no result gains a factor of 1.5.
        (CERTAIN, True, (0.0, 0.0), [(1, True, PRUNED, None, None)], []),
        # Without a second placebo the rule keeps nothing.
        (IMPROBABLE, True, (1.25,), [(1, True, None, 0.875, None)], [1]),
    ],
)  # fmt: skip
def test_what_is_stored_of_a_placebo_by_the_rule_probability(own, is_sampled, losses, rows, asked):
    call_id = uuid.UUID(int=0 if is_sampled else 2**64 - 1)
    call = JudgedCall(call_id, content_uuid("home"), 1, Call("Made", "in"), own)
    pool = Pool(placebos=1, sample_share=0.5, results=results_elsewhere(len(losses)))
    drawn = PlaceboDraw(pool).of_call(call, len(losses))
    said = {"": 2.5, **{one.result: loss for one, loss in zip(drawn, losses, strict=True)}}
    model = ScriptedModel(lambda call: said[call.result])
    [placebos] = placebos_of(model, [call], pool, prune_below=math.log(1.5), keep_rule="probability")
    stored = [(one.number, one.is_sampled, one.reason, one.probability_with) for one in placebos]
    assert stored == [row[:4] for row in rows]
    assert [one.gain for one in placebos] == [
        None if factor is None else pytest.approx(math.log(factor)) for *_, factor in rows
    ]
    assert model.asked == [drawn[number - 1].result if number else "" for number in asked]


@pytest.mark.parametrize(
    ("scored", "placebo_probability", "gain"),
    [
        (OWN, None, 1.0),  # the rule `paper` asks no placebo
        (PROBABLE, 0.25, math.log(1.75)),
        (PROBABLE, 0.75, math.log(0.875 / 0.75)),
        (PROBABLE, 1.0, math.log(0.875)),
        (PROBABLE, None, None),
        (UNPROBED, 0.25, None),
        (ScoredCall(reason="timed_out"), None, None),
    ],
)
def test_a_gain_is_over_the_largest_probability_without_the_result(scored, placebo_probability, gain):
    assert gain_of(scored, placebo_probability) == (None if gain is None else pytest.approx(gain))


def test_the_placebo_reduction_is_the_mean_of_those_whose_reduction_is_known():
    known = PlaceboLoss(1, 0, is_sampled=False, loss_with_result=2.5, reduction_bound=0.5, information=0.25)
    a_bound = replace(known, number=3, reason=ONLY_COMPARED, reduction_bound=9.0)
    beyond_the_first_k = replace(known, number=4, information=None, reduction_bound=9.0)
    assert (
        placebo_reduction([known, replace(known, reduction_bound=1.0), a_bound, beyond_the_first_k]) == 0.75
    )
    assert placebo_reduction([a_bound, beyond_the_first_k]) is None


def false_discovery_rate(
    calls: list[tuple[JudgedCall, list[PlaceboLoss]]], share: float, threshold: float
) -> Rate:
    """The rate of the rows of these calls."""
    counts = PlaceboCounts()
    for call, placebos in calls:
        row = {
            "document_id": str(call.document_id),
            "keep_threshold": threshold,
            "gain": gain_of(call.scored, None),
            "placebo_losses": [vars(placebo) for placebo in placebos],
        }
        counts.add([row])
    return counts.rate(share)


def test_a_rate_compares_kept_calls_with_kept_placebos_of_the_sample():
    """Each number below is one call with its placebos, in a document of its own."""

    def scored_call(name: str, reduction: float) -> JudgedCall:
        return judged_call(name, name, loss_with_result=WITHOUT - reduction, reduction_bound=reduction)

    sampled = PlaceboLoss(1, 0, is_sampled=True, loss_with_result=2.5, reduction_bound=0.5, gain=0.5)
    calls = [
        (scored_call("a", 1.0), [sampled]),
        (scored_call("b", 0.5), [replace(sampled, gain=0.6)]),
        # Not kept, as its placebo.
        (scored_call("c", 0.4), [replace(sampled, gain=0.4)]),
        # A pruned placebo is never kept, and counts as scored.
        (scored_call("d", 0.4), [replace(sampled, gain=None, reason=PRUNED)]),
        # A placebo that is not sampled and one that has no source are not counted.
        (scored_call("e", 0.6), [replace(sampled, is_sampled=False, gain=None)]),
        (scored_call("f", 0.4), [PlaceboLoss(1, None, is_sampled=True, reason="no_other_result")]),
    ]
    rate = false_discovery_rate(calls, 1.0, 0.5)
    assert (rate.calls, rate.placebos) == (3, 2)
    # Five placebos were to be drawn for calls that are sampled, and four were scored: each stands for 5 / 4
    # calls.
    assert rate.false_discovery_rate == pytest.approx(2 * (5 / 4) / 3)
    # Where the sample is a share of 0.8, each of the four stands for 5 / 0.8 / 4 calls.
    of_share = false_discovery_rate(calls, 0.8, 0.6)
    assert of_share.false_discovery_rate == pytest.approx(1 * (5 / 0.8 / 4) / 2)
    nothing = false_discovery_rate(calls[4:], 1.0, 0.5)
    assert (nothing.calls, nothing.placebos, nothing.false_discovery_rate) == (1, 0, None)


def test_a_call_without_losses_has_no_placebos_of_its_own():
    draw = PlaceboDraw(Pool(placebos=3, sample_share=0.0, results=[]))
    assert draw.reaches(SCORED, 0.5)
    assert not draw.reaches(SCORED, 0.51)
    assert not draw.reaches(replace(SCORED, loss_without_result=None, reason=PRUNED), 0.5)
    assert not PlaceboDraw(Pool(placebos=0, sample_share=1.0, results=[])).reaches(SCORED, 0.5)


def test_a_call_without_losses_is_in_no_pool():
    in_pool = [
        judged_call("", **changes).has_losses
        for changes in (
            {},
            {"reason": PRUNED},
            {"reason": NOT_FINITE},
            {"reason": "timed_out", "result": None},
        )
    ]
    assert in_pool == [True, True, False, False]


DRAWING = judged_call("", "0", result="0")


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12),
    st.integers(0, 6),
    st.integers(0, 11),
)  # of each pooled result its document and its text
def test_a_draw_gives_other_results_of_other_documents_each_once_in_an_order_that_the_call_decides(
    pooled, count, left
):
    pool = [
        PooledResult(
            source, content_uuid("pooled", str(source)), content_uuid("document", str(document)), str(result)
        )
        for source, (document, result) in enumerate(pooled)
    ]

    def drawn(call: JudgedCall, results: list[PooledResult], count: int = count) -> list[PooledResult]:
        return PlaceboDraw(Pool(placebos=3, sample_share=0.5, results=results)).of_call(call, count)

    found = drawn(DRAWING, pool)
    assert set(found) <= {one for one, (document, _) in zip(pool, pooled, strict=True) if document > 0}
    texts = [one.result for one in found]
    possible = {str(result) for document, result in pooled if document > 0 and result > 0}
    assert set(texts) <= possible
    assert len(set(texts)) == len(texts) == min(count, len(possible))
    assert drawn(DRAWING, pool, count + 1)[:count] == found
    # Neither the order of the pool nor a call that was not drawn changes the draw; nor does where in the text
    # an equal call is.
    assert drawn(DRAWING, pool[::-1]) == found
    fewer = [one for one in pool if one.source != left]
    assert (drawn(DRAWING, fewer) == found) == (left not in [one.source for one in found])
    assert drawn(replace(DRAWING, call_id=content_uuid("another"), token=9), pool) == found


@pytest.mark.parametrize("texts", [1, 2, 3, 40, 900])  # of 900 pooled calls
def test_a_short_draw_from_a_large_pool_is_the_start_of_a_long_one(texts):
    pool = [
        PooledResult(number, content_uuid("pooled", str(number)), content_uuid("document", str(number % 300)), str(number % texts))
        for number in range(900)
    ]  # fmt: skip
    draw = PlaceboDraw(Pool(placebos=3, sample_share=0.5, results=pool))
    for name in range(40):
        call = judged_call(str(name), result=str(name))
        whole = draw.of_call(call, len(pool))
        assert len(whole) == texts - (name < texts)
        assert draw.of_call(call, 4) == whole[:4]


def test_each_call_has_an_order_of_its_pool():
    draw = PlaceboDraw(Pool(placebos=3, sample_share=0.5, results=results_elsewhere(8)))
    orders = {tuple(one.source for one in draw.of_call(judged_call(str(name)), 3)) for name in range(40)}
    assert len(orders) > 30  # of 336
    assert {source for order in orders for source in order} == set(range(8))


def test_a_call_is_sampled_by_its_id_alone():
    draw = PlaceboDraw(Pool(placebos=3, sample_share=0.5, results=results_elsewhere(8)))
    ids = [uuid.UUID(int=last) for last in (0, 2**62, 2**63, 2**64 - 1)]  # the smallest are
    assert [draw.is_sampled(one) for one in ids] == [True, True, False, False]


def test_a_pool_is_the_same_in_whatever_order_its_calls_come():
    calls = [
        (content_uuid("call", str(number)), content_uuid("document", str(number)), str(number))
        for number in range(20)
    ]
    choices = PlaceboChoices()
    assert Pool.of_calls(reversed(calls), choices) == Pool.of_calls(calls, choices)


def test_a_pool_numbers_its_calls_by_their_ids():
    calls = [(content_uuid("call", str(number)), content_uuid("document", "d"), "7") for number in range(20)]
    results = Pool.of_calls(calls, PlaceboChoices()).results
    assert [result.call_id for result in results] == sorted(call_id for call_id, _, _ in calls)
