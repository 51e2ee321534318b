"""Where the model would start a call: `p_i = p(" [" | P(x), x[:i])` for every word start (Toolformer, section 2).

One pass a text. Only the rows of word starts are projected onto the vocabulary; the softmax is over all of it, in float32.
A position is the index of the token before which the call would stand, so the prefix holds every token before it, the last
one included. Position 0 is not offered: there the call would stand before all text, where any prefix on the topic helps.
"""

from collections.abc import Sequence

import torch

from toolformer_ops.language_model.causal_model import VOCABULARY_ROWS, CausalModel
from toolformer_ops.language_model.context import AnnotationContext, ContextBuilder
from toolformer_ops.language_model.prompts import AnnotationPrompt
from toolformer_ops.language_model.tokenization import TokenizedText
from toolformer_ops.language_model.windows import Window
from toolformer_ops.records import CallPosition


def find_positions(
    model: CausalModel,
    builder: ContextBuilder,
    marker_ids: Sequence[int],
    prompt: AnnotationPrompt,
    text: TokenizedText,
) -> list[CallPosition]:
    """Every word start of `text` from token 1 on, with its probability, in the order of the text."""
    found: list[CallPosition] = []
    for window in builder.windows(prompt, text):
        tokens = [token for token in text.word_starts if token >= 1 and window.owned_start <= token < window.owned_end]
        if tokens:
            context = builder.context(prompt, text, window)
            probabilities = _marker_probabilities(
                model, context, [token - window.start for token in tokens], marker_ids
            )
            found.extend(
                CallPosition(token, text.starts[token], probability)
                for token, probability in zip(tokens, probabilities, strict=True)
            )
    return found


def best_positions(positions: Sequence[CallPosition], at_most: int, threshold: float) -> list[CallPosition]:
    """The `at_most` most probable positions above `threshold` (strictly), in the order of the text; of equal ones the earlier."""
    above = [position for position in positions if position.probability > threshold]
    best = sorted(above, key=lambda position: (-position.probability, position.token))[:at_most]
    return sorted(best, key=lambda position: position.token)


def _marker_probabilities(
    model: CausalModel, context: AnnotationContext, tokens: Sequence[int], marker_ids: Sequence[int]
) -> list[float]:
    """p(marker) before each token of the window; the product of its parts where the marker is several tokens."""
    probabilities: list[float] = []
    for first in range(0, len(tokens), VOCABULARY_ROWS):
        chunk = tokens[first : first + VOCABULARY_ROWS]
        hidden = torch.stack([context.before(token) for token in chunk])  # (chunk, hidden)
        log_probs = model.log_probabilities(hidden)[:, marker_ids[0]].tolist()  # (chunk,)
        if len(marker_ids) > 1:
            rest = context.branch(chunk).extend([list(marker_ids[:-1])] * len(chunk))
            for row, states in enumerate(rest):
                log_probs[row] += sum(model.token_log_probabilities(states, list(marker_ids[1:])))
        probabilities.extend(float(torch.tensor(value).exp()) for value in log_probs)
    return probabilities


def owned_by(window: Window, positions: Sequence[CallPosition]) -> list[int]:
    """Indices of the positions that `window` owns."""
    return [index for index, item in enumerate(positions) if window.owned_start <= item.token < window.owned_end]
