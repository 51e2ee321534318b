"""A made corpus in which every second result is swapped on purpose: what placebos say of it, and what is true."""

import math
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from toolformer_ops.annotation.placebo import (
    NO_OTHER_RESULT,
    ONLY_COMPARED,
    JudgedCall,
    PlaceboDraw,
    PlaceboLoss,
    carries_information,
    false_discovery_rate,
    placebo_reduction,
    score_placebos,
)
from toolformer_ops.annotation.scoring import NOT_FINITE, PRUNED, ScoredCall
from toolformer_ops.call_syntax import Call
from toolformer_ops.records import PlacedCall, content_uuid
from toolformer_ops.runs.choices import ScoringChoices
from toolformer_ops.runs.placebo_pools import Pool, PooledResult
from toolformer_ops.runs.placebo_rates import Rate

WITHOUT = 3.0
"""L- of every call, nats."""
THRESHOLD = 0.5
EASE = (-0.6, 0.0, 0.6)
"""What any result saves in a document, in the mean, nats: what helps is likelier to help once more in the same document."""
SPREAD = 0.4
"""Standard deviation of what a result saves, nats."""
RIGHT = 1.0
"""What the right result saves beyond any other, nats."""
DOCUMENTS, CALLS, SEEDS = 80, 4, 20


@dataclass
class MadeModel:
    """Losses by a formula: a result saves the document's ease, a number made of call and result, and more where it is right."""

    seed: int
    number_format: str = "float32"

    def loss(self, document: int, call: str, result: str) -> float:
        noise = np.random.default_rng([self.seed, *f"{call}={result}".encode()]).normal(0.0, SPREAD)
        right = RIGHT if result == f"result of {call}" else 0.0
        return float(WITHOUT - EASE[document % len(EASE)] - noise - right)

    def surely_below(self, bound: float, prune_below: float) -> bool:
        return prune_below > 0 and bound < prune_below

    def losses_with_result(self, texts: Sequence[tuple[str, Sequence[PlacedCall]]], **_: Any) -> list[list[float]]:
        return [[self.loss(int(text), call.call.input, call.result) for call in calls] for text, calls in texts]


@dataclass(frozen=True)
class Judged:
    """What is said of a made corpus."""

    rate: Rate
    kept: Counter[tuple[str, bool]]
    """Calls that the paper's rule and the rule with information keep, by whether their result is the right one."""
    with_information: Rate


def judged(seed: int) -> Judged:
    model = MadeModel(seed)
    names = {(document, number): f"{document}.{number}" for document in range(DOCUMENTS) for number in range(CALLS)}
    # Every second call has the result of another document's call.
    results = {
        (document, number): f"result of {names[document if number % 2 else (document + 17) % DOCUMENTS, number]}"
        for document, number in names
    }
    calls: dict[int, list[JudgedCall]] = {document: [] for document in range(DOCUMENTS)}
    for (document, number), name in names.items():
        loss = model.loss(document, name, results[document, number])
        scored = ScoredCall(
            result=results[document, number],
            loss_without_call=WITHOUT,
            loss_without_result=WITHOUT,
            loss_with_result=loss,
            number_format="float32",
            reduction_bound=WITHOUT - loss,
        )
        place = content_uuid("document", str(seed), str(document))
        calls[document].append(JudgedCall(content_uuid("call", str(seed), name), place, 1, Call("Made", name), scored))
    pool = Pool(
        placebos=3,
        sample_share=1.0,
        results=[
            PooledResult(source, call.call_id, call.document_id, str(call.scored.result))
            for source, call in enumerate(call for of_document in calls.values() for call in of_document)
        ],
    )
    draw, choices = PlaceboDraw(pool), ScoringChoices(prune_below=THRESHOLD)
    texts = [(str(document), of_document) for document, of_document in calls.items()]
    found = score_placebos(lambda: model, choices, texts, draw)  # type: ignore[arg-type, return-value]
    with_placebos = [
        pair
        for (_, of_document), of_text in zip(texts, found, strict=True)
        for pair in zip(of_document, of_text, strict=True)
    ]
    kept: Counter[tuple[str, bool]] = Counter()
    for call, placebos in with_placebos:
        if call.scored.is_kept(THRESHOLD):
            is_right = call.scored.result == f"result of {call.call.input}"
            kept["paper", is_right] += 1
            kept["information", is_right] += carries_information(placebos, 0.2)
    return Judged(
        rate=false_discovery_rate(with_placebos, pool.sample_share, THRESHOLD, None),
        kept=kept,
        with_information=false_discovery_rate(with_placebos, pool.sample_share, THRESHOLD, 0.2),
    )


