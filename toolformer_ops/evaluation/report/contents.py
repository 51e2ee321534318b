"""What the page is made from, as frozen records; `stages/evaluation_report.py` gathers them."""

from dataclasses import dataclass
from typing import Any

from toolformer_ops.evaluation.comparing import Comparison
from toolformer_ops.evaluation.records import EvaluatedInput, SuiteScore, Variant


@dataclass(frozen=True)
class TrainedModel:
    """A model that was finetuned in this run."""

    variant: Variant
    """with_tools, or without_calls for the baseline."""
    model_id: str
    uri: str
    definition: dict[str, Any]
    """Its recipe: the numbers that decide it."""
    training: tuple[tuple[int, float], ...] = ()
    """(optimiser step, loss in nats a token); empty if it has no log."""
    development: tuple[tuple[int, float], ...] = ()
    """Step and loss on the development documents."""


@dataclass(frozen=True)
class ToolRate:
    """How many of its kept calls of a tool a run would keep by chance (docs/placebo.md)."""

    tool: str
    threshold: float
    """The tool's own, nats."""
    calls: int
    """Kept at it."""
    by_chance: str
    """The share of these, as `runs/placebo_rates.py` writes it."""


@dataclass(frozen=True)
class ReportContents:
    """Everything on the page: what was evaluated, and what came of it."""

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
    rates: tuple[ToolRate, ...] = ()
    """The rates of the tools that have one."""
    scores: tuple[SuiteScore, ...] = ()
    inputs: tuple[EvaluatedInput, ...] = ()
    """From which the examples are taken."""
    comparisons: tuple[Comparison, ...] = ()
    """Toolformer beside each other model."""
