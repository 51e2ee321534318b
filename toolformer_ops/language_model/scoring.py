"""The losses of a call: without it, with it but without its result, with both (Toolformer, section 2), in nats.

`L_i(z) = - sum_j w_(j-i) log p(x_j | start, z, newline, x[:j])`, j from i to i+4, on the ids of the text's one encoding. z is a
prefix of the text, since the model has never met a call in mid-sentence (paper, footnote 3). For z empty the text follows the
start token directly. Weights are those of `losses.py`; near the end of a text fewer tokens count and no weight is scaled up.

Context. The paper gives all the text before i. Where a window of W tokens is asked for, or where text and prefix exceed the
model's window, a call is scored with less: its three losses then see the same part of the text, and L- has a fourth term, the
loss without a call under the full context, so that no call wins because context was withheld. Full context is all that the
model's window holds of the text when nothing stands before it (`windows.py`).

Shortcuts that change no kept call:

- Equal passes are one pass: L(nothing) of all positions, and equal prefixes z of one text, whatever their positions.
- Passes stop at the last token that is scored, and only the rows of scored tokens are projected.
- `prune_below` = t > 0. A threshold tau keeps a call only if L- minus L+ >= tau. L- is a minimum, so each of its terms bounds it
  from above; L+ >= 0, as a weighted sum of -log p >= 0. So min(L(nothing), L_full(nothing)) < t, or that minimum minus L+ < t,
  proves that no tau >= t keeps the call, and what is left of it need not be computed. Computed numbers carry rounding errors;
  a bound counts as below t only where it is so by `ROUNDING_NATS` of the number format.

Nothing here depends on other texts. Does not decide what is kept; `sql/views` does.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.losses import SCORED_TOKENS, TOKEN_WEIGHTS, weighted_loss
from toolformer_ops.language_model.tokenization import Tokenization, TokenizedText
from toolformer_ops.language_model.windows import MIN_WINDOW, owner, plan_windows
from toolformer_ops.records import CallLosses, PlacedCall, TokenLogProbabilities

RESERVE_STEP = 64
"""Prefix lengths are rounded up to a multiple of this many tokens before windows are planned, so that most calls share windows."""

ROUNDING_NATS = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.25}
"""By how much two computations of a loss reduction in this number format may differ, with room to spare: measured between bfloat16
and float32 with SmolLM2-135M, 0.03 in the mean and 0.09 at most; between two float32 batches below 1e-5."""

Prefix = tuple[int, ...]
"""Ids of z and of the newline after it; empty for no call."""


@dataclass(frozen=True)
class ScoringSettings:
    """How calls are scored; part of the scoring recipe."""

    prune_below: float = 0.0
    """The lowest threshold of interest, nats; 0 computes every loss."""
    context_tokens: int | None = None
    """How many tokens before a position are given; None is all (the paper)."""


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
    text_start: int
    """Token of the text that follows the prefix."""


@dataclass(frozen=True)
class _Passes:
    """The passes of one call."""

    full: _Pass
    """No call, full context."""
    nothing: _Pass
    """No call, the context that the call has; the same as `full` where it has it all."""
    without_result: _Pass
    with_result: _Pass


def surely_below(bound: float, prune_below: float, number_format: str) -> bool:
    """Whether an upper bound of a loss reduction, computed in a number format, proves it to be below `prune_below` (0: never)."""
    return prune_below > 0 and bound < prune_below - ROUNDING_NATS[number_format]


def losses_without_call(
    model: CausalModel, tokenization: Tokenization, text: TokenizedText, tokens: Sequence[int]
) -> list[float]:
    """L_i(nothing) under the full context at each of `tokens`, in nats; one pass a window of the text for all of them."""
    scorer = _TextScorer(model, tokenization, text)
    passes = [scorer.full_pass(token) for token in tokens]
    scorer.run(zip(passes, tokens, strict=True))
    return [scorer.loss(one, token) for one, token in zip(passes, tokens, strict=True)]


def score_calls(
    model: CausalModel,
    tokenization: Tokenization,
    text: TokenizedText,
    calls: Sequence[PlacedCall],
    settings: ScoringSettings,
) -> list[CallLosses]:
    """The losses of each call, in order; nan for a call that leaves no room for text in the model's window."""
    scorer = _TextScorer(model, tokenization, text)
    passes = [scorer.passes(call, settings.context_tokens) for call in calls]
    fitting = [(call.token, one) for call, one in zip(calls, passes, strict=True) if one is not None]

    def open_calls() -> list[tuple[int, _Passes]]:
        """Those that no bound excludes so far."""
        bounds = [scorer.losses(token, one).reduction_bound for token, one in fitting]
        return [
            item
            for item, bound in zip(fitting, bounds, strict=True)
            if not surely_below(bound, settings.prune_below, model.number_format)
        ]

    if settings.prune_below > 0:
        scorer.run((one, token) for token, of in fitting for one in (of.full, of.nothing))
        scorer.run((of.with_result, token) for token, of in open_calls())
        scorer.run((of.without_result, token) for token, of in open_calls())
    else:
        scorer.run(
            (one, token) for token, of in fitting for one in (of.full, of.nothing, of.without_result, of.with_result)
        )
    return [
        _NO_LOSSES if one is None else scorer.losses(call.token, one) for call, one in zip(calls, passes, strict=True)
    ]


