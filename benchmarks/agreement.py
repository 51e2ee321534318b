"""Whether two ways to annotate the same texts sample the same calls and keep the same calls.

A sampled call may differ where a draw is so close to the border between two tokens that rounding decides it; how close it was
at the very token where the two part is looked up, and what is not explained so is counted by itself.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.reference import ReferenceSample
from toolformer_ops.records import CallLosses, SampledContinuation

BORDER = 1e-4
"""A draw nearer than this to the border between two tokens may be decided by rounding."""


@dataclass(frozen=True)
class SampleAgreement:
    """Samples compared one by one."""

    samples: int
    differing: int
    not_explained: int
    """Of the differing ones those where the draw at which they part was not at a border."""
    draws: int
    """Tokens that the reference drew."""
    draws_at_border: int


@dataclass(frozen=True)
class KeptAgreement:
    """Kept calls compared at one threshold."""

    threshold: float
    """Nats."""
    calls: int
    kept: int
    """By the reference."""
    kept_by_both: int
    differing: int
    """Kept by one alone."""


@dataclass(frozen=True)
class LossError:
    """How far loss reductions lie from the reference's, over calls with all losses; nats."""

    calls: int
    mean: float
    percentile_95: float
    largest: float


def compare_samples(pairs: Iterable[tuple[ReferenceSample, SampledContinuation]]) -> SampleAgreement:
    """Compare the reference's samples with another's."""
    samples = differing = not_explained = draws = at_border = 0
    for expected, found in pairs:
        samples += 1
        draws += len(expected.steps)
        at_border += sum(step.border_distance < BORDER for step in expected.steps)
        if expected.continuation != found:
            differing += 1
            not_explained += _distance_where_they_part(expected, found) >= BORDER
    return SampleAgreement(samples, differing, not_explained, draws, at_border)


def _distance_where_they_part(expected: ReferenceSample, found: SampledContinuation) -> float:
    for step in expected.steps:
        if not found.text.startswith(step.text.partition("]")[0].rstrip("\ufffd")):
            return step.border_distance
    return expected.steps[-1].border_distance


def compare_kept(
    expected: Sequence[CallLosses | None], found: Sequence[CallLosses | None], threshold: float
) -> KeptAgreement:
    """Compare which calls are kept; None is a call that was never made."""
    pairs = [(is_kept(one, threshold), is_kept(other, threshold)) for one, other in zip(expected, found, strict=True)]
    return KeptAgreement(
        threshold=threshold,
        calls=len(pairs),
        kept=sum(one for one, _ in pairs),
        kept_by_both=sum(one and other for one, other in pairs),
        differing=sum(one != other for one, other in pairs),
    )


def is_kept(losses: CallLosses | None, threshold: float) -> bool:
    """Whether a call is kept at `threshold` nats; one whose losses were not all computed is not."""
    return losses is not None and not losses.pruned and losses.reduction_bound >= threshold


def loss_error(
    expected: Sequence[CallLosses | None], found: Sequence[CallLosses | None], number_format: str
) -> LossError | None:
    """The error of loss reductions that were computed in `number_format`; None where there are none."""
    errors = sorted(
        abs(one.reduction_bound - other.reduction_bound)
        for one, other in zip(expected, found, strict=True)
        if one and other and not one.pruned and not other.pruned and other.number_format == number_format
    )
    if not errors:
        return None
    at_95 = errors[math.ceil(0.95 * len(errors)) - 1]
    return LossError(len(errors), statistics.fmean(errors), at_95, errors[-1])
