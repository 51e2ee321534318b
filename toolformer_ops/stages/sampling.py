"""Sample tool calls from the language model into `candidate_calls` (Toolformer, section 2, "Sampling API calls").

The room `annotation` samples, or asks the tool for the calls that it proposes; this stage says for which
documents, and writes the rows. Every sample that becomes no candidate is counted under its reason in the
ledger; some tens of each reason are stored in `lost_samples`. Positions at which provably no call reaches
`prune_below` are stored in `pruned_positions` with the loss that proves it. Does not run tools.
"""

import functools
import heapq
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from toolformer_ops.annotation.candidates import (
    Candidate,
    LostSample,
    call_id_of,
    propose_paragraphs,
    sample_paragraphs,
)
from toolformer_ops.annotation.tool_proposals import OpenProposer
from toolformer_ops.config import Settings
from toolformer_ops.language_model.endpoint.proposals import EndpointProposer
from toolformer_ops.records import CallPosition, Document, Paragraph, content_uuid
from toolformer_ops.runs.micro_batches import MicroBatch, StageWork, work_off
from toolformer_ops.runs.models import RunModel
from toolformer_ops.runs.recipes import model_proposes, tool_proposes
from toolformer_ops.runs.run_tools import DocumentOutcome, RunTool, Shard
from toolformer_ops.storage.corpora.record_rules import escape_control_characters
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel


def candidate_row(recipe_id: str, tool: Tool, paragraph: Paragraph, candidate: Candidate) -> TableRow:
    """The row of a candidate under a sampling recipe."""
    position, call = candidate.position, str(candidate.call)
    return TableRow.of(
        "candidate_calls",
        sampling_recipe_id=recipe_id,
        call_id=call_id_of(recipe_id, tool, paragraph, candidate),
        **_place(paragraph, position),
        call_input=candidate.call.input,
        call_text=call,
        input_key=content_uuid(candidate.effective_input),
        effective_input=candidate.effective_input,
        sample_count=candidate.sample_count,
        input_only_after=candidate.input_only_after,
        parent_call=candidate.parent,
        proposed_by=candidate.proposed_by,
    )


def pruned_row(recipe_id: str, paragraph: Paragraph, position: CallPosition) -> TableRow:
    """The row of a position at which no call can be kept, so that none was sampled."""
    place = _place(paragraph, position)
    return TableRow.of(
        "pruned_positions", sampling_recipe_id=recipe_id, **place, gain_bound=position.pruned_by
    )


def _place(paragraph: Paragraph, position: CallPosition) -> dict[str, Any]:
    return {
        "document_id": paragraph.document.document_id,
        "paragraph": paragraph.number,
        "position_token": position.token,
        "position_char": position.char,
        "position_probability": position.probability,
    }


def lost_row(recipe_id: str, read_id: uuid.UUID, paragraph: Paragraph, sample: LostSample) -> TableRow:
    """The row of a sample that is no call, to look at; `read_id` as of `ToolSpec.id_of_read`."""
    place = (recipe_id, str(read_id), str(paragraph.number), str(sample.position.token))
    return TableRow.of(
        "lost_samples",
        sampling_recipe_id=recipe_id,
        document_id=paragraph.document.document_id,
        sample_key=content_uuid(*place, sample.reason, sample.text),
        paragraph=paragraph.number,
        position_char=sample.position.char,
        reason=sample.reason,
        sample_text=escape_control_characters(sample.text)[0],
        sample_count=sample.sample_count,
    )


@dataclass
class SmallestKeys:
    """Says of each lost sample whether its key is among the smallest of its reason that this process has seen.

    So every process stores those that are among the smallest of all, and few others: after n samples some 50
    (1 + ln(n / 50)).
    """

    at_most: int = 50
    _seen: dict[str, list[int]] = field(default_factory=dict)
    """By reason, a heap of the negative keys."""

    def takes(self, reason: str, key: uuid.UUID) -> bool:
        """Whether to store the sample.

        Asked again of a sample that is computed again, the answer is the same.
        """
        smallest, negative = self._seen.setdefault(reason, []), -key.int
        if negative in smallest:
            return True
        if len(smallest) < self.at_most:
            heapq.heappush(smallest, negative)
            return True
        return heapq.heappushpop(smallest, negative) != negative


