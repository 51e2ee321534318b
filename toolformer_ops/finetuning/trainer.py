"""What a step of a training computes, by transformers' Trainer.

The Trainer's batch is a step, which is divided into passes. Evaluates on the development documents, and keeps
checkpoints with the step whose perplexity is the lowest. `training.py` makes it and runs it.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from toolformer_ops import termination
from toolformer_ops.finetuning.batches import Batch, Collate, divide
from toolformer_ops.finetuning.checkpoints import Checkpoints, Snapshots
from toolformer_ops.finetuning.recipe import PassSize
from toolformer_ops.finetuning.sequences import NOT_SCORED, TokenSequences
from toolformer_ops.finetuning.summed_loss import scored_tokens
from toolformer_ops.finetuning.training_log import TrainingLog

LARGEST_EXPONENT = 700.0
Example = Mapping[str, Sequence[int]]
"""The ids and labels of a sequence."""
PASSES = "passes"
"""In a batch of the Trainer: the passes of a step."""


class ReleaseTrainer(Trainer):
    """A Trainer with one batch a step: this process's share of the sequences.

    It divides the step into passes. `development` may be empty: then the last step counts. `snapshots`: where
    checkpoints are sent, if they are. The network's `forward` sums its losses (`sum_losses_in_forward`).
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

    def _passes(self, examples: Sequence[Example]) -> dict[str, list[Batch]]:
        """The passes of a step."""
        passes = self._divided(examples)
        return {PASSES: [self._collate(examples_of_pass) for examples_of_pass in passes]}

    def _divided(self, examples: Sequence[Example]) -> Iterator[list[Example]]:
        """The examples of each pass."""
        lengths = [len(example["input_ids"]) for example in examples]
        for numbers in divide(lengths, self.pass_size):
            yield [examples[number] for number in numbers]

    def _get_num_items_in_batch(
        self, batch_samples: list[dict[str, list[Batch]]], device: torch.device
    ) -> torch.Tensor:
        """The scored tokens of a step, in all processes."""
        batches = itertools.chain.from_iterable(sample[PASSES] for sample in batch_samples)
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
        """The share of one pass in the mean loss over all tokens of the step, nats.

        Processes average their gradients.
        """
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
        batches = list(self._divided(examples))
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
        """Leave out the optimiser's state, two thirds of a checkpoint, after the last step.

        No training continues from there.
        """
        # DeepSpeed's checkpoint is written here, weights included.
        if self.is_deepspeed_enabled or self.state.global_step < self.state.max_steps:
            super()._save_optimizer_and_scheduler(output_dir)


class AfterEachStep(TrainerCallback):
    """The development perplexity every `steps` steps and at the end, always with a checkpoint.

    It is the end when SIGTERM came.
    """

    def __init__(self, steps: int, *, evaluates: bool) -> None:
        self._steps = steps
        self._evaluates = evaluates

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> TrainerControl:
        """All processes stop at the same step.

        A process may have been told earlier than the others; what one knows, all know.
        """
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
