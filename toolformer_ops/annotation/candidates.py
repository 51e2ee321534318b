"""From paragraphs to candidate calls (Toolformer, section 2, "Sampling API calls").

Pure functions on records.

1. The tool's filter has chosen the paragraphs that are worth asking (`filtering.py`).
2. Positions are the k word starts with the largest p(" [") above tau_s. Those at which provably no call can
   be kept are pruned.
3. At each other position m continuations of " [" are sampled: `sample_texts` does steps 2 and 3.
4. Equal calls at one position are one candidate with a count; every other sample is counted under its reason:
   `candidates_at`.

A proposer behind an endpoint (`language_model/endpoint`) does step 3 alone, or, if it chats, says in its
answers at which word starts step 2 may find positions.

`sample_paragraphs` does steps 2 to 4. Only what the model reads when it proposes calls is a paragraph, since
the prompt holds it twice. Whatever judges a call sees the whole document: its position is a token of the
document's one encoding, it is pruned and scored with the document's text before it, and its input is looked
for in all of it. So a document in pieces keeps a call exactly if the whole document would.

With `chains` a text holds calls already, and these steps find calls that use their results (`chains.py`).
Does not run tools and does not score (`scoring.py`).
"""

import dataclasses
import functools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from toolformer_ops.annotation.chains import EarlierCalls
from toolformer_ops.call_syntax import CALL_START, Call, parse_call
from toolformer_ops.errors import CallSyntaxError
from toolformer_ops.language_model import AnnotationPrompt
from toolformer_ops.language_model.endpoint.proposals import (
    EndpointProposer,
    ProposalNumbers,
    Proposals,
    TextOfDocument,
)
from toolformer_ops.language_model.tokenization import TokenizedText
from toolformer_ops.records import CallPosition, Document, Paragraph, SampledContinuation, document_id_of
from toolformer_ops.runs.choices import ToolSamplingChoices
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.paragraphs import on_one_line
from toolformer_ops.tools.registry import tool_names
from toolformer_ops.writing_systems import tokens_before

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel


@dataclass(frozen=True)
class TextToSample:
    """A text that calls are sampled for: a whole document, or a part of one."""

    text: str
    seed_key: str
    """What its random numbers are made from."""
    start_char: int = 0
    """Offset of the text in its document."""
    document: TokenizedText | None = None
    """The document as the scoring model tokenises it; None if the text is the document and the model that
    samples also scores, so that positions are the document's already."""
    earlier_calls: EarlierCalls | None = None
    """In a chain: the calls that the document holds."""

    @property
    def whole_text(self) -> str:
        """The document's text."""
        return self.text if self.document is None else self.document.text

    def in_document(self, position: CallPosition) -> CallPosition | None:
        """The position as one of the document: the token there that starts the same word, and its offset.

        None where the document has no such token, and where the calls that it holds forbid another.
        """
        if self.document is not None:
            token_and_char = self.document.place_of(self.start_char + position.char)
            if token_and_char is None:
                return None
            token, char = token_and_char
            position = dataclasses.replace(position, token=token, char=char)
        if self.earlier_calls is not None and not self.earlier_calls.allows(position.char):
            return None
        return position

    def allows(self, position: CallPosition) -> bool:
        """Whether a call may be sampled at a position of the text."""
        return self.in_document(position) is not None

    def places(self, positions: Sequence[CallPosition]) -> "list[SamplingPlace]":
        """The positions of the text that are positions of the document, too."""
        in_document = ((position.token, self.in_document(position)) for position in positions)
        return [SamplingPlace(token, position) for token, position in in_document if position is not None]


@dataclass(frozen=True)
class SamplingPlace:
    """A place of a text at which a call may be sampled."""

    token: int
    """Index in the token ids of the text as it is sampled."""
    position: CallPosition
    """As one of the document."""

    @property
    def is_pruned(self) -> bool:
        """Whether no call here can be kept."""
        return self.position.pruned_by_loss is not None


@dataclass(frozen=True)
class SampledText:
    """What the model wrote into one text."""

    positions: list[CallPosition]
    """Positions in the document, in its order, the pruned ones included."""
    samples: list[list[SampledContinuation]]
    """The samples of each position that is not pruned."""
    position_seconds: float
    """Seconds of finding and pruning positions: the text's share, by length, of the texts that were read together."""
    sampling_seconds: float
    """The text's share, by sampled positions, of all texts."""
    refused: Counter[str] = field(default_factory=Counter)
    """Answers of a proposer behind an endpoint that could not be taken, by reason."""


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
    """Whether the input could be known only from the text behind the call, so that the call cannot be taught."""
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


