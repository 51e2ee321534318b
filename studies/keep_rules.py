"""Statistics by which calls may be kept, compared on the labelled calls and the sampled calls of raw answers.

A statistic is a function f of the log probabilities of the first tokens behind a call under one condition. A call gains

    f(with its result) - max(f(no call), f(the call without result)[, f(with a placebo)])

and is kept if it gains at least a threshold. Every f here is larger if a token is likelier, and at most 1 or 0, so that the
conditions without a result bound the gain before a result is known. Tokens that a text lacks are left out of the mean; in the
paper's statistic they count as 0 nats.

    KINDS          what f is
    CANDIDATES     the statistics that are compared
    Comparison     calls of which some are right, and whose statistics rank them
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from studies.answers import Line, read_answers
from studies.labelled_calls import PLACE, RIGHT, SETS
from studies.labelled_scores import LABELLED, Half, digest_of, half_of
from studies.page_tables import Column, table_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Flags = NDArray[np.bool_]

STORED_TOKENS = 10
MADE_SUMS = "made sums, sampled"
CONTENT = "content"
BY_CHANCE = "by chance"
PRECISION = 0.7
"""Of the kept real calls of the half `choose`, the share that is right at a candidate's threshold."""
LEAST_LOGARITHM = math.log(0.01)
"""At which clipped nats are cut: an unlikely token says no more than that it is unlikely."""
KINDS: "Mapping[str, tuple[Callable[[Numbers], Numbers], Callable[[Numbers], Numbers]]]" = {
    "nats": (lambda log_p: log_p, lambda mean: mean),
    "clipped nats": (lambda log_p: np.maximum(log_p, LEAST_LOGARITHM), lambda mean: mean),
    "mean probability": (np.exp, lambda mean: mean),
    "geometric mean probability": (lambda log_p: log_p, np.exp),
    "clipped geometric mean probability": (lambda log_p: np.maximum(log_p, LEAST_LOGARITHM), np.exp),
}
"""By name, what is done with a token's log probability before the weighted mean over tokens, and what with the mean."""


@dataclass(frozen=True)
class Statistic:
    """What a call gains by its result."""

    kind: str
    """One of `KINDS`."""
    tokens: int
    falling: bool
    """Whether weights fall by equal steps, as the paper's do; otherwise they are equal."""
    placebo: bool
    """Whether a placebo is one of the conditions that a result is compared with."""
    lacking_count: bool = False
    """Whether the weights of tokens that the text lacks are kept, as in the paper."""

    def __str__(self) -> str:
        weights = "falling" if self.falling else "equal"
        return f"{self.kind}, {self.tokens} {weights}{', placebo' if self.placebo else ''}"

    def of(self, log_p: "Numbers") -> "Numbers":
        """Return f of each call's log probabilities, (calls, 10), nan where the text lacks a token; nan without any token."""
        transformed, finished = KINDS[self.kind]
        steps = np.arange(self.tokens, 0, -1) if self.falling else np.ones(self.tokens)
        values = transformed(log_p[:, : self.tokens])
        weights = np.where(np.isnan(values), 0.0, steps)  # (calls, tokens)
        total = steps.sum() if self.lacking_count else weights.sum(axis=1)
        weighted = (weights * np.nan_to_num(values)).sum(axis=1)
        means = np.full(len(log_p), np.nan)
        np.divide(weighted, total, out=means, where=weights.any(axis=1))
        return finished(means)

    def gains(self, log_p: "Mapping[str, Numbers]") -> "Numbers":
        """What each call gains by its result, (calls,)."""
        conditions = ["without_call", "without_result"]
        if self.placebo:
            conditions.append("with_placebo")
        others = [self.of(log_p[condition]) for condition in conditions]
        gains: Numbers = self.of(log_p["with_result"]) - np.fmax.reduce(others)
        return gains


PAPER = Statistic("nats", 5, falling=True, placebo=False, lacking_count=True)
PAPER_WITH_PLACEBO = Statistic("nats", 5, falling=True, placebo=True)
CANDIDATES = (
    PAPER,
    *(
        Statistic(kind, tokens, falling, placebo)
        for kind in KINDS
        for tokens in (3, 5, 7, 10)
        for falling in (False, True)
        for placebo in (False, True)
    ),
)


@dataclass(frozen=True)
class KeepRule:
    """One threshold for the calls of all tools."""

    statistic: Statistic
    threshold: float

    def __str__(self) -> str:
        return f"{self.statistic}: at least {self.threshold:.3g}"


