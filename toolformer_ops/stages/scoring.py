"""Score executed calls: three losses a call (four in a context window), in nats, into `call_losses` (Toolformer, section 2).

The room `annotation` chooses each call's result and scores it; this stage says for which documents, and
writes one row a call, with losses or with the reason why there are none. Does not decide what is kept:
`sql/views` do.
"""

import functools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from toolformer_ops.annotation.scoring import ExecutedCall, ExecutedText, ScoredCall, own_text_of, score_texts
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.records import FLOAT32, TF32, Document
from toolformer_ops.runs.micro_batches import MicroBatch, StageWork, work_off
from toolformer_ops.runs.models import RunModel
from toolformer_ops.runs.run_tools import DocumentOutcome, Shard
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel


def losses_row(recipe_id: str, call_id: uuid.UUID, document_id: uuid.UUID, scored: ScoredCall) -> TableRow:
    """The row of a scored call under a scoring recipe. Postgres adds the loss reduction."""
    columns = {
        name: value
        for name, value in vars(scored).items()
        if name not in ("within_rounding", "reduction_bound")
    }
    terms = scored.token_log_probabilities
    columns["token_log_probabilities"] = None if terms is None else terms.as_array()
    columns["scored_tokens"] = None if terms is None else terms.tokens or None
    return TableRow.of(
        "call_losses", scoring_recipe_id=recipe_id, call_id=call_id, document_id=document_id, **columns
    )


def scored_of(losses: Mapping[str, Any]) -> ScoredCall:
    """The scored call of a row that `losses_row` made, without the terms of its losses."""
    names = ("loss_without_call", "loss_without_result", "loss_without_call_full_context")
    terms = [losses[name] for name in names if losses[name] is not None]
    fields = ("result_rank", "result", "reason", "number_format", "probability_without", "probability_with")
    return ScoredCall(
        **{name: losses[name] for name in (*names, *fields, "loss_with_result")},
        reduction_bound=min(terms) - (losses["loss_with_result"] or 0.0) if terms else None,
    )


@dataclass(frozen=True)
class CallToScore:
    """A candidate call with what its tool answered."""

    call_id: uuid.UUID
    executed: ExecutedCall


Loaded = list[tuple[Document, list[CallToScore]]]
"""Documents with their calls."""


@dataclass
class ScoreWork(StageWork[Loaded]):
    """Scoring as micro-batches."""

    stage = "score"
    after = "execute"
    counts_tokens = True
    asks_float32 = True
    tool: Tool
    load_model: "Callable[[], LanguageModel]"

    def load(self, connection: Connection, documents: Sequence[Document]) -> Loaded:
        """The documents' calls with their results."""
        rows = self.rows_of(connection, queries.undone.executed_calls, documents)
        loaded: Loaded = []
        for document in documents:
            calls = []
            for row in rows[document.document_id]:
                executed = ExecutedCall(
                    token=row.position_token,
                    call=Call(self.run.tool, row.call_input),
                    results=row.results,
                    reason=row.reason,
                    input_only_after=row.input_only_after,
                )
                calls.append(CallToScore(row.call_id, executed))
            loaded.append((document, calls))
        return loaded

    def prepare(self, loaded: Loaded) -> None:
        """Load the model if a call has a result."""
        calls = chain.from_iterable(calls for _, calls in loaded)
        if any(call.executed.reason is None for call in calls):
            self.load_model()

    def give_up(self, loaded: Loaded, reason: str) -> MicroBatch:
        """One row a call, with the reason instead of losses."""
        outcomes: list[DocumentOutcome] = []
        rows: list[TableRow] = []
        for document, calls in loaded:
            counts = Counter(calls=len(calls))
            for call in calls:
                losses = ScoredCall(reason=call.executed.reason or reason)
                counts[str(losses.reason)] += 1
                rows.append(losses_row(self.recipe_id, call.call_id, document.document_id, losses))
            outcomes.append(DocumentOutcome(document.document_id, rows_written=len(calls), counts=counts))
        return MicroBatch(outcomes, rows)

    def compute(self, loaded: Loaded) -> MicroBatch:
        """The losses of every call with a usable result; all documents are computed together."""
        started = time.perf_counter()
        # 1. The calls in their documents.
        texts = []
        for document, calls in loaded:
            own_text = own_text_of(self.tool, document) if calls else None
            texts.append(ExecutedText(document.text, [call.executed for call in calls], own_text))
        # 2. Results and losses.
        scored_texts = score_texts(self.load_model, self.run.choices, self.run.keep_threshold, texts)
        # 3. Rows, counts, and each document's share of the seconds: by its calls and its length.
        outcomes: list[DocumentOutcome] = []
        rows: list[TableRow] = []
        weights = [len(calls) * len(document.text) for document, calls in loaded]
        seconds_a_weight = (time.perf_counter() - started) / max(1, sum(weights))
        for (document, calls), scored_calls, weight in zip(loaded, scored_texts, weights, strict=True):
            for call, scored in zip(calls, scored_calls, strict=True):
                rows.append(losses_row(self.recipe_id, call.call_id, document.document_id, scored))
            outcomes.append(
                DocumentOutcome(
                    document.document_id, len(calls), _counts(scored_calls), seconds_a_weight * weight
                )
            )
        return MicroBatch(outcomes, rows)


def _counts(scored_calls: Sequence[ScoredCall]) -> Counter[str]:
    """A document's calls by reason, and the calls that rounding may have decided."""
    counts = Counter(calls=len(scored_calls))
    for scored in scored_calls:
        counts[scored.reason or "scored"] += 1
        if scored.within_rounding:
            counts["within_rounding"] += 1
            if scored.number_format in (FLOAT32, TF32):
                counts[f"verified_in_{scored.number_format}"] += 1
    return counts


def score_stage(
    settings: Settings,
    run_id: str,
    tool_name: str,
    shard: str,
    model: RunModel | None = None,
    *,
    waits_for_others: bool = True,
) -> Counter[str]:
    """Score what is undone of one shard's calls of a tool.

    Returns the number of scored calls and of each reason. `model` is the run's, if another stage of this
    process uses it, too; `waits_for_others` as in `work_off`.

    Raises:
        ConfigurationError: the model is not that of the run's start.
    """
    run_model = model or RunModel(settings)
    run = run_model.run_tool(run_id, tool_name)
    work = ScoreWork(
        run=run,
        shard=Shard.parse(shard),
        tool=get_tool(run.tool),
        load_model=functools.partial(run_model.of, run),
    )
    return work_off(settings, run_model.engine, work, run_model.start_up, waits_for_others=waits_for_others)