class CallSampler(Protocol):
    """What writes calls at places: the engine's `Sampler`, or a model behind an endpoint."""

    def add(self, text: str, tokens: Sequence[int], seed_key: str) -> None:
        """Take in the next text, to be sampled before these tokens of it."""
        ...

    def finish(self) -> list[list[list[SampledContinuation]]]:
        """For each text, for each position, its samples, all in the order they were added."""
        ...


def annotation_prompt(tool: Tool) -> AnnotationPrompt:
    """The tool's prompt P, as the engine takes it."""
    return AnnotationPrompt(tool.spec.name, tool.prompt)


def given_call_start(tool: Tool, call_prefix: str) -> str:
    """What of a call is given: ` [` in the paper; with `tool_name` up to where its input starts, or `()` if it takes none."""
    if call_prefix == "free":
        return CALL_START
    return f"{CALL_START}{tool.spec.name}({'' if tool.spec.takes_input else ')'}"


def sample_paragraphs(
    model: "LanguageModel",
    tool: Tool,
    choices: ToolSamplingChoices,
    paragraphs: Sequence[Paragraph],
    scorer: Callable[[str], TokenizedText] | None = None,
    endpoint: EndpointProposer | None = None,
) -> list[SampledParagraph]:
    """The candidate calls of each paragraph, in order; all paragraphs are sampled together.

    A paragraph's samples do not depend on what is sampled with it. If another model than the one that scores
    proposes the calls, `scorer` is how the scoring model tokenises a text: the positions that are returned are
    its tokens, calls are sampled only where one of these starts, and no position is pruned, since the
    proposer's losses bound nothing. If the proposer is behind an `endpoint`, `model` is the one that scores.
    """
    if scorer is not None:
        choices = choices.model_copy(update={"prune_below": 0.0})
    texts = [_text_to_sample(paragraph, tool, choices, model, scorer) for paragraph in paragraphs]
    sampled_texts = sample_texts(
        model,
        annotation_prompt(tool),
        given_call_start(tool, choices.call_prefix),
        choices,
        texts,
        endpoint=endpoint,
    )
    return [
        _sampled_paragraph(tool, paragraph, text, sampled)
        for paragraph, text, sampled in zip(paragraphs, texts, sampled_texts, strict=True)
    ]


def _text_to_sample(
    paragraph: Paragraph,
    tool: Tool,
    choices: ToolSamplingChoices,
    model: "LanguageModel",
    scorer: Callable[[str], TokenizedText] | None,
) -> TextToSample:
    """A paragraph as it is sampled."""
    document = paragraph.document
    is_whole = (paragraph.start_char, paragraph.end_char) == (0, len(document.text))
    tokens = None if is_whole and scorer is None else (scorer or model.tokenize)(document.text)
    return TextToSample(
        text=paragraph.text,
        seed_key=f"{choices.seed}|{tool.spec.name}|{document.document_id}|{paragraph.number}",
        start_char=paragraph.start_char,
        document=tokens,
        earlier_calls=EarlierCalls.of(document.text, tool_names()) if choices.chains else None,
    )


def _sampled_paragraph(
    tool: Tool, paragraph: Paragraph, text: TextToSample, sampled: SampledText
) -> SampledParagraph:
    """The candidates among what was sampled for a paragraph, and the counts."""
    pruned = [position for position in sampled.positions if position.pruned_by_loss is not None]
    open_positions = [position for position in sampled.positions if position.pruned_by_loss is None]
    counts = Counter(paragraphs=1, positions=len(sampled.positions), positions_pruned_below=len(pruned))
    counts.update(sampled.refused)
    candidates: list[Candidate] = []
    lost: list[LostSample] = []
    for position, samples in zip(open_positions, sampled.samples, strict=True):
        parent_of = None
        if text.earlier_calls is not None:
            parent_of = functools.partial(text.earlier_calls.parent_of, char=position.char)
        distinct, lost_here, counted = candidates_at(tool, paragraph.document, position, samples, parent_of)
        candidates += distinct
        lost += lost_here
        counts.update(counted)
    return SampledParagraph(
        paragraph=paragraph,
        candidates=candidates,
        pruned=pruned,
        counts=counts,
        lost=lost,
        seconds=sampled.position_seconds + sampled.sampling_seconds,
    )


