"""Review: calls of a release, shown one by one without losses and mixed with placebos, are judged.

They come with what reviewers said of them. The sample follows from release, tool, seed and size alone, so two
reviewers with the same seed judge the same. Half of it are placebos: the result of another call in the call's
place. The browser is told the number of a call, and nothing that gives a placebo away; which call it is, is
drawn again when the form comes back. A judgement is written as the role `toolformer_reviewer`, which may add
rows to `judgements` and do nothing else; everything is read as the reader. A form that is sent twice is one
row, and who judges a call again corrects themselves: the newest counts.

Who may see the runs of the DAG that made a release may judge it. Requests from other sites are refused
(`WriterDep`).
"""

import uuid
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection, Engine, Row

from toolformer_ops.airflow_tasks.run_ids import dag_of
from toolformer_ops.call_syntax import ARROW, clean_result
from toolformer_ops.run_page import pages
from toolformer_ops.run_page.judgements import VERDICTS, agreements, judgements_of, results
from toolformer_ops.run_page.reading import Page, ReaderDep, answer
from toolformer_ops.run_page.rights import Visitor, VisitorDep, WriterDep
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.database import fetch_all

router = APIRouter()

REVIEWER_SETTING = "TOOLFORMER_REVIEWER_DSN"
MOST_CALLS = 500
MOST_RELEASES = 200
CONTEXT_CHARACTERS = 1500
"""So much of the text is shown on each side of a call; longer texts are cut."""
MOST_FORM_BYTES = 10_000
MAX_ID_CHARACTERS = 250
NO_SUCH_RELEASE = "There is no such release, or it was made by a DAG whose runs you may not see."

ReleaseQuery = Annotated[str, Query(max_length=MAX_ID_CHARACTERS)]
ToolQuery = Annotated[str, Query(max_length=MAX_ID_CHARACTERS)]
SeedQuery = Annotated[int, Query(ge=0, le=2**31 - 1)]
CallsQuery = Annotated[int, Query(ge=1, le=MOST_CALLS)]


@dataclass(frozen=True)
class Sample:
    """Which calls are shown, and in which order."""

    release_id: str
    tool: str
    """Empty for all tools."""
    seed: int
    calls: int
    """How many with their own result; as many placebos."""

    @property
    def address(self) -> dict[str, Any]:
        """The values that every link to it has."""
        return {"release": self.release_id, "tool": self.tool, "seed": self.seed, "calls": self.calls}

    def draw(self, connection: Connection) -> list[Row[Any]]:
        """The calls in their order, each with whether it is to be a placebo."""
        values = {
            "release_id": self.release_id,
            "tool": self.tool or None,
            "seed": self.seed,
            "calls": self.calls,
        }
        return fetch_all(connection, queries.reviewing.sample, **values)


@dataclass(frozen=True)
class ShownCall:
    """A call of a sample as it is shown and stored."""

    drawn: Row[Any]
    text_before: str
    call: str
    """The call with the result that is shown."""
    text_after: str
    url: str | None
    title: str | None
    source_call_id: uuid.UUID | None
    """The call whose result is shown in the place of its own; None: it is no placebo."""


@router.get("/review")
async def show(
    request: Request, reader: ReaderDep, visitor: VisitorDep, release: ReleaseQuery = ""
) -> Response:
    """The releases that can be judged; of one of them what reviewers said, and the form that starts a review."""

    def make(connection: Connection) -> Page:
        rows = fetch_all(connection, queries.reviewing.releases, at_most=MOST_RELEASES)
        releases = [row for row in rows if dag_of(row.schedule, annotates=row.annotates) in visitor.dag_ids]
        chosen = find_release(connection, release, visitor) if release else None
        judged = judgements_of(connection, chosen.release_id) if chosen else []
        values = {
            "releases": releases,
            "release": chosen,
            "results": results(judged),
            "agreements": agreements(judged),
            "can_write": bool(reader.settings.reviewer_dsn.get_secret_value()),
            "most_calls": MOST_CALLS,
            "setting": REVIEWER_SETTING,
        }
        return Page("reviewing.html.j2", values)

    return await answer(request, make, visible_to=visitor)


@router.get("/judge")
async def judge(
    request: Request,
    visitor: VisitorDep,
    release: ReleaseQuery,
    tool: ToolQuery = "",
    seed: SeedQuery = 0,
    calls: CallsQuery = 50,
    number: Annotated[int | None, Query(ge=1, le=2 * MOST_CALLS)] = None,
) -> Response:
    """The first call of a sample that the visitor has not judged, or the one of this number."""
    sample = Sample(release, tool, seed, calls)

    def make(connection: Connection) -> Page:
        chosen = find_release(connection, release, visitor)
        drawn = sample.draw(connection)
        judged = fetch_all(connection, queries.reviewing.judged, release_id=release, reviewer=visitor.name)
        said = {(row.call_id, row.is_placebo): row.verdict for row in judged}
        # A call to which there was no other result was shown with its own.
        said |= {
            (row.call_id, True): row.verdict for row in judged if row.seed == seed and not row.is_placebo
        }
        undone = [place for place, row in enumerate(drawn, 1) if (row.call_id, row.is_placebo) not in said]
        place = number if number is not None else undone[0] if undone else None
        if place is not None and place > len(drawn):
            raise HTTPException(404)
        row = drawn[place - 1] if place else None
        values = {
            "release": chosen,
            "sample": sample,
            "size": len(drawn),
            "done": len(drawn) - len(undone),
            "number": place,
            "shown": _shown(connection, sample, row) if row else None,
            "said": said.get((row.call_id, row.is_placebo)) if row else None,
            "verdicts": VERDICTS,
            "submission_id": uuid.uuid4(),
        }
        return Page("judge.html.j2", values)

    return await answer(request, make, visible_to=visitor)


