"""Which losses are computed again in more exact numbers: a ladder of number formats up to float32.

    bfloat16 or float16    all calls
    tf32                   those that the rounding of the first may bring over a threshold; on GPUs with TF32
    float32                those that the rounding of TF32 may bring over a threshold

TF32 computes with the float32 weights, whose products it rounds to 10 bits of mantissa. Measured with 7B
parameters on an H200, milliseconds a call and nats from float32 at most: bfloat16 6.1 and 0.15, TF32 13.6 and
0.014, float32 71.

The kept calls are those of float32. Proof: let r be a call's loss reduction in float32, and r_k what rung k
computes, with |r_k - r| <= m_k, the margin of the rung. Rung k decides a call if |r_k - t| > m_k for each
threshold t that is asked for. Then r_k >= t exactly if r >= t. A call that no rung decides is float32's, and
one whose losses are not finite is computed again as well. A call that is pruned has a bound of r, with the
same error, that is below `prune_below` by more than m_k (`scoring.surely_below`).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolformer_ops.language_model.tokenization import TokenizedText
from toolformer_ops.records import CallLosses, PlacedCall

Texts = Sequence[tuple[TokenizedText, Sequence[PlacedCall]]]


@dataclass(frozen=True)
class Rung:
    """A number format, and how far a loss reduction in it may be from float32's."""

    number_format: str
    rounding_nats: float

    def decides(self, losses: CallLosses, thresholds: Sequence[float]) -> bool:
        """Whether the call is on the same side of each threshold in float32."""
        bound = losses.reduction_bound
        if not math.isfinite(bound):
            return False
        return all(abs(bound - threshold) > self.rounding_nats for threshold in thresholds)


def verified_losses(
    score: Callable[[Rung, Texts], list[list[CallLosses]]],
    texts: Texts,
    rungs: Sequence[Rung],
    thresholds: Sequence[float],
    always_from: float = math.inf,
) -> list[list[CallLosses]]:
    """The losses of each call of each text, in order, each by the first rung that decides it.

    `score` computes losses in a rung's number format, those of all texts together. Calls that the first
    rung's rounding may bring over a threshold are marked `within_rounding`. Those whose reduction may reach
    `always_from` are computed by the last rung whatever decides them.
    """
    # 1. All calls.
    scored = [
        _ScoredText(text, calls, losses)
        for (text, calls), losses in zip(texts, score(rungs[0], texts), strict=True)
    ]
    for each in scored:
        each.judge(rungs[0], thresholds, always_from)
    # 2. Those that are undecided, rung by rung.
    for rung in rungs[1:]:
        if rung is rungs[-1]:
            for each in scored:
                each.undecided = sorted(each.undecided + each.exact)
        if any(each.undecided for each in scored):
            better = score(rung, [(each.text, each.undecided_calls) for each in scored])
            for each, better_losses in zip(scored, better, strict=True):
                each.take(rung, better_losses, thresholds)
    return [each.losses for each in scored]


@dataclass
class _ScoredText:
    """A text with the losses that its calls have so far."""

    text: TokenizedText
    calls: Sequence[PlacedCall]
    losses: list[CallLosses]
    undecided: list[int] = field(default_factory=list)
    """Indices of the calls that no rung has decided."""
    exact: list[int] = field(default_factory=list)
    """Indices of the calls that the last rung computes whatever decides them."""

    @property
    def undecided_calls(self) -> list[PlacedCall]:
        """The calls that no rung has decided."""
        return [self.calls[index] for index in self.undecided]

    def judge(self, first: Rung, thresholds: Sequence[float], always_from: float) -> None:
        """Say which calls the first rung leaves to others, and mark those that its rounding may change."""
        for index, losses in enumerate(self.losses):
            is_decided = first.decides(losses, thresholds)
            if not is_decided and math.isfinite(losses.reduction_bound):
                self.losses[index] = dataclasses.replace(losses, within_rounding=True)
            if losses.reduction_bound >= always_from - first.rounding_nats:
                self.exact.append(index)
            elif not is_decided:
                self.undecided.append(index)

    def take(self, rung: Rung, better: Sequence[CallLosses], thresholds: Sequence[float]) -> None:
        """Take a rung's losses of the undecided calls, of which those stay that it does not decide."""
        left = []
        for index, losses in zip(self.undecided, better, strict=True):
            within_rounding = self.losses[index].within_rounding
            self.losses[index] = dataclasses.replace(losses, within_rounding=within_rounding)
            if not rung.decides(losses, thresholds):
                left.append(index)
        self.undecided = left
