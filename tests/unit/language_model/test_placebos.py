"""Placebos by the engine against a plain computation: no cache, no batch, no shortcut."""

import math
from typing import Any

import pytest

from tests.unit.language_model.conftest import TEXT, Subject
from toolformer_ops.annotation.placebo import (
    JudgedCall,
    PlaceboDraw,
    information,
    score_placebos,
)
from toolformer_ops.annotation.scoring import PRUNED, ExecutedCall, ExecutedText, score_texts
from toolformer_ops.call_syntax import Call
from toolformer_ops.records import PlacedCall, content_uuid
from toolformer_ops.runs.choices import ScoringChoices
from toolformer_ops.runs.placebo_pools import Pool, PooledResult

K = 2
DOCUMENT = content_uuid("the document")
RESULTS = [
    PooledResult(
        number, content_uuid("call", str(number)), content_uuid("text", str(number % 5)), f"{number % 7} shirts"
    )
    for number in range(20)
]
POOL = Pool(placebos=K, sample_share=1.0, results=RESULTS)


def judged(subject: Subject, choices: ScoringChoices) -> list[JudgedCall]:
    """Calls at several places, with equal calls among them, scored as the stage does."""
    calls = [
        ExecutedCall(token, Call("Calculator", call_input), [f"{number} shirts"], None)
        for token in (3, 7, 12)
        for number, call_input in enumerate(("520 - 187", "7 * 7", "1 + 1"))
    ]
    [scored] = score_texts(lambda: subject.engine, choices, 0.5, [ExecutedText(TEXT, calls, None)])
    return [
        JudgedCall(content_uuid("here", str(index)), DOCUMENT, call.token, call.call, found)
        for index, (call, found) in enumerate(zip(calls, scored, strict=True))
    ]


def plainly(subject: Subject, call: JudgedCall, draw: PlaceboDraw) -> list[tuple[float, float, float]]:
    """By placebo: its loss, its reduction and the call's information against it."""

    def losses(result: str) -> Any:
        return subject.reference.losses(TEXT, PlacedCall(call.token, call.call, result))

    own = losses(str(call.scored.result))
    bound = min(own.without_call, own.without_result)
    others = [losses(one.result).with_result for one in draw.of_call(call, K + 1)]
    return [(loss, bound - loss, loss - own.with_result) for loss in others]


@pytest.mark.parametrize("prune_below", [0.0, 0.01])
def test_placebo_losses_and_information_are_those_of_a_plain_computation(subject: Subject, prune_below: float) -> None:
    choices, draw = ScoringChoices(prune_below=prune_below), PlaceboDraw(POOL)
    calls = judged(subject, choices)
    [found] = score_placebos(lambda: subject.engine, choices, [(TEXT, calls)], draw)
    seen: set[str] = set()
    for call, rows in zip(calls, found, strict=True):
        plain = plainly(subject, call, draw)
        first, *others = rows
        assert first.is_sampled
        assert not any(row.is_sampled for row in others)
        for row in rows:
            loss, reduction, saved = plain[row.number - 1]
            seen.add(row.reason or "scored")
            if row.loss_with_result is not None:
                assert row.loss_with_result == pytest.approx(loss, abs=1e-4)
            if row.reason is None:
                assert row.reduction_bound == pytest.approx(reduction, abs=1e-4)
            elif row.reason == PRUNED:
                assert reduction < prune_below  # the proof holds
            if row.information is not None:
                assert row.information == pytest.approx(saved, abs=1e-4)
        reaches = call.scored.loss_reduction is not None and call.scored.loss_reduction >= prune_below
        if reaches:
            assert information(rows) == pytest.approx(math.fsum(saved for _, _, saved in plain[:K]) / K, abs=1e-4)
        # A sampled placebo that reaches the bound is measured like a result: against the placebos after it.
        if first.reason is None and first.reduction_bound is not None and first.reduction_bound >= prune_below:
            against = math.fsum(loss for loss, _, _ in plain[1:]) / K - plain[0][0]
            assert first.placebo_information == pytest.approx(against, abs=1e-4)
            assert len(rows) == K + 1
        else:
            assert first.placebo_information is None
            assert len(rows) == (K if reaches else 1)
    assert seen >= ({"scored", PRUNED} if prune_below else {"scored"})
