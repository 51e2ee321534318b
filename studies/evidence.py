"""What the seeds of a study say together: the tables of docs/evidence.md, computed from the raw answers in `answers/`.

The page is `evidence.md.jinja`, in which each table and each number of a sentence is named by study and arm;
`python -m studies evidence` fills it, so that whoever doubts a number computes it. Typed are the tables of an older
plan, and how long things took.
"""

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from studies.answers import Line, read_answers
from studies.arms import RULES, Rule
from studies.hours import MEASURED_PARAMETERS, MEASURED_PROCESSES, study_hours
from studies.judging import CALLS_AN_ARM, READINGS, JudgedCalls
from studies.keep_rules import (
    CANDIDATES,
    CHOSEN,
    PAPERS_RULE,
    SHOWN_RULES,
    KeepRule,
    LabelledAnswers,
    pooled,
    threshold_table,
)
from studies.measuring import BEFORE
from studies.page_tables import Column, table_of
from studies.plan import TOOLS, StudyPlan
from studies.statistics import Estimate, Interval, Share, paired_difference, share, student
from toolformer_ops.call_syntax import ARROW, CALL_END
from toolformer_ops.errors import UsageError
from toolformer_ops.run_page.judgements import VERDICTS, Rate, cohens_kappa
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from studies.statistics import Counts

TEMPLATE = Path(__file__).with_name("evidence.md.jinja")
COMPARED_WITH = "paper"
LEARNING_RATES = "learning_rates.jsonl"
"""Of raw answers: trainings at several rates on a development seed, a line each."""
MADE_BY = (
    "<!-- Made by `python -m studies evidence` from studies/evidence.md.jinja and studies/answers. -->\n"
)


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

    def share_in_common(self, arm: str) -> float:
        """The share of these that have the very call that they have in the first arm, at the same place."""
        in_common: int = sum(
            self.seed_lines[seed]["texts_of_the_first_arm"].get(arm, 0) for seed in self.seeds(arm)
        )
        return in_common / self.texts(arm)

    def answers(self, arm: str, seed: int, kind: str = "") -> list[Line]:
        """The answers of an arm in a seed, of a kind of sentences if it is named."""
        return [line for line in self._answers[arm][seed] if not kind or line["kind"] == kind]

    def rights(
        self, arm: str, seed: int, *, held_out: bool | None = None, reads_sign: bool = False
    ) -> list[float]:
        """By sentence that has an answer, whether it is right: 1 or 0.

        `held_out` are the sentences of held-out templates alone, or of the others alone. `reads_sign`: an answer
        is not right where a call gave minus the answer.
        """
        rights = []
        for line in self.answers(arm, seed):
            if line["right"] is not None and held_out in (None, line["held_out"]):
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

    def loss(self, arm: str, *, with_calls: bool = False, kind: str = "") -> Interval:
        """The loss of fresh sentences, nats a token, over seeds; with the calls that the model makes as it reads, or without."""
        losses = []
        for seed in self.seeds(arm):
            answers = self.answers(arm, seed, kind)
            nats = math.fsum(_nats(line, with_calls=with_calls) for line in answers)
            losses.append(nats / sum(line["tokens"] for line in answers))
        return student(losses)

    def saved_by_calls(self, arm: str, kind: str = "") -> Estimate:
        """By how many nats a text its calls lower the loss of a fresh sentence, those without a call included."""
        without, with_calls = [], []
        for seed in self.seeds(arm):
            answers = self.answers(arm, seed, kind)
            without.append([_nats(line, with_calls=False) for line in answers])
            with_calls.append([_nats(line, with_calls=True) for line in answers])
        return paired_difference(without, with_calls)

    def loss_less(self, arm: str, other: str, *, with_calls: bool) -> Estimate:
        """Nats a text of one arm, with its calls or without, less those of another without; over seeds that have both."""
        seeds = sorted({*self.seeds(arm)} & {*self.seeds(other)})
        first = [[_nats(line, with_calls=with_calls) for line in self.answers(arm, seed)] for seed in seeds]
        second = [[_nats(line, with_calls=False) for line in self.answers(other, seed)] for seed in seeds]
        return paired_difference(first, second)

    def share(self, arm: str, has: Callable[[Line], bool]) -> float:
        """The share of an arm's sentences that have something."""
        return _mean(has(line) for seed in self.seeds(arm) for line in self.answers(arm, seed))

    def kinds(self) -> list[str]:
        """The kinds of sentences that have an answer."""
        kinds = set()
        for arm in self.arms[:1]:
            for seed in self.seeds(arm):
                kinds |= {line["kind"] for line in self.answers(arm, seed) if line["right"] is not None}
        return sorted(kinds)

    def right_of_kind(self, arm: str, kind: str) -> tuple[int, int]:
        """How many sentences of a kind are right, of how many, in all seeds."""
        answers = [line for seed in self.seeds(arm) for line in self.answers(arm, seed, kind)]
        return sum(bool(line["right"]) for line in answers), len(answers)

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
        tool = get_tool(TOOLS[self.plan["study"]])
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
    foretells: bool
    """Whether its result holds the next number or name."""

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
            foretells=bool(call["foretells"]),
        )


