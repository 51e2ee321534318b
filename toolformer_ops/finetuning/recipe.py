"""What decides a finetuned model: the release, the model it starts from, and the numbers of the training."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from toolformer_ops.runs.choices import RunParameters

FINETUNING_VERSION = 2
"""Raised when equal numbers would train another model."""
SCHEDULE = "constant_with_warmup"
"""The paper names the linear warm-up and nothing after it, so the rate then stays."""
MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class FinetuningRecipe:
    """A training in numbers; defaults of `RunParameters` are the paper's (section 4.1, appendix B)."""

    release_id: str
    base_model: str
    """Identity of the model that the training starts from."""
    steps: int
    """Optimiser steps."""
    batch: int
    """Token sequences a step."""
    length: int
    """Most tokens of a sequence, the start token included."""
    learning_rate: float
    """Peak of the schedule."""
    warmup: float
    """Share of the steps over which the rate rises from 0."""
    seed: int
    dev_documents: int
    """Most development documents."""
    eval_steps: int
    """Steps between two development perplexities."""
    without_calls: bool = False
    """Train on the same texts without their calls: the paper's second baseline (section 4.1)."""

    @classmethod
    def of(
        cls, parameters: RunParameters, release_id: str, base_model: str, *, without_calls: bool = False
    ) -> "FinetuningRecipe":
        """The recipe of a run: of its model that uses tools, or of the baseline `without_calls`."""
        return cls(
            release_id,
            base_model,
            parameters.finetune_steps,
            parameters.finetune_batch,
            parameters.finetune_length,
            parameters.finetune_learning_rate,
            parameters.finetune_warmup,
            parameters.seed,
            parameters.finetune_dev_documents,
            parameters.finetune_eval_steps,
            without_calls,
        )

    @property
    def definition(self) -> dict[str, Any]:
        """All that is hashed into the model's id. Not in it: how a step is split into forward passes, and the device."""
        return {
            "finetuning_version": FINETUNING_VERSION,
            "objective": "language_modelling",
            "schedule": SCHEDULE,
            "max_gradient_norm": MAX_GRADIENT_NORM,
            **asdict(self),
        }

    @property
    def model_id(self) -> str:
        """16 hex digits; equal trainings have equal ids."""
        canonical = json.dumps(self.definition, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:16]

    @property
    def warmup_steps(self) -> int:
        """Steps until the peak learning rate."""
        return math.ceil(self.steps * self.warmup)

    def device_batch(self, at_most: int, processes: int = 1) -> int:
        """Sequences of one forward pass: the largest divisor of a process's share that is not above `at_most`.

        So the passes of all processes are exactly one effective batch.
        """
        share = self.batch // processes
        return next(size for size in range(min(at_most, share), 0, -1) if share % size == 0)

    def processes(self, at_most: int) -> int:
        """How many of `at_most` processes share an effective batch evenly."""
        return next(count for count in range(max(1, at_most), 0, -1) if self.batch % count == 0)
