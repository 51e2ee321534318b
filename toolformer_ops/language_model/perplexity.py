"""How well a model predicts whole texts with calls disabled: nats, tokens and bytes (Toolformer, section 4.3 and footnote 5).

Calls disabled: wherever a call could start, the probability of " [" is set to 0 and the others are scaled up to sum to 1 again.
If the text itself has " [" there, that token is left as it is and counted. (In a vocabulary that spells " [" with several tokens
it is the last of them, and only behind the others, that is treated so.)

Sliding window: a text longer than the model's window is read in windows that move by `stride` tokens. Each scores only its tokens
that none before it scored, so that every token is scored once and, from the second window on, with at least a window less a stride
of text before it. Each window begins with the start token as the model was trained; without one the first token of the text is
not scored, since nothing predicts it.

Does not average: `evaluation/running.py` does, over texts.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.tokenization import Tokenization, TokenizedText

WINDOWS_AT_ONCE = 16
"""Windows whose hidden states are held together."""


@dataclass(frozen=True)
class TextLoss:
    """The loss of one text."""

    nats: float
    """Minus the sum of the natural log probabilities of its scored tokens; nats / tokens is the mean."""
    tokens: int
    """How many were scored."""
    utf8_bytes: int
    """Bytes of the text that these tokens spell."""


@dataclass(frozen=True)
class _Window:
    """Tokens `start` to `end` of a text, of which those from `scored_from` on are scored."""

    text: int
    """Index of the text."""
    start: int
    scored_from: int
    end: int
    """Exclusive."""


def text_losses(
    model: CausalModel,
    tokenization: Tokenization,
    texts: Sequence[TokenizedText],
    stride: int | None = None,
) -> list[TextLoss]:
    """The loss of each text, in order. `stride` is in tokens, from 1 to the window; None is half a window.

    Raises:
        ValueError: the stride is out of its bounds.
    """
    room = model.window_tokens - len(tokenization.start_ids)
    stride = max(1, room // 2) if stride is None else stride
    if not 1 <= stride <= room:
        raise ValueError(f"expected a stride of 1 to {room} tokens, found {stride}")
    first = 0 if tokenization.start_ids else 1
    windows = (
        window
        for index, text in enumerate(texts)
        for window in _plan(index, len(text), first, room=room, stride=stride)
    )
    nats = [0.0] * len(texts)
    while some := list(itertools.islice(windows, WINDOWS_AT_ONCE)):
        losses = _window_losses(model, tokenization, texts, some)
        for window, loss in zip(some, losses, strict=True):
            nats[window.text] += loss
    return [
        TextLoss(loss, max(0, len(text) - first), len(text.char_span(first, len(text)).encode()))
        for loss, text in zip(nats, texts, strict=True)
    ]


def _plan(text: int, tokens: int, first: int, *, room: int, stride: int) -> Iterator[_Window]:
    scored_from, end = first, min(room, tokens)
    while scored_from < end:
        yield _Window(text, max(0, end - room), scored_from, end)
        scored_from, end = end, min(end + stride, tokens)


def _window_losses(
    model: CausalModel,
    tokenization: Tokenization,
    texts: Sequence[TokenizedText],
    windows: Sequence[_Window],
) -> list[float]:
    before = tokenization.start_ids
    # The last token of a window is predicted and not put in.
    sequences = [[*before, *texts[window.text].ids[window.start : window.end - 1]] for window in windows]
    rows = [
        [len(before) + token - window.start - 1 for token in range(window.scored_from, window.end)]
        for window in windows
    ]
    hidden = model.hidden_states(sequences, rows)
    found: list[float] = []
    for one, states in zip(windows, hidden, strict=True):
        ids = texts[one.text].ids
        places = range(one.scored_from, one.end)
        starts = [_call_could_start(tokenization.marker_ids, ids, token) for token in places]
        values = _log_probabilities(model, states, ids[one.scored_from : one.end], tokenization.marker_ids[-1], starts)
        found.append(-sum(values))
    return found


def _call_could_start(marker_ids: Sequence[int], ids: Sequence[int], token: int) -> bool:
    """Whether the marker's last token would complete it there."""
    others = len(marker_ids) - 1
    return token >= others and tuple(ids[token - others : token]) == tuple(marker_ids[:-1])


def _log_probabilities(
    model: CausalModel, hidden: Tensor, targets: Sequence[int], marker: int, starts: Sequence[bool]
) -> list[float]:
    """Natural log probability of `targets[r]` after hidden state r, (rows, hidden), without `marker` where `starts[r]`."""
    found: list[float] = []
    at_once = model.memory.logits_rows
    for first in range(0, len(targets), at_once):
        part = slice(first, first + at_once)
        wanted = torch.tensor(targets[part], device=model.device)
        log_probs = model.log_probabilities(hidden[part])  # (rows, vocabulary)
        chosen = log_probs.gather(1, wanted[:, None])[:, 0]  # (rows,)
        log_probs[:, marker] = -torch.inf
        rest = log_probs.logsumexp(dim=-1)  # log of what the others have together
        scaled = torch.tensor(starts[part], device=model.device) & (wanted != marker)
        found.extend(torch.where(scaled, chosen - rest, chosen).tolist())
    return found
