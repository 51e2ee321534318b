"""Filter documents by a tool's heuristic (Toolformer, appendix A) into `filter_decisions`.

A tool judges whole documents or single paragraphs; each decision is stored with its reason, the refused ones too. A document
that already holds what reads as a tool call is refused for every tool, so that it cannot smuggle in a call and a result.
"""

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from toolformer_ops.call_syntax import holds_call_markup
from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.runs.micro_batches import DocumentOutcome, MicroBatch, RunTool, load_run_tool, work_off
from toolformer_ops.storage import database
from toolformer_ops.tools.base import FilterDecision, Tool
from toolformer_ops.tools.registry import get_tool, tool_names

HOLDS_CALL_MARKUP = "holds_call_markup"
COLUMNS = ("filter_recipe_id", "document_id", "paragraph", "start_char", "end_char", "kept", "reason")


def decide(tool: Tool, document: Document) -> list[FilterDecision]:
    """The tool's decisions on a document, or one refusal where the text already holds call markup."""
    if holds_call_markup(document.text, tool_names()):
        return [FilterDecision(False, HOLDS_CALL_MARKUP, 0, 0, len(document.text))]
    return tool.filter(document)


@dataclass
class FilterWork:
    """Filtering as micro-batches (`micro_batches.StageWork`)."""

    run: RunTool
    tool: Tool
    stage: str = "filter"

    @property
    def recipe_id(self) -> str:
        """The filter recipe."""
        return self.run.filter_recipe_id

    def undone(self, connection: Connection) -> Sequence[uuid.UUID]:
        """The run's documents that this filter has not judged."""
        rows = database.fetch_all(connection, "documents_to_filter", run_id=self.run.run_id, recipe_id=self.recipe_id)
        return [row.document_id for row in rows]

    def load(self, connection: Connection, documents: Sequence[Document]) -> Sequence[Document]:
        """The documents are all that a filter needs."""
        return documents

    def compute(self, loaded: Sequence[Document]) -> MicroBatch:
        """One decision a paragraph or a document."""
        outcomes: list[DocumentOutcome] = []
        rows: list[tuple[Any, ...]] = []
        for document in loaded:
            started = time.perf_counter()
            decisions = decide(self.tool, document)
            for item in decisions:
                span = (item.paragraph, item.start_char, item.end_char, item.kept, item.reason)
                rows.append((self.recipe_id, document.document_id, *span))
            counts = Counter(item.reason for item in decisions)
            counts["paragraphs"] = len(decisions)
            counts["kept"] = sum(item.kept for item in decisions)
            seconds = time.perf_counter() - started
            outcomes.append(DocumentOutcome(document.document_id, len(decisions), counts, seconds))

        def write(connection: Connection) -> None:
            database.copy_insert(connection, "filter_decisions", COLUMNS, rows)

        return MicroBatch(outcomes, write)


def filter_stage(settings: Settings, run_id: str, tool_name: str) -> Counter[str]:
    """Filter all documents of a run for a tool; returns counts by reason."""
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        run = load_run_tool(connection, run_id, tool_name)
    batches = settings.model_copy(update={"micro_batch_documents": max(settings.micro_batch_documents, 256)})
    return work_off(batches, engine, FilterWork(run, get_tool(tool_name)))
