"""The sentences of a study, sums and dates: up to its answer a sentence is a prompt. And which answer is right.

Some templates are held out: no training sentence is built on them, and half of the test's are.
"""

import datetime
import hashlib
import importlib.resources
import itertools
import json
import random
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from toolformer_ops.evaluation.numbers import first_number_is_right
from toolformer_ops.records import Document
from toolformer_ops.tools.calendar import DAYS, MONTHS

FIRST_DAY = datetime.date(2005, 1, 1)
DAYS_DRAWN = 20 * 365
FARTHEST = 60
"""Most days until the other date."""

_WEEKDAY = re.compile(rf"\b({'|'.join(DAYS)})\b")
_DAY_OF_MONTH = re.compile(rf"\b({'|'.join(MONTHS)}) (\d{{1,2}})\b")


@dataclass(frozen=True)
class Sentence:
    """A sentence that holds an answer which its tool can give."""

    text: str
    answer: str
    """As it is written in `text`, where it occurs last."""
    kind: str
    """What is asked: `+`, `-`, `*`, `/`, `weekday`, `date`, `days until`."""
    fact: Hashable
    """What decides the answer; no fact of the test is one of training."""
    held_out: bool
    """Whether its template is kept from training."""
    date: datetime.date | None = None
    """The day on which it was written; None if it does not matter."""

    @property
    def prompt(self) -> str:
        """The sentence up to the space before the answer."""
        return self.text[: self.text.rindex(f" {self.answer}")]

    @property
    def document(self) -> Document:
        """As it is annotated."""
        return Document.of(self.text, document_date=self.date)

    def is_right(self, written: str) -> bool:
        """Whether the first weekday, date or number (as asked) of what was written behind the prompt is the answer."""
        if self.kind == "weekday":
            found = _WEEKDAY.search(written)
        elif self.kind == "date":
            found = _DAY_OF_MONTH.search(written)
        else:
            return first_number_is_right(written, [self.answer])
        return found is not None and found.group() == self.answer


@dataclass(frozen=True)
class SentenceSource:
    """Where the sentences of a tool come from. Same seed, same sentences; more of them only add."""

    templates_file: str
    fill: Callable[[dict[str, Any], random.Random], Sentence]
    """A template with what is drawn for it."""

    def training(self, count: int, seed: int) -> list[Sentence]:
        """`count` sentences of the templates that are not held out, each with a fact of its own."""
        return _distinct(self._draw(held_out=False, seed=seed, purpose="training"), count, set())

    def fresh(self, count: int, seed: int, known: Sequence[Sentence]) -> list[Sentence]:
        """`count` sentences whose facts are not among those of `known`: half on known templates, then half on held-out ones."""
        taken = {item.fact for item in known}
        seen = _distinct(self._draw(held_out=False, seed=seed, purpose="fresh"), count - count // 2, taken)
        taken |= {item.fact for item in seen}
        return seen + _distinct(self._draw(held_out=True, seed=seed, purpose="fresh"), count // 2, taken)

    def _draw(self, *, held_out: bool, seed: int, purpose: str) -> Iterator[Sentence]:
        """Yield sentences without end, the templates in turn."""
        read = [json.loads(line) for line in _file(self.templates_file).splitlines()]
        templates = [item for item in read if bool(item.get("held_out")) is held_out]
        for number in itertools.count():
            template = templates[number % len(templates)]
            key = hashlib.sha256(f"{seed}|{purpose}|{number}|{template['text']}".encode()).digest()
            yield self.fill(template, random.Random(key))  # noqa: S311 - not for secrets


def _drawn_words(draw: random.Random) -> dict[str, str]:
    """A word for each place of a template that decides no answer."""
    words = json.loads(_file("words.json"))  # in this order: another one draws other sentences
    return {place: draw.choice(choices) for place, choices in words.items()}


def _file(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _distinct(drawn: Iterator[Sentence], count: int, taken: set[Hashable]) -> list[Sentence]:
    found: dict[Hashable, Sentence] = {}
    while len(found) < count:
        item = next(drawn)
        # an answer that is in the prompt, too, could be copied, and would have no clear place
        if item.fact not in taken and not re.search(rf"\b{re.escape(item.answer)}\b", item.prompt):
            found.setdefault(item.fact, item)
    return list(found.values())


def _sum(template: dict[str, Any], draw: random.Random) -> Sentence:
    """A one-step sum in prose, for the Calculator: two numbers and what comes out of them. The fact is operator and numbers."""
    operator = template["operator"]
    # 1. Two numbers and what comes out of them.
    if "{a_year}" in template["text"]:
        right = draw.randint(1801, 1950)
        result = draw.randint(11, 70)
        left = right + result
    elif operator == "-":
        left = draw.randint(120, 990)
        right = draw.randint(21, left - 12)
        result = left - right
    elif operator == "+":
        left, right = draw.randint(110, 990), draw.randint(110, 990)
        result = left + right
    else:
        left, right = draw.randint(12, 98), draw.randint(12, 98)
        result = left * right
        if operator == "/":
            left, result = result, left
    # 2. The other words of the template.
    numbers = {"a": left, "b": right, "a_year": right, "b_year": left, "c": result}
    return Sentence(
        text=template["text"].format_map({**_drawn_words(draw), **numbers}),
        answer=str(result),
        kind=operator,
        fact=(operator, left, right),
        held_out=bool(template.get("held_out")),
    )


def _dated(template: dict[str, Any], draw: random.Random) -> Sentence:
    """A sentence about the day on which it was written, for the Calendar: its weekday, its date, the days until another date.

    The fact is the day and what is asked. The days until another date must be counted, which the Calendar does not do.
    """
    day = FIRST_DAY + datetime.timedelta(days=draw.randrange(DAYS_DRAWN))
    until = draw.randint(2, FARTHEST)
    kind = template["kind"]
    answers = {"weekday": DAYS[day.weekday()], "date": _written(day), "days until": str(until)}
    # The places of a template are named so that none of the other words can give an answer away.
    words = {place: word for place, word in _drawn_words(draw).items() if place not in {"day", "month"}}
    text = template["text"].format_map(
        {**words, "answer": answers[kind], "other_date": _written(day + datetime.timedelta(days=until))}
    )
    return Sentence(
        text=text,
        answer=answers[kind],
        kind=kind,
        fact=(kind, day),
        held_out=bool(template.get("held_out")),
        date=day,
    )


def _written(day: datetime.date) -> str:
    return f"{MONTHS[day.month - 1]} {day.day}"


SUMS = SentenceSource("sum_templates.jsonl", _sum)
DATES = SentenceSource("date_templates.jsonl", _dated)
