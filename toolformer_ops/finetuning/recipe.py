"""What decides a finetuned model: the release, the model it starts from, and the choices of the training.

It also describes a training's job.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, DeviceKind
from toolformer_ops.runs.choices import WARMUP_SHARE, FinetuningChoices
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
    def is_spread(self) -> bool:
        """Whether several GPUs divide the state of the training: that of all weights with AdamW.

        Adapters are small, and moments in 8 bits are bitsandbytes' own, so that each process holds all of
        theirs.
        """
        return self.choices.finetune_method == "full" and self.choices.finetune_optimizer == "adamw"

    @property
    def model_id(self) -> str:
        """16 hex digits; equal trainings have equal ids."""
        return id_of_content(self.definition)

    @property
    def warmup_steps(self) -> int:
        """Steps until the peak learning rate."""
        return math.ceil(self.choices.finetune_steps * WARMUP_SHARE)

    def pass_size(self, kind: DeviceKind, processes: int = 1) -> "PassSize":
        """How much one forward pass of each of so many processes holds, on a `cpu` or on `cuda`.

        It holds that if memory allows it. With `finetune_device_batch` the sequences of a step are divided
        evenly: the largest divisor of a process's share that is not above it.
        """
        at_most = self.choices.finetune_device_batch
        if at_most is None:
            return PassSize(tokens=BATCH_SIZES[kind].training_tokens)
        return PassSize(sequences=even_part(self.share(processes), at_most))

    def share(self, processes: int) -> int:
        """Sequences of a step in each of so many processes."""
        return self.choices.finetune_batch // processes

    def processes(self, at_most: int) -> int:
        """How many of `at_most` processes share an effective batch evenly."""
        return next(
            count for count in range(max(1, at_most), 0, -1) if self.choices.finetune_batch % count == 0
        )


@dataclass(frozen=True)
class PassSize:
    """How much one forward pass of a training holds; one sequence at least."""

    sequences: int | None = None
    """Most sequences; None: tokens are counted."""
    tokens: int | None = None
    """Most tokens, padding not counted; None: sequences are counted."""

    def holds(self, sequences: int, tokens: int) -> bool:
        """Whether so many sequences of so many tokens in all are one pass."""
        if self.sequences is not None:
            return sequences <= self.sequences
        return self.tokens is None or tokens <= self.tokens

    def half(self, share: int, longest: int) -> "PassSize | None":
        """A pass of half the size, None if one sequence of `longest` tokens is all it holds.

        A step has `share` sequences.
        """
        if self.sequences is not None:
            return None if self.sequences == 1 else PassSize(sequences=even_part(share, self.sequences // 2))
        tokens = self.tokens or BATCH_SIZES["cuda"].training_tokens
        return None if tokens <= longest else PassSize(tokens=max(longest, tokens // 2))

    def __str__(self) -> str:
        """In words."""
        count, unit = (self.tokens, "token") if self.sequences is None else (self.sequences, "sequence")
        return f"{count} {unit}{'' if count == 1 else 's'}"


def even_part(share: int, at_most: int) -> int:
    """The largest divisor of `share` that is not above `at_most`."""
    return next(size for size in range(min(at_most, share), 0, -1) if share % size == 0)


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
    pass_size: PassSize | None = None
    """How much one forward pass holds; None: as much as the recipe says."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    deepspeed: str | None = None
    """DeepSpeed's configuration, if several processes share the weights."""
