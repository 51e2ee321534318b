"""The losses of a call, in nats (Toolformer, section 2): without it, without its result, with both.

`L_i(z) = - sum_j w_(j-i) log p(x_j | start, z, newline, x[:j])`, j from i to i+4, on the ids of the text's
one encoding. z is a prefix of the text, since the model has never met a call in mid-sentence (paper, footnote
3). For z empty the text follows the start token directly. Weights are those of `losses.py`; near the end of a
text fewer tokens count and no weight is scaled up. `P_i(z)` of the keep rule `probability` is a geometric mean
of the same tokens' probabilities, over more of them.

Context. The paper gives all the text before i. If a window of W tokens is asked for, or if text and prefix
exceed the model's window, a call is scored with less: its three losses then see the same part of the text,
and L- has a fourth term, the loss without a call under the full context, so that no call wins because context
was withheld. Full context is all that the model's window holds of the text without a prefix
(`tokenization.py`).

Shortcuts that change no kept call:

- Equal passes are one pass: L(nothing) of all positions, and equal prefixes z of one text at all their
  positions.
- Passes stop at the last token that is scored, and only the rows of scored tokens are projected. On a CPU
  tokens with which passes begin are computed once (`packing.py`).
- `prune_below` = t > 0. By the rule `paper`, a threshold tau keeps a call only if L- minus L+ >= tau. L- is a
  minimum, so each of its terms bounds it from above; L+ >= 0, as a weighted sum of -log p >= 0. So
  min(L(nothing), L_full(nothing)) < t, or that minimum minus L+ < t, proves that no tau >= t keeps the call,
  and its other losses need not be computed. By the rule `probability` the gain is log P(e(c, r)) minus
  the logarithm of a maximum; each of its terms bounds it from below, and P(e(c, r)) <= 1. So
  -log max(P(nothing), P_full(nothing)) < t, or log P(e(c, r)) minus that logarithm < t, proves the same.
  Computed numbers have rounding errors; a bound counts as below t only if it is so by the margin of the
  number format.

Many texts are scored together, so that passes are full (`packing.py`), in rounds: after each the calls are
pruned. On a CPU the losses of a text do not depend on the other texts, bit for bit (those of a mixture of
experts by 1e-6 nats); on other devices they may differ by rounding. Does not decide which calls are kept;
`sql/views` does.

Losses near a threshold are computed again in more exact numbers, on a ladder of number formats:

    bfloat16 or float16    all calls
    tf32                   those that the rounding of the first may bring over a threshold; on GPUs with TF32
    float32                those that the rounding of TF32 may bring over a threshold

TF32 computes with the float32 weights, whose products it rounds to 10 bits of mantissa. Measured with 7B
parameters on an H200, milliseconds a call and nats from float32 at most: bfloat16 6.1 and 0.15, TF32 13.6 and
0.014, float32 71.

The kept calls are those of float32. Proof: let r be a call's gain in float32, and r_k what rung k
computes, with |r_k - r| <= m_k, the margin of the rung. Rung k decides a call if |r_k - t| > m_k for each
threshold t that is asked for. Then r_k >= t exactly if r >= t. A call that no rung decides is float32's, and
one whose losses are not finite is computed again as well. A call that is pruned has a bound of r, with the
same error, that is below `prune_below` by more than m_k (`surely_below`).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import torch

from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.losses import KeepRule, probability, tokens_scored_by, weighted_loss
from toolformer_ops.language_model.tokenization import (
    MIN_WINDOW,
    Tokenization,
    TokenizedText,
    owner,
    plan_windows,
)
from toolformer_ops.records import CallLosses, LossWithResult, PlacedCall, TokenLogProbabilities

Texts = Sequence[tuple[TokenizedText, Sequence[PlacedCall]]]


@dataclass(frozen=True)
class Rung:
    """A number format, and how far a gain in it may be from float32's, nats."""

    number_format: str
    margin: float

    def decides(self, losses: CallLosses, thresholds: Sequence[float]) -> bool:
        """Whether the call is on the same side of each threshold in float32."""
        bound = losses.gain_bound
        if not math.isfinite(bound):
            return False
        return all(abs(bound - threshold) > self.margin for threshold in thresholds)


