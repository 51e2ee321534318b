"""The sentences of a study: up to its answer a sentence is a prompt.

`SUMS` are one-step sums in prose, for the Calculator, in filled templates. Some templates are held out: no training sentence
is built on them, and half of the test's are. Texts that nobody wrote for a tool are in `real_texts.py`.
"""

import datetime
import hashlib
import importlib.resources
import itertools
import json
import random
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from toolformer_ops.errors import UsageError
from toolformer_ops.records import Document

NO_ANSWER = ""
"""The answer of a text that states nothing which its tool could give."""


@dataclass(frozen=True)
class Sentence:
    """A sentence that holds an answer which its tool can give."""

    text: str
    answer: str
    """As it is written in `text`, where it occurs last unless `answer_place` says where; `NO_ANSWER` if the text has none."""
    fact: Hashable
    """What decides the answer; no fact of the test is one of training."""
    held_out: bool = False
    """Whether its template is kept from training."""
    date: datetime.date | None = None
    """The day on which it was written; None if it does not matter."""
    answer_place: int | None = None
    """Where the space before the answer is, characters; None: before its last occurrence."""

    @property
    def prompt(self) -> str:
        """The sentence up to the space before the answer."""
        place = self.text.rindex(f" {self.answer}") if self.answer_place is None else self.answer_place
        return self.text[:place]

    @property
    def document(self) -> Document:
        """As it is annotated."""
        return Document.of(self.text, document_date=self.date)


class Sums:
    """One-step sums in filled templates. Same seed, same sentences; more of them only add."""

    def training(self, count: int, seed: int) -> list[Sentence]:
        """`count` sentences of the templates that are not held out, each with a fact that no other has."""
        return distinct(self._draw(held_out=False, seed=seed, purpose="training"), count, set())

    def fresh(self, count: int, seed: int, known: Sequence[Sentence]) -> list[Sentence]:
        """`count` sentences whose facts are not among those of `known`: half on known templates, then half on held-out ones."""
        taken = {item.fact for item in known}
        seen = distinct(self._draw(held_out=False, seed=seed, purpose="fresh"), count - count // 2, taken)
        taken |= {item.fact for item in seen}
        return seen + distinct(self._draw(held_out=True, seed=seed, purpose="fresh"), count // 2, taken)

    def _draw(self, *, held_out: bool, seed: int, purpose: str) -> Iterator[Sentence]:
        """Yield sentences without end, the templates in turn."""
        folder = importlib.resources.files(__package__)
        every = map(json.loads, folder.joinpath("sum_templates.jsonl").read_text("utf-8").splitlines())
        templates = [item for item in every if bool(item.get("held_out")) is held_out]
        words = json.loads(folder.joinpath("words.json").read_text("utf-8"))
        for number in itertools.count():
            template = templates[number % len(templates)]
            key = hashlib.sha256(f"{seed}|{purpose}|{number}|{template['text']}".encode()).digest()
            yield _sum(template, words, random.Random(key))  # noqa: S311 - not for secrets


SUMS = Sums()


def _sum(template: dict[str, Any], words: dict[str, list[str]], draw: random.Random) -> Sentence:
    """A one-step sum in prose: two numbers and what comes out of them. The fact is operator and numbers."""
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
    # 2. The other words of the template, in the order of the file: another one draws other sentences.
    drawn = {place: draw.choice(choices) for place, choices in words.items()}
    numbers = {"a": left, "b": right, "a_year": right, "b_year": left, "c": result}
    return Sentence(
        text=template["text"].format_map({**drawn, **numbers}),
        answer=str(result),
        fact=(operator, left, right),
        held_out=bool(template.get("held_out")),
    )


def distinct(drawn: Iterator[Sentence], count: int, taken: set[Hashable]) -> list[Sentence]:
    """The first `count` sentences of different facts.

    Raises:
        UsageError: so many are not found among a thousand times as many.
    """
    sentence_of_fact: dict[Hashable, Sentence] = {}
    for item in itertools.islice(drawn, 1000 * count):
        if len(sentence_of_fact) == count:
            break
        # an answer that is in the prompt, too, could be copied, and would have no clear place
        is_told_before = item.answer and re.search(rf"\b{re.escape(item.answer)}\b", item.prompt)
        if item.fact not in taken and not is_told_before:
            sentence_of_fact.setdefault(item.fact, item)
    if len(sentence_of_fact) < count:
        raise UsageError(
            f"expected {count} sentences of different facts, found {len(sentence_of_fact)}. Ask for fewer texts."
        )
    return list(sentence_of_fact.values())
