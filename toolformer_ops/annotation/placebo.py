"""Placebos: results of other calls in a call's place.

They tell whether this result helps, or any result of its kind.

1. A call's placebos are drawn from a pool (`runs/placebo_pools.py`): results of calls in other documents,
   each another text than the call's own result and than the placebos before it. The order of the draw is a
   hash of document and call over the pool's calls. So it depends on no batch, shard or order, and a call that
   leaves the pool changes the draw of those alone that drew it. Equal calls of a text draw the same placebos:
   their passes are equal, too, and are computed once.
2. A call whose own gain reaches `prune_below` gets K placebos. Its information is the mean of L(e(c, r')) -
   L(e(c, r)). By the rule `probability` the first placebo bounds its gain: log P(e(c, r)) - log P(e(c, r')).
3. A sampled call, with any gain, gets one placebo: the sample for the false-discovery rate. By the rule
   `probability`, if this placebo reaches `prune_below`, it is compared with the second, as the call's result is
   with the first. So the rate counts what the run's whole keep rule would keep.

The shortcuts of scoring hold for placebos, with the same proof (`language_model/scoring.py`): what a placebo
gains is at most what any result does, and is at most what it gains over the terms that are known. If that is
surely below `prune_below`, no threshold of the run counts the placebo, and nothing more is computed; the row
keeps the bound.
"""

import copy
import dataclasses
import functools
import hashlib
import math
import operator
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from toolformer_ops.annotation.scoring import NOT_FINITE, PRUNED, ScoredCall
from toolformer_ops.call_syntax import Call, call_without_result
from toolformer_ops.records import FLOAT32, TF32, LossWithResult, PlacedCall, gain_bound
from toolformer_ops.runs.choices import ScoringChoices

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel
    from toolformer_ops.runs.placebo_pools import Pool, PooledResult

Key = tuple[int, int]
"""A call, counted over all texts, and the number of its placebo, from 1."""

NO_OTHER_RESULT = "no_other_result"
ONLY_COMPARED = "only_compared"


@dataclass(frozen=True)
class JudgedCall:
    """A call with a result and losses, whose place is scored with placebos."""

    call_id: uuid.UUID
    document_id: uuid.UUID
    """The hash of the text, also of a variant."""
    token: int
    """Index, in the text's token ids, of the token that follows the call."""
    call: Call
    scored: ScoredCall
    """With all losses, or `pruned_below` with the losses that prove it."""

    @property
    def reduction_bound(self) -> float:
        """The smallest term of L- that is known, nats: no result saves more."""
        own = self.scored
        terms = (own.loss_without_call, own.loss_without_result, own.loss_without_call_full_context)
        return min(term for term in terms if term is not None)

    @property
    def gain_bound(self) -> float:
        """What no result gains by the run's keep rule, of the terms that are known."""
        return gain_bound(self.reduction_bound, self.scored.probability_without, None)

    @property
    def has_losses(self) -> bool:
        """Whether it has a result, and its losses or those that prove that it saves too little.

        Such calls are a pool.
        """
        return self.scored.result is not None and self.scored.reason in (None, PRUNED)

    @property
    def own_loss(self) -> float | None:
        """L(e(c, r)) if it was computed; its placebos are computed in the same number format."""
        return self.scored.loss_with_result

    @property
    def is_judged_by_probability(self) -> bool:
        """Whether the run's keep rule is `probability`."""
        return self.scored.probability_without is not None


