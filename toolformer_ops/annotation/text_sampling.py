"""Positions of texts, and what the model writes at each (Toolformer, section 2, "Sampling API calls").

1. Positions are the k word starts with the largest p(" [") above tau_s. Those at which provably no call can
   be kept are pruned.
2. At each other position m continuations of " [" are sampled.

`sample_texts` does both steps for many texts together. A proposer behind an endpoint
(`language_model/endpoint`) does step 2 alone, or, if it chats, says in its answers at which word starts step
1 may find positions.

Does not read the samples as calls (`candidates.py`).
"""

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from toolformer_ops.annotation.chains import EarlierCalls
from toolformer_ops.language_model.endpoint.proposals import (
    EndpointProposer,
    ProposalNumbers,
    Proposals,
    TextOfDocument,
)
from toolformer_ops.language_model.tokenization import AnnotationPrompt, TokenizedText
from toolformer_ops.records import CallPosition, SampledContinuation, document_id_of
from toolformer_ops.runs.choices import ToolSamplingChoices
from toolformer_ops.writing_systems import tokens_before

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel


@dataclass(frozen=True)
class TextToSample:
    """A text that calls are sampled for: a whole document, or a part of one."""

    text: str
    seed_key: str
    """What its random numbers are made from."""
    start_char: int = 0
    """Offset of the text in its document."""
    document: TokenizedText | None = None
    """The document's tokens; None if the text is the document, so that positions are the document's already."""
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

    def positions_in_document(self, positions: Sequence[CallPosition]) -> "list[TextPosition]":
        """The positions of the text that are positions of the document, too."""
        in_document = ((position.token, self.in_document(position)) for position in positions)
        return [TextPosition(token, position) for token, position in in_document if position is not None]


@dataclass(frozen=True)
class _TextAtPositions:
    """A text that has been read for positions, and waits for its samples."""

    positions: list[CallPosition]
    """Positions in the document, in its order, the pruned ones included."""
    position_seconds: float
    """Seconds that its positions took."""


@dataclass(frozen=True)
class TextPosition:
    """A position of a text at which a call may be sampled."""

    token: int
    """Index in the token ids of the text as it is sampled."""
    position: CallPosition
    """The same position in the document."""

    @property
    def is_pruned(self) -> bool:
        """Whether no call here can be kept."""
        return self.position.pruned_by is not None


@dataclass(frozen=True)
class SampledText:
    """What the model wrote into one text."""

    positions: list[CallPosition]
    """Positions in the document, in its order, the pruned ones included."""
    samples: list[list[SampledContinuation]]
    """The samples of each position that is not pruned."""
    position_seconds: float
    """Seconds of finding and pruning positions: the text's share, by length, of what the texts that were read
    together took."""
    sampling_seconds: float
    """The text's share, by sampled positions, of all texts."""
    refused: Counter[str] = field(default_factory=Counter)
    """Answers of a proposer behind an endpoint that could not be taken, by reason."""


class CallSampler(Protocol):
    """What writes calls at positions: the engine's `Sampler`, or a model behind an endpoint."""

    def add(self, text: str, tokens: Sequence[int], seed_key: str) -> None:
        """Take in the next text, to be sampled before these tokens of it."""
        ...

    def finish(self) -> list[list[list[SampledContinuation]]]:
        """For each text, for each position, its samples, all in the order they were added."""
        ...


def sample_texts(
    model: "LanguageModel",
    prompt: AnnotationPrompt,
    call_start: str,
    choices: ToolSamplingChoices,
    texts: Sequence[TextToSample],
    clock: Callable[[], float] = time.perf_counter,
    endpoint: EndpointProposer | None = None,
) -> list[SampledText]:
    """Positions and samples of each text, in order.

    With `endpoint` it is asked for the samples. `clock` measures the seconds.
    """
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
    pruning = _Pruning(model, choices, texts)
    allows = [_allowing(text, number, proposals) for number, text in enumerate(texts)]
    are_restricted = proposals is not None or any(text.document or text.earlier_calls for text in texts)
    read: list[_TextAtPositions] = []
    for group in _groups(texts, model.read_tokens):
        # 1. Positions, and which of them are pruned. This computes the KV caches of the group's texts.
        started = clock()
        likeliest = model.find_positions(
            prompt,
            [text.text for text in group],
            at_most=choices.max_positions,
            threshold=choices.sampling_threshold,
            allowed=allows[len(read) : len(read) + len(group)] if are_restricted else None,
        )
        positions_by_text = [
            text.positions_in_document(own) for text, own in zip(group, likeliest, strict=True)
        ]
        marked = pruning.marked(group, positions_by_text)
        seconds_a_character = (clock() - started) / max(1, sum(len(text.text) for text in group))
        # 2. Sampling, at the text's own tokens. The texts join those of earlier groups, whose samples grow
        #    until there is room for the new ones.
        started = clock()
        for text, text_positions in zip(group, marked, strict=True):
            open_tokens = [each.token for each in text_positions if not each.is_pruned]
            sampler.add(text.text, open_tokens, text.seed_key)
            positions = [each.position for each in text_positions]
            read.append(_TextAtPositions(positions, seconds_a_character * len(text.text)))
        sampling_seconds += clock() - started
        model.report("texts read for positions", len(read), len(texts))
    started = clock()
    samples = sampler.finish()
    sampling_seconds += clock() - started
    # 3. Each text's share of the seconds.
    seconds_a_position = sampling_seconds / max(1, sum(map(len, samples)))
    return [
        SampledText(
            positions=text.positions,
            samples=text_samples,
            position_seconds=text.position_seconds,
            sampling_seconds=seconds_a_position * len(text_samples),
            refused=proposals.refused[number] if proposals else Counter(),
        )
        for number, (text, text_samples) in enumerate(zip(read, samples, strict=True))
    ]


