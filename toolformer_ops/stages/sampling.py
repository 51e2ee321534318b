"""Sample tool calls from the language model into `candidate_calls` (Toolformer, section 2, "Sampling API calls").

The room `annotation` decides where is sampled and what becomes of a sample; here it works on a run's documents. Every sample that
becomes no candidate is counted under its reason in the ledger. Positions at which provably no call reaches `prune_below` are stored
in `pruned_positions` with the loss that proves it. Does not run tools.
"""

import functools
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from toolformer_ops.annotation.call_positions import PrunedPosition
from toolformer_ops.annotation.candidates import Candidate, Paragraph, SampledText, sample_texts
from toolformer_ops.config import Settings
from toolformer_ops.records import Document, content_uuid
from toolformer_ops.runs.micro_batches import (
    DocumentOutcome,
    MicroBatch,
    RunTool,
    Shard,
    load_run_tool,
    work_off,
)
from toolformer_ops.runs.models import load_run_model
from toolformer_ops.storage import database
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model import AnnotationPrompt, LanguageModel

COLUMNS = (
    "sampling_recipe_id",
    "call_id",
    "document_id",
    "paragraph",
    "position_token",
    "position_char",
    "position_probability",
    "call_input",
    "call_text",
    "input_key",
    "effective_input",
    "sample_count",
    "input_only_after",
)
PRUNED_COLUMNS = (
    "sampling_recipe_id",
    "document_id",
    "paragraph",
    "position_token",
    "position_char",
    "position_probability",
    "loss_without_call",
)


Task = tuple[Document, list[Paragraph]]


@dataclass
class SampleWork:
    """Sampling as micro-batches (`micro_batches.StageWork`)."""

    run: RunTool
    shard: Shard
    tool: Tool
    load_model: "Callable[[], LanguageModel]"
    stage: str = "sample"

    @property
    def recipe_id(self) -> str:
        """The sampling recipe."""
        return self.run.sampling_recipe_id

    @functools.cached_property
    def prompt(self) -> "AnnotationPrompt":
        """The tool's prompt, as the engine takes it."""
        from toolformer_ops.language_model import AnnotationPrompt

        return AnnotationPrompt(self.tool.spec.name, self.tool.prompt)

    def undone(self, connection: Connection) -> Sequence[uuid.UUID]:
        """The shard's documents with a kept paragraph that were not sampled."""
        rows = database.fetch_all(
            connection,
            "documents_to_annotate",
            run_id=self.run.run_id,
            filter_recipe_id=self.run.filter_recipe_id,
            stage=self.stage,
            recipe_id=self.recipe_id,
            shard_index=self.shard.index,
            shard_count=self.shard.count,
        )
        return [row.document_id for row in rows]

    def load(self, connection: Connection, documents: Sequence[Document]) -> list[Task]:
        """The documents with their kept paragraphs."""
        rows = database.fetch_all(
            connection,
            "kept_paragraphs",
            filter_recipe_id=self.run.filter_recipe_id,
            document_ids=[item.document_id for item in documents],
        )
        kept: dict[uuid.UUID, list[Paragraph]] = {item.document_id: [] for item in documents}
        for row in rows:
            kept[row.document_id].append(Paragraph(row.paragraph, row.start_char, row.end_char))
        return [(document, kept[document.document_id]) for document in documents]

    def compute(self, loaded: list[Task]) -> MicroBatch:
        """Positions, samples and candidates of each document."""
        places = [(document, paragraph) for document, paragraphs in loaded for paragraph in paragraphs]
        outcomes = {document.document_id: DocumentOutcome(document.document_id) for document, _ in loaded}
        calls: list[tuple[Any, ...]] = []
        pruned: list[tuple[Any, ...]] = []
        if places:
            choices = self.run.choices.for_tool(self.tool.spec)
            for text in sample_texts(self.load_model(), self.prompt, self.tool, choices, places):
                calls += [self._call_row(text, candidate) for candidate in text.candidates]
                pruned += [self._pruned_row(text, item) for item in text.pruned]
                outcome = outcomes[text.document.document_id]
                outcome.counts.update(text.counts)
                outcome.rows_written += len(text.candidates)
                outcome.seconds += text.seconds

        def write(connection: Connection) -> None:
            database.copy_insert(connection, "candidate_calls", COLUMNS, calls)
            database.copy_insert(connection, "pruned_positions", PRUNED_COLUMNS, pruned)

        return MicroBatch(list(outcomes.values()), write)

    def _call_row(self, text: SampledText, candidate: Candidate) -> tuple[Any, ...]:
        document_id, paragraph = text.document.document_id, text.paragraph
        position, call = candidate.position, candidate.call
        place = (str(document_id), str(paragraph.number), str(position.token))
        return (
            self.recipe_id,
            content_uuid(self.recipe_id, *place, str(call)),
            document_id,
            paragraph.number,
            position.token,
            paragraph.start_char + position.char,
            position.probability,
            call.input,
            str(call),
            content_uuid(candidate.effective_input),
            candidate.effective_input,
            candidate.sample_count,
            candidate.input_only_after,
        )

    def _pruned_row(self, text: SampledText, pruned: PrunedPosition) -> tuple[Any, ...]:
        position = pruned.position
        return (
            self.recipe_id,
            text.document.document_id,
            text.paragraph.number,
            position.token,
            text.paragraph.start_char + position.char,
            position.probability,
            pruned.loss_without_call,
        )


def sample_stage(settings: Settings, run_id: str, tool_name: str, shard: str) -> Counter[str]:
    """Sample calls of a tool for one shard; returns counts by what became of the samples.

    Raises:
        RecipeMismatchError: the model is not the one that the run was started with.
    """
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        run = load_run_tool(connection, run_id, tool_name)
    model = functools.cache(lambda: load_run_model(settings, run))
    return work_off(settings, engine, SampleWork(run, Shard.parse(shard), get_tool(tool_name), model))
