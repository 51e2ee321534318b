"""QA: answer a factoid question from Wikipedia: retrieve passages, then read an answer out of them.

The paper asks Atlas (Izacard et al., 2022), which also retrieves and reads (section 3 and appendix A.1). Here
the passages come from the index of WikiSearch, and the setting `qa_reader` chooses who reads: `best_sentence`
(no model, below), or `span`, `causal`, `sequence_to_sequence` (a model, `model_readers.py`). Answers that
repeat the asking document are passed over, as those of WikiSearch are: an encyclopedia's sentence may be the
document's. A short answer such as a name is no repetition (`tools/retrieval/own_text.py`).
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolError
from toolformer_ops.records import Document, content_uuid
from toolformer_ops.tools import model_readers
from toolformer_ops.tools.base import (
    FilterDecision,
    FilterRule,
    Tool,
    ToolOutput,
    ToolRunner,
    ToolSpec,
    load_prompt,
)
from toolformer_ops.tools.calendar import MONTHS
from toolformer_ops.tools.retrieval.bm25_index import K1, B, Bm25Index, FoundPassage
from toolformer_ops.tools.retrieval.definitions import judge_definitions
from toolformer_ops.tools.retrieval.java_runtime import SEARCH_THREADS, java_thread
from toolformer_ops.tools.retrieval.sentences import cut_at_sentence_end, split_sentences
from toolformer_ops.tools.retrieval.wiki_index import index_folder, index_version

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel


class QuestionAnswering(Tool):
    """The tool; see the module's docstring."""

    spec = ToolSpec(
        name="QA",
        purpose="Answers a factoid question from Wikipedia.",
        prompt_file="prompts/question_answering.txt",
        source="Toolformer, section 3 and appendix A: the defaults tau_s 0.05, k 5, m 5, tau_f 1.0; no heuristic filter",
        has_sharp_filter=True,
        pass_over_own_text=True,
        needs_index=True,
    )

    def filter_by(self, rule: FilterRule, document: Document) -> list[FilterDecision]:
        """Every text, or by the rule `sharp` texts that say what something is."""
        return self.filter(document) if rule == "paper" else judge_definitions(document)

    def version(self, settings: Settings, model_identity: str) -> str:
        """The code's version, BM25's numbers, the index, and who reads with which prompt."""
        code, index = self.spec.code_version, index_version(settings)
        reader = BEST_SENTENCE_VERSION
        if settings.qa_reader != "best_sentence":
            identity = model_identity
            if settings.qa_reader == "sequence_to_sequence" or settings.qa_reader_model is not None:
                from toolformer_ops.language_model.models.identity import model_identity as identity_of
                from toolformer_ops.language_model.models.identity import split_revision

                identity = identity_of(*split_revision(_checkpoint(settings)), settings=settings)
            prompt = content_uuid(load_prompt(model_readers.PROMPT)).hex[:16]
            numbers = f"passages={model_readers.PASSAGES}, tokens={model_readers.ANSWER_TOKENS}"
            if settings.qa_reader == "span":
                numbers = f"{SPAN_VERSION} of {BEST_SENTENCE_VERSION}"
            reader = f"{settings.qa_reader}({identity}, prompt={prompt}, {numbers})"
        return f"question_answering-{code} bm25(k1={K1}, b={B}) {index} reader={reader}"

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> ToolRunner:
        """Open the index, and load the reader's model if it has one."""
        index = Bm25Index(index_folder(settings), SEARCH_THREADS)
        sentences = BestSentenceReader(index)
        reader: Reader = sentences
        if settings.qa_reader == "span":
            model = model_readers.load_causal_model(settings, load_model)
            reader = model_readers.SpanReader(model, sentences.best_sentences)
        elif settings.qa_reader == "causal":
            reader = model_readers.CausalReader(model_readers.load_causal_model(settings, load_model))
        elif settings.qa_reader == "sequence_to_sequence":
            reader = model_readers.SequenceToSequenceReader(_checkpoint(settings), settings)
        return QuestionAnsweringRunner(index, reader)


class QuestionAnsweringRunner:
    """An open index and a reader."""

    def __init__(self, index: Bm25Index, reader: "Reader") -> None:
        self._index = index
        self._reader = reader

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """Ranked answers to each question, or why there is none."""
        with java_thread():
            searched = self._index.search(inputs, self._reader.passages)
            with_passages = [number for number, answer in enumerate(searched) if answer.reason is None]
            read = self._reader.read(
                [inputs[number] for number in with_passages],
                [searched[number].passages for number in with_passages],
            )
        answers = dict(zip(with_passages, read, strict=True))
        outputs = []
        for number, answer in enumerate(searched):
            results = answers.get(number, ())
            outputs.append(ToolOutput(results) if results else ToolOutput.none(answer.reason or "no_answer"))
        return outputs


TOOL = QuestionAnswering()


def _checkpoint(settings: Settings) -> str:
    if settings.qa_reader_model is None:
        raise ToolError(
            f"qa_reader is {settings.qa_reader}: expected a checkpoint in the setting "
            "TOOLFORMER_QA_READER_MODEL, found none."
        )
    return settings.qa_reader_model


# The reader without a model

