"""From executed calls to losses (Toolformer, section 2, "Filtering API calls"). Pure functions on records.

1. Of a tool's ranked results a call gets the first that does not repeat the document's own text, since such a
   result would only leak the answer: `choose_result`.
2. The engine computes L(nothing), L(e(c, "")) and L(e(c, r)), in nats, of the calls of many texts together:
   `score_texts`.
3. A call without a usable result, or whose losses are not finite numbers, gets a reason and no losses. A call
   that provably cannot reach `prune_below` gets a reason and the losses that prove it.
4. A call is kept if its gain by the run's keep rule reaches a threshold. By the rule `paper` the gain is the
   loss reduction; by the rule `probability` a placebo has its say (`annotation/placebo.py`). In Postgres,
   `sql/views` decide that.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolformer_ops.call_syntax import Call, clean_result
from toolformer_ops.language_model.losses import is_kept
from toolformer_ops.records import CallLosses, Document, PlacedCall, TokenLogProbabilities, gain_bound
from toolformer_ops.runs.choices import ScoringChoices
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.retrieval.own_text import OwnText

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

REPEATS_DOCUMENT_TEXT = "repeats_document_text"
EMPTY_RESULT = "empty_result"
NOT_FINITE = "loss_not_finite"
NOT_EXECUTED = "not_executed"
PRUNED = "pruned_below"


@dataclass(frozen=True)
class ExecutedCall:
    """A call in a text, with what its tool answered."""

    token: int
    """Index, in the text's token ids, of the token that follows the call."""
    call: Call
    results: Sequence[str] | None
    """Ranked, best first; None if the tool was not asked."""
    reason: str | None
    """Why there is no result."""
    input_only_after: bool = False
    """Whether the text holds its input only after it: a release leaves it out."""


@dataclass(frozen=True)
class ExecutedText:
    """A text with the calls that were executed in it."""

    text: str
    calls: Sequence[ExecutedCall]
    own_text: OwnText | None
    """What a result must not repeat; None where results may repeat the document."""


@dataclass(frozen=True)
class ScoredCall:
    """The result that a call gets and its losses in nats.

    The fields are columns of `call_losses`, but for one.
    """

    result_rank: int | None = None
    """Index of the result among the tool's ranked results."""
    result: str | None = None
    reason: str | None = None
    """Why the call has no loss reduction; None for a scored call."""
    loss_without_call: float | None = None
    loss_without_result: float | None = None
    loss_with_result: float | None = None
    loss_without_call_full_context: float | None = None
    """Only if the call was scored with less than the whole text before it."""
    number_format: str | None = None
    """In which the model computed the losses."""
    token_log_probabilities: TokenLogProbabilities | None = None
    """The terms of the losses; None if there are no losses."""
    within_rounding: bool = False
    """Whether rounding may decide it, or would where float32 had not; counted, and no column."""
    reduction_bound: float | None = None
    """The loss reduction L- minus L+, or, for a pruned call, a number that it does not exceed."""

    probability_without: float | None = None
    """The largest probability of the next tokens without the result; None by the rule `paper`."""
    probability_with: float | None = None
    """The probability of the next tokens with the result; None by the rule `paper`, or if not computed."""

    @property
    def loss_reduction(self) -> float | None:
        """L- minus L+; None for a call with a reason."""
        return self.reduction_bound if self.reason is None else None

    @property
    def gain_bound(self) -> float | None:
        """The gain before a placebo, or the most that it can be; None without losses."""
        if self.reduction_bound is None:
            return None
        return gain_bound(self.reduction_bound, self.probability_without, self.probability_with)

    def reaches(self, threshold: float) -> bool:
        """Whether the call is scored and gains so much before a placebo, in the unit of the keep rule."""
        return self.reason is None and self.gain_bound is not None and is_kept(self.gain_bound, threshold)


def scored_call_of(line: Mapping[str, Any]) -> ScoredCall:
    """The result and losses of a line that `annotate` or `judge` printed."""
    return ScoredCall(**{name: line[name] for name in _SCORED_FIELDS if name in line})


_SCORED_FIELDS = tuple(field.name for field in dataclasses.fields(ScoredCall))


def own_text_of(tool: Tool, document: Document) -> OwnText | None:
    """The text that a result of the tool must not repeat; None if the results may repeat the document."""
    return OwnText(document.text) if tool.spec.pass_over_own_text else None


def choose_result(results: Sequence[str] | None, reason: str | None, own_text: OwnText | None) -> ScoredCall:
    """The first of the ranked results that is neither empty nor a repetition of `own_text`; or the reason.

    The call has no losses yet.
    """
    if reason is not None:
        return ScoredCall(reason=reason)
    if results is None:
        return ScoredCall(reason=NOT_EXECUTED)
    refused = EMPTY_RESULT
    for rank, result in enumerate(results):
        cleaned = clean_result(result)
        if not cleaned:
            continue
        if own_text is not None and own_text.repeated_by(cleaned):
            refused = REPEATS_DOCUMENT_TEXT
            continue
        return ScoredCall(result_rank=rank, result=cleaned)
    return ScoredCall(reason=refused)


def score_texts(
    load_model: "Callable[[], LanguageModel]",
    choices: ScoringChoices,
    keep_threshold: float,
    texts: Sequence[ExecutedText],
) -> list[list[ScoredCall]]:
    """The result and the losses of each call of each text, in order.

    The model is loaded only if a call has a result.

    Of a network in bfloat16 or float16, `choices.verify_in_float32` says which losses are computed again in
    float32.
    """
    # 1. Results.
    scored: list[list[ScoredCall]] = []
    placed: dict[int, dict[int, PlacedCall]] = {}  # by text, then by call; those with a result
    for number, text in enumerate(texts):
        chosen_results = [choose_result(call.results, call.reason, text.own_text) for call in text.calls]
        scored.append(chosen_results)
        for index, (call, choice) in enumerate(zip(text.calls, chosen_results, strict=True)):
            if choice.result is not None:
                placed.setdefault(number, {})[index] = PlacedCall(call.token, call.call, choice.result)
    if not placed:
        return scored
    # 2. Losses.
    computed = load_model().score_texts(
        [(texts[number].text, list(calls.values())) for number, calls in placed.items()],
        prune_below=choices.prune_below,
        keep_threshold=keep_threshold,
        context_tokens=choices.scoring_context_tokens,
        verify=choices.verify_in_float32,
        keep_rule=choices.keep_rule,
    )
    # 3. What they say of each call, or the reason why it has no loss reduction.
    for (number, calls), losses_of_text in zip(placed.items(), computed, strict=True):
        for index, call_losses in zip(calls, losses_of_text, strict=True):
            scored[number][index] = _with_losses(scored[number][index], call_losses)
    return scored


def _with_losses(chosen: ScoredCall, call_losses: CallLosses) -> ScoredCall:
    """A call with its losses, or with the reason why it has no loss reduction."""
    computed = dataclasses.replace(
        chosen, number_format=call_losses.number_format, within_rounding=call_losses.within_rounding
    )
    if math.isnan(call_losses.gain_bound):
        return dataclasses.replace(computed, reason=NOT_FINITE)
    return dataclasses.replace(
        computed,
        reason=PRUNED if call_losses.pruned else None,
        loss_without_call=call_losses.without_call,
        loss_without_result=call_losses.without_result,
        loss_with_result=call_losses.with_result,
        loss_without_call_full_context=call_losses.without_call_full_context,
        token_log_probabilities=call_losses.token_log_probabilities,
        reduction_bound=call_losses.reduction_bound,
        probability_without=call_losses.probability_without,
        probability_with=call_losses.probability_with,
    )
