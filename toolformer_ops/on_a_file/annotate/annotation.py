"""Annotate texts with several tools in one process: what `annotate` and `preview` do, and a notebook.

1. The filters are asked once, so that it is known how much there is to do.
2. Texts are annotated some together, with one tool after the other, by one loaded model; each is added to the
   partial file (`partial_file.py`) at once.
3. If placebos are wanted, the calls of all texts are their pool, so that rows are final only then
   (`pooled_placebos.py`). Without, the rows of each text are final at once.

How far this is, `annotation_counts.py` counts.
"""

import functools
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, device_kind
from toolformer_ops.on_a_file.annotate.annotation_counts import AnnotationCounts
from toolformer_ops.on_a_file.annotate.annotator import ToolAnnotator, distinct_documents, with_verdict
from toolformer_ops.on_a_file.annotate.partial_file import PartialFile
from toolformer_ops.on_a_file.annotate.pooled_placebos import TextOfCalls, judge_by_placebos
from toolformer_ops.on_a_file.annotate.shown_calls import FailedCall
from toolformer_ops.on_a_file.annotate.text_annotator import (
    AnnotatedText,
    Row,
    TextAnnotator,
    TextToAnnotate,
)
from toolformer_ops.records import Document, variant_id_of
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.writing_systems import tokens_before

BATCH_SECONDS = 10.0
"""Texts that are annotated together are twice as many as before until they take so long: a kill loses at most
about twice as much. On two cores 24 short texts together take 23 CPU seconds, four together 32, one by one
68."""

Documents = Callable[[], Iterator[tuple[str, Document]]]
"""Returns the documents with the names of their records, the same ones each time."""


