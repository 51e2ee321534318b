"""Train a model on token sequences with transformers' Trainer, from the last checkpoint on if there is one.

The objective is language modelling: every token of the text and of the calls counts alike, as in the paper,
or all but the results of calls (`finetune_results`). Gradients are accumulated over the forward passes of a
step, which hold so many tokens or sequences as memory allows, and the loss is the mean over the tokens of the
whole effective batch, so that how a batch is split, packed and spread over processes changes nothing. The
weights of the lowest development perplexity are kept (appendix B); without development documents those of the
last step. Runs alike in one process and as one of several that `accelerate launch` started; then each takes
its share of every batch. Reads no database and starts no process.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_callback import PrinterCallback

from toolformer_ops import termination
from toolformer_ops.config import Settings
from toolformer_ops.errors import DeviceMemoryError, ModelError
from toolformer_ops.finetuning.adapter import merged
from toolformer_ops.finetuning.base_model import (
    PROCESSES_VARIABLE,
    BaseModel,
    computes_in_bfloat16,
)
from toolformer_ops.finetuning.batches import collate_for
from toolformer_ops.finetuning.checkpoints import Checkpoints, Snapshots, copy_weights
from toolformer_ops.finetuning.compiled_layers import compile_layers
from toolformer_ops.finetuning.recipe import MAX_GRADIENT_NORM, SCHEDULE, PassSize, TrainingJob
from toolformer_ops.finetuning.sequences import ShuffledPasses, TokenSequences
from toolformer_ops.finetuning.summed_loss import sum_losses_in_forward
from toolformer_ops.finetuning.trainer import AfterEachStep, ReleaseTrainer
from toolformer_ops.finetuning.training_log import DevelopmentScore, ProgressLines, TrainingLog
from toolformer_ops.language_model.batch_sizes import device_kind
from toolformer_ops.language_model.devices import require_own_memory
from toolformer_ops.language_model.models.identity import split_revision
from toolformer_ops.language_model.models.loading import load_weights
from toolformer_ops.language_model.models.version_4 import write_for_version_4
from toolformer_ops.language_model.throughput import cards_of, training_operations

LOGGED_STEPS = 100
"""About how many progress lines a training writes."""
OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_bnb_8bit"}
"""transformers' name of each optimiser that a run can choose."""
CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in TrainingArguments.__dataclass_fields__
)
"""transformers' name of the argument by which activations are computed again: the second up to 5.17, which GPU
images may still have."""


@dataclass(frozen=True)
class TrainedModel:
    """A training's result in a local folder."""

    directory: Path
    training_loss: float
    """Mean over the last log lines, nats a token; `FinetuningRecipe.loss_counts` names the tokens."""
    seconds: float
    """Seconds of training, restarts left out."""
    precision: str
    """Number format of the forward passes: float32 or bfloat16."""
    best: DevelopmentScore | None
    """The step whose weights these are; None if no development document was scored, and they are the last
    step's."""


@contextlib.contextmanager
def all_cores(settings: Settings) -> Iterator[None]:
    """Within the block torch computes on the CPU with all cores that this process may use.

    Several processes divide them. Stages run side by side with `settings.threads` each, but a training has
    its machine to itself. A pod does not: its node has others, so it trains with `settings.threads`.
    """
    before = torch.get_num_threads()
    if settings.device == "cpu" and settings.runner == "local":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(settings.threads, cores // int(os.environ.get(PROCESSES_VARIABLE, "1"))))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    settings: Settings,
    job: TrainingJob,
    base: BaseModel,
    sequences: TokenSequences,
    development: TokenSequences,
    arguments: TrainingArguments,
) -> TrainedModel | None:
    """Train, and write weights (safetensors), tokenizer and logs into the folder's `model`.

    Returns None in all processes but the first. Resumes from the last whole checkpoint in the job's folder,
    if any.

    Raises:
        ModelError: the loss stopped being a finite number.
        DeviceMemoryError: a pass does not fit into memory; checkpoints stay.
        InfrastructureError: nor could it, since other processes hold much of the GPU.
        TerminationRequest: SIGTERM came; the checkpoint of the last step is written.
    """
    recipe, folder = job.recipe, job.folder
    # 1. The state; the first process removes what a kill left half done. Checkpoints whose weights are spread
    #    over processes fit only as many processes again.
    processes = os.environ.get(PROCESSES_VARIABLE, "1") if arguments.deepspeed_plugin is not None else "1"
    checkpoints = Checkpoints(folder / "checkpoints", f"{recipe.model_id} {development.sha256} {processes}")
    log = TrainingLog(folder)
    if os.environ.get("RANK", "0") == "0":
        checkpoints.folder.mkdir(parents=True, exist_ok=True)
        checkpoints.forget_broken()
        log.forget_after(checkpoints.last_step() or 0)
    snapshots = (
        Snapshots(settings, recipe.model_id) if settings.sends_checkpoints and arguments.should_save else None
    )
    # 2. The training. A pass needs no KV cache, and packed rows must not have one.
    used_cache = getattr(base.network.config, "use_cache", None)
    base.network.config.use_cache = False
    trainer = _trainer_of(settings, job, base, sequences, arguments, development, checkpoints, log, snapshots)
    try:
        _run_from(trainer, checkpoints)
    finally:
        if snapshots:
            snapshots.wait()  # also after SIGTERM: `termination` ends a wait that is too long
    base.network.config.use_cache = used_cache
    # 3. The folder that is published.
    return (
        _written_model(settings, job, base, development, checkpoints, log, arguments)
        if arguments.should_save
        else None
    )


