"""The arms of a study: by which rule the calls are chosen that a model is trained on, and what else the training does.

    paper               calls that the paper's rule keeps
    information         of these, calls whose information is at least `INFORMATION_NATS`
    paper_masked, information_masked    the same calls, their results out of the loss
    elsewhere           the calls of `paper`, each at another place of its text, by chance: is it the place?
    any_call            any call that has a result, by chance: is it the call?
    foretold            calls whose result holds the next number or name of the text, and no model is asked:
    does the loss do more? without_calls       the texts of `paper` without their calls, for as many tokens as
    `paper` sees tau_0, ten, one_loss, ...           the rules of `RULES`, which differ from the paper's in
    one thing

An arm has one call a text. No arm has a call whose input stands in the text only after it: who writes the
text could not know it. All arms have equally many texts. Chance is seeded by the study's seed and the text.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studies.calls import Record
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.errors import NoResultError
from toolformer_ops.language_model.losses import TOKEN_WEIGHTS, is_kept, token_weights
from toolformer_ops.tools.base import Tool

INFORMATION_NATS = 0.2
NEXT_FACT = re.compile(r"\d+(?:[.,]\d+)*|\b[A-Z][a-zA-Z-]+")
"""A number, or a word with a capital."""

ScoredCall = dict[str, Any]
"""A call of a record, as `studies/calls.py` makes it."""


@dataclass(frozen=True)
class Rule:
    """A keep rule over the stored log probabilities; as it stands, the paper's."""

    weights: Sequence[float] = TOKEN_WEIGHTS
    tau: float | None = None
    """Nats; None is the tool's threshold."""
    one_loss: bool = False
    """L- is the loss without a call alone, not the smaller of the two."""
    in_place: bool = False
    """The call stands in its place in the text; the losses are then those of the paper's weights."""

    def reduction(self, call: ScoredCall, prefix: str = "with_result") -> float | None:
        """L- minus L+ in nats, with the call's own result or `with_placebo`; None if there is no such loss."""
        log_p = call["log_p"]
        if self.in_place:
            if call["in_place"] is None or prefix != "with_result":
                return None
            losses = {**call["in_place"], "without_call": call["loss_without_call"]}
        elif log_p[prefix] is None:
            return None
        else:
            losses = {
                name: -sum(weight * value for weight, value in zip(self.weights, values, strict=False))
                for name, values in log_p.items()
                if values is not None
            }
        terms = ["without_call"] if self.one_loss else ["without_call", "without_result"]
        return float(min(losses[term] for term in terms) - losses[prefix])

    def keeps(self, call: ScoredCall, tool: Tool, prefix: str = "with_result") -> bool:
        """Whether its loss reduction reaches the threshold."""
        reduction = self.reduction(call, prefix)
        threshold = tool.spec.keep_threshold if self.tau is None else self.tau
        return reduction is not None and is_kept(reduction, threshold)


RULES: Mapping[str, Rule] = {
    "paper": Rule(),
    "one_token": Rule(weights=(1.0,)),
    "five_equal": Rule(weights=(0.2,) * 5),
    "ten": Rule(weights=token_weights(10)),
    "tau_0": Rule(tau=0.0),
    "tau_0.25": Rule(tau=0.25),
    "tau_0.5": Rule(tau=0.5),
    "tau_1": Rule(tau=1.0),
    "tau_2": Rule(tau=2.0),
    "one_loss": Rule(one_loss=True),
    "in_place": Rule(in_place=True),
}
"""The paper's rule, and rules that differ from it in one thing."""

Chooses = Callable[[Record, Tool, random.Random], ScoredCall | None]


@dataclass(frozen=True)
class Arm:
    """What a model is trained on."""

    chooses: Chooses
    """The call of a text; None if it has none."""
    masked: bool = False
    """Results are out of the loss."""
    without_calls: bool = False


def releasable(record: Record) -> list[ScoredCall]:
    """The calls of a text whose input can be known where they stand."""
    return [call for call in record["calls"] if not call["input_only_after"]]


def foretells(call: ScoredCall, text: str) -> bool:
    """Whether the next number or name of the text behind the call stands in its result, and not in the text before it."""
    place = call["position_char"]
    upcoming = NEXT_FACT.search(text, place)
    if upcoming is None:
        return False
    facts = set(NEXT_FACT.findall(call["result"]))
    return upcoming.group() in facts and upcoming.group() not in NEXT_FACT.findall(text[:place])


