"""Airflow serves the pages of evaluations from S3, to those who may see the DAG's runs; the runs and the task link to them.

A plugin of Airflow's API server (entry point `airflow.plugins`): `GET /toolformer/reports/DAG/RUN`. The server itself reads S3, so
that nobody needs a key. The link is no presigned S3 address: that could be read by all who have it, would stay in an XCom, and ends
after days. A page is shown with a content security policy that lets nothing in it run, since it holds what a language model wrote.
Light: Airflow loads plugins in all its processes, so the application is made on first use.
"""

import functools
import html
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.plugins_manager import AirflowPlugin
from airflow.sdk import BaseOperatorLink

from toolformer_ops.config import load_settings
from toolformer_ops.orchestration.defaults import annotation_run_id

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey
    from fastapi import FastAPI, Response

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

URL_PREFIX = "/toolformer"
"""Below Airflow's own address."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
}
"""`sandbox`: the page is of no origin, so nothing in it can act for the user who looks at it."""


class ReportLink(BaseOperatorLink):
    """A button on the task that made the page."""

    name = "Evaluation report"

    def get_link(self, operator: "BaseOperator", *, ti_key: "TaskInstanceKey") -> str:
        """The page's address; holds no secret."""
        path = f"/reports/{quote(ti_key.dag_id, safe='')}/{quote(ti_key.run_id, safe='')}"
        return f"{load_settings().airflow_url.rstrip('/')}{URL_PREFIX}{path}"


@functools.cache
def application() -> "FastAPI":
    """The application with its one address, behind Airflow's own log-in and permissions."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.core_api.security import requires_access_dag
    from fastapi import Depends, FastAPI

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    may_see_runs = Depends(requires_access_dag("GET", DagAccessEntity.RUN))
    app.get("/reports/{dag_id}/{run_id}", dependencies=[may_see_runs])(serve_report)
    return app


def serve_report(dag_id: str, run_id: str) -> Any:
    """The page of a run, or one that says why there is none."""
    from toolformer_ops.errors import ObjectNotFoundError, ToolformerError
    from toolformer_ops.evaluation_report.contents import report_key
    from toolformer_ops.storage.object_store import ObjectStore

    try:
        page = ObjectStore(load_settings()).get(report_key(annotation_run_id(dag_id, run_id)))
    except ObjectNotFoundError:
        return _message(404, f"No evaluation was reported for the run {run_id} of {dag_id}.")
    except ToolformerError:
        logger.exception("the report of run %s cannot be read", run_id)
        hint = "Airflow's log of the API server says why; it needs the TOOLFORMER_S3_ settings that the stages have."
        return _message(502, f"The report of the run {run_id} cannot be read from S3. {hint}")
    return _page(200, page)


def _message(status: int, text: str) -> "Response":
    return _page(status, f"<!doctype html><meta charset=utf-8><p>{html.escape(text)}</p>".encode())


def _page(status: int, content: bytes) -> "Response":
    from fastapi import Response

    return Response(content, status, HEADERS, media_type="text/html; charset=utf-8")


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application that Airflow mounts."""
    await application()(scope, receive, send)


class ReportPlugin(AirflowPlugin):
    """Registers the application."""

    name = "toolformer_reports"
    fastapi_apps: list[Any] = [{"app": serve, "url_prefix": URL_PREFIX, "name": "toolformer_reports"}]  # noqa: RUF012 - as Airflow declares it
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Evaluation",
            "href": f"{URL_PREFIX}/reports/{{DAG_ID}}/{{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "evaluation",
        }
    ]
