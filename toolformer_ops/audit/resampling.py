"""Compute calls again, from their texts to their losses, by the engine, and compare them with what is stored: the whole chain.

Each stage computes a document's rows from what is stored of the stage before, as it does in a run, but into memory. Documents are
chosen by content and a seed. Rows have to be equal; numbers of a model may differ by `TOLERANCE`, since another machine, batch or
library rounds in another order.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from toolformer_ops.annotation.placebo import PlaceboDraw
from toolformer_ops.audit.auditing import Auditing, Check, Finding, Page, ToolOfRun
from toolformer_ops.errors import UsageError
from toolformer_ops.records import Document, content_uuid
from toolformer_ops.runs.models import RunModel, tokens_for_scoring
from toolformer_ops.runs.placebo_pools import load_pool
from toolformer_ops.runs.run_tools import Shard, load_run_tool
from toolformer_ops.stages.execution import ExecuteWork
from toolformer_ops.stages.filtering import FilterWork
from toolformer_ops.stages.placebo import PlaceboWork
from toolformer_ops.stages.sampling import SampleWork
from toolformer_ops.stages.scoring import ScoreWork
from toolformer_ops.storage import database, queries
from toolformer_ops.tools.registry import get_tool

logger = logging.getLogger(__name__)

TOLERANCE: Mapping[str, float] = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}
"""By which losses, in nats, and probabilities may differ, by the model's number format."""
KEYS: Mapping[str, tuple[str, ...]] = {
    "filter_decisions": ("document_id", "paragraph"),
    "candidate_calls": ("document_id", "call_id"),
    "pruned_positions": ("document_id", "paragraph", "position_token"),
    "call_results": ("input_key",),
    "call_losses": ("document_id", "call_id"),
    "placebo_losses": ("document_id", "call_id", "number"),
}
"""What names a row of a table, within a recipe."""


def resampling_check(calls: int, seed: str) -> Check:
    """The check that computes about so many calls again, the same number of each tool."""

    def recipes(auditing: Auditing) -> Sequence[str]:
        return list(_newest(auditing)) if calls and auditing.subjects.has_rows else []

    def page(auditing: Auditing, recipe_id: str, _: str) -> Page:
        tools = _newest(auditing)
        share = math.ceil(calls / len(tools))
        try:
            return _compute_again(auditing, tools[recipe_id], share, seed)
        except UsageError as error:  # its model or index is another one by now, or gone
            logger.warning("calls of %s are not computed again: %s", tools[recipe_id].tool, error)
            return Page(items=share, unprovable=share)

    return Check("calls computed again", recipes, page)


def _newest(auditing: Auditing) -> dict[str, ToolOfRun]:
    """By scoring recipe, the tool in the newest run with it."""
    return {tool.scoring_recipe_id: tool for tool in auditing.subjects.tools}


