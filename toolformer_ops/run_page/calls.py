"""Calls: every candidate call of a run in its text, with what happened to it.

They are filtered, sorted, and shown page by page by keyset. Which calls are shown, and in which order, is one
statement over `candidates_of` the run: the page runs it, and shows it for psql. So that page 1,000 of a large
run costs what page 1 costs, the page runs it on a few calls at a time: `page_calls.scan`, or in the order of
the corpus `page_calls.scan_in_text_order`, finds the next keys by an index, from the place where the page
before ended. No index serves a filter by text: such a page looks at calls for `SECONDS_TO_LOOK`, shows what
it found, and says how far it came.
"""

import dataclasses
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from psycopg2 import sql
from sqlalchemy import Connection

from toolformer_ops.airflow_tasks.run_ids import is_ours
from toolformer_ops.run_page.call_files import FileKind, file_of
from toolformer_ops.run_page.reading import Page, answer
from toolformer_ops.run_page.rights import AskedRun, VisitorDep
from toolformer_ops.run_page.shown_runs import RunTool, ShownRun, find_run, load_run
from toolformer_ops.runs.run_tools import below_ordinal
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import fetch_all, raw_cursor, translating

router = APIRouter()

CALLS_A_PAGE = 50
INFINITY = float("inf")
NEAR = 0.25
"""How far from its keep threshold a call is near it."""
FIRST_LOOK, LONGEST_LOOK = 64, 512
"""Calls (texts, in the order of the corpus) that one query looks at: more each time, while the page is not
full."""
SECONDS_TO_LOOK = 0.12
"""Then the page is shown as far as it came. A query looks at no more than it can in the time that is left."""
MOST_DOWNLOADED, SECONDS_TO_DOWNLOAD = 5_000, 5.0
"""Calls of a file, and how long they are looked for."""
MAX_TEXT = 200
NO_ID = uuid.UUID(int=0)

Sort = Literal["most_saved", "least_saved", "text_order"]


@dataclass(frozen=True)
class Status:
    """A choice of calls."""

    title: str
    where: str
    """Which calls these are: a condition on the view `candidates`."""
    at_least: float = -INFINITY
    """What such a call gains beyond its keep threshold: where a scan of the gains starts, and ends."""
    below: float = INFINITY
    in_text_order: bool = False
    """Whether some of them have no gain, by which they could be sorted."""


STATUSES: Mapping[str, Status] = MappingProxyType(
    {
        "scored": Status("scored", "gain_bound is not null and reason is null"),
        "kept": Status("kept", "outcome = 'kept'", at_least=0.0),
        "near": Status(
            f"within {NEAR} of the threshold",
            f"reason is null and gain_bound >= keep_threshold - {NEAR} "
            f"and gain_bound < keep_threshold + {NEAR}",
            at_least=-NEAR,
            below=NEAR,
        ),
        "below": Status("scored, below the threshold", "outcome = 'below_threshold'", below=0.0),
        "released": Status("in the release", "release_outcome = 'released'", at_least=0.0),
        "not_released": Status("kept, not in the release", "release_outcome <> 'released'", at_least=0.0),
        "input_only_after": Status(
            "kept, its input stands only after it", "outcome = 'kept' and input_only_after", at_least=0.0
        ),
        "uninformative": Status("gains no more than a placebo", "outcome = 'like_a_placebo'", at_least=0.0),
        "not_scored": Status("not scored yet", "outcome = 'sampled'", in_text_order=True),
        "every": Status("every candidate", "true", in_text_order=True),
    }
)
"""Which calls are shown; `reason:REASON` is one more."""
REASON = "reason:"
PRUNED = f"{REASON}pruned_below"
LOSSES = ("loss_without_call", "loss_without_result", "loss_with_result", "loss_with_placebo")
"""The bars of a call."""
Key = tuple[Any, ...]
UNASKED: Mapping[str, None] = MappingProxyType({"after_gain_bound": None, "after_variant_id": None})
"""Parameters of `page_calls.scan` that not every order compares with."""