def normal_above(threshold: float, mean: float) -> float:
    return 0.5 * math.erfc((threshold - mean) / (SPREAD * math.sqrt(2)))


def test_swapped_results_are_recognised() -> None:
    # The truth, by the formula: of all calls such a share reaches the threshold with any result, and with the right one.
    by_chance = math.fsum(normal_above(THRESHOLD, ease) for ease in EASE) / len(EASE)
    with_right = math.fsum(normal_above(THRESHOLD, ease + RIGHT) for ease in EASE) / len(EASE)
    truth = by_chance / ((by_chance + with_right) / 2)
    assert truth == pytest.approx(0.47, abs=0.01)
    found = [judged(seed) for seed in range(SEEDS)]
    # 1. The interval holds it in 19 of 20 corpora, and is not so wide that it says nothing.
    rates = [one.rate for one in found]
    held = [(rate.rate_low or 0.0) <= truth <= (rate.rate_high or 0.0) for rate in rates]
    assert sum(held) >= SEEDS - 1
    assert all((rate.rate_low or 0.0) > 0.1 and (rate.rate_high or 1.0) < 0.9 for rate in rates)
    # 2. The rate bounds the share of swapped results among the kept calls from above, since it counts as many calls again.
    for one in found:
        swapped = one.kept["paper", False] / (one.kept["paper", False] + one.kept["paper", True])
        assert one.rate.rate_high is not None
        assert swapped < one.rate.rate_high
    # 3. Information tells the right results from the swapped ones: the rule drops more than a third of these, and its rate says so.
    total = sum((one.kept for one in found), Counter[tuple[str, bool]]())
    assert total["information", True] > 0.9 * total["paper", True]
    assert total["information", False] < 0.65 * total["paper", False]
    assert all((one.with_information.false_discovery_rate or 0) < (one.rate.false_discovery_rate or 0) for one in found)


def test_placebos_are_computed_in_the_format_of_the_calls_own_loss() -> None:
    asked: list[tuple[str, int]] = []

    class InLowPrecision(MadeModel):
        def verifies(self, choice: str) -> bool:
            return choice == "auto"

        def losses_with_result(
            self, texts: Sequence[tuple[str, Sequence[PlacedCall]]], **options: Any
        ) -> list[list[float]]:
            asked.append((options["number_format"], sum(len(calls) for _, calls in texts)))
            return super().losses_with_result(texts)

    calls = [
        JudgedCall(
            content_uuid("call", str(number)),
            content_uuid("document"),
            1,
            Call("Made", str(number)),
            ScoredCall(
                result="7",
                loss_without_call=WITHOUT,
                loss_without_result=WITHOUT,
                loss_with_result=1.0,
                number_format=number_format,
                reduction_bound=WITHOUT - 1.0,
            ),
        )
        for number, number_format in enumerate(["bfloat16", "float32", "bfloat16"])
    ]
    pool = Pool(
        placebos=3,
        sample_share=0.0,
        results=[
            PooledResult(
                number, content_uuid("other", str(number)), content_uuid("elsewhere", str(number)), f"r{number}"
            )
            for number in range(6)
        ],
    )
    model: Any = InLowPrecision(seed=1, number_format="bfloat16")
    [found] = score_placebos(lambda: model, ScoringChoices(), [("0", calls)], PlaceboDraw(pool))
    assert asked == [("float32", 3), ("bfloat16", 6)]  # three placebos a call
    for placebos in found:
        assert [one.information for one in placebos] == [one.loss_with_result - 1.0 for one in placebos]
    # Where there are no float32 weights, none are asked for.
    asked.clear()
    assert [found] == score_placebos(
        lambda: model, ScoringChoices(verify_in_float32="off"), [("0", calls)], PlaceboDraw(pool)
    )
    assert asked == [("bfloat16", 9)]


def test_placebos_of_one_number_format_are_all_computed_before_those_of_the_next() -> None:
    """Weights may take each other's place, which takes as long as loading."""
    asked: list[str] = []

    class InLowPrecision(MadeModel):
        def verifies(self, choice: str) -> bool:
            return True

        def losses_with_result(
            self, texts: Sequence[tuple[str, Sequence[PlacedCall]]], **options: Any
        ) -> list[list[float]]:
            asked.append(options["number_format"])
            return [
                [0.25 if call.result else 3.0 for call in calls] for _, calls in texts
            ]  # each placebo reaches 0.5 nats

    calls = [
        JudgedCall(
            content_uuid("call", str(number)),
            content_uuid("document"),
            1,
            Call("Made", str(number)),
            ScoredCall(
                result="7",
                reason=PRUNED,
                loss_without_call=3.0,
                loss_with_result=2.75,
                number_format=number_format,
                reduction_bound=0.25,
            ),
        )
        for number, number_format in enumerate(["bfloat16", "float32"])
    ]
    results = [
        PooledResult(number, content_uuid("other", str(number)), content_uuid("elsewhere", str(number)), f"r{number}")
        for number in range(6)
    ]
    model: Any = InLowPrecision(seed=1, number_format="bfloat16")
    pool = Pool(placebos=2, sample_share=1.0, results=results)
    score_placebos(lambda: model, ScoringChoices(), [("0", calls)], PlaceboDraw(pool))
    # L(e(c, r')), L(e(c, "")), and what the placebo is measured against.
    assert asked == ["float32"] * 3 + ["bfloat16"] * 3


