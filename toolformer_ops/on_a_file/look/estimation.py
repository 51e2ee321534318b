"""Say before a run what it will take: texts, calls, rows and device hours, by tool.

Takes what a look at the corpus has counted (`checking.py`), annotates a few of the kept texts with a clock
(the probe), and multiplies. The probe's texts are those with the smallest hashes: random, and the same for
the same texts. One process takes them as one small micro-batch; more processes share the hours, and larger
micro-batches on a GPU need fewer. Inputs that texts have in common are executed once in a run, which a probe
does not see. What earlier runs did under the same recipes is not subtracted. Placebos are scored with
stand-ins for results, since a probe has too few, and for all calls; of those that only a sampled call has,
the share counts that a run samples. Writes `annotation_runs.estimate` if asked to.
"""

import heapq
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from toolformer_ops.annotation.filtering import filter_document, kept_paragraphs
from toolformer_ops.annotation.placebo import PlaceboDraw
from toolformer_ops.annotation.scoring import scored_call_of
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.annotate.annotator import Models, models_of
from toolformer_ops.on_a_file.annotate.pooled_placebos import PLACEBO_LOSSES
from toolformer_ops.on_a_file.annotate.text_annotator import AnnotatedText, TextToAnnotate, ToolAnnotator
from toolformer_ops.records import Document, Paragraph
from toolformer_ops.runs.choices import PlaceboChoices, RunChoices
from toolformer_ops.runs.durations import duration
from toolformer_ops.runs.models import with_sample_end
from toolformer_ops.runs.placebo_pools import Pool, PooledResult, sample_share
from toolformer_ops.runs.recipes import require_proposing_tools
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool

PROBE_TEXTS = 3
"""Texts a tool that are annotated to measure: a minute for a small model on one core, and a spread that can
be seen."""


@dataclass(frozen=True)
class KeptTexts:
    """What a tool's filter left of a corpus, or of its first texts."""

    texts: int = 0
    """Kept paragraphs; documents for a filter that judges documents."""
    decisions: int = 0
    seconds: float = 0.0
    probe: Sequence[Paragraph] = ()
    """The kept texts with the smallest ids: a random choice that the content decides."""
    documents: int = 0
    """Documents of which any part is kept."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why others are not, by the first decision on each."""

    def of_whole(self, share: float) -> "KeptTexts":
        """What it keeps of the whole corpus, if these texts are that share of it."""
        return replace(
            self,
            texts=round(self.texts / share),
            decisions=round(self.decisions / share),
            seconds=self.seconds / share,
        )


@dataclass(frozen=True)
class ProbedText:
    """What one text took."""

    positions: int
    calls: int
    rows: int
    """In `candidate_calls`, `pruned_positions`, `call_results` and `call_losses`."""
    seconds: Mapping[str, float]
    """By stage; in `placebo` as if all calls were sampled for the false-discovery rate."""
    pool_calls: int = 0
    """Calls with a result and losses: of these a run samples a share."""
    own_placebos: int = 0
    """Placebos of calls that gain enough to have them in any case."""
    sampled_placebos: int = 0
    """Further ones that sampled calls have."""

    @classmethod
    def of(cls, text: AnnotatedText, choices: RunChoices) -> "ProbedText":
        """What an annotated text took, all of whose calls were sampled for the false-discovery rate."""
        counts = text.counts["sample"]
        own, drawn = 0, 0
        for row in text.rows:
            placebos = len(row.get(PLACEBO_LOSSES) or ())
            drawn += placebos
            if scored_call_of(row).reaches(choices.prune_below):
                own += min(placebos, choices.placebos)
        return cls(
            positions=counts["positions"],
            calls=counts["candidates"],
            rows=counts["positions_pruned_below"]
            + text.counts["execute"]["inputs"]
            + 2 * counts["candidates"],
            seconds=text.seconds,
            pool_calls=len(text.judged_calls),
            own_placebos=own,
            sampled_placebos=drawn - own,
        )


