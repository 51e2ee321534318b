"""Word n-grams that texts share with evaluation data, as in appendix C of the GPT-3 paper.

The paper is Brown et al., 2020 (arXiv 2005.14165). A word is what white space separates, without punctuation,
in one form for all ways to write it: that of NFKC with folded case, so that full-width letters, ligatures and
decomposed accents count as the usual ones, and without the characters that are not seen (zero-width spaces,
soft hyphens; general category Cf of Unicode).

The length N of a data set's n-grams is the number of words that 95 % of its questions have at least (their
5th percentile), but 8 at least and 13 at most. A question of fewer words has no n-gram and is not compared;
it is counted (`too_short`). In scripts without spaces that is nearly every question.

An n-gram in more than 10 of the compared texts says nothing (a proverb, a legal phrase) and is ignored. So
what is said of a text depends on the texts beside it, and not on their order. An n-gram of several questions
is the first one's, as is a shared paragraph.

The texts are read once. What is held is the n-grams of the evaluation data, and at most 11 texts of each.
Does not decide what follows for a release; `stages/release.py` does.
"""

import dataclasses
import logging
import math
import unicodedata
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from toolformer_ops.config import Settings
from toolformer_ops.errors import EvaluationDataError, MissingDataSetError
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.suites import DATA_SETS
from toolformer_ops.evaluation.suites.base import load_texts

logger = logging.getLogger(__name__)

LEAST_WORDS = 8
MOST_WORDS = 13
NORMAL_FORM: Literal["NFKC"] = "NFKC"
"""The form of Unicode in which words are compared, with folded case."""
MOST_TEXTS = 10
"""An n-gram in more texts is ignored."""


@dataclass(frozen=True)
class QuestionSet:
    """The questions of a data set, or the texts of one whose perplexity is measured."""

    suite: str
    data_set: str
    sha256: str
    """Hash of the files that were read, 64 hex digits, as in `evaluation_scores`."""
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


def question_sets(settings: Settings, address: str) -> list[QuestionSet]:
    """All data sets of all suites in the folder or at the s3:// address, as an evaluation reads them.

    They are in the order of the suites. Of a data set with several splits the first one is read. Records that
    cannot be asked are not compared. DATESET counts only as a file, since it can be made anew.

    Raises:
        UsageError: this deployment allows no reading there.
        EvaluationDataError: there is no file, no data set, or a file is of another format than its reader
        expects.
        ObjectStoreError: S3 fails.
    """
    folder = DataFolder(settings, address)
    sets = []
    for suite, data_sets in DATA_SETS.items():
        for data_set in data_sets:
            try:
                texts, sha256 = load_texts(folder, dataclasses.replace(data_set, generate=None))
            except MissingDataSetError:
                continue
            sets.append(QuestionSet(suite, data_set.name, sha256, texts))
    if not sets:
        raise EvaluationDataError(
            f"decontaminate: expected at least one data set of a suite in {address}, found none. "
            "docs/evaluation.md says which files belong there; evaluation_data of the run names the folder."
        )
    logger.info(
        "evaluation data in %s: %s", address, ", ".join(f"{item.suite}:{item.data_set}" for item in sets)
    )
    return sets


class _Marks(dict[int, int | None]):
    """For `str.translate`: takes out punctuation, symbols and format characters, and leaves everything else.

    It is filled when a character first comes.
    """

    def __missing__(self, code: int) -> int | None:
        category = unicodedata.category(chr(code))
        self[code] = None if category[0] in "PS" or category == "Cf" else code
        return self[code]


_MARKS = _Marks()


def words_of(text: str) -> list[str]:
    """Return the words of a text in the form in which they are compared, as the module says.

    White space separates them. The case is folded between two normalisations, since folding may undo the
    first (The Unicode Standard, section 3.13, definition D146).
    """
    if text.isascii():
        return text.lower().translate(_MARKS).split()
    folded = unicodedata.normalize(NORMAL_FORM, text).casefold()
    return unicodedata.normalize(NORMAL_FORM, folded).translate(_MARKS).split()


def ngram_length(lengths: Sequence[int]) -> int:
    """The N of questions of so many words each: their 5th percentile (nearest rank).

    It is at least `LEAST_WORDS` and at most `MOST_WORDS`.
    """
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
        """The first `LEAST_WORDS` words of every n-gram: a word of text is looked up once, for all
        lengths."""
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
                    "normal_form": NORMAL_FORM,
                    "too_short": sum(len(words) < length for words in questions),
                }
            )
        self._lengths = sorted(lengths)

    def overlaps(self, texts: Iterable[tuple[uuid.UUID, str]]) -> list[Overlap]:
        """The questions that these texts share an n-gram with, ordered by text, data set and question."""
        # 1. The texts of each n-gram, as far as it takes to know whether it is ignored, with the n-gram's
        #    place in the text.
        texts_of: dict[str, list[tuple[uuid.UUID, int]]] = {}
        for document_id, text in texts:
            words = words_of(text)
            places: dict[str, int] = {}  # by n-gram, the number of the word that it first begins with
            for place in range(len(words) - LEAST_WORDS + 1):
                if " ".join(words[place : place + LEAST_WORDS]) in self._heads:
                    for length in self._lengths:
                        ngram = " ".join(words[place : place + length])
                        if ngram in self._question_of:
                            places.setdefault(ngram, place)
            for ngram, place in places.items():
                occurrences = texts_of.setdefault(ngram, [])
                if len(occurrences) <= MOST_TEXTS:
                    occurrences.append((document_id, place))
        # 2. By text and question, the n-grams that count.
        shared: dict[tuple[uuid.UUID, int], list[tuple[int, str]]] = {}
        for ngram, occurrences in texts_of.items():
            if len(occurrences) <= MOST_TEXTS:
                for document_id, place in occurrences:
                    shared.setdefault((document_id, self._question_of[ngram]), []).append((place, ngram))
        # 3. Each with its data set.
        overlaps = []
        for (document_id, number), ngrams in sorted(shared.items()):
            set_number = bisect_right(self._first, number) - 1
            overlaps.append(
                Overlap(
                    document_id=document_id,
                    suite=self._sets[set_number].suite,
                    data_set=self._sets[set_number].data_set,
                    question=number - self._first[set_number] + 1,
                    words=min(ngrams)[1],
                    shared_ngrams=len(ngrams),
                )
            )
        return overlaps
