"""From paragraphs to candidate calls (Toolformer, section 2, "Sampling API calls").

Pure functions on records.

1. The tool's filter has chosen the paragraphs that are worth asking (`filtering.py`).
2. Positions are found in each paragraph, and m continuations of " [" are sampled at each
   (`text_sampling.py`).
3. Equal calls at one position are one candidate with a count; every other sample is counted under its reason:
   `candidates_at`.

`sample_paragraphs` does steps 2 and 3. A tool may propose calls itself (`tool_proposals.py`): without step 2,
`propose_paragraphs`, or beside it. A call that both propose is one candidate.

Only what the model reads when it proposes calls is a paragraph, since
the prompt holds it twice. Whatever judges a call sees the whole document: its position is a token of the
document's one encoding, it is pruned and scored with the document's text before it, and its input is looked
for in all of it. So a document in pieces keeps a call exactly if the whole document would.

With `chains` a text holds calls already, and these steps find calls that use their results (`chains.py`).
Does not run tools and does not score (`scoring.py`).
"""

import functools
import re
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolformer_ops.annotation.chains import EarlierCalls
from toolformer_ops.annotation.text_sampling import SampledText, TextToSample, sample_texts
from toolformer_ops.annotation.tool_proposals import OpenProposer, PlacedProposals, placed_proposals
from toolformer_ops.call_syntax import ARROW, CALL_START, NOT_IN_A_CALL, Call, parse_call
from toolformer_ops.errors import CallSyntaxError
from toolformer_ops.language_model.endpoint.proposals import EndpointProposer
from toolformer_ops.language_model.tokenization import AnnotationPrompt, TokenizedText
from toolformer_ops.records import (
    CallPosition,
    Document,
    Paragraph,
    ProposedBy,
    SampledContinuation,
    content_uuid,
)
from toolformer_ops.runs.choices import ToolSamplingChoices
from toolformer_ops.tools.base import MAX_INPUT_CHARACTERS, Tool
from toolformer_ops.tools.paragraphs import on_one_line
from toolformer_ops.tools.registry import tool_names

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

SHOWN_CHARACTERS = 200
"""So many characters of what a tool proposed that is no call are stored."""


@dataclass(frozen=True)
class Candidate:
    """A distinct call at a position of a document."""

    position: CallPosition
    call: Call
    effective_input: str
    """What the tool is asked, which for some tools depends on the document."""
    sample_count: int
    """How many samples of the position are this call; 0 for a call that the tool alone proposed."""
    input_only_after: bool
    """Whether the input could be known only from the text after the call: such a call cannot be taught."""
    parent: int | None = None
    """In a chain: the number, from 0, of the call of the text whose result the input holds."""
    proposed_by: ProposedBy = "model"


def call_id_of(sampling_recipe_id: str, tool: Tool, paragraph: Paragraph, candidate: Candidate) -> uuid.UUID:
    """The id of a call under a sampling recipe: sampled again, in any database or file, it is the same."""
    read_id = tool.spec.id_of_read(paragraph.document)
    place = (str(read_id), str(paragraph.number), str(candidate.position.token))
    return content_uuid(sampling_recipe_id, *place, str(candidate.call))


