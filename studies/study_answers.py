"""The raw answers of a study's seeds, and the numbers that they have: shares over seeds, differences, what keep rules keep."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from studies.answers import Line, read_answers
from studies.arms import RULES, Rule
from studies.measuring import BEFORE
from studies.plan import STUDIES
from studies.statistics import Estimate, Interval, Share, paired_difference, share, student
from toolformer_ops.call_syntax import ARROW, CALL_END
from toolformer_ops.errors import UsageError
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from studies.statistics import Counts

COMPARED_WITH = "paper"


class StudyAnswers:
    """The raw answers of one study."""

    def __init__(self, lines: Sequence[Line], calls: Sequence[Line]) -> None:
        self.plan = next(line for line in lines if line["line"] == "plan")
        self.seed_lines = {line["seed"]: line for line in lines if line["line"] == "seed"}
        self.calls = calls
        self._arm_lines: dict[str, dict[int, Line]] = {}
        self._answers: dict[str, dict[int, list[Line]]] = {}
        for line in lines:
            if line["line"] == "arm":
                self._arm_lines.setdefault(line["arm"], {})[line["seed"]] = line
            elif line["line"] == "answer":
                self._answers.setdefault(line["arm"], {}).setdefault(line["seed"], []).append(line)

    @classmethod
    def read(cls, answers: Path, calls: Path) -> "StudyAnswers":
        """Those of two files."""
        return cls(read_answers(answers), read_answers(calls))

    @property
    def arms(self) -> list[str]:
        """Those that at least one seed has, in the plan's order."""
        return [arm for arm in (BEFORE, *self.plan["arms"]) if arm in self._arm_lines]

    def seeds(self, arm: str) -> list[int]:
        """The seeds that have the arm.

        Raises:
            UsageError: no seed has it.
        """
        if arm not in self._arm_lines:
            raise UsageError(
                f"{self.plan['study']}: expected answers of the arm {arm!r}, found those of {', '.join(self.arms)}."
            )
        return sorted(self._arm_lines[arm])

    def arm_mean(self, arm: str, name: str) -> float:
        """The mean over seeds of a number of the arm's lines, such as its perplexity."""
        return _mean(self._arm_lines[arm][seed][name] for seed in self.seeds(arm))

    def texts(self, arm: str) -> int:
        """How many texts the arm was trained on, in all seeds together."""
        return sum(self.seed_lines[seed]["texts"].get(arm, 0) for seed in self.seeds(arm))

    def answers(self, arm: str, seed: int) -> list[Line]:
        """The answers of an arm in a seed."""
        return self._answers[arm][seed]

    def rights(
        self, arm: str, seed: int, *, held_out: bool | None = None, reads_sign: bool = False
    ) -> list[float]:
        """By sentence, whether its answer is right: 1 or 0.

        `held_out` are the sentences of held-out templates alone, or of the others alone. `reads_sign`: an answer
        is not right where a call gave minus the answer.
        """
        rights = []
        for line in self.answers(arm, seed):
            if held_out in (None, line["held_out"]):
                is_wrong_by_sign = reads_sign and has_minus_the_answer(line)
                rights.append(float(line["right"] and not is_wrong_by_sign))
        return rights

    def right(self, arm: str, *, held_out: bool | None = None, reads_sign: bool = False) -> Interval:
        """The share of right answers, over seeds; as `rights`."""
        shares = []
        for seed in self.seeds(arm):
            rights = self.rights(arm, seed, held_out=held_out, reads_sign=reads_sign)
            if rights:
                shares.append(_mean(rights))
        return student(shares or [math.nan]).within(0.0, 1.0)

    def right_by_minus(self, arm: str) -> tuple[int, int]:
        """In all seeds, how many right answers have a call that gave minus the answer, of how many."""
        lines = [line for seed in self.seeds(arm) for line in self.answers(arm, seed) if line["right"]]
        return sum(map(has_minus_the_answer, lines)), len(lines)

    def right_less(self, arm: str, other: str) -> Estimate:
        """The share of right answers, their sign read, of one arm less that of another, over the seeds that have both."""
        seeds = sorted({*self.seeds(arm)} & {*self.seeds(other)})
        return paired_difference(
            [self.rights(arm, seed, reads_sign=True) for seed in seeds],
            [self.rights(other, seed, reads_sign=True) for seed in seeds],
        )

    def loss(self, arm: str, *, with_calls: bool = False) -> Interval:
        """The loss of fresh sentences, nats a token, over seeds; with the calls that the model makes as it reads, or without."""
        losses = []
        for seed in self.seeds(arm):
            answers = self.answers(arm, seed)
            nats = math.fsum(_nats(line, with_calls=with_calls) for line in answers)
            losses.append(nats / sum(line["tokens"] for line in answers))
        return student(losses)

    def saved_by_calls(self, arm: str, less: str = "") -> Estimate:
        """By how many nats a text its calls lower the loss of a fresh sentence, those without a call included.

        With `less`, another arm, by how many more than the calls of that one, over the seeds that have both.
        """
        seeds = [seed for seed in self.seeds(arm) if not less or seed in self.seeds(less)]
        saved = [self._saved(arm, seed) for seed in seeds]
        others = [self._saved(less, seed) if less else [0.0] * len(saved[0]) for seed in seeds]
        return paired_difference(saved, others)

    def _saved(self, arm: str, seed: int) -> list[float]:
        return [
            _nats(line, with_calls=False) - _nats(line, with_calls=True) for line in self.answers(arm, seed)
        ]

    def loss_less(self, arm: str, other: str, *, with_calls: bool) -> Estimate:
        """Nats a text of one arm, with its calls or without, less those of another without; over seeds that have both."""
        seeds = sorted({*self.seeds(arm)} & {*self.seeds(other)})
        first = [[_nats(line, with_calls=with_calls) for line in self.answers(arm, seed)] for seed in seeds]
        second = [[_nats(line, with_calls=False) for line in self.answers(other, seed)] for seed in seeds]
        return paired_difference(first, second)

    def share(self, arm: str, has: Callable[[Line], bool]) -> float:
        """The share of an arm's sentences that have something."""
        return _mean(has(line) for seed in self.seeds(arm) for line in self.answers(arm, seed))

    @functools.cache  # noqa: B019 - a page has few studies
    def rule(self, name: str, as_many_as: str = "") -> "RuleFigures":
        """What a rule of `KEEPS` keeps of the calls, over seeds.

        With `as_many_as`, another rule, it keeps in each seed as many calls as that one: those that save most. A rule
        without a loss has no order of calls, and keeps what it keeps.
        """
        keeps = KEEPS[name]
        if as_many_as and name != as_many_as and name in RULES:
            numbers = Counter(call.seed for call in self.rule(as_many_as).calls if call.is_kept)
            keeps = _keeps_from(
                RULES[name],
                {seed: self._threshold_that_keeps(name, seed, numbers[seed]) for seed in self.seed_lines},
            )
        tool = get_tool(STUDIES[self.plan["study"]].tool)
        calls = [JudgedCall.of(call, keeps, tool) for call in self.calls]
        return RuleFigures(calls, sorted(self.seed_lines), self.plan["texts"])

    def _threshold_that_keeps(self, name: str, seed: int, calls: int) -> float:
        """The threshold in nats at which a rule keeps so many calls of a seed; more only where several save exactly that."""
        reductions = (RULES[name].reduction(call) for call in self.calls if call["seed"] == seed)
        largest = sorted((saved for saved in reductions if saved is not None), reverse=True)[:calls]
        return largest[-1] if largest else math.inf

    def rule_less(self, name: str, other: str, figure: str, *, as_many_as: str = COMPARED_WITH) -> Estimate:
        """A share of one rule, by its name in `SHARES`, less that of another, where both keep as many calls as a third."""
        first, second = (self.rule(rule, as_many_as).share_of(figure) for rule in (name, other))
        return share(first, second)