@dataclass(frozen=True)
class Estimate:
    """What a tool's part of a run will take, or the whole."""

    tool: str
    texts: int
    probed_texts: int
    positions: int
    calls: int
    rows: int
    device_hours: float
    """Sampling, scoring and placebos, and execution if the tool runs a model, in one process."""
    device_hours_low: float | None
    """If every text were as the cheapest of the probe."""
    device_hours_high: float | None
    """If every text were as the dearest of the probe."""
    seconds: Mapping[str, float]
    """By stage, as the ledger will have them."""


def count_kept(tool: Tool, documents: Iterable[Document], choices: RunChoices) -> KeptTexts:
    """What the tool's filter keeps of the documents, with the texts to probe."""
    kept: list[Paragraph] = []
    reasons: Counter[str] = Counter()
    decided = documents_kept = 0
    started = time.perf_counter()
    for document in documents:
        decisions = filter_document(tool, document, choices, chains=choices.chains)
        decided += len(decisions)
        paragraphs = kept_paragraphs(document, decisions)
        kept += paragraphs
        if paragraphs:
            documents_kept += 1
        elif decisions:
            reasons[decisions[0].reason] += 1
    seconds = time.perf_counter() - started
    smallest = heapq.nsmallest(
        PROBE_TEXTS, kept, key=lambda text: (text.document.document_id.int, text.number)
    )
    return KeptTexts(
        texts=len(kept),
        decisions=decided,
        seconds=seconds,
        probe=smallest,
        documents=documents_kept,
        reasons=reasons,
    )


def probe_tool(
    settings: Settings,
    models: Models,
    tool: Tool,
    choices: RunChoices,
    texts: Sequence[Paragraph],
) -> list[ProbedText]:
    """Annotate the texts as the stages would, and say what each took.

    What a process does once (model, prompt, index) is done before the clock runs.
    """
    if not texts:
        return []
    # 1. The stages but placebos.
    annotator = ToolAnnotator(settings=settings, tool=tool, choices=choices, models=models)
    annotator.open(texts[0].document.text)
    items = []
    for number, text in enumerate(texts):
        # Two of them may be parts of one document.
        document = replace(text.document, document_id=uuid.UUID(int=number))
        own = {annotator.name: [replace(text, document=document)]}
        items.append(TextToAnnotate(str(number), document, {}, own))
    annotated = annotator.annotated(items)
    # 2. Placebos of all calls, as if all were sampled, computed together. The pool has as many other results
    # as a call can ask for, each a little longer than one of the probe's.
    if choices.wants_placebos:
        every_call = itertools.chain.from_iterable(text.judged_calls for text in annotated)
        own_results = itertools.cycle([str(call.scored.result) for call in every_call])
        stand_ins = []
        for number, result in enumerate(itertools.islice(own_results, choices.placebos + 1)):
            stand_in = PooledResult(number, uuid.UUID(int=number), uuid.UUID(int=0), f"{result} {number}")
            stand_ins.append(stand_in)
        annotator.judge(annotated, PlaceboDraw(Pool(choices.placebos, 1.0, stand_ins)), "stand-ins")
    return [ProbedText.of(text, choices) for text in annotated]


def extrapolate(
    tool: Tool, kept: KeptTexts, probed: Sequence[ProbedText], choices: PlaceboChoices
) -> Estimate:
    """The probe's means times the kept texts; the spread is that of its cheapest and dearest text."""
    stages = ("sample", "execute", "score", "placebo")
    on_device = stages if tool.spec.needs_device else ("sample", "score", "placebo")

    def expected(values: Iterable[float]) -> float:
        return sum(values) / len(probed) * kept.texts if probed else 0.0

    # 1. Of the placebos that only sampled calls have, the share that a run samples.
    share = sample_share(choices, round(expected(text.pool_calls for text in probed)))
    placebos = [text.own_placebos + share * text.sampled_placebos for text in probed]
    rows = [text.rows + count for text, count in zip(probed, placebos, strict=True)]
    seconds: list[dict[str, float]] = []
    for text, count in zip(probed, placebos, strict=True):
        measured = dict.fromkeys(stages, 0.0) | dict(text.seconds)
        measured["placebo"] *= count / max(1, text.own_placebos + text.sampled_placebos)
        seconds.append(measured)
    # 2. The whole.
    hours = [sum(measured[stage] for stage in on_device) * kept.texts / 3600 for measured in seconds]
    seconds_by_stage = {"filter": kept.seconds}
    for stage in stages:
        seconds_by_stage[stage] = expected(measured[stage] for measured in seconds)
    return Estimate(
        tool=tool.spec.name,
        texts=kept.texts,
        probed_texts=len(probed),
        positions=round(expected(text.positions for text in probed)),
        calls=round(expected(text.calls for text in probed)),
        rows=kept.decisions + round(expected(rows)),
        device_hours=sum(hours) / len(hours) if hours else 0.0,
        # One text has no spread; no kept text takes no time.
        device_hours_low=None if len(hours) == 1 else min(hours, default=0.0),
        device_hours_high=None if len(hours) == 1 else max(hours, default=0.0),
        seconds=seconds_by_stage,
    )


