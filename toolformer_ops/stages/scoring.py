"""Score executed calls: three losses a call (four in a context window), in nats, into `call_losses` (Toolformer, section 2).

Also picks, among a tool's ranked results, the first that does not repeat the document's own text, since such a result would only
leak the answer. A call without a usable result has a row with the reason and no losses; so has one whose losses are not finite
numbers. A call that provably cannot reach `prune_below` has a row with the reason and the losses that prove it. Does not decide
what is kept: `sql/views` do.
"""

import functools
import math
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row

from toolformer_ops.call_syntax import Call, call_with_result, call_without_result, clean_result
from toolformer_ops.config import Settings
from toolformer_ops.records import CallLosses, Document, PlacedCall
from toolformer_ops.retrieval.own_text import OwnText
from toolformer_ops.runs.choices import ScoringChoices
from toolformer_ops.runs.micro_batches import (
    DocumentOutcome,
    MicroBatch,
    RunTool,
    Shard,
    documents_after,
    load_run_tool,
    work_off,
)
from toolformer_ops.runs.models import load_run_model
from toolformer_ops.storage import database
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

COLUMNS = (
    "scoring_recipe_id",
    "call_id",
    "document_id",
    "result_rank",
    "result",
    "reason",
    "loss_without_call",
    "loss_without_result",
    "loss_with_result",
    "loss_without_call_full_context",
    "number_format",
)
REPEATS_DOCUMENT_TEXT = "repeats_document_text"
EMPTY_RESULT = "empty_result"
NOT_FINITE = "loss_not_finite"
NOT_EXECUTED = "not_executed"
PRUNED = "pruned_below"


@dataclass(frozen=True)
class ChosenResult:
    """The result that a call gets, or the reason why it gets none."""

    rank: int | None = None
    """Place among the tool's results, from 0."""
    text: str | None = None
    reason: str | None = None


def choose_result(results: Sequence[str] | None, reason: str | None, own_text: OwnText | None) -> ChosenResult:
    """The first of the ranked results that is not empty and does not repeat the document's own text.

    `own_text` is None for a tool whose results may repeat it.
    """
    if reason is not None:
        return ChosenResult(reason=reason)
    if results is None:
        return ChosenResult(reason=NOT_EXECUTED)
    refused = EMPTY_RESULT
    for rank, result in enumerate(results):
        cleaned = clean_result(result)
        if not cleaned:
            continue
        if own_text is not None and own_text.repeated_by(cleaned):
            refused = REPEATS_DOCUMENT_TEXT
            continue
        return ChosenResult(rank, cleaned)
    return ChosenResult(reason=refused)


StoredLosses = tuple[float | None, float | None, float | None, float | None, str | None]
"""L(nothing), L(e(c, "")), L(e(c, r)), L(nothing) with the full context, in nats; the number format."""
NO_LOSSES: StoredLosses = (None, None, None, None, None)


def stored_losses(losses: CallLosses) -> tuple[str | None, StoredLosses]:
    """The reason, None for a scored call, and the losses as they are stored; losses that are not finite are none."""
    values = (losses.without_call, losses.without_result, losses.with_result, losses.without_call_full_context)
    if not all(math.isfinite(value) for value in values if value is not None):
        return NOT_FINITE, (None, None, None, None, losses.number_format)
    return PRUNED if losses.pruned else None, (*values, losses.number_format)


def score_text(
    model: "LanguageModel", choices: ScoringChoices, text: str, calls: Sequence[PlacedCall]
) -> list[CallLosses]:
    """The losses of each call in one text as the run's choices ask for them.

    float32 decides from `prune_below` on, since every threshold that may be asked lies there.
    """
    return model.score_calls(
        text,
        calls,
        prune_below=choices.prune_below,
        float32_from=choices.prune_below,
        context_tokens=choices.scoring_context_tokens,
    )


Task = tuple[Document, list[Row[Any]]]


