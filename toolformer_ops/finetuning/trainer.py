"""transformers' Trainer with a loss over the text's tokens alone, a development perplexity, and checkpoints that are whole or none.

Runs alike in one process and as one of several that `accelerate launch` started; then each takes its share of every batch.
"""

import math
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from toolformer_ops import termination
from toolformer_ops.finetuning.batches import Collate, scored_tokens, text_loss
from toolformer_ops.finetuning.checkpoints import Checkpoints, Snapshots
from toolformer_ops.finetuning.sequences import NOT_SCORED, TokenSequences
from toolformer_ops.finetuning.training_log import TrainingLog

LARGEST_EXPONENT = 700.0


class ReleaseTrainer(Trainer):
    """`development` may be empty: then the last step counts. `snapshots`: where checkpoints are sent, if they are."""

    control: TrainerControl

    def __init__(
        self,
        *,
        development: TokenSequences,
        checkpoints: Checkpoints,
        log: TrainingLog,
        snapshots: Snapshots | None,
        **arguments: Any,
    ) -> None:
        super().__init__(compute_loss_func=mean_over_tokens, **arguments)
        self._development = development
        self._checkpoints = checkpoints
        self._log = log
        self._snapshots = snapshots
        self._collate: Collate = arguments["data_collator"]

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Loss (nats a token) and perplexity of the development documents, written to the log.

        The mean is over all tokens but start tokens of the development sequences, which are plain text without calls. Each process
        takes every n-th batch, all of them equally many.
        """
        model: Any = self.model_wrapped if self.is_deepspeed_enabled else self.model
        # The longest sequences come first, so that memory runs short at once or never.
        sequences = (self._development[index] for index in range(len(self._development)))
        examples = sorted(sequences, key=lambda example: len(example["input_ids"]), reverse=True)
        size = self.args.per_device_train_batch_size
        batches = [examples[first : first + size] for first in range(0, len(examples), size)]
        processes = self.accelerator.num_processes
        summed = torch.zeros(2, dtype=torch.float64, device=self.args.device)  # (loss, tokens)
        model.eval()
        for first in range(0, len(batches), processes):
            number = first + self.accelerator.process_index
            batch = self._collate(batches[min(number, len(batches) - 1)])
            if number >= len(batches):  # weights that are spread over the processes need all of them at each pass
                batch["labels"].fill_(NOT_SCORED)
            inputs = self._prepare_inputs(batch)
            labels = inputs.pop("labels")
            with torch.no_grad():
                logits = model(**inputs).logits  # (row, position, vocabulary)
            summed += torch.stack([text_loss(logits, labels).double(), scored_tokens(labels).double()])
        model.train()
        nats, tokens = self.accelerator.reduce(summed, "sum").tolist()
        loss = float(nats / max(tokens, 1.0))
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
                files |= {path.name: path for path in (self._log.training, self._log.development) if path.is_file()}
                self._snapshots.send(step, self._checkpoints.key, files, self._checkpoints.folder / "sent")
        self.accelerator.wait_for_everyone()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Leave out the optimiser's state, two thirds of a checkpoint, after the last step: no training continues from there."""
        # DeepSpeed's checkpoint is written here, weights included.
        if self.is_deepspeed_enabled or self.state.global_step < self.state.max_steps:
            super()._save_optimizer_and_scheduler(output_dir)


class DevelopmentSchedule(TrainerCallback):
    """When the development perplexity is taken: every `steps` steps and at the end, always with a checkpoint."""

    def __init__(self, steps: int, *, evaluates: bool) -> None:
        self._steps = steps
        self._evaluates = evaluates

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> TrainerControl:
        """A checkpoint always ends a line of the training log, so that no line spans a restart."""
        due = state.global_step % self._steps == 0 or state.global_step >= state.max_steps
        if self._evaluates and due:
            control.should_evaluate = control.should_save = True
        if control.should_save:
            control.should_log = True
        return control


class StopWhenToldTo(TrainerCallback):
    """SIGTERM ends the training after the step at work, with a checkpoint; all processes at the same step."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> TrainerControl:
        """One process may have been told earlier than the others: what one knows, all know."""
        told = torch.tensor(int(termination.requested()), device=args.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
        if told.item():
            control.should_save = control.should_training_stop = True
        return control


def mean_over_tokens(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int) -> torch.Tensor:
    """The share of one forward pass in the mean loss over all tokens of the effective batch, nats."""
    tokens = torch.as_tensor(num_items_in_batch, device=labels.device).clamp(min=1)
    return text_loss(outputs["logits"], labels) / tokens
