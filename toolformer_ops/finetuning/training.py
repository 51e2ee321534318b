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
import copy
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from toolformer_ops import termination
from toolformer_ops.config import Settings
from toolformer_ops.errors import DeviceMemoryError, ModelError
from toolformer_ops.finetuning.adapter import adapter_weights, described, merged
from toolformer_ops.finetuning.batches import Batch, Collate, collate_for, divide
from toolformer_ops.finetuning.checkpoints import Checkpoints, Snapshots, copy_weights
from toolformer_ops.finetuning.recipe import MAX_GRADIENT_NORM, SCHEDULE, PassSize, TrainingJob
from toolformer_ops.finetuning.sequences import NOT_SCORED, ShuffledPasses, TokenSequences
from toolformer_ops.finetuning.summed_loss import scored_tokens, sum_losses_in_forward
from toolformer_ops.finetuning.training_log import DevelopmentScore, ProgressLines, TrainingLog
from toolformer_ops.language_model.batch_sizes import device_kind
from toolformer_ops.language_model.models.gpus import GIB, require_own_memory
from toolformer_ops.language_model.models.identity import split_revision
from toolformer_ops.language_model.models.loading import load_network, load_weights
from toolformer_ops.language_model.models.sharing import constant_positions
from toolformer_ops.language_model.models.version_4 import write_for_version_4
from toolformer_ops.language_model.throughput import cards_of, training_operations
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.runs.choices import FinetuningChoices

LOGGED_STEPS = 100
"""About how many progress lines a training writes."""
MARKERS = (" [", "]", " ->")
"""What begins, ends and divides a call (`call_syntax.py`)."""
LARGEST_EXPONENT = 700.0
BYTES_A_TRAINED_WEIGHT = 16
"""Of a weight, its gradient and Adam's two moments, in float32."""
BYTES_A_WEIGHT_8BIT = 10
"""The same with moments in 8 bits. Those of embeddings stay in float32, as transformers sets bitsandbytes up."""
OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_bnb_8bit"}
"""By the run's choice, transformers' name."""
PASSES = "passes"
"""In a batch of the Trainer: the passes of a step."""
PROCESSES_VARIABLE = "WORLD_SIZE"
"""Set by `accelerate launch` in each of the processes that it starts."""


@dataclass(frozen=True)
class TrainedModel:
    """A training's result in a local folder."""

    directory: Path
    training_loss: float
    """Mean over the last log lines, nats a token of those that `FinetuningRecipe.loss_counts` names."""
    seconds: float
    """Of training, restarts left out."""
    precision: str
    """Number format of the forward passes: float32 or bfloat16."""
    best: DevelopmentScore | None
    """The step whose weights these are; None if no development document was scored, and they are the last
    step's."""


@dataclass(frozen=True)
class BaseModel:
    """The model that a training starts from."""

    network: Any
    tokenizer: Any
    tokenization: Tokenization
    window: int
    """Longest sequence, in tokens, that the model was made for."""
    adapted: Any = None
    """The network as a model of peft, whose adapters alone are trained; None if all weights are."""

    @property
    def trained(self) -> Any:
        """What the Trainer is given."""
        return self.network if self.adapted is None else self.adapted


def computes_in_bfloat16(settings: Settings) -> bool:
    """Whether forward passes compute in bfloat16: on GPUs that have it."""
    return settings.device != "cpu" and torch.cuda.is_bf16_supported()


def weights_format(settings: Settings, choices: FinetuningChoices) -> str:
    """The number format of the weights beside which adapters are trained, or that are trained themselves.

    The optimiser's small steps are lost in narrower weights than float32. Weights that stay as they are can be
    in the format in which the passes compute.
    """
    is_frozen = choices.finetune_method == "lora"
    return "bfloat16" if is_frozen and computes_in_bfloat16(settings) else "float32"


def load_base_model(
    settings: Settings,
    path_or_hub_id: str,
    revision: str | None,
    *,
    sharded: bool = False,
    dtype: str = "float32",
) -> BaseModel:
    """Load the model that is trained; `dtype` is that of its weights.

    `sharded`: the weights are divided among processes as they are loaded, of which the first alone reads
    them. transformers does that while `TrainingArguments` that name DeepSpeed's ZeRO-3 exist
    (`training_arguments`).

    Raises:
        ModelError: it is not there, or its vocabulary cannot write a call.
    """
    device = settings.device
    if sharded:
        device = "cpu"  # placeholders, which DeepSpeed places
    elif device != "cpu" and PROCESSES_VARIABLE in os.environ:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # of several processes each has one GPU
    network, tokenizer, _ = load_network(path_or_hub_id, revision, dtype, device, settings.threads, settings)
    # The engine's tokenization sets the tokenizer up for itself; the one that is published stays as it was.
    tokenization = Tokenization(copy.deepcopy(tokenizer))
    for marker in MARKERS:
        if (found := tokenization.decode(tokenization.continuation(marker))) != marker:
            raise ModelError(
                f"{path_or_hub_id}: expected a vocabulary that can write {marker!r} for the calls, found that it reads back as "
                f"{found!r}. Nothing was trained. Choose a model whose tokenizer knows every byte."
            )
    config = network.config
    known = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    positions = next((value for value in known if isinstance(value, int) and value > 0), 10**9)
    constant = constant_positions(getattr(config, "rope_parameters", None))
    positions = min(positions, constant or positions)
    return BaseModel(network, tokenizer, tokenization, positions)