def losses_with_result(
    model: CausalModel,
    tokenization: Tokenization,
    text: TokenizedText,
    calls: Sequence[PlacedCall],
    context_tokens: int | None = None,
) -> list[float]:
    """L(e(c, r)) of each call alone, nats, in order; nan for a call that leaves no room for text in the model's window.

    The same number as `CallLosses.with_result`, with equal passes computed once.
    """
    scorer = _TextScorer(model, tokenization, text)
    passes = [scorer.passes(call, context_tokens) for call in calls]
    scorer.run((of.with_result, call.token) for call, of in zip(calls, passes, strict=True) if of is not None)
    return [
        math.nan if of is None else scorer.loss(of.with_result, call.token)
        for call, of in zip(calls, passes, strict=True)
    ]


def score_details(
    model: CausalModel,
    tokenization: Tokenization,
    text: TokenizedText,
    call: PlacedCall,
    context_tokens: int | None = None,
) -> list[ScoredToken]:
    """The scored tokens of one call, at most five; empty for a call that leaves no room for text."""
    scorer = _TextScorer(model, tokenization, text)
    passes = scorer.passes(call, context_tokens)
    if passes is None:
        return []
    three = (passes.nothing, passes.without_result, passes.with_result)
    scorer.run((one, call.token) for one in three)
    rows = zip(*(scorer.log_probabilities(one, call.token) for one in three), strict=True)
    return [
        ScoredToken(text.char_span(call.token + step, call.token + step + 1), TOKEN_WEIGHTS[step], *log_ps)
        for step, log_ps in enumerate(rows)
    ]


_NO_LOSSES = CallLosses(math.nan, math.nan, math.nan)


