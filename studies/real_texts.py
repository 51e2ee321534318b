"""Texts that nobody wrote for a tool: word problems for the Calculator, posts with their day of writing for the Calendar.

    WordProblems   questions of GSM8K with the first step of their solution, its equation left out
    Posts          paragraphs of dated posts that name a day, a month, a year or a day from the writer's own

They are annotated, and no arm is trained on them: half of the problems, and half of the posts, by a hash of their text or
their id. Seeds draw from the same files: their texts overlap, so that intervals over seeds say how another draw from these
files would come out. The files are not part of the repository; `SOURCES_OF_FILES` says where they come from.
"""

import datetime
import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.sentences import NO_ANSWER, Sentence, distinct
from toolformer_ops.errors import UsageError
from toolformer_ops.tools.calendar import DAYS, MONTHS

_STEP = re.compile(r"<<[^<>]*=(-?\d+(?:\.\d+)?)>>")
"""How GSM8K marks a computation, with its result."""
_EQUATION = re.compile(r"\$?[\d\s.,+*/x\u00d7\u00f7()%$-]*=\s*\$?(?=<<)")
"""What is computed, as the solution writes it in front of the mark."""
_NUMBER = re.compile(r"\d+")
_OPERATOR = re.compile(r"[*/+=\u00d7\u00f7]| [x-] ")
"""What a step holds if more than its equation is computed in it."""
_DAY = "|".join(DAYS)
_MONTH = "|".join(MONTHS)
_DATED = re.compile(rf"\b(?:{_DAY}|{_MONTH}|(?:19|20)\d\d|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""A word for whose place in time the day of writing may help."""
FEWEST_WORDS, MOST_WORDS = 20, 100
"""Of a paragraph: long enough to say something, short enough to be one sequence of a training."""
SOURCES_OF_FILES = {
    "gsm8k": "train.jsonl of github.com/openai/grade-school-math (MIT)",
    "passages": "articles of Wikipedia in KILT's format (CC BY-SA)",
    "posts": 'JSON Lines of "id", "text" with a paragraph a line, and "date", such as those of github.com/GSA/digitalgov.gov (CC0)',
}
"""By option, what its file is."""


@dataclass(frozen=True)
class WordProblems:
    """Questions with the first step of their solution; a text is a prompt up to that step's result."""

    file: Path
    """JSON Lines of `question` and `answer` as GSM8K has them, also with gzip."""

    def training(self, count: int, seed: int) -> list[Sentence]:
        """Of the questions whose hash is even; the seed orders them."""
        problems = []
        for record in read_records(self.file):
            problem = word_problem(record["question"], record["answer"].partition("\n")[0])
            if problem is not None and _is_annotated(record["question"]):
                problems.append(problem)
        return distinct(iter(in_order(problems, seed)), count, set())


def word_problem(question: str, step: str) -> Sentence | None:
    """A question with a step of its solution, without the step's equation; None if the result has no clear place.

    `Natalia sold 48/2 = <<48/2=24>>24 clips in May.` becomes `Natalia sold 24 clips in May.`
    """
    mark = _STEP.search(step)
    if mark is None:
        return None
    equation = _EQUATION.search(step)
    if equation is not None and len(_NUMBER.findall(equation.group())) < 2:
        return None  # it is written with words, of which some would be left
    told = _STEP.sub(" ", _EQUATION.sub("", step, count=1), count=1)
    told = re.sub(r"\s+", " ", told).strip()
    text = f"{question.strip()} {told}"
    # The result stands alone, and nowhere before; nothing else is computed in the step.
    if _OPERATOR.search(told) or "<<" in told or text.count(mark[1]) != 1 or f" {mark[1]}" not in told:
        return None
    return Sentence(text, mark[1], question)


@dataclass(frozen=True)
class Posts:
    """Paragraphs of dated posts. Where one states the weekday, date or year of its writing, this is its answer."""

    file: Path
    """JSON Lines of `id`, `text` (a paragraph a line) and `date` (YYYY-MM-DD), also with gzip."""

    def training(self, count: int, seed: int) -> list[Sentence]:
        """Of the posts whose hash is even, those that state a fact of their day as often as they come."""
        paragraphs = [item for name, item in self._paragraphs() if _is_annotated(name)]
        return distinct(iter(in_order(paragraphs, seed)), count, set())

    def paragraphs(self) -> list[Sentence]:
        """All that are dated, each once: first those of posts that are annotated."""
        named = sorted(self._paragraphs(), key=lambda item: not _is_annotated(item[0]))
        return list({item.fact: item for _, item in named}.values())

    def _paragraphs(self) -> Iterator[tuple[str, Sentence]]:
        """Each dated paragraph behind its post's id."""
        for record in read_records(self.file):
            if not record.get("date"):
                continue
            day = datetime.date.fromisoformat(record["date"][:10])
            for paragraph in record["text"].splitlines():
                words = len(paragraph.split())
                if FEWEST_WORDS <= words <= MOST_WORDS and _DATED.search(paragraph):
                    yield str(record["id"]), dated_paragraph(paragraph.strip(), day)


def dated_paragraph(text: str, day: datetime.date) -> Sentence:
    """A paragraph of this day, with the first fact of the day that it states behind a space: weekday, date or year."""
    facts = (DAYS[day.weekday()], f"{MONTHS[day.month - 1]} {day.day}", str(day.year))
    stated = []
    for fact in facts:
        place = re.search(rf"(?<=\w) {re.escape(fact)}\b", text)
        if place is not None:
            stated.append((place.start(), fact))
    if not stated:
        return Sentence(text, NO_ANSWER, text, date=day)
    place_of_first, first = min(stated)
    return Sentence(text, first, text, date=day, answer_place=place_of_first)


def read_records(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of JSON Lines, also with gzip.

    Raises:
        UsageError: a line is no record.
    """
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise UsageError(
                    f"{file}, line {number}: expected a JSON record, found {line[:40]!r}. Name a file of JSON Lines."
                ) from error


def in_order(items: Sequence[Sentence], seed: int) -> list[Sentence]:
    """The sentences in an order that follows from the seed and each sentence's fact."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed}|{item.fact}".encode()).digest())


def _is_annotated(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 0
