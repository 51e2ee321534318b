"""From a document to candidate calls (Toolformer, section 2, "Sampling API calls").

Pure functions on records.

1. The tool's filter chooses the paragraphs that are worth asking, and long ones are cut: `filter_document`,
   `kept_paragraphs`.
2. Positions are the k word starts with the largest p(" [") above tau_s. Those at which provably no call can
   be kept are pruned.
3. At each other position m continuations of " [" are sampled: `sample_texts` does steps 2 and 3.
4. Equal calls at one position are one candidate with a count; every other sample is counted under its reason:
   `candidates_at`.

`sample_paragraphs` does steps 2 to 4. With `chains` a text holds calls already, and these steps find calls
that use their results (`chains.py`). Does not run tools and does not score (`scoring.py`).
"""

import bisect
import dataclasses
import functools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolformer_ops.annotation.chains import EarlierCalls
from toolformer_ops.call_syntax import CALL_START, Call, holds_call_markup, parse_call
from toolformer_ops.errors import CallSyntaxError
from toolformer_ops.language_model import AnnotationPrompt
from toolformer_ops.language_model.tokenization import TokenizedText
from toolformer_ops.records import CHARACTERS_A_TOKEN, CallPosition, Document, Paragraph, SampledContinuation
from toolformer_ops.runs.choices import FilterChoices, ToolSamplingChoices
from toolformer_ops.tools.base import FilterDecision, Tool
from toolformer_ops.tools.paragraphs import Span, paragraphs
from toolformer_ops.tools.registry import tool_names

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

HOLDS_CALL_MARKUP = "holds_call_markup"
HOLDS_NO_CALL = "holds_no_call"
TAKES_NO_INPUT = "tool_takes_no_input"
"""In a chain: a call of this tool can hold no result."""
LONGER_THAN_LIMIT = "longer_than_max_text_tokens"
CHARACTERS_TOGETHER = 4000
"""Positions are found for texts of so many characters together: some 1,000 tokens, whose KV caches the engine
keeps until the texts are added to the sampler (`language_model/context.py: KEPT_TEXT_TOKENS`)."""
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
_WORD_END = re.compile(r"\s")
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class SampledText:
    """What the model wrote into one text."""

    positions: list[CallPosition]
    """In the order of the text, the pruned ones included."""
    samples: list[list[SampledContinuation]]
    """Of each position that is not pruned."""
    position_seconds: float
    """Of finding and pruning positions: the text's share, by length, of the texts that were read together."""
    sampling_seconds: float
    """The text's share, by sampled positions, of all texts."""


@dataclass(frozen=True)
class Candidate:
    """A distinct call at a position of a paragraph."""

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
    """What the model wrote at a position of a paragraph that is no call."""

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


def filter_document(
    tool: Tool, document: Document, choices: FilterChoices, *, chains: bool = False
) -> list[FilterDecision]:
    """The tool's decisions on a document, or one refusal if the text already holds call markup.

    What is kept and longer than `choices.max_text_tokens` is cut, or left out. Each piece is a paragraph: the
    first has its number, the others have numbers behind those of all paragraphs, so that the other paragraphs
    keep theirs. With `chains` the text has to hold calls with their results, and no other markup; and the
    tool has to take an input.
    """
    text, refused = document.text, None
    calls: list[Span] = []
    if chains:
        earlier = EarlierCalls.of(text, tool_names())
        text = earlier.plain_text
        refused = None if earlier.calls else HOLDS_NO_CALL
        calls = [(call.start_char, call.end_char) for call in earlier.calls]
        if not tool.spec.takes_input:
            refused = TAKES_NO_INPUT
    if holds_call_markup(text, tool_names()):
        refused = HOLDS_CALL_MARKUP
    if refused:
        return [FilterDecision(kept=False, reason=refused, end_char=len(document.text))]
    decisions = tool.filter(tool.spec.as_read(document))
    most = choices.max_text_tokens * CHARACTERS_A_TOKEN
    found: list[FilterDecision] = []
    number = max((decision.paragraph for decision in decisions), default=0)
    for decision in decisions:
        if not decision.kept or not 0 < most < decision.end_char - decision.start_char:
            found.append(decision)
        elif choices.long_texts == "leave_out":
            found.append(dataclasses.replace(decision, kept=False, reason=LONGER_THAN_LIMIT))
        else:
            pieces = cut(document.text, (decision.start_char, decision.end_char), most, calls)
            numbers = [decision.paragraph, *range(number + 1, number + len(pieces))]
            number += len(pieces) - 1
            found += [
                dataclasses.replace(decision, paragraph=own, start_char=start, end_char=end)
                for own, (start, end) in zip(numbers, pieces, strict=True)
            ]
    return found