@router.post("/judge", dependencies=[WriterDep])
async def take(request: Request, reader: ReaderDep, visitor: VisitorDep) -> Response:
    """Write a judgement, and lead to the next call."""
    sample, number, verdict, submission_id = await _judgement(request)

    def write() -> None:
        with database.transaction(reader.engine()) as connection:
            find_release(connection, sample.release_id, visitor)
            drawn = sample.draw(connection)
            if number > len(drawn):
                raise HTTPException(404)
            shown = _shown(connection, sample, drawn[number - 1])
        # The reviewer's connection is kept for no other judgement: people send one every few seconds.
        engine = database.connect_dsn(
            reader.settings.reviewer_dsn.get_secret_value(), REVIEWER_SETTING, connections=1
        )
        try:
            database.execute(
                engine,
                queries.reviewing.insert,
                submission_id=submission_id,
                release_id=sample.release_id,
                seed=sample.seed,
                tool=shown.drawn.tool,
                document_id=shown.drawn.document_id,
                call_id=shown.drawn.call_id,
                scoring_recipe_id=shown.drawn.scoring_recipe_id,
                is_placebo=shown.source_call_id is not None,
                source_call_id=shown.source_call_id,
                reviewer=visitor.name,
                verdict=verdict,
            )
        finally:
            engine.dispose()

    await reader.in_thread(write)
    return RedirectResponse(pages.link("judge", sample.address), status_code=303, headers=dict(pages.HEADERS))


def find_release(on: Engine | Connection, release_id: str, visitor: Visitor) -> Row[Any]:
    """A release whose DAG the visitor may see.

    Raises:
        HTTPException: 404.
    """
    releases = fetch_all(on, queries.reviewing.release, release_id=release_id)
    if not releases or dag_of(releases[0].schedule, annotates=releases[0].annotates) not in visitor.dag_ids:
        raise HTTPException(404, NO_SUCH_RELEASE)
    return releases[0]


def _shown(connection: Connection, sample: Sample, drawn: Row[Any]) -> ShownCall:
    values = {"release_id": sample.release_id, **drawn._asdict()}
    calls = fetch_all(connection, queries.reviewing.call, **values)
    if not calls:
        raise HTTPException(
            410,
            "The rows of this call were deleted since the release was made. Draw a sample with another seed.",
        )
    call = calls[0]
    result, source_call_id = call.result, None
    if drawn.is_placebo:
        others = fetch_all(
            connection,
            queries.reviewing.placebo,
            **values,
            seed=sample.seed,
            result=call.result,
            variant_id=call.variant_id,
            placebo_recipe_id=call.placebo_recipe_id,
        )
        for other in others:
            result, source_call_id = other.result, other.source_call_id
    before, after = call.text[: call.position_char], call.text[call.position_char :]
    return ShownCall(
        drawn,
        text_before=before if len(before) <= CONTEXT_CHARACTERS else f"… {before[-CONTEXT_CHARACTERS:]}",
        call=f"[{call.call_text} {ARROW} {clean_result(result)}]",
        text_after=after if len(after) <= CONTEXT_CHARACTERS else f"{after[:CONTEXT_CHARACTERS]} …",
        url=call.url,
        title=call.title,
        source_call_id=source_call_id,
    )


async def _judgement(request: Request) -> tuple[Sample, int, str, uuid.UUID]:
    """The sample, number, verdict and submission of the form that was sent; refuses anything else."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/x-www-form-urlencoded":
        raise HTTPException(415, "expected the form of this page")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_FORM_BYTES:
            raise HTTPException(413, "expected the form of this page, found more")
    try:
        form = {
            name: values[-1] for name, values in parse_qs(body.decode("utf-8"), max_num_fields=20).items()
        }
    except ValueError as error:
        raise HTTPException(400, "expected the form of this page") from error
    try:
        sample = Sample(form["release"], form.get("tool", ""), int(form["seed"]), int(form["calls"]))
        number, verdict, submission_id = (
            int(form["number"]),
            form["verdict"],
            uuid.UUID(form["submission_id"]),
        )
    except (KeyError, ValueError) as error:
        raise HTTPException(400, "expected the form of this page with all its fields") from error
    in_range = 0 <= sample.seed < 2**31 and 1 <= sample.calls <= MOST_CALLS and number >= 1
    if not in_range or verdict not in VERDICTS or "\0" in sample.release_id + sample.tool:
        raise HTTPException(400, f"expected a call of a sample and one of {', '.join(VERDICTS)}")
    return sample, number, verdict, submission_id
