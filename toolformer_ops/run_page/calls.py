"""Calls: every candidate call of a run in its text, with what became of it; filtered, sorted, and page by page by keyset.

A page is read in two steps: one query a tool finds keys in the order that was asked for (`page_scan.sql`, or
`page_scan_in_text_order.sql`), one reads what is shown of them (`page_call_rows.sql`). A key is where the page before ended, so
that page 1,000 costs what page 1 costs. No index serves a filter by text: such a page looks at calls for `SECONDS_TO_LOOK`, shows
what it found, and says how far it came.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response
from psycopg2 import sql
from sqlalchemy import Connection, Row

from toolformer_ops.orchestration.run_ids import is_ours
from toolformer_ops.run_page.reading import Page, answer
from toolformer_ops.run_page.rights import AskedRun, VisitorDep
from toolformer_ops.run_page.shown_runs import RunTool, ShownRun, find_run, load_run
from toolformer_ops.runs.run_tools import below_ordinal
from toolformer_ops.storage.database import fetch_all, raw_cursor

router = APIRouter()

CALLS_A_PAGE = 50
NEAR_NATS = 0.25
"""How far from its keep threshold a call is near it."""
FIRST_LOOK, LONGEST_LOOK = 64, 2048
"""Calls (texts, in the order of the corpus) that one query looks at: more each time, while the page is not full."""
SECONDS_TO_LOOK = 0.12
"""Then the page is shown as far as it came. A query looks at no more than it can in the time that is left."""
MAX_TEXT = 200
INFINITY = float("inf")
NO_ID = uuid.UUID(int=0)

Sort = Literal["most_saved", "least_saved", "text_order"]
STATUSES: Mapping[str, str] = MappingProxyType(
    {
        "scored": "scored",
        "kept": "kept",
        "near": f"within {NEAR_NATS} nats of the threshold",
        "below": "scored, below the threshold",
        "released": "in the release",
        "not_released": "kept, not in the release",
        "input_only_after": "kept, its input stands only after it",
        "uninformative": "saves enough, says too little",
        "not_scored": "not scored yet",
        "every": "every candidate",
    }
)
"""Which calls are shown; besides these, `reason:REASON`."""
IN_TEXT_ORDER = ("not_scored", "every", "reason:pruned_below")
"""Statuses of calls without a loss reduction, or that no index lists."""
OF_KEPT = ("kept", "released", "not_released", "input_only_after")
"""Statuses of kept calls."""
REASON = "reason:"
LOSSES = ("loss_without_call", "loss_without_result", "loss_with_result", "loss_with_placebo")
"""The bars of a call."""
Key = tuple[Any, ...]
UNASKED: Mapping[str, None] = MappingProxyType({"after_loss_reduction": None, "after_document_id": None})
"""Parameters of `page_scan.sql` that not every order compares with."""


@dataclass(frozen=True)
class Asked:
    """The question: which calls, in which order, from where on."""

    tool: str
    """Of one tool; empty: of all."""
    status: str
    contains: str
    """A part of the text, the address, the call or the result, in any case; or the id of a text."""
    information: float | None
    """Calls with at least so much information, nats; None: whatever they have."""
    sort: Sort
    after: str
    """The key that the page before ended with; empty: from the start."""
    between: tuple[float, float] | None = None
    """Loss reductions in nats, in place of those that the status has: at least the first, below the second."""

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
        """The order in which the calls come: one of `page_scan.sql`, or that of the corpus."""
        if self.document_id or self.status in IN_TEXT_ORDER or (self.sort == "text_order"):
            return "in_text_order"
        return "by_reason" if self.reason else self.sort

    def as_query(self) -> dict[str, str]:
        """The parameters of its address, without the place."""
        information = "" if self.information is None else str(self.information)
        return {
            "tool": self.tool,
            "status": self.status,
            "contains": self.contains,
            "information": information,
            "sort": self.sort,
        }

    def range_of(self, tool: RunTool) -> tuple[float, float]:
        """Between which loss reductions of a tool the calls are, in nats."""
        if self.between is not None:
            return self.between
        tau = tool.keep_threshold
        match self.status:
            case _ if self.status in OF_KEPT or self.status == "uninformative":
                return tau, INFINITY
            case "near":
                return tau - NEAR_NATS, tau + NEAR_NATS
            case "below":
                return -INFINITY, tau
            case _:
                return -INFINITY, INFINITY


@router.get("/calls")
async def show(
    request: Request,
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
) -> Response:
    """A page of calls: of the run that Airflow's ids name, or the annotation run `of`, or the newest one."""
    if "\0" in dag_id + run_id + of + tool + status + contains:
        raise HTTPException(404)
    if dag_id not in visitor.dag_ids and is_ours(dag_id):
        raise HTTPException(403)
    if status not in STATUSES and not status.startswith(REASON):
        raise HTTPException(422, f"status: expected one of {', '.join(STATUSES)} or {REASON}REASON")
    try:
        at_least = float(information) if information.strip() else None
    except ValueError:
        raise HTTPException(422, f"information: expected a number of nats, found {information!r}") from None
    asked = Asked(tool=tool, status=status, contains=contains.strip(), information=at_least, sort=sort, after=after)

    def make(connection: Connection) -> Page:
        # The newest runs that the visitor may see, for the choice of one.
        rows = fetch_all(connection, "page_runs", dag_ids=sorted(visitor.dag_ids))
        runs = [dict(row._mapping) for row in rows]
        if dag_id or run_id:
            run = load_run(connection, AskedRun(dag_id, run_id, visitor.name))
        else:
            chosen = find_run(connection, of or runs[0]["run_id"], visitor.dag_ids) if of or runs else None
            if chosen is None:
                text = "No run of this id has annotated anything." if of else "No run has annotated anything."
                return Page("message.html.j2", {"title": "No calls", "text": text, "sign_in": None}, status=404)
            run = chosen
        return _page(connection, run, asked, runs)

    return await answer(request, make, visitor.dag_ids)


