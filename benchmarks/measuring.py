"""Works A and B: reference and engine side by side in one process, CPU seconds of one thread by stage, medians of several runs.

In each run the variants take turns, so that a busy minute of the machine falls on all of them. The reference is in float32 and runs
once: it costs more than everything else together. Losses are asked for the same calls everywhere: those that the reference sampled.
A tool's prompt is computed once a process and stays out of the times, as do loading and one text before the first.
"""

import dataclasses
import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.agreement import compare_kept, compare_samples, loss_error
from benchmarks.floor import Shape, matrix_rate, needs
from benchmarks.reference import Reference, ReferenceSample
from benchmarks.variants import EXACT_PRUNING, NO_PRUNING, STAGES, VARIANTS, Outcome, Variant, sample_job, score_job
from benchmarks.works import Job, place_calls
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.models.loading import DTYPES
from toolformer_ops.records import CallLosses, CallPosition, PlacedCall

logger = logging.getLogger(__name__)

THRESHOLDS = (0.5, 1.0)
"""Nats: where kept calls are compared."""


@dataclass(frozen=True)
class Row:
    """One way to annotate one job: CPU seconds a text by stage."""

    tool: str
    number_format: str
    variant: str
    texts: int
    calls: float
    """Scored a text."""
    seconds: dict[str, float]
    """By stage, and `total`."""
    reference_seconds: float | None
    """Of the reference, a text, over the same texts."""


@dataclass
class ReferenceRun:
    """What the reference found, text by text."""

    seconds: dict[str, float]
    positions: list[list[CallPosition]]
    sampled: list[dict[int, list[ReferenceSample]]]
    calls: list[list[PlacedCall]]
    losses: list[list[CallLosses]]


def measure_jobs(
    settings: Settings,
    folder: Path,
    jobs: Sequence[Job],
    number_formats: Sequence[str],
    runs: int,
    plain_texts: int | None = None,
) -> dict[str, Any]:
    """The rows, agreements and floors of all jobs, as JSON holds them. The reference takes the first `plain_texts`, or all."""
    torch.set_num_threads(1)
    reference = Reference.load(str(folder))
    models = {name: LanguageModel.load(str(folder), dtype=name) for name in number_formats}
    shape = Shape.of(reference.network)
    rates = {name: matrix_rate(shape, DTYPES[name]) for name in number_formats}
    found: dict[str, list[Any]] = {"rows": [], "agreement": [], "floors": []}
    for job in jobs:
        if not job.texts:
            logger.warning("%s: no text passes its filter, so it is left out", job.tool)
            continue
        for model in models.values():
            _warm_up(model, job)
        plain = run_reference(settings, reference, job, plain_texts)
        found["rows"].append(_reference_row(job, plain))
        outcomes = _run_variants(settings, models, job, plain, runs)
        unpruned = outcomes[number_formats[0], NO_PRUNING][0]
        rates = {name: max(rate, matrix_rate(shape, DTYPES[name])) for name, rate in rates.items()}
        for (name, variant), repeated in outcomes.items():
            found["rows"].append(_row(job, name, variant.name, repeated, plain))
            found["agreement"].append({"tool": job.tool, **agreement(name, variant, plain, repeated[0])})
        needed = needs(reference.tokenization, job, unpruned.positions, unpruned.sampled, plain.calls)
        for name, rate in rates.items():
            seconds = {stage: need.operations(shape) / rate / len(job.texts) for stage, need in needed.items()}
            found["floors"].append(
                {"tool": job.tool, "number_format": name, "gflop_a_second": rate / 1e9, "seconds": seconds}
            )
    return dict(found)


def run_reference(settings: Settings, reference: Reference, job: Job, at_most: int | None = None) -> ReferenceRun:
    """Annotate all texts of a job plainly, or the first `at_most`."""
    run = ReferenceRun(dict.fromkeys(STAGES, 0.0), [], [], [], [])
    for number, text in enumerate(job.texts[:at_most], start=1):
        started = time.process_time()
        found = reference.find_positions(job.prompt, text.text, at_most=job.at_most, threshold=job.threshold)
        positioned = time.process_time()
        sampled = {
            position.token: reference.sample_position(
                job.prompt,
                text.text,
                position,
                samples=job.samples,
                max_new_tokens=job.max_new_tokens,
                call_start=job.call_start,
                temperature=job.temperature,
                top_p=job.top_p,
                seed_key=text.seed_key,
            )
            for position in found
        }
        sampled_at = time.process_time()
        continuations = [[sample.continuation for sample in sampled[position.token]] for position in found]
        calls = place_calls(settings, job, text, found, continuations)
        placed_at = time.process_time()
        run.losses.append([reference.losses(text.text, call) for call in calls])
        run.seconds["positions"] += positioned - started
        run.seconds["sampling"] += sampled_at - positioned
        run.seconds["scoring"] += time.process_time() - placed_at
        run.positions.append(found)
        run.sampled.append(sampled)
        run.calls.append(calls)
        logger.info("%s: reference, text %d: %d calls", job.tool, number, len(calls))
    return run


