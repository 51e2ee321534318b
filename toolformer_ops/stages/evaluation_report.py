"""Publish the page of a run's evaluations: `reports/RUN/index.html` in the bucket.

Owns no table. The page is made anew from Postgres and S3 each time, and replaces the one before: a suite that
is evaluated later comes into it. What is on it is decided in `evaluation/report/`. Its curves come from the
logs in the folder of a finetuned model; a model without them has no curve, nor has a withdrawn one.
"""

import json
import logging
import math
from collections.abc import Iterator

from toolformer_ops.config import Settings
from toolformer_ops.evaluation.comparing import compare_inputs
from toolformer_ops.evaluation.report.contents import ReportContents, ToolRate, TrainedModel
from toolformer_ops.evaluation.store import read_inputs, report_key, scores_of_run
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.placebo_rates import kept_by_chance
from toolformer_ops.runs.run_tools import require_run
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/html; charset=utf-8"
LOGS = ("training_log.jsonl", "development_log.jsonl")


def report_evaluation(settings: Settings, run_id: str) -> str:
    """Make the page and write it; returns its address.

    Raises:
        UsageError: there is no such run.
        ObjectStoreError, DatabaseError: S3 or Postgres refuse.
    """
    from toolformer_ops.evaluation.report.page import render

    key = report_key(run_id)
    store = ObjectStore(settings)
    store.require_bucket()
    contents = gather(settings, store, run_id)
    store.put(key, render(contents).encode("utf-8"), CONTENT_TYPE)
    uri = store.uri(key)
    logger.info("reported %d scores of run %s: %s", len(contents.scores), run_id, uri)
    return uri


def gather(settings: Settings, store: ObjectStore, run_id: str) -> ReportContents:
    """The contents of a run's page: scores, run, release and models from Postgres, loss curves and what was written from S3.

    Raises:
        UsageError: there is no such run.
        ObjectStoreError, DatabaseError: S3 or Postgres refuse.
    """
    with database.transaction(database.connect(settings)) as connection:
        run = require_run(connection, run_id)
        releases = database.fetch_all(connection, queries.releases.of_run, run_id=run_id)
        trained = database.fetch_all(connection, queries.evaluation.models_of_run, run_id=run_id)
        rates = database.fetch_all(connection, queries.evaluation.rates, run_id=run_id)
        scores = tuple(scores_of_run(connection, run_id))
    release = releases[0] if releases else None
    models = []
    for row in trained:
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
    inputs = tuple(read_inputs(store, run_id))
    return ReportContents(
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
        asked_suites=RunChoices.of_run(run.parameters).evaluation_suites,
        rates=tuple(ToolRate(rate.tool, rate.threshold, rate.calls, kept_by_chance(rate)) for rate in rates),
        scores=scores,
        inputs=inputs,
        comparisons=tuple(compare_inputs(inputs)),
    )


def _losses(store: ObjectStore, uri: str, manifest_sha256: str) -> Iterator[tuple[tuple[int, float], ...]]:
    """The points of both logs of a model; those without a finite loss are left out."""
    manifest = store.published(store.key_of(uri), manifest_sha256)
    for log in LOGS:
        text = (store.read_file(manifest, log) or b"").decode("utf-8")
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        losses = [(int(line["step"]), float(line.get("loss") or math.nan)) for line in lines]
        yield tuple(point for point in losses if math.isfinite(point[1]))