class _TextScorer:
    """The passes of one text that were run so far, and what they gave."""

    def __init__(self, model: CausalModel, tokenization: Tokenization, text: TokenizedText) -> None:
        self._model = model
        self._tokenization = tokenization
        self._text = text
        self._room = model.max_positions - len(tokenization.start_ids)  # tokens beside the start token
        self._found: dict[tuple[_Pass, int], float] = {}  # natural log probability of a token of the text in a pass

    def full_pass(self, token: int) -> _Pass:
        """No call, and as much of the text before `token` as the model's window holds."""
        if token + SCORED_TOKENS <= self._room or len(self._text) <= self._room:
            return _Pass((), 0)
        return _Pass((), owner(plan_windows(len(self._text), self._room), token).start)

    def passes(self, call: PlacedCall, context_tokens: int | None) -> _Passes | None:
        """The passes of a call; None where its prefix leaves no room for text."""
        if not 1 <= call.token < len(self._text):
            raise ValueError(f"expected a position in 1..{len(self._text) - 1}, found {call.token}")
        without_result, with_result = (
            (*self._tokenization.ids(z), *self._tokenization.newline_ids)
            for z in (call.without_result, call.with_result)
        )
        start = self._text_start(call.token, max(len(without_result), len(with_result)), context_tokens)
        if start is None:
            return None
        full = self.full_pass(call.token)
        return _Passes(full, _Pass((), start), _Pass(without_result, start), _Pass(with_result, start))

    def run(self, wanted: Iterable[tuple[_Pass, int]]) -> None:
        """Run passes, each up to the last of the tokens from which five are scored in it; what was run already is not run again.

        The order in which they are given does not matter: passes are sorted by what they are made of.
        """
        asked: dict[_Pass, set[int]] = {}
        for one, first in wanted:
            tokens = [token for token in self._scored(first) if (one, token) not in self._found]
            if tokens:
                asked.setdefault(one, set()).update(tokens)
        passes = sorted(asked, key=lambda one: (one.text_start, one.prefix))
        sequences: list[list[int]] = []
        rows: list[list[int]] = []
        keys: list[tuple[_Pass, int]] = []
        for one in passes:
            tokens = sorted(asked[one])
            before = [*self._tokenization.start_ids, *one.prefix]
            sequences.append([*before, *self._text.ids[one.text_start : tokens[-1]]])  # the last token is not put in
            rows.append([len(before) + token - one.text_start - 1 for token in tokens])  # token j is predicted by j - 1
            keys.extend((one, token) for token in tokens)
        if keys:
            hidden = torch.cat(self._model.hidden_states(sequences, rows))  # (keys, hidden)
            values = self._model.token_log_probabilities(hidden, [self._text.ids[token] for _, token in keys])
            self._found.update(zip(keys, values, strict=True))

    def log_probabilities(self, one: _Pass, token: int) -> list[float]:
        """Natural log probabilities of up to five tokens from `token` on, of a pass that was run."""
        return [self._found[one, scored] for scored in self._scored(token)]

    def loss(self, one: _Pass, token: int) -> float:
        """The weighted loss in a pass that was run, nats."""
        return weighted_loss(self.log_probabilities(one, token))

    def losses(self, token: int, of: _Passes) -> CallLosses:
        """What is known of a call; `of.nothing` was run."""
        tokens = TokenLogProbabilities(
            without_call=tuple(self.log_probabilities(of.nothing, token)),
            without_result=self._known(of.without_result, token),
            with_result=self._known(of.with_result, token),
            without_call_full_context=None if of.full == of.nothing else self._known(of.full, token),
        )
        return CallLosses(
            without_call=weighted_loss(tokens.without_call),
            without_result=_loss_of(tokens.without_result),
            with_result=_loss_of(tokens.with_result),
            without_call_full_context=_loss_of(tokens.without_call_full_context),
            number_format=self._model.number_format,
            token_log_probabilities=tokens,
        )

    def _known(self, one: _Pass, token: int) -> tuple[float, ...] | None:
        """The log probabilities where all five were run; passes with calls nearby may have run some of them, or all."""
        if all((one, scored) in self._found for scored in self._scored(token)):
            return tuple(self.log_probabilities(one, token))
        return None

    def _scored(self, token: int) -> range:
        return range(token, min(token + SCORED_TOKENS, len(self._text)))

    def _text_start(self, token: int, longest_prefix: int, context_tokens: int | None) -> int | None:
        """From where on the text is given: from its start where all fits with the longest prefix; None where nothing fits."""
        wanted = 0 if context_tokens is None else max(0, token - context_tokens)
        end = min(token + SCORED_TOKENS, len(self._text))
        if longest_prefix + end - wanted <= self._room:
            return wanted
        size = self._room - math.ceil(longest_prefix / RESERVE_STEP) * RESERVE_STEP
        if size < MIN_WINDOW:
            return None
        return max(wanted, owner(plan_windows(len(self._text), size), token).start)


def _loss_of(log_probabilities: tuple[float, ...] | None) -> float | None:
    return None if log_probabilities is None else weighted_loss(log_probabilities)
