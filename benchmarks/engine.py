"""Works A and B: reference and engine side by side in one process, CPU seconds of one thread by stage, medians of several runs.

In each run the variants take turns, so that a busy minute of the machine falls on all of them. The reference is in float32 and runs
once: it costs more than everything else together. Losses are asked for the same calls everywhere: those that the reference sampled.
A tool's prompt is computed once a process and stays out of the times, as do loading and one text before the first.

A sampled call may differ from the reference's if a draw is so close to the border between two tokens that rounding decides it; how
close it was at the token where the two part is looked up, and what is not explained so is counted by itself.
"""

import logging
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.reference import DrawnSample, PlainReference
from benchmarks.works import Job, place_calls
from toolformer_ops.annotation.candidates import sample_texts
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.language_model import LanguageModel
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
BORDER = 1e-4
"""A draw nearer than this to the border between two tokens may be decided by rounding."""
ALL_TOOLS = "all"
"""Name of the rows that add up a work's tools."""

Row = dict[str, Any]
Clock = Callable[[], float]


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
    drawn: list[dict[int, list[DrawnSample]]] = field(default_factory=list)
    """The same with their draws, of the reference."""
    losses: list[list[CallLosses | None]] = field(default_factory=list)
    """One a call; None for a call at a pruned position, which would not have been sampled."""


def annotate_plainly(
    settings: Settings, reference: PlainReference, words: Tokenization, job: Job, at_most: int | None = None
) -> tuple[Annotated, list[list[PlacedCall]]]:
    """What the reference finds in all texts of a job, or in the first `at_most`, and the calls; `words` says where words start."""
    found, calls, template, numbers = Annotated(), [], job.prompt.template, job.choices
    for number, text in enumerate(job.texts[:at_most], start=1):
        tokens = [token for token in words.tokenize(text.text).word_starts if token >= 1]
        clock = [time.process_time()]
        positions = reference.find_positions(
            template, text.text, tokens, at_most=numbers.max_positions, threshold=numbers.sampling_threshold
        )
        clock.append(time.process_time())
        drawn = {
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
        sampled = {token: [sample.continuation for sample in samples] for token, samples in drawn.items()}
        placed = place_calls(settings, job, text, positions, list(sampled.values()))
        answered = time.process_time()
        found.losses.append([reference.losses(text.text, call) for call in placed])
        spent = (clock[1] - clock[0], clock[2] - clock[1], time.process_time() - answered)
        for stage, seconds in zip(STAGES, spent, strict=True):
            found.seconds[stage] += seconds
        found.positions.append(positions)
        found.sampled.append(sampled)
        found.drawn.append(drawn)
        calls.append(placed)
        logger.info("%s: reference, text %d: %d calls", job.tool, number, len(placed))
    return found, calls


def sample_job(model: LanguageModel, job: Job, prune_below: float, clock: Clock = time.process_time) -> Annotated:
    """Positions and samples of all texts of a job: what the stages do, without Postgres and tools."""
    found = Annotated()
    choices = job.choices.model_copy(update={"prune_below": prune_below})
    for first in range(0, len(job.texts), TEXTS_TOGETHER):
        texts = [(text.text, text.seed_key) for text in job.texts[first : first + TEXTS_TOGETHER]]
        for of_text in sample_texts(model, job.prompt, job.call_start, choices, texts, clock=clock):
            found.seconds["positions"] += of_text.position_seconds
            found.seconds["sampling"] += of_text.sampling_seconds
            found.positions.append(of_text.positions)
            found.pruned_tokens.append({one.token for one in of_text.positions if one.pruned_by_loss is not None})
            open_tokens = [one.token for one in of_text.positions if one.pruned_by_loss is None]
            found.sampled.append(dict(zip(open_tokens, of_text.samples, strict=True)))
    return found


def score_job(
    model: LanguageModel,
    job: Job,
    prune_below: float,
    found: Annotated,
    calls: Sequence[Sequence[PlacedCall]],
    clock: Clock = time.process_time,
) -> None:
    """Losses of given calls, those of a micro-batch's texts together, into `found`."""
    every = [
        (text.text, [call for call in of_text if call.token not in pruned])
        for text, of_text, pruned in zip(job.texts, calls, found.pruned_tokens, strict=True)
    ]
    scored: list[Sequence[CallLosses]] = []
    for first in range(0, len(every), TEXTS_TOGETHER):
        started = clock()
        scored += model.score_texts(every[first : first + TEXTS_TOGETHER], prune_below=prune_below)
        found.seconds["scoring"] += clock() - started
    for of_scored, of_text, pruned in zip(map(iter, scored), calls, found.pruned_tokens, strict=True):
        found.losses.append([None if call.token in pruned else next(of_scored) for call in of_text])


def measure_jobs(
    settings: Settings,
    folder: Path,
    jobs: Sequence[Job],
    number_formats: Sequence[str],
    runs: int,
    plain_texts: int | None = None,
) -> dict[str, list[Row]]:
    """The tables of all jobs: CPU seconds a text, agreement. The reference takes the first `plain_texts`, or all."""
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
        # 2. The reference, then the engine; calls of texts that the reference left out are those of the first variant.
        plain, calls = annotate_plainly(settings, reference, words, job, plain_texts)
        outcomes: dict[tuple[str, str], list[Annotated]] = {(form, name): [] for form in models for name in VARIANTS}
        for run in range(runs):
            for (form, variant), repeated in outcomes.items():
                models[form].forget_texts()
                found = sample_job(models[form], job, VARIANTS[variant])
                for number in range(len(calls), len(job.texts)):
                    continuations = [found.sampled[number][position.token] for position in found.positions[number]]
                    calls.append(place_calls(settings, job, job.texts[number], found.positions[number], continuations))
                score_job(models[form], job, VARIANTS[variant], found, calls)
                repeated.append(found)
            logger.info("%s: run %d of %d of the engine", job.tool, run + 1, runs)
        # 3. The rows.
        of_reference = _seconds_a_text([plain], len(plain.losses))
        head = {"tool": job.tool, "variant": "reference", "format": "float32", "texts": len(plain.losses)}
        scored = sum(map(len, plain.losses)) / len(plain.losses)
        times.append(head | {"calls a text": scored, **of_reference, "times the reference": 1.0})
        for (form, variant), repeated in outcomes.items():
            seconds = _seconds_a_text(repeated, len(job.texts))
            head = {"tool": job.tool, "variant": variant, "format": form}
            scored = sum(losses is not None for of_text in repeated[0].losses for losses in of_text) / len(job.texts)
            faster = of_reference["total"] / seconds["total"]
            counts = {"texts": len(job.texts), "calls a text": scored}
            times.append(head | counts | seconds | {"times the reference": faster})
            agreements.append(head | agreement(plain, repeated[0]))
    return {"times": times + added_up(times), "agreement": agreements}


def _seconds_a_text(repeated: Sequence[Annotated], texts: int) -> dict[str, float]:
    seconds = {stage: statistics.median(one.seconds[stage] for one in repeated) / texts for stage in STAGES}
    return seconds | {"total": sum(seconds.values())}


def added_up(rows: Sequence[Row]) -> list[Row]:
    """One row a variant over all tools: texts weigh the same; none if there is one tool alone."""
    if len({row["tool"] for row in rows}) < 2:
        return []
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["variant"], row["format"]), []).append(row)
    found = []
    for (variant, form), group in groups.items():
        texts = sum(row["texts"] for row in group)
        means = {
            name: sum(row[name] * row["texts"] for row in group) / texts for name in ("calls a text", *STAGES, "total")
        }
        reference = sum(row["total"] * row["times the reference"] * row["texts"] for row in group) / texts
        head = {"tool": ALL_TOOLS, "variant": variant, "format": form, "texts": texts}
        found.append(head | means | {"times the reference": reference / means["total"]})
    return found