def sample_texts(
    model: "LanguageModel",
    prompt: AnnotationPrompt,
    call_start: str,
    choices: ToolSamplingChoices,
    texts: Sequence[TextToSample],
    clock: Callable[[], float] = time.perf_counter,
    endpoint: EndpointProposer | None = None,
) -> list[SampledText]:
    """Positions and samples of each text, in order; with `endpoint` it is asked for the samples. `clock` measures the seconds."""
    started = clock() if endpoint else 0.0
    proposals = _proposals(endpoint, model, prompt, call_start, choices, texts) if endpoint else None
    sampling_seconds = clock() - started if endpoint else 0.0
    sampler: CallSampler = proposals or model.start_sampling(
        prompt,
        samples=choices.samples_per_position,
        max_new_tokens=choices.max_call_tokens,
        call_start=call_start,
        temperature=choices.temperature,
        top_p=choices.top_p,
        until_arrow=choices.sample_until == "arrow",
    )
    pruning = _Pruning(model, choices.prune_below, texts)
    allows = [_allowing(text, number, proposals) for number, text in enumerate(texts)]
    are_restricted = proposals is not None or any(text.document or text.earlier_calls for text in texts)
    positions: list[list[CallPosition]] = []
    position_seconds: list[float] = []
    for group in _groups(texts, model.read_tokens):
        # 1. Positions, and which of them are pruned. This computes the KV caches of the group's texts.
        started = clock()
        likeliest = model.find_positions(
            prompt,
            [text.text for text in group],
            at_most=choices.max_positions,
            threshold=choices.sampling_threshold,
            allowed=allows[len(positions) : len(positions) + len(group)] if are_restricted else None,
        )
        places = [text.places(own) for text, own in zip(group, likeliest, strict=True)]
        marked = pruning.marked(group, places)
        seconds_a_character = (clock() - started) / max(1, sum(len(text.text) for text in group))
        # 2. Sampling, at the text's own tokens. The texts join those of earlier groups, whose samples grow
        #    until there is room for the new ones.
        started = clock()
        for text, text_places in zip(group, marked, strict=True):
            open_tokens = [place.token for place in text_places if not place.is_pruned]
            sampler.add(text.text, open_tokens, text.seed_key)
            positions.append([place.position for place in text_places])
        sampling_seconds += clock() - started
        position_seconds += [seconds_a_character * len(text.text) for text in group]
        model.report("texts read for positions", len(positions), len(texts))
    started = clock()
    samples = sampler.finish()
    sampling_seconds += clock() - started
    # 3. Each text's share of the seconds.
    seconds_a_position = sampling_seconds / max(1, sum(map(len, samples)))
    return [
        SampledText(
            positions=of_text,
            samples=of_positions,
            position_seconds=seconds,
            sampling_seconds=seconds_a_position * len(of_positions),
            refused=proposals.refused[number] if proposals else Counter(),
        )
        for number, (of_text, of_positions, seconds) in enumerate(
            zip(positions, samples, position_seconds, strict=True)
        )
    ]


def _proposals(
    endpoint: EndpointProposer,
    model: "LanguageModel",
    prompt: AnnotationPrompt,
    call_start: str,
    choices: ToolSamplingChoices,
    texts: Sequence[TextToSample],
) -> Proposals:
    """What the endpoint proposes for the texts; one that chats has answered then."""
    numbers = ProposalNumbers(
        samples=choices.samples_per_position,
        max_new_tokens=choices.max_call_tokens,
        call_start=call_start,
        temperature=choices.temperature,
        top_p=choices.top_p,
        until_arrow=choices.sample_until == "arrow",
        seed=choices.seed,
    )
    of_documents = [TextOfDocument(text.text, document_id_of(text.whole_text)) for text in texts]
    return endpoint.start(prompt, of_documents, numbers, model.tokenize)


def _allowing(text: TextToSample, number: int, proposals: Proposals | None) -> Callable[[CallPosition], bool]:
    """Whether a call may be sampled at a position of the text of that number."""
    if proposals is None:
        return text.allows
    return lambda position: proposals.allows(number, position) and text.allows(position)