def cut(text: str, span: Span, most: int, unbroken: Sequence[Span] = ()) -> list[Span]:
    """Pieces of a part of a text, each of at most `most` characters, in order; the white space between two is in neither.

    The work on a text grows faster than its length, since a call near its end is sampled and scored with all
    that comes before it. So a long text is cut at a blank line or else at the end of a paragraph
    (`tools/paragraphs.py`); within a longer paragraph at the end of a sentence, or of a word. Pieces are
    about equally long. A token counts as four characters (`records.py`), so that no tokenizer is loaded, and
    another model has the same pieces. A word without white space is cut at `most`. No piece begins or ends
    within one of the spans `unbroken`, which may make it longer.
    """
    start, end = span
    pieces: list[Span] = []
    paragraph_ends = [last for _, last in paragraphs(text)] if end - start > most else []
    while end - start > most:
        even = (end - start) / -(-(end - start) // most)
        at = start + most
        for places in _breaks(text, (start + int(even / 2), start + most + 1), paragraph_ends):
            found = [place for place in places if not any(first < place < last for first, last in unbroken)]
            if found:
                at = min(found, key=lambda place: abs(place - start - even))
                break
        at = min(end, next((last for first, last in unbroken if first < at < last), at))
        pieces.append((start, start + (len(text[start:at].rstrip()) or at - start)))
        match = _SPACE.match(text, at, end)
        start = match.end() if match else at
    return [*pieces, (start, end)] if start < end else pieces


def _breaks(text: str, part: Span, paragraph_ends: Sequence[int]) -> Iterator[list[int]]:
    """Places in a part of a text at which to cut it, those of the best kind first; `paragraph_ends` ascend."""
    yield [match.start() for match in _BLANK_LINE.finditer(text, *part)]
    first, end = (bisect.bisect_left(paragraph_ends, char) for char in part)
    yield list(paragraph_ends[first:end])
    yield [match.start() for match in _SENTENCE_END.finditer(text, *part)]
    yield [match.start() for match in _WORD_END.finditer(text, *part)]


def kept_paragraphs(document: Document, decisions: Sequence[FilterDecision]) -> list[Paragraph]:
    """The paragraphs of a document that a filter kept."""
    return [
        Paragraph(
            document=document, number=item.paragraph, start_char=item.start_char, end_char=item.end_char
        )
        for item in decisions
        if item.kept
    ]


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
) -> list[SampledParagraph]:
    """The candidate calls of each paragraph, in order; all paragraphs are sampled together.

    A paragraph's samples do not depend on what is sampled with it. If another model than the one that scores
    proposes the calls,
    `scorer` is how the scoring model tokenises a text: the positions that are returned are its tokens, calls
    are sampled only where one of these starts, and no position is pruned, since the proposer's losses bound
    nothing.
    """
    if scorer is not None:
        choices = choices.model_copy(update={"prune_below": 0.0})
    tokenized = [None if scorer is None else scorer(item.text) for item in paragraphs]
    earlier: list[EarlierCalls] | list[None] = [None] * len(paragraphs)
    allowed = None
    if choices.chains:
        earlier = [EarlierCalls.of(item.document.text, tool_names()) for item in paragraphs]
    if choices.chains or scorer is not None:
        starts = [paragraph.start_char for paragraph in paragraphs]
        allowed = [
            functools.partial(_is_allowed, *of_text)
            for of_text in zip(tokenized, earlier, starts, strict=True)
        ]
    sampled = sample_texts(
        model,
        annotation_prompt(tool),
        given_call_start(tool, choices.call_prefix),
        choices,
        [
            (item.text, f"{choices.seed}|{tool.spec.name}|{item.document.document_id}|{item.number}")
            for item in paragraphs
        ],
        allowed,
    )
    found: list[SampledParagraph] = []
    for paragraph, calls, of_text, text in zip(paragraphs, earlier, sampled, tokenized, strict=True):
        positions = [at_its_token(position, text) for position in of_text.positions]
        pruned = [position for position in positions if position.pruned_by_loss is not None]
        open_positions = [position for position in positions if position.pruned_by_loss is None]
        counts = Counter(paragraphs=1, positions=len(positions), positions_pruned_below=len(pruned))
        candidates: list[Candidate] = []
        lost: list[LostSample] = []
        for position, samples in zip(open_positions, of_text.samples, strict=True):
            parent_of = (
                functools.partial(calls.parent_of, char=paragraph.start_char + position.char)
                if calls
                else None
            )
            distinct, lost_here, counted = candidates_at(
                tool, paragraph.document, paragraph.text, position, samples, parent_of
            )
            candidates += distinct
            lost += lost_here
            counts.update(counted)
        found.append(
            SampledParagraph(
                paragraph=paragraph,
                candidates=candidates,
                pruned=pruned,
                counts=counts,
                lost=lost,
                seconds=of_text.position_seconds + of_text.sampling_seconds,
            )
        )
    return found


def at_its_token(position: CallPosition, text: TokenizedText | None) -> CallPosition:
    """A position of the proposer's at the token of `text` that starts the same word; as it is if there is no such token."""
    place = None if text is None else text.place_of(position.char)
    return position if place is None else dataclasses.replace(position, token=place[0], char=place[1])


def _is_allowed(
    text: TokenizedText | None, earlier: EarlierCalls | None, start_char: int, position: CallPosition
) -> bool:
    """Whether a call may be sampled at a position, by the scoring model's tokens and by the calls that the text holds."""
    has_token = text is None or text.place_of(position.char) is not None
    return has_token and (earlier is None or earlier.allows(start_char + at_its_token(position, text).char))