def agreement(plain: Annotated, found: Annotated) -> Row:
    """Positions, samples and kept calls that the reference and a variant have in common, over the reference's texts."""
    expected = [losses for of_text in plain.losses for losses in of_text]
    losses = [losses for of_text in found.losses[: len(plain.losses)] for losses in of_text]
    pairs = [
        pair
        for drawn, sampled in zip(plain.drawn, found.sampled, strict=False)
        for token, samples in sampled.items()
        for pair in zip(drawn.get(token, []), samples, strict=False)
    ]
    row = {
        "positions": sum(map(len, plain.positions)),
        "positions differing": sum(
            len({item.token for item in one} ^ {item.token for item in other})
            for one, other in zip(plain.positions, found.positions, strict=False)
        ),
        "positions pruned": sum(map(len, found.pruned_tokens)),
        **compare_samples(pairs),
        "calls": len(expected),
        "calls pruned": sum(one is None or one.pruned for one in losses),
    }
    for threshold in THRESHOLDS:
        kept, differing = compare_kept(expected, losses, threshold)
        row |= {f"kept at {threshold}": kept, f"differing at {threshold}": differing}
    return row


def compare_samples(pairs: Iterable[tuple[DrawnSample, SampledContinuation]]) -> dict[str, int]:
    """Samples, those that differ, those of them whose draw at which they part was not at a border; draws, and those at a border."""
    found = dict.fromkeys(("samples", "samples differing", "not at a border", "draws", "draws at a border"), 0)
    for expected, other in pairs:
        found["samples"] += 1
        found["draws"] += len(expected.steps)
        found["draws at a border"] += sum(step.border_distance < BORDER for step in expected.steps)
        if expected.continuation != other:
            parted = (
                step
                for step in expected.steps
                if not other.text.startswith(step.text.partition("]")[0].rstrip("\ufffd"))
            )
            found["samples differing"] += 1
            found["not at a border"] += next(parted, expected.steps[-1]).border_distance >= BORDER
    return found


def compare_kept(
    expected: Sequence[CallLosses | None], found: Sequence[CallLosses | None], threshold: float
) -> tuple[int, int]:
    """How many calls the reference keeps at `threshold` nats, and how many are kept by one alone; None was never made."""

    def kept(losses: CallLosses | None) -> bool:
        return losses is not None and not losses.pruned and losses.reduction_bound >= threshold

    pairs = [(kept(one), kept(other)) for one, other in zip(expected, found, strict=True)]
    return sum(one for one, _ in pairs), sum(one != other for one, other in pairs)


def disagreements(agreements: Sequence[Row]) -> list[str]:
    """One line for each way in which a variant does not agree with the reference."""
    lines: list[str] = []
    for row in agreements:
        name = f"{row['tool']}, {row['variant']}, {row['format']}"
        lines += [
            f"{name}: {row[f'differing at {threshold}']} of {row['calls']} calls are kept by one alone at {threshold} nats"
            for threshold in THRESHOLDS
            if row[f"differing at {threshold}"]
        ]
        if row["format"] == "float32" and row["not at a border"]:
            lines.append(
                f"{name}: {row['not at a border']} of {row['samples']} sampled calls differ away from a border"
            )
    return lines
