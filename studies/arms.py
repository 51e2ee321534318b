"""The arms of a study: by which rule the calls are chosen that a model is trained on, and what else the training does.

Each differs from the one above it, or from the one that it names, in one thing; but `right_call` from `any_call` in which
calls it allows, where they stand and which texts have one.

    paper               of a text's calls that the paper's rule keeps the one that saves most
    probability         of those that the rule `probability` keeps the one that gains most
    foretold            a call nearest to the number or name that it foretells: the result holds the text's next one
    right_call          a call whose result holds the answer of its sentence, at a place by chance
    any_call            any call that has a result, by chance
    moved               the calls of `probability`, each at another place of its text, by chance
    other_result        the calls of `probability`, each with the result of another text's call
    surprising_fact     a call before a number or name that the model does not expect, whatever the call gives
    without_calls       the texts of `paper` without their calls
    plain               the texts of `probability` without their calls
    tau_0, ten, one_loss, ...    the rules of `RULES`, which differ from the paper's in one thing

`surprising_fact` takes a call whose next number, date or name the model does not expect, by a loss of at least
`SURPRISING_NATS`. It is not LaCy (arXiv 2602.12005), which judges in pre-training which tokens a small model delegates.

An arm has one call a text. No arm has a call whose input is in the text only after it, since the input could
not be known where the call is written. All arms have equally many texts. Chance is seeded by the study's seed and the text.
"""

import logging
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studies.calls import Record
from studies.following import CURRENCY, DASH, SIGN
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.errors import NoResultError
from toolformer_ops.language_model.losses import (
    PROBABILITY_THRESHOLD,
    TOKEN_WEIGHTS,
    is_kept,
    probability,
    token_weights,
)
from toolformer_ops.tools.base import Tool

logger = logging.getLogger(__name__)

SURPRISING_NATS = 1.0
"""The loss without a call, by the paper's weights, from which on a token is not expected."""
FEWEST_TEXTS = 30
LEAST_SHARE = 1 / 3
"""An arm with fewer texts in a seed, or with less than this share of the first arm's, is left out there: all arms
have as many texts as the smallest."""
NEXT_FACT = re.compile(rf"(?P<sign>{SIGN})?{CURRENCY}?(?P<number>\d+(?:[.,]\d+)*)|\b[A-Z][a-zA-Z-]+")
"""A number with its sign, or a word with a capital."""
_FACT_BEHIND = re.compile(rf"\s*[$€£(\"'“]?(?:{NEXT_FACT.pattern})")

ScoredCall = dict[str, Any]
"""A call of a record, as `studies/calls.py` makes it."""


@dataclass(frozen=True)
class Rule:
    """A keep rule over the stored log probabilities; with its defaults it is the paper's."""

    weights: Sequence[float] = TOKEN_WEIGHTS
    tau: float | None = None
    """Nats; None is the tool's threshold."""
    one_loss: bool = False
    """L- is the loss without a call alone, not the smaller of the two."""
    against_placebo: bool = False
    """L- is also at most the loss with the result of another text's call."""

    reads_probability: bool = False
    """Losses are minus the logarithm of the probability of the next tokens, as the rule `probability` has it."""

    def reduction(self, call: ScoredCall, prefix: str = "with_result") -> float | None:
        """L- minus L+ in nats, with the call's own result or `with_placebo`; None if there is no such loss."""
        log_p = call["log_p"]
        if log_p[prefix] is None:
            return None
        losses = {name: self._loss(values) for name, values in log_p.items() if values}
        terms = ["without_call"] if self.one_loss else ["without_call", "without_result"]
        if self.against_placebo and prefix == "with_result" and "with_placebo" in losses:
            terms.append("with_placebo")
        # Rounded, so that no last bit of a sum decides about stored losses whose difference is the threshold.
        return round(float(min(losses[term] for term in terms) - losses[prefix]), 9)

    def _loss(self, log_p: Sequence[float]) -> float:
        if self.reads_probability:
            return -math.log(probability(log_p))
        return -sum(weight * value for weight, value in zip(self.weights, log_p, strict=False))

    def keeps(self, call: ScoredCall, tool: Tool, prefix: str = "with_result") -> bool:
        """Whether its loss reduction reaches the threshold."""
        reduction = self.reduction(call, prefix)
        threshold = tool.spec.keep_threshold if self.tau is None else self.tau
        return reduction is not None and is_kept(reduction, threshold)


