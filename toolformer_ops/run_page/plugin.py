"""What Airflow loads (entry point `airflow.plugins`): the page's application, the tabs of a DAG run, the navigation, a listener.

Light: Airflow loads plugins in all its processes, so the application is made on first use. Addresses are
relative to Airflow's own, which may be below a path.
"""

import functools
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from toolformer_ops.airflow_tasks.run_ends import stopped_runs

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

URL_PREFIX = "/toolformer"
"""Below Airflow's own address."""
OF_A_RUN = "?dag_id={DAG_ID}&run_id={RUN_ID}"
"""Airflow puts the ids in, encoded."""


@functools.cache
def application() -> "FastAPI":
    """The application, with connections of the reader that the settings name."""
    from toolformer_ops.config import load_settings
    from toolformer_ops.run_page.app import create_app

    return create_app(load_settings())


async def serve(scope: "Scope", receive: "Receive", send: "Send") -> None:
    """The ASGI application that Airflow mounts."""
    await application()(scope, receive, send)


def _view(name: str, route: str, path: str, destination: str = "dag_run") -> dict[str, str]:
    return {"name": name, "href": f"{URL_PREFIX[1:]}/{path}", "destination": destination, "url_route": route}


class RunPagePlugin(AirflowPlugin):
    """Registers the application and where Airflow shows it."""

    name = "toolformer_run_page"
    listeners: list[Any] = [stopped_runs]  # noqa: RUF012
    fastapi_apps: list[Any] = [{"app": serve, "url_prefix": URL_PREFIX, "name": "toolformer_run_page"}]  # noqa: RUF012 - as Airflow declares it
    external_views: list[Any] = [  # noqa: RUF012
        _view("Annotation", "annotation", f"run{OF_A_RUN}"),
        _view("Calls", "annotation-calls", f"calls{OF_A_RUN}"),
        _view("Changes", "annotation-changes", f"changes{OF_A_RUN}"),
        _view("Corpora and releases", "corpora", "corpora", "nav") | {"category": "Toolformer"},
        _view("Review", "review", "review", "nav") | {"category": "Toolformer"},
        _view("Calls", "calls", "calls", "nav") | {"category": "Toolformer"},
    ]
