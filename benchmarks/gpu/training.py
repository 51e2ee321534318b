"""Part 5: finetuning as the stage does it (`ReleaseTrainer`, its passes and its loss), without a checkpoint."""

import functools
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback

from benchmarks.gpu.session import Row, Rows, Session
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.sizes import TrainingWork
from benchmarks.gpu.speed import peak_of
from benchmarks.random_models import prompt_tokenizer
from toolformer_ops.config import Settings
from toolformer_ops.finetuning.base_model import BYTES_A_TRAINED_WEIGHT
from toolformer_ops.finetuning.batches import collate_for
from toolformer_ops.finetuning.checkpoints import Checkpoints
from toolformer_ops.finetuning.compiled_layers import compile_layers
from toolformer_ops.finetuning.recipe import FinetuningRecipe, PassSize, TrainingJob
from toolformer_ops.finetuning.sequences import ShuffledPasses, TokenSequences
from toolformer_ops.finetuning.summed_loss import sum_losses_in_forward
from toolformer_ops.finetuning.trainer import ReleaseTrainer
from toolformer_ops.finetuning.training import pass_size_of, training_arguments
from toolformer_ops.finetuning.training_log import TrainingLog
from toolformer_ops.language_model.devices import GIB
from toolformer_ops.runs.choices import FinetuningChoices

WARM_STEPS = 1
"""Steps before those that are timed."""
MEMORY_SHORT: Row = {}
"""What a training that memory did not suffice for has for a row."""
OPERATIONS_A_WEIGHT = 6
"""Of a token in the forward and backward pass."""


class _Clock(TrainerCallback):  # type: ignore[misc]
    """When each step ended."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Wait for the device, then note the time."""
        self._session.timed(lambda: None)
        self.ends.append(time.perf_counter())


def finetuning(session: Session, shape: Shape, work: TrainingWork) -> Rows:
    """Tokens a second of each size of a pass."""
    free, needed = session.free_bytes(), shape.weights * BYTES_A_TRAINED_WEIGHT
    if free is not None and needed > free:
        session.leave_out(
            f"finetuning of {shape.name}",
            f"memory short: {needed / GIB:.0f} GiB needed for weights, gradients and moments, {free / GIB:.0f} free",
        )
        return
    for device_batch in work.device_batches:
        job = _job(shape, work, device_batch)
        size: PassSize | None = pass_size_of(_settings(session), job)
        while size is not None:
            what = f"finetuning of {shape.name}, passes of {size}"
            row = session.attempt(what, functools.partial(_row, session, shape, work, job, size))
            session.free()
            if row:
                yield row
            if row != MEMORY_SHORT:
                break
            session.leave_out(what, "memory short: the passes are halved, as the stage does")
            size = size.half(work.batch, work.text_tokens)


def _row(session: Session, shape: Shape, work: TrainingWork, job: TrainingJob, size: PassSize) -> Row:
    """One training of a few steps, or `MEMORY_SHORT`."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _trained(session, shape, work, replace(job, folder=Path(folder)), size)
    except torch.OutOfMemoryError:
        return MEMORY_SHORT


def _settings(session: Session) -> Settings:
    return Settings(_env_file=None, device=str(session.device))  # type: ignore[call-arg]


def _job(shape: Shape, work: TrainingWork, device_batch: int | None) -> TrainingJob:
    choices = FinetuningChoices(
        finetune_steps=WARM_STEPS + work.steps,
        finetune_batch=work.batch,
        finetune_device_batch=device_batch,
        finetune_dev_documents=0,
    )
    recipe = FinetuningRecipe(release_id="0" * 16, base_model=shape.name, choices=choices)
    nowhere = Path(tempfile.gettempdir())
    return TrainingJob(recipe=recipe, model=shape.name, release_dir=nowhere, dev_texts=(), folder=nowhere)


def _trained(session: Session, shape: Shape, work: TrainingWork, job: TrainingJob, size: PassSize) -> Row:
    """One training of a few steps, in the job's folder."""
    choices, folder = job.recipe.choices, job.folder
    sequences = TokenSequences()
    generator = torch.Generator().manual_seed(0)
    for _ in range(work.batch):
        sequences.append(
            torch.randint(1, shape.vocabulary, (work.text_tokens,), generator=generator).tolist()
        )
    # 1. The trainer of the stage, which writes no checkpoint.
    arguments = training_arguments(_settings(session), job)
    arguments.save_strategy = "no"
    network = shape.network(torch.float32, session.device)
    network.config.use_cache = False
    collate = collate_for(network, prompt_tokenizer(), choices.finetune_length)
    parts = compile_layers(network, _settings(session), is_spread=False)
    sum_losses_in_forward(network)
    clock = _Clock(session)
    trainer = ReleaseTrainer(
        model=network,
        args=arguments,
        train_dataset=ShuffledPasses(
            sequences, choices.finetune_steps * choices.finetune_batch, choices.seed
        ),
        collate=collate,
        pass_size=size,
        callbacks=[clock],
        development=TokenSequences(),
        checkpoints=Checkpoints(folder / "checkpoints", job.recipe.model_id),
        log=TrainingLog(folder),
        snapshots=None,
    )
    trainer.remove_callback(PrinterCallback)
    # 2. The steps.
    session.watch_memory()
    trainer.train()
    seconds = clock.ends[-1] - clock.ends[WARM_STEPS - 1]
    tokens_a_second = sequences.tokens * work.steps / seconds
    peak = peak_of(session, "bfloat16" if arguments.bf16 else "float32")
    weights = shape.layer_weights + shape.projection_weights
    return {
        "shape": shape.name,
        "passes in": "bfloat16" if arguments.bf16 else "float32",
        "tokens a text": work.text_tokens,
        "texts a step": work.batch,
        "a pass": str(size),
        "compiled": "no" if parts is None else ", ".join(sorted(parts.names)),
        "tokens/s": round(tokens_a_second),
        "share of the peak": peak and f"{OPERATIONS_A_WEIGHT * weights * tokens_a_second / peak:.0%}",
        "GiB at most": session.memory_at_most(),
    }
