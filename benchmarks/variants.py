"""The engine's settings that are compared, and one pass of a job's texts through each stage with its CPU seconds.

Positions and their pruning, the samples of all texts of a micro-batch together, then losses: what the stages do, without Postgres
and tools.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.works import Job
from toolformer_ops.annotation.candidates import sample_texts
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.records import CallLosses, CallPosition, PlacedCall, SampledContinuation
from toolformer_ops.runs.choices import ToolSamplingChoices

STAGES = ("positions", "sampling", "scoring")
LOWEST_THRESHOLD = 0.5
"""The lowest keep threshold of interest, in nats: what is pruned and what is computed in float32 follow from it."""
TEXTS_TOGETHER = 16
"""Texts whose samples grow together."""


@dataclass(frozen=True)
class Variant:
    """One way to run the engine."""

    name: str
    prune_below: float
    context_tokens: int | None


NO_PRUNING = Variant("ours, no pruning", 0.0, None)
EXACT_PRUNING = Variant("ours, exact pruning", LOWEST_THRESHOLD, None)
WINDOW_16 = Variant("ours, window of 16", LOWEST_THRESHOLD, 16)
VARIANTS = (NO_PRUNING, EXACT_PRUNING, WINDOW_16)


@dataclass
class Outcome:
    """What came of a job's texts, text by text, and what it cost."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    """CPU seconds by stage, all texts together."""
    positions: list[list[CallPosition]] = field(default_factory=list)
    pruned_tokens: list[set[int]] = field(default_factory=list)
    """Positions where provably no call is kept, so that none was sampled."""
    sampled: list[dict[int, list[SampledContinuation]]] = field(default_factory=list)
    """Samples by the position's token."""
    losses: list[list[CallLosses | None]] = field(default_factory=list)
    """One a call; None for a call at a pruned position, which would not have been sampled."""


def sample_job(
    model: LanguageModel, job: Job, variant: Variant, clock: Callable[[], float] = time.process_time
) -> Outcome:
    """Positions and samples of all texts of a job."""
    outcome = Outcome()
    choices = ToolSamplingChoices(
        max_positions=job.at_most,
        samples_per_position=job.samples,
        sampling_threshold=job.threshold,
        max_call_tokens=job.max_new_tokens,
        temperature=job.temperature,
        top_p=job.top_p,
        prune_below=variant.prune_below,
    )
    for first in range(0, len(job.texts), TEXTS_TOGETHER):
        texts = [(text.text, text.seed_key) for text in job.texts[first : first + TEXTS_TOGETHER]]
        for of_text in sample_texts(model, job.prompt, job.call_start, choices, texts, clock=clock):
            outcome.seconds["positions"] += of_text.position_seconds
            outcome.seconds["sampling"] += of_text.sampling_seconds
            outcome.positions.append(of_text.positions)
            outcome.pruned_tokens.append({one.token for one in of_text.positions if one.pruned_by_loss is not None})
            open_tokens = [one.token for one in of_text.positions if one.pruned_by_loss is None]
            outcome.sampled.append(dict(zip(open_tokens, of_text.samples, strict=True)))
    return outcome


def score_job(
    model: LanguageModel,
    job: Job,
    variant: Variant,
    outcome: Outcome,
    calls: Sequence[Sequence[PlacedCall]],
    clock: Callable[[], float] = time.process_time,
) -> None:
    """Losses of given calls, those of a micro-batch's texts together, into `outcome`."""
    for first in range(0, len(job.texts), TEXTS_TOGETHER):
        group = range(first, min(first + TEXTS_TOGETHER, len(job.texts)))
        texts = [
            (
                job.texts[number].text,
                [call for call in calls[number] if call.token not in outcome.pruned_tokens[number]],
            )
            for number in group
        ]
        started = clock()
        scored = model.score_texts(
            texts,
            prune_below=variant.prune_below,
            context_tokens=variant.context_tokens,
        )
        outcome.seconds["scoring"] += clock() - started
        for number, of_text in zip(group, scored, strict=True):
            losses = iter(of_text)
            pruned = outcome.pruned_tokens[number]
            outcome.losses.append([None if call.token in pruned else next(losses) for call in calls[number]])