Keeps = Callable[[Line, Tool, str], bool]
"""Whether a call is kept with the result of a prefix: its own, or that of another text's call."""
WITHOUT_A_MODEL: Mapping[str, Keeps] = {
    "any_call": lambda call, tool, prefix: True,
    "foretold": lambda call, tool, prefix: bool(call["foretells"]),
}
"""Rules that ask no model; what they would keep with another result is not stored."""
KEEPS: Mapping[str, Keeps] = {**WITHOUT_A_MODEL, **{name: rule.keeps for name, rule in RULES.items()}}


@dataclass(frozen=True)
class JudgedCall:
    """A call, and what a keep rule makes of it."""

    seed: int
    text: int
    is_kept: bool
    is_kept_by_chance: bool
    """Whether it would be kept with the result of another text's call."""
    follows: bool
    """Whether the text goes on with its result."""
    has_other_sign: bool
    """Whether the text goes on with minus its result."""
    is_right: bool
    """Whether its result holds the answer of its sentence."""

    @classmethod
    def of(cls, call: Line, keeps: Keeps, tool: Tool) -> "JudgedCall":
        """A call under a rule."""
        return cls(
            seed=call["seed"],
            text=call["text"],
            is_kept=keeps(call, tool, "with_result"),
            is_kept_by_chance=keeps(call, tool, "with_placebo"),
            follows=call["follows"] == "equal",
            has_other_sign=call["follows"] == "other_sign",
            is_right=bool(call["right"]),
        )