@dataclass(frozen=True)
class Asked:
    """The question: which calls, in which order, from where on."""

    tool: str = ""
    """The name of one tool; empty: all tools."""
    status: str = "scored"
    contains: str = ""
    """A part of the text, the address, the call or the result, in any case; or the id of a text."""
    information: float | None = None
    """Calls with at least so much information, nats; None: any."""
    sort: Sort = "most_saved"
    after: str = ""
    """The key that the page before ended with; empty: from the start."""
    between: tuple[float, float] | None = None
    """Gains, instead of those that the status has: at least the first, below the second."""

    @property
    def reason(self) -> str | None:
        """Why the calls that are asked for were not scored."""
        return self.status.removeprefix(REASON) if self.status.startswith(REASON) else None

    @property
    def document_id(self) -> uuid.UUID | None:
        """The text, where its id was asked for."""
        try:
            return uuid.UUID(self.contains) if len(self.contains) == 36 else None
        except ValueError:
            return None

    @property
    def order(self) -> str:
        """The order in which the calls come: one of `page_calls.scan`, or that of the corpus."""
        if self.document_id or self.sort == "text_order" or self.status == PRUNED:
            return "in_text_order"
        if self.reason:
            return "by_reason"
        return "in_text_order" if STATUSES[self.status].in_text_order else self.sort

    def as_query(self) -> dict[str, Any]:
        """The parameters of its address, without the place."""
        return {name: getattr(self, name) for name in ("tool", "status", "contains", "information", "sort")}

    def range_of(self, tool: RunTool) -> tuple[float, float]:
        """Between which gains before a placebo of a tool the calls are."""
        if self.reason:
            return -INFINITY, INFINITY
        if self.between is not None:
            at_least, below = self.between
            # A placebo can only lower a gain.
            return at_least, below if tool.keep_rule == "paper" else INFINITY
        status = STATUSES[self.status]
        return tool.keep_threshold + status.at_least, tool.keep_threshold + status.below


@dataclass(frozen=True)
class AskedCalls:
    """The question of an address: of which run, and which calls."""

    dag_id: str
    run_id: str
    of: str
    """An annotation run, if Airflow's ids name none; empty: the newest one."""
    calls: Asked

    def run(self, connection: Connection, dag_ids: Collection[str]) -> ShownRun | None:
        """The run, if a person who may see these DAGs may see it; None if there is none."""
        if self.dag_id or self.run_id:
            return load_run(connection, AskedRun(self.dag_id, self.run_id))
        newest = fetch_all(connection, queries.page.runs, dag_ids=sorted(dag_ids))
        if not self.of and not newest:
            return None
        return find_run(connection, self.of or newest[0].run_id, dag_ids)


async def asked_calls(
    visitor: VisitorDep,
    dag_id: Annotated[str, Query(max_length=1000)] = "",
    run_id: Annotated[str, Query(max_length=1000)] = "",
    of: Annotated[str, Query(max_length=1000)] = "",
    tool: Annotated[str, Query(max_length=200)] = "",
    status: Annotated[str, Query(max_length=200)] = "scored",
    contains: Annotated[str, Query(max_length=MAX_TEXT)] = "",
    information: Annotated[str, Query(max_length=30)] = "",
    sort: Sort = "most_saved",
    after: Annotated[str, Query(max_length=200)] = "",
) -> AskedCalls:
    """The calls that an address asks for, by a person who may see the run's DAG."""
    if dag_id not in visitor.dag_ids and is_ours(dag_id):
        raise HTTPException(403)
    if status not in STATUSES and not status.startswith(REASON):
        raise HTTPException(422, f"status: expected one of {', '.join(STATUSES)} or {REASON}REASON")
    try:
        at_least = float(information) if information.strip() else None
    except ValueError:
        raise HTTPException(422, f"information: expected a number of nats, found {information!r}") from None
    calls = Asked(
        tool=tool, status=status, contains=contains.strip(), information=at_least, sort=sort, after=after
    )
    return AskedCalls(dag_id, run_id, of, calls)


AskedCallsDep = Annotated[AskedCalls, Depends(asked_calls)]


def no_calls(of: str) -> Page:
    """The answer if there is no run to show."""
    text = "No run of this id has annotated anything." if of else "No run has annotated anything."
    values = {"title": "No calls", "text": text, "sign_in": None, "dag_run": None}
    return Page("message.html.j2", values, status=404)