def agreement(number_format: str, variant: Variant, plain: ReferenceRun, outcome: Outcome) -> dict[str, Any]:
    """What the reference and one outcome have in common; see `agreement.py`."""
    pairs = [
        (expected, found)
        for plain_text, text in zip(plain.sampled, outcome.sampled, strict=False)
        for token, samples in text.items()
        for expected, found in zip(plain_text.get(token, []), samples, strict=False)
    ]
    expected_losses = [losses for text in plain.losses for losses in text]
    found_losses = [losses for text in outcome.losses[: len(plain.losses)] for losses in text]
    found: dict[str, Any] = {
        "number_format": number_format,
        "variant": variant.name,
        "positions": sum(map(len, plain.positions)),
        "positions_differing": sum(
            len({item.token for item in one} ^ {item.token for item in other})
            for one, other in zip(plain.positions, outcome.positions, strict=False)
        ),
        "positions_pruned": sum(map(len, outcome.pruned_tokens)),
        "samples": dataclasses.asdict(compare_samples(pairs)),
        "calls_pruned": sum(losses is None or losses.pruned for losses in found_losses),
        "kept": [
            dataclasses.asdict(compare_kept(expected_losses, found_losses, threshold)) for threshold in THRESHOLDS
        ],
    }
    if variant.context_tokens is None:
        error = loss_error(expected_losses, found_losses, number_format)
        found["loss_error"] = None if error is None else dataclasses.asdict(error)
    return found


def _run_variants(
    settings: Settings, models: dict[str, LanguageModel], job: Job, plain: ReferenceRun, runs: int
) -> dict[tuple[str, Variant], list[Outcome]]:
    outcomes: dict[tuple[str, Variant], list[Outcome]] = {
        (name, variant): [] for name in models for variant in VARIANTS
    }
    for run in range(runs):
        for (name, variant), repeated in outcomes.items():
            models[name].forget_texts()
            outcome = sample_job(models[name], job, variant)
            for number in range(
                len(plain.calls), len(job.texts)
            ):  # where the reference did not go, the first to come decides
                found, sampled = outcome.positions[number], outcome.sampled[number]
                continuations = [sampled[position.token] for position in found]
                plain.calls.append(place_calls(settings, job, job.texts[number], found, continuations))
            score_job(models[name], job, variant, outcome, plain.calls)
            repeated.append(outcome)
        logger.info("%s: run %d of %d of the engine", job.tool, run + 1, runs)
    return outcomes


def _warm_up(model: LanguageModel, job: Job) -> None:
    """Compute the prompt, load what is loaded on first use."""
    text = job.texts[0].text
    model.find_positions(job.prompt, ["one text before the first"], at_most=1, threshold=0.0)
    token = model.tokenize(text).word_starts[-1]
    model.score_texts([(text, [PlacedCall(token, Call("Calculator", "1 + 1"), "2")])])


def _reference_row(job: Job, plain: ReferenceRun) -> dict[str, Any]:
    texts = len(plain.losses)
    seconds = {stage: spent / texts for stage, spent in plain.seconds.items()}
    seconds["total"] = sum(seconds.values())
    calls = sum(map(len, plain.losses)) / texts
    return dataclasses.asdict(Row(job.tool, "float32", "reference", texts, calls, seconds, seconds["total"]))


def _row(
    job: Job, number_format: str, variant: str, repeated: Sequence[Outcome], plain: ReferenceRun
) -> dict[str, Any]:
    texts = len(job.texts)
    seconds = {stage: statistics.median(one.seconds[stage] for one in repeated) / texts for stage in STAGES}
    seconds["total"] = sum(seconds.values())
    scored = [losses for text in repeated[0].losses for losses in text if losses is not None]
    reference = sum(plain.seconds.values()) / len(plain.losses)
    return dataclasses.asdict(Row(job.tool, number_format, variant, texts, len(scored) / texts, seconds, reference))


COMPARED_AS_EQUAL = (NO_PRUNING, EXACT_PRUNING)
"""Variants that have to keep the reference's calls, every one."""


def disagreements(found: dict[str, Any]) -> list[str]:
    """One line for each way in which a variant that has to agree with the reference does not."""
    names = [variant.name for variant in COMPARED_AS_EQUAL]
    lines: list[str] = []
    for item in found["agreement"]:
        if item["variant"] not in names:
            continue
        where = f"{item['tool']}, {item['variant']}, {item['number_format']}"
        lines += [
            f"{where}: {kept['differing']} of {kept['calls']} calls are kept by one alone at {kept['threshold']} nats"
            for kept in item["kept"]
            if kept["differing"]
        ]
        samples = item["samples"]
        if item["number_format"] == "float32" and samples["not_explained"]:
            lines.append(
                f"{where}: {samples['not_explained']} of {samples['samples']} sampled calls differ away from a border"
            )
    return lines
