"""What the model sees when it annotates, and where it would start a call (Toolformer, section 2).

The probability of a call is `p_i = p(" [" | P(x), x[:i])`. It sees start token, prompt with the text in its
slot, and the text again, in one KV cache. The prompt's part is computed once a prompt, for all texts; a
text's part once for all its positions and samples. Short texts share a pass. Prompts and the last texts are
kept, which changes no number.

A position is the index of the token before which the call would be written, so the prefix holds every token
before it. Only the rows of word starts are projected onto the vocabulary; the softmax is over all of it, in
float32. Position 0 is not offered: a call there would precede the whole text, where any prefix on the topic
helps.

Decoding with tools looks at a text as it is, without a prompt: the probability of " [" before each word, and
its rank among all tokens (of its first token, in a vocabulary that spells it with several). It reads as much
as the model's window holds.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.columns import CachedText
from toolformer_ops.language_model.kv_cache import KVCache, read_prompts
from toolformer_ops.language_model.packing import consecutive_parts, padded_parts
from toolformer_ops.language_model.tokenization import (
    MIN_WINDOW,
    AnnotationPrompt,
    Tokenization,
    TokenizedText,
    Window,
    plan_windows,
)
from toolformer_ops.records import CallPosition

LARGEST_CALL_RESERVE = 272
"""Tokens kept free for a sampled call: the longest that a run may ask for (256) and its given start."""

_Key = tuple[AnnotationPrompt, str, Window]


@dataclass(frozen=True)
class AnnotationContext:
    """The computed context of one window of a text."""

    text: CachedText
    """What follows the prompt: the text in its slot and the text again."""
    text_hidden: Tensor
    """Hidden states of the second copy of the text, (tokens, hidden)."""
    text_start: int
    """How many tokens come before token 0 of the window (its second copy)."""
    hidden_shift: int
    """Token i of the window has row i + hidden_shift of `text_hidden`, from the second word on; negative if
    the first word takes fewer tokens after the separator."""

    @property
    def tokens(self) -> int:
        """How many tokens' keys and values it holds, the prompt's not counted."""
        return self.text.length

    def before(self, token: int) -> Tensor:
        """Hidden state after all before token `token` of the window, (hidden,).

        `token` starts its second word or a later one.
        """
        return self.text_hidden[token - 1 + self.hidden_shift]


@dataclass(frozen=True)
class _Copies:
    """What a window of a text adds to the prompt.

    It is the text in its slot, what follows the slot, and the text again.
    """

    ids: tuple[int, ...]
    second: int
    """Where the second copy begins, with its separator."""
    shift: int
    """`hidden_shift` of the context."""


@dataclass(frozen=True)
class _OwnedStarts:
    """The word starts of a text that one of its windows owns, each of them a possible position."""

    text: int
    """The number of the text among the texts that are read together."""
    window: Window
    tokens: list[int]


class ContextBuilder:
    """Builds contexts, keeps the last texts', and finds positions in them."""

    def __init__(self, model: CausalModel, tokenization: Tokenization) -> None:
        self._model = model
        self._tokenization = tokenization
        self._read_prompt = read_prompts(model)
        self._kept: dict[_Key, AnnotationContext] = {}  # oldest first

    def windows(self, prompt: AnnotationPrompt, text: TokenizedText) -> list[Window]:
        """The windows of `text` under `prompt`, which holds it twice, with the separators and a sampled call.

        Raises:
            ModelError: the prompt leaves too little of the model's window.
        """
        reserve = min(LARGEST_CALL_RESERVE, self._model.window_tokens // 8)
        separators = 2 * len(self._tokenization.continuation(prompt.separator, after=":"))
        between = len(self._tokenization.continuation(prompt.after_text, after="."))
        used = len(self._prompt_ids(prompt)) + between + separators + reserve
        room = (self._model.window_tokens - used) // 2
        if len(text) > room and room < MIN_WINDOW:
            raise ModelError(
                f"prompt of {prompt.name}: expected it to leave room for {MIN_WINDOW} tokens of text, twice, "
                f"in the model's window of {self._model.window_tokens} tokens, found room for "
                f"{max(room, 0)}. Choose a model with a longer window, or shorten the prompt."
            )
        return plan_windows(len(text), room)

    def contexts(
        self, prompt: AnnotationPrompt, windows: Sequence[tuple[TokenizedText, Window]]
    ) -> Iterator[list[AnnotationContext]]:
        """The contexts of several texts' windows, in order, pass by pass.

        Those that are not kept are computed together. Each has the same bits when it is computed alone (on a
        CPU).
        """
        most, long = self._model.memory.pass_tokens, self._model.sizes.long_text_tokens
        between = self._tokenization.continuation(prompt.after_text, after=".")
        # About what both copies of a window take.
        sizes = []
        for _, window in windows:
            tokens = 2 * (window.end - window.start)
            sizes.append(tokens if tokens < long else most)
        parted = padded_parts if self._model.texts_together else consecutive_parts
        for part in parted(sizes, most):
            keys = [(prompt, windows[number][0].text, windows[number][1]) for number in part]
            contexts = {key: self._kept.pop(key) for key in dict.fromkeys(keys) if key in self._kept}
            missing = {}
            for key, number in zip(keys, part, strict=True):
                if key not in contexts:
                    missing[key] = windows[number]
            # 1. Contexts that are not kept, after the prompt in one pass.
            if missing:
                copies = [self._copies(prompt, between, text, window) for text, window in missing.values()]
                start = self._read_prompt(self._prompt_ids(prompt))
                cache = KVCache(self._model)
                cache.join([CachedText(start) for _ in copies])
                hidden = cache.extend(range(len(copies)), [copy.ids for copy in copies])
                for key, copy, cached, states in zip(missing, copies, cache.texts(), hidden, strict=True):
                    contexts[key] = AnnotationContext(
                        text=cached.compact() if self._model.texts_together else cached,
                        text_hidden=states[copy.second :].clone(),  # no view that holds all texts of the pass
                        text_start=start.length + copy.second + copy.shift,
                        hidden_shift=copy.shift,
                    )
            # 2. The newest are kept.
            self._kept.update((key, contexts[key]) for key in keys)
            most_kept = self._model.memory.kept_text_tokens
            while len(self._kept) > 1 and sum(kept.tokens for kept in self._kept.values()) > most_kept:
                self._kept.pop(next(iter(self._kept)))
            yield [contexts[key] for key in keys]

    def _copies(
        self, prompt: AnnotationPrompt, between: Sequence[int], text: TokenizedText, window: Window
    ) -> _Copies:
        """What a window adds to the prompt; `between` are the ids of what follows the slot."""
        spelled, shift = self._tokenization.spell_after(
            prompt.separator,
            text.char_span(window.start, window.end),
            text.ids[window.start : window.end],
            min(text.second_word(window.start), window.end) - window.start,
        )
        return _Copies((*spelled, *between, *spelled), len(spelled) + len(between), shift)

    def forget_texts(self) -> None:
        """Drop the kept contexts."""
        self._kept.clear()

    def let_go(self) -> None:
        """Drop contexts and prompts, since the model is let go."""
        self._kept.clear()
        self._read_prompt.cache_clear()

    def find_positions(
        self, prompt: AnnotationPrompt, texts: Sequence[TokenizedText]
    ) -> list[list[CallPosition]]:
        """For each text, every word start from token 1 on with its probability, in the order of the text."""
        # 1. The word starts that each window owns.
        owned: list[_OwnedStarts] = []
        for number, text in enumerate(texts):
            for window in self.windows(prompt, text):
                first = max(1, window.owned_start)
                if tokens := [token for token in text.word_starts if first <= token < window.owned_end]:
                    owned.append(_OwnedStarts(number, window, tokens))
        # 2. Their probabilities, pass by pass.
        positions: list[list[CallPosition]] = [[] for _ in texts]
        done = 0
        for contexts in self.contexts(prompt, [(texts[starts.text], starts.window) for starts in owned]):
            together = owned[done : done + len(contexts)]
            word_starts = []
            for context, starts in zip(contexts, together, strict=True):
                word_starts.append((context, [token - starts.window.start for token in starts.tokens]))
            probabilities = iter(self._marker_probabilities(word_starts))
            for starts in together:
                start_chars = texts[starts.text].starts
                for token in starts.tokens:
                    position = CallPosition(token, start_chars[token], next(probabilities))
                    positions[starts.text].append(position)
            done += len(together)
            if len(owned) > len(texts):
                self._model.pulse("windows read for positions", done, len(owned))
        return positions

    def _prompt_ids(self, prompt: AnnotationPrompt) -> tuple[int, ...]:
        return (*self._tokenization.start_ids, *self._tokenization.ids(prompt.before_text))

    def _marker_probabilities(
        self, word_starts: Sequence[tuple[AnnotationContext, Sequence[int]]]
    ) -> list[float]:
        """p(marker) before each token of each window.

        It is the product of its parts if the marker is several tokens.
        """
        marker_ids = self._tokenization.marker_ids
        before: list[torch.Tensor] = []
        for context, tokens in word_starts:
            before += [context.before(token) for token in tokens]
        hidden = torch.stack(before)
        values = np.array(self._model.token_log_probabilities(hidden, [marker_ids[0]] * len(hidden)))
        if len(marker_ids) > 1:
            cache, first = KVCache(self._model), 0
            for context, tokens in word_starts:
                seen = [context.text_start + token for token in tokens]
                cache.share([(context.text, seen, range(first, first + len(seen)))])
                first += len(seen)
            for previous_id, next_id in itertools.pairwise(marker_ids):
                states = cache.step(np.full(len(values), previous_id))  # (rows, hidden)
                values[cache.labels] += self._model.token_log_probabilities(states, [next_id] * len(states))
        return [float(probability) for probability in torch.from_numpy(values).float().exp().tolist()]


def best_positions(positions: Sequence[CallPosition], at_most: int, threshold: float) -> list[CallPosition]:
    """The `at_most` most probable positions above `threshold` (strictly), in the order of the text.

    Of equal ones the earlier is taken.
    """

    def probability(position: CallPosition) -> float:
        return 0.0 if position.probability is None else position.probability

    above = [position for position in positions if probability(position) > threshold]
    best = sorted(above, key=lambda position: (-probability(position), position.token))[:at_most]
    return sorted(best, key=lambda position: position.token)


@dataclass(frozen=True)
class ReadCallStart:
    """A word start of a text that a model reads."""

    position_char: int
    """Where a call would be written: at the space in front of the word."""
    probability: float
    """The probability of the first token of " [" there."""
    rank: int
    """How many tokens are at least as likely, itself included."""


def call_starts(
    model: CausalModel, tokenization: Tokenization, texts: Sequence[TokenizedText]
) -> list[list[ReadCallStart]]:
    """For each text its word starts from token 1 on, in the order of the text."""
    before, marker = tokenization.start_ids, tokenization.marker_ids[0]
    # 1. What is read of each text, and which tokens of it start a word.
    sequences = [[*before, *text.ids][: model.window_tokens] for text in texts]
    word_starts = []
    for text, ids in zip(texts, sequences, strict=True):
        end = len(ids) - len(before)
        word_starts.append([token for token in text.word_starts if 1 <= token < end])
    # 2. The hidden state before each, some texts at a time.
    starts: list[list[ReadCallStart]] = []
    at_once = model.sizes.loss_windows
    for first in range(0, len(texts), at_once):
        part = slice(first, first + at_once)
        rows = [[len(before) + token - 1 for token in tokens] for tokens in word_starts[part]]
        hidden = model.hidden_states(sequences[part], rows)
        for text, tokens, states in zip(texts[part], word_starts[part], hidden, strict=True):
            own: list[ReadCallStart] = []
            for log_probs in model.log_probability_blocks(states):  # (rows, vocabulary)
                chosen = log_probs[:, marker]  # (rows,)
                ranks = (log_probs >= chosen[:, None]).sum(dim=1)
                for probability, rank in zip(chosen.exp().tolist(), ranks.tolist(), strict=True):
                    place = text.starts[tokens[len(own)]]
                    own.append(ReadCallStart(position_char=place, probability=probability, rank=rank))
            starts.append(own)
    return starts
