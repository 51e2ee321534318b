"""The whole method in one process, on a file, without Airflow or Postgres, for the commands that people use.

Calls the same functions as the stages, so that what it prints for a text is what a run would store. Keeps
nothing. What reads a corpus raises `CorpusError` if nothing is at its path or, after its last line, if no
line was a usable record.
"""

import datetime
import functools
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolformer_ops.annotation.candidates import (
    Candidate,
    SampledParagraph,
    annotation_prompt,
    call_id_of,
    candidate_paragraphs,
)
from toolformer_ops.annotation.filtering import filter_document
from toolformer_ops.annotation.placebo import NO_OTHER_RESULT, JudgedCall, gain_of
from toolformer_ops.annotation.scoring import (
    ExecutedCall,
    ExecutedText,
    ScoredCall,
    own_text_of,
    score_texts,
    scored_call_of,
)
from toolformer_ops.annotation.tool_proposals import OpenProposer
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, UsageError
from toolformer_ops.language_model.endpoint.proposals import EndpointProposer
from toolformer_ops.language_model.losses import is_kept
from toolformer_ops.on_a_file.annotate.shown_calls import FailedCall
from toolformer_ops.records import Document, Paragraph
from toolformer_ops.runs.choices import FilterChoices, RunChoices
from toolformer_ops.runs.models import (
    endpoint_beside,
    load_model,
    load_scoring_model,
)
from toolformer_ops.runs.proposers import model_proposes, proposer_identity, tool_proposes
from toolformer_ops.runs.recipes import Recipe, tool_recipes
from toolformer_ops.runs.run_tools import Shard
from toolformer_ops.storage.corpora.addresses import CorpusAddress
from toolformer_ops.storage.corpora.files import find_files
from toolformer_ops.storage.corpora.record_rules import Record, Rejection
from toolformer_ops.storage.corpora.records import read_file
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits
from toolformer_ops.tools.base import Tool, ToolOutput, ToolRunner, run_tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

logger = logging.getLogger(__name__)

PRINTED = (
    "loss_without_call", "loss_without_result", "loss_with_result", "loss_without_call_full_context",
    "probability_without", "probability_with",
)  # fmt: skip
"""Losses of a `ScoredCall` that are printed, in nats, and its probabilities of the next tokens."""
FIRST_BY_ID = 256
"""Texts of the first part that is read in the order of the ids."""
BELOW_THRESHOLD = "below_threshold"
LIKE_A_PLACEBO = "like_a_placebo"
"""Why a scored call is not kept (`runs/reasons.py`)."""


def document_of(text: str, date: str | None) -> Document:
    """A document as a person gives it on the command line.

    Raises `UsageError` if the date is not written YYYY-MM-DD.
    """
    try:
        return Document.of(text, document_date=datetime.date.fromisoformat(date) if date else None)
    except ValueError as error:
        raise UsageError(f"--date: expected a date such as 2023-01-30, found {date!r}.") from error


def run_one(
    settings: Settings, tool_name: str, call_input: str, date: str | None, model_name: Callable[[], str]
) -> ToolOutput:
    """Ask a tool for one input as a run would; the model is loaded only if the tool asks for it."""
    tool = get_tool(tool_name)
    effective_input = tool.effective_input(call_input, tool.spec.as_read(document_of("", date)))
    if effective_input is None:
        return ToolOutput.none("document_has_no_date" if tool.spec.needs_date else "input_not_usable")
    runner = tool.open(settings, lambda: load_model(settings, model_name()))
    [output] = run_tool(runner, [effective_input], settings.tool_time_limit_seconds)
    return output


def read_corpus(settings: Settings, corpus: Path | str) -> Iterator[tuple[str, Record | Rejection]]:
    """Each record of a file or folder (also on S3), or why it is refused, with the name to print: its id, or file and line.

    `corpus` is an address as `CorpusAddress` writes it.
    """
    address = CorpusAddress.parse(str(corpus)).normal()
    refused: Counter[str] = Counter()
    first: Rejection | None = None
    ignored: Counter[str] = Counter()
    records = 0
    limits = UnpackingLimits()
    for file in find_files(settings, address.files):
        for line, record in read_file(file, settings.max_line_bytes, limits, address.names):
            name = f"{Path(file.uri).name}:{line}"
            if isinstance(record, Record):
                records += 1
                ignored.update(record.ignored)
                yield record.record_id or name, record
            else:
                refused[record.reason] += 1
                first = first or record
                yield name, record
    if ignored:
        logger.warning("fields left out: %s", ", ".join(f"{n} {name}" for name, n in ignored.items()))
    if not records:
        refusals = ", ".join(f"{reason} {count}" for reason, count in refused.most_common()) or "no line"
        why = f" The first: {first.detail}." if first else ""
        raise CorpusError(
            f"expected JSON Lines or Parquet with at least one usable record in {address}, found "
            f"{refusals}.{why} "
            'Each line must be an object such as {"text": "..."}.'
        )


