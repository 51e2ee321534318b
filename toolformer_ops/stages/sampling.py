"""Sample tool calls from the language model into `candidate_calls` (Toolformer, section 2, "Sampling API calls").

For each kept paragraph: the k likeliest positions for " [", m sampled continuations at each, parsed by `call_syntax`. Equal calls
at one position are one candidate with a count. Every sample that becomes no candidate is counted under its reason in the ledger.
Positions at which provably no call reaches `prune_below` are not sampled; they are counted, and stored in `pruned_positions` with
the loss that proves it. Does not run tools.
"""

import functools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from toolformer_ops import database
from toolformer_ops.call_positions import PositionFinder, PrunedPosition
from toolformer_ops.call_syntax import CALL_START, Call, parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import CallSyntaxError
from toolformer_ops.micro_batches import (
    DocumentOutcome,
    MicroBatch,
    RunTool,
    Shard,
    load_run_tool,
    work_off,
)
from toolformer_ops.recipes import SamplingNumbers
from toolformer_ops.records import CallPosition, Document, SampledContinuation, TextToSample, content_uuid
from toolformer_ops.run_parameters import RunParameters
from toolformer_ops.stage_models import load_run_model
from toolformer_ops.tools.base import Tool, load_prompt
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


@dataclass(frozen=True)
class Paragraph:
    """A part of a document's text that the filter kept; the whole text for a filter on documents."""

    number: int
    start_char: int
    end_char: int


@dataclass(frozen=True)
class Candidate:
    """A distinct call at a position of a paragraph."""

    position: CallPosition
    call: Call
    effective_input: str
    sample_count: int
    input_only_after: bool


@dataclass
class SampledText:
    """What sampling gave for one kept paragraph."""

    document: Document
    paragraph: Paragraph
    candidates: list[Candidate]
    pruned: list[PrunedPosition]
    counts: Counter[str]
    """How many positions and samples there were, and what became of them."""
    seconds: float
    """What finding its positions took, and its share, by positions, of what the paragraphs that were sampled together took."""


Place = tuple[Document, Paragraph]
Task = tuple[Document, list[Paragraph]]


def read_call(tool: Tool, sample: SampledContinuation) -> Call | str:
    """The call that the model wrote, or the reason why its text is none of this tool's."""
    if not sample.finished:
        return "sample_without_end"
    try:
        call = parse_call(sample.text)
    except CallSyntaxError:
        return "sample_does_not_parse"
    if call.tool != tool.spec.name:
        return "sample_of_another_tool"
    if tool.spec.takes_input and not call.input:
        return "sample_without_input"
    if call.input and not tool.spec.takes_input:
        return "sample_with_unexpected_input"
    return call


def given_call_start(tool: Tool, call_prefix: str) -> str:
    """What of a call is given: ` [` in the paper; with `tool_name` up to where its input starts, or `()` where it takes none."""
    if call_prefix == "free":
        return CALL_START
    return f"{CALL_START}{tool.spec.name}({'' if tool.spec.takes_input else ')'}"


def candidates_at(
    tool: Tool, document: Document, text: str, position: CallPosition, samples: Sequence[SampledContinuation]
) -> tuple[list[Candidate], Counter[str]]:
    """The distinct calls at one position in order of first appearance, and the count of samples by what became of them."""
    counts: Counter[str] = Counter(samples=len(samples))
    calls: Counter[Call] = Counter()
    for sample in samples:
        read = read_call(tool, sample)
        if isinstance(read, str):
            counts[read] += 1
        else:
            calls[read] += 1
    candidates: list[Candidate] = []
    for call, sample_count in calls.items():
        effective_input = tool.effective_input(call.input, document)
        if effective_input is None:
            counts["sample_that_the_document_cannot_answer"] += sample_count
            continue
        before, after = text[: position.char], text[position.char :]
        only_after = tool.input_only_after(call.input, before, after)
        candidates.append(Candidate(position, call, effective_input, sample_count, only_after))
        counts["candidates"] += 1
        counts["duplicates_merged"] += sample_count - 1
    return candidates, counts


def sample_texts(
    model: "LanguageModel", prompt: "AnnotationPrompt", tool: Tool, parameters: RunParameters, places: Sequence[Place]
) -> list[SampledText]:
    """What sampling gives for each kept paragraph, in order; all of them are sampled together.

    A paragraph's samples do not depend on what is sampled with it.
    """
    numbers = SamplingNumbers.of(tool.spec, parameters)
    texts = [document.text[paragraph.start_char : paragraph.end_char] for document, paragraph in places]
    found = PositionFinder(
        model, prompt, texts, numbers.max_positions, numbers.sampling_threshold, parameters.prune_below
    )
    seed_keys = [
        f"{parameters.seed}|{tool.spec.name}|{document.document_id}|{paragraph.number}"
        for document, paragraph in places
    ]
    started = time.perf_counter()
    continuations = model.sample_calls(
        prompt,
        (
            TextToSample(text, tuple(of_text.kept), key)
            for text, of_text, key in zip(texts, found, seed_keys, strict=True)
        ),
        samples=numbers.samples_per_position,
        max_new_tokens=parameters.max_call_tokens,
        call_start=given_call_start(tool, parameters.call_prefix),
        temperature=parameters.temperature,
        top_p=parameters.top_p,
    )
    sampling = time.perf_counter() - started - sum(of_text.seconds for of_text in found.found)
    all_positions = sum(len(of_text.kept) for of_text in found.found)
    sampled: list[SampledText] = []
    for (document, paragraph), text, of_text, of_positions in zip(
        places, texts, found.found, continuations, strict=True
    ):
        positions = len(of_text.kept) + len(of_text.pruned)
        counts = Counter(paragraphs=1, positions=positions, positions_pruned_below=len(of_text.pruned))
        candidates: list[Candidate] = []
        for position, samples in zip(of_text.kept, of_positions, strict=True):
            distinct, counted = candidates_at(tool, document, text, position, samples)
            counts.update(counted)
            candidates.extend(distinct)
        seconds = of_text.seconds + sampling * len(of_text.kept) / max(all_positions, 1)
        sampled.append(SampledText(document, paragraph, candidates, of_text.pruned, counts, seconds))
    return sampled


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

        return AnnotationPrompt(self.tool.spec.name, load_prompt(self.tool.spec.prompt_file))

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
            for text in sample_texts(self.load_model(), self.prompt, self.tool, self.run.parameters, places):
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