def verified_losses(
    score: Callable[[Rung, Texts], list[list[CallLosses]]],
    texts: Texts,
    rungs: Sequence[Rung],
    thresholds: Sequence[float],
    always_from: float = math.inf,
) -> list[list[CallLosses]]:
    """The losses of each call of each text, in order, each by the first rung that decides it.

    `score` computes losses in a rung's number format, those of all texts together. Calls that the first
    rung's rounding may bring over a threshold are marked `within_rounding`. Those whose gain may reach
    `always_from` are computed by the last rung whatever decides them.
    """
    # 1. All calls.
    scored = [
        _ScoredText(text, calls, losses)
        for (text, calls), losses in zip(texts, score(rungs[0], texts), strict=True)
    ]
    for each in scored:
        each.judge(rungs[0], thresholds, always_from)
    # 2. The undecided calls, rung by rung.
    for rung in rungs[1:]:
        if rung is rungs[-1]:
            for each in scored:
                each.undecided = sorted(each.undecided + each.exact)
        if any(each.undecided for each in scored):
            better = score(rung, [(each.text, each.undecided_calls) for each in scored])
            for each, better_losses in zip(scored, better, strict=True):
                each.take(rung, better_losses, thresholds)
    return [each.losses for each in scored]


@dataclass
class _ScoredText:
    """A text with the losses that its calls have so far."""

    text: TokenizedText
    calls: Sequence[PlacedCall]
    losses: list[CallLosses]
    undecided: list[int] = field(default_factory=list)
    """Indices of the calls that no rung has decided."""
    exact: list[int] = field(default_factory=list)
    """Indices of the calls that the last rung computes whatever decides them."""

    @property
    def undecided_calls(self) -> list[PlacedCall]:
        """The calls that no rung has decided."""
        return [self.calls[index] for index in self.undecided]

    def judge(self, first: Rung, thresholds: Sequence[float], always_from: float) -> None:
        """Say which calls the first rung leaves to others, and mark those that its rounding may change."""
        for index, losses in enumerate(self.losses):
            is_decided = first.decides(losses, thresholds)
            if not is_decided and math.isfinite(losses.gain_bound):
                self.losses[index] = dataclasses.replace(losses, within_rounding=True)
            if losses.gain_bound >= always_from - first.margin:
                self.exact.append(index)
            elif not is_decided:
                self.undecided.append(index)

    def take(self, rung: Rung, better: Sequence[CallLosses], thresholds: Sequence[float]) -> None:
        """Take a rung's losses of the undecided calls; calls that it does not decide stay undecided."""
        left = []
        for index, losses in zip(self.undecided, better, strict=True):
            within_rounding = self.losses[index].within_rounding
            self.losses[index] = dataclasses.replace(losses, within_rounding=within_rounding)
            if not rung.decides(losses, thresholds):
                left.append(index)
        self.undecided = left


MARGINS: Mapping[str, float] = MappingProxyType(
    {"float32": 1e-4, "tf32": 0.05, "bfloat16": 0.25, "float16": 0.25}
)
"""By how many nats two computations of a gain in this number format may differ, with room to spare.

Measured of `paper`: between bfloat16 and float32 with SmolLM2-135M, 0.03 on average and 0.09 at most; with 7B
parameters on an H200, bfloat16 0.14 at most, float16 0.09, TF32 0.008; between two float32 batches below
1e-5. A gain of `probability` is a mean of seven such differences. What was measured of the model at hand
(`runs/rounding.py`) takes its place."""
FLOAT32_MARGIN = MARGINS["float32"]
RESERVE_STEP = 64
"""Prefix lengths are rounded up to a multiple of this many tokens before windows are planned, so that most
calls share windows."""


class _Pass(NamedTuple):
    """One sequence to run through the model: start token, prefix, and the text from some token on."""

    text_start: int
    """Token of the text that follows the prefix."""
    prefix: tuple[int, ...] = ()
    """Ids of z and of the newline after it; empty for no call."""


