"""Works A and B: reference and engine side by side in one process, CPU seconds of one thread by stage, medians of several runs.

In each run the variants take turns, so that a busy minute of the machine falls on all of them. The reference
is in float32 and runs once: it costs more than everything else together. Losses are asked for the same calls
everywhere: those that the reference sampled. A tool's prompt is computed once a process and stays out of the
times, as do loading and one text before the first.

A sampled call may differ from the reference's where a draw is so close to the border between two tokens that
rounding decides it.
"""

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.reference import PlainReference
from benchmarks.works import Job, place_calls
from toolformer_ops.annotation.text_sampling import TextToSample, sample_texts
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import CallLosses, CallPosition, PlacedCall, SampledContinuation

logger = logging.getLogger(__name__)

STAGES = ("positions", "sampling", "scoring")
THRESHOLDS = (0.5, 1.0)
"""Nats: at these kept calls are compared."""
NO_PRUNING = "ours, no pruning"
VARIANTS = {NO_PRUNING: 0.0, "ours, exact pruning": THRESHOLDS[0]}
"""What the engine prunes below, in nats. Each variant has to keep the reference's calls, every one."""
TEXTS_TOGETHER = 16
"""Texts whose samples grow together."""

Row = dict[str, Any]


@dataclass
class Annotated:
    """What came of a job's texts, text by text, and what it cost."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    """By stage, all texts together."""
    positions: list[list[CallPosition]] = field(default_factory=list)
    pruned_tokens: list[set[int]] = field(default_factory=list)
    """Positions at which provably no call is kept, so that none was sampled."""
    sampled: list[dict[int, list[SampledContinuation]]] = field(default_factory=list)
    """Samples by the position's token."""
    losses: list[list[CallLosses | None]] = field(default_factory=list)
    """One a call; None for a call at a pruned position, which would not have been sampled."""


def annotate_plainly(
    settings: Settings, reference: PlainReference, words: Tokenization, job: Job
) -> tuple[Annotated, list[list[PlacedCall]]]:
    """What the reference finds in all texts of a job, and the calls; `words` says where words start."""
    found, calls, template, numbers = Annotated(), [], job.prompt.template, job.choices
    for number, text in enumerate(job.texts, start=1):
        tokens = [token for token in words.tokenize(text.text).word_starts if token >= 1]
        clock = [time.process_time()]
        positions = reference.find_positions(
            template, text.text, tokens, at_most=numbers.max_positions, threshold=numbers.sampling_threshold
        )
        clock.append(time.process_time())
        sampled = {
            position.token: reference.sample_position(
                template,
                text.text,
                position,
                samples=numbers.samples_per_position,
                max_new_tokens=numbers.max_call_tokens,
                call_start=job.call_start,
                seed_key=text.seed_key,
            )
            for position in positions
        }
        clock.append(time.process_time())
        placed = place_calls(settings, job, text, positions, list(sampled.values()))
        answered = time.process_time()
        found.losses.append([reference.losses(text.text, call) for call in placed])
        spent = (clock[1] - clock[0], clock[2] - clock[1], time.process_time() - answered)
        for stage, seconds in zip(STAGES, spent, strict=True):
            found.seconds[stage] += seconds
        found.positions.append(positions)
        found.sampled.append(sampled)
        calls.append(placed)
        logger.info("%s: reference, text %d: %d calls", job.tool, number, len(placed))
    return found, calls


def sample_job(model: LanguageModel, job: Job, prune_below: float) -> Annotated:
    """Positions and samples of all texts of a job: what the stages do, without Postgres and tools."""
    found = Annotated()
    choices = job.choices.model_copy(update={"prune_below": prune_below})
    for first in range(0, len(job.texts), TEXTS_TOGETHER):
        texts = [TextToSample(text.text, text.seed_key) for text in job.texts[first : first + TEXTS_TOGETHER]]
        for of_text in sample_texts(
            model, job.prompt, job.call_start, choices, texts, clock=time.process_time
        ):
            found.seconds["positions"] += of_text.position_seconds
            found.seconds["sampling"] += of_text.sampling_seconds
            found.positions.append(of_text.positions)
            found.pruned_tokens.append({one.token for one in of_text.positions if one.pruned_by is not None})
            open_tokens = [one.token for one in of_text.positions if one.pruned_by is None]
            found.sampled.append(dict(zip(open_tokens, of_text.samples, strict=True)))
    return found


def score_job(
    model: LanguageModel,
    job: Job,
    prune_below: float,
    found: Annotated,
    calls: Sequence[Sequence[PlacedCall]],
) -> None:
    """Losses of given calls, those of a micro-batch's texts together, into `found`."""
    every = [
        (text.text, [call for call in of_text if call.token not in pruned])
        for text, of_text, pruned in zip(job.texts, calls, found.pruned_tokens, strict=True)
    ]
    scored: list[Sequence[CallLosses]] = []
    for first in range(0, len(every), TEXTS_TOGETHER):
        started = time.process_time()
        scored += model.score_texts(every[first : first + TEXTS_TOGETHER], prune_below=prune_below)
        found.seconds["scoring"] += time.process_time() - started
    for of_scored, of_text, pruned in zip(map(iter, scored), calls, found.pruned_tokens, strict=True):
        found.losses.append([None if call.token in pruned else next(of_scored) for call in of_text])


