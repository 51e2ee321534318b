"""Everything on a run's page, from Postgres (scores, run, release, models) and S3 (loss curves, what was written).

Reads only. Curves come from the logs in the folder of a finetuned model; a model without them has no curve, nor has
one that was withdrawn.
"""

import json
import math
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.config import Settings
from toolformer_ops.evaluation.comparing import compare_inputs
from toolformer_ops.evaluation.records import VARIANT_NAMES, Variant
from toolformer_ops.evaluation.report.contents import LossCurve, ReportContents, RunFacts, ToolRate, TrainedModel
from toolformer_ops.evaluation.store import read_inputs, scores_of_run
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.run_tools import require_run
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.publication import ObjectStore

TRAINING_LOG = "training_log.jsonl"
DEVELOPMENT_LOG = "development_log.jsonl"


def gather(settings: Settings, store: ObjectStore, run_id: str) -> ReportContents:
    """The contents of a run's page.

    Raises:
        ParameterError: there is no such run.
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
        variant: Variant = "without_calls" if row.without_calls else "with_tools"
        curve = None
        if row.withdrawn_at is None:
            curve = _curve(store, row.uri, row.manifest_sha256, VARIANT_NAMES[variant])
        models.append(TrainedModel(variant, row.model_id, uri=row.uri, definition=row.definition, curve=curve))
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


def _curve(store: ObjectStore, uri: str, manifest_sha256: str, name: str) -> LossCurve | None:
    manifest = store.published(store.key_of(uri), manifest_sha256)
    points = {}
    for log in (TRAINING_LOG, DEVELOPMENT_LOG):
        text = (store.read_file(manifest, log) or b"").decode("utf-8")
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        losses = [(int(line["step"]), float(line.get("loss") or math.nan)) for line in lines]
        points[log] = tuple(point for point in losses if math.isfinite(point[1]))
    return LossCurve(name, points[TRAINING_LOG], points[DEVELOPMENT_LOG]) if any(points.values()) else None
