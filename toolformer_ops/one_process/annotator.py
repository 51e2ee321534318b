"""The whole method in one process, on a file, without Airflow or Postgres: what the commands for people do.

Calls the same functions as the stages, so that what it prints for a text is what a run would store. Keeps nothing.
"""

import dataclasses
import datetime
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolformer_ops.annotation.candidates import Candidate, Paragraph, Place, SampledText, sample_texts
from toolformer_ops.call_syntax import call_with_result, call_without_result, clean_result
from toolformer_ops.config import Settings
from toolformer_ops.corpus.files import find_files, read_lines
from toolformer_ops.corpus.records import Record, Rejection, read_record
from toolformer_ops.errors import ParameterError
from toolformer_ops.losses import is_kept
from toolformer_ops.records import CallLosses, Document, PlacedCall, normal_uri
from toolformer_ops.retrieval.own_text import OwnText
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import split_revision
from toolformer_ops.stages.filtering import decide
from toolformer_ops.stages.scoring import choose_result, score_text, stored_losses
from toolformer_ops.tools.base import FilterDecision, Tool, ToolOutput, ToolRunner, run_tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model import AnnotationPrompt, LanguageModel


def load(settings: Settings, model: str) -> "LanguageModel":
    """The model of that name, as the settings say it is to run."""
    from toolformer_ops.language_model import LanguageModel

    name, revision = split_revision(model)
    return LanguageModel.load(
        name, revision=revision, dtype=settings.dtype, device=settings.device, threads=settings.threads
    )


def document_of(text: str, date: str | None) -> Document:
    """A document as a person gives it on the command line.

    Raises:
        ParameterError: the date is not written YYYY-MM-DD.
    """
    try:
        return Document.of(text, document_date=datetime.date.fromisoformat(date) if date else None)
    except ValueError as error:
        raise ParameterError(f"--date: expected a date such as 2023-01-30, found {date!r}.") from error


def run_one(
    settings: Settings, tool_name: str, call_input: str, date: str | None, model_name: Callable[[], str]
) -> ToolOutput:
    """One tool, one input, as a run would ask it; the model is loaded only if the tool asks for it."""
    tool = get_tool(tool_name)
    effective_input = tool.effective_input(call_input, document_of("", date))
    if effective_input is None:
        return ToolOutput.none("document_has_no_date" if tool.spec.needs_date else "input_not_usable")
    runner = tool.open(settings, lambda: load(settings, model_name()))
    [output] = run_tool(runner, [effective_input], settings.tool_time_limit_seconds)
    return output


def read_corpus(settings: Settings, corpus: Path | str) -> Iterator[tuple[str, Record | Rejection]]:
    """Each record of a file or folder (also on S3), or why it is refused, with the name to print for it: its id, or file and line.

    Raises:
        CorpusError: there is nothing at that path.
    """
    for file in find_files(settings, normal_uri(str(corpus))):
        for line in read_lines(file, settings.max_line_bytes):
            record = Rejection(line.reason, line.detail) if line.reason else read_record(line.content)
            named = isinstance(record, Record) and record.record_id
            yield named or f"{Path(file.uri).name}:{line.number}", record


def filter_lines(settings: Settings, tool_name: str, corpus: Path) -> Iterator[dict[str, Any]]:
    """`id`, `kept`, `reason` of each document; of each paragraph, with its number, for a tool that judges paragraphs.

    A record that cannot be read is a refusal with its reason.
    """
    tool = get_tool(tool_name)
    for name, record in read_corpus(settings, corpus):
        if isinstance(record, Rejection):
            yield {"id": name, "kept": False, "reason": record.reason}
            continue
        for decision in decide(tool, record.document()):
            line: dict[str, Any] = {"id": name, "kept": decision.kept, "reason": decision.reason}
            if tool.spec.filter_unit == "paragraph":
                line["paragraph"] = decision.paragraph
            yield line


