"""Where the model would start a call: `p_i = p(" [" | P(x), x[:i])` for every word start (Toolformer, section 2).

One pass a text. Only the rows of word starts are projected onto the vocabulary; the softmax is over all of it, in float32.
A position is the index of the token before which the call would stand, so the prefix holds every token before it, the last
one included. Position 0 is not offered: there the call would stand before all text, where any prefix on the topic helps.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.context import AnnotationContext, ContextBuilder
from toolformer_ops.language_model.kv_cache import KVCache
from toolformer_ops.language_model.prompts import AnnotationPrompt
from toolformer_ops.language_model.tokenization import TokenizedText
from toolformer_ops.language_model.windows import Window
from toolformer_ops.records import CallPosition


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
        if (tokens := [one for one in text.word_starts if one >= 1 and window.owned_start <= one < window.owned_end])
    ]
    found: list[list[CallPosition]] = [[] for _ in texts]
    left = iter(places)
    for contexts in builder.contexts(prompt, [(one.text, one.window) for one in places]):
        together = list(zip(contexts, left, strict=False))
        for (_, one), probabilities in zip(together, _marker_probabilities(model, together, marker_ids), strict=True):
            found[one.index] += [
                CallPosition(token, one.text.starts[token], probability)
                for token, probability in zip(one.tokens, probabilities, strict=True)
            ]
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
    """p(marker) before each token of each window; the product of its parts where the marker is several tokens."""
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