@dataclass
class ScriptedModel:
    """Says the loss of each result, and remembers what it was asked."""

    losses: dict[str, float]
    number_format: str = "float32"
    asked: list[str] = field(default_factory=list)
    context_tokens: set[int | None] = field(default_factory=set)

    def surely_below(self, bound: float, prune_below: float) -> bool:
        return prune_below > 0 and bound < prune_below

    def losses_with_result(
        self, texts: Sequence[tuple[str, Sequence[PlacedCall]]], *, context_tokens: int | None, number_format: str
    ) -> list[list[float]]:
        self.context_tokens.add(context_tokens)
        self.asked += [call.result for _, calls in texts for call in calls]
        return [[self.losses[call.result] for call in calls] for _, calls in texts]


OWN = ScoredCall(
    result="own", loss_without_call=3.0, loss_without_result=3.5, loss_with_result=2.0, reduction_bound=1.0,
    number_format="float32",
)  # fmt: skip
SMALL = replace(OWN, loss_with_result=2.75, reduction_bound=0.25)
UNKNOWN = replace(SMALL, loss_without_result=None, reason=PRUNED)
"""Its own result saves too little, so that L(e(c, "")) was not computed."""
SURE = ScoredCall(result="own", loss_without_call=0.25, reason=PRUNED, reduction_bound=0.25, number_format="float32")
SURE_IN_FULL = replace(SURE, loss_without_call=3.0, loss_without_call_full_context=0.25)
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("own", "is_sampled", "losses", "rows", "asked"),
    [
        # A row: number, sampled, reason, L(e(c, r')), reduction or bound, information, placebo information.
        # Two placebos a call (K) that reaches 0.5 nats: each against L- = 3.0 and the call's own 2.0.
        (
            OWN, False, (2.25, 2.75, 1.0),
            [(1, False, None, 2.25, 0.75, 0.25, None), (2, False, None, 2.75, 0.25, 0.75, None)], [1, 2],
        ),
        (SMALL, False, (1.0, 1.0, 1.0), [], []),
        # A sampled call: one, whatever the call saves.
        (SMALL, True, (2.75, 1.0, 1.0), [(1, True, None, 2.75, 0.25, 0.0, None)], [1]),
        (
            OWN, True, (2.75, 2.25, 1.0),
            [(1, True, None, 2.75, 0.25, 0.75, None), (2, False, None, 2.25, 0.75, 0.25, None)], [1, 2],
        ),
        # One that reaches 0.5, exactly, is measured against the next two: (2.0 + 3.5) / 2 - 2.5. The third measures it alone.
        (
            SMALL, True, (2.5, 2.0, 3.5),
            [(1, True, None, 2.5, 0.5, -0.25, 0.25), (2, False, None, 2.0, 1.0, -0.75, None),
             (3, False, None, 3.5, -0.5, None, None)], [1, 2, 3],
        ),
        (
            OWN, True, (2.0, 2.25, 1.25),
            [(1, True, None, 2.0, 1.0, 0.0, -0.25), (2, False, None, 2.25, 0.75, 0.25, None),
             (3, False, None, 1.25, 1.75, None, None)], [1, 2, 3],
        ),
        # A term of L- that is known proves enough: the model is not asked.
        (SURE, True, (0.0, 0.0, 0.0), [(1, True, PRUNED, None, 0.25, None, None)], []),
        (SURE_IN_FULL, True, (0.0, 0.0, 0.0), [(1, True, PRUNED, None, 0.25, None, None)], []),
        # L(e(c, "")) = 2.875 is computed where it decides: for the first alone, and not where 3.0 - L(e(c, r')) proves enough.
        (
            UNKNOWN, True, (2.25, 2.0, 3.0),
            [(1, True, None, 2.25, 0.625, -0.5, 0.25), (2, False, ONLY_COMPARED, 2.0, 1.0, -0.75, None),
             (3, False, ONLY_COMPARED, 3.0, 0.0, None, None)], [1, 0, 2, 3],
        ),
        (UNKNOWN, True, (2.75, 1.0, 1.0), [(1, True, PRUNED, 2.75, 0.25, 0.0, None)], [1]),
        # No number, no reduction; and it is measured against nothing.
        (SMALL, True, (NAN, 1.0, 1.0), [(1, True, NOT_FINITE, None, None, None, None)], [1]),
        (SMALL, True, (INF, 1.0, 1.0), [(1, True, NOT_FINITE, None, None, None, None)], [1]),
        (SMALL, True, (1.0, NAN, 2.0), [
            (1, True, None, 1.0, 2.0, -1.75, 1.0), (2, False, NOT_FINITE, None, None, None, None),
            (3, False, None, 2.0, 1.0, None, None)], [1, 2, 3],
        ),
        # A pool without another result.
        (OWN, False, (), [(1, False, NO_OTHER_RESULT, None, None, None, None)], []),
        (SMALL, True, (), [(1, True, NO_OTHER_RESULT, None, None, None, None)], []),
        (SMALL, False, (), [], []),
    ],
)  # fmt: skip
def test_what_is_stored_of_a_calls_placebos(
    own: ScoredCall, is_sampled: bool, losses: Sequence[float], rows: list[tuple[Any, ...]], asked: list[int]
) -> None:
    call_id = uuid.UUID(int=0 if is_sampled else 2**64 - 1)
    call = JudgedCall(call_id, content_uuid("home"), 1, Call("Made", "in"), own)
    results = [
        PooledResult(10 + number, content_uuid("pooled", str(number)), content_uuid("elsewhere"), f"result {number}")
        for number in range(len(losses))
    ]
    draw = PlaceboDraw(Pool(placebos=2, sample_share=0.5, results=results))
    drawn = draw.of_call(call, len(losses))
    model = ScriptedModel({"": 2.875, **{one.result: loss for one, loss in zip(drawn, losses, strict=True)}})
    choices = ScoringChoices(prune_below=0.5, scoring_context_tokens=16)
    [[found]] = score_placebos(lambda: model, choices, [("a text", [call])], draw)  # type: ignore[arg-type, return-value]
    assert [
        (one.number, one.is_sampled, one.reason, one.loss_with_result, one.reduction_bound, one.information,
         one.placebo_information)
        for one in found
    ] == rows  # fmt: skip
    assert [one.source for one in found] == [drawn[one.number - 1].source if losses else None for one in found]
    assert model.asked == [drawn[number - 1].result if number else "" for number in asked]
    assert model.context_tokens <= {16}


