"""Corpora and releases: versions and sizes over time, kept calls by tool and night, and each release with its card.

Who may see a run of a corpus sees the corpus, and of its runs and releases those that they may see. Numbers
are those that were stored when the runs ended, so that no call is read.
"""

import itertools
import logging
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from sqlalchemy import Connection, Row

from toolformer_ops.airflow_tasks.run_ids import dag_of, dag_run_of
from toolformer_ops.errors import ToolformerError
from toolformer_ops.run_page import pages
from toolformer_ops.run_page.reading import Page, ReaderDep, answer
from toolformer_ops.run_page.reviewing import ReleaseQuery, find_release
from toolformer_ops.run_page.rights import VisitorDep
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import fetch_all

logger = logging.getLogger(__name__)

router = APIRouter()

MOST_CORPORA = 100
A_PAGE = 60
"""Runs, and versions, of a page; the newest are on the first."""
SECONDS_TO_KEEP = 20.0
CARD = "README.md"


@router.get("/corpora")
async def show(
    request: Request,
    visitor: VisitorDep,
    corpus: Annotated[str, Query(max_length=100)] = "",
    page: Annotated[int, Query(ge=0, le=1000)] = 0,
) -> Response:
    """The corpora; of one of them, the newest if none is named, versions, nights and releases, page by page."""
    this_page, up_to_next = slice(page * A_PAGE, (page + 1) * A_PAGE), (page + 1) * A_PAGE + 1

    def make(connection: Connection) -> Page:
        corpora = []
        for row in fetch_all(connection, queries.corpora.newest, at_most=MOST_CORPORA):
            dag_ids = {dag_of(run["schedule"], annotates=run["annotates"]) for run in row.schedules}
            if visitor.dag_ids & dag_ids:
                corpora.append(row)
        chosen = next((row for row in corpora if corpus in ("", row.corpus_id)), None)
        if corpus and chosen is None:
            raise HTTPException(404)
        corpus_key = {"corpus_id": chosen.corpus_id if chosen else None}
        all_runs = fetch_all(connection, queries.corpora.runs, **corpus_key, at_most=up_to_next)
        runs = [
            row
            for row in all_runs[this_page]
            if dag_of(row.schedule, annotates=row.annotates) in visitor.dag_ids
        ]
        all_versions = fetch_all(connection, queries.corpora.versions, **corpus_key, at_most=up_to_next)
        versions = all_versions[this_page]
        values = {
            "corpora": corpora,
            "corpus": chosen,
            "versions": versions,
            "most_documents": max((row.documents for row in versions), default=0),
            "runs": runs,
            "nights": [row for row in reversed(runs) if row.kept],
            "tools": sorted(set(itertools.chain.from_iterable(row.kept or () for row in runs))),
            "address": address,
            "page": page,
            "has_older": max(len(all_runs), len(all_versions)) == up_to_next,
        }
        return Page("corpora.html.j2", values, SECONDS_TO_KEEP)

    return await answer(request, make, visible_to=visitor.dag_ids)


@router.get("/release")
async def release(reader: ReaderDep, visitor: VisitorDep, release: ReleaseQuery) -> Response:
    """One release: where it is, how to fetch it, and its card from S3."""

    def make() -> Response:
        chosen = find_release(reader.engine(), release, visitor)
        store = ObjectStore(reader.settings)
        prefix = store.key_of(chosen.uri)
        card = None
        try:
            if chosen.withdrawn_at is None:
                card = store.read_file(store.published(prefix, chosen.manifest_sha256), CARD)
        except ToolformerError:
            logger.exception("the card of release %s cannot be read", chosen.release_id)
        shown = card.decode("utf-8", "replace") if card is not None else None
        return pages.response("release.html.j2", {"release": chosen, "card": shown})

    return await reader.in_thread(make)


def address(run: Row[Any]) -> dict[str, str]:
    """The ids that every link to a view of this run has."""
    dag_id = dag_of(run.schedule, annotates=run.annotates)
    return {"dag_id": dag_id, "run_id": dag_run_of(run.run_id, dag_id)}