@dataclass
class ScoreWork:
    """Scoring as micro-batches (`micro_batches.StageWork`)."""

    run: RunTool
    shard: Shard
    tool: Tool
    load_model: "Callable[[], LanguageModel]"
    stage: str = "score"

    @property
    def recipe_id(self) -> str:
        """The scoring recipe."""
        return self.run.scoring_recipe_id

    def undone(self, connection: Connection) -> Sequence[uuid.UUID]:
        """The shard's executed documents that were not scored."""
        return documents_after(connection, self.run, self.shard, self.stage, "execute")

    def load(self, connection: Connection, documents: Sequence[Document]) -> list[Task]:
        """The documents' calls with their results and the bounds of their paragraphs."""
        rows = database.fetch_all(
            connection,
            "executed_calls_of_documents",
            filter_recipe_id=self.run.filter_recipe_id,
            sampling_recipe_id=self.run.sampling_recipe_id,
            tool=self.run.tool,
            tool_version=self.run.tool_version,
            document_ids=[item.document_id for item in documents],
        )
        calls: dict[uuid.UUID, list[Row[Any]]] = defaultdict(list)
        for row in rows:
            calls[row.document_id].append(row)
        return [(document, calls[document.document_id]) for document in documents]

    def compute(self, loaded: list[Task]) -> MicroBatch:
        """Losses of every call that has a usable result."""
        outcomes: list[DocumentOutcome] = []
        rows: list[tuple[Any, ...]] = []
        for document, calls in loaded:
            started = time.perf_counter()
            scored = self._score_document(document, calls)
            counts: Counter[str] = Counter(row[COLUMNS.index("reason")] or "scored" for row in scored)
            counts["calls"] = len(calls)
            rows.extend(scored)
            seconds = time.perf_counter() - started
            outcomes.append(DocumentOutcome(document.document_id, len(scored), counts, seconds))

        def write(connection: Connection) -> None:
            database.copy_insert(connection, "call_losses", COLUMNS, rows)

        return MicroBatch(outcomes, write)

    def _score_document(self, document: Document, calls: Sequence[Row[Any]]) -> list[tuple[Any, ...]]:
        own_text = OwnText(document.text) if self.tool.spec.pass_over_own_text and calls else None
        rows: list[tuple[Any, ...]] = []
        by_paragraph: dict[tuple[int, int], list[tuple[Row[Any], ChosenResult]]] = defaultdict(list)
        for call in calls:
            chosen = choose_result(call.results, call.reason, own_text)
            if chosen.text is None:
                rows.append(self._row(call, chosen, chosen.reason, NO_LOSSES))
            else:
                by_paragraph[call.start_char, call.end_char].append((call, chosen))
        for (start, end), placed in by_paragraph.items():
            calls_of_text = [_placed(self.run.tool, call, chosen.text or "") for call, chosen in placed]
            losses = score_text(self.load_model(), self.run.choices, document.text[start:end], calls_of_text)
            for (call, chosen), loss in zip(placed, losses, strict=True):
                rows.append(self._row(call, chosen, *stored_losses(loss)))
        return rows

    def _row(self, call: Row[Any], chosen: ChosenResult, reason: str | None, losses: StoredLosses) -> tuple[Any, ...]:
        return (self.recipe_id, call.call_id, call.document_id, chosen.rank, chosen.text, reason, *losses)


def _placed(tool: str, row: Row[Any], result: str) -> PlacedCall:
    call = Call(tool, row.call_input)
    return PlacedCall(row.position_token, call_with_result(call, result), call_without_result(call))


def score_stage(settings: Settings, run_id: str, tool_name: str, shard: str) -> Counter[str]:
    """Score one shard's calls of a tool; returns counts of scored calls and of reasons.

    Raises:
        RecipeMismatchError: the model is not the one that the run was started with.
    """
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        run = load_run_tool(connection, run_id, tool_name)
    model = functools.cache(lambda: load_run_model(settings, run))
    return work_off(settings, engine, ScoreWork(run, Shard.parse(shard), get_tool(tool_name), model))
