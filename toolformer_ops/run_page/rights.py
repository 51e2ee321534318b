"""Who asks, and which runs they may see: Airflow's own sign-in and its rights on DAGs.

A run belongs to one DAG (`dag_of`). Who may see that DAG's runs in Airflow sees the run's page, and no one
else: the DAG that the address names is asked about first, and a run of another DAG is not found under it
(`shown_runs.py`).
"""

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Query, Request

from toolformer_ops.airflow_tasks.run_ids import annotation_run_id, is_ours

MAX_ID_CHARACTERS = 1000


@dataclass(frozen=True)
class Visitor:
    """A person who is signed in and may see runs of this project."""

    name: str
    dag_ids: frozenset[str]
    """Our DAGs whose runs they may see; never empty."""


@dataclass(frozen=True)
class AskedRun:
    """A DAG run that the visitor may see, as Airflow names it; whether it exists is not known yet."""

    dag_id: str
    dag_run_id: str

    @property
    def run_id(self) -> str:
        """The id of its annotation run."""
        return annotation_run_id(self.dag_id, self.dag_run_id)


def asked_run(
    request: Request,
    user: GetUserDep,
    dag_id: Annotated[str, Query(max_length=MAX_ID_CHARACTERS)],
    run_id: Annotated[str, Query(max_length=MAX_ID_CHARACTERS)],
) -> AskedRun:
    """The run of the address, if the user may see the runs of its DAG.

    Raises:
        HTTPException: 401 for a person who is not signed in, 403 for one without that right, 404 for
        what Postgres cannot
            store.
    """
    requires_access_dag("GET", DagAccessEntity.RUN, param_dag_id=dag_id or "~")(request, user)
    _require_text(request)
    return AskedRun(dag_id, run_id)


def visitor(request: Request, user: GetUserDep) -> Visitor:
    """Who asks for a view that is not about one run.

    Raises:
        HTTPException: 401 for a person who is not signed in, 403 for one who may see no run of ours, 404
        for what Postgres
            cannot store.
    """
    manager: Any = get_auth_manager()
    dag_ids = frozenset(
        dag_id
        for dag_id in manager.get_authorized_dag_ids(user=user, method="GET")
        if is_ours(dag_id)
        and manager.is_authorized_dag(
            method="GET",
            access_entity=DagAccessEntity.RUN,
            details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
            user=user,
        )
    )
    if not dag_ids:
        raise HTTPException(403, "Forbidden")
    _require_text(request)
    return Visitor(user.get_name(), dag_ids)


def _require_text(request: Request) -> None:
    """Refuse an address with U+0000, which no id and no text in Postgres holds."""
    if any("\0" in value for _, value in request.query_params.multi_items()):
        raise HTTPException(404)


def from_our_page(request: Request) -> None:
    """Refuse a write that another site's page sends with the user's cookie.

    Every browser says where a request comes from. `Sec-Fetch-Site: same-origin` is enough, also if a proxy
    has changed the `Host`. `none` is what a person typed, and no header a browser from before 2023 or a
    program: then an `Origin` must be this server's.

    Raises:
        HTTPException: 403.
    """
    origin = request.headers.get("origin")
    is_own_origin = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    site = request.headers.get("sec-fetch-site", "none")
    if site != "same-origin" and not (site == "none" and is_own_origin):
        raise HTTPException(403, "expected a request from a page of this server, found one from elsewhere")


AskedRunDep = Annotated[AskedRun, Depends(asked_run)]
VisitorDep = Annotated[Visitor, Depends(visitor)]
SignedInDep = Depends(get_user)
"""Anybody who is signed in, with any rights: for assets, and for paths that are not there."""
WriterDep = Depends(from_our_page)
