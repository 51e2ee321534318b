"""Evaluate a run's models on one suite of the paper, the language model that they came from beside them.

Owns `evaluation_scores`. Evaluated are, of those that there are: the language model M, M finetuned without calls, and the model
finetuned with calls, once with its calls disabled and once with tools (k 10, the paper's). What is scored already, on the same
inputs of the same files, is not evaluated again. Every evaluated input is written to S3 first (`evaluation/store.py`), then all
scores of the suite in one transaction: a suite that fails, as with a tool that is down, has none of this evaluation.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings
from toolformer_ops.errors import EvaluationDataError, ParameterError, RecipeMismatchError, ToolError
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.records import SuiteScore, Variant
from toolformer_ops.evaluation.session import Entrant, LoadedSuite, Outcome, evaluate, load_suites
from toolformer_ops.evaluation.store import InputsFile, write_inputs, write_scores
from toolformer_ops.evaluation.suites import PERPLEXITY
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage import database
from toolformer_ops.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from toolformer_ops.decoding.model import WritingModel

logger = logging.getLogger(__name__)

CALL_START_RANK = DecodingSettings.call_start_rank


@dataclass(frozen=True)
class EvaluatedModel:
    """A model of the run."""

    name: str
    """What the scores call it."""
    model_id: str | None
    """None for the language model itself."""
    address: str
    variants: tuple[tuple[Variant, int], ...]


@dataclass(frozen=True)
class EvaluationRun:
    """What a run asks for."""

    run_id: str
    choices: RunChoices
    model_identity: str
    models: tuple[EvaluatedModel, ...]
    known: frozenset[tuple[Any, ...]]
    """What of the suite is scored already: subset, model, variant, k, inputs, hash of the data."""


def evaluate_stage(settings: Settings, run_id: str, suite: str) -> int:
    """Evaluate the run's models on a suite; how many scores were written.

    Raises:
        ParameterError: there is no such run or suite, or the run says nowhere where the data lie.
        EvaluationDataError: the suite's data are not there, or of another format.
        ToolError: a tool is down; no score of the suite is written.
        RecipeMismatchError: the language model is not the one that the run was started with.
        ModelError, ObjectStoreError, DatabaseError: a model, S3 or Postgres fails.
    """
    name = suite.partition(":")[0]  # math:gsm8k is one data set of math
    run = _load_run(settings, run_id, name)
    outcome = Outcome()
    folder = DataFolder(settings, run.choices.evaluation_data)
    suites = load_suites(folder, [suite], run.choices.evaluation_inputs, outcome)
    if outcome.failures:
        raise EvaluationDataError(outcome.failures[name])
    evaluate(_entrants(settings, run, suites[0]), suites, outcome)
    if outcome.failures:
        raise ToolError(outcome.failures[name])
    if not outcome.scores:
        logger.info("suite %s of run %s is scored already", suite, run_id)
        return 0
    return _write(settings, run, outcome)


def _load_run(settings: Settings, run_id: str, suite: str) -> EvaluationRun:
    with database.transaction(database.connect(settings)) as connection:
        runs = database.fetch_all(connection, "run_by_id", run_id=run_id)
        finetuned = database.fetch_all(connection, "evaluation_models_of_run", run_id=run_id)
        known = database.fetch_all(connection, "evaluation_known_scores", run_id=run_id, suite=suite)
    if not runs:
        raise ParameterError(f"--run: expected a started run, found {run_id!r}. The table annotation_runs lists them.")
    choices = RunChoices.parse(runs[0].parameters)
    if not choices.evaluation_data:
        raise ParameterError(
            f"run {run_id}: expected evaluation_data, a folder or s3:// address with the data sets, found none. "
            "docs/evaluation.md says what lies in it."
        )
    identity = runs[0].model_identity
    models = [EvaluatedModel(identity, None, choices.model, (("base", 0),))]
    for row in finetuned:
        baseline: tuple[tuple[Variant, int], ...] = (("without_calls", 0),)
        toolformer: tuple[tuple[Variant, int], ...] = (("disabled", 0), ("with_tools", CALL_START_RANK))
        models.insert(
            0, EvaluatedModel(row.model_id, row.model_id, row.uri, baseline if row.without_calls else toolformer)
        )
    ordered = sorted(models, key=lambda model: model.variants[-1][0] != "with_tools")  # a tool that is down shows first
    return EvaluationRun(run_id, choices, identity, tuple(ordered), frozenset(tuple(row) for row in known))


def _entrants(settings: Settings, run: EvaluationRun, suite: LoadedSuite) -> list[Entrant]:
    """The models with what of theirs is not scored yet."""
    found = []
    for model in run.models:
        variants = tuple(one for one in _variants(model, suite) if not _is_known(run, model, one, suite))
        if variants:
            found.append(Entrant(_loader(settings, run, model), variants, model.name))
    return found


def _variants(model: EvaluatedModel, suite: LoadedSuite) -> Sequence[tuple[Variant, int]]:
    return model.variants[:1] if suite.name == PERPLEXITY else model.variants  # a perplexity has no tools


def _is_known(run: EvaluationRun, model: EvaluatedModel, variant: tuple[Variant, int], suite: LoadedSuite) -> bool:
    of_questions = [(one.data_set.name, len(one.questions), one.sha256) for one in suite.questions]
    of_texts = [(one.data_set.name, len(one.texts), one.sha256) for one in suite.texts]
    return all((name, model.name, *variant, inputs, sha) in run.known for name, inputs, sha in of_questions + of_texts)


def _loader(settings: Settings, run: EvaluationRun, model: EvaluatedModel) -> "Callable[[], WritingModel]":
    def load() -> "WritingModel":
        from toolformer_ops.decoding.model import WritingModel

        loaded = WritingModel.load(settings, model.address, tools=run.choices.tools)
        if model.model_id is None and loaded.identity != run.model_identity:
            raise RecipeMismatchError(
                f"run {run.run_id} was started with the model {run.model_identity}, found {loaded.identity} at {model.address}. "
                "Put the first one back, or start a new run."
            )
        return loaded

    return load


def _write(settings: Settings, run: EvaluationRun, outcome: Outcome) -> int:
    store = ObjectStore(settings)
    store.require_bucket()
    files: dict[tuple[str, str, int], InputsFile] = {}
    for key, group in groupby(
        sorted(outcome.evaluations, key=lambda one: _key(one.score)), lambda one: _key(one.score)
    ):
        files[key] = write_inputs(store, run.run_id, [one for evaluation in group for one in evaluation.inputs])
    ids = {model.name: model.model_id for model in run.models}
    with database.transaction(database.connect(settings)) as connection:
        written = write_scores(connection, run.run_id, outcome.scores, ids, files)
    logger.info("suite %s of run %s: %d scores", outcome.scores[0].suite, run.run_id, written)
    return written


def _key(score: SuiteScore) -> tuple[str, str, int]:
    return score.suite, score.variant, score.call_start_rank