def require_training_memory(settings: Settings, base: BaseModel, choices: FinetuningChoices) -> None:
    """Refuse a training whose state alone does not fit on the one GPU that holds it.

    Raises:
        ModelError: the message has the bytes that are needed, those that are there, and what would fit.
    """
    device = torch.device(base.network.device)
    if device.type != "cuda":
        return
    needed, total = training_bytes(base, choices), torch.cuda.mem_get_info(device)[1]
    if needed <= total:
        return
    weights = sum(parameter.numel() for parameter in base.network.parameters())
    remedies = []
    if choices.finetune_method == "full":
        # 1. Choices with which this GPU holds it.
        in_8_bits = choices.model_copy(update={"finetune_optimizer": "adamw_8bit"})
        frozen = weights * (2 if computes_in_bfloat16(settings) else 4)
        adapters = adapter_weights(base.network, choices.finetune_lora_rank) * BYTES_A_TRAINED_WEIGHT
        for choice, size in (
            ("finetune_optimizer adamw_8bit", training_bytes(base, in_8_bits)),
            ("finetune_method lora", frozen + adapters),
        ):
            if size <= min(total, needed - 1):
                remedies.append(f"{choice} ({size / GIB:.0f} GiB)")
        # 2. Other GPUs.
        spread = math.ceil(weights * BYTES_A_TRAINED_WEIGHT / total) + 1
        remedies.append(f"{spread} GPUs or more with adamw, over which DeepSpeed spreads it")
    raise ModelError(
        f"expected a GPU with {needed / GIB:.0f} GiB for the training of {weights / 1e9:.1f} billion weights "
        f"({described(choices)}), found {total / GIB:.0f} GiB. "
        f"Nothing was trained. Take {''.join(f'{remedy}, ' for remedy in remedies)}a larger GPU, or a smaller model."
    )


def training_bytes(base: BaseModel, choices: FinetuningChoices) -> int:
    """Bytes of weights, gradients and moments; what a forward pass takes comes to that."""
    embeddings = base.network.get_input_embeddings().weight
    needed = 0
    for weight in base.trained.parameters():
        if not weight.requires_grad:
            size = weight.element_size()
        elif choices.finetune_optimizer == "adamw_8bit" and weight is not embeddings:
            size = BYTES_A_WEIGHT_8BIT
        else:
            size = BYTES_A_TRAINED_WEIGHT
        needed += weight.numel() * size
    return needed


