"""Which losses are computed again in more exact numbers: a ladder of number formats up to float32.

    bfloat16 or float16    all calls
    tf32                   those that the rounding of the first may bring over a threshold; on GPUs that have it
    float32                those that the rounding of TF32 may bring over a threshold

TF32 computes with the float32 weights, whose products it rounds to 10 bits of mantissa. Measured with 7B
parameters on an H200, milliseconds a call and nats from float32 at most: bfloat16 7.0 and 0.14, TF32 13.6 and
0.008, float32 76.

The kept calls are those of float32. Proof: let r be a call's loss reduction in float32, and r_k what rung k
computes, with |r_k - r| <= m_k, the margin of the rung. Rung k decides a call if |r_k - t| > m_k for each
threshold t that is asked for. Then r_k >= t exactly if r >= t. A call that no rung decides is float32's, and
one whose losses are not finite is computed again as well. A call that is pruned has a bound of r, with the
same error, that is below `prune_below` by more than m_k (`scoring.surely_below`).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    first = rungs[0]
    losses = score(first, texts)
    undecided: list[list[int]] = []
    exact: list[list[int]] = []
    for text_losses in losses:
        undecided.append([])
        exact.append([])
        for index, call in enumerate(text_losses):
            decided = first.decides(call, thresholds)
            if not decided and math.isfinite(call.reduction_bound):
                text_losses[index] = dataclasses.replace(call, within_rounding=True)
            if call.reduction_bound >= always_from - first.rounding_nats:
                exact[-1].append(index)
            elif not decided:
                undecided[-1].append(index)
    # 2. Those that are undecided, rung by rung.
    for rung in rungs[1:]:
        if rung is rungs[-1]:
            undecided = [sorted(one + other) for one, other in zip(undecided, exact, strict=True)]
        if not any(undecided):
            continue
        again = []
        for (text, calls), indices in zip(texts, undecided, strict=True):
            again.append((text, [calls[index] for index in indices]))
        left: list[list[int]] = []
        for text_losses, indices, better in zip(losses, undecided, score(rung, again), strict=True):
            left.append([])
            for index, call in zip(indices, better, strict=True):
                text_losses[index] = dataclasses.replace(
                    call, within_rounding=text_losses[index].within_rounding
                )
                if not rung.decides(call, thresholds):
                    left[-1].append(index)
        undecided = left
    return losses
