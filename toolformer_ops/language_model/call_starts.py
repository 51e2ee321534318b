"""Where a model would begin a call while it reads a text as it is, without a prompt: what decoding with tools looks at.

For each word start: the probability of " [" behind the text before, and its rank among all tokens. In a
vocabulary that spells " [" with several tokens it is the first of them. Of a text that is longer than the
model's window only the beginning is read. Annotation is another matter: there the text is behind a tool's
prompt (`context.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.tokenization import Tokenization, TokenizedText


@dataclass(frozen=True)
class ReadCallStart:
    """A word start of a text that a model reads."""

    position_char: int
    """Where a call would be written: at the space in front of the word."""
    probability: float
    """Of the first token of " [" there."""
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
            starts.append(_starts_of(model, text, tokens, states, marker))
    return starts


def _starts_of(
    model: CausalModel, text: TokenizedText, tokens: Sequence[int], states: torch.Tensor, marker: int
) -> list[ReadCallStart]:
    starts: list[ReadCallStart] = []
    for log_probs in model.log_probability_blocks(states):  # (rows, vocabulary)
        chosen = log_probs[:, marker]  # (rows,)
        ranks = (log_probs >= chosen[:, None]).sum(dim=1)
        for probability, rank in zip(chosen.exp().tolist(), ranks.tolist(), strict=True):
            place = text.starts[tokens[len(starts)]]
            starts.append(ReadCallStart(position_char=place, probability=probability, rank=rank))
    return starts