def _page(connection: Connection, run: ShownRun, asked: Asked, runs: Sequence[Mapping[str, Any]]) -> Page:
    released = fetch_all(connection, "release_of_run", run_id=run.run_id)
    release_id = released[0].release_id if released else None
    recipes = [tool.scoring_recipe_id for tool in run.tools]
    reasons = [row.reason for row in fetch_all(connection, "page_reasons", scoring_recipe_ids=recipes)]
    if any(tool.prune_below > 0 for tool in run.tools):
        reasons.append("pruned_below")
    found = find_calls(connection, run, asked, release_id)
    values = {
        "run": run,
        "view": "calls",
        "runs": runs,
        "asked": asked,
        "statuses": {
            **STATUSES,
            **{f"{REASON}{reason}": f"not scored: {reason.replace('_', ' ')}" for reason in reasons},
        },
        "found": found,
        "largest_loss": largest_loss(found.rows),
        "sql": as_sql(connection, run, asked),
        "thresholds": {tool.tool: tool.keep_threshold for tool in run.tools},
    }
    return Page("calls.html.j2", values, run.seconds_to_keep)


# The calls of a page


@dataclass(frozen=True)
class FoundCalls:
    """The calls of one page."""

    rows: Sequence[Mapping[str, Any]]
    """Columns of `page_call_rows.sql`, in order."""
    next: str | None
    """Where the next page starts; None where there is none."""
    is_whole: bool
    """Whether the page is full, or the last one; otherwise there may be more calls that nobody has looked at."""
    looked_at: int
    """Calls, or texts in the order of the corpus, that were looked at."""


@dataclass(frozen=True)
class _Order:
    """How keys of one order are read, sorted, and compared with by its query."""

    parse: Callable[[Sequence[str]], Key]
    start: Key
    sorted_by: Callable[[Key], Any]
    """What Python sorts keys by, as Postgres does."""
    columns: tuple[str, ...]
    """Of a key in the rows of the query; with `last_` before them the place that the query came to."""


def _by_reduction(start: float, sign: int) -> _Order:
    return _Order(
        parse=lambda parts: (float(parts[0]), uuid.UUID(parts[1])),
        start=(start, NO_ID),
        sorted_by=lambda key: (sign * key[0], key[1]),
        columns=("loss_reduction", "call_id"),
    )


_ORDERS: Mapping[str, _Order] = MappingProxyType(
    {
        "most_saved": _by_reduction(INFINITY, -1),
        "least_saved": _by_reduction(-INFINITY, 1),
        "by_reason": _Order(
            parse=lambda parts: (uuid.UUID(parts[0]), uuid.UUID(parts[1])),
            start=(NO_ID, NO_ID),
            sorted_by=lambda key: key,
            columns=("document_id", "call_id"),
        ),
        "in_text_order": _Order(
            parse=lambda parts: (int(parts[0]), int(parts[1]), uuid.UUID(parts[2])),
            start=(0, -1, NO_ID),
            sorted_by=lambda key: key,
            columns=("ordinal", "position_char", "call_id"),
        ),
    }
)