def filter_lines(
    settings: Settings, tool_name: str, corpus: Path | str, choices: FilterChoices
) -> Iterator[dict[str, Any]]:
    """`id`, `kept` and `reason` of each document, or of each paragraph or piece with number and offsets.

    A record that cannot be read is a refusal with its reason. `left_out` says why its date, url or title
    counts as none.
    """
    tool = get_tool(tool_name)
    for name, record in read_corpus(settings, corpus):
        if isinstance(record, Rejection):
            yield {"id": name, "kept": False, "reason": record.reason}
            continue
        document = record.document()
        for decision in filter_document(tool, document, choices):
            place: dict[str, int] = {}
            is_whole = (decision.start_char, decision.end_char) == (0, len(document.text))
            if tool.spec.filter_unit == "paragraph" or not is_whole:
                place["paragraph"] = decision.paragraph
            if not is_whole:
                place |= {"start_char": decision.start_char, "end_char": decision.end_char}
            left_out = {"left_out": list(record.ignored)} if record.ignored else {}
            yield {"id": name, **place, "kept": decision.kept, "reason": decision.reason, **left_out}


def distinct_documents(
    settings: Settings, corpus: str, limit: int | None, shard: Shard | None = None
) -> Iterator[tuple[str, Document]]:
    """The documents that a run over the corpus would annotate, each text once, with the names of their records.

    With `shard` those of one part: memory then holds the ids of no others, unless there is a limit.
    """
    seen: set[uuid.UUID] = set()
    if limit is not None and limit <= 0:
        return
    for name, record in read_corpus(settings, corpus):
        if not isinstance(record, Record):
            continue
        document = record.document()
        is_of_shard = shard is None or document.document_id.int % shard.count == shard.index
        if document.document_id in seen or not (is_of_shard or limit):
            continue
        seen.add(document.document_id)
        if is_of_shard:
            yield name, document
        if len(seen) == limit:
            return


def documents_by_id(
    documents: Callable[[], Iterator[tuple[str, Document]]],
) -> Iterator[tuple[str, Document]]:
    """Documents in the order of their ids, as they are asked for.

    The corpus is read once for all ids, and then for each part: the first `FIRST_BY_ID`, and so on twice as many.
    Memory holds the ids, and the texts of a part.
    """
    ids = sorted(document.document_id.bytes for _, document in documents())
    start, size = 0, FIRST_BY_ID
    while start < len(ids):
        part = set(ids[start : start + size])
        texts = [named for named in documents() if named[1].document_id.bytes in part]
        yield from sorted(texts, key=lambda named: named[1].document_id.bytes)
        start, size = start + size, 2 * size


@dataclass(frozen=True)
class Models:
    """The models of an annotation on a file."""

    model: "Callable[[], LanguageModel]"
    """The language model, the same each time: it is loaded once."""
    endpoint: EndpointProposer | None = None
    """What proposes calls, if it is behind an endpoint."""


def models_of(settings: Settings, choices: RunChoices) -> Models:
    """The models that the choices name; a model behind an endpoint has answered a request for one token.

    Raises as `endpoint_beside`.
    """
    load = functools.partial(
        load_scoring_model, settings, choices.model, choices.verify_in_float32, choices.keep_rule
    )
    return Models(
        model=functools.cache(load),
        endpoint=endpoint_beside(settings, choices),
    )


@dataclass(frozen=True)
class AnnotatedParagraph:
    """The calls of one paragraph."""

    text: str
    """The text of its document, which its calls are scored in."""
    calls: list[JudgedCall]
    """Those with a result, in the order of the text."""
    lines: list[dict[str, Any]]
    """One for each of them."""
    counts: Counter[str]
    """The counts that stages write into the ledger."""
    without_result: Counter[FailedCall]
    """Its calls that get no result: the tool gave none, or what it gave is passed over."""
    seconds: dict[str, float]
    """By stage; in sampling, the paragraph's share of the seconds of those that were sampled together."""


