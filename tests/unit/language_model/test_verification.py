"""The ladder of number formats: with rounding injected into each rung, the kept calls are those of float32."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolformer_ops.language_model.scoring import Rung, verified_losses
from toolformer_ops.records import CallLosses

MARGINS = {"bfloat16": 0.25, "tf32": 0.05, "float32": 0.0}
RUNGS = [Rung(number_format, margin) for number_format, margin in MARGINS.items()]
THRESHOLDS = (0.5, 1.0)


class Rounding:
    """Computes a call's losses, whose reduction in float32 is the call itself, with an error that each rung allows."""

    def __init__(self, errors: Sequence[float]) -> None:
        """`errors`: shares of the margin, taken in turn."""
        self.errors = errors
        self.asked: list[tuple[str, list[float]]] = []

    def __call__(self, rung: Rung, texts: Any) -> list[list[CallLosses]]:
        self.asked.append((rung.number_format, [call for _, calls in texts for call in calls]))
        return [[self.losses(rung, call, place) for place, call in enumerate(calls)] for _, calls in texts]

    def losses(self, rung: Rung, call: float, place: int) -> CallLosses:
        error = rung.margin * self.errors[place % len(self.errors)]
        reduction = math.nan if math.isinf(call) and rung.number_format == "bfloat16" else call + error
        return CallLosses(
            10.0 + reduction, 12.0 + max(0.0, reduction), 10.0, number_format=rung.number_format
        )


def verified(
    calls: Sequence[Sequence[float]], errors: Sequence[float] = (0.0,), **changed: Any
) -> tuple[list[list[CallLosses]], Rounding]:
    rounding = Rounding(errors)
    texts: Any = [(f"text {number}", list(of_text)) for number, of_text in enumerate(calls)]
    arguments: dict[str, Any] = {"rungs": RUNGS, "thresholds": THRESHOLDS} | changed
    return verified_losses(rounding, texts, **arguments), rounding


REDUCTIONS = st.one_of(
    st.floats(-1.0, 2.0),
    st.sampled_from(THRESHOLDS).flatmap(lambda threshold: st.floats(threshold - 0.3, threshold + 0.3)),
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.lists(st.lists(REDUCTIONS, max_size=6), max_size=4),
    st.lists(st.floats(-0.999, 0.999), min_size=1, max_size=5),
)
def test_the_kept_calls_are_those_of_float32(calls, errors):
    losses, _ = verified(calls, errors)
    for threshold in THRESHOLDS:
        kept = [[call.reduction_bound >= threshold for call in of_text] for of_text in losses]
        # As the sum and difference of the losses give it.
        exact = [[(10.0 + reduction) - 10.0 >= threshold for reduction in of_text] for of_text in calls]
        assert kept == exact


@pytest.mark.parametrize(
    ("reduction", "number_format"),
    [
        (0.2, "bfloat16"),  # 0.3 below the threshold
        (0.3, "tf32"),  # within bfloat16's margin of it, beyond TF32's
        (0.46, "float32"),
        (0.5, "float32"),
        (0.7, "tf32"),
        (0.96, "float32"),
        (1.3, "bfloat16"),
    ],
)
def test_a_call_has_the_losses_of_the_first_rung_that_decides_it(reduction, number_format):
    [[call]], _ = verified([[reduction]])
    assert call.number_format == number_format


def test_a_call_within_the_margin_of_the_first_rung_is_marked_whichever_decides_it():
    [losses], _ = verified([[0.2, 0.3, 0.46]])
    assert [call.within_rounding for call in losses] == [False, True, True]


def test_a_call_without_finite_losses_is_computed_by_the_next_rung():
    [[overflown]], rounding = verified([[math.inf]])
    assert [number_format for number_format, _ in rounding.asked] == ["bfloat16", "tf32", "float32"]
    assert not overflown.within_rounding


def test_the_calls_of_all_texts_are_computed_together_on_each_rung():
    _, rounding = verified([[0.3, 5.0], [0.46], []])
    assert rounding.asked == [
        ("bfloat16", [0.3, 5.0, 0.46]),
        ("tf32", [0.3, 0.46]),
        ("float32", [0.46]),
    ]


def test_a_rung_without_a_call_is_left_out():
    _, rounding = verified([[5.0]])
    assert [number_format for number_format, _ in rounding.asked] == ["bfloat16"]


def test_calls_that_may_reach_a_threshold_are_always_float32_where_that_is_asked_for():
    [losses], rounding = verified([[0.1, 0.3, 5.0]], always_from=0.5)
    assert [call.number_format for call in losses] == ["bfloat16", "float32", "float32"]
    assert [number_format for number_format, _ in rounding.asked] == ["bfloat16", "float32"]


def test_without_a_verification_the_first_rung_decides_all():
    [losses], _ = verified([[0.2, 0.46]], rungs=RUNGS[:1])
    assert [(call.number_format, call.within_rounding) for call in losses] == [
        ("bfloat16", False),
        ("bfloat16", True),
    ]