@dataclass(frozen=True)
class PlaceboLoss:
    """A placebo of a call. The fields are columns of `placebo_losses`."""

    number: int
    """In the order of the draw, from 1."""
    source: int | None
    """The call of the pool that the result is of; None if there is none."""
    is_sampled: bool
    reason: str | None = None
    """Why there is no placebo reduction."""
    loss_with_result: float | None = None
    """L(e(c, r')), nats."""
    reduction_bound: float | None = None
    """L- minus L(e(c, r')), or, with the reason `pruned_below`, a number that it does not exceed."""
    information: float | None = None
    """L(e(c, r')) minus L(e(c, r)), nats; None beyond the first K."""
    probability_with: float | None = None
    """The probability of the next tokens with it; None by the rule `paper`, and where not computed."""
    gain: float | None = None
    """What the call would gain with it by the run's keep rule; None unless it is sampled and scored."""

    @property
    def has_losses(self) -> bool:
        """Whether it was scored: its reduction is known, or a bound that proves enough."""
        return self.source is not None and self.reason in (None, PRUNED)


class PlaceboDraw:
    """Draws placebos from a pool, and says which calls are sampled."""

    def __init__(self, pool: "Pool") -> None:
        self.placebos = pool.placebos
        self._share = pool.sample_share
        self._results = pool.results
        # The pool's calls are those with the smallest ids: the last bits of the ids are still random.
        keys = [call.call_id.int & _64_BITS for call in pool.results]
        self._keys = np.array(keys, dtype=np.uint64)  # (calls,)
        self._document_numbers, self._documents = _numbered([call.document_id for call in pool.results])
        self._text_numbers, self._texts = _numbered([call.result for call in pool.results])

    def without_sample(self) -> "PlaceboDraw":
        """This draw for calls outside the sample of the false-discovery rate."""
        draw = copy.copy(self)
        draw._share = 0.0
        return draw

    def is_sampled(self, call_id: uuid.UUID) -> bool:
        """Whether the call belongs to the sample for the false-discovery rate."""
        return (call_id.int & _64_BITS) / 2**64 < self._share

    def reaches(self, scored: ScoredCall, prune_below: float) -> bool:
        """Whether the call's own gain reaches `prune_below`, so that it has K placebos."""
        return self.placebos > 0 and scored.reaches(prune_below)

    def of_call(self, call: JudgedCall, count: int) -> "list[PooledResult]":
        """The first `count` placebos of a call.

        They are fewer if the pool has no more other results of other documents.
        """
        place = hashlib.sha256(
            call.document_id.bytes + call_without_result(call.call).encode("utf-8")
        ).digest()
        keys = _mixed(self._keys ^ np.uint64(int.from_bytes(place[:8], "big")))
        possible = min(count, len(self._text_numbers) - (call.scored.result in self._text_numbers))
        # Most often all placebos are at the front of the order: it is sorted no further than they reach.
        near = _FIRST_LOOK
        while True:
            # The first call with each result in an order of the pool, without the call's own result and
            # document.
            order = _smallest(keys, near)
            is_of_another = self._documents[order] != self._document_numbers.get(call.document_id, -1)
            is_another = self._texts[order] != self._text_numbers.get(call.scored.result, -1)
            others: np.ndarray = order[is_of_another & is_another]
            _, firsts = np.unique(self._texts[others], return_index=True)
            first_of_each: np.ndarray = others[np.sort(firsts)]
            drawn = first_of_each[:count]
            if len(drawn) >= possible or near >= len(keys):
                return [self._results[index] for index in drawn]
            near *= 4