def sample_texts(
    model: "LanguageModel",
    prompt: AnnotationPrompt,
    call_start: str,
    choices: ToolSamplingChoices,
    texts: Sequence[tuple[str, str]],
    allowed: Sequence[Callable[[CallPosition], bool]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[SampledText]:
    """Positions and samples of each text, in order; a text comes with the key that its random numbers are made from.

    `allowed` says of each text at which positions calls may be sampled; all without it. `clock` measures the
    seconds.
    """
    sampler = model.start_sampling(
        prompt,
        samples=choices.samples_per_position,
        max_new_tokens=choices.max_call_tokens,
        call_start=call_start,
        temperature=choices.temperature,
        top_p=choices.top_p,
        until_arrow=choices.sample_until == "arrow",
    )
    positions: list[list[CallPosition]] = []
    position_seconds: list[float] = []
    sampling_seconds = 0.0
    for group in _groups(texts):
        # 1. Positions, and which of them are pruned. This computes the KV caches of the group's texts.
        started = clock()
        likeliest = model.find_positions(
            prompt,
            [text for text, _ in group],
            at_most=choices.max_positions,
            threshold=choices.sampling_threshold,
            allowed=None if allowed is None else allowed[len(positions) : len(positions) + len(group)],
        )
        found = prune_positions(
            model,
            [(text, of_text) for (text, _), of_text in zip(group, likeliest, strict=True)],
            choices.prune_below,
        )
        seconds_a_character = (clock() - started) / max(1, sum(len(text) for text, _ in group))
        # 2. Sampling. The texts join those of earlier groups, whose samples grow until there is room for the
        #    new ones.
        started = clock()
        for (text, seed_key), of_text in zip(group, found, strict=True):
            sampler.add(
                text, [position.token for position in of_text if position.pruned_by_loss is None], seed_key
            )
        sampling_seconds += clock() - started
        positions += found
        position_seconds += [seconds_a_character * len(text) for text, _ in group]
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
        )
        for of_text, of_positions, seconds in zip(positions, samples, position_seconds, strict=True)
    ]


def prune_positions(
    model: "LanguageModel", texts: Sequence[tuple[str, Sequence[CallPosition]]], prune_below: float
) -> list[list[CallPosition]]:
    """The positions of each text, marked where provably no call can lower the loss by `prune_below` nats; 0 marks none.

    A call lowers the loss by at most L(nothing), since L- is at most that and L+ at least 0.
    """
    if prune_below == 0 or not any(positions for _, positions in texts):
        return [list(positions) for _, positions in texts]
    losses = model.losses_without_call(
        [(text, [position.token for position in positions]) for text, positions in texts]
    )
    return [
        [
            dataclasses.replace(position, pruned_by_loss=loss)
            if model.surely_below(loss, prune_below)
            else position
            for position, loss in zip(positions, of_text, strict=True)
        ]
        for (_, positions), of_text in zip(texts, losses, strict=True)
    ]


def candidates_at(
    tool: Tool,
    document: Document,
    text: str,
    position: CallPosition,
    samples: Sequence[SampledContinuation],
    parent_of: Callable[[str], int | None] | None = None,
) -> tuple[list[Candidate], list[LostSample], Counter[str]]:
    """The distinct calls at one position in order of first appearance, the samples that are no call, and how many of each kind.

    In a chain `parent_of` says which earlier call's result an input holds; a call that uses none is no
    candidate.
    """
    counts: Counter[str] = Counter(samples=len(samples))
    calls: Counter[Call] = Counter()
    lost: Counter[tuple[str, str]] = Counter()  # reason, text
    for sample in samples:
        read = read_call(tool, sample)
        if isinstance(read, str):
            lost[read, sample.text] += 1
        else:
            calls[read] += 1
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
        only_after = tool.input_only_after(call.input, text[: position.char], text[position.char :])
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


def read_call(tool: Tool, sample: SampledContinuation) -> Call | str:
    """The call that the model wrote, or the reason why its text is no call of this tool.

    A small model leaves out the round bracket in half of its searches, `WikiSearch("iris function"]`: `"]` is
    one token. The "]" says where such a call ends.
    """
    if not sample.finished:
        return "sample_without_end"
    try:
        call = parse_call(sample.text, is_closed=False)
    except CallSyntaxError:
        return "sample_does_not_parse"
    if call.tool != tool.spec.name:
        return "sample_of_another_tool"
    if tool.spec.takes_input and not call.input:
        return "sample_without_input"
    if call.input and not tool.spec.takes_input:
        return "sample_with_unexpected_input"
    return call


def _groups(texts: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Consecutive texts of at most `CHARACTERS_TOGETHER` characters together, or one that is longer."""
    group: list[tuple[str, str]] = []
    characters = 0
    for item in texts:
        if group and characters + len(item[0]) > CHARACTERS_TOGETHER:
            yield group
            group, characters = [], 0
        group.append(item)
        characters += len(item[0])
    if group:
        yield group