def _saves_most(rule: Rule, least_information: float | None = None) -> Chooses:
    """Of the calls that a rule keeps, the one that saves most; equal ones by their text."""

    def chooses(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
        kept = [
            call
            for call in releasable(record)
            if rule.keeps(call, tool)
            and (least_information is None or (call["information"] or 0.0) >= least_information)
        ]
        return min(kept, key=lambda call: (-(rule.reduction(call) or 0.0), call["call"]), default=None)

    return chooses


def _elsewhere(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
    """The paper's call before another word of the text, at which its input can be known."""
    call = ARMS["paper"].chooses(record, tool, draw)
    if call is None:
        return None
    text, asked = record["text"], parse_call(call["call"]).input
    places = [
        found.start()
        for found in re.finditer(r"(?<=\S) (?=\S)", text)
        if found.start() != call["position_char"]
        and not tool.input_only_after(asked, text[: found.start()], text[found.start() :])
    ]
    return {**call, "position_char": draw.choice(places)} if places else None


def _any_call(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
    calls = releasable(record)
    return draw.choice(calls) if calls else None


def _foretold(record: Record, tool: Tool, draw: random.Random) -> ScoredCall | None:
    """Of the calls that foretell what follows, one of those that stand nearest to it."""
    found = [call for call in releasable(record) if foretells(call, record["text"])]
    nearest = max((call["position_char"] for call in found), default=None)
    return draw.choice([call for call in found if call["position_char"] == nearest]) if found else None


ARMS: Mapping[str, Arm] = {
    "paper": Arm(_saves_most(RULES["paper"])),
    "information": Arm(_saves_most(RULES["paper"], INFORMATION_NATS)),
    "paper_masked": Arm(_saves_most(RULES["paper"]), masked=True),
    "information_masked": Arm(_saves_most(RULES["paper"], INFORMATION_NATS), masked=True),
    "elsewhere": Arm(_elsewhere),
    "any_call": Arm(_any_call),
    "foretold": Arm(_foretold),
    "without_calls": Arm(_saves_most(RULES["paper"]), without_calls=True),
    **{name: Arm(_saves_most(rule)) for name, rule in RULES.items() if name != "paper"},
}


def chosen_texts(
    arms: Sequence[str], records: Sequence[Record], tool: Tool, seed: int
) -> tuple[dict[str, list[tuple[Record, ScoredCall]]], dict[str, int]]:
    """By arm its texts with their calls, equally many, in an order that follows from the seed; and how many each could have had.

    Raises:
        NoResultError: an arm has none.
    """
    order = {record["document_id"]: random.Random(f"{seed}|{record['document_id']}") for record in records}  # noqa: S311
    found: dict[str, list[tuple[Record, ScoredCall]]] = {}
    in_order = sorted(records, key=lambda record: order[record["document_id"]].random())
    for arm in arms:
        draws = ((record, random.Random(f"{seed}|{arm}|{record['document_id']}")) for record in in_order)  # noqa: S311
        called = ((record, ARMS[arm].chooses(record, tool, draw)) for record, draw in draws)
        found[arm] = [(record, call) for record, call in called if call is not None]
    eligible = {arm: len(texts) for arm, texts in found.items()}
    examples = min(eligible.values())
    if not examples:
        none = ", ".join(arm for arm, number in eligible.items() if not number)
        raise NoResultError(f"expected texts with calls for each arm, found none for {none}. Raise --texts.")
    return {arm: texts[:examples] for arm, texts in found.items()}, eligible


def rules_table(records: Sequence[Record], tool: Tool) -> list[dict[str, Any]]:
    """What each rule of `RULES` keeps: calls, texts, calls that foretell what follows, those of the paper's rule, and by chance.

    `by_chance` is how many calls the rule would keep with the result of another text's call in place of their
    own.
    """
    calls = [(record, call) for record in records for call in releasable(record)]
    of_paper = {call["call_id"] for _, call in calls if RULES["paper"].keeps(call, tool)}
    table = []
    for name, rule in RULES.items():
        kept = [(record, call) for record, call in calls if rule.keeps(call, tool)]
        table.append(
            {
                "rule": name,
                "calls": len(kept),
                "texts": len({record["document_id"] for record, _ in kept}),
                "foretold": sum(foretells(call, record["text"]) for record, call in kept),
                "also_paper": sum(call["call_id"] in of_paper for _, call in kept),
                "by_chance": None
                if rule.in_place
                else sum(rule.keeps(call, tool, "with_placebo") for _, call in calls),
                "of": len(calls),
            }
        )
    return table
