"""What the row study's raw answers say: a table and bars for docs/evidence.md.

The arm `plain` asks no table, so that its answer to a question is the same whatever the table says.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.answers import Line, read_answers
from studies.measuring import BEFORE
from studies.page_tables import Column, table_of
from studies.rows import ANSWERS, CALLS, PLAIN, Table
from toolformer_ops.evaluation.statistics import wilson_interval

PICTURE = "rows.svg"
ARM_NAMES = {BEFORE: "before training", CALLS: "with calls", PLAIN: "texts alone"}
WIDTH, LABELS, BAR, STEP = 600, 260, 18, 34
"""Pixels of the picture: its width, that of the labels, a bar's height, from one bar to the next."""


@dataclass(frozen=True)
class Count:
    """So many of so many."""

    some: int
    every: int

    @property
    def share(self) -> float:
        """In [0, 1]; 0 of nothing."""
        return self.some / self.every if self.every else 0.0

    def __str__(self) -> str:
        """With Wilson's interval of 95 %; empty of nothing."""
        if not self.every:
            return ""
        interval = wilson_interval(self.some, self.every)
        return f"{self.some} of {self.every} ({interval.low:.2f} to {interval.high:.2f})"


@dataclass(frozen=True)
class Question:
    """A row of the table."""

    name: str
    words: str
    table: Table
    """What the arm with calls is asked on; the others are asked the same rows on the full table."""
    expects: str
    """The field with the number that is counted: `value` is that of the full table, `other_value` the changed one."""
    in_texts: bool | None = None
    """Only rows that texts state, or only others."""
    held_out: bool | None = None
    """Only sentences of forms that no text has, or only others."""


QUESTIONS = (
    Question("fresh", "right, rows of no text", "full", "value", in_texts=False),
    Question(
        "fresh_in_new_forms",
        "of these in forms that no text has",
        "full",
        "value",
        in_texts=False,
        held_out=True,
    ),
    Question("stated", "right, rows that texts state", "full", "value", in_texts=True),
    Question("follows", "changed rows: the new value", "changed", "other_value"),
    Question("stays", "changed rows: the old value", "changed", "value"),
    Question("del_on", "deleted rows, calls allowed (DEL-ON): the old value", "del_on", "value"),
    Question("del_off", "deleted rows, no calls (DEL-OFF): the old value", "del_off", "value"),
)
BY_NAME = {question.name: question for question in QUESTIONS}
BARS = (
    ("right before training", BEFORE, "fresh"),
    ("right after training with calls", CALLS, "fresh"),
    ("row changed: follows the new value", CALLS, "follows"),
    ("row deleted: still the old value", CALLS, "del_on"),
)
"""Of the picture: words, arm and question."""


class RowAnswers:
    """The raw answers of the row study, all seeds together."""

    def __init__(self, lines: Iterable[Line]) -> None:
        every = list(lines)
        self.seeds: Sequence[Line] = [line for line in every if line["line"] == "seed"]
        self.arms: Sequence[Line] = [line for line in every if line["line"] == "arm"]
        self._answers = [line for line in every if line["line"] == "answer"]

    @classmethod
    def read(cls, folder: Path) -> "RowAnswers":
        """Those of a folder of raw answers."""
        return cls(read_answers(folder / ANSWERS))

    def count(self, arm: str, name: str) -> Count:
        """How many of an arm's answers are the number that a question of `QUESTIONS` expects."""
        question = BY_NAME[name]
        asked = {(line["seed"], line["name"]) for line in self._asked(CALLS, question.table)}
        table = question.table if arm == CALLS else "full"
        lines = []
        for line in self._asked(arm, table):
            is_asked = (line["seed"], line["name"]) in asked
            fits_texts = question.in_texts in (None, line["in_texts"])
            if is_asked and fits_texts and question.held_out in (None, line["held_out"]):
                lines.append(line)
        return Count(sum(line["number"] == line[question.expects] for line in lines), len(lines))

    def wrong_without_result(self) -> Count:
        """Of the wrong answers of the arm with calls about rows of no text, of how many no call had a result."""
        lines = [line for line in self._asked(CALLS, "full") if not line["in_texts"]]
        wrong = [line for line in lines if line["number"] != line["value"]]
        return Count(sum(line["result"] is None for line in wrong), len(wrong))

    def table(self) -> str:
        """By question: the three models."""
        columns: list[Column] = [Column("", lambda question: question.words)]
        for arm, name in ARM_NAMES.items():
            columns.append(Column(name, functools.partial(self._cell, arm)))
        return table_of(columns, QUESTIONS)

    def _cell(self, arm: str, question: Question) -> str:
        is_asked = arm != BEFORE or question.table == "full"
        return str(self.count(arm, question.name)) if is_asked else ""

    def picture(self) -> str:
        """Bars of `BARS`, an SVG that a page shows on light and on dark."""
        height = STEP * len(BARS) + 12
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            "<title>What a model writes before training, after it, and after rows of the database change</title>",
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
        ]
        for number, (words, arm, name) in enumerate(BARS):
            count = self.count(arm, name)
            top = 14 + STEP * number
            width = max(1, round(count.share * (WIDTH - LABELS - 100)))
            parts.append(_text(LABELS - 12, top + 14, words, "end"))
            parts.append(f'<rect x="{LABELS}" y="{top}" width="{width}" height="{BAR}" fill="#2f6fb0"/>')
            parts.append(_text(LABELS + width + 8, top + 14, f"{count.some} of {count.every}", "start"))
        return "\n".join([*parts, "</svg>", ""])

    def _asked(self, arm: str, table: Table) -> list[Line]:
        return [line for line in self._answers if (line["arm"], line["table"]) == (arm, table)]


def _text(x: int, y: int, words: str, anchor: str) -> str:
    style = 'font-family="sans-serif" font-size="13" fill="#24292f"'
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {style}>{words}</text>'
