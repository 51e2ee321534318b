"""The engine's settings that are compared, and one pass of a job's texts through each stage with its CPU seconds.

Positions and their pruning, the samples of all texts of a micro-batch together, then losses: what the stages do, without Postgres
and tools.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.works import Job
from toolformer_ops.annotation.call_positions import PositionFinder
from toolformer_ops.config import Settings
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.records import CallLosses, CallPosition, PlacedCall, SampledContinuation, TextToSample

STAGES = ("positions", "sampling", "scoring")
LOWEST_THRESHOLD = 0.5
"""The lowest keep threshold of interest, in nats: what is pruned and what is computed in float32 follow from it."""
TEXTS_TOGETHER = int(Settings.model_fields["micro_batch_documents"].default)
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


def sample_job(model: LanguageModel, job: Job, variant: Variant) -> Outcome:
    """Positions and samples of all texts of a job."""
    outcome = Outcome()
    for first in range(0, len(job.texts), TEXTS_TOGETHER):
        texts = job.texts[first : first + TEXTS_TOGETHER]
        found = PositionFinder(
            model,
            job.prompt,
            [text.text for text in texts],
            job.at_most,
            job.threshold,
            variant.prune_below,
            clock=time.process_time,
        )
        started = time.process_time()
        sampled = model.sample_calls(
            job.prompt,
            (
                TextToSample(text.text, tuple(of_text.kept), text.seed_key)
                for text, of_text in zip(texts, found, strict=True)
            ),
            samples=job.samples,
            max_new_tokens=job.max_new_tokens,
            call_start=job.call_start,
            temperature=job.temperature,
            top_p=job.top_p,
        )
        finding = sum(of_text.seconds for of_text in found.found)
        outcome.seconds["positions"] += finding
        outcome.seconds["sampling"] += time.process_time() - started - finding
        for of_text, samples in zip(found.found, sampled, strict=True):
            outcome.positions.append(of_text.all)
            outcome.pruned_tokens.append({one.position.token for one in of_text.pruned})
            outcome.sampled.append(dict(zip([position.token for position in of_text.kept], samples, strict=True)))
    return outcome


def score_job(
    model: LanguageModel, job: Job, variant: Variant, outcome: Outcome, calls: Sequence[Sequence[PlacedCall]]
) -> None:
    """Losses of given calls, text by text, into `outcome`."""
    for text, placed, pruned in zip(job.texts, calls, outcome.pruned_tokens, strict=True):
        left = [call for call in placed if call.token not in pruned]
        started = time.process_time()
        losses = iter(
            model.score_calls(
                text.text,
                left,
                prune_below=variant.prune_below,
                float32_from=LOWEST_THRESHOLD,
                context_tokens=variant.context_tokens,
            )
            if left
            else []
        )
        outcome.seconds["scoring"] += time.process_time() - started
        outcome.losses.append([None if call.token in pruned else next(losses) for call in placed])
