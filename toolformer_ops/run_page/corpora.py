"""Corpora and releases: versions and sizes over time, kept calls by tool and night, and each release with its card.

Who may see a run of a corpus sees the corpus, and of its runs and releases those that they may see. Numbers are those that were
stored when the runs ended, so that no call is read.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from sqlalchemy import Connection, Row

from toolformer_ops.airflow_tasks.run_ids import dag_of, dag_run_of
from toolformer_ops.errors import ToolformerError
from toolformer_ops.run_page import pages
from toolformer_ops.run_page.reading import Page, Reader, answer
from toolformer_ops.run_page.reviewing import ReleaseQuery, find_release
from toolformer_ops.run_page.rights import Visitor, VisitorDep
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.database import fetch_all
from toolformer_ops.storage.publication import ObjectStore

logger = logging.getLogger(__name__)

router = APIRouter()

MOST_CORPORA = 100
MOST_VERSIONS = 60
MOST_RUNS = 60
SECONDS_TO_KEEP = 20.0
CARD = "README.md"
CHART_WIDTH, CHART_HEIGHT = 900, 200
"""Of the bars, in the units of the drawing; labels are outside of them."""
COLOURS = 6
"""Classes `tool0` to `tool5` of the stylesheet; further tools use them again."""


@dataclass(frozen=True)
class Segment:
    """What one tool kept in one night."""

    tool: str
    calls: int
    colour: int
    y: float
    height: float


@dataclass(frozen=True)
class Bar:
    """The kept calls of one night, tool upon tool."""

    run: Row[Any]
    x: float
    width: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Chart:
    """Kept calls by tool and night, the oldest night first."""

    bars: tuple[Bar, ...]
    tools: tuple[tuple[str, int], ...]
    """Each tool with its colour."""
    highest: int
    """Calls of the highest bar."""


def kept_by_night(runs: Sequence[Row[Any]]) -> Chart:
    """The drawing of these runs, which are given with the newest first."""
    tools = sorted({tool for run in runs for tool in run.kept})
    colours = {tool: number % COLOURS for number, tool in enumerate(tools)}
    highest = max((sum(run.kept.values()) for run in runs), default=0)
    step = CHART_WIDTH / max(len(runs), 12)
    bars = []
    for number, run in enumerate(reversed(runs)):
        segments: list[Segment] = []
        top = float(CHART_HEIGHT)
        for tool in tools:
            calls = run.kept.get(tool, 0)
            height = CHART_HEIGHT * calls / highest if highest else 0.0
            top -= height
            if calls:
                segments.append(Segment(tool, calls, colours[tool], top, height))
        bars.append(Bar(run, number * step, 0.8 * step, tuple(segments)))
    return Chart(tuple(bars), tuple(colours.items()), highest)


@router.get("/corpora")
async def show(request: Request, visitor: VisitorDep, corpus: Annotated[str, Query(max_length=100)] = "") -> Response:
    """The corpora; of one of them, the newest if none is named, versions, nights and releases."""

    def make(connection: Connection) -> Page:
        corpora = [
            row
            for row in fetch_all(connection, queries.corpora.newest, at_most=MOST_CORPORA)
            if any(_may_see(visitor, run["schedule"], annotates=run["annotates"]) for run in row.schedules)
        ]
        chosen = (
            next((row for row in corpora if row.corpus_id == corpus), None) if corpus else next(iter(corpora), None)
        )
        if corpus and chosen is None:
            raise HTTPException(404)
        of_corpus = {"corpus_id": chosen.corpus_id if chosen else None}
        runs = [
            row
            for row in fetch_all(connection, queries.corpora.runs, **of_corpus, at_most=MOST_RUNS)
            if _may_see(visitor, row.schedule, annotates=row.annotates)
        ]
        versions = fetch_all(connection, queries.corpora.versions, **of_corpus, at_most=MOST_VERSIONS)
        values = {
            "corpora": corpora,
            "corpus": chosen,
            "versions": versions,
            "most_documents": max((row.documents for row in versions), default=0),
            "runs": runs,
            "chart": kept_by_night([row for row in runs if row.kept]),
            "width": CHART_WIDTH,
            "height": CHART_HEIGHT,
            "address": _address,
        }
        return Page("corpora.html.j2", values, SECONDS_TO_KEEP)

    return await answer(request, make, visible_to=visitor.dag_ids)


@router.get("/release")
async def release(request: Request, visitor: VisitorDep, release: ReleaseQuery) -> Response:
    """One release: where it is, how to fetch it, and its card from S3."""
    reader: Reader = request.app.state.reader

    def make() -> Response:
        with database.transaction(reader.engine()) as connection:
            chosen = find_release(connection, release, visitor)
        store = ObjectStore(reader.settings)
        prefix = store.key_of(chosen.uri)
        card = None
        try:
            if chosen.withdrawn_at is None:
                card = store.read_file(store.published(prefix, chosen.manifest_sha256), CARD)
        except ToolformerError:
            logger.exception("the card of release %s cannot be read", chosen.release_id)
        shown = card.decode("utf-8", "replace") if card is not None else None
        values = {"release": chosen, "card": shown}
        return pages.response("release.html.j2", values)

    return await asyncio.get_running_loop().run_in_executor(reader.threads, make)


def _may_see(visitor: Visitor, schedule: str | None, *, annotates: bool) -> bool:
    return dag_of(schedule, annotates=annotates) in visitor.dag_ids


def _address(run: Row[Any]) -> dict[str, str]:
    dag_id = dag_of(run.schedule, annotates=run.annotates)
    return {"dag_id": dag_id, "run_id": dag_run_of(run.run_id, dag_id)}