def measure_jobs(
    settings: Settings, folder: Path, jobs: Sequence[Job], number_formats: Sequence[str], runs: int
) -> dict[str, list[Row]]:
    """The tables of all jobs: CPU seconds a text, agreement."""
    torch.set_num_threads(1)
    models = {name: LanguageModel.load(str(folder), dtype=name) for name in number_formats}
    words = Tokenization(AutoTokenizer.from_pretrained(folder))
    reference = PlainReference(folder, words.start_ids)
    times: list[Row] = []
    agreements: list[Row] = []
    for job in jobs:
        if not job.texts:
            logger.warning("%s: no text passes its filter, so it is left out", job.tool)
            continue
        # 1. The prompt is computed, and what is loaded on first use is loaded.
        text = job.texts[0].text
        for model in models.values():
            model.find_positions(job.prompt, ["one text before the first"], at_most=1, threshold=0.0)
            last = model.tokenize(text).word_starts[-1]
            model.score_texts([(text, [PlacedCall(last, Call("Calculator", "1 + 1"), "2")])])
        # 2. The reference, then the engine.
        plain, calls = annotate_plainly(settings, reference, words, job)
        outcomes: dict[tuple[str, str], list[Annotated]] = {
            (form, name): [] for form in models for name in VARIANTS
        }
        for run in range(runs):
            for (form, variant), repeated in outcomes.items():
                models[form].forget_texts()
                found = sample_job(models[form], job, VARIANTS[variant])
                score_job(models[form], job, VARIANTS[variant], found, calls)
                repeated.append(found)
            logger.info("%s: run %d of %d of the engine", job.tool, run + 1, runs)
        # 3. The rows.
        texts = len(job.texts)
        of_reference = _seconds_a_text([plain], texts)
        head = {"tool": job.tool, "variant": "reference", "format": "float32", "texts": texts}
        times.append(
            head | {"calls a text": sum(map(len, calls)) / texts, **of_reference, "times the reference": 1.0}
        )
        for (form, variant), repeated in outcomes.items():
            seconds = _seconds_a_text(repeated, texts)
            head = {"tool": job.tool, "variant": variant, "format": form}
            scored = sum(losses is not None for of_text in repeated[0].losses for losses in of_text) / texts
            faster = of_reference["total"] / seconds["total"]
            times.append(
                head | {"texts": texts, "calls a text": scored, **seconds, "times the reference": faster}
            )
            agreements.append(head | agreement(plain, repeated[0]))
    return {"times": times, "agreement": agreements}


def _seconds_a_text(repeated: Sequence[Annotated], texts: int) -> dict[str, float]:
    seconds = {stage: statistics.median(one.seconds[stage] for one in repeated) / texts for stage in STAGES}
    return seconds | {"total": sum(seconds.values())}


def agreement(plain: Annotated, found: Annotated) -> Row:
    """Positions, samples and kept calls that the reference and a variant have in common."""
    expected = [losses for of_text in plain.losses for losses in of_text]
    losses = [losses for of_text in found.losses for losses in of_text]
    positions = list(zip(plain.positions, found.positions, strict=True))
    samples = [
        sample == other
        for of_text, of_other in zip(plain.sampled, found.sampled, strict=True)
        for token, others in of_other.items()
        for sample, other in zip(of_text.get(token, []), others, strict=False)
    ]
    row = {
        "positions": sum(map(len, plain.positions)),
        "positions differing": sum(
            len({a.token for a in one} ^ {b.token for b in other}) for one, other in positions
        ),
        "positions pruned": sum(map(len, found.pruned_tokens)),
        "samples": len(samples),
        "samples differing": samples.count(False),
        "calls": len(expected),
        "calls pruned": sum(one is None or one.pruned for one in losses),
    }
    for threshold in THRESHOLDS:
        kept, differing = compare_kept(expected, losses, threshold)
        row |= {f"kept at {threshold}": kept, f"differing at {threshold}": differing}
    return row


def compare_kept(
    expected: Sequence[CallLosses | None], found: Sequence[CallLosses | None], threshold: float
) -> tuple[int, int]:
    """How many calls the reference keeps at `threshold` nats, and how many are kept by one alone; None was never made."""

    def kept(losses: CallLosses | None) -> bool:
        return losses is not None and not losses.pruned and losses.reduction_bound >= threshold

    pairs = [(kept(one), kept(other)) for one, other in zip(expected, found, strict=True)]
    return sum(one for one, _ in pairs), sum(one != other for one, other in pairs)


def disagreements(agreements: Sequence[Row]) -> list[str]:
    """One line for each variant that keeps other calls than the reference, and each threshold."""
    return [
        f"{row['tool']}, {row['variant']}, {row['format']}: {row[f'differing at {threshold}']} of {row['calls']} calls are kept by "
        f"one alone at {threshold} nats"
        for row in agreements
        for threshold in THRESHOLDS
        if row[f"differing at {threshold}"]
    ]
