"""What the seeds of a study say together: the tables of docs/evidence.md, computed from the raw answers in `answers/`.

The page is `evidence.md.jinja`, in which each table and each number of a sentence is named by study and arm;
`python -m studies evidence` fills it. So that nothing on the page was typed: whoever doubts a number computes it.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.answers import Line, read_answers
from studies.arms import RULES
from studies.measuring import BEFORE
from studies.plan import TOOLS
from studies.statistics import Difference, Interval, paired_difference, student
from toolformer_ops.errors import UsageError
from toolformer_ops.tools.registry import get_tool

TEMPLATE = Path(__file__).with_name("evidence.md.jinja")
COMPARED_WITH = "paper"
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

    def answers(self, arm: str, seed: int, kind: str = "") -> list[Line]:
        """The answers of an arm in a seed, of a kind of sentences if it is named."""
        return [line for line in self._answers[arm][seed] if not kind or line["kind"] == kind]

    def rights(self, arm: str, seed: int, *, new_templates: bool = False) -> list[float]:
        """By sentence that has an answer, whether it is right: 1 or 0."""
        answers = [line for line in self.answers(arm, seed) if line["right"] is not None]
        return [float(line["right"]) for line in answers if line["held_out"] or not new_templates]

    def right(self, arm: str, *, new_templates: bool = False) -> Interval:
        """The share of right answers, over seeds."""
        shares = []
        for seed in self.seeds(arm):
            rights = self.rights(arm, seed, new_templates=new_templates)
            if rights:
                shares.append(_mean(rights))
        return student(shares or [math.nan]).within(0.0, 1.0)

    def right_less(self, arm: str, other: str) -> Difference:
        """The share of right answers of one arm less that of another, over the seeds that have both."""
        seeds = sorted({*self.seeds(arm)} & {*self.seeds(other)})
        return paired_difference(
            [self.rights(arm, seed) for seed in seeds], [self.rights(other, seed) for seed in seeds]
        )

    def loss(self, arm: str, *, with_calls: bool = False, kind: str = "") -> Interval:
        """The loss of fresh sentences, nats a token, over seeds; with the calls that the model makes as it reads, or without."""
        losses = []
        for seed in self.seeds(arm):
            answers = self.answers(arm, seed, kind)
            nats = math.fsum(_nats(line, with_calls=with_calls) for line in answers)
            losses.append(nats / sum(line["tokens"] for line in answers))
        return student(losses)

    def saved_by_calls(self, arm: str, kind: str = "") -> Difference:
        """By how many nats a text its calls lower the loss of a fresh sentence, those without a call included."""
        without, with_calls = [], []
        for seed in self.seeds(arm):
            answers = self.answers(arm, seed, kind)
            without.append([_nats(line, with_calls=False) for line in answers])
            with_calls.append([_nats(line, with_calls=True) for line in answers])
        return paired_difference(without, with_calls)

    def loss_less(self, arm: str, other: str, *, with_calls: bool) -> Difference:
        """Nats a text of one arm, with its calls or without, less those of another without; over seeds that have both."""
        seeds = sorted({*self.seeds(arm)} & {*self.seeds(other)})
        first = [[_nats(line, with_calls=with_calls) for line in self.answers(arm, seed)] for seed in seeds]
        second = [[_nats(line, with_calls=False) for line in self.answers(other, seed)] for seed in seeds]
        return paired_difference(first, second)

    def share(self, arm: str, name: str) -> float:
        """The share of sentences that have something: `called`, or `read_call`."""
        return _mean(bool(line[name]) for seed in self.seeds(arm) for line in self.answers(arm, seed))

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

    def rule(self, name: str) -> "RuleFigures":
        """What a keep rule of `arms.RULES` keeps of the calls, over seeds."""
        rule, tool = RULES[name], get_tool(TOOLS[self.plan["study"]])
        figures = RuleFigures()
        for seed in sorted(self.seed_lines):
            calls = [call for call in self.calls if call["seed"] == seed]
            kept = [call for call in calls if rule.keeps(call, tool)]
            chance = [call for call in kept if rule.keeps(call, tool, "with_placebo")]
            figures.add(calls, kept, chance)
        return figures


class RuleFigures:
    """What a keep rule keeps, by seed."""

    def __init__(self) -> None:
        self._kept: list[float] = []
        self._precision: list[float] = []
        self._recall: list[float] = []
        self._right: list[float] = []
        self._by_chance: list[float] = []

    def add(self, calls: Sequence[Line], kept: Sequence[Line], by_chance: Sequence[Line]) -> None:
        """A seed: its calls, those that are kept, and of these those that would be kept with another's result, too."""
        self._kept.append(len(kept))
        following = sum(call["follows"] == "equal" for call in calls)
        if following:
            self._recall.append(sum(call["follows"] == "equal" for call in kept) / following)
        if kept:
            self._precision.append(sum(call["follows"] == "equal" for call in kept) / len(kept))
            self._right.append(sum(call["right"] for call in kept) / len(kept))
            self._by_chance.append(len(by_chance) / len(kept))

    @property
    def kept(self) -> Interval:
        """Calls a seed."""
        return student(self._kept)

    @property
    def precision(self) -> Interval:
        """The share of kept calls with whose result the text goes on."""
        return student(self._precision or [math.nan]).within(0.0, 1.0)

    @property
    def recall(self) -> Interval:
        """The share that is kept of all calls with whose result the text goes on."""
        return student(self._recall or [math.nan]).within(0.0, 1.0)

    @property
    def right(self) -> Interval:
        """The share of kept calls whose result holds the answer of their sentence."""
        return student(self._right or [math.nan]).within(0.0, 1.0)

    @property
    def by_chance(self) -> Interval:
        """The share of kept calls that the rule would keep with the result of another text's call, too."""
        return student(self._by_chance or [math.nan]).within(0.0, 1.0)