PAPERS_RULE = KeepRule(PAPER, 0.5)
"""With the Calculator's threshold, in nats."""
CHOSEN = KeepRule(Statistic("clipped nats", 7, falling=False, placebo=True), 0.22)
"""Chosen on the half `choose` before the other was looked at (docs/log.md): the next seven tokens are 1.25 times as likely."""
SHOWN_RULES = (
    PAPERS_RULE,
    KeepRule(PAPER_WITH_PLACEBO, 0.35),
    CHOSEN,
    KeepRule(Statistic("nats", 7, falling=False, placebo=True), 0.25),
    KeepRule(Statistic("clipped nats", 5, falling=False, placebo=True), 0.3),
    KeepRule(Statistic("clipped nats", 10, falling=True, placebo=True), 0.22),
    KeepRule(Statistic("geometric mean probability", 7, falling=False, placebo=True), 0.03),
    KeepRule(Statistic("mean probability", 10, falling=False, placebo=True), 0.05),
)
"""Of docs/evidence.md; their thresholds are of the half `choose`, too."""


@dataclass(frozen=True)
class Comparison:
    """Calls that statistics rank, of which some are right."""

    name: str
    log_p: "Mapping[str, Numbers]"
    """By condition, (calls, 10)."""
    is_right: "Flags"

    @classmethod
    def of(cls, name: str, lines: Sequence[Line], is_right: Iterable[bool]) -> "Comparison":
        """The calls of lines of raw answers."""
        conditions = sorted({condition for line in lines for condition in line["log_p"]})
        log_p = {
            condition: _array([line["log_p"].get(condition) for line in lines]) for condition in conditions
        }
        return cls(name, log_p, np.array(list(is_right), dtype=bool))

    @property
    def is_real(self) -> bool:
        """Whether its texts were not made for a tool."""
        return self.name != MADE_SUMS

    @property
    def chance(self) -> float:
        """The share of right calls."""
        return float(self.is_right.mean())

    def average_precision(self, statistic: Statistic) -> float:
        """The mean, over right calls, of the share of right ones among all calls that gain at least as much."""
        return average_precision(statistic.gains(self.log_p), self.is_right)

    def are_kept(self, rule: KeepRule) -> "Flags":
        """Of each call, whether a rule keeps it, (calls,)."""
        kept: Flags = rule.statistic.gains(self.log_p) >= rule.threshold
        return kept

    def kept(self, rule: KeepRule) -> tuple[int, int]:
        """How many calls a rule keeps, and how many of these are right."""
        is_kept = self.are_kept(rule)
        return int(is_kept.sum()), int((is_kept & self.is_right).sum())


@dataclass(frozen=True)
class SampledCalls:
    """Calls that a model wrote for the texts of a study, stored by `answers.py`."""

    study: str
    title: str
    follows: tuple[str, ...]
    """What `result_follows` says of a right call."""


SAMPLED = (
    SampledCalls("calculator", MADE_SUMS, ("equal",)),
    SampledCalls("gsm8k", "word problems, sampled", ("equal",)),
    SampledCalls("posts", "posts, each place", ("equal", "nearly")),
)


def comparisons(answers: Path, half: Half) -> list[Comparison]:
    """One of each study with sampled calls, and two of each set of labelled calls, of the texts of a half.

    In `NAME: content` are the right calls, calls of other content at their places, and the right calls with another text's
    result; in `NAME: place` the right calls, and the same calls at other places.
    """
    compared: list[Comparison] = []
    for sampled in SAMPLED:
        lines = [
            line
            for line in read_answers(answers / f"{sampled.study}-calls.jsonl.bz2")
            if line["log_p"]["with_placebo"]
        ]
        lines = [line for line in lines if half_of(digest_of(f"{line['seed']}|{line['text']}")) == half]
        compared.append(
            Comparison.of(sampled.title, lines, (line["follows"] in sampled.follows for line in lines))
        )
    for name in SETS:
        lines = _labelled_lines(answers, name, half)
        compared += labelled_comparisons(name, lines) if lines else []
    return compared


def label_comparisons(answers: Path, half: Half) -> list[Comparison]:
    """Of each set of labelled calls, all calls of each label; those with a placebo as their result are `by chance`."""
    by_label: list[Comparison] = []
    for name in SETS:
        lines = _labelled_lines(answers, name, half)
        lines += [
            {**with_placebo_as_result(line), "label": BY_CHANCE} for line in lines if line["label"] == RIGHT
        ]
        for label in dict.fromkeys(line["label"] for line in lines):
            of_label = [line for line in lines if line["label"] == label]
            by_label.append(Comparison.of(f"{name}: {label}", of_label, [label == RIGHT] * len(of_label)))
    return by_label