def surely_below(bound: float, prune_below: float, margin: float) -> bool:
    """Whether an upper bound of a gain proves it to be below `prune_below` (0: never).

    The bound may have so much rounding error.
    """
    return prune_below > 0 and bound < prune_below - margin


def gain_bounds_without_call(
    model: CausalModel,
    tokenization: Tokenization,
    texts: Sequence[tuple[TokenizedText, Sequence[int]]],
    keep_rule: KeepRule = "paper",
) -> list[list[float]]:
    """The most that a call can gain at each of a text's tokens, nats: L_i(nothing), or -log P_i(nothing).

    Both are under the full context. One pass a window of the text serves all tokens.
    """
    passes = _Passes(model, tokenization, keep_rule)
    planned = [(passes.of(text), tokens) for text, tokens in texts]
    wanted: list[_Wanted] = []
    for text, tokens in planned:
        wanted += [(text, text.full_pass(token), token) for token in tokens]
    _run(model, wanted)
    return [text.gain_bounds(tokens) for text, tokens in planned]


def score_texts(
    model: CausalModel,
    tokenization: Tokenization,
    texts: Sequence[tuple[TokenizedText, Sequence[PlacedCall]]],
    *,
    prune_below: float = 0.0,
    context_tokens: int | None = None,
    keep_rule: KeepRule = "paper",
    margin: float = FLOAT32_MARGIN,
) -> list[list[CallLosses]]:
    """The losses of each call of each text, in order.

    The losses are nan for a call that leaves no room for text in the model's window. `prune_below` is the
    lowest threshold of interest, nats; 0 computes every loss. `context_tokens` before
    a position are given, all (the paper) if None. Two computations of a gain may differ by `margin`.
    """
    planned = _planned(model, tokenization, texts, context_tokens, keep_rule)
    fitting = _fitting(planned)

    def open_calls() -> list[_PlannedCall]:
        """The calls that no bound excludes so far."""
        return [
            call for call in fitting if not surely_below(call.losses(model).gain_bound, prune_below, margin)
        ]

    if prune_below > 0:
        _run(model, _wanted(fitting, lambda call: (call.full, call.nothing)))
        _run(model, _wanted(open_calls(), lambda call: (call.with_result,)))
        _run(model, _wanted(open_calls(), lambda call: (call.without_result,)))
    else:
        _run(
            model,
            _wanted(fitting, lambda call: (call.full, call.nothing, call.without_result, call.with_result)),
        )
    losses: list[list[CallLosses]] = []
    for calls_of_text in planned:
        losses.append([_NO_LOSSES if call is None else call.losses(model) for call in calls_of_text])
    return losses


def losses_with_result(
    model: CausalModel,
    tokenization: Tokenization,
    texts: Sequence[tuple[TokenizedText, Sequence[PlacedCall]]],
    context_tokens: int | None = None,
    keep_rule: KeepRule = "paper",
) -> list[list[LossWithResult]]:
    """L(e(c, r)) of each call alone, and P(e(c, r)) by the rule `probability`, in order.

    They are nan for a call that leaves no room for text in the model's window. The same numbers as those of
    `CallLosses`, with equal passes computed once.
    """
    planned = _planned(model, tokenization, texts, context_tokens, keep_rule)
    _run(model, _wanted(_fitting(planned), lambda call: (call.with_result,)))
    losses: list[list[LossWithResult]] = []
    for calls_of_text in planned:
        losses.append(
            [LossWithResult(math.nan) if call is None else call.loss_with_result for call in calls_of_text]
        )
    return losses


_NO_LOSSES = CallLosses(math.nan, math.nan, math.nan)


