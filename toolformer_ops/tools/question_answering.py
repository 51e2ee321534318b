"""QA: answer a factoid question from Wikipedia: retrieve passages, then read an answer out of them.

The paper asks Atlas (Izacard et al., 2022), which also retrieves and reads (section 3 and appendix A.1). Here the
passages come from the index of WikiSearch, and the setting `qa_reader` chooses who reads: `best_sentence` (no model),
`sequence_to_sequence` or `causal` (a checkpoint, `model_readers.py`). Answers that repeat the asking document are
passed over, as those of WikiSearch are: an encyclopedia's sentence may be the document's own. A short answer such as a
name is no repetition (`retrieval/own_text.py`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolError
from toolformer_ops.records import Document, content_uuid
from toolformer_ops.retrieval.bm25_index import K1, B, Bm25Index, PassageSearch
from toolformer_ops.retrieval.index_manifest import read_manifest
from toolformer_ops.retrieval.java_runtime import java_thread
from toolformer_ops.retrieval.stored_passage import FoundPassage
from toolformer_ops.tools import best_sentence, model_readers
from toolformer_ops.tools.base import FilterDecision, ToolOutput, ToolRunner, ToolSpec, load_prompt

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

CODE_VERSION = "1"
"""Raised when a question would get another answer from the same index and reader."""


class Reader(Protocol):
    """Who turns passages into answers."""

    @property
    def passages(self) -> int:
        """How many passages it wants for a question."""
        ...

    def read(self, questions: Sequence[str], passages: Sequence[Sequence[FoundPassage]]) -> list[tuple[str, ...]]:
        """Answers for each question, best first; none where there is none."""
        ...


class QuestionAnsweringRunner:
    """An open index and a reader."""

    def __init__(self, index: PassageSearch, reader: Reader) -> None:
        self._index = index
        self._reader = reader

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """Ranked answers to each question, or why there is none."""
        with java_thread():
            found = self._index.search(inputs, self._reader.passages)
            asked = [number for number, answer in enumerate(found) if answer.reason is None]
            read = self._reader.read([inputs[number] for number in asked], [found[number].passages for number in asked])
        answers = dict(zip(asked, read, strict=True))
        return [
            ToolOutput.none(answer.reason) if answer.reason else _output(answers[number])
            for number, answer in enumerate(found)
        ]


def _output(answers: tuple[str, ...]) -> ToolOutput:
    return ToolOutput(answers) if answers else ToolOutput.none("no_answer")


class QuestionAnswering:
    """The tool; see the module's docstring."""

    spec = ToolSpec(
        name="QA",
        purpose="Answers a factoid question from Wikipedia.",
        prompt_file="question_answering.txt",
        filter_version="1",
        source="Toolformer, section 3 and appendix A: the defaults tau_s 0.05, k 5, m 5, tau_f 1.0; no heuristic filter",
        pass_over_own_text=True,
    )

    def filter(self, document: Document) -> list[FilterDecision]:
        """Every text is worth asking."""
        return [FilterDecision(kept=True, reason="every_text", end_char=len(document.text))]

    def effective_input(self, call_input: str, document: Document) -> str | None:
        """The question with single spaces."""
        return " ".join(call_input.split())

    def input_only_after(self, call_input: str, text_before: str, text_after: str) -> bool:
        """Always False: the rule of appendix A.1 is for translation."""
        return False

    def version(self, settings: Settings, model_identity: str) -> str:
        """The code's version, BM25's numbers, the index, and who reads with which prompt.

        Raises:
            SearchIndexError, ModelError, ToolError: the index or the reader's model is not there.
        """
        fingerprint = read_manifest(settings.index_dir).fingerprint
        reader = _reader_version(settings, model_identity)
        return f"question_answering-{CODE_VERSION} bm25(k1={K1}, b={B}) index={fingerprint[:16]} reader={reader}"

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> ToolRunner:
        """Open the index, and load the reader's model if it has one.

        Raises:
            SearchIndexError, ModelError, ToolError: the index or the reader's model is not there.
        """
        index = Bm25Index.open(settings.index_dir, settings.search_threads)
        reader: Reader
        if settings.qa_reader == "best_sentence":
            reader = best_sentence.BestSentenceReader(index)
        elif settings.qa_reader == "causal":
            reader = model_readers.load_causal_reader(settings, load_model)
        else:
            reader = model_readers.SequenceToSequenceReader.load(
                _checkpoint(settings), settings.qa_reader_revision, settings
            )
        return QuestionAnsweringRunner(index, reader)


def _reader_version(settings: Settings, model_identity: str) -> str:
    if settings.qa_reader == "best_sentence":
        return best_sentence.VERSION
    prompt = content_uuid(load_prompt(model_readers.PROMPT_FILE)).hex[:16]
    if settings.qa_reader == "causal" and settings.qa_reader_model is None:
        identity = model_identity
    else:
        from toolformer_ops.language_model.identity import model_identity as identity_of

        identity = identity_of(_checkpoint(settings), settings.qa_reader_revision)
    numbers = f"passages={model_readers.PASSAGES}, tokens={model_readers.ANSWER_TOKENS}"
    return f"{settings.qa_reader}({identity}, prompt={prompt}, {numbers})"


def _checkpoint(settings: Settings) -> str:
    if settings.qa_reader_model is None:
        raise ToolError(
            f"qa_reader is {settings.qa_reader}: expected a checkpoint in the setting TOOLFORMER_QA_READER_MODEL, found none."
        )
    return settings.qa_reader_model


TOOL = QuestionAnswering()
