"""Word n-grams that texts share with evaluation data, as in appendix C of the GPT-3 paper (Brown et al., 2020, arXiv 2005.14165).

A word is what white space separates, in lower case and without punctuation. The length N of a data set's n-grams is the number of
words that 95 % of its questions have at least (their 5th percentile), but 8 at least and 13 at most. A question of fewer words has
no n-gram and is not compared; it is counted (`too_short`). In scripts without spaces that is nearly every question.

An n-gram in more than 10 of the compared texts says nothing (a proverb, a legal phrase) and is ignored. So what is said of a text
depends on the texts beside it, and not on their order. An n-gram of several questions is the first one's, as is a shared paragraph.

Pure functions on texts; `evaluation/question_sets.py` reads the data, `stages/release.py` decides what follows. The texts are read
once. What is held is the n-grams of the evaluation data, and at most 11 texts of each.
"""

import math
import unicodedata
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

LEAST_WORDS = 8
MOST_WORDS = 13
MOST_TEXTS = 10
"""An n-gram in more texts is ignored."""


@dataclass(frozen=True)
class QuestionSet:
    """The questions of a data set, or the texts of one whose perplexity is measured."""

    suite: str
    data_set: str
    sha256: str
    """Of the files that were read, 64 hex digits, as in `evaluation_scores`."""
    texts: Sequence[str]
    """Each question with its context, without the words of the prompt; question n is `texts[n - 1]`."""


@dataclass(frozen=True)
class Overlap:
    """A text and a question that it shares words with."""

    document_id: uuid.UUID
    suite: str
    data_set: str
    question: int
    """Its place in the data set, from 1, as in evaluations."""
    words: str
    """The shared n-gram that comes first in the text."""
    shared_ngrams: int
    """How many different n-grams of the question the text holds, at least 1."""


class _Marks(dict[int, int | None]):
    """For `str.translate`: takes out punctuation and symbols, and leaves everything else; filled when a character first comes."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code))[0] in "PS" else code
        return self[code]


_MARKS = _Marks()


def words_of(text: str) -> list[str]:
    """The words of a text: lower case, no punctuation, separated by white space."""
    return text.lower().translate(_MARKS).split()


def ngram_length(lengths: Sequence[int]) -> int:
    """The N of questions of so many words each: their 5th percentile (nearest rank), from `LEAST_WORDS` to `MOST_WORDS`."""
    if not lengths:
        return MOST_WORDS
    percentile = sorted(lengths)[math.ceil(len(lengths) / 20) - 1]
    return min(MOST_WORDS, max(LEAST_WORDS, percentile))


class EvaluationNgrams:
    """The n-grams of evaluation data, to look for in texts."""

    def __init__(self, question_sets: Sequence[QuestionSet]) -> None:
        self._sets = question_sets
        self._first = list(accumulate((len(item.texts) for item in question_sets), initial=0))
        """The number of each set's first question, counted over all sets."""
        self._question_of: dict[str, int] = {}
        """By n-gram, its words with spaces between them, the number of the first question that holds it."""
        self._heads: set[str] = set()
        """The first `LEAST_WORDS` words of every n-gram: a word of text is looked up once, for all lengths."""
        lengths: set[int] = set()
        self.definition: list[dict[str, Any]] = []
        """What a release is compared with, a data set each: part of its id, and shown on its card."""
        for first, item in zip(self._first, question_sets, strict=False):
            questions = [words_of(text) for text in item.texts]
            length = ngram_length([len(words) for words in questions])
            lengths.add(length)
            for number, words in enumerate(questions, start=first):
                for place in range(len(words) - length + 1):
                    self._question_of.setdefault(" ".join(words[place : place + length]), number)
                    self._heads.add(" ".join(words[place : place + LEAST_WORDS]))
            self.definition.append(
                {
                    "data_set": f"{item.suite}:{item.data_set}",
                    "sha256": item.sha256,
                    "questions": len(questions),
                    "ngram_words": length,
                    "too_short": sum(len(words) < length for words in questions),
                }
            )
        self._lengths = sorted(lengths)

    def overlaps(self, texts: Iterable[tuple[uuid.UUID, str]]) -> list[Overlap]:
        """The questions that these texts share an n-gram with, ordered by text, data set and question."""
        # 1. The texts of each n-gram, as far as it takes to know whether it is ignored, with the n-gram's place in the text.
        texts_of: dict[str, list[tuple[uuid.UUID, int]]] = {}
        for document_id, text in texts:
            for ngram, place in self._in_text(text).items():
                found = texts_of.setdefault(ngram, [])
                if len(found) <= MOST_TEXTS:
                    found.append((document_id, place))
        # 2. By text and question, the n-grams that count.
        shared: dict[tuple[uuid.UUID, int], list[tuple[int, str]]] = {}
        for ngram, found in texts_of.items():
            if len(found) <= MOST_TEXTS:
                for document_id, place in found:
                    shared.setdefault((document_id, self._question_of[ngram]), []).append((place, ngram))
        return [self._overlap(*key, ngrams) for key, ngrams in sorted(shared.items())]

    def _in_text(self, text: str) -> dict[str, int]:
        """The n-grams of the evaluation data in a text, each with the number of the word that it first begins with there."""
        words = words_of(text)
        found: dict[str, int] = {}
        for place in range(len(words) - LEAST_WORDS + 1):
            if " ".join(words[place : place + LEAST_WORDS]) in self._heads:
                for length in self._lengths:
                    ngram = " ".join(words[place : place + length])
                    if ngram in self._question_of:
                        found.setdefault(ngram, place)
        return found

    def _overlap(self, document_id: uuid.UUID, number: int, ngrams: Sequence[tuple[int, str]]) -> Overlap:
        place = bisect_right(self._first, number) - 1
        return Overlap(
            document_id=document_id,
            suite=self._sets[place].suite,
            data_set=self._sets[place].data_set,
            question=number - self._first[place] + 1,
            words=min(ngrams)[1],
            shared_ngrams=len(ngrams),
        )