def find_calls(
    connection: Connection, run: ShownRun, asked: Asked, release_id: str | None, at_most: int = CALLS_A_PAGE
) -> FoundCalls:
    """The calls of a run that were asked for, at most so many.

    Raises:
        HTTPException: 422 where the place of the address is none.
    """
    order = _ORDERS[asked.order]
    try:
        after = order.parse(asked.after.split("~")) if asked.after else order.start
    except (ValueError, IndexError):
        raise HTTPException(422, "expected the address of a next page, found another place") from None
    tools = [tool for tool in run.tools if asked.tool in ("", tool.tool)]
    # 1. Keys of each tool, until the page is full, the tool has no more, or the time is over.
    until = time.monotonic() + SECONDS_TO_LOOK
    keys: list[tuple[Key, RunTool, uuid.UUID, uuid.UUID]] = []
    horizon: Key | None = None  # behind the first place that a tool was not looked at, other tools' calls have to wait
    looked_at = 0
    for tool in tools:
        found, place, looked = _scan(connection, run, tool, asked, after, release_id, at_most + 1, until)
        looked_at += looked
        keys += [(key, tool, document_id, call_id) for key, document_id, call_id in found]
        if place is not None and (horizon is None or order.sorted_by(place) < order.sorted_by(horizon)):
            horizon = place
    keys.sort(key=lambda item: order.sorted_by(item[0]))
    if horizon is not None:
        bound = order.sorted_by(horizon)
        keys = [item for item in keys if order.sorted_by(item[0]) <= bound]
    # 2. The page, and where the next one starts.
    shown, more = keys[:at_most], len(keys) > at_most
    next_key = shown[-1][0] if more else horizon
    # 3. What is shown of each call.
    by_id = {}
    for tool in tools:
        ids = [(document_id, call_id) for _, of, document_id, call_id in shown if of is tool]
        for row in described_calls(connection, tool, ids, release_id):
            by_id[tool.tool, row["variant_id"], row["call_id"]] = row
    return FoundCalls(
        rows=[by_id[tool.tool, document_id, call_id] for _, tool, document_id, call_id in shown],
        next="~".join(map(str, next_key)) if next_key is not None else None,
        is_whole=more or horizon is None,
        looked_at=looked_at,
    )


def largest_loss(rows: Iterable[Mapping[str, Any]]) -> float:
    """Where the scale of the bars of these calls ends, nats; 1 where they have no losses."""
    losses = [row[name] for row in rows for name in LOSSES]
    return max((loss for loss in losses if loss is not None), default=1.0)


def described_calls(
    connection: Connection, tool: RunTool, ids: Sequence[tuple[uuid.UUID, uuid.UUID]], release_id: str | None
) -> list[dict[str, Any]]:
    """The rows of `page_call_rows.sql` for a tool's calls, given by document and call, with what became of each in words."""
    if not ids:
        return []
    rows = fetch_all(
        connection,
        "page_call_rows",
        tool=tool.tool,
        sampling_recipe_id=tool.sampling_recipe_id,
        scoring_recipe_id=tool.scoring_recipe_id,
        placebo_recipe_id=tool.placebo_recipe_id,
        release_id=release_id,
        document_ids=[str(document_id) for document_id, _ in ids],
        call_ids=[str(call_id) for _, call_id in ids],
    )
    return [_described(row, tool) for row in rows]


def _described(row: Row[Any], tool: RunTool) -> dict[str, Any]:
    saves = row.has_losses and row.reason is None and row.loss_reduction >= tool.keep_threshold
    kept = saves and (tool.tau_information is None or (row.information or 0.0) >= tool.tau_information)
    if not row.has_losses:
        outcome = "not scored yet"
    elif row.reason is not None:
        outcome = row.reason.replace("_", " ")
    elif row.is_released:
        outcome = "released"
    else:
        outcome = "kept" if kept else "says too little" if saves else "below threshold"
    return {**row._mapping, "keep_threshold": tool.keep_threshold, "is_kept": kept, "outcome": outcome}


def _question(run: ShownRun, tool: RunTool, asked: Asked, release_id: str | None) -> tuple[str, dict[str, Any]] | None:
    """The query that scans a tool's calls for what is asked, with its parameters but for the place; None where no call can fit."""
    at_least, below = asked.range_of(tool)
    bounds = [tool.tau_information if asked.status in OF_KEPT else None, asked.information]
    tau_information = max((bound for bound in bounds if bound is not None), default=None)
    carries = None if tau_information is None else True
    if asked.status == "uninformative":
        if tool.tau_information is None:
            return None
        carries, tau_information = False, tool.tau_information
    values: dict[str, Any] = {
        "placebo_recipe_id": tool.placebo_recipe_id,
        "carries": carries,
        "tau_information": tau_information,
        "corpus_id": run.corpus_id,
        "corpus_version": run.corpus_version,
        "below_ordinal": below_ordinal(run.ordinal_limit),
        "reads_record": tool.reads_record,
        "sampling_recipe_id": tool.sampling_recipe_id,
        "scoring_recipe_id": tool.scoring_recipe_id,
        "contains": asked.contains if asked.contains and not asked.document_id else None,
        "release_id": release_id,
        "input_only_after": True if asked.status == "input_only_after" else None,
        "is_released": {"released": True, "not_released": False}.get(asked.status),
        "reason": asked.reason,
    }
    if asked.order != "in_text_order":
        return "page_scan", values | {"sort": asked.order, "at_least": at_least, "below": below}
    has_range = asked.reason is None and asked.status not in IN_TEXT_ORDER
    return "page_scan_in_text_order", values | {
        "document_id": asked.document_id and str(asked.document_id),
        "every_call": asked.status == "every",
        "not_scored_yet": asked.status == "not_scored",
        "at_least": at_least if has_range else None,
        "below": below,
    }