def test_the_placebo_reduction_is_the_mean_of_those_whose_reduction_is_known() -> None:
    known = PlaceboLoss(1, 0, is_sampled=False, loss_with_result=2.5, reduction_bound=0.5, information=0.25)
    placebos = [
        known,
        replace(known, number=2, reduction_bound=1.0),
        replace(known, number=3, reason=ONLY_COMPARED, reduction_bound=9.0),  # a bound
        replace(known, number=4, information=None, reduction_bound=9.0),  # beyond the first K
    ]
    assert placebo_reduction(placebos) == 0.75
    assert placebo_reduction(placebos[2:]) is None


def test_a_rate_counts_what_the_rule_keeps_of_calls_and_of_sampled_placebos() -> None:
    """Each number below is one call with its placebos, in a document of its own."""

    def scored_call(name: str, reduction: float) -> JudgedCall:
        own = ScoredCall(
            result="7", loss_without_call=WITHOUT, loss_without_result=WITHOUT, loss_with_result=WITHOUT - reduction
        )
        own = replace(own, reduction_bound=reduction)
        return JudgedCall(content_uuid("call", name), content_uuid("document", name), 1, Call("Made", name), own)

    sampled = PlaceboLoss(1, 0, is_sampled=True, loss_with_result=2.5, reduction_bound=0.5)
    calls = [
        # Kept by both rules; its placebo is kept by the paper's alone, since it says less than other results.
        (scored_call("a", 1.0), [replace(sampled, information=0.5, placebo_information=0.1)]),
        # Kept by the paper's rule alone; its placebo by both, from exactly the thresholds on.
        (scored_call("b", 0.5), [replace(sampled, information=0.0, placebo_information=0.2)]),
        # Not kept, as its placebo, for which nothing was compared.
        (scored_call("c", 0.4), [replace(sampled, reduction_bound=0.4)]),
        # A pruned placebo is never kept, and counts as scored.
        (scored_call("d", 0.4), [replace(sampled, reduction_bound=9.0, reason=PRUNED)]),
        # A placebo that is not sampled and one that has no source are not counted.
        (scored_call("e", 0.6), [replace(sampled, is_sampled=False, information=0.2, placebo_information=0.9)]),
        (scored_call("f", 0.4), [PlaceboLoss(1, None, is_sampled=True, reason="no_other_result")]),
    ]
    paper = false_discovery_rate(calls, 1.0, 0.5, None)
    assert (paper.calls, paper.placebos) == (3, 2)
    # Five placebos were to be drawn for calls that are sampled, and four were scored: each stands for 5 / 4 calls.
    assert paper.false_discovery_rate == pytest.approx(2 * (5 / 4) / 3)
    informed = false_discovery_rate(calls, 1.0, 0.5, 0.2)
    assert (informed.calls, informed.placebos) == (2, 1)
    # Where the sample is a share of 0.8, each of the four stands for 5 / 0.8 / 4 calls.
    of_share = false_discovery_rate(calls, 0.8, 0.5, 0.2)
    assert of_share.false_discovery_rate == pytest.approx(1 * (5 / 0.8 / 4) / 2)
    assert false_discovery_rate(calls, 1.0, 0.6, None).calls == 2
    nothing = false_discovery_rate(calls[4:], 1.0, 0.5, None)
    assert (nothing.calls, nothing.placebos, nothing.false_discovery_rate) == (1, 0, None)
    assert [carries_information(placebos, 0.2) for _, placebos in calls] == [True, False, False, False, True, False]
    assert all(carries_information(placebos, None) for _, placebos in calls)


