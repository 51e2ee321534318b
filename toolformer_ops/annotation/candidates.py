"""What sampling gives for texts: the distinct calls at each position, and why every other sample is none. Touches no database.

For each kept paragraph: the k likeliest positions for " [" (`call_positions.py`), m sampled continuations at each, parsed by
`call_syntax`. Equal calls at one position are one candidate with a count.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolformer_ops.annotation.call_positions import PositionFinder, PrunedPosition
from toolformer_ops.call_syntax import CALL_START, Call, parse_call
from toolformer_ops.errors import CallSyntaxError
from toolformer_ops.records import CallPosition, Document, SampledContinuation, TextToSample
from toolformer_ops.runs.choices import ToolSamplingChoices
from toolformer_ops.tools.base import Tool

if TYPE_CHECKING:
    from toolformer_ops.language_model import AnnotationPrompt, LanguageModel


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
    model: "LanguageModel",
    prompt: "AnnotationPrompt",
    tool: Tool,
    choices: ToolSamplingChoices,
    places: Sequence[Place],
) -> list[SampledText]:
    """What sampling gives for each kept paragraph, in order; all of them are sampled together.

    A paragraph's samples do not depend on what is sampled with it.
    """
    texts = [document.text[paragraph.start_char : paragraph.end_char] for document, paragraph in places]
    found = PositionFinder(model, prompt, texts, choices.max_positions, choices.sampling_threshold, choices.prune_below)
    seed_keys = [
        f"{choices.seed}|{tool.spec.name}|{document.document_id}|{paragraph.number}" for document, paragraph in places
    ]
    started = time.perf_counter()
    continuations = model.sample_calls(
        prompt,
        (
            TextToSample(text, tuple(of_text.kept), key)
            for text, of_text, key in zip(texts, found, seed_keys, strict=True)
        ),
        samples=choices.samples_per_position,
        max_new_tokens=choices.max_call_tokens,
        call_start=given_call_start(tool, choices.call_prefix),
        temperature=choices.temperature,
        top_p=choices.top_p,
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
