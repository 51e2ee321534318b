"""What the model sees when it annotates, and where it would start a call: `p_i = p(" [" | P(x), x[:i])` (Toolformer, section 2).

It sees start token, prompt with the text in its slot, and the text again, in one KV cache. The prompt's part is computed once a
prompt, for all texts; a text's part once for all its positions and samples. Short texts share a pass. Prompts and the last texts
are kept, which changes no number.

A position is the index of the token before which the call would be written, so the prefix holds every token before it. Only the
rows of word starts are projected onto the vocabulary; the softmax is over all of it, in float32. Position 0 is not offered: a call
there would precede the whole text, where any prefix on the topic helps.
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
from toolformer_ops.language_model.kv_cache import KVCache
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
KEPT_TEXT_TOKENS = 2048
"""Of the texts met last, contexts are kept up to this many tokens in all, both copies counted; the newest always."""
LONG_TEXT_TOKENS = {"cpu": 256, "cuda": 4096}
"""A text of so many tokens, both copies counted, has a separate pass: more would hardly make the matrix products faster."""

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
    """Token i of the window has row i + hidden_shift of `text_hidden`, from the second word on; negative if the first word takes
    fewer tokens behind the separator."""

    @property
    def tokens(self) -> int:
        """How many tokens' keys and values it holds, the prompt's not counted."""
        return self.text.length

    def before(self, token: int) -> Tensor:
        """Hidden state after all before token `token` of the window, (hidden,); `token` starts its second word or a later one."""
        return self.text_hidden[token - 1 + self.hidden_shift]


class ContextBuilder:
    """Builds contexts and keeps the last texts'."""

    def __init__(self, model: CausalModel, tokenization: Tokenization) -> None:
        self._model = model
        self._tokenization = tokenization
        self._kept: dict[_Key, AnnotationContext] = {}  # oldest first

    def windows(self, prompt: AnnotationPrompt, text: TokenizedText) -> list[Window]:
        """The windows of `text` under `prompt`, which holds it twice.

        Raises:
            ModelError: the prompt leaves too little of the model's window.
        """
        room = self._room(prompt)
        if len(text) > room and room < MIN_WINDOW:
            raise ModelError(
                f"prompt of {prompt.name}: expected it to leave room for {MIN_WINDOW} tokens of text, twice, in the "
                f"model's window of {self._model.window_tokens} tokens, found room for {max(room, 0)}. Choose a model "
                f"with a longer window, or shorten the prompt."
            )
        return plan_windows(len(text), room)

    def context(self, prompt: AnnotationPrompt, text: TokenizedText, window: Window) -> AnnotationContext:
        """The context of one window: a kept one, or computed; the same bits as together with others."""
        [[context]] = self.contexts(prompt, [(text, window)])
        return context

    def contexts(
        self, prompt: AnnotationPrompt, windows: Sequence[tuple[TokenizedText, Window]]
    ) -> Iterator[list[AnnotationContext]]:
        """The contexts of several texts' windows, in order, pass by pass; those that are not kept are computed together."""
        for together in _passes(windows, self._model.memory.pass_tokens, LONG_TEXT_TOKENS[self._model.kind]):
            keys = [(prompt, text.text, window) for text, window in together]
            found = {key: self._kept.pop(key) for key in dict.fromkeys(keys) if key in self._kept}
            missing = {
                key: self._added_ids(prompt, *window)
                for key, window in zip(keys, together, strict=True)
                if key not in found
            }
            if missing:
                found.update(zip(missing, self._compute(prompt, list(missing.values())), strict=True))
            for key in dict.fromkeys(keys):
                self._kept[key] = found[key]
            while len(self._kept) > 1 and sum(kept.tokens for kept in self._kept.values()) > KEPT_TEXT_TOKENS:
                self._kept.pop(next(iter(self._kept)))
            yield [found[key] for key in keys]

    def forget_texts(self) -> None:
        """Drop the kept contexts."""
        self._kept.clear()

    def _added_ids(self, prompt: AnnotationPrompt, text: TokenizedText, window: Window) -> "_AddedIds":
        ids = text.ids[window.start : window.end]
        aligned = min(text.second_word(window.start), window.end) - window.start
        in_slot = text.char_span(window.start, window.end)
        spelled, shift = self._tokenization.spell_after(prompt.separator, in_slot, ids, aligned)
        between = self._tokenization.continuation(prompt.after_text, after=".")
        return _AddedIds((*spelled, *between, *spelled), len(spelled) + len(between), shift)

    def _compute(self, prompt: AnnotationPrompt, texts: "Sequence[_AddedIds]") -> list[AnnotationContext]:
        """Contexts that are computed in one pass."""
        start = self._model.cached_prompt(self._prompt_ids(prompt))
        cache = KVCache(self._model)
        cache.join([CachedText(start) for _ in texts])
        hidden = cache.extend(range(len(texts)), [added.ids for added in texts])
        return [
            AnnotationContext(
                text=text,
                text_hidden=states[added.second_copy :].clone(),  # not a view that holds all texts of the pass
                text_start=start.length + added.second_copy + added.shift,
                hidden_shift=added.shift,
            )
            for text, states, added in zip(cache.texts(), hidden, texts, strict=True)
        ]

    def _prompt_ids(self, prompt: AnnotationPrompt) -> tuple[int, ...]:
        return (*self._tokenization.start_ids, *self._tokenization.ids(prompt.before_text))

    def _room(self, prompt: AnnotationPrompt) -> int:
        """Most tokens of text that fit twice, with the separators and a sampled call."""
        reserve = min(LARGEST_CALL_RESERVE, self._model.window_tokens // 8)
        separators = 2 * len(self._tokenization.continuation(prompt.separator, after=":"))
        between = len(self._tokenization.continuation(prompt.after_text, after="."))
        used = len(self._prompt_ids(prompt)) + between + separators + reserve
        return (self._model.window_tokens - used) // 2


@dataclass(frozen=True)
class _AddedIds:
    """What a text adds to a prompt."""

    ids: tuple[int, ...]
    second_copy: int
    """Index of the text's second copy in them, its separator included."""
    shift: int
    """`spell_after`'s shift."""


def _passes(
    windows: Sequence[tuple[TokenizedText, Window]], most: int, long: int
) -> Iterator[list[tuple[TokenizedText, Window]]]:
    """Windows by pass, in the order given: those of `long` tokens alone, others until a pass holds `most`."""
    together: list[tuple[TokenizedText, Window]] = []
    tokens = 0
    for text, window in windows:
        length = 2 * (window.end - window.start)  # about how many tokens both copies of it take
        if together and (tokens + length > most or length >= long):
            yield together
            together, tokens = [], 0
        together.append((text, window))
        tokens += most if length >= long else length
    if together:
        yield together


def find_positions(
    model: CausalModel,
    builder: ContextBuilder,
    marker_ids: Sequence[int],
    prompt: AnnotationPrompt,
    texts: Sequence[TokenizedText],
) -> list[list[CallPosition]]:
    """For each text, every word start from token 1 on with its probability, in the order of the text."""
    places = [
        _Places(index, text, window, tokens)
        for index, text in enumerate(texts)
        for window in builder.windows(prompt, text)
        if (
            tokens := [
                token for token in text.word_starts if token >= 1 and window.owned_start <= token < window.owned_end
            ]
        )
    ]
    found: list[list[CallPosition]] = [[] for _ in texts]
    left, done = iter(places), 0
    for contexts in builder.contexts(prompt, [(one.text, one.window) for one in places]):
        together = list(zip(contexts, left, strict=False))
        for (_, one), probabilities in zip(together, _marker_probabilities(model, together, marker_ids), strict=True):
            found[one.index] += [
                CallPosition(token, one.text.starts[token], probability)
                for token, probability in zip(one.tokens, probabilities, strict=True)
            ]
        done += len(together)
        if len(places) > len(texts):
            model.pulse("windows read for positions", done, len(places))
    return found


def best_positions(positions: Sequence[CallPosition], at_most: int, threshold: float) -> list[CallPosition]:
    """The `at_most` most probable positions above `threshold` (strictly), in the order of the text; of equal ones the earlier."""
    above = [position for position in positions if position.probability > threshold]
    best = sorted(above, key=lambda position: (-position.probability, position.token))[:at_most]
    return sorted(best, key=lambda position: position.token)


@dataclass(frozen=True)
class _Places:
    """The word starts that a window of a text owns."""

    index: int
    """Of the text."""
    text: TokenizedText
    window: Window
    tokens: list[int]

    @property
    def in_window(self) -> list[int]:
        """The same tokens, counted from the window's start."""
        return [token - self.window.start for token in self.tokens]


def _marker_probabilities(
    model: CausalModel, together: Sequence[tuple[AnnotationContext, _Places]], marker_ids: Sequence[int]
) -> list[list[float]]:
    """p(marker) before each token of each window; the product of its parts if the marker is several tokens."""
    hidden = torch.stack([context.before(token) for context, places in together for token in places.in_window])
    values = np.array(model.token_log_probabilities(hidden, [marker_ids[0]] * len(hidden)))
    if len(marker_ids) > 1:
        cache, first = KVCache(model), 0
        for context, places in together:
            seen = [context.text_start + token for token in places.in_window]
            cache.share([(context.text, seen, range(first, first + len(seen)))])
            first += len(seen)
        for given, wanted in itertools.pairwise(marker_ids):
            states = cache.step(np.full(len(values), given))  # (rows, hidden)
            values[cache.labels] += model.token_log_probabilities(states, [wanted] * len(states))
    found = iter(torch.from_numpy(values).float().exp().tolist())
    return [[next(found) for _ in places.tokens] for _, places in together]