def test_a_call_without_losses_has_no_placebos_of_its_own_and_is_in_no_pool() -> None:
    draw = PlaceboDraw(Pool(placebos=3, sample_share=0.0, results=[]))
    reduced = ScoredCall(
        result="7", loss_without_call=WITHOUT, loss_without_result=WITHOUT, loss_with_result=2.5, reduction_bound=0.5
    )
    assert draw.reaches(reduced, 0.5)
    assert not draw.reaches(reduced, 0.51)
    assert not draw.reaches(replace(reduced, loss_without_result=None, reason=PRUNED), 0.5)
    assert not PlaceboDraw(Pool(placebos=0, sample_share=1.0, results=[])).reaches(reduced, 0.5)
    names = content_uuid("call"), content_uuid("document")
    in_pool = [
        JudgedCall(*names, 1, Call("Made", ""), scored).has_losses
        for scored in (
            reduced,
            replace(reduced, reason=PRUNED),
            replace(reduced, reason=NOT_FINITE),
            ScoredCall(reason="timed_out"),
        )
    ]
    assert in_pool == [True, True, False, False]


def test_a_draw_gives_other_results_of_other_documents_each_once_in_an_order_that_the_call_decides() -> None:
    def call(name: str) -> JudgedCall:
        scored = ScoredCall(result="own", loss_with_result=1.0, reduction_bound=1.0)
        return JudgedCall(content_uuid("call", name), content_uuid("home"), 1, Call("Made", name), scored)

    def pooled(number: int, document: str, result: str) -> PooledResult:
        return PooledResult(number, content_uuid("pooled", str(number)), content_uuid(document), result)

    useless = [pooled(0, "home", "of the same document"), pooled(1, "elsewhere", "own")]
    others = [pooled(2 + number, f"document {number % 4}", f"result {number % 8}") for number in range(24)]
    draw = PlaceboDraw(Pool(placebos=3, sample_share=0.5, results=useless + others))
    orders = set()
    for name in map(str, range(40)):
        drawn = [one.result for one in draw.of_call(call(name), 30)]
        assert sorted(drawn) == [f"result {number}" for number in range(8)]
        assert [one.result for one in draw.of_call(call(name), 3)] == drawn[:3]
        # An equal call elsewhere in the text draws the same: its passes are equal, too.
        elsewhere = replace(call(name), call_id=content_uuid("another"), token=9)
        assert [one.result for one in draw.of_call(elsewhere, 30)] == drawn
        # Neither the order of the pool nor what a call cannot have changes the order of the rest.
        without = PlaceboDraw(Pool(placebos=3, sample_share=0.5, results=others[::-1]))
        assert [one.result for one in without.of_call(call(name), 30)] == drawn
        orders.add(tuple(drawn[:3]))
    assert len(orders) > 30  # of 336
    # A call is sampled by its id alone: the smallest ids are.
    ids = [uuid.UUID(int=last) for last in (0, 2**62, 2**63, 2**64 - 1)]
    assert [draw.is_sampled(one) for one in ids] == [True, True, False, False]
