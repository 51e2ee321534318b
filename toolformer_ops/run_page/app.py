"""The FastAPI application of the page: routes, assets, and what an error looks like.

Nothing is given without signing in.
"""

import logging
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    BusyError,
    ConfigurationError,
    DatabaseError,
    NoSuchRunError,
    ToolformerError,
)
from toolformer_ops.run_page import (
    call,
    calls,
    changes,
    checks,
    corpora,
    evaluation,
    overview,
    pages,
    reviewing,
    thresholds,
)
from toolformer_ops.run_page.reading import STATEMENT_SECONDS, Reader, took_too_long
from toolformer_ops.run_page.rights import SignedInDep
from toolformer_ops.run_page.shown_runs import SECONDS_WHILE_RUNNING

logger = logging.getLogger(__name__)

router = APIRouter(dependencies=[SignedInDep])
VIEWS = (overview, calls, call, thresholds, changes, checks, evaluation, corpora, reviewing)
SECONDS_TO_KEEP_AN_ASSET = 86400


def create_app(settings: Settings) -> FastAPI:
    """The application, with connections that these settings name.

    It connects when the first view is asked for.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.reader = Reader(settings)
    for view in VIEWS:
        app.include_router(view.router)
    app.include_router(router)
    for kind in (StarletteHTTPException, RequestValidationError, ToolformerError, Exception):
        app.add_exception_handler(kind, error_page)
    return app


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    """A stylesheet or a script."""
    if name not in pages.ASSETS:
        raise HTTPException(404)
    media_type, content = pages.ASSETS[name]
    headers = {**pages.HEADERS, "Cache-Control": f"private, max-age={SECONDS_TO_KEEP_AN_ASSET}"}
    return Response(content, headers=headers, media_type=f"{media_type}; charset=utf-8")


@router.api_route("/{path:path}", methods=["GET", "HEAD", "POST"])
async def nothing_here(path: str) -> Response:
    """Any other path: that it is not there is said only to those who are signed in."""
    raise HTTPException(404)


async def error_page(request: Request, error: Exception) -> Response:
    """An error as a page: what happened and what to do. What only an operator can use is in the log."""
    status, title, text = 500, "Something is wrong", "Airflow's log of the API server says what."
    sign_in = dag_run = None
    match error:
        case StarletteHTTPException(status_code=401):
            from airflow.api_fastapi.app import get_auth_manager

            status, title, text = 401, "Not signed in", "Sign in to Airflow, then open this page again."
            sign_in = get_auth_manager().get_url_login()
        case StarletteHTTPException(status_code=403):
            status, title = 403, "No right to see this"
            text = "In Airflow you may not see the runs of this DAG, and so not what they found."
        case StarletteHTTPException(status_code=404 | 405):
            status, title = 404, "Nothing here"
            text = "There is no such page. The tabs of a DAG run lead to its pages."
            if error.detail != HTTPStatus(error.status_code).phrase:  # a view says more
                text = error.detail
        case StarletteHTTPException():
            status, title, text = error.status_code, "Not possible", str(error.detail)
        case RequestValidationError():
            problems = "; ".join(
                f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in error.errors()[:5]
            )
            status, title, text = 422, "Not a question that can be asked", problems[:1000]
        case NoSuchRunError():
            status, title, text, dag_run = 404, error.title, str(error), error.dag_run
        case BusyError():
            status, title, text = 503, "Busy", str(error)
        case ConfigurationError() | DatabaseError() if took_too_long(error):
            status, title = 503, "This takes too long"
            text = f"The question takes longer than {STATEMENT_SECONDS:.0f} s. Ask for less: one tool, or another filter."
        case ConfigurationError() | DatabaseError():
            logger.error("the page cannot be made: %s", error)
            status, title = 503, "The database of annotations cannot be read"
            text = "Airflow's log of the API server says why. It needs the setting TOOLFORMER_READER_DSN, and Postgres has to run."
        case _:
            logger.error("the page cannot be made", exc_info=error)
    values: dict[str, Any] = {"title": title, "text": text, "sign_in": sign_in, "dag_run": dag_run}
    values |= {"refresh": SECONDS_WHILE_RUNNING} if dag_run else {}  # it may start, or fail
    return pages.response("message.html.j2", values, status)