SHARES: Mapping[str, tuple[Callable[[JudgedCall], bool], Callable[[JudgedCall], bool]]] = {
    "kept": (lambda call: call.is_kept, lambda call: True),
    "precision": (lambda call: call.is_kept and call.follows, lambda call: call.is_kept),
    "recall": (lambda call: call.is_kept and call.follows, lambda call: call.follows),
    "other_sign": (lambda call: call.is_kept and call.has_other_sign, lambda call: call.is_kept),
    "right": (lambda call: call.is_kept and call.is_right, lambda call: call.is_kept),
    "foretold": (lambda call: call.is_kept and call.foretells, lambda call: call.is_kept),
    "by_chance": (lambda call: call.is_kept and call.is_kept_by_chance, lambda call: call.is_kept),
}
"""By name, which calls have something, of which:

    kept                of all calls those that are kept
    precision           of the kept calls those with whose result the text goes on
    recall              of the calls with whose result the text goes on those that are kept
    other_sign          of the kept calls those whose result is minus the number that the text goes on with
    right               of the kept calls those whose result holds the answer of their sentence
    foretold            of the kept calls those whose result holds the next number or name of the text
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


def arms_table(study: StudyAnswers) -> str:
    """By arm: right answers with Student's interval, and with their sign their difference from the paper's arm."""

    def less(arm: str, interval: Callable[[Estimate], Interval]) -> str:
        if arm in (BEFORE, COMPARED_WITH) or COMPARED_WITH not in study.arms:
            return ""
        return _signed(interval(study.right_less(arm, COMPARED_WITH)))

    columns = [
        Column("trained on", str),
        Column("seeds", lambda arm: str(len(study.seeds(arm)))),
        Column("texts a seed", lambda arm: "" if arm == BEFORE else f"{study.texts(arm) / len(study.seeds(arm)):.0f}"),
        Column("right number", lambda arm: f"{study.right(arm).mean:.3f}"),
        Column("in templates of the training", lambda arm: f"{study.right(arm, held_out=False).mean:.3f}"),
        Column("in held-out templates", lambda arm: f"{study.right(arm, held_out=True).mean:.3f}"),
        Column("right, no call gave minus it (95 %)", lambda arm: str(study.right(arm, reads_sign=True))),
        Column("in templates of the training", lambda arm: f"{study.right(arm, held_out=False, reads_sign=True).mean:.3f}"),
        Column("in held-out templates", lambda arm: f"{study.right(arm, held_out=True, reads_sign=True).mean:.3f}"),
        Column("less `paper`, sign read (Student)", lambda arm: less(arm, lambda found: found.student)),
        Column("(bootstrap)", lambda arm: less(arm, lambda found: found.bootstrap).partition(" ")[2]),
        Column("calls", lambda arm: f"{study.share(arm, is_called):.2f}"),
        *(
            Column(kind, functools.partial(lambda arm, kind: "{} of {}".format(*study.right_of_kind(arm, kind)), kind=kind))
            for kind in (study.kinds() if len(study.kinds()) > 1 else [])
        ),
        Column("perplexity of plain text", lambda arm: f"{study.arm_mean(arm, 'perplexity'):.2f}"),
    ]  # fmt: skip
    return table_of(columns, study.arms)


def reading_table(study: StudyAnswers) -> str:
    """By arm: the loss of fresh sentences without calls and with those that the model makes as it reads."""

    def calling(arm: str, cell: Callable[[str], str]) -> str:
        return cell(arm) if study.share(arm, has_read_call) else ""

    columns = [
        Column("trained on", str),
        Column("nats a token, no calls", lambda arm: f"{study.loss(arm).mean:.4f}"),
        Column("with calls", lambda arm: calling(arm, lambda arm: f"{study.loss(arm, with_calls=True).mean:.4f}")),
        Column("texts with a call", lambda arm: calling(arm, lambda arm: f"{study.share(arm, has_read_call):.2f}")),
        Column(
            "nats that calls save a text (Student)",
            lambda arm: calling(arm, lambda arm: _signed(study.saved_by_calls(arm).student)),
        ),
        Column(
            "(bootstrap)",
            lambda arm: calling(arm, lambda arm: _signed(study.saved_by_calls(arm).bootstrap).partition(" ")[2]),
        ),
        Column(
            "nats a text less `before`, with calls if it makes them (Student)",
            lambda arm: "" if arm == BEFORE else _signed(study.loss_less(arm, BEFORE, with_calls=True).student),
        ),
    ]  # fmt: skip
    return table_of(columns, study.arms)


DIFFERENCES: Mapping[str, str] = {
    "any_call": "any call, no loss",
    "foretold": "the next number or name is in the result, not in the text before, no loss",
    "paper": "five tokens, falling weights, the smaller of two losses",
    "one_token": "the first token alone",
    "two_tokens": "two tokens, falling weights",
    "three_tokens": "three tokens, falling weights",
    "five_equal": "five tokens, equal weights",
    "ten": "ten tokens, falling weights",
    "ten_equal": "ten tokens, equal weights",
    "tau_0": "at least 0 nats",
    "tau_0.25": "at least 0.25 nats",
    "tau_0.5": "at least 0.5 nats",
    "tau_1": "at least 1 nat",
    "tau_2": "at least 2 nats",
    "one_loss": "L- is the loss without a call alone",
    "against_placebo": "L- is at most the loss with another text's result, too",
}
"""By rule, in what it differs from the paper's."""


