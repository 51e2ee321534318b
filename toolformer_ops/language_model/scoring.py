"""The three losses of a call: without it, with it but without its result, with both (Toolformer, section 2), in nats.

`L_i(z) = - sum_j w_(j-i) log p(x_j | start, z, newline, x[:j])`, j from i to i+4, on the ids of the text's one encoding. z is a
prefix of the whole text, since the model has never met a call in mid-sentence (paper, footnote 3). For z empty the text
follows the start token directly. Weights are those of `losses.py`; near the end of a text fewer tokens count and no
weight is scaled up.

Equal prefixes of one text are one pass, whatever their positions; passes stop at the last token that is scored; only the rows
of scored tokens are projected. A text that does not fit with its prefix is windowed (`windows.py`): all three losses of a call
then see the same window of it. Does not decide what is kept; `sql/views` does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.tokenization import Tokenization, TokenizedText
from toolformer_ops.language_model.windows import MIN_WINDOW, Window, owner, plan_windows
from toolformer_ops.losses import SCORED_TOKENS, TOKEN_WEIGHTS, weighted_loss
from toolformer_ops.records import CallLosses, PlacedCall

RESERVE_STEP = 64
"""Prefix lengths are rounded up to a multiple of this many tokens before windows are planned, so that most calls share windows."""

Prefix = tuple[int, ...]
"""Ids of z and of the newline after it; empty for no call."""


@dataclass(frozen=True)
class ScoredToken:
    """One of the tokens after a call, with its log probability under the three prefixes."""

    text: str
    weight: float
    """w_t of the paper, in (0, 1/3]."""
    log_p_without_call: float
    """Natural logarithm, as are the next two."""
    log_p_without_result: float
    log_p_with_result: float


@dataclass(frozen=True)
class _Pass:
    """One sequence to run through the model: start token, prefix, and the text from some token on."""

    prefix: Prefix
    window_start: int
    """Token of the text that follows the prefix."""


def score_calls(
    model: CausalModel, tokenization: Tokenization, text: TokenizedText, calls: Sequence[PlacedCall]
) -> list[CallLosses]:
    """The losses of each call, in order; nan for a call that leaves no room for text in the model's window."""
    scored = _log_probabilities(model, tokenization, text, calls)
    return [CallLosses(*(weighted_loss(row) for row in rows)) if rows else _NO_LOSSES for rows in scored]


def score_details(
    model: CausalModel, tokenization: Tokenization, text: TokenizedText, call: PlacedCall
) -> list[ScoredToken]:
    """The scored tokens of one call, at most five; empty for a call that leaves no room for text."""
    rows = _log_probabilities(model, tokenization, text, [call])[0]
    return [
        ScoredToken(text.char_span(call.token + step, call.token + step + 1), TOKEN_WEIGHTS[step], *log_ps)
        for step, log_ps in enumerate(zip(*rows, strict=True))
    ]


_NO_LOSSES = CallLosses(math.nan, math.nan, math.nan)


def _log_probabilities(
    model: CausalModel, tokenization: Tokenization, text: TokenizedText, calls: Sequence[PlacedCall]
) -> list[list[list[float]]]:
    """For each call three rows (nothing, without result, with result) of natural log probabilities of up to five tokens.

    An empty list for a call whose prefix leaves no room.
    """
    passes_of = [_passes(model, tokenization, text, call) for call in calls]
    scored: dict[_Pass, set[int]] = {}  # tokens of the text whose probability is asked for
    for call, passes in zip(calls, passes_of, strict=True):
        for one in passes:
            scored.setdefault(one, set()).update(_scored_tokens(text, call))
    found = _run_passes(model, tokenization, text, scored)
    return [
        [[found[one, token] for token in _scored_tokens(text, call)] for one in passes]
        for call, passes in zip(calls, passes_of, strict=True)
    ]


def _scored_tokens(text: TokenizedText, call: PlacedCall) -> range:
    return range(call.token, min(call.token + SCORED_TOKENS, len(text)))


def _passes(model: CausalModel, tokenization: Tokenization, text: TokenizedText, call: PlacedCall) -> list[_Pass]:
    """The passes of nothing, of the call without result and of the call with result; none where nothing fits."""
    if not 1 <= call.token < len(text):
        raise ValueError(f"expected a position in 1..{len(text) - 1}, found {call.token}")
    prefixes: list[Prefix] = [()]
    for z in (call.without_result, call.with_result):
        prefixes.append((*tokenization.ids(z), *tokenization.newline_ids))
    window = _window(model, tokenization, text, call.token, max(map(len, prefixes)))
    return [] if window is None else [_Pass(prefix, window.start) for prefix in prefixes]


def _window(
    model: CausalModel, tokenization: Tokenization, text: TokenizedText, token: int, longest_prefix: int
) -> Window | None:
    """What of the text is given before `token`: all of it where it fits with the longest prefix; None where nothing fits."""
    room = model.max_positions - len(tokenization.start_ids)
    end = min(token + SCORED_TOKENS, len(text))
    if longest_prefix + end <= room:
        return Window(0, end, 0, end)
    size = room - math.ceil(longest_prefix / RESERVE_STEP) * RESERVE_STEP
    if size < MIN_WINDOW:
        return None
    return owner(plan_windows(len(text), size), token)


def _run_passes(
    model: CausalModel, tokenization: Tokenization, text: TokenizedText, scored: dict[_Pass, set[int]]
) -> dict[tuple[_Pass, int], float]:
    """Natural log probability of each asked token in each pass.

    The order in which passes and calls are given does not matter: passes are sorted by what they are made of.
    """
    passes = sorted(scored, key=lambda one: (one.window_start, one.prefix))
    tokens = {one: sorted(scored[one]) for one in passes}
    sequences: list[list[int]] = []
    rows: list[list[int]] = []
    for one in passes:
        before = [*tokenization.start_ids, *one.prefix]
        sequences.append(
            [*before, *text.ids[one.window_start : tokens[one][-1]]]
        )  # the last scored token is not put in
        rows.append(
            [len(before) + token - one.window_start - 1 for token in tokens[one]]
        )  # token j is predicted by j - 1
    hidden = model.hidden_states(sequences, rows)
    asked = [(one, token) for one in passes for token in tokens[one]]
    values = model.token_log_probabilities(torch.cat(hidden), [text.ids[token] for _, token in asked]) if asked else []
    return dict(zip(asked, values, strict=True))