@dataclass(frozen=True)
class LostSample:
    """What the model wrote, or a tool proposed, at a position of a document that is no candidate."""

    position: CallPosition
    reason: str
    """As it is counted."""
    text: str
    """After the opening bracket."""
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
    proposing: OpenProposer | None = None,
) -> list[SampledParagraph]:
    """The candidate calls of each paragraph, in order; all paragraphs are sampled together.

    A paragraph's samples do not depend on what is sampled with it. With an `endpoint` its server
    samples; with `proposing` the calls that the tool proposes are candidates, too.
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
    if proposing is None:
        return [
            sampling.result(tool, sampled) for sampling, sampled in zip(samplings, sampled_texts, strict=True)
        ]
    placed = placed_proposals(tool, proposing, paragraphs)
    return [
        sampling.result(tool, sampled, proposals)
        for sampling, sampled, proposals in zip(samplings, sampled_texts, placed, strict=True)
    ]


def propose_paragraphs(
    tool: Tool, choices: ToolSamplingChoices, paragraphs: Sequence[Paragraph], proposing: OpenProposer
) -> list[SampledParagraph]:
    """The candidate calls that the tool itself proposes for each paragraph, in order; no model is asked."""
    nothing_sampled = SampledText(positions=[], samples=[], position_seconds=0.0, sampling_seconds=0.0)
    placed = placed_proposals(tool, proposing, paragraphs)
    return [
        _ParagraphSampling.of(paragraph, tool, choices, proposing.tokenize).result(
            tool, nothing_sampled, proposals
        )
        for paragraph, proposals in zip(paragraphs, placed, strict=True)
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

    def result(
        self, tool: Tool, sampled: SampledText, proposals: PlacedProposals | None = None
    ) -> SampledParagraph:
        """The candidates among what was sampled and proposed for the paragraph, and the counts."""
        proposals = proposals or PlacedProposals()
        pruned = [position for position in sampled.positions if position.pruned_by is not None]
        open_positions = [position for position in sampled.positions if position.pruned_by is None]
        # 1. What the tool proposes, at the positions that the model found, or at others.
        samples_at = dict(zip(open_positions, sampled.samples, strict=True))
        position_of = {position.token: position for position in sampled.positions}
        inputs_at: dict[CallPosition, list[str]] = {}
        counts = Counter(paragraphs=1, positions_pruned_below=len(pruned))
        counts.update(sampled.refused)
        counts.update(proposals.counts)
        for place, inputs in proposals.inputs.items():
            position = position_of.setdefault(place.token, place)
            if position.pruned_by is None:
                samples_at.setdefault(position, [])
                inputs_at[position] = inputs
            else:
                counts["proposal_at_pruned_position"] += len(inputs)
        counts["positions"] = len(position_of)
        # 2. The candidates of each position.
        candidates: list[Candidate] = []
        lost: list[LostSample] = []
        for position, samples in sorted(samples_at.items(), key=lambda item: item[0].token):
            parent_of = None
            if self.text.earlier_calls is not None:
                parent_of = functools.partial(self.text.earlier_calls.parent_of, char=position.char)
            distinct, lost_here, counted = candidates_at(
                tool, self.paragraph.document, position, samples, parent_of, inputs_at.get(position, ())
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
            seconds=sampled.position_seconds + sampled.sampling_seconds + proposals.seconds,
        )


def candidates_at(
    tool: Tool,
    document: Document,
    position: CallPosition,
    samples: Sequence[SampledContinuation],
    parent_of: Callable[[str], int | None] | None = None,
    proposed_inputs: Sequence[str] = (),
) -> tuple[list[Candidate], list[LostSample], Counter[str]]:
    """The distinct calls at a position of a document, and what else was sampled or proposed there.

    Returns the calls in the order of their first appearance, the samples that are no call, and how many there
    are of each kind. In a chain `parent_of` says which earlier call's result an input holds; a call that uses
    none is no candidate. `proposed_inputs` are the inputs of the calls that the tool proposes here.
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
    proposals: Counter[Call] = Counter()
    for call_input in proposed_inputs:
        proposal = read_proposal(tool, call_input)
        if proposal is None:
            shown = call_input[:SHOWN_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
            lost["proposal_that_is_no_call", shown] += 1
        else:
            proposals[proposal] += 1
    before, after = document.text[: position.char], document.text[position.char :]
    candidates: list[Candidate] = []
    for call in calls | proposals:
        sample_count, proposal_count = calls[call], proposals[call]
        parent = parent_of(call.input) if parent_of else None
        if parent_of and parent is None:
            lost["sample_without_earlier_result", str(call)] += sample_count
            continue
        effective_input = tool.effective_input(call.input, tool.spec.as_read(document))
        if effective_input is None:
            lost["sample_that_the_document_cannot_answer", str(call)] += sample_count
            lost["proposal_that_the_document_cannot_answer", str(call)] += proposal_count
            continue
        proposed_by: ProposedBy = "model"
        if proposal_count:
            proposed_by = "both" if sample_count else "tool"
        only_after = tool.input_only_after(call.input, before, after)
        candidates.append(
            Candidate(
                position=position,
                call=call,
                effective_input=effective_input,
                sample_count=sample_count,
                input_only_after=only_after,
                parent=parent,
                proposed_by=proposed_by,
            )
        )
        counts["candidates"] += 1
        counts["duplicates_merged"] += sample_count + proposal_count - 1
    lost_samples = []
    for (reason, written), sample_count in (+lost).items():
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


def read_proposal(tool: Tool, call_input: str) -> Call | None:
    """The call with an input that a tool proposes; None if a text could not hold it, or gave back another."""
    if ARROW in call_input or len(call_input) > MAX_INPUT_CHARACTERS:
        return None
    try:
        call_input.encode("utf-8")  # Postgres stores no half of a surrogate pair
        call = parse_call(str(Call(tool.spec.name, call_input)))
    except (CallSyntaxError, UnicodeEncodeError):
        return None
    return call if bool(call.input) == tool.spec.takes_input else None


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
