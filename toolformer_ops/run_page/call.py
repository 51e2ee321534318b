"""Call: one call in its whole text with all others, its losses token by token, where each number comes from, and other runs.

The five tokens' log probabilities are those that the scoring stored (`call_losses.token_log_probabilities`),
if it did.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from psycopg2 import sql
from sqlalchemy import Connection, Row

from toolformer_ops.airflow_tasks.run_ids import dag_run_of
from toolformer_ops.language_model.losses import PROBABILITY_TOKENS
from toolformer_ops.run_page.calls import candidates, largest_loss
from toolformer_ops.run_page.reading import Page, answer
from toolformer_ops.run_page.rights import AskedRunDep, VisitorDep
from toolformer_ops.run_page.shown_runs import RunTool, ShownRun, load_run
from toolformer_ops.runs.run_tools import below_ordinal
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import fetch_all, fetch_one

router = APIRouter()

TOKEN_COLUMNS = ("without call", "without result", "with result", "without call, whole text")
TEXT_CHARACTERS = 100_000
"""The page shows so many characters; of a longer text those around the call."""
CALLS_A_TOOL = 500


@dataclass(frozen=True)
class Piece:
    """A piece of the text, or the calls at its end."""

    text: str
    calls: Sequence[Any]


@dataclass(frozen=True)
class TokenRow:
    """One of the tokens that the losses weight."""

    text: str
    """The token in quotes; if it is not stored its place, from 1: the token directly after the call."""
    weight: float
    log_probabilities: tuple[float | None, ...]
    """Natural logarithms, in the order of `TOKEN_COLUMNS`; None if the loss was not computed."""


@router.get("/call")
async def show(
    request: Request,
    run_address: AskedRunDep,
    visitor: VisitorDep,
    call_id: uuid.UUID,
    document_id: Annotated[uuid.UUID | None, Query()] = None,
    tool: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """One call of a run."""

    def make(connection: Connection) -> Page:
        run = load_run(connection, run_address)
        run_tool = run.tool(tool)
        if run_tool is None or document_id is None:
            raise HTTPException(404)
        # 1. The call among all of its text.
        place = {
            "corpus_id": run.corpus_id,
            "corpus_version": run.corpus_version,
            "below_ordinal": below_ordinal(run.ordinal_limit),
            "document_id": str(document_id),
        }
        documents = fetch_all(connection, queries.page_calls.document, **place, first=0, at_most=0)
        calls = calls_of_text(connection, run, documents[0]) if documents else []
        call = next(
            (call for call in calls if call["call_id"] == call_id and call["tool"] == run_tool.tool), None
        )
        if call is None:
            raise HTTPException(404)
        # 2. The text, or the part around the call.
        is_cut = documents[0].characters > TEXT_CHARACTERS
        first = max(call["position_char"] - TEXT_CHARACTERS // 2, 0) if is_cut else 0
        document = fetch_one(
            connection, queries.page_calls.document, **place, first=first, at_most=TEXT_CHARACTERS
        )
        # 3. Where its numbers come from, and the same call in other runs.
        tokens = fetch_all(
            connection,
            queries.page_calls.call_tokens,
            scoring_recipe_id=run_tool.scoring_recipe_id,
            document_id=str(call["variant_id"]),
            call_id=str(call_id),
        )
        answers = fetch_all(
            connection,
            queries.page_calls.what_the_tool_said,
            tool=run_tool.tool,
            tool_version=run_tool.tool_version,
            sampling_recipe_id=run_tool.sampling_recipe_id,
            document_id=str(call["variant_id"]),
            call_id=str(call_id),
        )
        recipe_ids = [run_tool.sampling_recipe_id, run_tool.execution_recipe_id, run_tool.scoring_recipe_id]
        values = {
            "run": run,
            "view": "call",
            "tool": run_tool,
            "call": call,
            "message": answers[0].message if answers else "",
            "calls": calls,
            "document": document,
            "pieces": pieces(document.text, first, calls),
            "is_cut": is_cut,
            "recipes": fetch_all(connection, queries.page_calls.recipes, recipe_ids=recipe_ids),
            "tokens": token_rows(tokens[0].weights, tokens[0].log_probabilities, tokens[0].scored_tokens)
            if tokens
            else [],
            "token_columns": TOKEN_COLUMNS,
            "others": same_call_in_other_runs(connection, run, run_tool, call, visitor.dag_ids),
            "largest_loss": largest_loss([call]),
            "tokens_read": PROBABILITY_TOKENS,
        }
        return Page("call.html.j2", values, run.seconds_to_keep)

    return await answer(request, make, visitor.dag_ids)


def same_call_in_other_runs(
    connection: Connection,
    run: ShownRun,
    tool: RunTool,
    call: Mapping[str, Any],
    dag_ids: Collection[str],
) -> list[dict[str, Any]]:
    """The rows of the same call in other runs of these DAGs, each with the address of its run."""
    rows = fetch_all(
        connection,
        queries.page_calls.call_in_runs,
        scoring_recipe_id=tool.scoring_recipe_id,
        run_id=run.run_id,
        corpus_id=run.corpus_id,
        tool=tool.tool,
        document_id=str(call["document_id"]),
        variant_id=str(call["variant_id"]),
        position_char=call["position_char"],
        call_text=call["call_text"],
        dag_ids=sorted(dag_ids),
    )
    others = []
    for row in rows:
        address = {"dag_id": row.dag_id, "run_id": dag_run_of(row.run_id, row.dag_id)}
        others.append({**row._mapping, "address": address})
    return others


def calls_of_text(connection: Connection, run: ShownRun, document: Row[Any]) -> list[dict[str, Any]]:
    """Every candidate call in a text (a row of `page_calls.document`), of all tools of the run, in the order of their places."""
    calls = []
    for tool in run.tools:
        variant_id = str(document.variant_id if tool.reads_record else document.document_id)
        condition = sql.SQL("tool = {} and document_uuid = {}::uuid and variant_uuid = {}::uuid").format(
            *map(sql.Literal, (tool.tool, str(document.document_id), variant_id))
        )
        calls += candidates(connection, run.run_id, [condition], "position_char, call_id", CALLS_A_TOOL)
    return sorted(
        calls, key=lambda call: (call["position_char"], call["tool"], call["call_text"], call["call_id"])
    )


def token_rows(
    weights: Sequence[float],
    stored: Sequence[Sequence[float | None]] | None,
    tokens: Sequence[str] | None = None,
) -> list[TokenRow]:
    """The tokens of a call with the weights of its scoring recipe, from its stored lists.

    It is None if nothing is stored.
    """
    by_token = zip_longest(*(values or [] for values in stored or ()))
    token_rows = []
    for place, log_probabilities in enumerate(by_token):
        if any(value is not None for value in log_probabilities):
            token = repr(tokens[place]) if tokens else str(place + 1)
            weight = weights[place] if place < len(weights) else 0.0
            token_rows.append(TokenRow(token, weight, log_probabilities))
    return token_rows


def pieces(text: str, first: int, calls: Sequence[Any]) -> list[Piece]:
    """The text from its character `first` on, cut where calls stand."""
    parts: list[Piece] = []
    start = 0
    places = sorted(
        {call["position_char"] for call in calls if 0 <= call["position_char"] - first <= len(text)}
    )
    for place in places:
        at = [call for call in calls if call["position_char"] == place]
        parts.append(Piece(text[start : place - first], at))
        start = place - first
    return [*parts, Piece(text[start:], ())]