LOWER_THRESHOLDS = ("tau_0", "tau_0.25", "tau_0.5", "tau_1", "tau_2")
"""Rules that keep other numbers of calls than the paper's by their nature."""


def _by_chance(figures: RuleFigures, rule: str) -> str:
    """The share of the kept calls that another's result would keep, too.

    Not of a rule without a loss. A rule with another's result in L- would need a third result to compare that with.
    """
    return "" if rule in WITHOUT_A_MODEL or rule == "against_placebo" else str(figures.share("by_chance"))


def _figures_table(rules: Sequence[str], figures_of: Callable[[str], RuleFigures]) -> str:
    columns = [
        Column("rule", lambda rule: f"`{rule}`: {DIFFERENCES[rule]}"),
        Column("calls a seed", lambda rule: f"{figures_of(rule).kept.mean:.1f}"),
        Column("the text goes on with the result", lambda rule: str(figures_of(rule).share("precision"))),
        Column("of all such calls kept", lambda rule: str(figures_of(rule).share("recall"))),
        Column("the answer is in the result", lambda rule: str(figures_of(rule).share("right"))),
        Column("kept with another's result, too", lambda rule: _by_chance(figures_of(rule), rule)),
    ]
    return table_of(columns, rules)


def rules_table(study: StudyAnswers) -> str:
    """By keep rule that keeps as many calls a seed as the paper's: shares of them with both intervals."""
    rules = [rule for rule in DIFFERENCES if rule not in LOWER_THRESHOLDS]
    return _figures_table(rules, lambda rule: study.rule(rule, COMPARED_WITH))


def thresholds_table(study: StudyAnswers) -> str:
    """By threshold of the paper's rule: calls a seed, and shares of them with both intervals."""
    return _figures_table(LOWER_THRESHOLDS, study.rule)


def counts_table(study: StudyAnswers) -> str:
    """By keep rule: how many calls of all seeds it keeps, and what they are; for studies in which a seed keeps few.

    At its own threshold, and where it keeps in each seed as many as `foretold`.
    """

    def total(rule: str, name: str) -> str:
        return str(study.rule(rule).total(name))

    def as_many(rule: str, name: str) -> str:
        if rule == "any_call":
            return ""
        return str(study.rule(rule, "foretold").total(name))

    columns = [
        Column("rule", lambda rule: f"`{rule}`: {DIFFERENCES[rule]}"),
        Column("calls", lambda rule: total(rule, "kept")),
        Column("the text goes on with the result", lambda rule: total(rule, "precision")),
        Column("calls, as many as `foretold`", lambda rule: as_many(rule, "kept")),
        Column("the text goes on with the result", lambda rule: as_many(rule, "precision")),
        Column("the answer is in the result", lambda rule: as_many(rule, "right")),
        Column(
            "kept with another's result, too",
            lambda rule: (
                "" if rule in WITHOUT_A_MODEL or rule == "against_placebo" else as_many(rule, "by_chance")
            ),
        ),
    ]
    return table_of(columns, [rule for rule in DIFFERENCES if rule not in LOWER_THRESHOLDS])