@router.get("/calls")
async def show(request: Request, visitor: VisitorDep, calls_address: AskedCallsDep) -> Response:
    """A page of calls: of the run that Airflow's ids name, or the annotation run `of`, or the newest one."""
    selection = calls_address.calls

    def make(connection: Connection) -> Page:
        run = calls_address.run(connection, visitor.dag_ids)
        if run is None:
            return no_calls(calls_address.of)
        # The newest runs that the visitor may see, for the choice of one.
        rows = fetch_all(connection, queries.page.runs, dag_ids=sorted(visitor.dag_ids))
        recipes = [tool.scoring_recipe_id for tool in run.tools]
        reasons = [
            row.reason
            for row in fetch_all(connection, queries.page_calls.reasons, scoring_recipe_ids=recipes)
        ]
        if any(tool.prune_below > 0 for tool in run.tools):
            reasons.append("pruned_below")
        page = find_calls(connection, run, selection)
        values = {
            "run": run,
            "view": "calls",
            "runs": [dict(row._mapping) for row in rows],
            "asked": selection,
            "statuses": {
                **{name: status.title for name, status in STATUSES.items()},
                **{f"{REASON}{reason}": f"not scored: {reason.replace('_', ' ')}" for reason in reasons},
            },
            "found": page,
            "most_downloaded": MOST_DOWNLOADED,
            "largest_loss": largest_loss(page.rows),
            "sql": as_sql(connection, run, selection),
        }
        return Page("calls.html.j2", values, run.seconds_to_keep)

    return await answer(request, make, visitor.dag_ids)


@router.get("/calls.{kind}")
async def download(
    request: Request, visitor: VisitorDep, calls_address: AskedCallsDep, kind: FileKind
) -> Response:
    """The calls that the page would show, page after page, as a file: at most so many, and as far as one can look in the time."""

    def make(connection: Connection) -> Page:
        run = calls_address.run(connection, visitor.dag_ids)
        if run is None:
            return no_calls(calls_address.of)
        page = find_calls(connection, run, calls_address.calls, MOST_DOWNLOADED, SECONDS_TO_DOWNLOAD)
        return Page(file=file_of(page.rows, kind, run.run_id, is_whole=page.next is None))

    return await answer(request, make, visitor.dag_ids)


# The calls of a page


@dataclass(frozen=True)
class FoundCalls:
    """The calls of one page."""

    rows: Sequence[Mapping[str, Any]]
    """Columns of the view `candidates`, in order."""
    next: str | None
    """Where the next page starts; None after the last."""
    is_whole: bool
    """Whether the page is full, or the last one; otherwise there may be more calls that were not looked
    at."""
    looked_at: int
    """Calls, or texts in the order of the corpus, that were looked at."""


@dataclass(frozen=True)
class _Order:
    """How keys of one order are read, sorted, and compared with by its query."""

    columns: Mapping[str, Callable[[str], Any]]
    """The columns of a key in the view `candidates`, with what reads each from an address."""
    start: Key
    is_descending: bool = False
    """Whether the largest first column comes first."""

    @property
    def order_by(self) -> str:
        """The order in SQL."""
        first, *others = self.columns
        return ", ".join([f"{first} desc" if self.is_descending else first, *others])

    def sorted_by(self, key: Key) -> Key:
        """What Python sorts keys by, as Postgres does."""
        return (-key[0], *key[1:]) if self.is_descending else key

    def key(self, row: Mapping[str, Any]) -> Key:
        """The key of a call, or the place that a scan came to."""
        return tuple(row[name] for name in self.columns)

    def parse(self, place: str) -> Key:
        """The key that an address names; raises ValueError."""
        return tuple(read(part) for read, part in zip(self.columns.values(), place.split("~"), strict=True))


_GAIN = {"gain_bound": float, "call_id": uuid.UUID}
_ORDERS: Mapping[str, _Order] = MappingProxyType(
    {
        "most_saved": _Order(_GAIN, start=(INFINITY, NO_ID), is_descending=True),
        "least_saved": _Order(_GAIN, start=(-INFINITY, NO_ID)),
        "by_reason": _Order({"variant_id": uuid.UUID, "call_id": uuid.UUID}, start=(NO_ID, NO_ID)),
        "in_text_order": _Order(
            {"ordinal": int, "position_char": int, "call_id": uuid.UUID}, start=(0, -1, NO_ID)
        ),
    }
)


