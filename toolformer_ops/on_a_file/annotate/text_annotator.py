"""Several tools and one model, open: what each tool finds in some texts.

The rows of a text depend on the text and the choices alone, not on what is annotated with it. Placebos are drawn
from a pool that is given (`given_placebos.py`), or from the calls of all texts of a file (`annotation.py`).
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolformer_ops.annotation.filtering import filter_document, kept_paragraphs
from toolformer_ops.annotation.placebo import PlaceboDraw
from toolformer_ops.config import Settings
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, device_kind
from toolformer_ops.on_a_file.annotate.annotator import (
    AnnotatedParagraph,
    Models,
    ToolAnnotator,
    models_of,
)
from toolformer_ops.on_a_file.annotate.pooled_placebos import TextOfCalls, judge
from toolformer_ops.on_a_file.annotate.shown_calls import FailedCall, most_gain
from toolformer_ops.records import Document, Paragraph
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import with_sample_end
from toolformer_ops.runs.proposers import require_proposing_tools
from toolformer_ops.tools.base import FilterDecision
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.writing_systems import tokens_before

Row = dict[str, Any]
"""A call with its losses, as `annotate` prints it."""


@dataclass(frozen=True)
class TextToAnnotate:
    """A text with what each tool is asked about."""

    name: str
    """The name of its record."""
    document: Document
    decisions: dict[str, list[FilterDecision]]
    """By tool, what its filter says."""
    paragraphs: dict[str, list[Paragraph]]
    """By tool, what its filter keeps."""


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

    def named(self, name: str) -> "AnnotatedText":
        """A copy under the name of another record, whose rows may be changed."""
        return replace(self, name=name, rows=[{**row, "id": name} for row in self.rows])

    def of_calls(self) -> TextOfCalls:
        """Its calls that have losses."""
        return TextOfCalls.of_rows(str(self.document.document_id), self.document.text, self.rows)

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
class TextAnnotator:
    """The tools of a run's choices with the model that they share, which is loaded when it is first asked for."""

    settings: Settings
    choices: RunChoices
    tools: Sequence[ToolAnnotator]

    @classmethod
    def of(cls, settings: Settings, choices: RunChoices, models: Models | None = None) -> "TextAnnotator":
        """The tools and the model that the choices name; `models` are theirs if they are loaded already.

        Raises as `models_of` and `require_proposing_tools`.
        """
        require_proposing_tools(choices)
        choices = with_sample_end(settings, choices)
        models = models or models_of(settings, choices)
        tools = [
            ToolAnnotator(settings=settings, tool=get_tool(name), choices=choices, models=models)
            for name in choices.tools
        ]
        return cls(settings, choices, tools)

    def require_tools(self) -> None:
        """Raise if an index or a model of a tool is not there: before the language model is loaded."""
        for annotator in self.tools:
            annotator.tool.version(self.settings, "")

    def to_annotate(self, name: str, document: Document, only: ToolAnnotator | None = None) -> TextToAnnotate:
        """The document with what each tool is asked about, or one alone; `name` is that of its record."""
        decisions: dict[str, list[FilterDecision]] = {}
        for annotator in [only] if only else self.tools:
            decisions[annotator.name] = filter_document(
                annotator.tool, document, self.choices, chains=self.choices.chains
            )
        paragraphs = {tool: kept_paragraphs(document, parts) for tool, parts in decisions.items()}
        return TextToAnnotate(name, document, decisions, paragraphs)

    def batches(self, texts: Iterable[TextToAnnotate], most_texts: int) -> Iterator[list[TextToAnnotate]]:
        """The texts, so many together, and no more tokens than a micro-batch has but for one text."""
        settings = self.settings
        most_tokens = (
            settings.micro_batch_tokens or BATCH_SIZES[device_kind(settings.device)].micro_batch_tokens
        )
        batch: list[TextToAnnotate] = []
        tokens = 0.0
        for text in texts:
            batch.append(text)
            tokens += float(tokens_before(text.document.text)[-1])
            if len(batch) >= most_texts or tokens >= most_tokens:
                yield batch
                batch, tokens = [], 0.0
        if batch:
            yield batch

    def annotated(self, annotator: ToolAnnotator, texts: Sequence[TextToAnnotate]) -> list[AnnotatedText]:
        """What the tool finds in each text, in order, before placebos; all texts are computed together."""
        paragraphs = itertools.chain.from_iterable(text.paragraphs[annotator.name] for text in texts)
        annotated = annotator.annotate(list(paragraphs))
        texts_annotated: list[AnnotatedText] = []
        for text in texts:
            parts: list[AnnotatedParagraph] = list(
                itertools.islice(annotated, len(text.paragraphs[annotator.name]))
            )
            rows: list[Row] = []
            for part in parts:
                rows += [{"id": text.name, **line} for line in part.lines]
            annotated_text = AnnotatedText(
                name=text.name,
                tool=annotator.name,
                document=text.document,
                counts=sum((part.counts for part in parts), Counter[str]()),
                without_result=sum((part.without_result for part in parts), Counter[FailedCall]()),
                rows=rows,
            )
            texts_annotated.append(annotated_text)
        return texts_annotated

    def judge(self, annotator: ToolAnnotator, texts: Sequence[AnnotatedText], draw: PlaceboDraw) -> None:
        """Score the placebos of the texts' calls; what they say is in the rows then."""
        judge(
            annotator.models.model,
            self.choices,
            annotator.keep_threshold,
            [text.of_calls() for text in texts],
            draw,
        )

    def close(self) -> None:
        """Close the tools; the model goes with this object."""
        for annotator in self.tools:
            annotator.close()
