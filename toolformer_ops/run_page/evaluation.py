"""Evaluation: what the run's evaluations gave. A page that a stage made (`evaluation_report/`), from S3, within ours.

The server itself reads S3, so that nobody needs a key. The link is no presigned S3 address: that could be read by all who have it,
would stay in an XCom, and ends after days. The report is served under a content security policy that lets nothing in it run, since
it holds what a language model wrote.
"""

import asyncio
import html
import logging

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy import Connection

from toolformer_ops.config import Settings
from toolformer_ops.errors import ObjectNotFoundError, ToolformerError
from toolformer_ops.evaluation_report.contents import report_key
from toolformer_ops.orchestration.defaults import annotation_run_id
from toolformer_ops.run_page.reading import Page, Reader, answer
from toolformer_ops.run_page.rights import AskedRunDep
from toolformer_ops.run_page.shown_runs import load_run
from toolformer_ops.storage.object_store import ObjectStore

logger = logging.getLogger(__name__)

router = APIRouter()
REPORT_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
}
"""`sandbox`: the report is of no origin, so nothing in it can act for the user who looks at it."""


@router.get("/evaluation")
async def show(request: Request, asked: AskedRunDep) -> Response:
    """The report in a frame, below the run's own navigation."""

    def make(connection: Connection) -> Page:
        run = load_run(connection, asked)
        return Page("evaluation.html.j2", {"run": run, "view": "evaluation"}, run.seconds_to_keep)

    return await answer(request, make)


@router.get("/reports/{dag_id}/{run_id}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))])
async def report(request: Request, dag_id: str, run_id: str) -> Response:
    """The report of a run, or a page that says why there is none."""
    reader: Reader = request.app.state.reader
    return await asyncio.get_running_loop().run_in_executor(reader.threads, _read, reader.settings, dag_id, run_id)


def _read(settings: Settings, dag_id: str, run_id: str) -> Response:
    try:
        page = ObjectStore(settings).get(report_key(annotation_run_id(dag_id, run_id)))
    except ObjectNotFoundError:
        return _message(404, f"No evaluation was reported for the run {run_id} of {dag_id}.")
    except ToolformerError:
        logger.exception("the report of run %s cannot be read", run_id)
        hint = "Airflow's log of the API server says why; it needs the TOOLFORMER_S3_ settings that the stages have."
        return _message(502, f"The report of the run {run_id} cannot be read from S3. {hint}")
    return _page(200, page)


def _message(status: int, text: str) -> Response:
    return _page(status, f"<!doctype html><meta charset=utf-8><p>{html.escape(text)}</p>".encode())


def _page(status: int, content: bytes) -> Response:
    return Response(content, status, REPORT_HEADERS, media_type="text/html; charset=utf-8")
