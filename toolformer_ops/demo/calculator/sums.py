"""One-step sums in prose: the texts that the study annotates, and the fresh ones that it tests with. Same seed, same sums.

No sum of the test (operator and both numbers) is among the training texts, and half of the test's sentences are built on
templates that training never saw.
"""

import hashlib
import importlib.resources
import itertools
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


def _distinct(drawn: Iterator[Sum], count: int, taken: set[tuple[str, int, int]]) -> list[Sum]:
    found: dict[tuple[str, int, int], Sum] = {}
    while len(found) < count:
        item = next(drawn)
        # a result that is also one of the numbers could be copied, and one that is in the text twice has no clear place
        if item.key not in taken and item.result not in {item.left, item.right}:
            found.setdefault(item.key, item)
    return list(found.values())


def _draw(templates: Sequence[dict[str, Any]], seed: int, purpose: str) -> Iterator[Sum]:
    """Yield sums without end, the templates in turn."""
    words_file = importlib.resources.files(__package__).joinpath("words.json")
    words = json.loads(words_file.read_text(encoding="utf-8"))  # in this order: another one draws other sums
    for number in itertools.count():
        template = templates[number % len(templates)]
        operator = template["operator"]
        key = hashlib.sha256(f"{seed}|{purpose}|{number}|{template['text']}".encode()).digest()
        draw = random.Random(key)  # noqa: S311 - not for secrets
        # 1. two numbers and what comes out of them
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
        # 2. the other words of the template
        chosen = {place: draw.choice(choices) for place, choices in words.items()}
        text = template["text"].format_map(
            {**chosen, "a": left, "b": right, "a_year": right, "b_year": left, "c": result}
        )
        yield Sum(
            text=text,
            operator=operator,
            left=left,
            right=right,
            result=result,
            held_out=bool(template.get("held_out")),
        )