@dataclass
class ToolAnnotator:
    """The method for one tool: what the stages do with a micro-batch."""

    settings: Settings
    tool: Tool
    choices: RunChoices
    models: Models

    def __post_init__(self) -> None:
        self.keep_threshold = self.choices.keep_threshold(self.tool.spec)

    @property
    def name(self) -> str:
        """The tool's."""
        return self.tool.spec.name

    @functools.cached_property
    def recipes(self) -> Sequence[Recipe]:
        """The recipes of the four stages, which the model, the tool and the choices decide: those of a run."""
        identity = self.models.model().identity
        return tool_recipes(
            spec=self.tool.spec,
            prompt_text=self.tool.prompt,
            tool_version=self.tool.version(self.settings, identity),
            model_identity=identity,
            dtype=self.settings.dtype,
            choices=self.choices,
            chained_release=self.choices.corpus if self.choices.chains else None,
            proposer_identity=proposer_identity(self.settings, self.choices, self.tool),
        )

    @property
    def recipe_id(self) -> str:
        """The recipe of the losses of the tool's calls."""
        return self.recipes[-1].recipe_id

    @functools.cached_property
    def runner(self) -> ToolRunner:
        """The tool, open."""
        return self.tool.open(self.settings, self.models.model)

    @functools.cached_property
    def proposer(self) -> OpenProposer:
        """The tool as it proposes calls, open."""
        return OpenProposer(self.tool.open_proposer(self.settings), self.models.model().tokenize)

    def open(self, text: str) -> None:
        """Load what is loaded once a process, and read the prompt once: with it the first text takes as long as the others."""
        model = self.models.model()
        if model_proposes(self.choices, self.tool):
            model.find_positions(annotation_prompt(self.tool), [text], at_most=1, threshold=0.0)
        self.runner  # noqa: B018 - opened here

    def close(self) -> None:
        """End the process or connection of an open tool; it is opened anew when it is asked again."""
        close = getattr(self.__dict__.pop("runner", None), "close", None)
        if close is not None:
            close()

    def annotate(self, paragraphs: Sequence[Paragraph]) -> Iterator[AnnotatedParagraph]:
        """The calls of each kept paragraph, in order.

        All are sampled and scored together, as the stages do with a micro-batch.
        """
        if not paragraphs:
            return
        # 1. Sampling.
        sampled = candidate_paragraphs(
            self.models.model,
            self.tool,
            self.choices,
            paragraphs,
            self.models.endpoint,
            (lambda: self.proposer) if tool_proposes(self.choices, self.tool) else None,
        )
        # 2. Execution.
        executed = [self._executed(sampled_paragraph) for sampled_paragraph in sampled]
        # 3. Scoring; each text's share of the seconds is by its calls and its length.
        started = time.perf_counter()
        texts = [paragraph.text for paragraph in executed]
        scored = score_texts(self.models.model, self.choices, self.keep_threshold, texts)
        seconds_a_weight = (time.perf_counter() - started) / max(1, sum(item.weight for item in executed))
        for paragraph, losses in zip(executed, scored, strict=True):
            yield self._annotated(paragraph, losses, seconds_a_weight * paragraph.weight)

    def _executed(self, sampled: SampledParagraph) -> "_ExecutedParagraph":
        """Run the tool on the calls of one paragraph."""
        started = time.perf_counter()
        inputs = [candidate.effective_input for candidate in sampled.candidates]
        outputs = run_tool(self.runner, inputs, self.settings.tool_time_limit_seconds) if inputs else []
        seconds = time.perf_counter() - started
        calls = [
            ExecutedCall(
                token=candidate.position.token,
                call=candidate.call,
                results=output.results,
                reason=output.reason,
                input_only_after=candidate.input_only_after,
            )
            for candidate, output in zip(sampled.candidates, outputs, strict=True)
        ]
        document = sampled.paragraph.document
        return _ExecutedParagraph(
            sampled=sampled,
            text=ExecutedText(document.text, calls, own_text_of(self.tool, document)),
            messages=[output.message for output in outputs],
            inputs=len(set(inputs)),
            seconds=seconds,
        )

    def _annotated(
        self, executed: "_ExecutedParagraph", losses: Sequence[ScoredCall], scoring_seconds: float
    ) -> AnnotatedParagraph:
        """The calls of one paragraph with their losses."""
        sampled = executed.sampled
        with_result: list[tuple[Candidate, ScoredCall]] = []
        without_result: Counter[FailedCall] = Counter()
        for candidate, message, scored in zip(sampled.candidates, executed.messages, losses, strict=True):
            if scored.result is not None:
                with_result.append((candidate, scored))
            elif scored.reason:
                without_result[FailedCall(str(candidate.call), scored.reason, message)] += 1
        lines = [self._line(sampled.paragraph, *call) for call in with_result]
        return AnnotatedParagraph(
            text=sampled.paragraph.document.text,
            calls=list(map(judged_call_of, lines)),
            lines=lines,
            counts=Counter({**sampled.counts, "inputs": executed.inputs}),
            without_result=without_result,
            seconds={"sample": sampled.seconds, "execute": executed.seconds, "score": scoring_seconds},
        )

    def _line(self, paragraph: Paragraph, candidate: Candidate, scored: ScoredCall) -> dict[str, Any]:
        """A call as `annotate` prints it; offsets are those of the document."""
        [_, sampling, *_] = self.recipes
        text = paragraph.document.text
        position = candidate.position.char
        line = {
            "document_id": str(paragraph.document.document_id),
            "call_id": str(call_id_of(sampling.recipe_id, self.tool, paragraph, candidate)),
            "tool": candidate.call.tool,
            "position_char": position,
            "position_token": candidate.position.token,
            "position_probability": candidate.position.probability,
            "before": text[max(0, position - 60) : position],
            "call": str(candidate.call),
            "result": scored.result,
            "after": text[position : position + 60],
            "sample_count": candidate.sample_count,
            "proposed_by": candidate.proposed_by,
            "input_only_after": candidate.input_only_after,
            **scored_fields(scored),
        }
        return with_verdict(line, self.keep_threshold)


