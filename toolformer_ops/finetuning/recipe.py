"""What decides a finetuned model: the release, the model it starts from, and the choices of the training; and a training's job."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from toolformer_ops.runs.choices import FinetuningChoices
from toolformer_ops.runs.recipes import id_of_content

FINETUNING_VERSION = 2
"""Raised when equal choices would train another model."""
SCHEDULE = "constant_with_warmup"
"""The paper names the linear warm-up and nothing after it, so the rate then stays."""
MAX_GRADIENT_NORM = 1.0


class FinetuningRecipe(BaseModel):
    """One training; the defaults of its choices are the paper's (section 4.1, appendix B)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    release_id: str
    base_model: str
    """Identity of the model that the training starts from."""
    choices: FinetuningChoices
    without_calls: bool = False
    """Train on the same texts without their calls: the paper's second baseline (section 4.1)."""

    @property
    def definition(self) -> dict[str, Any]:
        """All that is hashed into the model's id.

        Not in it: how a step is split into forward passes, and the device.
        """
        definition: dict[str, Any] = {
            "finetuning_version": FINETUNING_VERSION,
            "objective": "language_modelling",
            "schedule": SCHEDULE,
            "max_gradient_norm": MAX_GRADIENT_NORM,
            "release_id": self.release_id,
            "base_model": self.base_model,
            "without_calls": self.without_calls,
            **self.choices.deciding(),
        }
        if not self.masks_results:  # as before there was a choice
            definition.pop("finetune_results", None)
        return definition

    @property
    def masks_results(self) -> bool:
        """Whether the loss leaves out what the tools wrote; texts without calls hold nothing of it."""
        return self.choices.finetune_results == "mask" and not self.without_calls

    @property
    def loss_counts(self) -> str:
        """The tokens that the training loss is the mean over, in words."""
        return "every token but start tokens" + (" and the results of calls" if self.masks_results else "")

    @property
    def model_id(self) -> str:
        """16 hex digits; equal trainings have equal ids."""
        return id_of_content(self.definition)

    @property
    def warmup_steps(self) -> int:
        """Steps until the peak learning rate."""
        return math.ceil(self.choices.finetune_steps * self.choices.finetune_warmup)

    def device_batch(self, at_most: int | None = None, processes: int = 1) -> int:
        """Sequences of one forward pass: the largest divisor of a process's share that is not above `at_most`.

        So the passes of all processes are exactly one effective batch. `at_most` is `finetune_device_batch`
        if None.
        """
        share = self.choices.finetune_batch // processes
        at_most = at_most or self.choices.finetune_device_batch
        return next(size for size in range(min(at_most, share), 0, -1) if share % size == 0)

    def processes(self, at_most: int) -> int:
        """How many of `at_most` processes share an effective batch evenly."""
        return next(
            count for count in range(max(1, at_most), 0, -1) if self.choices.finetune_batch % count == 0
        )


@dataclass(frozen=True)
class TrainingJob:
    """What to train, on what, where and how; the fields with defaults change no number but by rounding."""

    recipe: FinetuningRecipe
    model: str
    """The model to start from: a folder, hub id@revision or s3:// address."""
    release_dir: Path
    """Folder with the release's files."""
    dev_texts: tuple[str, ...]
    """Development documents, scored as plain text; without any the last step is kept."""
    folder: Path
    """Everything that the training writes; a training that was killed continues from there."""
    device_batch: int | None = None
    """Most sequences of one forward pass; None: as many as the recipe says."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    deepspeed: str | None = None
    """DeepSpeed's configuration, if several processes share the weights."""