BEST_SENTENCE_VERSION = "best_sentence-1"
SPAN_VERSION = "span-1"
"""The version of spans and their scores in `model_readers.py`."""
ANSWER_TOKENS = 64
NEW_WORDS = 2
HEADING_WEIGHT = 0.8
TITLE_WEIGHT = 0.3
KIND_WEIGHT = 0.2

_NUMBER = re.compile(
    r"\d|\b(one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|hundred|thousand|million)\b",
    re.I,
)
_DATE = re.compile(rf"\b[12]\d{{3}}\b|\b({'|'.join(MONTHS)})\b", re.I)
_PLACE = re.compile(r"\b(?:in|at|on|near|from|of|to) (?:the )?(?:\w+ )?[A-Z]")
_NAME = re.compile(r"(?<=\s)[A-Z][^\W\d_]+")
_KINDS = (
    (re.compile(r"\bhow (?:many|much|long|old|tall|far|big|large|high|deep)\b"), _NUMBER),
    (re.compile(r"\b(?:when|(?:what|which) (?:year|date|day|month))\b"), _DATE),
    (re.compile(r"\bwhere\b|\b(?:what|which) (?:city|country|state|county|place|continent)\b"), _PLACE),
    (re.compile(r"\b(?:who|whom|whose)\b"), _NAME),
)
"""What a question asks for, by its words, and what a sentence must hold to have it; the first that fits."""


class BestSentenceReader:
    """Answers with the sentence in the passages that matches the question best.

    A sentence's score is the sum of

        the share of the question's words that it holds, each word weighed by its rarity in the index (words
        are stemmed, stop words do not count); a word that only the passage's heading holds counts 0.8, since
        sentences say "it" for their article's title
        the passage's BM25 score relative to the best passage's
        0.3 times the share of the article's title that the question names
        0.2 if it holds what the question asks for: a number, a date, a name, a place

    Sentences that say nothing beyond the question (fewer than two new words) are left out, and equal scores
    go by rank. Each passage gives one sentence, so that a document whose article is found gets answers from
    other articles too.

    Measured in an index of 11,372 articles, for the 662 of 3,478 WebQuestions and the 232 of 1,800 NQ-open
    questions whose answer occurs in the five best passages: the first sentence given holds it for 40 % and 34
    %, one of all given for 68 % and 67 %. Uses no model and no chance. Replaces the paper's Atlas, which
    writes the answer itself; `model_readers.py` loads models that do, or that choose among the names, dates
    and numbers in these sentences.
    """

    passages = 5

    def __init__(self, index: Bm25Index) -> None:
        self._index = index

    def read(
        self, questions: Sequence[str], passages: Sequence[Sequence[FoundPassage]]
    ) -> list[tuple[str, ...]]:
        """The best sentence of each passage, best first; none if every sentence only repeats the question."""
        return [
            self.best_sentences(question, question_passages)
            for question, question_passages in zip(questions, passages, strict=True)
        ]

    def best_sentences(self, question: str, passages: Sequence[FoundPassage]) -> tuple[str, ...]:
        """The best sentence of each passage for one question, best first."""
        question_terms = self._terms(question)
        asked_weight = self._weight(question_terms) or 1.0
        best_score = max((passage.score for passage in passages), default=0.0) or 1.0
        scored: list[tuple[float, str]] = []
        for passage in passages:
            heading = self._terms(passage.heading)
            title = self._terms(passage.heading.split(" > ", 1)[0])
            title_named = self._weight(title & question_terms) / (self._weight(title) or 1.0)
            sentences: list[tuple[float, str]] = []
            for sentence in split_sentences(passage.text):
                terms = self._terms(sentence)
                if len(terms - question_terms) >= NEW_WORDS:
                    shared_weight = self._weight(question_terms & terms) + HEADING_WEIGHT * self._weight(
                        (question_terms & heading) - terms
                    )
                    sentences.append(
                        (
                            shared_weight / asked_weight
                            + KIND_WEIGHT * holds_what_is_asked(question, sentence),
                            sentence,
                        )
                    )
            if sentences:
                score, sentence = max(sentences, key=lambda pair: pair[0])  # the first of equals
                score += passage.score / best_score + TITLE_WEIGHT * title_named
                scored.append((score, cut_at_sentence_end(sentence, ANSWER_TOKENS)))
        scored.sort(
            key=lambda pair: pair[0], reverse=True
        )  # stable: equal scores stay in the passages' order
        return tuple(dict.fromkeys(sentence for _, sentence in scored))

    def _terms(self, text: str) -> frozenset[str]:
        return frozenset(self._index.terms(text))

    def _weight(self, terms: frozenset[str]) -> float:
        # sorted: a sum of floats depends on the order, and that of a set of strings changes from process to
        # process
        return sum(self._index.inverse_document_frequency(term) for term in sorted(terms))


Reader: TypeAlias = (
    BestSentenceReader
    | model_readers.SpanReader
    | model_readers.CausalReader
    | model_readers.SequenceToSequenceReader
)
"""Who turns passages, `Reader.passages` a question, into answers for each question, best first."""


def holds_what_is_asked(question: str, sentence: str) -> bool:
    """Whether a sentence holds the kind of thing that the question asks for.

    It is true if the question does not say.
    """
    lower_question = question.lower()
    for asks, holds in _KINDS:
        if asks.search(lower_question):
            matches = holds.findall(sentence)
            return (
                any(name.lower() not in lower_question for name in matches)
                if holds is _NAME
                else bool(matches)
            )
    return True