def score_placebos(
    load_model: "Callable[[], LanguageModel]",
    choices: ScoringChoices,
    texts: Sequence[tuple[str, Sequence[JudgedCall]]],
    draw: PlaceboDraw,
) -> list[list[list[PlaceboLoss]]]:
    """By text, the placebos of each call, in order.

    A call that is neither sampled nor reaches `prune_below` has none. The texts are computed together. The
    model is loaded only if a call has placebos.
    """
    # 1. Which results are drawn for each call, and which of these are wanted.
    drawn: list[_DrawnCall] = []
    for number, (_, calls) in enumerate(texts):
        drawn += [_DrawnCall.of(number, call, draw, choices.prune_below) for call in calls]
    wanted: list[Key] = []
    for index, drawn_call in enumerate(drawn):
        wanted += [(index, number) for number in drawn_call.wanted(draw.placebos)]
    # 2. Their losses, and the losses that sampled placebos above `prune_below` are compared with.
    losses: dict[Key, PlaceboLoss] = {}
    for number_format, keys in _by_format(load_model(), choices, drawn, wanted) if wanted else ():
        scorer = _Scorer(
            model=load_model(),
            number_format=number_format,
            choices=choices,
            texts=[text for text, _ in texts],
            drawn=drawn,
            placebos=draw.placebos,
        )
        losses |= scorer.rows(keys)
        losses |= scorer.compared(losses, keys)
    # 3. The rows.
    rows: list[list[list[PlaceboLoss]]] = [[] for _ in texts]
    for index, drawn_call in enumerate(drawn):
        keys = [(index, number) for number in range(1, len(drawn_call.results) + 1)]
        placebos = [losses[key] for key in keys if key in losses]
        if not drawn_call.results and (drawn_call.reaches or drawn_call.is_sampled):
            placebos = [PlaceboLoss(1, None, is_sampled=drawn_call.is_sampled, reason=NO_OTHER_RESULT)]
        elif placebos:
            is_sampled = drawn_call.is_sampled
            gain = placebos[0].gain if is_sampled else None
            placebos[0] = dataclasses.replace(placebos[0], is_sampled=is_sampled, gain=gain)
        rows[drawn_call.text].append(placebos)
    return rows


def information(placebos: Sequence[PlaceboLoss]) -> float | None:
    """The information of a call's result, nats: the mean over its placebos; None without any."""
    return _mean([placebo.information for placebo in placebos if placebo.information is not None])


def placebo_reduction(placebos: Sequence[PlaceboLoss]) -> float | None:
    """The mean reduction, in nats, of the placebos that a call's information is measured against.

    It is None without any.
    """
    reductions = []
    for placebo in placebos:
        is_compared = placebo.information is not None and placebo.reason is None
        if is_compared and placebo.reduction_bound is not None:
            reductions.append(placebo.reduction_bound)
    return _mean(reductions)


def compared_probability(placebos: Sequence[PlaceboLoss]) -> float | None:
    """The probability that a call's own is compared with by the rule `probability`: its first placebo's.

    It is None by the rule `paper`, and without a placebo.
    """
    return placebos[0].probability_with if placebos else None


def gain_of(scored: ScoredCall, placebo_probability: float | None) -> float | None:
    """What a call gains by its run's keep rule; None if it is not scored, or the rule lacks a placebo.

    `call_gain` in sql/functions/02_losses.sql says the same of a stored call; a test compares the two.
    """
    if scored.reason is not None or scored.gain_bound is None:
        return None
    if scored.probability_with is None:  # the rule `paper`
        return scored.gain_bound
    if placebo_probability is None:
        return None
    return min(scored.gain_bound, math.log(scored.probability_with / placebo_probability))


_64_BITS = 2**64 - 1
_FIRST_LOOK = 16
"""So many pooled calls are put in order at first: most often the placebos of a call are among them."""


def _numbered(items: Sequence[Any]) -> tuple[dict[Any, int], np.ndarray]:
    """A number for each distinct item, from 0, and the number of each item, (items,)."""
    number_of: dict[Any, int] = {}
    numbers = [number_of.setdefault(item, len(number_of)) for item in items]
    return number_of, np.array(numbers, dtype=np.int64)