class _TextPasses:
    """The passes of one text: which ones a call needs, and the log probabilities of those that were run."""

    def __init__(
        self, model: CausalModel, tokenization: Tokenization, text: TokenizedText, keep_rule: KeepRule
    ) -> None:
        self.tokenization = tokenization
        self.text = text
        self.keep_rule = keep_rule
        self._scored_tokens = tokens_scored_by(keep_rule)
        self._room = model.window_tokens - len(tokenization.start_ids)  # tokens beside the start token
        self.computed: dict[tuple[_Pass, int], float] = {}
        """Natural log probability of a token of the text in a pass."""

    def full_pass(self, token: int) -> _Pass:
        """No call, and as much of the text before `token` as the model's window holds."""
        if token + self._scored_tokens <= self._room or len(self.text) <= self._room:
            return _Pass(0)
        return _Pass(owner(plan_windows(len(self.text), self._room, self._scored_tokens), token).start)

    def planned(self, call: PlacedCall, context_tokens: int | None) -> "_PlannedCall | None":
        """A call with its passes; None if its prefix leaves no room for text."""
        if not 1 <= call.token < len(self.text):
            raise ValueError(f"expected a position in 1..{len(self.text) - 1}, found {call.token}")
        without_result, with_result = (
            (*self.tokenization.ids(z), *self.tokenization.newline_ids)
            for z in (call.without_result, call.with_result)
        )
        # From where on the text is given: from its start if all fits with the longest prefix.
        longest = max(len(without_result), len(with_result))
        start = 0 if context_tokens is None else max(0, call.token - context_tokens)
        if longest + self.scored(call.token).stop - start > self._room:
            size = self._room - math.ceil(longest / RESERVE_STEP) * RESERVE_STEP
            if size < MIN_WINDOW:
                return None
            windows = plan_windows(len(self.text), size, self._scored_tokens)
            start = max(start, owner(windows, call.token).start)
        return _PlannedCall(
            text=self,
            token=call.token,
            full=self.full_pass(call.token),
            nothing=_Pass(start),
            without_result=_Pass(start, without_result),
            with_result=_Pass(start, with_result),
        )

    def scored(self, token: int) -> range:
        """The tokens whose losses count for a call before `token`."""
        return range(token, min(token + self._scored_tokens, len(self.text)))

    def log_probabilities(self, one: _Pass, token: int) -> tuple[float, ...]:
        """Natural log probabilities of the scored tokens from `token` on, of a pass that was run."""
        return tuple(self.computed[one, scored] for scored in self.scored(token))

    def gain_bounds(self, tokens: Sequence[int]) -> list[float]:
        """The most that a call can gain at each token; the passes under the full context were run."""
        bounds = []
        for token in tokens:
            log_probabilities = self.log_probabilities(self.full_pass(token), token)
            if self.keep_rule == "paper":
                bounds.append(weighted_loss(log_probabilities))
            else:
                bounds.append(-math.log(probability(log_probabilities)))
        return bounds

    def computed_log_probabilities(self, one: _Pass, token: int) -> tuple[float, ...] | None:
        """The log probabilities if those of all scored tokens were run.

        Passes with calls nearby may have run some of them, or all.
        """
        if all((one, scored) in self.computed for scored in self.scored(token)):
            return self.log_probabilities(one, token)
        return None


class _Passes:
    """The passes of several texts; a text that comes twice, for two of its parts, has its passes once."""

    def __init__(self, model: CausalModel, tokenization: Tokenization, keep_rule: KeepRule) -> None:
        self._model = model
        self._tokenization = tokenization
        self._keep_rule = keep_rule
        self._by_text: dict[str, _TextPasses] = {}

    def of(self, text: TokenizedText) -> _TextPasses:
        """The passes of one text."""
        if text.text not in self._by_text:
            self._by_text[text.text] = _TextPasses(self._model, self._tokenization, text, self._keep_rule)
        return self._by_text[text.text]


