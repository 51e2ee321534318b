"""What the row study's raw answers say: a table and bars for docs/evidence.md.

The arm `plain` asks no table, so that its answer to a question is the same whatever the table says.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.answers import Line, read_answers
from studies.measuring import BEFORE
from studies.page_tables import Column, table_of
from studies.rows import ANSWERS, CALLS, PLAIN, Table
from toolformer_ops.evaluation.statistics import wilson_interval

PICTURE = "rows.svg"
ARM_NAMES = {BEFORE: "before training", CALLS: "with calls", PLAIN: "texts alone"}
WIDTH, LABELS, BAR, GAP, TOP = 760, 330, 14, 16, 56
"""Pixels of the picture: its width, that of the labels, a bar's height, the space between groups, the legend's height."""
LEGEND = {CALLS: "trained with calls", PLAIN: "trained on texts alone"}
COLOURS = {CALLS: "#2f6fb0", PLAIN: "#c2711f"}


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
SHOWN = tuple(question for question in QUESTIONS if question.held_out is None)
"""Those of the picture."""


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

    def table(self) -> str:
        """By question: the three models."""
        columns: list[Column] = [Column("", lambda question: question.words)]
        for arm, name in ARM_NAMES.items():
            columns.append(Column(name, self._cell(arm)))
        return table_of(columns, QUESTIONS)

    def picture(self) -> str:
        """The same as bars, an SVG that a page shows on light and on dark."""
        parts = [f'<rect width="{WIDTH}" height="{self._height}" rx="6" fill="#ffffff"/>']
        for number, arm in enumerate((CALLS, PLAIN)):
            left = LABELS + 170 * number
            parts.append(f'<rect x="{left}" y="20" width="{BAR}" height="{BAR}" fill="{COLOURS[arm]}"/>')
            parts.append(_text(left + BAR + 6, 32, LEGEND[arm]))
        for number, question in enumerate(SHOWN):
            top = TOP + number * (2 * BAR + GAP)
            parts.append(_text(LABELS - 12, top + BAR + 5, question.words, "end"))
            for row, arm in enumerate((CALLS, PLAIN)):
                count = self.count(arm, question.name)
                width = round(count.share * (WIDTH - LABELS - 110))
                y = top + row * BAR
                parts.append(
                    f'<rect x="{LABELS}" y="{y}" width="{max(1, width)}" height="{BAR - 2}" fill="{COLOURS[arm]}"/>'
                )
                parts.append(_text(LABELS + width + 6, y + BAR - 3, f"{count.some} of {count.every}"))
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" role="img">'
        title = "<title>Answers of two models, before and after rows of the database change</title>"
        return "\n".join([head, title, *parts, "</svg>", ""])

    @property
    def _height(self) -> int:
        return TOP + len(SHOWN) * (2 * BAR + GAP) + 4

    def _asked(self, arm: str, table: Table) -> list[Line]:
        return [line for line in self._answers if (line["arm"], line["table"]) == (arm, table)]

    def _cell(self, arm: str) -> Callable[[Question], str]:
        def cell(question: Question) -> str:
            is_asked = arm != BEFORE or question.table == "full"
            return str(self.count(arm, question.name)) if is_asked else ""

        return cell


def _text(x: int, y: int, words: str, anchor: str = "start") -> str:
    style = 'font-family="sans-serif" font-size="12" fill="#24292f"'
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {style}>{words}</text>'
