"""What the page is made from: frozen records, cheap to import."""

from dataclasses import dataclass
from typing import Any

from toolformer_ops.evaluation.records import EvaluatedInput, SuiteScore, Variant


@dataclass(frozen=True)
class LossCurve:
    """How a training went."""

    name: str
    """Of the model, as a legend shows it."""
    training: tuple[tuple[int, float], ...]
    """(optimiser step, loss in nats a token)."""
    development: tuple[tuple[int, float], ...] = ()
    """(optimiser step, loss in nats a token on the development documents); empty where there were none."""


@dataclass(frozen=True)
class TrainedModel:
    """A model that was finetuned in this run."""

    variant: Variant
    """with_tools, or without_calls for the baseline."""
    model_id: str
    uri: str
    definition: dict[str, Any]
    """Its recipe: the numbers that decide it."""
    curve: LossCurve | None = None


@dataclass(frozen=True)
class RowDifference:
    """Two rows of a table on the same inputs."""

    suite: str
    subset: str
    left: str
    """Name of the row whose score the other's is taken from."""
    right: str
    inputs: int
    difference: float
    """Score of left less score of right, in [-1, 1]."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end of its 95 % interval."""
    p_value: float
    """Of McNemar's exact test, in [0, 1]."""


@dataclass(frozen=True)
class RunFacts:
    """What was evaluated."""

    run_id: str
    base_model: str
    """Identity of M."""
    code_version: str
    started: str
    """Date and time at which the run was registered, UTC."""
    release_id: str | None
    release_uri: str | None
    release_texts: int
    release_calls: int
    lacking_tools: tuple[str, ...]
    """Tools that the release was to hold and does not."""
    models: tuple[TrainedModel, ...]
    asked_suites: tuple[str, ...]
    """Suites that the run asked for, evaluated or not."""


@dataclass(frozen=True)
class ReportContents:
    """Everything on the page."""

    facts: RunFacts
    scores: tuple[SuiteScore, ...]
    inputs: tuple[EvaluatedInput, ...] = ()
    """From which the examples are taken."""
    differences: tuple[RowDifference, ...] = ()
