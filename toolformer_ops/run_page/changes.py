"""Changes: how the release of a run differs from that of another, place by place, each with the one reason why.

Reads the function `run_comparison_between`; what is the same call, and which reason comes first, is decided there.
Comparing reads both releases whole, so that it is done beside the page (`Reader.counted`), which says so if
it takes longer than a moment.
"""

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from sqlalchemy import Connection

from toolformer_ops.run_page.reading import Page, ReaderDep, answer
from toolformer_ops.run_page.rights import AskedRunDep, VisitorDep
from toolformer_ops.run_page.shown_runs import find_run, load_run
from toolformer_ops.runs.changes import REASONS, previous_run
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import fetch_all

router = APIRouter()

PLACES_A_PAGE = 100


@router.get("/changes")
async def show(
    request: Request,
    reader: ReaderDep,
    run_address: AskedRunDep,
    visitor: VisitorDep,
    before: Annotated[str, Query(max_length=1000)] = "",
    reason: Annotated[str, Query(max_length=100)] = "",
    change: Annotated[str, Query(pattern="^(new|gone|changed)?$")] = "",
    after: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    """A run beside the one before it, or beside the run `before` or the run that made the release of that id."""
    try:
        document_id, position = after.split("~") if after else ("00000000-0000-0000-0000-000000000000", "-1")
        place = {"after_document_id": document_id, "after_position": int(position)}
    except ValueError:
        raise HTTPException(422, "expected the address of a next page, found another place") from None

    def make(connection: Connection) -> Page:
        run = load_run(connection, run_address)
        # 1. The run that it is compared with, which the visitor may see.
        wanted = before or previous_run(connection, run.run_id)
        if before and (named := fetch_all(connection, queries.changes.run_named, name=before)):
            wanted = named[0].run_id
        other = find_run(connection, wanted, visitor.dag_ids) if wanted else None
        both = sorted(filter(None, (run, other)), key=lambda shown: (shown.started_at, shown.run_id))
        earlier, later = both[0] if other else None, both[-1]
        # 2. How often each reason is, and a page of places.
        rows: list[Any] = []
        compared = None
        if earlier:
            question: dict[str, object] = {
                "run_id": later.run_id,
                "before_run_id": earlier.run_id,
                "reason": reason,
                "change": change,
                **place,
            }
            compared = reader.counted(
                ("changes", *question.values()),
                lambda connection: fetch_all(
                    connection, queries.page.changes, **question, at_most=PLACES_A_PAGE + 1
                ),
            )
            rows = compared.values if compared else []
        released = {
            shown.run_id: bool(fetch_all(connection, queries.releases.of_run, run_id=shown.run_id))
            for shown in both
        }
        counts = [row for row in rows if row.is_count]
        places = [row for row in rows if not row.is_count]
        last = places[PLACES_A_PAGE - 1] if len(places) > PLACES_A_PAGE else None
        values = {
            "run": run,
            "view": "changes",
            "earlier": earlier,
            "later": later,
            "other": other,
            "before": before,
            "reason": reason,
            "change": change,
            "after": after,
            "runs": fetch_all(connection, queries.page.runs, dag_ids=sorted(visitor.dag_ids)),
            "is_compared": compared is not None or not earlier,
            "released": released,
            "counts": counts,
            "places": places[:PLACES_A_PAGE],
            "next": f"{last.document_id}~{last.position_char if last.position_char is not None else -1}"
            if last
            else None,
            "reasons": REASONS,
        }
        # What is being compared is asked for again in a moment.
        return Page(
            "changes.html.j2", values, max(run.seconds_to_keep, 10.0) if values["is_compared"] else 0.0
        )

    return await answer(request, make, visitor.dag_ids)
