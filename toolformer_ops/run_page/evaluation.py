"""Pages that stages made, from S3: the report of a run's evaluations, and what its checks found.

The report (`evaluation/report/`) is shown within a page of ours. Those of checks are Great Expectations' (`audit/checking.py`).

The server itself reads S3, so that nobody needs a key. The link is no presigned S3 address: that could be read by all who have it,
would stay in an XCom, and ends after days. The report is served under a content security policy that lets nothing in it run, since
it holds what a language model wrote.
"""

import asyncio
import html
import logging
import re
from collections.abc import Callable

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy import Connection

from toolformer_ops.airflow_tasks.run_ids import annotation_run_id
from toolformer_ops.config import Settings
from toolformer_ops.errors import ObjectNotFoundError, ToolformerError
from toolformer_ops.evaluation.store import page_key, report_key
from toolformer_ops.run_page.reading import Page, Reader, answer
from toolformer_ops.run_page.rights import AskedRun, AskedRunDep
from toolformer_ops.run_page.shown_runs import load_run
from toolformer_ops.storage.publication import ObjectStore

logger = logging.getLogger(__name__)

router = APIRouter()
SUBJECT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
"""A tool's name, or release."""
MISSING = "No evaluation was reported for the run {0.dag_run_id} of {0.dag_id}."
UNREADABLE = (
    "The report of the run {0.dag_run_id} cannot be read from S3. Airflow's log of the API server says why; it needs the "
    "TOOLFORMER_S3_ settings that the stages have."
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
async def show(request: Request, asked: AskedRunDep) -> Response:
    """The report in a frame, below the run's own navigation, or why there is none."""
    reader: Reader = request.app.state.reader

    def make(connection: Connection) -> Page:
        run = load_run(connection, asked)
        try:
            problem = "" if ObjectStore(reader.settings).exists(report_key(run.run_id)) else MISSING.format(run)
        except ToolformerError:
            logger.exception("whether run %s has a report cannot be read", run.run_id)
            problem = UNREADABLE.format(run)
        values = {"run": run, "view": "evaluation", "problem": problem}
        return Page("evaluation.html.j2", values, run.seconds_to_keep)

    return await answer(request, make)


@router.get("/reports/{dag_id}/{run_id}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))])
async def report(request: Request, dag_id: str, run_id: str) -> Response:
    """The report of a run, or a page that says why there is none."""
    reader: Reader = request.app.state.reader
    missing = MISSING.format(AskedRun(dag_id, run_id, ""))
    return await asyncio.get_running_loop().run_in_executor(
        reader.threads, _read, reader.settings, dag_id, run_id, report_key, missing
    )


@router.get(
    "/checks/{dag_id}/{run_id}/{subject}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))]
)
async def checks(request: Request, dag_id: str, run_id: str, subject: str) -> Response:
    """What Great Expectations found of a tool or the release, or a page that says why there is none."""
    reader: Reader = request.app.state.reader
    missing = f"The checks of {subject} in the run {run_id} of {dag_id} have no page."
    if not SUBJECT.fullmatch(subject):
        return _message(404, missing)
    return await asyncio.get_running_loop().run_in_executor(
        reader.threads, _read, reader.settings, dag_id, run_id, lambda run: page_key(run, subject), missing
    )


def _read(settings: Settings, dag_id: str, run_id: str, key: Callable[[str], str], missing: str) -> Response:
    """The page under the key that `key` returns for the annotation run."""
    try:
        page = ObjectStore(settings).get(key(annotation_run_id(dag_id, run_id)))
    except ObjectNotFoundError:
        return _message(404, missing)
    except ToolformerError:
        logger.exception("a page of run %s cannot be read", run_id)
        return _message(502, UNREADABLE.format(AskedRun(dag_id, run_id, "")))
    return _page(200, page)


def _message(status: int, text: str) -> Response:
    head = "<!doctype html><meta charset=utf-8><meta name=color-scheme content='light dark'>"
    return _page(status, f"{head}<p>{html.escape(text)}</p>".encode())


def _page(status: int, content: bytes) -> Response:
    return Response(content, status, REPORT_HEADERS, media_type="text/html; charset=utf-8")
