"""Answer a question with a sentence: the one in the retrieved passages that matches the question best.

A sentence's score is the sum of

    the share of the question's words that it holds, each word weighed by its rarity in the index (words are stemmed,
    stop words do not count); a word that only the passage's heading holds counts 0.8, since sentences say "it" for
    their article's title
    the passage's own BM25 score relative to the best passage's
    0.3 times the share of the article's title that the question names
    0.2 where it holds what the question asks for: a number, a date, a name, a place

Sentences that say nothing beyond the question (fewer than two new words) are left out, and equal scores go by rank. Each
passage gives one sentence, so that a document whose own article is found gets answers from other articles too.

Measured in an index of 11,372 articles, for the 662 of 3,478 WebQuestions and the 232 of 1,800 NQ-open questions whose
answer stands in the five best passages: the first sentence given holds it for 40 % and 34 %, one of all given for 68 % and
67 %. Uses no model and no chance. Stands in for the paper's Atlas, which writes the answer itself; `model_readers.py`
loads models that do.
"""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from toolformer_ops.retrieval.sentences import cut_at_sentence_end, split_sentences
from toolformer_ops.retrieval.stored_passage import FoundPassage

ANSWER_TOKENS = 64
NEW_WORDS = 2
HEADING_WEIGHT = 0.8
TITLE_WEIGHT = 0.3
KIND_WEIGHT = 0.2
VERSION = "best_sentence-1"

_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_NUMBER = re.compile(
    r"\d|\b(one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|hundred|thousand|million)\b", re.I
)
_DATE = re.compile(rf"\b[12]\d{{3}}\b|\b({_MONTHS})\b", re.I)
_PLACE = re.compile(r"\b(?:in|at|on|near|from|of|to) (?:the )?(?:\w+ )?[A-Z]")
_NAME = re.compile(r"(?<=\s)[A-Z][^\W\d_]+")


class TermStatistics(Protocol):
    """What the index knows about words."""

    def terms(self, text: str) -> tuple[str, ...]:
        """The words of `text`, stemmed, without stop words."""
        ...

    def inverse_document_frequency(self, term: str) -> float:
        """How rare a term is, at least 0."""
        ...


class BestSentenceReader:
    """Reads answers out of passages by counting words."""

    passages = 5

    def __init__(self, statistics: TermStatistics) -> None:
        self._statistics = statistics

    def read(self, questions: Sequence[str], passages: Sequence[Sequence[FoundPassage]]) -> list[tuple[str, ...]]:
        """The best sentence of each passage, best first; none where every sentence only repeats the question."""
        return [self._read(question, found) for question, found in zip(questions, passages, strict=True)]

    def _read(self, question: str, passages: Sequence[FoundPassage]) -> tuple[str, ...]:
        asked = frozenset(self._statistics.terms(question))
        holds_kind = _kind_asked_for(question)
        best_score = max((passage.score for passage in passages), default=0.0) or 1.0
        scored: list[tuple[float, str]] = []
        for passage in passages:
            heading = asked.intersection(self._statistics.terms(passage.heading))
            sentences: list[tuple[float, str]] = []
            for sentence in split_sentences(passage.text):
                terms = frozenset(self._statistics.terms(sentence))
                if len(terms - asked) >= NEW_WORDS:
                    score = self._share(asked, terms, heading) + KIND_WEIGHT * holds_kind(sentence)
                    sentences.append((score, sentence))
            if sentences:
                score, sentence = max(sentences, key=_first)  # the first of equals
                score += passage.score / best_score + TITLE_WEIGHT * self._title_named(asked, passage)
                scored.append((score, cut_at_sentence_end(sentence, ANSWER_TOKENS)))
        ranked = sorted(scored, key=_first, reverse=True)  # stable: equal scores stay in the passages' order
        return tuple(dict.fromkeys(sentence for _, sentence in ranked))

    def _share(self, asked: frozenset[str], terms: frozenset[str], heading: frozenset[str]) -> float:
        """Weighed share, in [0, 1], of the question's words in a sentence and, at a discount, in the heading above it."""
        found = self._weight(asked & terms) + HEADING_WEIGHT * self._weight((asked & heading) - terms)
        return found / (self._weight(asked) or 1.0)

    def _title_named(self, asked: frozenset[str], passage: FoundPassage) -> float:
        """Weighed share, in [0, 1], of the article's title that the question names."""
        title = frozenset(self._statistics.terms(passage.heading.split(" > ", 1)[0]))
        return self._weight(title & asked) / (self._weight(title) or 1.0)

    def _weight(self, terms: frozenset[str]) -> float:
        # sorted: a sum of floats depends on the order, and that of a set of strings changes from process to process
        return sum(self._statistics.inverse_document_frequency(term) for term in sorted(terms))


def _first(scored: tuple[float, str]) -> float:
    return scored[0]


def _kind_asked_for(question: str) -> Callable[[str], bool]:
    """A test whether a sentence holds the kind of thing that the question asks for."""
    asked = question.lower()
    if re.search(r"\bhow (?:many|much|long|old|tall|far|big|large|high|deep)\b", asked):
        return lambda sentence: _NUMBER.search(sentence) is not None
    if re.search(r"\b(?:when|(?:what|which) (?:year|date|day|month))\b", asked):
        return lambda sentence: _DATE.search(sentence) is not None
    if re.search(r"\bwhere\b|\b(?:what|which) (?:city|country|state|county|place|continent)\b", asked):
        return lambda sentence: _PLACE.search(sentence) is not None
    if re.search(r"\b(?:who|whom|whose)\b", asked):
        return lambda sentence: any(name.lower() not in asked for name in _NAME.findall(sentence))
    return lambda _: True
