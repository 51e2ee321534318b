"""How long a study takes on a GPU, before it begins: reckoned from one that was measured, and said as an estimate.

Measured on one H200 (2026-11-27, torch 2.11, ten seeds side by side by CUDA MPS, a model of 135 million
parameters): a seed was annotated in 56 s with 512 texts, the model before training was measured in 5 s with
100 sentences, and an arm was trained in 20 s with 63 steps of 16 texts, the loading of the model included. That a
trained arm is measured in as many seconds as the model before training is taken, not measured.

Work is taken to grow as the parameters do, which is too much while a small model leaves the GPU idle. Seeds
one after another take between a tenth of the time that they take side by side, if ten had used all of the GPU, and
all of it, if none had waited for another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from studies.plan import STUDIES, StudyPlan
from toolformer_ops.config import Settings

MEASURED_ON = "one H200, 2026-11-27"
MEASURED_PARAMETERS = 134_515_008
MEASURED_PROCESSES = 10
MEASURED = StudyPlan()
"""The plan whose seconds these are."""
ANNOTATION_SECONDS = 56.0
MEASURING_SECONDS = 5.0
TRAINING_SECONDS = 20.0


@dataclass(frozen=True)
class Hours:
    """Between how many hours a study takes."""

    least: float
    most: float

    def __str__(self) -> str:
        """In minutes, or in hours from two on."""
        if self.most < 2:
            least, most, unit = 60 * self.least, 60 * self.most, "minutes"
        else:
            least, most, unit = self.least, self.most, "hours"
        low, high = f"{least:.2g}", f"{most:.2g}"
        return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def model_parameters(settings: Settings, model: str) -> int:
    """How many parameters a model has, from its config.json alone; no weights are fetched.

    Raises:
        ModelError: there is no such model, or its config.json names no architecture that transformers has.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from toolformer_ops.errors import ModelError
    from toolformer_ops.language_model.models.identity import model_config

    config = model_config(model, settings)
    try:
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{model}: expected the config.json of a causal model that transformers has, found: {error}. "
            "Give another model."
        ) from error
    return sum(parameter.numel() for parameter in network.parameters())


def study_hours(plans: Sequence[StudyPlan], parameters: int, processes: int) -> Hours:
    """Between how many hours the seeds of the plans take on a GPU as the measured one, so many of them side by side."""
    larger = parameters / MEASURED_PARAMETERS
    seconds = larger * math.fsum(_seed_seconds(plan) for plan in plans)
    side_by_side = min(processes, MEASURED_PROCESSES, len(plans))
    return Hours(seconds / MEASURED_PROCESSES / 3600, seconds / side_by_side / 3600)


def _seed_seconds(plan: StudyPlan) -> float:
    """Of a seed of the measured model beside nine others."""
    study, measured_study = STUDIES[plan.study], STUDIES[MEASURED.study]
    calls = plan.texts * study.max_positions * study.samples_per_position
    measured_calls = MEASURED.texts * measured_study.max_positions * measured_study.samples_per_position
    training = TRAINING_SECONDS * plan.steps * plan.batch / (MEASURED.steps * MEASURED.batch)
    measuring = MEASURING_SECONDS * plan.test / MEASURED.test
    annotation = ANNOTATION_SECONDS * calls / measured_calls
    return annotation + measuring + len(plan.arms) * (training + measuring)