def _rate(judged: JudgedCalls, arm: str, reading: int) -> Rate:
    counts = Counter(judged.verdicts(arm, reading))
    return Rate(*(counts[verdict] for verdict in VERDICTS))


def useful_shares(judged: JudgedCalls, arm: str) -> str:
    """The shares of an arm's calls that the two readings call useful."""
    return " and ".join(f"{_rate(judged, arm, reading).share:.2f}" for reading in READINGS)


def judged_table(judged: JudgedCalls) -> str:
    """By arm: calls that were read, and the share that each reading calls useful, with Wilson's interval."""
    rate = functools.partial(_rate, judged)

    def useful(arm: str, reading: int) -> str:
        rate_of_arm = rate(arm, reading)
        if rate_of_arm.share is None:
            return ""
        interval = rate_of_arm.interval
        return f"{rate_of_arm.share:.2f} ({interval.low:.2f} to {interval.high:.2f})"

    columns = [
        Column("arm", lambda arm: f"`{arm}`"),
        Column("calls", lambda arm: str(len(judged.verdicts(arm, 1)))),
        Column("useful, first reading", lambda arm: useful(arm, 1)),
        Column("second reading", lambda arm: useful(arm, 2)),
        Column("useless", lambda arm: f"{rate(arm, 1).useless}, {rate(arm, 2).useless}"),
        Column("wrong", lambda arm: f"{rate(arm, 1).wrong}, {rate(arm, 2).wrong}"),
    ]
    return table_of(columns, judged.arms)


TABLES: Mapping[str, Callable[[StudyAnswers], str]] = {
    "arms": arms_table,
    "reading": reading_table,
    "rules": rules_table,
    "thresholds": thresholds_table,
    "counts": counts_table,
}
"""By name, what makes a table of a study's answers."""


def tables(answers: Path, calls: Path) -> str:
    """All tables of a study, for the terminal."""
    study = StudyAnswers.read(answers, calls)
    plan = study.plan
    head = f"{plan['study']}: seeds {', '.join(map(str, plan['seeds']))}, model {plan['model']}"
    of_arms = () if study.arms else ("arms", "reading")
    kinds = {name: make for name, make in TABLES.items() if name not in of_arms}
    return "\n\n".join([head, *(make(study) for make in kinds.values())])


def write_page(page: Path, answers: Path) -> None:
    """Write the page of the evidence."""
    page.write_text(page_of(answers), encoding="utf-8")


def page_of(answers: Path, template: Path = TEMPLATE) -> str:
    """The page of the evidence, its tables and numbers computed from the raw answers of a folder.

    Raises:
        UsageError: the page names a study or an arm that the answers lack.
    """
    from jinja2 import Environment, StrictUndefined

    @functools.cache
    def study(name: str) -> StudyAnswers:
        return StudyAnswers.read(answers / f"{name}.jsonl.bz2", answers / f"{name}-calls.jsonl.bz2")

    @functools.cache
    def judged(name: str) -> JudgedCalls:
        return JudgedCalls.read(answers / f"{name}-judged.jsonl")

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701 - no HTML
    environment.filters["signed"] = _signed
    ten_seeds = [StudyPlan(seed=seed) for seed in range(MEASURED_PROCESSES)]
    environment.globals["hours_of_ten_seeds"] = study_hours(
        ten_seeds, MEASURED_PARAMETERS, MEASURED_PROCESSES
    )
    text = environment.from_string(template.read_text(encoding="utf-8")).render(
        study=study,
        table=lambda name, kind: TABLES[kind](study(name)),
        texts=lambda name: len(study(name).seed_lines) * study(name).plan["texts"],
        calls_an_arm=CALLS_AN_ARM,
        rates=[
            json.loads(line) for line in (answers / LEARNING_RATES).read_text(encoding="utf-8").splitlines()
        ],
        useful=lambda name, arm: useful_shares(judged(name), arm),
        read_calls=lambda name, arm: len(judged(name).verdicts(arm, 1)),
        judged_table=lambda name: judged_table(judged(name)),
        labelled=functools.cache(functools.partial(LabelledAnswers.read, answers)),
        papers_rule=PAPERS_RULE,
        chosen=CHOSEN,
        keep_rule=KeepRule,
        candidates=CANDIDATES,
        shown_rules=SHOWN_RULES,
        threshold_table=threshold_table,
        pooled=pooled,
        kappa=lambda name: cohens_kappa(judged(name).pairs()),
    )
    return MADE_BY + text


def _signed(interval: Interval) -> str:
    return f"{interval.mean:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"