def _mixed(keys: np.ndarray) -> np.ndarray:
    """Each key mixed with splitmix64 (Steele, Lea and Flood, 2014), which permutes the 64-bit numbers."""
    mixed = keys + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _smallest(keys: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` smallest keys in their order, with all that equal the last; all if there are fewer."""
    if count >= len(keys):
        return np.argsort(keys, kind="stable")
    places = np.flatnonzero(keys <= np.partition(keys, count - 1)[count - 1])
    return places[np.argsort(keys[places], kind="stable")]


def _mean(values: Sequence[float]) -> float | None:
    """The mean, to the last digit that of Postgres' avg(), which adds one value after the other."""
    return functools.reduce(operator.add, values) / len(values) if values else None


@dataclass(frozen=True)
class _DrawnCall:
    """A call with what is drawn for it."""

    text: int
    """Number of its text."""
    call: JudgedCall
    reaches: bool
    """Whether its own gain reaches `prune_below`: it has K placebos."""
    is_sampled: bool
    results: "Sequence[PooledResult]"
    """K placebos and one more, in the order of the draw."""

    @classmethod
    def of(cls, text: int, call: JudgedCall, draw: PlaceboDraw, prune_below: float) -> "_DrawnCall":
        reaches, is_sampled = draw.reaches(call.scored, prune_below), draw.is_sampled(call.call_id)
        results = draw.of_call(call, draw.placebos + 1) if reaches or is_sampled else ()
        return cls(text, call, reaches, is_sampled, results)

    def wanted(self, placebos: int) -> range:
        """The numbers of the placebos that are scored first.

        A call that reaches `prune_below` has K, another call of the sample one.
        """
        most = placebos if self.reaches else int(self.is_sampled)
        return range(1, min(len(self.results), most) + 1)


def _by_format(
    model: "LanguageModel", choices: ScoringChoices, drawn: Sequence[_DrawnCall], wanted: Sequence[Key]
) -> list[tuple[str, list[Key]]]:
    """The placebos by the number format that they are computed in, float32 first.

    It is the number format of the call's own losses. One format is done before the next begins, since weights
    may take each other's place. If the model does not verify, all are in its own format: beside a call that
    another device has verified, information differs by rounding.
    """
    own = model.number_format
    if own == FLOAT32 or not model.verifies(choices.verify_in_float32):
        return [(own, list(wanted))]
    by_format: dict[str, list[Key]] = {FLOAT32: [], TF32: [], own: []}
    for key in wanted:
        number_format = drawn[key[0]].call.scored.number_format
        by_format[number_format if number_format in (TF32, own) else FLOAT32].append(key)
    return [(number_format, keys) for number_format, keys in by_format.items() if keys]


@dataclass(frozen=True)
class _Scorer:
    """Scores placebos in one number format; keys count the calls over all texts."""

    model: "LanguageModel"
    number_format: str
    choices: ScoringChoices
    texts: Sequence[str]
    drawn: Sequence[_DrawnCall]
    placebos: int

    def rows(self, wanted: Sequence[Key]) -> dict[Key, PlaceboLoss]:
        """The placebos of these keys."""
        # 1. L(e(c, r')), if no known term proves enough. Later placebos are compared by it, whatever their
        #    bound.
        undecided = [key for key in wanted if key[1] > 1 or not self._is_pruned(self._call(key).gain_bound)]
        with_result = self._losses(undecided, lambda key: self._result(key).result)
        # 2. L(e(c, "")), if it decides.
        open_keys = [key for key in with_result if self._needs_loss_without(key, with_result[key])]
        without_result = self._losses(open_keys, lambda _: "")
        # 3. The rows.
        return {key: self._row(key, with_result.get(key), without_result.get(key)) for key in wanted}

    def _needs_loss_without(self, key: Key, loss: LossWithResult) -> bool:
        """Whether L(e(c, "")) decides; a call whose own result gains too little was computed without it."""
        call = self._call(key)
        if key[1] > 1 or call.scored.loss_without_result is not None or not math.isfinite(loss.nats):
            return False
        bound = gain_bound(
            call.reduction_bound - loss.nats, call.scored.probability_without, loss.probability
        )
        return not self._is_pruned(bound)

    def compared(self, losses: Mapping[Key, PlaceboLoss], keys: Sequence[Key]) -> dict[Key, PlaceboLoss]:
        """Return the rows of the sampled placebos with their gain by the rule `probability`.

        The rows of the second placebos that they are compared with are among them, if `losses` lack them.
        """
        # 1. Calls that reach `prune_below` before a placebo; the others gain too little for any threshold.
        reaching = []
        for key in keys:
            first = losses.get(key)
            if key[1] == 1 and first is not None and first.gain is not None:
                is_open = self._call(key).is_judged_by_probability and self.drawn[key[0]].is_sampled
                if is_open and first.gain >= self.choices.prune_below:
                    reaching.append(key[0])
        # 2. The second placebos.
        second_keys = [(index, 2) for index in reaching if len(self.drawn[index].results) > 1]
        missing = [key for key in second_keys if key not in losses]
        rows = self.rows(missing) if missing else {}
        # 3. The smaller of the two gains; without a second placebo the rule keeps nothing.
        for index in reaching:
            first, second = losses[index, 1], rows.get((index, 2)) or losses.get((index, 2))
            gain = None
            if second is not None and second.probability_with is not None:
                assert first.gain is not None  # noqa: S101 - it reaches `prune_below`
                assert first.probability_with is not None  # noqa: S101
                gain = min(first.gain, math.log(first.probability_with / second.probability_with))
            rows[index, 1] = dataclasses.replace(first, gain=gain)
        return rows

    def _losses(self, keys: Iterable[Key], result_of: Callable[[Key], str]) -> dict[Key, LossWithResult]:
        """L(e(c, r)) with these results, of all texts together."""
        keys_by_text: list[list[Key]] = [[] for _ in self.texts]
        for key in keys:
            keys_by_text[self.drawn[key[0]].text].append(key)
        if not any(keys_by_text):
            return {}
        placed_calls = []
        for text, text_keys in zip(self.texts, keys_by_text, strict=True):
            text_calls = []
            for key in text_keys:
                call = self._call(key)
                text_calls.append(PlacedCall(call.token, call.call, result_of(key)))
            placed_calls.append((text, text_calls))
        computed = self.model.losses_with_result(
            placed_calls,
            context_tokens=self.choices.scoring_context_tokens,
            number_format=self.number_format,
            keep_rule=self.choices.keep_rule,
        )
        losses: dict[Key, LossWithResult] = {}
        for text_keys, text_losses in zip(keys_by_text, computed, strict=True):
            losses.update(zip(text_keys, text_losses, strict=True))
        return losses

    def _row(self, key: Key, loss: LossWithResult | None, without: LossWithResult | None) -> PlaceboLoss:
        """A placebo with L(e(c, r')), unless it was pruned, and with L(e(c, "")) if it was computed."""
        call, number = self._call(key), key[1]
        row = PlaceboLoss(number, self._result(key).source, is_sampled=False)
        if loss is None:
            return dataclasses.replace(row, reason=PRUNED, reduction_bound=call.reduction_bound)
        terms = [call.reduction_bound]
        probabilities = [call.scored.probability_without]
        if without is not None:
            terms.append(without.nats)
            probabilities.append(without.probability)
        if not all(map(math.isfinite, (loss.nats, *terms))):
            return dataclasses.replace(row, reason=NOT_FINITE)
        saved = min(terms) - loss.nats
        largest = max((term for term in probabilities if term is not None), default=None)
        is_whole = call.scored.loss_without_result is not None or without is not None
        return dataclasses.replace(
            row,
            reason=None if is_whole else ONLY_COMPARED if number > 1 else PRUNED,
            loss_with_result=loss.nats,
            reduction_bound=saved,
            information=None
            if call.own_loss is None or number > self.placebos
            else loss.nats - call.own_loss,
            probability_with=loss.probability,
            gain=gain_bound(saved, largest, loss.probability) if is_whole and number == 1 else None,
        )

    def _is_pruned(self, bound: float) -> bool:
        return self.model.surely_below(bound, self.choices.prune_below, self.choices.keep_rule)

    def _call(self, key: Key) -> JudgedCall:
        return self.drawn[key[0]].call

    def _result(self, key: Key) -> "PooledResult":
        return self.drawn[key[0]].results[key[1] - 1]
