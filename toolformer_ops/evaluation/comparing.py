"""Paired differences between the model with tools and each other variant, on the same inputs of the same data."""

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
    found: PairedDifference


def compare(evaluations: Sequence[Evaluation]) -> list[Comparison]:
    """One for each other evaluation of the same subset and data, in their order."""
    comparisons = []
    for ours in evaluations:
        for other in evaluations:
            first, second = ours.score, other.score
            same_data = (first.suite, first.subset, first.data_sha256, first.inputs) == (
                second.suite,
                second.subset,
                second.data_sha256,
                second.inputs,
            )
            if first.variant == "with_tools" and second.variant != "with_tools" and same_data:
                comparisons.append(
                    Comparison(
                        suite=first.suite,
                        subset=first.subset,
                        call_start_rank=first.call_start_rank,
                        other=VARIANT_NAMES[second.variant],
                        inputs=first.inputs,
                        found=paired_difference(
                            [one.correct for one in ours.inputs], [one.correct for one in other.inputs]
                        ),
                    )
                )
    return comparisons


def compare_inputs(inputs: Iterable[EvaluatedInput]) -> list[Comparison]:
    """One for each subset and other model, on the inputs that both answered, in the order of the inputs.

    Of the model with tools the evaluation with the largest k is taken.
    """
    correct: dict[tuple[str, str], dict[tuple[int, str, int], dict[int, bool]]] = defaultdict(lambda: defaultdict(dict))
    for one in inputs:
        answered = (VARIANTS.index(one.variant), one.model, one.call_start_rank)
        correct[one.suite, one.subset][answered][one.number] = one.correct
    comparisons = []
    for (suite, subset), by_model in correct.items():
        with_tools = [key for key in by_model if VARIANTS[key[0]] == "with_tools"]
        if not with_tools:
            continue
        ours = max(with_tools, key=lambda key: key[2])
        for other in sorted(by_model.keys() - set(with_tools)):
            shared = sorted(by_model[ours].keys() & by_model[other].keys())
            if shared:
                comparisons.append(
                    Comparison(
                        suite=suite,
                        subset=subset,
                        call_start_rank=ours[2],
                        other=VARIANT_NAMES[VARIANTS[other[0]]],
                        inputs=len(shared),
                        found=paired_difference(
                            [by_model[ours][number] for number in shared],
                            [by_model[other][number] for number in shared],
                        ),
                    )
                )
    return comparisons