def _compute_again(auditing: Auditing, of_run: ToolOfRun, calls: int, seed: str) -> Page:
    # 1. The documents.
    tool = get_tool(of_run.tool)
    with database.transaction(auditing.engine) as connection:
        run = load_run_tool(connection, of_run.run_id, of_run.tool)
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
    model = RunModel(auditing.settings)
    opened = functools.cache(lambda: tool.open(auditing.settings, lambda: model.of(run)))
    shard = Shard()
    limit = auditing.settings.tool_time_limit_seconds
    filtering = FilterWork(run=run, shard=shard, tool=tool)
    sampling = SampleWork(
        run=run,
        shard=shard,
        tool=tool,
        load_model=lambda: model.proposer_of(run),
        scorer=tokens_for_scoring(auditing.settings, run),
    )
    execution = ExecuteWork(run=run, shard=shard, runner=opened, time_limit_seconds=limit)
    scoring = ScoreWork(run=run, shard=shard, tool=tool, load_model=lambda: model.of(run))
    with database.transaction(auditing.engine) as connection:
        paragraphs = sampling.load(connection, documents)
        asked = dataclasses.replace(execution.load(connection, documents), known={})
        executed = scoring.load(connection, documents)
    done = {
        "filter": filtering.compute(documents),
        "sample": sampling.compute(paragraphs),
        "execute": execution.compute(asked),
        "score": scoring.compute(executed),
    }
    if run.placebo_recipe_id is not None:
        with database.transaction(auditing.engine) as connection:
            draw = PlaceboDraw(load_pool(connection, run.placebo_recipe_id))
            rows = database.fetch_all(
                connection,
                queries.resampling.placebo_losses,
                recipe_id=run.placebo_recipe_id,
                document_ids=ids,
            )
            comparable = {row.document_id for row in rows}
            placebo = PlaceboWork(run=run, shard=shard, draw=draw, load_model=lambda: model.of(run))
            judged = placebo.load(connection, [item for item in documents if item.document_id in comparable])
        done["placebo"] = placebo.compute(judged)
    # 3. Compare, table by table.
    page = Page()
    tables = {
        "filter": ("filter_decisions",),
        "sample": ("candidate_calls", "pruned_positions"),
        "execute": ("call_results",),
        "score": ("call_losses",),
        "placebo": ("placebo_losses",),
    }
    tolerance = TOLERANCE[auditing.settings.dtype]
    for stage, batch in done.items():
        for table in tables[stage]:
            with database.transaction(auditing.engine) as connection:
                stored = database.fetch_all(
                    connection,
                    queries.resampling[table],
                    recipe_id=run.recipe_of(stage),
                    document_ids=ids,
                    tool=run.tool,
                    tool_version=run.tool_version,
                    sampling_recipe_id=run.sampling_recipe_id,
                )
            computed = [row.values for row in batch.rows if row.table == table]
            page.findings += _differences(table, run.recipe_of(stage), computed, stored, tolerance)
            if table == "call_losses":
                page.items = len(stored)
    return page


def _differences(
    table: str, recipe_id: str, computed: Sequence[Mapping[str, Any]], stored: Sequence[Any], tolerance: float
) -> list[Finding]:
    """A finding for each row that is computed otherwise, or not at all."""
    key = KEYS[table]
    again = {tuple(row[name] for name in key): row for row in computed}
    known = {tuple(getattr(row, name) for name in key): row for row in stored}
    findings = []
    for place in sorted({*again, *known}, key=str):
        row, before = again.get(place), known.get(place)
        if row is None or before is None:
            what = "a row that is computed again" if row is None else "the row that is computed again"
            what = f"expected {what}, found {'one that is not' if row is None else 'none'}"
            findings.append(_finding("changed" if row is None else "lost", table, recipe_id, place, what))
            continue
        for name, value in row.items():
            if name == "seconds":
                continue
            found = getattr(before, name)
            if name in ("token_log_probabilities", "scored_tokens") and found is None:
                continue  # not stored, as the run wanted
            if not _equal(value, found, tolerance):
                what = f"expected {name} {value!r:.100}, as computed again, found {found!r:.100}"
                findings.append(_finding("changed", table, recipe_id, place, what))
                break
    return findings


def _equal(value: Any, found: Any, tolerance: float) -> bool:
    if isinstance(value, float) and isinstance(found, float):
        return math.isclose(value, found, rel_tol=0.0, abs_tol=tolerance) or (math.isnan(value) and math.isnan(found))
    if isinstance(value, list | tuple) and isinstance(found, list | tuple):
        return len(value) == len(found) and all(
            _equal(one, other, tolerance) for one, other in zip(value, found, strict=True)
        )
    return bool(value == found)


def _finding(kind: Any, table: str, recipe_id: str, place: tuple[Any, ...], what: str) -> Finding:
    return Finding(
        kind,
        table,
        f"{' '.join(map(str, place))} under {recipe_id}",
        what,
        "Compare code, model and machine with those of the run; a new recipe computes everything anew.",
    )
