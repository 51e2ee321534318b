"""Train a model on token sequences with transformers' Trainer, and write the files that are published.

The objective is language modelling on the texts with their calls: every token of the text and of the calls counts alike, as in the
paper. Gradients are accumulated over forward passes, and the loss is the mean over the tokens of the whole effective
batch, so that how a batch is split changes nothing. Does not choose checkpoints, and reads no database.
"""

import copy
import functools
import json
import logging
import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.finetuning.recipe import MAX_GRADIENT_NORM, SCHEDULE, FinetuningRecipe
from toolformer_ops.finetuning.sequences import ShuffledPasses, TokenSequences, padded_batch
from toolformer_ops.language_model.loading import load_network
from toolformer_ops.language_model.tokenization import Tokenization

logger = logging.getLogger(__name__)

TRAINING_LOG = "training_log.jsonl"
LOGGED_STEPS = 100
"""About how many progress lines a training writes."""
LAST_LOGS = 5
"""Log lines whose mean loss is the training's loss."""


class TrainingError(UsageError):
    """A training came to nothing, and would again."""


@dataclass(frozen=True)
class TrainedModel:
    """A training's result in a local folder."""

    directory: Path
    training_loss: float
    """Mean over the last log lines, nats a token."""
    seconds: float
    precision: str
    """Number format of the forward passes: float32 or bfloat16."""


@dataclass(frozen=True)
class BaseModel:
    """The model that a training starts from."""

    network: Any
    tokenizer: Any
    tokenization: Tokenization
    max_positions: int
    """Longest sequence, in tokens, that the model was made for."""


def load_base_model(settings: Settings, path_or_hub_id: str, revision: str | None) -> BaseModel:
    """Load in float32: the optimiser's small steps are lost in narrower weights.

    Raises:
        ModelError: it is not there, or its vocabulary cannot write a call.
    """
    network, tokenizer, _ = load_network(path_or_hub_id, revision, "float32", settings.device, settings.threads)
    # The engine's tokenization sets the tokenizer up for itself; the one that is published stays as it was.
    tokenization = Tokenization(copy.deepcopy(tokenizer))
    config = network.config
    known = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    positions = next((value for value in known if isinstance(value, int) and value > 0), 10**9)
    return BaseModel(network, tokenizer, tokenization, positions)


class ProgressLines(TrainerCallback):
    """Writes step, loss, speed and time left to the log, and each line to `training_log.jsonl`."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._started = time.monotonic()
        self._last = (self._started, 0)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Start the clock."""
        self._started = time.monotonic()
        self._last = (self._started, int(state.num_input_tokens_seen))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """One line."""
        if logs is None or "loss" not in logs:
            return
        now, tokens = time.monotonic(), int(state.num_input_tokens_seen)
        then, tokens_then = self._last
        self._last = (now, tokens)
        speed = (tokens - tokens_then) / max(now - then, 1e-9)
        left = (now - self._started) / max(state.global_step, 1) * (state.max_steps - state.global_step)
        line = {
            "step": state.global_step,
            "loss": logs["loss"],
            "learning_rate": logs.get("learning_rate"),
            "gradient_norm": logs.get("grad_norm"),
            "tokens": tokens,
            "tokens_per_second": round(speed, 1),
        }
        with self._log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        logger.info(
            "step %d of %d: loss %.4f, %.0f tokens/s, %s left",
            state.global_step, state.max_steps, logs["loss"], speed, _duration(left),
        )  # fmt: skip


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def train(
    settings: Settings, recipe: FinetuningRecipe, base: BaseModel, sequences: TokenSequences, folder: Path, at_most: int
) -> TrainedModel:
    """Train, and write weights (safetensors), tokenizer and log into `folder`/model.

    `at_most` is the number of sequences that fit into one forward pass.

    Raises:
        TrainingError: the loss stopped being a finite number.
    """
    directory = folder / "model"
    shutil.rmtree(directory, ignore_errors=True)  # of a training that was killed
    directory.mkdir(parents=True)
    arguments = _arguments(settings, recipe, folder / "checkpoints", at_most)
    network = base.network
    used_cache = getattr(network.config, "use_cache", None)
    network.config.use_cache = False  # a training pass reads no cache
    trainer = Trainer(
        model=network,
        args=arguments,
        train_dataset=ShuffledPasses(sequences, recipe.steps * recipe.batch, recipe.seed),
        data_collator=functools.partial(padded_batch, padding_id=_padding_id(base.tokenizer)),
        callbacks=[ProgressLines(directory / TRAINING_LOG)],
    )
    trainer.remove_callback(PrinterCallback)
    started = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - started
    loss = training_loss(directory / TRAINING_LOG)
    network.config.use_cache = used_cache
    network.save_pretrained(directory)
    base.tokenizer.save_pretrained(directory)
    return TrainedModel(directory, loss, seconds, "bfloat16" if arguments.bf16 else "float32")


def _arguments(settings: Settings, recipe: FinetuningRecipe, folder: Path, at_most: int) -> TrainingArguments:
    device_batch = recipe.device_batch(at_most)
    on_cpu = settings.device == "cpu"
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=recipe.steps,
        per_device_train_batch_size=device_batch,
        gradient_accumulation_steps=recipe.batch // device_batch,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=SCHEDULE,
        warmup_steps=recipe.warmup_steps,
        weight_decay=0.0,
        max_grad_norm=MAX_GRADIENT_NORM,
        train_sampling_strategy="sequential",  # `ShuffledPasses` shuffles
        seed=recipe.seed,
        use_cpu=on_cpu,
        bf16=not on_cpu,
        logging_steps=max(1, recipe.steps // LOGGED_STEPS),
        logging_first_step=True,
        logging_nan_inf_filter=False,  # else a diverged training shows the loss before it
        include_num_input_tokens_seen="non_padding",
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,
    )


def _padding_id(tokenizer: Any) -> int:
    """Any id of the vocabulary: padding is neither attended to nor scored."""
    return next((value for value in (tokenizer.pad_token_id, tokenizer.eos_token_id) if value is not None), 0)


def training_loss(log: Path) -> float:
    """Mean loss of the last log lines, nats a token.

    Raises:
        TrainingError: it is not a finite number.
    """
    losses = [json.loads(line)["loss"] for line in log.read_text(encoding="utf-8").splitlines()][-LAST_LOGS:]
    mean = sum(losses) / len(losses) if losses else math.nan
    if not math.isfinite(mean):
        raise TrainingError(
            f"expected a finite training loss, found {losses}. No model is published. A smaller learning rate "
            "(finetune_learning_rate) or a longer warm-up keeps the training stable."
        )
    return mean


def passes(recipe: FinetuningRecipe, sequences: TokenSequences) -> float:
    """How often the training sees each sequence, on average."""
    return recipe.steps * recipe.batch / max(1, len(sequences))
