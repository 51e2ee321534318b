"""Everything on a run's page, from Postgres (scores, run, release, models) and S3 (loss curves, what was written).

Reads only. Curves are those files that a finetuned model has beside its weights; a model without them has no curve.
"""

import json
import math
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import ParameterError
from toolformer_ops.evaluation.records import VARIANT_NAMES, Variant
from toolformer_ops.evaluation.store import read_inputs, scores_of_run
from toolformer_ops.evaluation_report.contents import LossCurve, ReportContents, RunFacts, TrainedModel
from toolformer_ops.evaluation_report.pairing import row_differences
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage import database
from toolformer_ops.storage.object_store import ObjectStore

TRAINING_LOG = "training_log.jsonl"
DEVELOPMENT_LOG = "development_log.jsonl"


def gather(settings: Settings, store: ObjectStore, run_id: str) -> ReportContents:
    """The contents of a run's page.

    Raises:
        ParameterError: there is no such run.
        ObjectStoreError, DatabaseError: S3 or Postgres refuse.
    """
    with database.transaction(database.connect(settings)) as connection:
        runs = database.fetch_all(connection, "run_by_id", run_id=run_id)
        if not runs:
            raise ParameterError(
                f"--run: expected a started run, found {run_id!r}. The table annotation_runs lists them."
            )
        facts = _facts(connection, store, runs[0])
        scores = tuple(scores_of_run(connection, run_id))
    inputs = tuple(read_inputs(store, run_id))
    return ReportContents(facts, scores, inputs, tuple(row_differences(inputs)))


def _facts(connection: Connection, store: ObjectStore, run: Row[Any]) -> RunFacts:
    releases = database.fetch_all(connection, "release_of_run", run_id=run.run_id)
    release = releases[0] if releases else None
    models = database.fetch_all(connection, "report_models_of_run", run_id=run.run_id)
    return RunFacts(
        run.run_id,
        run.model_identity,
        run.code_version,
        f"{run.started_at:%Y-%m-%d %H:%M} UTC",
        release.release_id if release else None,
        release.uri if release else None,
        release.documents if release else 0,
        release.calls if release else 0,
        tuple(release.lacking_tools) if release else (),
        tuple(_model(store, model) for model in models),
        RunChoices.parse(run.parameters).evaluation_suites,
    )


def _model(store: ObjectStore, row: Row[Any]) -> TrainedModel:
    variant: Variant = "without_calls" if row.without_calls else "with_tools"
    return TrainedModel(variant, row.model_id, row.uri, row.definition, _curve(store, row.uri, VARIANT_NAMES[variant]))


def _curve(store: ObjectStore, uri: str, name: str) -> LossCurve | None:
    manifest = store.read_manifest(store.key_of(uri))
    keys = {file.name: manifest.key_of(file) for file in manifest.files} if manifest else {}
    points = {log: _points(store.get(keys[log])) for log in (TRAINING_LOG, DEVELOPMENT_LOG) if log in keys}
    if not any(points.values()):
        return None
    return LossCurve(name, points.get(TRAINING_LOG, ()), points.get(DEVELOPMENT_LOG, ()))


def _points(log: bytes) -> tuple[tuple[int, float], ...]:
    lines = (json.loads(line) for line in log.decode("utf-8").splitlines() if line.strip())
    points = ((int(line["step"]), float(line.get("loss") or math.nan)) for line in lines)
    return tuple(point for point in points if math.isfinite(point[1]))
