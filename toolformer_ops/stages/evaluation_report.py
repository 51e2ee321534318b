"""Publish the page of a run's evaluations: `reports/RUN/index.html` in the bucket.

Owns no table. The page is made anew from Postgres and S3 each time, and replaces the one before: a suite that is evaluated later
comes into it. What is on it is decided in `evaluation/report/`.
"""

import logging
import webbrowser
from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.errors import ObjectNotFoundError, UsageError
from toolformer_ops.evaluation.store import report_key
from toolformer_ops.storage.publication import ObjectStore

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/html; charset=utf-8"


def report_evaluation(settings: Settings, run_id: str) -> str:
    """Make the page and write it; returns its address.

    Raises:
        UsageError: there is no such run.
        ObjectStoreError, DatabaseError: S3 or Postgres refuse.
    """
    from toolformer_ops.evaluation.report.contents import gather
    from toolformer_ops.evaluation.report.page import render

    key = report_key(run_id)
    store = ObjectStore(settings)
    store.require_bucket()
    contents = gather(settings, store, run_id)
    store.put(key, render(contents).encode("utf-8"), CONTENT_TYPE)
    uri = store.uri(key)
    logger.info("reported %d scores of run %s: %s", len(contents.scores), run_id, uri)
    return uri


def fetch_report(settings: Settings, run_id: str, out: Path) -> Path:
    """Copy a run's page to a local file.

    Raises:
        UsageError: the run has no page.
        ObjectStoreError: S3 refuses.
    """
    try:
        page = ObjectStore(settings).get(report_key(run_id))
    except ObjectNotFoundError as error:
        raise UsageError(
            f"--run: expected a run with a report, found none of {run_id!r} ({error}). Run `toolformer-ops stage "
            f"report-evaluation --run {run_id}`."
        ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(page)
    return out


def open_report(page: Path) -> bool:
    """Show a page in the browser of this machine; whether there is one."""
    return webbrowser.open(page.resolve().as_uri())