def _scan(
    connection: Connection,
    run: ShownRun,
    tool: RunTool,
    asked: Asked,
    after: Key,
    release_id: str | None,
    at_most: int,
    until: float,
) -> tuple[list[tuple[Key, uuid.UUID, uuid.UUID]], Key | None, int]:
    """Keys of one tool's calls with document and call, how far the tool was looked through (None: to its end), and at how many."""
    question = _question(run, tool, asked, release_id)
    if question is None:
        return [], None, 0
    query, values = question
    order = _ORDERS[asked.order]
    found: list[tuple[Key, uuid.UUID, uuid.UUID]] = []
    look, looked_at = FIRST_LOOK, 0
    while True:
        started = time.monotonic()
        place = {
            f"after_{name}": str(value) if isinstance(value, uuid.UUID) else value
            for name, value in zip(order.columns, after, strict=True)
        }
        rows = fetch_all(
            connection, query, **values, **{**UNASKED, **place}, scanned=look, at_most=at_most - len(found)
        )
        scanned = rows[0].scanned if rows else 0
        looked_at += scanned
        found += [
            (tuple(getattr(row, name) for name in order.columns), row.document_id, row.call_id)
            for row in rows
            if row.call_id
        ]
        if len(found) >= at_most:
            return found, found[-1][0], looked_at
        if scanned < look:
            return found, None, looked_at
        after = tuple(getattr(rows[0], f"last_{name}") for name in order.columns)
        now = time.monotonic()
        fits = int(look * (until - now) / (now - started))
        if fits < FIRST_LOOK:
            return found, after, looked_at
        look = min(look * 4, LONGEST_LOOK, fits)


# The same question for psql


def as_sql(connection: Connection, run: ShownRun, asked: Asked) -> str:
    """The question as a statement that psql takes as it is: over the views, every value quoted by psycopg2."""
    value = sql.Literal
    terms = [sql.SQL("run_id = {}").format(value(run.run_id))]
    if asked.tool:
        terms.append(sql.SQL("tool = {}").format(value(asked.tool)))
    of_status = {
        "scored": sql.SQL("loss_reduction is not null"),
        "kept": sql.SQL("outcome in ('kept', 'displaced', 'released')"),
        "near": sql.SQL("loss_reduction >= keep_threshold - {0} and loss_reduction < keep_threshold + {0}").format(
            value(NEAR_NATS)
        ),
        "below": sql.SQL("outcome = 'below_threshold'"),
        "released": sql.SQL("outcome = 'released'"),
        "not_released": sql.SQL("outcome in ('kept', 'displaced')"),
        "input_only_after": sql.SQL("outcome = 'kept' and input_only_after"),
        "not_scored": sql.SQL("outcome = 'sampled'"),
    }
    if asked.reason:
        terms.append(sql.SQL("reason = {}").format(value(asked.reason)))
    elif asked.status in of_status:
        terms.append(of_status[asked.status])
    if asked.information is not None:
        terms.append(
            sql.SQL(
                "(select avg(information) from call_placebos placebo where placebo.run_id = candidates.run_id and "
                "placebo.tool = candidates.tool and placebo.call_id = candidates.call_id) >= {}"
            ).format(value(asked.information))
        )
    if asked.document_id:
        terms.append(sql.SQL("variant_id = {}").format(value(str(asked.document_id))))
    elif asked.contains:
        terms.append(
            sql.SQL(
                "exists (select from documents where documents.document_id = variant_id and "
                "strpos(lower(concat_ws(' ', documents.text, documents.url, call_text, result)), lower({})) > 0)"
            ).format(value(asked.contains))
        )
    order = {
        "most_saved": sql.SQL("loss_reduction desc, call_id"),
        "least_saved": sql.SQL("loss_reduction, call_id"),
        "by_reason": sql.SQL("variant_id, call_id"),
        "in_text_order": sql.SQL("document_id, position_char, call_id"),
    }[asked.order]
    statement = sql.SQL(
        "select tool, outcome, reason, loss_reduction, text_before, call_text, result, text_after\nfrom candidates\nwhere {}\n"
        "order by {}\nlimit {};"
    ).format(sql.SQL("\n  and ").join(terms), order, value(CALLS_A_PAGE))
    with raw_cursor(connection) as cursor:
        return str(statement.as_string(cursor))
