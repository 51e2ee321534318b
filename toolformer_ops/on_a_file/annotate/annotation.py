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

from toolformer_ops.annotation.filtering import filter_document, kept_paragraphs
from toolformer_ops.config import Settings
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, device_kind
from toolformer_ops.on_a_file.annotate.annotation_counts import AnnotationCounts
from toolformer_ops.on_a_file.annotate.annotator import (
    AnnotatedParagraph,
    Annotator,
    distinct_documents,
    models_of,
    with_verdict,
)
from toolformer_ops.on_a_file.annotate.partial_file import PartialFile
from toolformer_ops.on_a_file.annotate.pooled_placebos import TextOfCalls, judge_by_placebos
from toolformer_ops.on_a_file.annotate.shown_calls import FailedCall, most_gain
from toolformer_ops.records import Document, Paragraph, variant_id_of
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import with_sample_end
from toolformer_ops.runs.proposers import proposer_identity, require_proposing_tools
from toolformer_ops.runs.recipes import tool_recipes
from toolformer_ops.tools.base import FilterDecision
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.writing_systems import tokens_before

BATCH_SECONDS = 10.0
"""Texts that are annotated together are twice as many as before until they take so long: a kill loses at most
about twice as much. On two cores 24 short texts together take 23 CPU seconds, four together 32, one by one
68."""

Row = dict[str, Any]
"""A call with its losses, as `annotate` prints it."""
Documents = Callable[[], Iterator[tuple[str, Document]]]
"""Returns the documents with the names of their records, the same ones each time."""


@dataclass(frozen=True, kw_only=True)
class AnnotatedText:
    """What one tool has found in a text."""

    name: str
    """The name of its record."""
    tool: str
    document: Document
    counts: Counter[str]
    """As the stages count in the ledger."""
    without_result: Counter[FailedCall]
    """Its calls that get no result."""
    rows: list[Row]
    """Its calls with a result, in the order of the text."""

    @property
    def is_kept(self) -> bool:
        """Whether a call of it is kept."""
        return any(row["kept"] for row in self.rows)

    @property
    def why_nothing(self) -> str | None:
        """Why no call of it is kept, by the call or sample that came furthest (`runs/reasons.py`).

        It is None if one is kept.
        """
        if self.is_kept:
            return None
        if self.rows:
            best = max(self.rows, key=most_gain)
            return str(best["not_kept"])
        failures = Counter[str]()
        for failed, calls in self.without_result.items():
            failures[failed.reason] += calls
        samples = Counter(
            {reason: n for reason, n in self.counts.items() if reason.startswith(("sample_", "proposal_"))}
        )
        for reasons in (failures, samples):
            if reasons:
                return reasons.most_common(1)[0][0]
        return "positions_pruned_below" if self.counts["positions"] else "texts_without_position"


@dataclass(frozen=True)
class _DocumentToAnnotate:
    """A document that at least one tool is asked about."""

    name: str
    document: Document
    paragraphs: dict[str, list[Paragraph]]
    """By tool, what its filter keeps."""


