"""What the page is made from, as frozen records, and where it is on S3. Cheap to import."""

import re
from dataclasses import dataclass
from typing import Any

from toolformer_ops.errors import ParameterError
from toolformer_ops.evaluation.comparing import Comparison
from toolformer_ops.evaluation.records import EvaluatedInput, SuiteScore, Variant

PREFIX = "reports"
PAGE = "index.html"
_RUN_ID = re.compile(r"(?!\.+\Z)[^/\x00-\x1f\x7f]{1,250}")


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
class ToolRate:
    """How many of the calls that a run keeps of a tool it would keep by chance (docs/placebo.md)."""

    tool: str
    threshold: float
    """The tool's own, nats."""
    calls: int
    """Kept at it."""
    false_discovery_rate: float
    rate_low: float
    """Lower end of its 95 % interval."""
    rate_high: float
    placebos_scored: int
    """What the rate rests on."""


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
    rates: tuple[ToolRate, ...] = ()
    """Of the tools whose rate is known."""


@dataclass(frozen=True)
class ReportContents:
    """Everything on the page."""

    facts: RunFacts
    scores: tuple[SuiteScore, ...]
    inputs: tuple[EvaluatedInput, ...] = ()
    """From which the examples are taken."""
    comparisons: tuple[Comparison, ...] = ()
    """Of Toolformer with each other model."""


def report_prefix(run_id: str) -> str:
    """Key of the folder with a run's page and its evaluated inputs, without a slash at its end.

    Raises:
        ParameterError: no run has such an id, since it would lead elsewhere.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ParameterError(f"--run: expected a run id without slashes and control characters, found {run_id!r:.80}.")
    return f"{PREFIX}/{run_id}"


def report_key(run_id: str) -> str:
    """Key of the page."""
    return f"{report_prefix(run_id)}/{PAGE}"


def page_key(run_id: str, subject: str) -> str:
    """Key of the page of the checks of a tool, or of the release.

    Raises:
        ParameterError: as `report_prefix`.
    """
    return f"{report_prefix(run_id)}/checks/{subject}.html"
