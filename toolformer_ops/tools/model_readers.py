"""Answer a question with a model that reads the best passages.

It is an encoder-decoder checkpoint, or a causal language model. The paper asks Atlas, a retrieval-augmented
encoder-decoder finetuned on Natural Questions (appendix A.1). A checkpoint here is read as it is: passages
and question fill the prompt `prompts/read_passages.txt`. `SequenceToSequenceReader` and `CausalReader` take
what the model writes, greedily, up to the end of the line. `SpanReader` is extractive: a causal model chooses
among the names, dates and numbers in the best sentences, since a small model writes sentences if a few words
are asked for. Only safetensors are loaded, and no code that comes with a model is run.
"""

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.errors import DeviceMemoryError, ModelError
from toolformer_ops.language_model.models.identity import split_revision
from toolformer_ops.tools.base import TEXT_SLOT, load_prompt
from toolformer_ops.tools.calendar import MONTHS
from toolformer_ops.tools.retrieval.bm25_index import FoundPassage
from toolformer_ops.tools.retrieval.sentences import cut_at_sentence_end
from toolformer_ops.tools.sequence_to_sequence import load_checkpoint, write_in_batches

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

PROMPT = Path(__file__).parent / "prompts" / "read_passages.txt"
PASSAGES = 3
ANSWER_TOKENS = 32
"""Most tokens that a model may write for an answer."""
BATCH_QUESTIONS = 16
DEFAULT_INPUT_TOKENS = 1024
SPAN_SENTENCES = 4
"""Sentences that spans are taken from, one a passage."""
MOST_SPANS = 40
NATS_A_RANK = 2.0
"""How much likelier a span must be to win against one in a sentence that matches the question better by one
rank."""
SPAN_ANSWERS = 5
_ABSURD_LENGTH = 1_000_000  # tokenizers without a limit name a number of this kind

_log = logging.getLogger(__name__)


class CausalReader:
    """A causal language model that continues "Answer:"."""

    passages = PASSAGES

    def __init__(self, model: "LanguageModel") -> None:
        self._model = model
        self._prompt = load_prompt(PROMPT)

    def read(
        self, questions: Sequence[str], passages: Sequence[Sequence[FoundPassage]]
    ) -> list[tuple[str, ...]]:
        """One answer a question.

        None if the model writes nothing or the question alone is too long for it.
        """
        prompts = [
            fill_prompt(self._prompt, question, question_passages)
            for question, question_passages in zip(questions, passages, strict=True)
        ]
        try:
            written = self._model.generate_texts(prompts, max_new_tokens=ANSWER_TOKENS, stop="\n")
            return [answer_of(text) for text in written]
        except (ModelError, DeviceMemoryError) as error:
            if len(questions) > 1:  # a prompt is too long for window or memory: find out which
                pairs = zip(questions, passages, strict=True)
                return [
                    self.read([question], [question_passages])[0] for question, question_passages in pairs
                ]
            _log.info("reading fewer than %d passages for %r: %s", len(passages[0]), questions[0][:80], error)
            return self.read(questions, [passages[0][:-1]]) if passages[0] else [()]


_CAPITALISED = r"(?:[A-Z][\w'\u2019.&-]*\w|[A-Z])"
_JOINING = "(?:of|the|de|von|van|and|la|del|du|al|for|in)"
_SPAN = re.compile(
    rf"(?:\d{{1,2}} )?(?:{'|'.join(MONTHS)})(?: \d{{1,2}})?(?:,? \d{{4}})?"  # a date
    r"|\b\d[\d,.]*\d\b(?: (?:million|billion|thousand|percent|%))?|\b\d\b"  # a number
    rf"|{_CAPITALISED}(?:(?: {_JOINING})* {_CAPITALISED}\.?)*"  # a name
)


class SpanReader:
    """Answers with the names, dates and numbers in the best sentences, likeliest first as the model's answer.

    A span's score is the natural log probability of it, with the end of its line, after the sentences and
    the question; less `NATS_A_RANK` for each rank of the first sentence that holds it. What the question
    itself says is no span. Sentences without any are given as they are, and so are they if the prompt does
    not fit into the model's window.

    Measured with SmolLM2-135M: docs/measurements.md, "Search and answers".
    """

    passages = 5

    def __init__(
        self, model: "LanguageModel", best_sentences: Callable[[str, Sequence[FoundPassage]], tuple[str, ...]]
    ) -> None:
        """`best_sentences`: that of each passage for a question, best first."""
        self._model = model
        self._best_sentences = best_sentences
        self._prompt = load_prompt(PROMPT)

    def read(
        self, questions: Sequence[str], passages: Sequence[Sequence[FoundPassage]]
    ) -> list[tuple[str, ...]]:
        """The likeliest spans of each question, best first, at most `SPAN_ANSWERS`.

        None if there is no sentence.
        """
        answers = []
        for question, question_passages in zip(questions, passages, strict=True):
            sentences = self._best_sentences(question, question_passages)
            read = sentences[:SPAN_SENTENCES]
            rank_of = spans_in(question, read)
            prompt = self._prompt.replace(TEXT_SLOT, "\n".join([*read, f"Question: {question}"]))
            try:
                likely = self._model.continuation_log_probabilities(
                    prompt, [f" {span}\n" for span in rank_of]
                )
            except (ModelError, DeviceMemoryError) as error:
                _log.info("no span is chosen for %r: %s", question[:80], error)
                answers.append(sentences)
                continue
            scores = {
                span: log_p - NATS_A_RANK * rank_of[span] for span, log_p in zip(rank_of, likely, strict=True)
            }
            best = sorted(
                scores, key=lambda span: -scores[span]
            )  # stable: equal scores stay in the sentences' order
            answers.append(tuple(best[:SPAN_ANSWERS]) or sentences)
        return answers


