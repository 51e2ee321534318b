"""From paragraphs to candidate calls (Toolformer, section 2, "Sampling API calls").

Pure functions on records.

1. The tool's filter has chosen the paragraphs that are worth asking (`filtering.py`).
2. Positions are found in each paragraph, and m continuations of " [" are sampled at each
   (`text_sampling.py`).
3. Equal calls at one position are one candidate with a count; every other sample is counted under its reason:
   `candidates_at`.

`sample_paragraphs` does steps 2 and 3. Only what the model reads when it proposes calls is a paragraph, since
the prompt holds it twice. Whatever judges a call sees the whole document: its position is a token of the
document's one encoding, it is pruned and scored with the document's text before it, and its input is looked
for in all of it. So a document in pieces keeps a call exactly if the whole document would.

With `chains` a text holds calls already, and these steps find calls that use their results (`chains.py`).
Does not run tools and does not score (`scoring.py`).
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolformer_ops.annotation.chains import EarlierCalls
from toolformer_ops.annotation.text_sampling import SampledText, TextToSample, sample_texts
from toolformer_ops.call_syntax import CALL_START, NOT_IN_A_CALL, Call, parse_call
from toolformer_ops.errors import CallSyntaxError
from toolformer_ops.language_model import AnnotationPrompt
from toolformer_ops.language_model.endpoint.proposals import EndpointProposer
from toolformer_ops.language_model.tokenization import TokenizedText
from toolformer_ops.records import CallPosition, Document, Paragraph, SampledContinuation
from toolformer_ops.runs.choices import ToolSamplingChoices
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.paragraphs import on_one_line
from toolformer_ops.tools.registry import tool_names

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel


@dataclass(frozen=True)
class Candidate:
    """A distinct call at a position of a document."""

    position: CallPosition
    call: Call
    effective_input: str
    """What the tool is asked, which for some tools depends on the document."""
    sample_count: int
    """How many samples of the position are this call."""
    input_only_after: bool
    """Whether the input could be known only from the text behind the call: such a call cannot be taught."""
    parent: int | None = None
    """In a chain: the number, from 0, of the call of the text whose result the input holds."""


@dataclass(frozen=True)
class LostSample:
    """What the model wrote at a position of a document that is no call."""

    position: CallPosition
    reason: str
    """As it is counted."""
    text: str
    """Behind the opening bracket."""
    sample_count: int
    """How many samples of the position are this text."""


@dataclass(frozen=True)
class SampledParagraph:
    """A paragraph's candidate calls and pruned positions, and a count of everything that was sampled."""

    paragraph: Paragraph
    candidates: list[Candidate]
    pruned: list[CallPosition]
    counts: Counter[str]
    """Positions, samples, candidates, and the samples that are no call, by reason; as `stage_ledger.counts`
    has them."""
    lost: list[LostSample]
    """The samples that are no call."""
    seconds: float


def annotation_prompt(tool: Tool, *, is_sent: bool = False) -> AnnotationPrompt:
    """The tool's prompt P, as the engine takes it; what is sent to an endpoint may say less."""
    return AnnotationPrompt(tool.spec.name, tool.prompt_to_send if is_sent else tool.prompt)


def given_call_start(tool: Tool, call_prefix: str) -> str:
    """The start of a call that the model continues: ` [` in the paper.

    With the prefix `tool_name` it reaches to where the input starts, or holds `()` if the tool takes no
    input.
    """
    if call_prefix == "free":
        return CALL_START
    return f"{CALL_START}{tool.spec.name}({'' if tool.spec.takes_input else ')'}"


def sample_paragraphs(
    model: "LanguageModel",
    tool: Tool,
    choices: ToolSamplingChoices,
    paragraphs: Sequence[Paragraph],
    endpoint: EndpointProposer | None = None,
) -> list[SampledParagraph]:
    """The candidate calls of each paragraph, in order; all paragraphs are sampled together.

    A paragraph's samples do not depend on what is sampled with it. With an `endpoint` the server behind it
    samples.
    """
    samplings = [_ParagraphSampling.of(paragraph, tool, choices, model.tokenize) for paragraph in paragraphs]
    sampled_texts = sample_texts(
        model,
        annotation_prompt(tool, is_sent=endpoint is not None),
        given_call_start(tool, choices.call_prefix),
        choices,
        [sampling.text for sampling in samplings],
        endpoint=endpoint,
    )
    return [
        sampling.result(tool, sampled) for sampling, sampled in zip(samplings, sampled_texts, strict=True)
    ]