def _labelled_lines(answers: Path, name: str, half: Half) -> list[Line]:
    """The lines of a half of a set; none if the set is not stored."""
    file = answers / LABELLED.format(name=name)
    return [line for line in read_answers(file) if half_of(line["text"]) == half] if file.exists() else []


def labelled_comparisons(name: str, lines: Sequence[Line]) -> list[Comparison]:
    """Content and place of the lines of a set."""
    rights = [line for line in lines if line["label"] == RIGHT]
    moved = [line for line in lines if line["label"].startswith(PLACE)]
    others = [line for line in lines if line["label"] != RIGHT and not line["label"].startswith(PLACE)]
    others += map(with_placebo_as_result, rights)
    compared = {CONTENT: others, PLACE: moved}
    return [
        Comparison.of(f"{name}: {kind}", [*rights, *wrong], [True] * len(rights) + [False] * len(wrong))
        for kind, wrong in compared.items()
    ]


def with_placebo_as_result(line: Line) -> Line:
    """A right call with its placebo as its result, which the second placebo is compared with."""
    log_p = line["log_p"]
    by_chance = {"with_result": log_p["with_placebo"], "with_placebo": log_p["with_other_placebo"]}
    return {**line, "log_p": {**log_p, **by_chance}}


def least_threshold(compared: Sequence[Comparison], statistic: Statistic, precision: float) -> float:
    """The least gain above 0 down to which a share of all kept calls together is right; nan if there is none."""
    gains = np.concatenate([statistic.gains(comparison.log_p) for comparison in compared])
    is_right = np.concatenate([comparison.is_right for comparison in compared])
    order, precisions = _ranked(gains, is_right)
    reaching = np.flatnonzero((precisions >= precision) & (gains[order] > 0))
    return float(gains[order][reaching[-1]]) if len(reaching) else math.nan


def pooled(compared: Sequence[Comparison], rule: KeepRule) -> tuple[float, float]:
    """The precision and recall of a rule on all calls together; the precision is nan if nothing is kept."""
    counts = [comparison.kept(rule) for comparison in compared]
    kept, right = (sum(column) for column in zip(*counts, strict=True))
    rights = sum(int(comparison.is_right.sum()) for comparison in compared)
    return right / kept if kept else math.nan, right / rights


def average_precision(gains: "Numbers", is_right: "Flags") -> float:
    """Average precision; calls of equal gain are ranked together."""
    order, precisions = _ranked(gains, is_right)
    return float(precisions[is_right[order]].mean())


def _ranked(gains: "Numbers", is_right: "Flags") -> "tuple[NDArray[np.int64], Numbers]":
    """The calls by falling gain, and of each the share of right ones among those that gain at least as much."""
    falls = -np.nan_to_num(gains, nan=-np.inf)
    order = np.argsort(falls, kind="stable")
    rights = np.cumsum(is_right[order])
    last_of_equals = np.searchsorted(falls[order], falls[order], side="right") - 1
    return order, rights[last_of_equals] / (last_of_equals + 1)


def _array(rows: Sequence[Sequence[float] | None]) -> "Numbers":
    """(calls, 10), nan where a token or a whole condition lacks."""
    numbers = np.full((len(rows), STORED_TOKENS), np.nan)
    for index, row in enumerate(rows):
        numbers[index, : len(row or ())] = row or ()
    return numbers


# --- Tables ---


@dataclass(frozen=True)
class LabelledAnswers:
    """A half of the raw answers."""

    half: Half
    compared: Sequence[Comparison]
    labels: Sequence[Comparison]
    """Of each set of labelled calls one comparison a label."""

    @classmethod
    def read(cls, answers: Path, half: Half) -> "LabelledAnswers":
        """Those of a folder."""
        return cls(half, comparisons(answers, half), label_comparisons(answers, half))

    @property
    def real(self) -> list[Comparison]:
        """The comparisons whose calls are counted together: on real texts, with wrong calls of other content or sampled ones."""
        return real_calls(self.compared)

    @property
    def contents(self) -> list[Comparison]:
        """Those of `real` that no statistic had been tried on before: without the sampled calls."""
        return [item for item in self.real if item.name.endswith(CONTENT)]

    @property
    def rights(self) -> int:
        """How many labelled right calls there are."""
        return sum(len(item.is_right) for item in self.labels if item.name.endswith(f": {RIGHT}"))

    def precision(self, rule: KeepRule) -> float:
        """Of the real calls that a rule keeps, the share that is right."""
        return pooled(self.real, rule)[0]

    def recall(self, rule: KeepRule) -> float:
        """Of the right real calls, the share that a rule keeps."""
        return pooled(self.real, rule)[1]

    def sampled(self, rule: KeepRule) -> tuple[int, int]:
        """Of the calls that a model wrote for real texts, how many a rule keeps, and how many of these are right."""
        counts = [item.kept(rule) for item in self.real if not item.name.endswith(CONTENT)]
        kept, right = (sum(column) for column in zip(*counts, strict=True))
        return kept, right

    def alone(self, rule: KeepRule, other: KeepRule) -> int:
        """How many right real calls a rule keeps and another rule does not."""
        return sum(
            int((item.are_kept(rule) & ~item.are_kept(other) & item.is_right).sum()) for item in self.real
        )

    def mean_average_precision(self, statistic: Statistic) -> float:
        """The mean over all comparisons."""
        return float(np.mean([item.average_precision(statistic) for item in self.compared]))

    def kept_by_chance(self, rule: KeepRule) -> tuple[int, int]:
        """How many right calls a rule keeps with another text's result, of how many."""
        by_chance = [item for item in self.labels if item.name.endswith(BY_CHANCE)]
        return sum(item.kept(rule)[0] for item in by_chance), sum(len(item.is_right) for item in by_chance)