@dataclass
class Annotation:
    """The annotation of some documents by the tools of a run's parameters."""

    annotator: TextAnnotator
    documents: Documents
    counts: AnnotationCounts

    @classmethod
    def of(cls, settings: Settings, choices: RunChoices, documents: Documents | None = None) -> "Annotation":
        """Annotate documents by the tools and the model of a run's parameters; by default those of its corpus.

        Raises as `TextAnnotator.of`.
        """
        return cls.by(TextAnnotator.of(settings, choices), choices, documents)

    @classmethod
    def by(
        cls, annotator: TextAnnotator, choices: RunChoices, documents: Documents | None = None
    ) -> "Annotation":
        """Annotate documents by an annotator; by default those of the corpus that the choices name."""
        corpus, limit = choices.corpus_address, choices.document_limit
        corpus_documents = functools.partial(distinct_documents, annotator.settings, corpus, limit)
        return cls(annotator, documents or corpus_documents, AnnotationCounts.of(choices.tools))

    def rows(self, partial: PartialFile) -> Iterator[Row]:
        """Every call with a result, text by text and tool by tool, as soon as nothing can change it any more.

        Raises as `read_corpus`, and as the model and the tools do.
        """
        self.count_texts()
        if not self.annotator.choices.wants_placebos:
            for text in self.texts(partial):
                yield from text.rows
        else:
            texts = list(self.texts(partial))
            self._judge_by_placebos(texts, partial)
            for text in texts:
                yield from text.rows
        self.counts.ended()

    def count_texts(self) -> None:
        """Ask the filters about all documents, and count what they say, so that it is known how much there is to do.

        Raises before that if an index or a model of a tool is not there.
        """
        self.annotator.require_tools()
        self.counts.begins("reading the texts")
        for _, document in self.documents():
            self.counts.texts += 1
            for annotator in self.annotator.tools:
                self.counts.filtered(annotator.name, self.annotator.decisions(annotator, document))

    def texts(self, partial: PartialFile) -> Iterator[AnnotatedText]:
        """What each tool finds in each text that it is asked about, in order.

        None is annotated before its turn comes.
        """
        self.counts.begins("loading the model")
        texts = self._texts_to_annotate()
        together = 1
        while batch := self._batch(texts, together):
            for annotator in self.annotator.tools:
                annotator.recipe_id  # noqa: B018 - loads the model, which is no part of a batch's time
            started = time.perf_counter()
            annotated = self._annotated(batch, partial)
            seconds = time.perf_counter() - started
            if seconds < BATCH_SECONDS:
                together *= 2
            elif seconds > 3 * BATCH_SECONDS:
                together = max(1, together // 2)
            yield from annotated

    def _texts_to_annotate(self) -> Iterator[TextToAnnotate]:
        for name, document in self.documents():
            text = self.annotator.to_annotate(name, document)
            if any(text.paragraphs.values()):
                yield text

    def _batch(self, texts: Iterator[TextToAnnotate], together: int) -> list[TextToAnnotate]:
        """The next texts, at most so many, and no more tokens than a micro-batch has but for one text."""
        settings = self.annotator.settings
        most = settings.micro_batch_tokens or BATCH_SIZES[device_kind(settings.device)].micro_batch_tokens
        batch: list[TextToAnnotate] = []
        tokens = 0.0
        for item in itertools.islice(texts, together):
            batch.append(item)
            tokens += float(tokens_before(item.document.text)[-1])
            if tokens >= most:
                break
        return batch

    def _annotated(self, batch: Sequence[TextToAnnotate], partial: PartialFile) -> list[AnnotatedText]:
        """The texts of a batch, each tool's computed together unless an earlier try has finished them."""
        by_tool = {
            annotator.name: self._annotated_by(annotator, batch, partial)
            for annotator in self.annotator.tools
        }
        annotated = []
        for item in batch:
            tools = [tool for tool in by_tool if item.paragraphs[tool]]
            annotated += [by_tool[tool][item.document.document_id] for tool in tools]
        return annotated

    def _annotated_by(
        self, annotator: ToolAnnotator, batch: Sequence[TextToAnnotate], partial: PartialFile
    ) -> dict[uuid.UUID, AnnotatedText]:
        """By id, the documents of a batch that the tool is asked about."""
        items = [item for item in batch if item.paragraphs[annotator.name]]
        texts: dict[uuid.UUID, AnnotatedText] = {}
        # 1. What an earlier try has finished.
        for item in items:
            line = partial.line(_key(annotator, item.document))
            if line is not None:
                text = _stored_text(item, annotator, line)
                texts[item.document.document_id] = text
                self.counts.finished(text, is_new=False)
        # 2. The others, together.
        new = [item for item in items if item.document.document_id not in texts]
        self.counts.begins(f"annotating with {annotator.name}")
        for text in self.annotator.annotated(annotator, new):
            failed_calls = [(*call, n) for call, n in text.without_result.items()]
            stored = {"counts": text.counts, "failed_calls": failed_calls, "rows": text.rows}
            partial.add(_key(annotator, text.document), stored)
            self.counts.finished(text, is_new=True)
            texts[text.document.document_id] = text
        return texts

    def _judge_by_placebos(self, texts: Sequence[AnnotatedText], partial: PartialFile) -> None:
        """Score placebos of all calls of each tool; what the keep rule then keeps is in the rows."""
        for annotator in self.annotator.tools:
            tool = annotator.name
            own = [text for text in texts if text.tool == tool]
            with_calls = [calls for calls in map(TextOfCalls.of, own) if calls.lines]
            if with_calls:
                self.counts.begins(f"scoring placebos of {tool}", len(with_calls))
                rate = judge_by_placebos(
                    annotator.models.model,
                    self.annotator.choices,
                    tool,
                    annotator.recipe_id,
                    annotator.keep_threshold,
                    with_calls,
                    partial,
                    self.counts.scored_placebos,
                )
                self.counts.tools[tool].rate = str(rate)
            self.counts.judged(tool, own)


def _stored_text(item: TextToAnnotate, annotator: ToolAnnotator, line: dict[str, Any]) -> AnnotatedText:
    """The text of a line of the partial file, judged by the keep threshold of now."""
    rows = [with_verdict({**row, "id": item.name}, annotator.keep_threshold) for row in line["rows"]]
    return AnnotatedText(
        name=item.name,
        tool=annotator.name,
        document=item.document,
        counts=Counter(line["counts"]),
        without_result=Counter({FailedCall(*call): calls for *call, calls in line["failed_calls"]}),
        rows=rows,
    )


def _key(annotator: ToolAnnotator, document: Document) -> tuple[str, ...]:
    """Under which a text is finished: its id, and that of its url and date if the tool reads them."""
    text_id = document.document_id
    if annotator.tool.spec.reads_record:
        text_id = variant_id_of(text_id, document.url, document.document_date)
    return ("text", annotator.recipe_id, str(text_id))
