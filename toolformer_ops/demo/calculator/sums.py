"""One-step sums in prose: the texts that the study annotates, and the fresh ones that it tests with. Same seed, same sums.

No sum of the test (operator and both numbers) is among the training texts, and half of the test's sentences are built on
templates that training never saw.
"""

import functools
import hashlib
import importlib.resources
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sum:
    """A sentence that holds two numbers and what comes out of them."""

    text: str
    operator: str
    left: int
    right: int
    result: int
    held_out: bool
    """Whether its template is kept from training."""

    @property
    def prompt(self) -> str:
        """The sentence up to the space before the result."""
        return self.text[: self.text.rindex(f" {self.result}")]

    @property
    def key(self) -> tuple[str, int, int]:
        """What is computed."""
        return self.operator, self.left, self.right


def training_sums(count: int, seed: int) -> list[Sum]:
    """`count` different sentences of the templates that are not held out."""
    return _distinct(_draw([item for item in _templates() if not item.get("held_out")], seed, "training"), count, set())


def fresh_sums(count: int, seed: int, known: Sequence[Sum]) -> list[Sum]:
    """`count` sums that are not among `known`, in turn on known templates and on held-out ones."""
    taken = {item.key for item in known}
    seen, held_out = ([item for item in _templates() if bool(item.get("held_out")) is kind] for kind in (False, True))
    from_seen = _distinct(_draw(seen, seed, "fresh"), count - count // 2, taken)
    return from_seen + _distinct(_draw(held_out, seed, "fresh"), count // 2, taken | {item.key for item in from_seen})


def _templates() -> list[dict[str, Any]]:
    lines = importlib.resources.files(__package__).joinpath("templates.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in lines.splitlines()]


@functools.cache
def _words() -> dict[str, list[str]]:
    """The words for each place of a template. Another order of these lists draws other sums."""
    file = importlib.resources.files(__package__).joinpath("words.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def _distinct(drawn: Iterator[Sum], count: int, taken: set[tuple[str, int, int]]) -> list[Sum]:
    found: dict[tuple[str, int, int], Sum] = {}
    while len(found) < count:
        item = next(drawn)
        # a result that is also one of the numbers could be copied, and one that stands in the text twice has no clear place
        if item.key not in taken and item.result not in {item.left, item.right}:
            found.setdefault(item.key, item)
    return list(found.values())


def _draw(templates: Sequence[dict[str, Any]], seed: int, purpose: str) -> Iterator[Sum]:
    """Sums without end, the templates in turn."""
    number = 0
    while True:
        template = templates[number % len(templates)]
        key = hashlib.sha256(f"{seed}|{purpose}|{number}|{template['text']}".encode()).digest()
        yield _filled(template, random.Random(key))  # noqa: S311 - not for secrets
        number += 1


def _filled(template: dict[str, Any], draw: random.Random) -> Sum:
    operator = template["operator"]
    left, right, result = _numbers(operator, draw, years="{a_year}" in template["text"])
    words = {
        **{place: draw.choice(choices) for place, choices in _words().items()},
        "a": str(left),
        "b": str(right),
        "a_year": str(right),
        "b_year": str(left),
        "c": str(result),
    }
    return Sum(template["text"].format_map(words), operator, left, right, result, bool(template.get("held_out")))


def _numbers(operator: str, draw: random.Random, *, years: bool) -> tuple[int, int, int]:
    if years:
        opened = draw.randint(1801, 1950)
        closed = opened + draw.randint(11, 70)
        return closed, opened, closed - opened
    if operator == "-":
        left = draw.randint(120, 990)
        right = draw.randint(21, left - 12)
        return left, right, left - right
    if operator == "+":
        left, right = draw.randint(110, 990), draw.randint(110, 990)
        return left, right, left + right
    left, right = draw.randint(12, 98), draw.randint(12, 98)
    return (left, right, left * right) if operator == "*" else (left * right, right, left)