def annotate_file(
    settings: Settings, corpus: Path, tool_name: str, model_name: str, limit: int | None, values: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Every call with a result of a file's documents, in the order of the text, with its losses and whether it is kept.

    Raises:
        ParameterError: the keep threshold is below `prune_below`.
    """
    tool = get_tool(tool_name)
    choices = RunChoices.parse({"tools": (tool.spec.name,), **values, "corpus": str(corpus), "model": model_name})
    annotator = Annotator(settings, tool, choices, functools.cache(lambda: load(settings, model_name)))
    documents = (record.document() for _, record in read_corpus(settings, corpus) if isinstance(record, Record))
    for number, document in enumerate(documents):
        if limit is not None and number >= limit:
            return
        places = [(document, paragraph) for paragraph in kept_paragraphs(decide(annotator.tool, document))]
        for annotated in annotator.annotate(places):
            yield from annotated.lines


def kept_paragraphs(decisions: Sequence[FilterDecision]) -> list[Paragraph]:
    """The paragraphs that a filter kept."""
    return [Paragraph(item.paragraph, item.start_char, item.end_char) for item in decisions if item.kept]


@dataclasses.dataclass
class Annotator:
    """The method for one tool: what the stages do with a micro-batch."""

    settings: Settings
    tool: Tool
    choices: RunChoices
    model: "Callable[[], LanguageModel]"
    """Gives the same model each time; asked only where a text is kept."""

    @functools.cached_property
    def prompt(self) -> "AnnotationPrompt":
        """The tool's prompt, as the engine takes it."""
        from toolformer_ops.language_model import AnnotationPrompt

        return AnnotationPrompt(self.tool.spec.name, self.tool.prompt)

    @functools.cached_property
    def runner(self) -> ToolRunner:
        """The tool, open."""
        return self.tool.open(self.settings, self.model)

    def __post_init__(self) -> None:
        self._keep_threshold = self.choices.keep_threshold(self.tool.spec)

    def open(self, text: str) -> None:
        """Load what is loaded once a process, and read the prompt once: with it the first text takes as long as the others."""
        self.model().find_positions(self.prompt, [text], at_most=1, threshold=0.0)
        self.runner  # noqa: B018 - opened here

    def annotate(self, places: Sequence[Place]) -> Iterator["AnnotatedText"]:
        """What becomes of each kept text, in order; they are sampled together, as a stage does with a micro-batch."""
        if places:
            choices = self.choices.for_tool(self.tool.spec)
            for sampled in sample_texts(self.model(), self.prompt, self.tool, choices, places):
                yield self._execute_and_score(sampled)

    def _execute_and_score(self, sampled: SampledText) -> "AnnotatedText":
        document, paragraph = sampled.document, sampled.paragraph
        seconds = {"sample": sampled.seconds}
        inputs = [candidate.effective_input for candidate in sampled.candidates]
        with _spent(seconds, "execute"):
            outputs = run_tool(self.runner, inputs, self.settings.tool_time_limit_seconds) if inputs else []
        with _spent(seconds, "score"):
            own_text = own_text_of(self.tool, document)
            answered: list[tuple[Candidate, str]] = []
            for candidate, output in zip(sampled.candidates, outputs, strict=True):
                chosen = choose_result(output.results, output.reason, own_text)
                if chosen.text is not None:
                    answered.append((candidate, chosen.text))
            placed = [
                PlacedCall(item.position.token, call_with_result(item.call, result), call_without_result(item.call))
                for item, result in answered
            ]
            text = document.text[paragraph.start_char : paragraph.end_char]
            losses = score_text(self.model(), self.choices, text, placed) if placed else []
        lines = [
            _line(document, paragraph, candidate, result, loss, self._keep_threshold)
            for (candidate, result), loss in zip(answered, losses, strict=True)
        ]
        return AnnotatedText(lines, Counter({**sampled.counts, "inputs": len(set(inputs))}), seconds)


@dataclasses.dataclass(frozen=True)
class AnnotatedText:
    """What became of one kept text."""

    lines: list[dict[str, Any]]
    """One for each call with a result, in the order of the text."""
    counts: Counter[str]
    """As the stages count in the ledger."""
    seconds: dict[str, float]
    """By stage; in sampling, its share of what the texts that were sampled together took."""


@contextmanager
def _spent(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - started


def _line(
    document: Document,
    paragraph: Paragraph,
    candidate: Candidate,
    result: str,
    losses: CallLosses,
    threshold: float,
) -> dict[str, Any]:
    position = paragraph.start_char + candidate.position.char
    reason, (without_call, without_result, with_result, full_context, number_format) = stored_losses(losses)
    bound = None if math.isnan(losses.reduction_bound) else losses.reduction_bound
    reduction = bound if reason is None else None
    return {
        "document_id": str(document.document_id),
        "position_char": position,
        "position_probability": candidate.position.probability,
        "before": document.text[max(0, position - 60) : position],
        "call": str(candidate.call),
        "result": clean_result(result),
        "after": document.text[position : position + 60],
        "sample_count": candidate.sample_count,
        "reason": reason,
        "loss_without_call": without_call,
        "loss_without_result": without_result,
        "loss_with_result": with_result,
        "loss_without_call_full_context": full_context,
        "number_format": number_format,
        "reduction_bound": bound,
        "loss_reduction": reduction,
        "kept": reduction is not None and is_kept(reduction, threshold),
    }


def own_text_of(tool: Tool, document: Document) -> OwnText | None:
    """What a result of the tool must not repeat; None for a tool whose results may."""
    return OwnText(document.text) if tool.spec.pass_over_own_text else None