@dataclass
class Annotation:
    """The annotation of some documents by the tools of a run's parameters."""

    settings: Settings
    choices: RunChoices
    documents: Documents
    annotators: Sequence[Annotator]
    counts: AnnotationCounts

    def __post_init__(self) -> None:
        self._recipe_ids: dict[str, str] = {}

    @classmethod
    def of(cls, settings: Settings, choices: RunChoices, documents: Documents | None = None) -> "Annotation":
        """Annotate documents by the tools and the model of a run's parameters; by default those of its corpus.

        Raises as `models_of` and `require_proposing_tools`.
        """
        require_proposing_tools(choices)
        choices = with_sample_end(settings, choices)
        corpus, limit = choices.corpus_address, choices.document_limit
        documents = documents or functools.partial(distinct_documents, settings, corpus, limit)
        models = models_of(settings, choices)
        annotators = [
            Annotator(settings=settings, tool=get_tool(name), choices=choices, models=models)
            for name in choices.tools
        ]
        counts = AnnotationCounts.of(choices.tools)
        return cls(
            settings=settings, choices=choices, documents=documents, annotators=annotators, counts=counts
        )

    def rows(self, partial: PartialFile) -> Iterator[Row]:
        """Every call with a result, text by text and tool by tool, as soon as nothing can change it any more.

        Raises as `read_corpus`, and as the model and the tools do.
        """
        self.count_texts()
        if not self.choices.wants_placebos:
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
        for annotator in self.annotators:
            annotator.tool.version(self.settings, "")
        self.counts.begins("reading the texts")
        for _, document in self.documents():
            self.counts.texts += 1
            for annotator in self.annotators:
                decisions = self._decisions(annotator, document)
                self.counts.filtered(annotator.tool.spec.name, decisions)

    def texts(self, partial: PartialFile) -> Iterator[AnnotatedText]:
        """What each tool finds in each text that it is asked about, in order.

        None is annotated before its turn comes.
        """
        self.counts.begins("loading the model")
        documents = self._documents_to_annotate()
        together = 1
        while batch := self._batch(documents, together):
            for annotator in self.annotators:
                self.recipe_id(annotator)  # loads the model, which is no part of a batch's time
            started = time.perf_counter()
            texts = self._annotated(batch, partial)
            seconds = time.perf_counter() - started
            if seconds < BATCH_SECONDS:
                together *= 2
            elif seconds > 3 * BATCH_SECONDS:
                together = max(1, together // 2)
            yield from texts

    def _decisions(self, annotator: Annotator, document: Document) -> list[FilterDecision]:
        return filter_document(annotator.tool, document, self.choices, chains=self.choices.chains)

    def _documents_to_annotate(self) -> Iterator[_DocumentToAnnotate]:
        for name, document in self.documents():
            paragraphs = {
                annotator.tool.spec.name: kept_paragraphs(document, self._decisions(annotator, document))
                for annotator in self.annotators
            }
            if any(paragraphs.values()):
                yield _DocumentToAnnotate(name, document, paragraphs)

    def _batch(self, documents: Iterator[_DocumentToAnnotate], together: int) -> list[_DocumentToAnnotate]:
        """The next documents, at most so many, and no more tokens than a micro-batch has but for one document."""
        most = (
            self.settings.micro_batch_tokens
            or BATCH_SIZES[device_kind(self.settings.device)].micro_batch_tokens
        )
        batch: list[_DocumentToAnnotate] = []
        tokens = 0.0
        for item in itertools.islice(documents, together):
            batch.append(item)
            tokens += float(tokens_before(item.document.text)[-1])
            if tokens >= most:
                break
        return batch

    def _annotated(self, batch: Sequence[_DocumentToAnnotate], partial: PartialFile) -> list[AnnotatedText]:
        """The texts of a batch, each tool's computed together unless an earlier try has finished them."""
        by_tool = {
            annotator.tool.spec.name: self._annotated_by(annotator, batch, partial)
            for annotator in self.annotators
        }
        annotated = []
        for item in batch:
            tools = [tool for tool in self.choices.tools if item.paragraphs[tool]]
            annotated += [by_tool[tool][item.document.document_id] for tool in tools]
        return annotated

    def _annotated_by(
        self, annotator: Annotator, batch: Sequence[_DocumentToAnnotate], partial: PartialFile
    ) -> dict[uuid.UUID, AnnotatedText]:
        """By id, the documents of a batch that the tool is asked about."""
        tool = annotator.tool.spec.name
        items = [item for item in batch if item.paragraphs[tool]]
        if not items:
            return {}
        recipe_id = self.recipe_id(annotator)
        threshold = self.choices.keep_threshold(annotator.tool.spec)
        texts: dict[uuid.UUID, AnnotatedText] = {}
        # 1. What an earlier try has finished.
        for item in items:
            line = partial.line(_key(annotator, recipe_id, item.document))
            if line is not None:
                rows = [with_verdict(row, threshold) for row in line["rows"]]
                failed = Counter({FailedCall(*call): calls for *call, calls in line["failed_calls"]})
                text = _text_of(item, tool, Counter(line["counts"]), failed, rows)
                texts[item.document.document_id] = text
                self.counts.finished(text, is_new=False)
        # 2. The others, together.
        new = [item for item in items if item.document.document_id not in texts]
        self.counts.begins(f"annotating with {tool}")
        paragraphs = itertools.chain.from_iterable(item.paragraphs[tool] for item in new)
        annotated = annotator.annotate(list(paragraphs))
        for item in new:
            parts: list[AnnotatedParagraph] = list(itertools.islice(annotated, len(item.paragraphs[tool])))
            counts = sum((part.counts for part in parts), Counter[str]())
            failed = sum((part.without_result for part in parts), Counter[FailedCall]())
            rows = []
            for part in parts:
                rows += part.lines
            text = _text_of(item, tool, counts, failed, rows)
            partial.add(
                _key(annotator, recipe_id, item.document),
                {"counts": counts, "failed_calls": [(*call, n) for call, n in failed.items()], "rows": rows},
            )
            self.counts.finished(text, is_new=True)
            texts[item.document.document_id] = text
        return texts

    def recipe_id(self, annotator: Annotator) -> str:
        """The recipe of the losses of a tool's calls, which the model, the tool and the parameters decide."""
        tool = annotator.tool.spec.name
        if tool not in self._recipe_ids:
            self._recipe_ids[tool] = self._recipe_id(annotator)
        return self._recipe_ids[tool]

    def _recipe_id(self, annotator: Annotator) -> str:
        identity = annotator.models.model().identity
        recipes = tool_recipes(
            spec=annotator.tool.spec,
            prompt_text=annotator.tool.prompt,
            tool_version=annotator.tool.version(self.settings, identity),
            model_identity=identity,
            dtype=self.settings.dtype,
            choices=self.choices,
            chained_release=self.choices.corpus if self.choices.chains else None,
            proposer_identity=proposer_identity(self.settings, self.choices, annotator.tool),
        )
        return recipes[-1].recipe_id

    def _judge_by_placebos(self, texts: Sequence[AnnotatedText], partial: PartialFile) -> None:
        """Score placebos of all calls of each tool; what the keep rule then keeps is in the rows."""
        for annotator in self.annotators:
            tool = annotator.tool.spec.name
            own = [text for text in texts if text.tool == tool]
            with_calls = []
            for text in own:
                if scored := [row for row in text.rows if row["reason"] in (None, "pruned_below")]:
                    document = text.document
                    with_calls.append(TextOfCalls(str(document.document_id), document.text, scored))
            if with_calls:
                self.counts.begins(f"scoring placebos of {tool}", len(with_calls))
                rate = judge_by_placebos(
                    annotator.models.model,
                    self.choices,
                    tool,
                    self.recipe_id(annotator),
                    self.choices.keep_threshold(annotator.tool.spec),
                    with_calls,
                    partial,
                    self.counts.scored_placebos,
                )
                self.counts.tools[tool].rate = str(rate)
            self.counts.judged(tool, own)


def _text_of(
    item: _DocumentToAnnotate, tool: str, counts: Counter[str], failed: Counter[FailedCall], rows: list[Row]
) -> AnnotatedText:
    """The text with its rows, each of which begins with the name of its record."""
    named = [{"id": item.name, **row} for row in rows]
    return AnnotatedText(
        name=item.name,
        tool=tool,
        document=item.document,
        counts=counts,
        without_result=failed,
        rows=named,
    )


def _key(annotator: Annotator, recipe_id: str, document: Document) -> tuple[str, ...]:
    """Under which a text is finished: its id, and that of its url and date if the tool reads them."""
    text_id = document.document_id
    if annotator.tool.spec.reads_record:
        text_id = variant_id_of(text_id, document.url, document.document_date)
    return ("text", recipe_id, str(text_id))