def _proposals(
    endpoint: EndpointProposer,
    model: "LanguageModel",
    prompt: AnnotationPrompt,
    call_start: str,
    choices: ToolSamplingChoices,
    texts: Sequence[TextToSample],
) -> Proposals:
    """What the endpoint proposes for the texts; an endpoint that chats has answered then."""
    numbers = ProposalNumbers(
        samples=choices.samples_per_position,
        max_new_tokens=choices.max_call_tokens,
        call_start=call_start,
        temperature=choices.temperature,
        top_p=choices.top_p,
        until_arrow=choices.sample_until == "arrow",
        seed=choices.seed,
    )
    texts_to_propose = [TextOfDocument(text.text, document_id_of(text.whole_text)) for text in texts]
    return endpoint.start(prompt, texts_to_propose, numbers, model.tokenize)


def _allowing(text: TextToSample, number: int, proposals: Proposals | None) -> Callable[[CallPosition], bool]:
    """Whether a call may be sampled at a position of the text of that number."""
    if proposals is None:
        return text.allows
    return lambda position: proposals.allows(number, position) and text.allows(position)


class _Pruning:
    """Marks the positions at which provably no call can gain `prune_below` by the keep rule; 0 marks none.

    By the rule `paper` a call gains at most L(nothing) of its document, since L- is at most that and L+ at
    least 0; by the rule `probability` at most 1 minus the probability of the next tokens without a call.
    A document that is sampled in several parts is read once for all of them: its passes before a later part
    hold the earlier ones, so that a pass for each part would take time that grows with their square.
    """

    def __init__(
        self, model: "LanguageModel", choices: ToolSamplingChoices, texts: Sequence[TextToSample]
    ) -> None:
        self._model = model
        self._prune_below = choices.prune_below
        self._keep_rule = choices.keep_rule
        self._parts: dict[str, list[TextToSample]] = defaultdict(list)
        for text in texts:
            if text.document is not None:
                self._parts[text.whole_text].append(text)
        self._bounds: dict[str, dict[int, float]] = {}
        """By document in several parts, the most that a call can gain at the word starts of these."""

    def marked(
        self, texts: Sequence[TextToSample], positions_by_text: Sequence[Sequence[TextPosition]]
    ) -> list[list[TextPosition]]:
        """The positions of each text, with the bound that proves it where one is pruned."""
        if self._prune_below == 0 or not any(positions_by_text):
            return [list(text_positions) for text_positions in positions_by_text]
        # 1. The bounds of texts that are documents of their own, together.
        alone = []
        for text, text_positions in zip(texts, positions_by_text, strict=True):
            if not self._is_in_parts(text):
                alone.append((text.whole_text, [each.position.token for each in text_positions]))
        computed = iter(self._model.gain_bounds_without_call(alone, self._keep_rule) if alone else [])
        # 2. What the bounds of each text prove.
        marked: list[list[TextPosition]] = []
        for text, text_positions in zip(texts, positions_by_text, strict=True):
            if self._is_in_parts(text):
                bounds_at = self._bounds_of_parts(text)
                bounds = [bounds_at[each.position.token] for each in text_positions]
            else:
                bounds = next(computed)
            marked_positions = []
            for each, bound in zip(text_positions, bounds, strict=True):
                position = each.position
                if self._model.surely_below(bound, self._prune_below, self._keep_rule):
                    position = dataclasses.replace(position, pruned_by=bound)
                marked_positions.append(TextPosition(each.token, position))
            marked.append(marked_positions)
        return marked

    def _is_in_parts(self, text: TextToSample) -> bool:
        return len(self._parts.get(text.whole_text, ())) > 1

    def _bounds_of_parts(self, text: TextToSample) -> dict[int, float]:
        """The most that a call can gain at each word start of the document that lies in one of its parts."""
        whole = text.whole_text
        if whole not in self._bounds:
            assert text.document is not None  # noqa: S101 - or it has no parts
            parts = self._parts[whole]
            starts = text.document.starts
            tokens = []
            for token in text.document.word_starts:
                char = starts[token]
                if any(part.start_char <= char < part.start_char + len(part.text) for part in parts):
                    tokens.append(token)
            [bounds] = self._model.gain_bounds_without_call([(whole, tokens)], self._keep_rule)
            self._bounds[whole] = dict(zip(tokens, bounds, strict=True))
        return self._bounds[whole]


def _groups(texts: Sequence[TextToSample], most_tokens: int) -> Iterator[list[TextToSample]]:
    """Consecutive texts of at most about so many tokens together, or a single longer text.

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