def _trainer_of(
    settings: Settings,
    job: TrainingJob,
    base: BaseModel,
    sequences: TokenSequences,
    arguments: TrainingArguments,
    development: TokenSequences,
    checkpoints: Checkpoints,
    log: TrainingLog,
    snapshots: Snapshots | None,
) -> "ReleaseTrainer":
    """The Trainer of a job, with what it logs and keeps."""
    choices = job.recipe.choices
    examples = ShuffledPasses(sequences, choices.finetune_steps * choices.finetune_batch, choices.seed)
    collate = collate_for(base.network, base.tokenizer, min(choices.finetune_length, base.window))
    compile_layers(base.network, settings, is_spread=job.deepspeed is not None)
    sum_losses_in_forward(base.network)
    trainer = ReleaseTrainer(
        model=base.trained,
        args=arguments,
        train_dataset=examples,
        collate=collate,
        pass_size=pass_size_of(settings, job),
        callbacks=[
            AfterEachStep(choices.finetune_eval_steps, evaluates=len(development) > 0),
            ProgressLines(
                log,
                lambda step: examples.tokens_until(step * choices.finetune_batch),
                cards_of(settings, processes=int(os.environ.get(PROCESSES_VARIABLE, "1"))),
                training_operations(base.network, base.trained),
            ),
        ],
        development=development,
        checkpoints=checkpoints,
        log=log,
        snapshots=snapshots,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _run_from(trainer: "ReleaseTrainer", checkpoints: Checkpoints) -> None:
    """Train from the last checkpoint on.

    Raises:
        DeviceMemoryError: a pass does not fit into memory.
        InfrastructureError: nor could it, since other processes hold much of the GPU.
    """
    from accelerate.utils.memory import should_reduce_batch_size
    from torch.serialization import safe_globals

    classes: list[Any] = []
    if trainer.is_deepspeed_enabled:
        # Its checkpoints hold these, tensors and plain values; nothing else is unpickled.
        from deepspeed.runtime.fp16.loss_scaler import LossScaler
        from deepspeed.runtime.zero.config import ZeroStageEnum

        classes = [ZeroStageEnum, LossScaler]
    last = checkpoints.last_step()
    reason = ""
    try:
        with safe_globals(classes), termination.deferred():
            trainer.train(resume_from_checkpoint=None if last is None else str(checkpoints.path(last)))
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        if not should_reduce_batch_size(error):
            raise
        reason = str(error).splitlines()[0]
    if reason:  # not within the handler, whose traceback holds what fills the memory
        require_own_memory("one forward and backward pass")
        raise DeviceMemoryError(
            f"expected memory for one forward and backward pass, found too little: {reason}"
        )


def _written_model(
    settings: Settings,
    job: TrainingJob,
    base: BaseModel,
    development: TokenSequences,
    checkpoints: Checkpoints,
    log: TrainingLog,
    arguments: TrainingArguments,
) -> TrainedModel:
    """Write the folder that is published.

    Raises:
        ModelError: no development perplexity is finite.
    """
    directory = job.folder / "model"
    loss, best = log.training_loss(), log.best()
    if len(development) and best is None:
        raise ModelError("expected a finite development perplexity, found none. No model is published.")
    shutil.rmtree(directory, ignore_errors=True)  # of a training that was killed
    weights = checkpoints.weights(best.step if best else None)
    if base.adapted is None:
        copy_weights(weights, directory)
        base.network.config.save_pretrained(directory)  # the checkpoint's says that there is no cache
    else:
        name, revision = split_revision(job.model)
        network = load_weights(name, revision, "float32", "cpu", settings.threads, settings)
        merged(network, weights).save_pretrained(directory)
    base.tokenizer.save_pretrained(directory)
    write_for_version_4(directory)
    for path in (log.training, log.development):
        shutil.copyfile(path, directory / path.name)
    return TrainedModel(directory, loss, log.seconds(), "bfloat16" if arguments.bf16 else "float32", best)


def training_arguments(settings: Settings, job: TrainingJob) -> TrainingArguments:
    """The arguments of transformers' Trainer.

    If the job names DeepSpeed, models that are loaded while they exist are divided among the processes.
    """
    recipe = job.recipe
    processes = int(os.environ.get(PROCESSES_VARIABLE, "1"))
    return TrainingArguments(
        output_dir=str(job.folder / "checkpoints"),
        max_steps=recipe.choices.finetune_steps,
        per_device_train_batch_size=recipe.share(processes),  # `ReleaseTrainer` divides it into passes
        gradient_accumulation_steps=1,
        learning_rate=recipe.choices.finetune_learning_rate,
        lr_scheduler_type=SCHEDULE,
        warmup_steps=recipe.warmup_steps,
        weight_decay=0.0,
        max_grad_norm=MAX_GRADIENT_NORM,
        train_sampling_strategy="sequential",  # `ShuffledPasses` shuffles
        seed=recipe.choices.seed,
        use_cpu=settings.device == "cpu",
        # Of the forward passes; the weights that the optimiser changes are float32.
        bf16=computes_in_bfloat16(settings),
        optim=OPTIMIZERS[recipe.choices.finetune_optimizer],
        **{CHECKPOINTING: job.activation_checkpointing},
        logging_steps=max(1, recipe.choices.finetune_steps // LOGGED_STEPS),
        logging_first_step=True,
        logging_nan_inf_filter=False,  # else a diverged training shows the loss before it
        disable_tqdm=True,
        report_to=[],
        save_strategy="steps",
        save_steps=recipe.choices.finetune_checkpoint_steps,
        deepspeed=job.deepspeed,
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
    )


def pass_size_of(settings: Settings, job: TrainingJob) -> PassSize:
    """How much one forward pass of this process holds."""
    processes = int(os.environ.get(PROCESSES_VARIABLE, "1"))
    return job.pass_size or job.recipe.pass_size(device_kind(settings.device), processes)