def total(estimates: Sequence[Estimate]) -> Estimate:
    """The sum over the tools.

    Its spread is as if the cheapest texts, or the dearest, came together in all tools.
    """
    sums: dict[str, Any] = {}
    for item in fields(Estimate):
        if item.name not in ("tool", "seconds"):
            values = [getattr(estimate, item.name) for estimate in estimates]
            sums[item.name] = None if None in values else sum(values)
    seconds: dict[str, float] = {}
    for estimate in estimates:
        for stage, stage_seconds in estimate.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + stage_seconds
    return Estimate(tool="total", **sums, seconds=seconds)


def estimate_run(
    settings: Settings, choices: RunChoices, kept: Mapping[str, KeptTexts], share: float
) -> list[Estimate]:
    """What each tool of a run with these choices will take.

    `kept` is what the tools' filters keep of the texts that are a `share` of the corpus.

    Raises:
        UsageError: the model, a tool or an index is not there.
    """
    require_proposing_tools(choices)
    choices = with_sample_end(settings, choices)
    models = models_of(settings, choices)
    estimates = []
    for name in choices.tools:
        tool = get_tool(name)
        probed = probe_tool(settings, models, tool, choices, kept[name].probe)
        whole = kept[name].of_whole(share)
        estimates.append(extrapolate(tool, whole, probed, choices.part(PlaceboChoices)))
    return estimates


def as_json(settings: Settings, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """The estimates as `annotation_runs.estimate` holds them."""
    return {
        "tools": [asdict(estimate) for estimate in estimates],
        "total": asdict(total(estimates)),
        "measured_on": {"device": settings.device, "dtype": settings.dtype, "threads": settings.threads},
    }


def store_estimate(settings: Settings, run_id: str, estimate: Mapping[str, Any]) -> None:
    """Keep an estimate with its run; raises `UsageError` if there is no such run."""
    stored = database.execute(
        database.connect(settings), queries.runs.store_estimate, run_id=run_id, estimate=dict(estimate)
    )
    if not stored:
        raise UsageError(
            f"--store: expected a started run, found {run_id!r}. Run `toolformer-ops stage start-run`."
        )


def print_table(settings: Settings, estimates: Sequence[Estimate], choices: RunChoices) -> None:
    """Print estimates as a table on stdout, with the sum below."""
    from rich.console import Console
    from rich.table import Table

    caption = f"one process on {settings.device} in {settings.dtype}; preset {choices.preset}"
    if choices.until_kept:
        caption += f"; less if {choices.until_kept:,} calls of a tool are kept before"
    if any(estimate.probed_texts == 1 for estimate in estimates):
        caption += "; one text of a tool was measured, which has no spread"
    table = Table(caption=caption)
    table.add_column("tool", no_wrap=True)
    for column in ("texts", "positions", "calls", "rows", "device time"):
        table.add_column(column, justify="right")
    for estimate in (*estimates, total(estimates)):
        if estimate.tool == "total":
            table.add_section()
        counts = (estimate.texts, estimate.positions, estimate.calls, estimate.rows)
        time = duration(3600 * estimate.device_hours)
        low, high = estimate.device_hours_low, estimate.device_hours_high
        if low is not None and high is not None:
            time += f" ({duration(3600 * low)} to {duration(3600 * high)})"
        table.add_row(estimate.tool, *map("{:,}".format, counts), time)
    Console().print(table)
