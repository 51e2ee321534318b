"""Evaluate models on suites: data first, then model by model, each loaded once for all its variants.

Data are read before any model is loaded, so that a missing file costs no time. A suite whose tool is down, or
whose data are not there, fails by name: its scores of all models are dropped, and the other suites continue.
Of a suite that is named as a whole (`math`) those data sets are evaluated that are there, with a warning for
each other one; a data set that is named itself (`math:gsm8k`) must be there.
"""

import dataclasses
import gc
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolformer_ops.errors import EvaluationDataError, MissingDataSetError, ToolError, UsageError
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.records import SuiteScore, Variant
from toolformer_ops.evaluation.running import (
    Evaluation,
    ModelVariant,
    evaluate_data_set,
    evaluate_texts,
)
from toolformer_ops.evaluation.suites import DATA_SETS, PERPLEXITY, SUITES
from toolformer_ops.evaluation.suites.base import DataSet, LoadedDataSet, load_data_set

if TYPE_CHECKING:
    from toolformer_ops.decoding.model import WritingModel

logger = logging.getLogger(__name__)


LoadedSuites = Mapping[str, Sequence[LoadedDataSet]]
"""The data sets of each suite, by its name; of perplexity they hold texts."""


@dataclass(frozen=True)
class Entrant:
    """A model that is still to be loaded, with the variants that it is evaluated in."""

    load: Callable[[], "WritingModel"]
    variants: tuple[tuple[Variant, int], ...]
    """Each with its k."""
    name: str = ""
    """What the scores call it; empty takes the identity of the model."""


@dataclass
class Outcome:
    """What an evaluation gave."""

    scores: list[SuiteScore] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    """With every input; none of perplexity."""
    failures: dict[str, str] = field(default_factory=dict)
    """Suites that have no score, with the reason."""
    left_out: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """How many inputs are not asked, by suite, subset and reason; no entry for a subset of which all are
    asked."""

    def fail(self, suite: str, reason: str) -> None:
        """Give a suite up, with what it has so far."""
        logger.error("suite %s failed: %s", suite, reason)
        self.failures[suite] = reason
        self.scores = [score for score in self.scores if score.suite != suite]
        self.evaluations = [evaluation for evaluation in self.evaluations if evaluation.score.suite != suite]


def load_suites(
    folder: DataFolder, names: Sequence[str], limit: int | None, outcome: Outcome
) -> LoadedSuites:
    """The data of suites, named as `math` or, one data set alone, as `math:gsm8k`.

    A failure is written into `outcome`.

    Raises:
        UsageError: there is no such suite or data set.
        EvaluationDataError: the data folder is not there.
    """
    # 1. Suites in the order asked for, with the data sets that are named; None for all of a suite.
    chosen: dict[str, tuple[DataSet, ...] | None] = {}
    for name in names:
        suite, _, subset = name.strip().partition(":")
        if suite not in DATA_SETS:
            raise UsageError(f"--suite: expected names of {', '.join(DATA_SETS)}, found {name!r}.")
        if not subset:
            chosen[suite] = None
            continue
        data_sets_by_name = {data_set.name: data_set for data_set in DATA_SETS[suite]}
        if subset not in data_sets_by_name:
            raise UsageError(
                f"--suite: expected {suite}: with one of {', '.join(data_sets_by_name)}, found {name!r}."
            )
        before = chosen.get(suite, ())
        chosen[suite] = None if before is None else (*before, data_sets_by_name[subset])

    # 2. Their files: the named data sets, or all of the suite that are there.
    folder.require()
    loaded: dict[str, list[LoadedDataSet]] = {}
    for suite, named in chosen.items():
        there: list[LoadedDataSet] = []
        missing: list[str] = []
        try:
            for data_set in named or DATA_SETS[suite]:
                try:
                    there.append(load_data_set(folder, data_set, limit))
                except MissingDataSetError as error:
                    if named:
                        raise
                    missing.append(str(error))
        except EvaluationDataError as error:
            there, missing = [], [str(error)]
        if not there:
            outcome.fail(suite, " ".join(missing))
            continue
        for reason in missing:
            logger.warning("suite %s is evaluated without a data set. %s", suite, reason)
        loaded[suite] = there
        outcome.left_out[suite] = {
            data_set_there.data_set.name: dict(data_set_there.left_out)
            for data_set_there in there
            if data_set_there.left_out
        }
    return loaded


def evaluate(entrants: Iterable[Entrant], suites: LoadedSuites, outcome: Outcome) -> Outcome:
    """Evaluate every entrant on every suite that has not failed."""
    for entrant in entrants:
        if outcome.failures.keys() >= suites.keys():
            break
        model = entrant.load()
        variants = [
            ModelVariant(model, entrant.name or model.identity, variant, rank)
            for variant, rank in entrant.variants
        ]
        for suite, data_sets in suites.items():
            if suite in outcome.failures:
                continue
            if suite == PERPLEXITY:
                # Texts are read once, with calls disabled for every k.
                first = variants[0]
                variant: Variant = "disabled" if first.variant == "with_tools" else first.variant
                disabled = dataclasses.replace(first, variant=variant, call_start_rank=0)
                for texts in data_sets:
                    outcome.scores += evaluate_texts(disabled, texts)
                continue
            try:
                # With tools first: a tool that is down is noticed before anything else.
                for in_variant in reversed(variants):
                    for questions in data_sets:
                        evaluation = evaluate_data_set(in_variant, SUITES[suite], questions)
                        outcome.evaluations.append(evaluation)
                        outcome.scores.append(evaluation.score)
            except ToolError as error:
                outcome.fail(suite, str(error))
        del model, variants
        gc.collect()  # the model's weights are freed before the next model is loaded
    return outcome
