"""Paired differences between the model with tools and each other variant, on the same inputs of the same data."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolformer_ops.evaluation.records import VARIANT_NAMES, SuiteScore
from toolformer_ops.evaluation.running import Evaluation
from toolformer_ops.evaluation.statistics import PairedDifference, paired_difference


@dataclass(frozen=True)
class Comparison:
    """How much more of a subset the model with tools gets right than another."""

    suite: str
    subset: str
    call_start_rank: int
    """k of the model with tools."""
    other: str
    """Name of the other variant."""
    inputs: int
    found: PairedDifference


def compare(evaluations: Sequence[Evaluation]) -> list[Comparison]:
    """One for each other evaluation of the same subset and data, in their order."""
    return [
        _comparison(first, second)
        for first in evaluations
        if first.score.variant == "with_tools"
        for second in evaluations
        if second.score.variant != "with_tools" and _same_data(first.score, second.score)
    ]


def _same_data(first: SuiteScore, second: SuiteScore) -> bool:
    return (first.suite, first.subset, first.data_sha256, first.inputs) == (
        second.suite,
        second.subset,
        second.data_sha256,
        second.inputs,
    )


def _comparison(first: Evaluation, second: Evaluation) -> Comparison:
    return Comparison(
        first.score.suite,
        first.score.subset,
        first.score.call_start_rank,
        VARIANT_NAMES[second.score.variant],
        first.score.inputs,
        paired_difference([one.correct for one in first.inputs], [one.correct for one in second.inputs]),
    )