@contextlib.contextmanager
def all_cores(settings: Settings) -> Iterator[None]:
    """Within the block torch computes on the CPU with all cores that this process may use; several processes divide them.

    Stages run side by side with `settings.threads` each, but a training has its machine to itself. A pod does
    not: its node has others, so it trains with `settings.threads`.
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
    """Train, and write weights (safetensors), tokenizer and logs into the folder's `model`; None in all processes but the first.

    Resumes from the last whole checkpoint in the job's folder, if any.

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
    # 2. The training. A pass reads no cache, and packing needs that there is none.
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
        # Its checkpoints hold these besides tensors and plain values; nothing else is unpickled.
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
    """What transformers' Trainer is told.

    If the job names DeepSpeed, models are loaded divided while this exists.
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
        activation_checkpointing=job.activation_checkpointing,
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


class ReleaseTrainer(Trainer):
    """Each batch of the Trainer is a step: this process's share of the sequences, which it divides into passes.

    `development` may be empty: then the last step counts. `snapshots`: where checkpoints are sent, if they
    are. The network's `forward` sums its losses (`sum_losses_in_forward`).
    """

    control: TrainerControl

    def __init__(
        self,
        *,
        collate: Collate,
        pass_size: PassSize,
        development: TokenSequences,
        checkpoints: Checkpoints,
        log: TrainingLog,
        snapshots: Snapshots | None,
        **arguments: Any,
    ) -> None:
        super().__init__(data_collator=self._passes, **arguments)
        self.loss_is_scaled_for_ga = True  # by `compute_loss`
        self.pass_size = pass_size
        self._collate = collate
        self._development = development
        self._checkpoints = checkpoints
        self._log = log
        self._snapshots = snapshots

    def _passes(self, examples: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[Batch]]:
        """The passes of a step."""
        lengths = [len(example["input_ids"]) for example in examples]
        return {
            PASSES: [
                self._collate([examples[number] for number in numbers])
                for numbers in divide(lengths, self.pass_size)
            ]
        }

    def _get_num_items_in_batch(
        self, batch_samples: list[dict[str, list[Batch]]], device: torch.device
    ) -> torch.Tensor:
        """The scored tokens of a step, in all processes."""
        batches = [batch for sample in batch_samples for batch in sample[PASSES]]
        tokens = torch.stack([scored_tokens(batch["labels"]) for batch in batches]).sum().to(device)
        everywhere: torch.Tensor = self.accelerator.reduce(tokens, "sum")
        return everywhere

    def training_step(
        self,
        model: Any,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """The gradients of all passes of a step; returns its loss.

        Processes exchange gradients in the last pass. A process with fewer passes than another computes its
        last one again without a scored token, since weights that are spread over processes need all of them
        at each pass.
        """
        batches: list[Batch] = inputs[PASSES]
        count = torch.tensor(len(batches), device=self.args.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(count, torch.distributed.ReduceOp.MAX)
        unscored = {**batches[-1], "labels": torch.full_like(batches[-1]["labels"], NOT_SCORED)}
        batches = [*batches, *[unscored] * (int(count) - len(batches))]
        summed = torch.zeros((), device=self.args.device)
        for number, batch in enumerate(batches, 1):
            is_last = number == len(batches)
            self.accelerator.gradient_state._set_sync_gradients(is_last)  # as Trainer does for its own passes
            # DeepSpeed itself knows by this state when to exchange.
            apart = (
                contextlib.nullcontext()
                if is_last or self.is_deepspeed_enabled
                else self.accelerator.no_sync(model)
            )
            with apart:
                summed += super().training_step(model, batch, num_items_in_batch)
        return summed

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The share of one pass in the mean loss over all tokens of the step, nats; processes average their gradients."""
        outputs = model(**inputs)
        tokens = torch.as_tensor(num_items_in_batch, device=self.args.device).clamp(min=1)
        loss = outputs["summed_loss"] / tokens
        if self.accelerator.num_processes > 1:
            loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: `ProgressLines` counts tokens."""
        return 0

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Loss (nats a token) and perplexity of the development documents, written to the log.

        The mean is over all tokens but start tokens of the development sequences, which are plain text
        without calls. Each process takes every n-th batch, all of them equally many.
        """
        model: Any = self.model_wrapped if self.is_deepspeed_enabled else self.model
        # The longest sequences come first, so that memory runs short at once or never.
        sequences = (self._development[index] for index in range(len(self._development)))
        examples = sorted(sequences, key=lambda example: len(example["input_ids"]), reverse=True)
        lengths = [len(example["input_ids"]) for example in examples]
        batches = [[examples[number] for number in numbers] for numbers in divide(lengths, self.pass_size)]
        processes = self.accelerator.num_processes
        summed = torch.zeros(2, dtype=torch.float64, device=self.args.device)  # (loss, tokens)
        model.eval()
        for first in range(0, len(batches), processes):
            number = first + self.accelerator.process_index
            batch = self._collate(batches[min(number, len(batches) - 1)])
            if number >= len(
                batches
            ):  # weights that are spread over the processes need all of them at each pass
                batch["labels"].fill_(NOT_SCORED)
            inputs = self._prepare_inputs(batch)
            with torch.no_grad():
                nats = model(**inputs)["summed_loss"]
            summed += torch.stack([nats.double(), scored_tokens(inputs["labels"]).double()])
        model.train()
        all_nats, tokens = self.accelerator.reduce(summed, "sum").tolist()
        loss = float(all_nats / max(tokens, 1.0))
        metrics = {"development_loss": loss, "development_perplexity": math.exp(min(loss, LARGEST_EXPONENT))}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            step, best = self.state.global_step, self._log.best()
            best_step = best.step if best else None
            self._checkpoints.conclude(step, best_step)
            if self._snapshots:
                files = self._checkpoints.files(step, best_step)
                files |= {
                    path.name: path for path in (self._log.training, self._log.development) if path.is_file()
                }
                self._snapshots.send(step, self._checkpoints.key, files, self._checkpoints.folder / "sent")
        self.accelerator.wait_for_everyone()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Leave out the optimiser's state, two thirds of a checkpoint, after the last step: no training continues from there."""
        # DeepSpeed's checkpoint is written here, weights included.
        if self.is_deepspeed_enabled or self.state.global_step < self.state.max_steps:
            super()._save_optimizer_and_scheduler(output_dir)


class AfterEachStep(TrainerCallback):
    """The development perplexity every `steps` steps and at the end, always with a checkpoint; the end when SIGTERM came."""

    def __init__(self, steps: int, *, evaluates: bool) -> None:
        self._steps = steps
        self._evaluates = evaluates

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> TrainerControl:
        """All processes stop at the same step: one may have been told earlier than the others, and what one knows, all know."""
        told = torch.tensor(int(termination.requested()), device=args.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
        if told.item():
            control.should_save = control.should_training_stop = True
        due = state.global_step % self._steps == 0 or state.global_step >= state.max_steps
        if self._evaluates and due:
            control.should_evaluate = control.should_save = True
        if (
            control.should_save
        ):  # a checkpoint always ends a line of the training log, so that no line spans a restart
            control.should_log = True
        return control
