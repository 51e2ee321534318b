"""A sentence of a study: up to its answer it is a prompt. What sums and dates have in common, and which answer is right.

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
    """The day on which it was written; None where it does not matter."""

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


def drawn_words(draw: random.Random) -> dict[str, str]:
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