def spans_in(question: str, sentences: Sequence[str]) -> dict[str, int]:
    """The different names, dates and numbers in the sentences, in order, that the question does not hold.

    They are at most `MOST_SPANS`. Each with the rank, from 0, of the first sentence that holds it.
    """
    lower_question = question.lower()
    rank_of_span: dict[str, int] = {}
    for rank, sentence in enumerate(sentences):
        for match in _SPAN.finditer(sentence):
            if match.group().lower() not in lower_question and len(rank_of_span) < MOST_SPANS:
                rank_of_span.setdefault(match.group(), rank)
    return rank_of_span


class SequenceToSequenceReader:
    """An encoder-decoder that is given the prompt and writes the answer."""

    passages = PASSAGES

    def __init__(self, checkpoint: str, settings: Settings) -> None:
        """Load a checkpoint, in float32, on the settings' device.

        Raises:
            ToolError: there is none, or it is not an encoder-decoder in safetensors.
        """
        self._model, self._tokenizer = load_checkpoint(
            "TOOLFORMER_QA_READER_MODEL", *split_revision(checkpoint), settings, "float32"
        )
        self._prompt = load_prompt(PROMPT)
        limits = [
            getattr(self._model.config, name, None) for name in ("max_position_embeddings", "n_positions")
        ]
        limits.append(getattr(self._tokenizer, "model_max_length", None))
        sane = [int(limit) for limit in limits if limit and limit < _ABSURD_LENGTH]
        self.most_tokens = min(sane, default=DEFAULT_INPUT_TOKENS)
        """Tokens that the encoder takes."""

    def read(
        self, questions: Sequence[str], passages: Sequence[Sequence[FoundPassage]]
    ) -> list[tuple[str, ...]]:
        """One answer a question.

        None if the model writes nothing or the question alone is too long for it.
        """
        prompts = [
            self.fitting_prompt(question, question_passages)
            for question, question_passages in zip(questions, passages, strict=True)
        ]
        encoded = [self._tokenizer(prompt)["input_ids"] for prompt in prompts if prompt]
        options = {"max_new_tokens": ANSWER_TOKENS, "num_beams": 1}
        written = iter(write_in_batches(self._model, self._tokenizer, encoded, BATCH_QUESTIONS, **options))
        return [answer_of(next(written)[0]) if prompt else () for prompt in prompts]

    def fitting_prompt(self, question: str, passages: Sequence[FoundPassage]) -> str:
        """The prompt with as many of the best passages as the model takes.

        It is empty if it takes not even the question.
        """
        for count in range(len(passages), -1, -1):
            prompt = fill_prompt(self._prompt, question, passages[:count])
            if len(self._tokenizer(prompt)["input_ids"]) <= self.most_tokens:
                return prompt
        return ""


def fill_prompt(prompt: str, question: str, passages: Sequence[FoundPassage]) -> str:
    """The prompt with passages, best first, and the question in its slot."""
    lines = [f"{passage.heading}: {passage.text}" for passage in passages]
    return prompt.replace(TEXT_SLOT, "\n".join([*lines, f"Question: {question}"]))


def answer_of(written: str) -> tuple[str, ...]:
    """The first line that holds something, cut to the answer budget; nothing if there is none."""
    lines = (" ".join(line.split()) for line in written.splitlines())
    answer = cut_at_sentence_end(next((line for line in lines if line), ""), 2 * ANSWER_TOKENS)
    return (answer,) if any(character.isalnum() for character in answer) else ()


def load_causal_model(settings: Settings, load_model: "Callable[[], LanguageModel]") -> "LanguageModel":
    """The causal checkpoint of the settings, or the run's own language model if they name none.

    Raises:
        ModelError: the checkpoint cannot be used.
    """
    if settings.qa_reader_model is None:
        return load_model()
    from toolformer_ops.language_model.model import LanguageModel

    return LanguageModel.load(
        *split_revision(settings.qa_reader_model),
        settings.dtype,
        settings.device,
        settings.threads,
        settings,
    )
