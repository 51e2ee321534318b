"""Compare the calls in a release's files with the rows that they were taken from.

A release's id is the hash of its definition, of its texts with their urls and of the ids of its calls; a call's
id is the hash of its place, of its input and of what its tool reads. Results, losses and probabilities are in
neither. They are compared with `candidate_calls`, `call_results` and `call_losses`, and the recipes with the
release's definition. Not compared: `result_follows`, which a later version may judge otherwise. Decides
nothing: `storage/objects/s3.py` and `checking.py` say what follows.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row

from toolformer_ops.call_syntax import clean_result
from toolformer_ops.release.format import ReleasedCall, ReleasedText
from toolformer_ops.storage.postgres import database, queries

RECIPES = ("sampling_recipe_id", "execution_recipe_id", "scoring_recipe_id")
FIELDS_OF_STAGE: Mapping[str, tuple[str, ...]] = {
    "sample": ("input", "position_char", "position_probability"),
    "score": (
        "result",
        "loss_without_call",
        "loss_without_result",
        "loss_with_result",
        "loss_without_call_full_context",
        "loss_reduction",
    ),
}
"""By stage, the fields of `ReleasedCall` that are in its rows: `candidate_calls` and `call_losses`."""
RELATION = {"sample": "candidate_calls", "score": "call_losses"}


@dataclass(frozen=True)
class ComparedCall:
    """A call in a release's files beside its rows."""

    document_id: uuid.UUID
    """The text that holds it."""
    call_id: str
    has_rows: bool
    """False where its rows were deleted: nothing is proved of it then, but for its recipes."""
    difference: str | None = None
    """What is expected and what was found; None where nothing differs."""
    place: str | None = None
    """The place at which an audit names the rows that differ; None where rows have no part in it."""


def compare_calls(
    on: Engine | Connection, definition: Mapping[str, Any] | None, texts: Sequence[ReleasedText]
) -> Iterator[ComparedCall]:
    """Yield each call of these texts, in their order, beside its rows.

    `definition` is that of the release: it names its tools with their recipes. If it is not known (None), the
    recipes are believed as the files name them.
    """
    rows = _rows_of(on, definition, texts)
    for text in texts:
        for call in text.calls:
            recipes = _recipes(definition, call)
            named = {name: getattr(call, name) for name in RECIPES}
            if recipes != named:
                expected = "no call of the tool" if recipes is None else f"the recipes {recipes}"
                what = f"expected {expected}, as the release's definition says, found {named}"
                yield ComparedCall(text.document_id, call.call_id, has_rows=False, difference=what)
                continue
            row = rows.get((text.document_id, call.call_id))
            if row is None:
                yield ComparedCall(text.document_id, call.call_id, has_rows=False)
            else:
                yield _compared(text.document_id, call, row)


def _recipes(definition: Mapping[str, Any] | None, call: ReleasedCall) -> dict[str, str] | None:
    """The recipes of the call's tool by a release's definition; None if it does not name the tool."""
    if definition is None:
        return {name: getattr(call, name) for name in RECIPES}
    for tool in definition["tools"]:
        if tool["tool"] == call.tool:
            return {name: tool[name] for name in RECIPES}
    return None


def _rows_of(
    on: Engine | Connection, definition: Mapping[str, Any] | None, texts: Sequence[ReleasedText]
) -> dict[tuple[uuid.UUID, str], Row[Any]]:
    """The rows of the calls of these texts, by text and call: one statement for each chain of recipes."""
    # A statement in which the recipes are constants reads their partitions alone.
    by_recipes: dict[tuple[str, ...], list[tuple[uuid.UUID, ReleasedCall]]] = defaultdict(list)
    for text in texts:
        for call in text.calls:
            if (recipes := _recipes(definition, call)) is not None:
                by_recipes[call.tool, *recipes.values()].append((text.document_id, call))
    rows: dict[tuple[uuid.UUID, str], Row[Any]] = {}
    for (tool, *recipe_ids), calls in by_recipes.items():
        stored = database.fetch_all(
            on,
            queries.audited_rows.rows_of_released_calls,
            tool=tool,
            document_ids=[document_id for document_id, _ in calls],
            call_ids=[uuid.UUID(call.call_id) for _, call in calls],
            **dict(zip(RECIPES, recipe_ids, strict=True)),
        )
        rows.update({(row.document_id, row.call_id): row for row in stored})
    return rows


def _compared(document_id: uuid.UUID, call: ReleasedCall, row: Row[Any]) -> ComparedCall:
    """A released call beside its rows: the first field that differs."""
    for stage, names in FIELDS_OF_STAGE.items():
        for name in names:
            released, stored = getattr(call, name), getattr(row, name)
            if released != stored:
                what = f"expected {name} {stored!r:.200} of {call.tool}, as in {RELATION[stage]}, found {released!r:.200}"
                recipe_id = call.sampling_recipe_id if stage == "sample" else call.scoring_recipe_id
                place = f"{stage} of {row.variant_id} under {recipe_id}"
                return ComparedCall(document_id, call.call_id, True, what, place)
    # An answer that was deleted, since no other text asked for it, proves nothing.
    if row.answer is not None and clean_result(row.answer) != call.result:
        answer = clean_result(row.answer)
        what = f"expected the result {answer!r:.200} of {call.tool}, as in call_results, found {call.result!r:.200}"
        place = f"execute of {row.variant_id} under {call.execution_recipe_id}"
        return ComparedCall(document_id, call.call_id, True, what, place)
    return ComparedCall(document_id, call.call_id, True)
