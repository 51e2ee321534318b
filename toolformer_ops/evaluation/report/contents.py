"""What the page is made from, as frozen records, and how they are gathered for a run.

Scores, run, release and models come from Postgres, loss curves and what was written from S3. Reads only. Curves come from the logs
in the folder of a finetuned model; a model without them has no curve, nor has one that was withdrawn.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.config import Settings
from toolformer_ops.evaluation.comparing import Comparison, compare_inputs
from toolformer_ops.evaluation.records import EvaluatedInput, SuiteScore, Variant
from toolformer_ops.evaluation.store import read_inputs, scores_of_run
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.run_tools import require_run
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.publication import ObjectStore

LOGS = ("training_log.jsonl", "development_log.jsonl")


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
    """The same on the development documents."""


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


def gather(settings: Settings, store: ObjectStore, run_id: str) -> ReportContents:
    """The contents of a run's page.

    Raises:
        UsageError: there is no such run.
        ObjectStoreError, DatabaseError: S3 or Postgres refuse.
    """
    with database.transaction(database.connect(settings)) as connection:
        facts = _facts(connection, store, require_run(connection, run_id))
        scores = tuple(scores_of_run(connection, run_id))
    inputs = tuple(read_inputs(store, run_id))
    return ReportContents(facts=facts, scores=scores, inputs=inputs, comparisons=tuple(compare_inputs(inputs)))


def _facts(connection: Connection, store: ObjectStore, run: Row[Any]) -> RunFacts:
    releases = database.fetch_all(connection, queries.releases.of_run, run_id=run.run_id)
    release = releases[0] if releases else None
    models = []
    for row in database.fetch_all(connection, queries.evaluation.models_of_run, run_id=run.run_id):
        training, development = ((), ()) if row.withdrawn_at else _losses(store, row.uri, row.manifest_sha256)
        models.append(
            TrainedModel(
                variant="without_calls" if row.without_calls else "with_tools",
                model_id=row.model_id,
                uri=row.uri,
                definition=row.definition,
                training=training,
                development=development,
            )
        )
    return RunFacts(
        run_id=run.run_id,
        base_model=run.model_identity,
        code_version=run.code_version,
        started=f"{run.started_at:%Y-%m-%d %H:%M} UTC",
        release_id=release.release_id if release else None,
        release_uri=release.uri if release else None,
        release_texts=release.documents if release else 0,
        release_calls=release.calls if release else 0,
        lacking_tools=tuple(release.lacking_tools) if release else (),
        models=tuple(models),
        asked_suites=RunChoices.parse(run.parameters).evaluation_suites,
        rates=tuple(
            ToolRate(**row._asdict())
            for row in database.fetch_all(connection, queries.evaluation.rates, run_id=run.run_id)
        ),
    )


def _losses(store: ObjectStore, uri: str, manifest_sha256: str) -> Iterator[tuple[tuple[int, float], ...]]:
    """The points of both logs of a model; those without a finite loss are left out."""
    manifest = store.published(store.key_of(uri), manifest_sha256)
    for log in LOGS:
        text = (store.read_file(manifest, log) or b"").decode("utf-8")
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        losses = [(int(line["step"]), float(line.get("loss") or math.nan)) for line in lines]
        yield tuple(point for point in losses if math.isfinite(point[1]))