def find_calls(
    connection: Connection,
    run: ShownRun,
    selection: Asked,
    at_most: int = CALLS_A_PAGE,
    seconds: float = SECONDS_TO_LOOK,
) -> FoundCalls:
    """The calls of a run that were asked for, at most so many, as far as one can look in so many seconds.

    Raises:
        HTTPException: 422 if the address names no place of a next page.
    """
    order = _ORDERS[selection.order]
    try:
        after = order.parse(selection.after) if selection.after else order.start
    except ValueError:
        raise HTTPException(422, "expected the address of a next page, found another place") from None
    # 1. Calls of each tool, until the page is full, the tool has no more, or the time is over.
    until = time.monotonic() + seconds
    keyed_rows: list[tuple[Key, dict[str, Any]]] = []
    horizon: Key | None = (
        None  # after the first place that a tool was not looked at, other tools' calls have to wait
    )
    looked_at = 0
    for tool in (tool for tool in run.tools if selection.tool in ("", tool.tool)):
        rows, place, looked = _scan(connection, run, tool, selection, after, at_most + 1, until)
        looked_at += looked
        keyed_rows += [(order.key(row), row) for row in rows]
        if place is not None and (horizon is None or order.sorted_by(place) < order.sorted_by(horizon)):
            horizon = place
    keyed_rows.sort(key=lambda item: order.sorted_by(item[0]))
    if horizon is not None:
        bound = order.sorted_by(horizon)
        keyed_rows = [item for item in keyed_rows if order.sorted_by(item[0]) <= bound]
    # 2. The page, and where the next one starts.
    shown, more = keyed_rows[:at_most], len(keyed_rows) > at_most
    next_key = shown[-1][0] if more else horizon
    return FoundCalls(
        rows=[row for _, row in shown],
        next="~".join(map(str, next_key)) if next_key is not None else None,
        is_whole=more or horizon is None,
        looked_at=looked_at,
    )


def largest_loss(rows: Iterable[Mapping[str, Any]]) -> float:
    """Where the scale of the bars of these calls ends, nats; 1 if they have no losses."""
    losses: list[float | None] = []
    for row in rows:
        losses += [row[name] for name in LOSSES]
    return max((loss for loss in losses if loss is not None), default=1.0)


def _scan(
    connection: Connection,
    run: ShownRun,
    tool: RunTool,
    selection: Asked,
    after: Key,
    at_most: int,
    until: float,
) -> tuple[list[dict[str, Any]], Key | None, int]:
    """One tool's calls, how far the tool was looked through (None: to its end), and at how many calls or texts."""
    order, in_text_order = _ORDERS[selection.order], selection.order == "in_text_order"
    tool_selection = dataclasses.replace(selection, tool=tool.tool)
    at_least, below = selection.range_of(tool)
    values: dict[str, Any] = {
        "corpus_id": run.corpus_id,
        "corpus_version": run.corpus_version,
        "below_ordinal": below_ordinal(run.ordinal_limit),
        "reads_record": tool.reads_record,
        "document_id": selection.document_id and str(selection.document_id),
    } if in_text_order else {
        "scoring_recipe_id": tool.scoring_recipe_id,
        "sort": selection.order,
        "at_least": at_least,
        "below": below,
        "reason": selection.reason,
        **UNASKED,
    }  # fmt: skip
    calls: list[dict[str, Any]] = []
    look, looked_at = FIRST_LOOK, 0
    while True:
        started = time.monotonic()
        # 1. The next keys of the order.
        bound_key = [str(value) if isinstance(value, uuid.UUID) else value for value in after]
        place = {f"after_{column}": value for column, value in zip(order.columns, bound_key, strict=True)}
        name = queries.page_calls.scan_in_text_order if in_text_order else queries.page_calls.scan
        scanned = fetch_all(connection, name, **{**values, **place}, scanned=look)
        looked_at += len(scanned)
        # 2. Of these the calls that are asked for.
        if scanned:
            # `document_uuid` says no more than `variant_uuid`; by it Postgres looks up the members of the
            # corpus.
            among = sql.SQL("document_uuid = any({}::uuid[]) and variant_uuid = any({}::uuid[])").format(
                sql.Literal([str(row.document_id) for row in scanned]),
                sql.Literal([str(row.variant_id) for row in scanned]),
            )
            if in_text_order:
                key = sql.SQL("({}, {}, {}::uuid)").format(*map(sql.Literal, bound_key))
                among = sql.SQL("{} and (ordinal, position_char, call_uuid) > {}").format(among, key)
            else:
                ids = sql.Literal([str(row.call_id) for row in scanned])
                among = sql.SQL("{} and call_uuid = any({}::uuid[])").format(among, ids)
            conditions = [*_conditions(tool_selection), among]
            calls += candidates(connection, run.run_id, conditions, order.order_by, at_most - len(calls))
        if len(calls) >= at_most:
            return calls, order.key(calls[-1]), looked_at
        if len(scanned) < look:
            return calls, None, looked_at
        # 3. Further, as long as there is time.
        if in_text_order:
            after = (scanned[-1].ordinal + 1, -1, NO_ID)
        else:
            after = max((order.key(row._asdict()) for row in scanned), key=order.sorted_by)
        now = time.monotonic()
        fits = int(look * (until - now) / (now - started))
        if fits < FIRST_LOOK:
            return calls, after, looked_at
        look = min(look * 4, LONGEST_LOOK, fits)


