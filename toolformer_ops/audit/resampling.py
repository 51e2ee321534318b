"""Compute calls again with the engine, from their texts to their losses, and compare them with the stored rows.

Each stage computes a document's rows from what is stored of the stage before, as it does in a run, but into
memory. Documents are chosen by content and a seed. Rows have to be equal; numbers of a model may differ by
`TOLERANCE`, since another machine, batch or library rounds in another order.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from toolformer_ops.audit.auditing import Auditing, Check, Kind, Page
from toolformer_ops.errors import UsageError
from toolformer_ops.records import Document, content_uuid
from toolformer_ops.runs.models import RunModel
from toolformer_ops.runs.recipes import proposer_identity, tool_proposes, tool_recipes
from toolformer_ops.runs.run_tools import RunTool, Shard, load_run_tool
from toolformer_ops.stages.execution import ExecuteWork
from toolformer_ops.stages.filtering import FilterWork
from toolformer_ops.stages.placebo import PlaceboWork
from toolformer_ops.stages.sampling import SampleWork
from toolformer_ops.stages.scoring import ScoreWork
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool

logger = logging.getLogger(__name__)

TOLERANCE: Mapping[str, float] = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}
"""By which losses, in nats, and probabilities may differ, by the model's number format."""
TABLES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "filter": {"filter_decisions": ("document_id", "paragraph")},
    "sample": {
        "candidate_calls": ("document_id", "call_id"),
        "pruned_positions": ("document_id", "paragraph", "position_token"),
    },
    "execute": {"call_results": ("input_key",)},
    "score": {"call_losses": ("document_id", "call_id")},
    "placebo": {"placebo_losses": ("document_id", "call_id", "number")},
}
"""By stage, the tables that it writes, and what names a row of them within a recipe."""
REMEDY = "Compare code, model and machine with those of the run; a new recipe computes everything anew."


def resampling_check(calls: int, seed: str) -> Check:
    """The check that computes about so many calls again, the same number of each tool."""

    def recipes(auditing: Auditing) -> Sequence[str]:
        return list(_newest(auditing)) if calls and auditing.subjects.has_rows else []

    def page(auditing: Auditing, recipe_id: str, _: str) -> Page:
        tools = _newest(auditing)
        share = math.ceil(calls / len(tools))
        try:
            return _compute_again(auditing, tools[recipe_id], share, seed)
        except UsageError as error:  # its code, model or index is another one by now, or gone
            logger.warning("calls of %s are not computed again: %s", tools[recipe_id].tool, error)
            return Page(items=share, unprovable=share)

    return Check("calls computed again", recipes, page)


def _newest(auditing: Auditing) -> dict[str, Row[Any]]:
    """By scoring recipe, the tool in the newest run with it, if Postgres has its rows."""
    in_history = auditing.in_history_alone()
    return {
        tool.scoring_recipe_id: tool
        for tool in auditing.subjects.tools
        if in_history.isdisjoint((tool.sampling_recipe_id, tool.scoring_recipe_id, tool.placebo_recipe_id))
    }


def _compute_again(auditing: Auditing, run_row: Row[Any], calls: int, seed: str) -> Page:
    # 1. The documents.
    tool = get_tool(run_row.tool)
    with database.transaction(auditing.engine) as connection:
        run = load_run_tool(connection, run_row.run_id, run_row.tool)
        _require_recipes_of_this_code(auditing, run, tool)
        rows = database.fetch_all(
            connection,
            queries.resampling.documents,
            audit_id=auditing.audit_id,
            recipe_id=run.scoring_recipe_id,
            tool=run.tool,
            start=content_uuid("audit", seed, run.scoring_recipe_id),
            calls=calls,
        )
    documents = [Document(row.document_id, row.text, row.url, row.document_date) for row in rows]
    ids = [document.document_id for document in documents]
    # 2. The work of the four stages, as they do it.
    model, shard = RunModel(auditing.settings), Shard()
    opened = functools.cache(lambda: tool.open(auditing.settings, lambda: model.of(run)))
    limit = auditing.settings.tool_time_limit_seconds
    filtering = FilterWork(run=run, shard=shard, tool=tool)
    sampling = SampleWork.of_run(model, run, shard)
    execution = ExecuteWork(run=run, shard=shard, runner=opened, time_limit_seconds=limit)
    scoring = ScoreWork(run=run, shard=shard, tool=tool, load_model=lambda: model.of(run))
    with database.transaction(auditing.engine) as connection:
        paragraphs = sampling.load(connection, documents)
        inputs = dataclasses.replace(execution.load(connection, documents), answered={})
        executed = scoring.load(connection, documents)
    done = {
        "filter": filtering.compute(documents),
        "sample": sampling.compute(paragraphs),
        "execute": execution.compute(inputs),
        "score": scoring.compute(executed),
    }
    if run.placebo_recipe_id is not None:
        with database.transaction(auditing.engine) as connection:
            placebo = PlaceboWork.of_pool(connection, run, shard, lambda: model.of(run))
            rows = database.fetch_all(
                connection,
                queries.resampling.placebo_losses,
                recipe_id=run.placebo_recipe_id,
                document_ids=ids,
            )
            comparable = {row.document_id for row in rows}
            judged = placebo.load(connection, [item for item in documents if item.document_id in comparable])
        done["placebo"] = placebo.compute(judged)
    # 3. Compare, table by table.
    page = Page()
    tolerance = TOLERANCE[auditing.settings.dtype]
    for stage, batch in done.items():
        recipe_id = run.recipe_of(stage)
        for table, key in TABLES[stage].items():
            stored = database.fetch_all(
                auditing.engine,
                queries.resampling[table],
                recipe_id=recipe_id,
                document_ids=ids,
                tool=run.tool,
                tool_version=run.tool_version,
                sampling_recipe_id=run.sampling_recipe_id,
            )
            computed = [row.values for row in batch.rows if row.table == table]
            for kind, place, what in _differences(key, computed, stored, tolerance):
                page.add(kind, table, f"{place} under {recipe_id}", what, REMEDY)
            if table == "call_losses":
                page.items = len(stored)
    return page


