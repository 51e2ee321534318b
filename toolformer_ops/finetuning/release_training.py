"""Train a model on a release in a local folder, on all GPUs of the machine.

It writes the folder that is published. Needs neither Postgres nor S3; `stages/finetuning.py` fetches the
release, chooses the development documents and publishes. If memory runs short the passes are halved, at one
sequence activations are computed twice, and the training continues from its last checkpoint.
"""

import dataclasses
import gc
import json
import logging
from pathlib import Path
from typing import Any

import torch

from toolformer_ops.config import Settings
from toolformer_ops.errors import DeviceMemoryError, ModelError
from toolformer_ops.finetuning.adapter import (
    described,
    require_installed,
    require_trainable,
    with_adapters,
)
from toolformer_ops.finetuning.base_model import load_base_model, require_training_memory, weights_format
from toolformer_ops.finetuning.checkpoints import Snapshots
from toolformer_ops.finetuning.processes import devices_of, train_in_processes
from toolformer_ops.finetuning.recipe import TrainingJob
from toolformer_ops.finetuning.sequences import TokenSequences
from toolformer_ops.finetuning.training import TrainedModel, all_cores, train, training_arguments
from toolformer_ops.finetuning.training_log import write_curves
from toolformer_ops.language_model.batch_sizes import device_kind
from toolformer_ops.language_model.models.identity import hub_name, split_revision
from toolformer_ops.release.card import markdown
from toolformer_ops.release.format import read_release
from toolformer_ops.runs.models import FINETUNING

logger = logging.getLogger(__name__)

CARD = "README.md"


def train_on_release(settings: Settings, job: TrainingJob, *, processes: int | None = None) -> TrainedModel:
    """Train a model on a release; the files to publish are in the result's directory.

    `processes` (None: one a GPU) share each batch. If `settings.sends_checkpoints`, checkpoints are on S3
    too, and a training whose folder has none, or an older one, continues from there.

    Raises:
        ModelError: the model is not there, its vocabulary cannot write a call, or one sequence does not fit
        into memory.
        ModelError: the loss stopped being a finite number.
        ConfigurationError, UsageError: a package is not installed, or the model cannot have such adapters.
        ObjectStoreError: S3 cannot be reached when the training starts.
    """
    recipe = job.recipe
    require_installed(recipe.choices)
    require_trainable(settings, recipe.choices, job.model)
    devices = devices_of(settings, recipe, processes)
    if settings.sends_checkpoints:
        Snapshots(settings, recipe.model_id).restore(job.folder)
    while True:
        try:
            trained = (
                train_job(settings, job) if devices is None else train_in_processes(settings, job, devices)
            )
        except DeviceMemoryError as error:
            reason = str(error)
        else:
            break
        # Not within the handler, whose traceback holds what fills the memory.
        job = job_for_less_memory(settings, job, len(devices or (0,)), reason)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    assert trained is not None, "the only process is the first"  # noqa: S101
    best = trained.best
    record: dict[str, Any] = {
        "model_id": recipe.model_id,
        "release_id": recipe.release_id,
        "definition": recipe.definition,
        "texts": sum(1 for _ in read_release(job.release_dir)),
        "training_loss_nats_per_token": trained.training_loss,
        "loss_counts": recipe.loss_counts,
        "trained": described(recipe.choices),
        "training_seconds": trained.seconds,
        "precision": trained.precision,
        "device": settings.device,
        "development_documents": len(job.dev_texts),
        "best_step": best.step if best else None,
        "development_perplexity": best.perplexity if best else None,
    }
    (trained.directory / FINETUNING).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    base_model = hub_name(recipe.base_model) or recipe.base_model
    template = Path(__file__).with_name("model_card.md.jinja")
    card = markdown(template, base_model=base_model, **record)
    (trained.directory / CARD).write_text(card, encoding="utf-8")
    write_curves(trained.directory, f"Model {recipe.model_id}", recipe.loss_counts)
    return trained


def train_job(settings: Settings, job: TrainingJob) -> TrainedModel | None:
    """Train in this process, which may be one of several: None in all of them but the first."""
    name, revision = split_revision(job.model)
    recipe = job.recipe
    arguments = training_arguments(settings, job)  # first: they say how the model is loaded
    base = load_base_model(
        settings,
        name,
        revision,
        sharded=job.deepspeed is not None,
        dtype=weights_format(settings, recipe.choices),
    )
    if recipe.choices.finetune_method == "lora":
        adapted = with_adapters(base.network, recipe.choices, job.model)
        base = dataclasses.replace(base, adapted=adapted)
    if job.deepspeed is None:
        require_training_memory(settings, base, recipe.choices)
    length = min(recipe.choices.finetune_length, base.window)
    steps, batch = recipe.choices.finetune_steps, recipe.choices.finetune_batch
    sequences = TokenSequences.of(
        read_release(job.release_dir),
        base.tokenization,
        length,
        without_calls=recipe.without_calls,
        mask_results=recipe.masks_results,
    )
    development = TokenSequences.of_beginnings(job.dev_texts, base.tokenization, length)
    logger.info(
        "training %s on release %s%s (%s): %d sequences of at most %d tokens, %d tokens in all; %d steps of "
        "%d sequences see each %.1f times; the loss counts %s (%d tokens are masked); %d development "
        "documents",
        recipe.base_model, recipe.release_id, " without calls" if recipe.without_calls else "",
        described(recipe.choices), len(sequences),
        length, sequences.tokens, steps, batch, steps * batch / max(1, len(sequences)),
        recipe.loss_counts, sequences.masked_tokens, len(development),
    )  # fmt: skip
    if not len(development):
        logger.warning(
            "no development documents, in the corpus outside the release or asked for: the last step is kept"
        )
    with all_cores(settings):
        return train(settings, job, base, sequences, development, arguments)


def job_for_less_memory(settings: Settings, job: TrainingJob, processes: int, reason: str) -> TrainingJob:
    """The job with passes of half the size.

    A job at one sequence gets activations that are computed again instead of kept.

    Raises:
        ModelError: nothing is left to save.
    """
    recipe = job.recipe
    size = job.pass_size or recipe.pass_size(device_kind(settings.device), processes)
    half = size.half(recipe.share(processes), recipe.choices.finetune_length)
    if half is not None:
        less = dataclasses.replace(job, pass_size=half)
        remedy = str(half)
    elif not job.activation_checkpointing:
        less = dataclasses.replace(job, activation_checkpointing=True)
        remedy = "one sequence, computing activations twice"
    else:
        raise ModelError(
            f"{reason} Not even one sequence of {recipe.choices.finetune_length} tokens fits. Choose a "
            "device with more memory, a shorter finetune_length, or a smaller model."
        )
    logger.warning("out of memory with %s at once: continuing with %s", size, remedy)
    return less