def real_calls(compared: Iterable[Comparison]) -> list[Comparison]:
    """The comparisons on real texts in which a wrong call is one of other content, or a sampled one."""
    return [item for item in compared if item.is_real and not item.name.endswith(f": {PLACE}")]


def ranking_table(compared: Sequence[Comparison], statistics: Sequence[Statistic]) -> str:
    """By statistic the average precision in each comparison, its mean, and its least difference from the paper's."""
    of_paper = [item.average_precision(PAPER) for item in compared]
    precisions = {"chance": [item.chance for item in compared]}
    for statistic in statistics:
        precisions[str(statistic)] = [item.average_precision(statistic) for item in compared]

    def precision(row: str, index: int) -> str:
        return f"{precisions[row][index]:.3f}"

    columns = [
        Column("statistic", str),
        *(
            Column(item.name, functools.partial(precision, index=index))
            for index, item in enumerate(compared)
        ),
        Column("mean", lambda row: f"{np.mean(precisions[row]):.3f}"),
        Column("least, less the paper's", lambda row: f"{min(np.subtract(precisions[row], of_paper)):+.3f}"),
    ]
    return table_of(columns, precisions)


def threshold_table(compared: Sequence[Comparison], rules: Sequence[KeepRule]) -> str:
    """By rule: calls kept, and those of them that are right; of the real calls the precision and the recall."""

    def cell(rule: KeepRule, comparison: Comparison) -> str:
        return "{}; {}".format(*comparison.kept(rule))

    def of_real(rule: KeepRule, index: int) -> str:
        return f"{pooled(real_calls(compared), rule)[index]:.2f}"

    columns = [
        Column("rule", str),
        *(
            Column(f"{item.name} ({item.is_right.sum()})", functools.partial(cell, comparison=item))
            for item in compared
        ),
        Column("precision, real calls", functools.partial(of_real, index=0)),
        Column("recall", functools.partial(of_real, index=1)),
    ]
    return table_of(columns, rules)


def label_table(labels: Sequence[Comparison], rules: Sequence[KeepRule]) -> str:
    """By set and label: how many calls there are, and how many each rule keeps."""

    def kept(item: Comparison, rule: KeepRule) -> str:
        return str(item.kept(rule)[0])

    columns = [
        Column("set: label", lambda item: item.name),
        Column("calls", lambda item: str(len(item.is_right))),
        *(Column(str(rule), functools.partial(kept, rule=rule)) for rule in rules),
    ]
    return table_of(columns, labels)


def rules_at_precision(choose: LabelledAnswers) -> list[KeepRule]:
    """Of each candidate that reaches it, with the least threshold at which `PRECISION` of the kept real calls are right.

    First the one that keeps most right ones.
    """
    rules = [KeepRule(item, least_threshold(choose.real, item, PRECISION)) for item in CANDIDATES]
    reaching = [rule for rule in rules if not math.isnan(rule.threshold)]
    return sorted(reaching, key=lambda rule: -choose.recall(rule))


def labelled_tables(answers: Path, half: Half) -> str:
    """All tables of a half, for the terminal; thresholds are those of the half `choose`."""
    read = LabelledAnswers.read(answers, half)
    rules = [*SHOWN_RULES, *rules_at_precision(LabelledAnswers.read(answers, "choose"))]
    parts = [
        f"half `{half}`: average precision",
        ranking_table(read.compared, CANDIDATES),
        "one threshold for all tools: kept; right",
        threshold_table(read.compared, rules),
        "kept calls by label",
        label_table(read.labels, [PAPERS_RULE, CHOSEN]),
    ]
    return "\n\n".join(parts)
