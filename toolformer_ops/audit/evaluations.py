"""Checks of what was made of a run's models: scores against the evaluated inputs on S3, and whose models they are.

A share of right answers follows from the file of inputs that its row names. A new evaluation of a suite
replaces that file: a score of an earlier one is proved if the file still gives it, and not provable if it
does not. Nothing is left of a perplexity to compute it from.
"""

import contextlib
import hashlib
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from toolformer_ops.audit.auditing import Auditing, Check, Page
from toolformer_ops.errors import ObjectNotFoundError
from toolformer_ops.evaluation.records import EvaluatedInput
from toolformer_ops.evaluation.running import SHARE_CORRECT, ShareCorrect
from toolformer_ops.evaluation.store import parsed_inputs
from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.runs.choices import FinetuningChoices, RunChoices
from toolformer_ops.runs.recipes import id_of_content
from toolformer_ops.storage.postgres import database, queries

OF_CODE = ("finetuning_version", "objective", "schedule", "max_gradient_norm")
"""What a model's definition holds of the code that trained it, not of the run."""


def scores(auditing: Auditing, run_id: str, _: str) -> Page:
    """The shares of right answers of a run are those of its evaluated inputs."""
    page = Page()
    rows = database.fetch_all(auditing.engine, queries.audited_rows.scores, run_id=run_id)
    files: dict[str, list[EvaluatedInput] | None] = {}
    hashes: dict[str, str] = {}
    for row in rows:
        page.items += 1
        if row.metric != SHARE_CORRECT:
            page.unprovable += 1
            continue
        if row.inputs_uri is not None and row.inputs_uri not in files:
            content = b""
            files[row.inputs_uri] = None
            with contextlib.suppress(ObjectNotFoundError, ValueError):  # no file, or not one of inputs
                content = auditing.store.get(auditing.store.key_of(row.inputs_uri))
                files[row.inputs_uri] = list(parsed_inputs(content))
            hashes[row.inputs_uri] = hashlib.sha256(content).hexdigest()
        _compare(
            page, row, files.get(row.inputs_uri), is_same_file=hashes.get(row.inputs_uri) == row.inputs_sha256
        )
    return page


def _compare(page: Page, row: Row[Any], file: Sequence[EvaluatedInput] | None, *, is_same_file: bool) -> None:
    """Add a finding if a score does not follow from the file that its row names."""
    place = f"{row.suite} {row.subset} of {row.model} {row.variant} k{row.call_start_rank} in {row.run_id}"
    remedy = f"Delete the row, and evaluate again: `toolformer-ops stage evaluate --run {row.run_id} --suite {row.suite}`."
    if file is None:
        place_of_file = "none" if row.inputs_uri is None else f"none at {row.inputs_uri}"
        page.add(
            "changed",
            "evaluation_scores",
            place,
            f"expected the file of its inputs, found {place_of_file}",
            remedy,
        )
        return
    key = operator.attrgetter("suite", "subset", "model", "variant", "call_start_rank")
    own = [item for item in file if key(item) == key(row)]
    numbers: Mapping[str, Any] = vars(ShareCorrect.of(own)) if own else {"inputs": 0}
    differing = []
    for name, value in numbers.items():
        stored = getattr(row, name)
        is_equal = stored == value
        # The ends of an interval may differ in their last digits on another machine.
        if isinstance(stored, float) and isinstance(value, float):
            is_equal = math.isclose(stored, value, rel_tol=1e-9, abs_tol=1e-12)
        if not is_equal:
            differing.append(name)
    if not differing:
        return
    if not is_same_file and row.is_replaced:
        page.unprovable += 1
        return
    name = differing[0]
    what = f"expected {name} {numbers[name]}, as its inputs give, found {getattr(row, name)}"
    if not is_same_file:
        what += f"; the file {row.inputs_uri} is not the one with the hash {row.inputs_sha256}"
    page.add("changed", "evaluation_scores", place, what, remedy)


def models_of_runs(auditing: Auditing, run_id: str, _: str) -> Page:
    """The models of a run are trained on its release, from its language model, with its choices."""
    page = Page()
    for row in database.fetch_all(auditing.engine, queries.audited_rows.models_of_run, run_id=run_id):
        page.items += 1
        if id_of_content(row.definition) != row.model_id:  # found as that
            continue
        recipe = FinetuningRecipe(
            release_id=row.of_run_release_id if row.is_of_last_release else row.release_id,
            base_model=row.model_identity,
            choices=RunChoices.of_run(row.parameters).part(FinetuningChoices),
            without_calls=row.without_calls,
        )
        # What decides the model and is stored otherwise, but for what its code decides.
        differing = []
        for name, value in recipe.definition.items():
            if name not in OF_CODE and name in row.definition and row.definition[name] != value:
                differing.append(f"{name} {value!r}, found {row.definition[name]!r}")
        if differing:
            kind = "baseline" if row.without_calls else "model"
            what = f"expected a model of the run, with {differing[0]} in {row.model_id}"
            remedy = "Restore the row from a backup, or publish the run's model again: `toolformer-ops stage publish --run RUN`."
            page.add("changed", "run_models", f"{kind} of {run_id}", what, remedy)
    return page


def _runs(auditing: Auditing) -> Sequence[str]:
    return auditing.subjects.run_ids if auditing.subjects.has_rows else []


EVALUATION_CHECKS = (Check("models of runs", _runs, models_of_runs), Check("scores", _runs, scores))
