"""Filter documents by a tool's heuristic (Toolformer, appendix A) into `filter_decisions`.

A tool judges whole documents or single paragraphs; each decision is stored with its reason, the refused ones
too.
"""

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from toolformer_ops.annotation.chains import EarlierCalls
from toolformer_ops.annotation.filtering import filter_document
from toolformer_ops.config import Settings
from toolformer_ops.records import Document, document_id_of
from toolformer_ops.runs.micro_batches import MicroBatch, StageWork, work_off
from toolformer_ops.runs.models import RunModel
from toolformer_ops.runs.run_tools import DocumentOutcome, Shard, members_beyond_finished
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.tools.base import FilterDecision, Tool
from toolformer_ops.tools.registry import get_tool, tool_names

LEAST_DOCUMENTS = 256
"""The least documents of a full micro-batch: to judge a text takes little time, and each micro-batch is a
transaction."""


@dataclass
class FilterWork(StageWork[Sequence[Document]]):
    """Filtering as micro-batches."""

    stage = "filter"
    tool: Tool

    @property
    def claims_documents(self) -> bool:
        """To judge a text costs less than a claim; but with `until_kept` all processes have the same texts."""
        return self.run.last_document_id is not None

    def undone(self, connection: Connection) -> Sequence[uuid.UUID]:
        """The shard's documents that this filter has not judged."""
        rows = database.fetch_all(
            connection,
            queries.undone.to_filter,
            members=members_beyond_finished(connection, self.run, self.recipe_id),
            recipe_id=self.recipe_id,
            shard_index=self.shard.index,
            shard_count=self.shard.count,
        )
        return [row.document_id for row in rows]

    def load(self, connection: Connection, documents: Sequence[Document]) -> Sequence[Document]:
        """The documents themselves: a filter needs nothing else."""
        return documents

    def give_up(self, loaded: Sequence[Document], reason: str) -> MicroBatch:
        """One decision a document: not kept."""
        decided = [
            (item, FilterDecision(kept=False, reason=reason, end_char=len(item.text))) for item in loaded
        ]
        return MicroBatch(
            [_outcome(item, [decision]) for item, decision in decided],
            [self._row(item, decision) for item, decision in decided],
        )

    def compute(self, loaded: Sequence[Document]) -> MicroBatch:
        """One decision a paragraph or a document."""
        outcomes: list[DocumentOutcome] = []
        rows: list[TableRow] = []
        for document in loaded:
            started = time.perf_counter()
            decisions = filter_document(self.tool, document, self.run.choices, chains=self.run.choices.chains)
            if self.run.chained_release_id is not None:
                source = document_id_of(EarlierCalls.of(document.text, tool_names()).plain_text)
                ids = {"document_id": document.document_id, "source_document_id": source}
                rows.append(TableRow.of("chained_texts", release_id=self.run.chained_release_id, **ids))
            rows += [self._row(document, decision) for decision in decisions]
            outcomes.append(_outcome(document, decisions, time.perf_counter() - started))
        return MicroBatch(outcomes, rows)

    def _row(self, document: Document, decision: FilterDecision) -> TableRow:
        keys = {"filter_recipe_id": self.recipe_id, "document_id": document.document_id}
        return TableRow.of("filter_decisions", decision, **keys)


def _outcome(
    document: Document, decisions: Sequence[FilterDecision], seconds: float = 0.0
) -> DocumentOutcome:
    counts = Counter(decision.reason for decision in decisions)
    counts["paragraphs"] = len(decisions)
    counts["kept"] = sum(decision.kept for decision in decisions)
    return DocumentOutcome(document.document_id, rows_written=len(decisions), counts=counts, seconds=seconds)


def filter_stage(
    settings: Settings, run_id: str, tool_name: str, shard: str = "0/1", model: RunModel | None = None
) -> Counter[str]:
    """Filter one shard of a run's documents for a tool; returns counts by reason.

    `model` is the run's, if another stage of this process uses it, too.
    """
    run_model = model or RunModel(settings)
    run = run_model.run_tool(run_id, tool_name)
    work = FilterWork(run=run, shard=Shard.parse(shard), tool=get_tool(run.tool))
    most_documents = max(settings.micro_batch_documents, LEAST_DOCUMENTS)
    return work_off(settings, run_model.engine, work, run_model.start_up, most_documents=most_documents)