@dataclass(frozen=True)
class _PlannedCall:
    """A call with its passes."""

    text: _TextPasses
    token: int
    full: _Pass
    """No call, full context."""
    nothing: _Pass
    """No call, the context that the call has; the same as `full` if it has it all."""
    without_result: _Pass
    with_result: _Pass

    @property
    def loss_with_result(self) -> LossWithResult:
        """The loss with the result; its pass was run."""
        log_probabilities = self.text.log_probabilities(self.with_result, self.token)
        return LossWithResult(
            nats=weighted_loss(log_probabilities),
            probability=None if self.text.keep_rule == "paper" else probability(log_probabilities),
        )

    def losses(self, model: CausalModel) -> CallLosses:
        """What is known of the call; `nothing` was run."""
        text = self.text.text
        tokens = TokenLogProbabilities(
            without_call=self.text.log_probabilities(self.nothing, self.token),
            without_result=self.text.computed_log_probabilities(self.without_result, self.token),
            with_result=self.text.computed_log_probabilities(self.with_result, self.token),
            without_call_full_context=None
            if self.full == self.nothing
            else self.text.computed_log_probabilities(self.full, self.token),
            tokens=tuple(text.char_span(scored, scored + 1) for scored in self.text.scored(self.token)),
        )
        losses = CallLosses(
            without_call=weighted_loss(tokens.without_call),
            without_result=_loss_of(tokens.without_result),
            with_result=_loss_of(tokens.with_result),
            without_call_full_context=_loss_of(tokens.without_call_full_context),
            number_format=model.number_format,
            token_log_probabilities=tokens,
        )
        if self.text.keep_rule == "paper":
            return losses
        without = (tokens.without_call, tokens.without_result, tokens.without_call_full_context)
        with_result = tokens.with_result
        return dataclasses.replace(
            losses,
            probability_without=max(probability(line) for line in without if line is not None),
            probability_with=None if with_result is None else probability(with_result),
        )


def _planned(
    model: CausalModel,
    tokenization: Tokenization,
    texts: Sequence[tuple[TokenizedText, Sequence[PlacedCall]]],
    context_tokens: int | None,
    keep_rule: KeepRule,
) -> list[list[_PlannedCall | None]]:
    """The calls of each text with their passes; equal texts have the same passes."""
    passes = _Passes(model, tokenization, keep_rule)
    planned = []
    for text, calls in texts:
        text_passes = passes.of(text)
        planned.append([text_passes.planned(call, context_tokens) for call in calls])
    return planned


_Wanted = tuple[_TextPasses, _Pass, int]
"""A pass of a text, and the token from which on tokens are scored in it."""


def _fitting(planned: Iterable[Sequence[_PlannedCall | None]]) -> list[_PlannedCall]:
    """The calls of all texts whose prefixes leave room for text."""
    return [call for call in itertools.chain.from_iterable(planned) if call is not None]


def _wanted(
    calls: Iterable[_PlannedCall], passes_of: Callable[[_PlannedCall], Iterable[_Pass]]
) -> Iterator[_Wanted]:
    """These passes of each call, scored from its token on."""
    for call in calls:
        for one in passes_of(call):
            yield call.text, one, call.token


def _run(model: CausalModel, wanted: Iterable[_Wanted]) -> None:
    """Run passes of texts, each up to the last token that is scored in it.

    None is run twice. The order in which they are given does not matter: a text's passes are sorted by their
    start and prefix.
    """
    missing: dict[_TextPasses, dict[_Pass, set[int]]] = {}
    for text_passes, one, first in wanted:
        tokens = [token for token in text_passes.scored(first) if (one, token) not in text_passes.computed]
        if tokens:
            missing.setdefault(text_passes, {}).setdefault(one, set()).update(tokens)
    passes: list[tuple[_TextPasses, _Pass, list[int]]] = []
    for text_passes, tokens_of in missing.items():
        passes += [(text_passes, one, sorted(tokens_of[one])) for one in sorted(tokens_of)]
    at_once = model.sizes.scored_passes
    for begin in range(0, len(passes), at_once):
        batch = passes[begin : begin + at_once]
        sequences, rows, targets = [], [], []
        for text_passes, one, tokens in batch:
            before = (*text_passes.tokenization.start_ids, *one.prefix)
            # The last of the tokens is predicted and not put in; each is predicted by the one before it.
            sequences.append([*before, *text_passes.text.ids[one.text_start : tokens[-1]]])
            rows.append([len(before) + token - one.text_start - 1 for token in tokens])
            targets += [text_passes.text.ids[token] for token in tokens]
        hidden = torch.cat(model.hidden_states(sequences, rows))  # (scored tokens, hidden)
        values = iter(model.token_log_probabilities(hidden, targets))
        for text_passes, one, tokens in batch:
            text_passes.computed.update({(one, token): next(values) for token in tokens})


def _loss_of(log_probabilities: tuple[float, ...] | None) -> float | None:
    return None if log_probabilities is None else weighted_loss(log_probabilities)