def _nats(line: Line, *, with_calls: bool) -> float:
    called = line["nats_with_call"]
    return float(called if with_calls and called is not None else line["nats"])


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    head: str
    cell: Callable[[str], str]
    """By arm or rule, what is written."""


def arms_table(study: StudyAnswers) -> str:
    """By arm: right answers with Student's interval, and their difference from the paper's arm with both intervals."""

    def less(arm: str, interval: Callable[[Difference], Interval]) -> str:
        if arm in (BEFORE, COMPARED_WITH) or COMPARED_WITH not in study.arms:
            return ""
        return _signed(interval(study.right_less(arm, COMPARED_WITH)))

    columns = [
        Column("trained on", str),
        Column("seeds", lambda arm: str(len(study.seeds(arm)))),
        Column("right (95 %)", lambda arm: str(study.right(arm))),
        Column("less `paper` (Student)", lambda arm: less(arm, lambda found: found.student)),
        Column("(bootstrap)", lambda arm: less(arm, lambda found: found.bootstrap).partition(" ")[2]),
        Column("calls", lambda arm: f"{study.share(arm, 'called'):.2f}"),
        *(
            Column(kind, functools.partial(lambda arm, kind: "{} of {}".format(*study.right_of_kind(arm, kind)), kind=kind))
            for kind in (study.kinds() if len(study.kinds()) > 1 else [])
        ),
        Column("tokens read", lambda arm: f"{study.arm_mean(arm, 'tokens_seen'):,.0f}"),
        Column("perplexity of plain text", lambda arm: f"{study.arm_mean(arm, 'perplexity'):.2f}"),
    ]  # fmt: skip
    return _table(columns, study.arms)


def reading_table(study: StudyAnswers) -> str:
    """By arm: the loss of fresh sentences without calls and with those that the model makes as it reads."""

    def calling(arm: str, cell: Callable[[str], str]) -> str:
        return cell(arm) if study.share(arm, "read_call") else ""

    columns = [
        Column("trained on", str),
        Column("nats a token, no calls", lambda arm: f"{study.loss(arm).mean:.4f}"),
        Column("with calls", lambda arm: calling(arm, lambda arm: f"{study.loss(arm, with_calls=True).mean:.4f}")),
        Column("texts with a call", lambda arm: calling(arm, lambda arm: f"{study.share(arm, 'read_call'):.2f}")),
        Column(
            "nats that calls save a text (Student)",
            lambda arm: calling(arm, lambda arm: _signed(study.saved_by_calls(arm).student)),
        ),
        Column(
            "(bootstrap)",
            lambda arm: calling(arm, lambda arm: _signed(study.saved_by_calls(arm).bootstrap).partition(" ")[2]),
        ),
        Column(
            "with calls, less `before` (Student)",
            lambda arm: "" if arm == BEFORE else _signed(study.loss_less(arm, BEFORE, with_calls=True).student),
        ),
    ]  # fmt: skip
    return _table(columns, study.arms)


def rules_table(study: StudyAnswers) -> str:
    """By keep rule: calls a seed, and how many of them are worth something, with Student's intervals over seeds."""
    figures = {name: study.rule(name) for name, rule in RULES.items() if not rule.in_place}
    columns = [
        Column("rule", str),
        Column("calls a seed", lambda rule: f"{figures[rule].kept.mean:.1f}"),
        Column("the text goes on with the result", lambda rule: str(figures[rule].precision)),
        Column("of all such calls kept", lambda rule: str(figures[rule].recall)),
        Column("the answer is in the result", lambda rule: str(figures[rule].right)),
        Column("kept with another's result, too", lambda rule: str(figures[rule].by_chance)),
    ]
    return _table(columns, figures)


TABLES: Mapping[str, Callable[[StudyAnswers], str]] = {
    "arms": arms_table,
    "reading": reading_table,
    "rules": rules_table,
}
"""By name, what makes a table of a study's answers."""


def tables(answers: Path, calls: Path) -> str:
    """All tables of a study, for the terminal."""
    study = StudyAnswers.read(answers, calls)
    plan = study.plan
    head = f"{plan['study']}: seeds {', '.join(map(str, plan['seeds']))}, model {plan['model']}"
    return "\n\n".join([head, *(make(study) for make in TABLES.values())])


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
        return StudyAnswers.read(answers / f"{name}.jsonl.gz", answers / f"{name}-calls.jsonl.gz")

    def has(name: str) -> bool:
        return (answers / f"{name}.jsonl.gz").exists()

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701 - no HTML
    environment.filters["signed"] = _signed
    text = environment.from_string(template.read_text(encoding="utf-8")).render(
        study=study, has=has, table=lambda name, kind: TABLES[kind](study(name))
    )
    return MADE_BY + text


def _signed(interval: Interval) -> str:
    return f"{interval.mean:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"


def _table(columns: Sequence[Column], names: Iterable[Any]) -> str:
    rows = [[column.head for column in columns], ["---"] * len(columns)]
    rows += [[column.cell(name) for column in columns] for name in names]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
