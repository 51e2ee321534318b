"""Paired differences between the model with tools and each other variant, on equal inputs of equal data."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolformer_ops.evaluation.records import VARIANT_NAMES, VARIANTS, EvaluatedInput
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
    paired: PairedDifference


def compare(evaluations: Sequence[Evaluation]) -> list[Comparison]:
    """A comparison with each other variant's evaluation on the same subset and data, in their order."""

    def data(evaluation: Evaluation) -> tuple[object, ...]:
        score = evaluation.score
        return score.suite, score.subset, score.data_sha256, score.inputs

    comparisons = []
    for ours, other in itertools.product(evaluations, repeat=2):
        if ours.score.variant == "with_tools" != other.score.variant and data(ours) == data(other):
            comparisons.append(_compared(ours.inputs, other.inputs))
    return [comparison for comparison in comparisons if comparison]


def compare_inputs(inputs: Iterable[EvaluatedInput]) -> list[Comparison]:
    """A comparison for each subset and other model, on the inputs that both answered, in their order.

    Of the model with tools the evaluation with the largest k is taken.
    """
    subsets: dict[tuple[str, str], dict[tuple[int, str, int], list[EvaluatedInput]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for answer in inputs:
        answered = (VARIANTS.index(answer.variant), answer.model, answer.call_start_rank)
        subsets[answer.suite, answer.subset][answered].append(answer)
    pairs = []
    for by_model in subsets.values():
        with_tools = [key for key in by_model if VARIANTS[key[0]] == "with_tools"]
        if with_tools:
            ours = max(with_tools, key=lambda key: key[2])
            pairs += [
                _compared(by_model[ours], by_model[key]) for key in sorted(by_model.keys() - set(with_tools))
            ]
    return [comparison for comparison in pairs if comparison]


def _compared(ours: Sequence[EvaluatedInput], others: Sequence[EvaluatedInput]) -> Comparison | None:
    """The comparison on the inputs that both answered; None if there are none."""
    theirs = {answer.number: answer.correct for answer in others}
    shared = {
        answer.number: (answer.correct, theirs[answer.number]) for answer in ours if answer.number in theirs
    }
    if not shared:
        return None
    return Comparison(
        suite=ours[0].suite,
        subset=ours[0].subset,
        call_start_rank=ours[0].call_start_rank,
        other=VARIANT_NAMES[others[0].variant],
        inputs=len(shared),
        paired=paired_difference(*zip(*shared.values(), strict=True)),
    )