SHARES: Mapping[str, tuple[Callable[[JudgedCall], bool], Callable[[JudgedCall], bool]]] = {
    "kept": (lambda call: call.is_kept, lambda call: True),
    "precision": (lambda call: call.is_kept and call.follows, lambda call: call.is_kept),
    "recall": (lambda call: call.is_kept and call.follows, lambda call: call.follows),
    "other_sign": (lambda call: call.is_kept and call.has_other_sign, lambda call: call.is_kept),
    "right": (lambda call: call.is_kept and call.is_right, lambda call: call.is_kept),
    "by_chance": (lambda call: call.is_kept and call.is_kept_by_chance, lambda call: call.is_kept),
}
"""By name, which calls have something, of which:

    kept                of all calls those that are kept
    precision           of the kept calls those with whose result the text goes on
    recall              of the calls with whose result the text goes on those that are kept
    other_sign          of the kept calls those whose result is minus the number that the text goes on with
    right               of the kept calls those whose result holds the answer of their sentence
    by_chance           of the kept calls those that the rule would keep with another text's result, too
"""


class RuleFigures:
    """What a keep rule keeps, over seeds."""

    def __init__(self, calls: Sequence[JudgedCall], seeds: Sequence[int], texts: int) -> None:
        self.calls = calls
        self._seeds = seeds
        self._texts = texts

    @property
    def kept(self) -> Interval:
        """Calls a seed."""
        return student([float(of_seed.sum()) for of_seed in self._counts(lambda call: call.is_kept)])

    def total(self, name: str) -> int:
        """In all seeds together, how many calls the share of this name counts."""
        has, _ = SHARES[name]
        return sum(has(call) for call in self.calls)

    def share(self, name: str) -> Estimate:
        """A share of `SHARES`."""
        return share(self.share_of(name)).within(0.0, 1.0)

    def share_of(self, name: str) -> Share:
        """The counts of a share of `SHARES`."""
        has, counts = SHARES[name]
        return Share(self._counts(has), self._counts(counts))

    def _counts(self, has: Callable[[JudgedCall], bool]) -> "tuple[Counts, ...]":
        """Of each seed, by text, how many calls have something."""
        import numpy as np

        by_seed = {seed: np.zeros(self._texts, np.float32) for seed in self._seeds}
        for call in self.calls:
            by_seed[call.seed][call.text] += has(call)
        return tuple(by_seed.values())


def _keeps_from(rule: Rule, thresholds: Mapping[int, float]) -> Keeps:
    """A rule with a threshold for each seed."""

    def keeps(call: Line, tool: Tool, prefix: str) -> bool:
        reduction = rule.reduction(call, prefix)
        return reduction is not None and reduction >= thresholds[call["seed"]]

    return keeps


def has_minus_the_answer(line: Line) -> bool:
    """Whether a call in what the model wrote gave minus the answer."""
    return f"{ARROW} -{line['answer']}{CALL_END}" in line["written"]


def has_right_call(line: Line) -> bool:
    """Whether a call in what the model wrote gave the answer."""
    return f"{ARROW} {line['answer']}{CALL_END}" in line["written"]


def _nats(line: Line, *, with_calls: bool) -> float:
    called = line["nats_with_call"]
    return float(called if with_calls and called is not None else line["nats"])


def is_called(line: Line) -> bool:
    """Whether the model called the tool behind the prompt; the Calendar's call has an empty input."""
    return line["called"] is not None


def has_read_call(line: Line) -> bool:
    """Whether the model made a call while it read the sentence."""
    return bool(line["read_call"])


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