def _require_recipes_of_this_code(auditing: Auditing, run: RunTool, tool: Tool) -> None:
    """Check that this code would write the rows of the run's recipes: that of another version writes other rows.

    Raises:
        UsageError: it would write rows of other recipes.
    """
    recipes = tool_recipes(
        spec=tool.spec,
        prompt_text=tool.prompt,
        tool_version=run.tool_version,
        model_identity=run.model_identity,
        dtype=auditing.settings.dtype,
        choices=run.choices,
        chained_release=run.chained_release_id,
        # A tool that would propose other calls by now cannot compute these again; a server is asked nothing.
        proposer_identity=(
            proposer_identity(auditing.settings, run.choices, tool)
            if tool_proposes(run.choices, tool)
            else run.proposer_identity
        ),
    )
    others = [recipe.stage for recipe in recipes if recipe.recipe_id != run.recipe_of(recipe.stage)]
    if others:
        raise UsageError(
            f"expected recipes of this code and this deployment, found others from the stage {others[0]} on, "
            f"in run {run.run_id}. Audit it with the version of the package that made it."
        )


def _key_values(row: Mapping[str, Any], key: Sequence[str]) -> tuple[Any, ...]:
    """What names a row."""
    return tuple(row[name] for name in key)


def _differences(
    key: Sequence[str], computed: Sequence[Mapping[str, Any]], stored: Sequence[Any], tolerance: float
) -> Iterator[tuple[Kind, str, str]]:
    """Kind, place and words for each row that is computed otherwise than it is stored, or not at all.

    `key` names a row.
    """
    again = {_key_values(row, key): row for row in computed}
    stored_rows = {_key_values(row._mapping, key): row for row in stored}
    for names in sorted({*again, *stored_rows}, key=str):
        row, before, place = again.get(names), stored_rows.get(names), " ".join(map(str, names))
        if row is None:
            yield "changed", place, "expected a row that is computed again, found one that is not"
            continue
        if before is None:
            yield "lost", place, "expected the row that is computed again, found none"
            continue
        for name, value in row.items():
            if name in {"seconds", "message"}:  # the tool's words need not be the same each time
                continue
            stored_value = getattr(before, name)
            not_stored = (
                name in ("token_log_probabilities", "scored_tokens") and stored_value is None
            )  # as the run wanted
            if not not_stored and not _equal(value, stored_value, tolerance):
                yield (
                    "changed",
                    place,
                    f"expected {name} {value!r:.100}, as computed again, found {stored_value!r:.100}",
                )
                break


def _equal(value: Any, stored_value: Any, tolerance: float) -> bool:
    if isinstance(value, float) and isinstance(stored_value, float):
        return math.isclose(value, stored_value, rel_tol=0.0, abs_tol=tolerance) or (
            math.isnan(value) and math.isnan(stored_value)
        )
    if isinstance(value, list | tuple) and isinstance(stored_value, list | tuple):
        return len(value) == len(stored_value) and all(
            _equal(item, other, tolerance) for item, other in zip(value, stored_value, strict=True)
        )
    return bool(value == stored_value)