RULES: Mapping[str, Rule] = {
    "paper": Rule(),
    "one_token": Rule(weights=(1.0,)),
    "two_tokens": Rule(weights=token_weights(2)),
    "three_tokens": Rule(weights=token_weights(3)),
    "five_equal": Rule(weights=(0.2,) * 5),
    "ten": Rule(weights=token_weights(10)),
    "ten_equal": Rule(weights=(0.1,) * 10),
    "tau_0": Rule(tau=0.0),
    "tau_0.25": Rule(tau=0.25),
    "tau_0.5": Rule(tau=0.5),
    "tau_1": Rule(tau=1.0),
    "tau_2": Rule(tau=2.0),
    "one_loss": Rule(one_loss=True),
    "against_placebo": Rule(against_placebo=True),
    "probability": Rule(reads_probability=True, against_placebo=True, tau=PROBABILITY_THRESHOLD),
}
"""The paper's rule, and rules that differ from it in one thing."""

Chooses = Callable[[Record, Tool, random.Random], ScoredCall | None]


@dataclass(frozen=True)
class Arm:
    """What a model is trained on."""

    chooses: Chooses
    """The call of a text; None if it has none."""
    without_calls: bool = False


def releasable(record: Record) -> list[ScoredCall]:
    """The calls of a text whose input can be known where they are written."""
    return [call for call in record["calls"] if not call["input_only_after"]]


def _fact(written: re.Match[str]) -> str:
    """A match of `NEXT_FACT`: a word as it is, a number without its currency, its sign as a hyphen."""
    sign = "-" if written["sign"] else ""
    return sign + (written["number"] or written.group())


def _facts(text: str) -> list[str]:
    return list(map(_fact, NEXT_FACT.finditer(text)))


def foretold_place(call: ScoredCall, text: str) -> int | None:
    """Where the next number or name behind the call is; None unless the call's result holds it and the text before does not."""
    place = call["position_char"]
    upcoming = NEXT_FACT.search(text, place)
    if upcoming is None:
        return None
    is_new = _fact(upcoming) not in _facts(text[:place])
    is_told = _fact(upcoming) in _facts(call["result"])
    return upcoming.start() if is_new and is_told else None


def foretells(call: ScoredCall, text: str) -> bool:
    """Whether the next number or name of the text behind the call is in its result, and not in the text before it."""
    return foretold_place(call, text) is not None


def is_right(call: ScoredCall, answer: str, tool: Tool) -> bool:
    """Whether the result holds the answer of the call's sentence with its sign; a tool without an input is always right."""
    if not tool.spec.takes_input:
        return True
    as_it_is_written = rf"(?<![\d.,])(?<!{DASH}){re.escape(answer)}(?![\d]|[.,]\d)"
    return bool(answer) and re.search(as_it_is_written, call["result"]) is not None


