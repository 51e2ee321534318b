"""The texts, models and rows of an annotation on a file, without Airflow or Postgres.

What reads a corpus raises `CorpusError` if nothing is at its path or, after its last line, if no line was a
usable record.
"""

import datetime
import functools
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolformer_ops.annotation.placebo import NO_OTHER_RESULT, JudgedCall, gain_of
from toolformer_ops.annotation.scoring import ScoredCall, scored_call_of
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, UsageError
from toolformer_ops.language_model.endpoint.proposals import EndpointProposer
from toolformer_ops.language_model.losses import is_kept
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import endpoint_beside, load_model, load_scoring_model
from toolformer_ops.runs.run_tools import Shard
from toolformer_ops.storage.corpora.addresses import CorpusAddress
from toolformer_ops.storage.corpora.files import find_files
from toolformer_ops.storage.corpora.record_rules import Record, Rejection
from toolformer_ops.storage.corpora.records import read_file
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits
from toolformer_ops.tools.base import ToolOutput, run_tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

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


def read_corpus(
    settings: Settings, corpus: Path | str, shard: Shard | None = None
) -> Iterator[tuple[str, Record | Rejection]]:
    """Each record of a file or folder (also on S3), or why it is refused, with the name to print: its id, or file and line.

    `corpus` is an address as `CorpusAddress` writes it. With `shard` only some of its files are read.
    """
    address = CorpusAddress.parse(str(corpus)).normal()
    refused: Counter[str] = Counter()
    first: Rejection | None = None
    ignored: Counter[str] = Counter()
    records = 0
    limits = UnpackingLimits()
    files = find_files(settings, address.files)
    for file in files if shard is None else files[shard.index :: shard.count]:
        for line, record in read_file(file, limits, address.names):
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
    if not records and shard is None:
        refusals = ", ".join(f"{reason} {count}" for reason, count in refused.most_common()) or "no line"
        why = f" The first: {first.detail}." if first else ""
        raise CorpusError(
            f"expected JSON Lines or Parquet with at least one usable record in {address}, found "
            f"{refusals}.{why} "
            'Each line must be an object such as {"text": "..."}.'
        )


def distinct_documents(
    settings: Settings, corpus: str, limit: int | None, shard: Shard | None = None
) -> Iterator[tuple[str, Document]]:
    """The documents that a run over the corpus would annotate, each text once, with the names of their records.

    With `shard` those of one part: memory then holds the ids of no others, unless there is a limit. Of a
    corpus of at least as many files a part is every so many files, and the others are not read; a text that
    is in several parts is in each of them. Else it is the texts with some of the ids.
    """
    seen: set[uuid.UUID] = set()
    if limit is not None and limit <= 0:
        return
    files = find_files(settings, CorpusAddress.parse(corpus).normal().files)
    is_of_files = shard is not None and limit is None and len(files) >= shard.count > 1
    for name, record in read_corpus(settings, corpus, shard if is_of_files else None):
        if not isinstance(record, Record):
            continue
        document = record.document()
        is_of_shard = shard is None or is_of_files or document.document_id.int % shard.count == shard.index
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
