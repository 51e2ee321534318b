"""Run: what a run is doing, what it found, whether that is good, and what to do when it is red."""

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from toolformer_ops.run_page.reading import Page, answer
from toolformer_ops.run_page.rights import AskedRunDep
from toolformer_ops.run_page.shown_runs import SECONDS_WHILE_RUNNING, load_run
from toolformer_ops.storage.database import fetch_all

router = APIRouter()


@router.get("/run")
async def show(request: Request, asked: AskedRunDep) -> Response:
    """The view of one run."""

    def make(connection: Connection) -> Page:
        run = load_run(connection, asked)
        progress = fetch_all(connection, "demo_progress", run_id=run.run_id)
        values = {
            "run": run,
            "view": "run",
            "progress": progress,
            "refresh": None if run.has_stored_numbers else SECONDS_WHILE_RUNNING,
        }
        return Page("overview.html.j2", values, run.seconds_to_keep)

    return await answer(request, make)