@dataclass(frozen=True)
class _ExecutedParagraph:
    """One paragraph whose calls have run."""

    sampled: SampledParagraph
    text: ExecutedText
    messages: Sequence[str]
    """What the tool said of each call that it gave no result."""
    inputs: int
    """How many distinct ones the tool was asked."""
    seconds: float
    """How long the tool took."""

    @property
    def weight(self) -> int:
        """Its share of the seconds of scoring is in proportion to this: its calls times its characters."""
        return len(self.text.calls) * len(self.text.text)


def judged_call_of(line: Mapping[str, Any]) -> JudgedCall:
    """The call of a line that `annotate` printed."""
    return JudgedCall(
        call_id=uuid.UUID(line["call_id"]),
        document_id=uuid.UUID(line["document_id"]),
        token=line["position_token"],
        call=parse_call(line["call"]),
        scored=scored_call_of(line),
    )


def scored_fields(scored: ScoredCall) -> dict[str, Any]:
    """What a line says of a call's losses, in nats, and of its gain before a placebo."""
    return {
        "reason": scored.reason,
        **{name: getattr(scored, name) for name in PRINTED},
        "number_format": scored.number_format,
        "reduction_bound": scored.reduction_bound,
        "loss_reduction": scored.loss_reduction,
        "gain": gain_of(scored, None),
    }


def with_verdict(line: Mapping[str, Any], keep_threshold: float) -> dict[str, Any]:
    """The line of a call with whether the run's keep rule keeps it at this threshold, and if not, why.

    Without placebos it is what the rule says before the call's placebo (`pooled_placebos.py`).
    """
    scored = scored_call_of(line)
    not_kept: str | None = None
    if not scored.reaches(keep_threshold):
        not_kept = line["reason"] or BELOW_THRESHOLD
    elif line.get("placebos") is not None:
        gain = gain_of(scored, line["placebo_probability"])
        if gain is None:
            not_kept = NO_OTHER_RESULT
        elif not is_kept(gain, keep_threshold):
            not_kept = LIKE_A_PLACEBO
    verdict = {"keep_threshold": keep_threshold, "kept": not_kept is None, "not_kept": not_kept}
    return {**line, **verdict}
