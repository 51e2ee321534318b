"""The report of a run's evaluations (`evaluation/report/`), which a stage made, from S3 and within a page of ours.

The server itself reads S3, so that no reader needs a key. The link is no presigned S3 address: that could be
read by all who have it, would stay in an XCom, and ends after days. The report is served under a content
security policy that lets nothing in it run, since it holds what a language model wrote.
"""

import html
import logging

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy import Connection

from toolformer_ops.config import Settings
from toolformer_ops.errors import ObjectNotFoundError, ToolformerError
from toolformer_ops.evaluation.store import report_key
from toolformer_ops.run_page.reading import Page, ReaderDep, answer
from toolformer_ops.run_page.rights import AskedRun, AskedRunDep
from toolformer_ops.run_page.shown_runs import load_run
from toolformer_ops.storage.objects.publication import ObjectStore

logger = logging.getLogger(__name__)

router = APIRouter()
RunAccessDep = Depends(requires_access_dag("GET", DagAccessEntity.RUN))
MISSING = "No evaluation was reported for the run {0.dag_run_id} of {0.dag_id}."
UNREADABLE = (
    "The report of the run {0.dag_run_id} cannot be read from S3. Airflow's log of the API server says why; "
    "it needs the TOOLFORMER_S3_ settings that the stages have."
)
REPORT_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
}
"""`sandbox`: the report is of no origin, so nothing in it can act for the user who looks at it."""


@router.get("/evaluation")
async def show(request: Request, reader: ReaderDep, run_address: AskedRunDep) -> Response:
    """The report in a frame, below the run's own navigation, or why there is none."""

    def make(connection: Connection) -> Page:
        run = load_run(connection, run_address)
        try:
            problem = (
                "" if ObjectStore(reader.settings).exists(report_key(run.run_id)) else MISSING.format(run)
            )
        except ToolformerError:
            logger.exception("whether run %s has a report cannot be read", run.run_id)
            problem = UNREADABLE.format(run)
        values = {"run": run, "view": "evaluation", "problem": problem}
        return Page("evaluation.html.j2", values, run.seconds_to_keep)

    return await answer(request, make)


@router.get("/reports/{dag_id}/{run_id}", dependencies=[RunAccessDep])
async def report(reader: ReaderDep, dag_id: str, run_id: str) -> Response:
    """The report of a run, or a page that says why there is none."""
    run = AskedRun(dag_id, run_id)
    return await reader.in_thread(
        lambda: _stored(reader.settings, run, report_key(run.run_id), MISSING.format(run))
    )


def _stored(settings: Settings, run: AskedRun, key: str, missing: str) -> Response:
    """The page under a key, or a page that says why there is none."""
    try:
        return _page(200, ObjectStore(settings).get(key))
    except ObjectNotFoundError:
        return _page(404, missing)
    except ToolformerError:
        logger.exception("a page of run %s cannot be read", run.dag_run_id)
        return _page(502, UNREADABLE.format(run))


def _page(status: int, content: bytes | str) -> Response:
    if isinstance(content, str):
        head = "<!doctype html><meta charset=utf-8><meta name=color-scheme content='light dark'>"
        content = f"{head}<p>{html.escape(content)}</p>"
    return Response(content, status, REPORT_HEADERS, media_type="text/html; charset=utf-8")
