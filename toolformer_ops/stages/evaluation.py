"""Evaluate a run's models on one suite of the paper, with the language model that they came from.

Writes `evaluation_scores`. It evaluates those that the run has of: the language model M, M finetuned without
calls, and the model finetuned with calls, once with its calls disabled and once with tools (k 10, the
paper's). What has a score on the same inputs of the same files is not evaluated again. Every evaluated input
is written to S3 first (`evaluation/store.py`), then all scores of the suite in one transaction: a suite that
fails, as with a tool that is down, has none of this evaluation.
"""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row

from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings
from toolformer_ops.errors import EvaluationDataError, ToolError, UsageError
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.records import CALENDAR_DATE, SuiteScore, Variant
from toolformer_ops.evaluation.session import Entrant, Outcome, evaluate, load_suites
from toolformer_ops.evaluation.store import write_inputs, write_scores
from toolformer_ops.evaluation.suites import PERPLEXITY
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import require_identity
from toolformer_ops.runs.run_tools import require_run
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, queries

if TYPE_CHECKING:
    from toolformer_ops.decoding.model import WritingModel

logger = logging.getLogger(__name__)

CALL_START_RANK = DecodingSettings.call_start_rank


@dataclass(frozen=True)
class EvaluatedModel:
    """A model of the run."""

    name: str
    """Its name in the scores."""
    model_id: str | None
    """None for the language model itself."""
    address: str
    variants: tuple[tuple[Variant, int], ...]
    """Each with its k."""

    @classmethod
    def of_row(cls, row: Row[Any]) -> "EvaluatedModel":
        """A finetuned model of the run."""
        baseline: tuple[tuple[Variant, int], ...] = (("without_calls", 0),)
        toolformer: tuple[tuple[Variant, int], ...] = (("disabled", 0), ("with_tools", CALL_START_RANK))
        return cls(row.model_id, row.model_id, row.uri, baseline if row.without_calls else toolformer)


def evaluate_stage(settings: Settings, run_id: str, suite: str) -> int:
    """Evaluate the run's models on a suite; returns how many scores were written.

    Raises:
        UsageError: there is no such run or suite, or the run does not say where the data are.
        EvaluationDataError: the suite's data are not there, or of another format.
        ToolError: a tool is down; no score of the suite is written.
        ConfigurationError: the language model is not that of the run's start.
        ModelError, ObjectStoreError, DatabaseError: a model, S3 or Postgres fails.
    """
    # 1. The run with its models, and the suite's data, before any model is loaded.
    name = suite.partition(":")[0]  # math:gsm8k is one data set of math
    with database.transaction(database.connect(settings)) as connection:
        run = require_run(connection, run_id)
        finetuned = database.fetch_all(connection, queries.evaluation.models_of_run, run_id=run_id)
        stored_scores = {
            tuple(row)
            for row in database.fetch_all(
                connection, queries.evaluation.known_scores, run_id=run_id, suite=name
            )
        }
    choices = RunChoices.of_run(run.parameters)
    if not choices.evaluation_data:
        raise UsageError(
            f"run {run_id}: expected evaluation_data, a folder or s3:// address with the data sets, found "
            "none. docs/evaluation.md says what is in it."
        )
    base = EvaluatedModel(
        name=run.model_identity, model_id=None, address=choices.model, variants=(("base", 0),)
    )
    models = [*(EvaluatedModel.of_row(row) for row in reversed(finetuned)), base]
    outcome = Outcome()
    folder = DataFolder(settings, choices.evaluation_data)
    suites = load_suites(folder, [suite], choices.evaluation_inputs, outcome)
    if outcome.failures:
        raise EvaluationDataError(outcome.failures[name])
    inputs = [(loaded.data_set.name, len(loaded.questions), loaded.sha256) for loaded in suites[name]]

    # 2. Each model in the variants without a score on some data set. The model with tools is first: if a tool
    #    is down, the stage ends before it evaluates the others.
    def load(model: EvaluatedModel) -> "WritingModel":
        from toolformer_ops.decoding.model import WritingModel

        loaded = WritingModel.load(settings, model.address, tools=choices.tools)
        if model is base:
            require_identity(f"run {run_id} was started", base.name, loaded.identity, model.address)
        return loaded

    entrants = []
    for model in sorted(models, key=lambda model: model.variants[-1][0] != "with_tools"):
        # A perplexity has no tools.
        variants = model.variants[:1] if name == PERPLEXITY else model.variants
        undone = []
        for variant in variants:
            scores = {
                (subset, model.name, *variant, count, sha, CALENDAR_DATE) for subset, count, sha in inputs
            }
            if not scores <= stored_scores:
                undone.append(variant)
        if undone:
            entrants.append(
                Entrant(load=functools.partial(load, model), variants=tuple(undone), name=model.name)
            )
    evaluate(entrants, suites, outcome)
    if outcome.failures:
        raise ToolError(outcome.failures[name])
    if not outcome.scores:
        logger.info("suite %s of run %s has all its scores", suite, run_id)
        return 0
    # 3. The inputs and the scores are stored.
    written = _store(settings, run_id, outcome, models)
    logger.info("suite %s of run %s: %d scores", name, run_id, written)
    return written


def _store(settings: Settings, run_id: str, outcome: Outcome, models: Sequence[EvaluatedModel]) -> int:
    """Put the inputs of each variant on S3, then the scores into Postgres; returns how many scores are new."""
    store = ObjectStore(settings)
    store.require_bucket()

    def key(score: SuiteScore) -> tuple[str, str, int]:
        return score.suite, score.variant, score.call_start_rank

    evaluations = sorted(outcome.evaluations, key=lambda evaluation: key(evaluation.score))
    files = {}
    for score_key, group in groupby(evaluations, lambda evaluation: key(evaluation.score)):
        evaluated = chain.from_iterable(evaluation.inputs for evaluation in group)
        files[score_key] = write_inputs(store, run_id, list(evaluated))
    ids = {model.name: model.model_id for model in models}
    with database.transaction(database.connect(settings)) as connection:
        return write_scores(connection, run_id, outcome.scores, ids, files)