def _saves_most(rule: Rule) -> Chooses:
    """Of the calls that a rule keeps, the one that saves most; equal ones by their text."""

    def chooses(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
        kept = [call for call in releasable(record) if rule.keeps(call, tool)]
        return min(kept, key=lambda call: (-(rule.reduction(call) or 0.0), call["call"]), default=None)

    return chooses


def _other_result(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
    """The call of `probability`; none where no other result is stored."""
    call = ARMS["probability"].chooses(record, tool, draw)
    return None if call is None or "other_result" not in call else {**call, "result": call["other_result"]}


def _foretold(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
    """One of the calls that are nearest to what they foretell, by chance."""
    distances: list[tuple[float, ScoredCall]] = []
    for call in releasable(record):
        place = foretold_place(call, record["text"])
        if place is not None:
            distances.append((place - call["position_char"], call))
    nearest = min((distance for distance, _ in distances), default=None)
    candidates = [call for distance, call in distances if distance == nearest]
    return draw.choice(candidates) if candidates else None


def _moved(call: ScoredCall, text: str, tool: Tool, draw: random.Random) -> ScoredCall | None:
    """The call before another word of the text, by chance, at which its input can be known."""
    call_input = parse_call(call["call"]).input
    places = []
    for space in re.finditer(r"(?<=\S) (?=\S)", text):
        place = space.start()
        if place != call["position_char"] and not tool.input_only_after(
            call_input, text[:place], text[place:]
        ):
            places.append(place)
    return {**call, "position_char": draw.choice(places)} if places else None


def _moved_call(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
    call = ARMS["probability"].chooses(record, tool, draw)
    return None if call is None else _moved(call, record["text"], tool, draw)


def _any_call(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
    calls = releasable(record)
    return draw.choice(calls) if calls else None


def _right_call(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
    calls = [call for call in releasable(record) if is_right(call, record["answer"], tool)]
    return _moved(draw.choice(calls), record["text"], tool, draw) if calls else None


def _surprising_fact(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
    """A call, by chance, at the place of the largest loss among those before a number or name."""
    calls = []
    for call in releasable(record):
        is_before_a_fact = _FACT_BEHIND.match(record["text"], call["position_char"]) is not None
        if is_before_a_fact and call["loss_without_call"] >= SURPRISING_NATS:
            calls.append(call)
    largest = max((call["loss_without_call"] for call in calls), default=None)
    candidates = [call for call in calls if call["loss_without_call"] == largest]
    return draw.choice(candidates) if candidates else None


ARMS: Mapping[str, Arm] = {
    "paper": Arm(_saves_most(RULES["paper"])),
    "probability": Arm(_saves_most(RULES["probability"])),
    "foretold": Arm(_foretold),
    "any_call": Arm(_any_call),
    "right_call": Arm(_right_call),
    "moved": Arm(_moved_call),
    "other_result": Arm(_other_result),
    "without_calls": Arm(_saves_most(RULES["paper"]), without_calls=True),
    "plain": Arm(_saves_most(RULES["probability"]), without_calls=True),
    "surprising_fact": Arm(_surprising_fact),
    **{name: Arm(_saves_most(rule)) for name, rule in RULES.items() if name not in ("paper", "probability")},
}
"""In the order in which a study trains them, so that one that is cut off has the first ones in all its seeds."""


def chosen_call(arm: str, record: Record, tool: Tool, seed: int) -> ScoredCall | None:
    """The call of a text that an arm chooses in a seed, if any."""
    draw = random.Random(f"{seed}|call|{record['document_id']}")  # noqa: S311 - the same for all arms
    return ARMS[arm].chooses(record, tool, draw)


ChosenTexts = list[tuple[Record, ScoredCall]]
"""The texts of an arm, each with its call."""


def chosen_texts(
    arms: Sequence[str], records: Sequence[Record], tool: Tool, seed: int
) -> tuple[dict[str, ChosenTexts], dict[str, int]]:
    """By arm its texts with their calls, equally many, in an order that follows from the seed; and how many each could have had.

    An arm with few (`FEWEST_TEXTS`, `LEAST_SHARE`) is left out, and the log says so.

    Raises:
        NoResultError: all arms have fewer.
    """
    order = {record["document_id"]: random.Random(f"{seed}|{record['document_id']}") for record in records}  # noqa: S311
    in_order = sorted(records, key=lambda record: order[record["document_id"]].random())
    texts: dict[str, ChosenTexts] = {}
    for arm in arms:
        texts[arm] = []
        for record in in_order:
            call = chosen_call(arm, record, tool, seed)
            if call is not None:
                texts[arm].append((record, call))
    eligible = {arm: len(chosen) for arm, chosen in texts.items()}
    fewest = max(FEWEST_TEXTS, math.ceil(LEAST_SHARE * next(iter(eligible.values()), 0)))
    short = {arm: number for arm, number in eligible.items() if number < fewest}
    if len(short) == len(texts):
        numbers = ", ".join(f"{number} for {arm}" for arm, number in short.items())
        raise NoResultError(
            f"seed {seed}: expected {FEWEST_TEXTS} texts with a call for an arm, found {numbers} among {len(records)}. "
            "Annotate more with --texts into another folder."
        )
    for arm, number in short.items():
        logger.warning(
            "seed %d: the arm %s is left out: %d of %d texts have a call for it, fewer than %d. More --texts bring more",
            seed, arm, number, len(records), fewest,
        )  # fmt: skip
    examples = min(number for arm, number in eligible.items() if arm not in short)
    return {arm: chosen[:examples] for arm, chosen in texts.items() if arm not in short}, eligible