@dataclass(frozen=True)
class _ParagraphSampling:
    """A paragraph while it is sampled."""

    paragraph: Paragraph
    text: TextToSample
    """The paragraph as it is sampled."""

    @classmethod
    def of(
        cls,
        paragraph: Paragraph,
        tool: Tool,
        choices: ToolSamplingChoices,
        tokenize: Callable[[str], TokenizedText],
    ) -> "_ParagraphSampling":
        """The paragraph with its text; `tokenize` is the model's."""
        document = paragraph.document
        is_whole = (paragraph.start_char, paragraph.end_char) == (0, len(document.text))
        text = TextToSample(
            text=paragraph.text,
            seed_key=f"{choices.seed}|{tool.spec.name}|{document.text_id}|{paragraph.number}",
            start_char=paragraph.start_char,
            document=None if is_whole else tokenize(document.text),
            earlier_calls=EarlierCalls.of(document.text, tool_names()) if choices.chains else None,
        )
        return cls(paragraph, text)

    def result(self, tool: Tool, sampled: SampledText) -> SampledParagraph:
        """The candidates among what was sampled for the paragraph, and the counts."""
        pruned = [position for position in sampled.positions if position.pruned_by_loss is not None]
        open_positions = [position for position in sampled.positions if position.pruned_by_loss is None]
        counts = Counter(paragraphs=1, positions=len(sampled.positions), positions_pruned_below=len(pruned))
        counts.update(sampled.refused)
        candidates: list[Candidate] = []
        lost: list[LostSample] = []
        for position, samples in zip(open_positions, sampled.samples, strict=True):
            parent_of = None
            if self.text.earlier_calls is not None:
                parent_of = functools.partial(self.text.earlier_calls.parent_of, char=position.char)
            distinct, lost_here, counted = candidates_at(
                tool, self.paragraph.document, position, samples, parent_of
            )
            candidates += distinct
            lost += lost_here
            counts.update(counted)
        return SampledParagraph(
            paragraph=self.paragraph,
            candidates=candidates,
            pruned=pruned,
            counts=counts,
            lost=lost,
            seconds=sampled.position_seconds + sampled.sampling_seconds,
        )


def candidates_at(
    tool: Tool,
    document: Document,
    position: CallPosition,
    samples: Sequence[SampledContinuation],
    parent_of: Callable[[str], int | None] | None = None,
) -> tuple[list[Candidate], list[LostSample], Counter[str]]:
    """The distinct calls at a position of a document, and what else was sampled there.

    Returns the calls in the order of their first appearance, the samples that are no call, and how many there
    are of each kind. In a chain `parent_of` says which earlier call's result an input holds; a call that uses
    none is no candidate.
    """
    counts: Counter[str] = Counter(samples=len(samples))
    calls: Counter[Call] = Counter()
    lost: Counter[tuple[str, str]] = Counter()  # reason, text
    for sample, times in Counter(samples).items():  # many are equal: each is read once
        read = read_call(tool, sample, document.text)
        if isinstance(read, str):
            lost[read, sample.text] += times
        else:
            calls[read] += times
    before, after = document.text[: position.char], document.text[position.char :]
    candidates: list[Candidate] = []
    for call, sample_count in calls.items():
        parent = parent_of(call.input) if parent_of else None
        if parent_of and parent is None:
            lost["sample_without_earlier_result", str(call)] += sample_count
            continue
        effective_input = tool.effective_input(call.input, tool.spec.as_read(document))
        if effective_input is None:
            lost["sample_that_the_document_cannot_answer", str(call)] += sample_count
            continue
        only_after = tool.input_only_after(call.input, before, after)
        candidates.append(
            Candidate(
                position=position,
                call=call,
                effective_input=effective_input,
                sample_count=sample_count,
                input_only_after=only_after,
                parent=parent,
            )
        )
        counts["candidates"] += 1
        counts["duplicates_merged"] += sample_count - 1
    lost_samples = []
    for (reason, written), sample_count in lost.items():
        counts[reason] += sample_count
        lost_samples.append(
            LostSample(position=position, reason=reason, text=written, sample_count=sample_count)
        )
    return candidates, lost_samples, counts


def read_call(tool: Tool, sample: SampledContinuation, text: str) -> Call | str:
    """The call that the model wrote into a text, or the reason why what it wrote is no call of this tool.

    A call has no line break. A line break that the model copied with a phrase of hard-wrapped text is a
    space.

    A small model leaves out the round bracket in half of its searches, `WikiSearch("iris function"]`: `"]` is
    one token. The "]" says where such a call ends.
    """
    if not sample.finished:
        return "sample_without_end"
    try:
        call = parse_call(sample.text, is_closed=False)
    except CallSyntaxError:
        copied = _copied_call(sample.text, text)
        if copied is None:
            is_begun = sample.text.lstrip().startswith(f"{tool.spec.name}(")
            is_held = re.search(NOT_IN_A_CALL, sample.text) is None
            return (
                "sample_with_bracket_or_line_break" if is_begun and not is_held else "sample_does_not_parse"
            )
        call = copied
    if call.tool != tool.spec.name:
        return "sample_of_another_tool"
    if tool.spec.takes_input and not call.input:
        return "sample_without_input"
    if call.input and not tool.spec.takes_input:
        return "sample_with_unexpected_input"
    return call


def _copied_call(written: str, text: str) -> Call | None:
    """A call that was written over several lines, if the text holds its input.

    The lines of the text may end elsewhere.
    """
    if "\n" not in written:
        return None
    try:
        call = parse_call(on_one_line(written), is_closed=False)
    except CallSyntaxError:
        return None
    return call if call.input and call.input in on_one_line(text) else None