# The statement


def _conditions(selection: Asked) -> list[sql.Composable]:
    """Which calls of a run are asked for: conditions on rows of the view `candidates`."""
    terms: list[sql.Composable] = []
    if selection.tool:
        terms.append(sql.SQL("tool = {}").format(sql.Literal(selection.tool)))
    if selection.between is not None:
        terms.append(
            sql.SQL("gain >= {} and gain < {} and reason is null").format(
                *map(sql.Literal, selection.between)
            )
        )
    elif selection.reason:
        terms.append(sql.SQL("reason = {}").format(sql.Literal(selection.reason)))
    else:
        terms.append(sql.SQL(STATUSES[selection.status].where))
    if selection.information is not None:
        terms.append(sql.SQL("information >= {}").format(sql.Literal(selection.information)))
    if selection.document_id:
        terms.append(
            sql.SQL("{}::uuid in (document_uuid, variant_uuid)").format(
                sql.Literal(str(selection.document_id))
            )
        )
    elif selection.contains:
        # A subquery that returns a value is computed row by row; `exists` would become a join with the whole
        # corpus.
        terms.append(
            sql.SQL(
                "(select strpos(lower(concat_ws(' ', document.text, document.url, call_text, result)), "
                "lower({})) > 0 from documents document where document.document_id = variant_uuid)"
            ).format(sql.Literal(selection.contains))
        )
    return terms


def _statement(
    run_id: str, columns: str, conditions: Iterable[sql.Composable], order_by: str, at_most: int
) -> sql.Composable:
    return sql.SQL("select {}\nfrom candidates_of({})\nwhere {}\norder by {}\nlimit {};").format(
        sql.SQL(columns),
        sql.Literal(run_id),
        sql.SQL("\n  and ").join(conditions),
        sql.SQL(order_by),
        sql.Literal(at_most),
    )


def candidates(
    connection: Connection, run_id: str, conditions: Iterable[sql.Composable], order_by: str, at_most: int
) -> list[dict[str, Any]]:
    """Rows of the view `candidates` of a run, each with `loss_with_placebo`, nats: the mean loss with a placebo for the result.

    Raises:
        DatabaseError: Postgres refuses the statement.
    """
    with translating("candidates"), raw_cursor(connection) as cursor:
        cursor.execute(_statement(run_id, "*", conditions, order_by, at_most))
        names = [column.name for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    for row in rows:
        # Pages compare ids with those of tables.
        row |= {f"{name}_id": row.pop(f"{name}_uuid") for name in ("document", "variant", "call")}
        measured = row["information"] is not None and row["loss_with_result"] is not None
        row["loss_with_placebo"] = row["loss_with_result"] + row["information"] if measured else None
    return rows


def as_sql(connection: Connection, run: ShownRun, selection: Asked) -> str:
    """The statement that the page runs, as psql takes it: every value quoted by psycopg2."""
    columns = "tool, outcome, release_outcome, reason, gain, text_before, call_text, result, text_after"
    with raw_cursor(connection) as cursor:
        return str(
            _statement(
                run.run_id, columns, _conditions(selection), _ORDERS[selection.order].order_by, CALLS_A_PAGE
            ).as_string(cursor)
        )