class _Pruning:
    """Marks the positions at which provably no call can lower the loss by `prune_below` nats; 0 marks none.

    A call lowers the loss by at most L(nothing) of its document, since L- is at most that and L+ at least 0.
    A document that is sampled in several parts is read once for all of them: its passes before a later part
    hold the earlier ones, so that a pass for each part would take time that grows with their square.
    """

    def __init__(self, model: "LanguageModel", prune_below: float, texts: Sequence[TextToSample]) -> None:
        self._model = model
        self._prune_below = prune_below
        self._parts: dict[str, list[TextToSample]] = defaultdict(list)
        for text in texts:
            if text.document is not None:
                self._parts[text.whole_text].append(text)
        self._losses: dict[str, dict[int, float]] = {}
        """By document in several parts, L(nothing) at the word starts of these, nats."""

    def marked(
        self, texts: Sequence[TextToSample], places: Sequence[Sequence[SamplingPlace]]
    ) -> list[list[SamplingPlace]]:
        """The places of each text, with the loss that proves it where one is pruned."""
        if self._prune_below == 0 or not any(places):
            return [list(text_places) for text_places in places]
        # 1. The losses of texts that are documents of their own, together.
        alone = [
            (text.whole_text, [place.position.token for place in text_places])
            for text, text_places in zip(texts, places, strict=True)
            if not self._is_in_parts(text)
        ]
        computed = iter(self._model.losses_without_call(alone) if alone else [])
        # 2. What the losses of each text prove.
        marked: list[list[SamplingPlace]] = []
        for text, text_places in zip(texts, places, strict=True):
            if self._is_in_parts(text):
                losses_at = self._losses_of_parts(text)
                losses = [losses_at[place.position.token] for place in text_places]
            else:
                losses = next(computed)
            marked.append([self._mark(place, loss) for place, loss in zip(text_places, losses, strict=True)])
        return marked

    def _mark(self, place: SamplingPlace, loss: float) -> SamplingPlace:
        if not self._model.surely_below(loss, self._prune_below):
            return place
        return SamplingPlace(place.token, dataclasses.replace(place.position, pruned_by_loss=loss))

    def _is_in_parts(self, text: TextToSample) -> bool:
        return len(self._parts.get(text.whole_text, ())) > 1

    def _losses_of_parts(self, text: TextToSample) -> dict[int, float]:
        """L(nothing) at each word start of the document that lies in one of its parts."""
        whole = text.whole_text
        if whole not in self._losses:
            assert text.document is not None  # noqa: S101 - or it has no parts
            spans = [(part.start_char, part.start_char + len(part.text)) for part in self._parts[whole]]
            tokens = [
                token
                for token in text.document.word_starts
                if any(start <= text.document.starts[token] < end for start, end in spans)
            ]
            [losses] = self._model.losses_without_call([(whole, tokens)])
            self._losses[whole] = dict(zip(tokens, losses, strict=True))
        return self._losses[whole]


def candidates_at(
    tool: Tool,
    document: Document,
    position: CallPosition,
    samples: Sequence[SampledContinuation],
    parent_of: Callable[[str], int | None] | None = None,
) -> tuple[list[Candidate], list[LostSample], Counter[str]]:
    """The distinct calls at a position of a document, in order of first appearance, and what else was sampled there.

    That is the samples that are no call, and how many there are of each kind.
    In a chain `parent_of` says which earlier call's result an input holds; a call that uses none is no
    candidate.
    """
    counts: Counter[str] = Counter(samples=len(samples))
    calls: Counter[Call] = Counter()
    lost: Counter[tuple[str, str]] = Counter()  # reason, text
    for sample in samples:
        read = read_call(tool, sample, document.text)
        if isinstance(read, str):
            lost[read, sample.text] += 1
        else:
            calls[read] += 1
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

    A call has no line break. One that the model copied with a phrase of hard-wrapped text is a space.

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
            return "sample_does_not_parse"
        call = copied
    if call.tool != tool.spec.name:
        return "sample_of_another_tool"
    if tool.spec.takes_input and not call.input:
        return "sample_without_input"
    if call.input and not tool.spec.takes_input:
        return "sample_with_unexpected_input"
    return call


def _copied_call(written: str, text: str) -> Call | None:
    """A call that was written over several lines, if its input is in the text, over lines that may end elsewhere."""
    if "\n" not in written:
        return None
    try:
        call = parse_call(on_one_line(written), is_closed=False)
    except CallSyntaxError:
        return None
    return call if call.input and call.input in on_one_line(text) else None


def _groups(texts: Sequence[TextToSample], most_tokens: int) -> Iterator[list[TextToSample]]:
    """Consecutive texts of at most about so many tokens together, or one that is longer.

    The engine keeps the KV caches of a group until its texts are added to the sampler.
    """
    group: list[TextToSample] = []
    tokens = 0.0
    for text in texts:
        own = float(tokens_before(text.text)[-1])
        if group and tokens + own > most_tokens:
            yield group
            group, tokens = [], 0.0
        group.append(text)
        tokens += own
    if group:
        yield group