@dataclass
class SampleWork(StageWork[dict[uuid.UUID, list[Paragraph]]]):
    """Sampling as micro-batches; loaded are the kept paragraphs of each document."""

    stage = "sample"
    after = "filter"
    counts_tokens = True
    tool: Tool
    load_model: "Callable[[], LanguageModel]"
    """The model that finds positions, and samples if no endpoint does."""
    endpoint: EndpointProposer | None = None
    """What proposes calls, if it is behind an endpoint."""
    load_proposer: Callable[[], OpenProposer] | None = None
    """Opens the tool, if it proposes calls itself."""
    smallest_keys: SmallestKeys = field(default_factory=SmallestKeys)

    @classmethod
    def of_run(cls, model: RunModel, run: RunTool, shard: Shard) -> "SampleWork":
        """The sampling of a run's tool, with whom the run names as proposer.

        Raises:
            ConfigurationError: an endpoint is not that of the run's start.
        """
        tool = get_tool(run.tool)
        return cls(
            run=run,
            shard=shard,
            tool=tool,
            load_model=functools.partial(model.of, run),
            endpoint=model.endpoint_of(run),
            load_proposer=(
                (lambda: OpenProposer(model.proposer_of(run), model.tokenize_of(run)))
                if tool_proposes(run.choices, tool)
                else None
            ),
        )

    def load(self, connection: Connection, documents: Sequence[Document]) -> dict[uuid.UUID, list[Paragraph]]:
        """The kept paragraphs of each document."""
        rows = self.rows_of(connection, queries.undone.kept_paragraphs, documents)
        paragraphs: dict[uuid.UUID, list[Paragraph]] = {}
        for document in documents:
            paragraphs[document.document_id] = [
                Paragraph(
                    document=document, number=row.paragraph, start_char=row.start_char, end_char=row.end_char
                )
                for row in rows[document.document_id]
            ]
        return paragraphs

    def prepare(self, loaded: dict[uuid.UUID, list[Paragraph]]) -> None:
        """Load the model if there is something to sample, or the tool that proposes."""
        if any(loaded.values()) and model_proposes(self.run.choices, self.tool):
            self.load_model()
        if any(loaded.values()) and self.load_proposer:
            self.load_proposer()

    def give_up(self, loaded: dict[uuid.UUID, list[Paragraph]], reason: str) -> MicroBatch:
        """No candidate; the reason is counted in the ledger."""
        return MicroBatch(
            [DocumentOutcome(document_id, counts=Counter({reason: 1})) for document_id in loaded], []
        )

    def compute(self, loaded: dict[uuid.UUID, list[Paragraph]]) -> MicroBatch:
        """Candidates and pruned positions of all paragraphs, which are sampled together."""
        outcomes = {document_id: DocumentOutcome(document_id) for document_id in loaded}
        rows: list[TableRow] = []
        if paragraphs := list(chain.from_iterable(loaded.values())):
            # 1. The candidates, by whom the choices name as proposer.
            tool, choices = self.tool, self.run.choices
            own = choices.for_tool(tool.spec, tool.prompt)
            proposing = self.load_proposer() if self.load_proposer else None
            if model_proposes(choices, tool):
                candidates = sample_paragraphs(
                    self.load_model(), tool, own, paragraphs, self.endpoint, proposing
                )
            elif proposing is not None:
                candidates = propose_paragraphs(tool, own, paragraphs, proposing)
            else:
                raise ValueError(f"expected a proposer of {tool.spec.name}, found none")
            # 2. Their rows.
            for sampled in candidates:
                paragraph = sampled.paragraph
                key = self.recipe_id, self.tool.spec.id_of_read(paragraph.document)
                rows += [
                    candidate_row(self.recipe_id, self.tool, paragraph, item) for item in sampled.candidates
                ]
                rows += [pruned_row(self.recipe_id, paragraph, item) for item in sampled.pruned]
                lost = [lost_row(*key, paragraph, item) for item in sampled.lost]
                rows += [
                    row
                    for row in lost
                    if self.smallest_keys.takes(row.values["reason"], row.values["sample_key"])
                ]
                outcome = outcomes[paragraph.document.document_id]
                outcome.counts.update(sampled.counts)
                outcome.rows_written += len(sampled.candidates)
                outcome.seconds += sampled.seconds
        return MicroBatch(list(outcomes.values()), rows)


def sample_stage(
    settings: Settings,
    run_id: str,
    tool_name: str,
    shard: str,
    model: RunModel | None = None,
    after_round: Callable[[bool], object] | None = None,
) -> Counter[str]:
    """Sample calls of a tool for one shard; returns the number of samples of each kind.

    `model` has the run's, if another stage of this process uses it, too; with `after_round` it works in
    rounds (`work_off`).

    Raises:
        ConfigurationError: the model is not that of the run's start.
    """
    run_model = model or RunModel(settings)
    run = run_model.run_tool(run_id, tool_name)
    work = SampleWork.of_run(run_model, run, Shard.parse(shard))
    return work_off(settings, run_model.engine, work, run_model.start_up, after_round=after_round)
