"""Which tools of a run have work, and the shards that a tool's work is split into, so that a mapped task has enough to do.

Looks at what the ledger holds and writes nothing. The number follows the work: the tokens of the documents
that are not yet scored, times the seconds that a token took lately: under the same recipes, else in the same
tool with the same model, else `SECONDS_PER_DOCUMENT`. A shard holds `SHARD_SECONDS` of it, or more
where starting a process would take more than a twentieth of that, by what the newest processes took
(`START_UP_SECONDS`, until then); there are at most 64 shards, and no more than documents.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from toolformer_ops.config import Settings
from toolformer_ops.runs.run_tools import (
    has_work_left,
    load_run_tool,
    members_beyond_finished,
    open_run_tool,
    require_run,
    unfinished_documents,
)
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)

SHARD_SECONDS = 60.0
"""Work that one mapped task holds, at least."""
START_UP_SECONDS = 10.0
"""Guess of a task's start with loading its model, used until it is measured."""
SECONDS_PER_DOCUMENT = 2.0
"""Guess of sampling time a text, used until the ledger holds measured times."""
UNTIL_KEPT_SHARDS = 4
"""Processes that share a tool's texts with `until_kept`; a late task starts nothing."""
START_UP_SHARE = 0.05
"""The most that starting a shard's process and loading its model may take, as a share of the shard's work."""
FILTER_SECONDS_PER_DOCUMENT = 0.001
"""Guess of a filter's time a document, used until it is measured: MT's takes 0.0024 s, the others less."""
FILTER_START_UP_SECONDS = 1.0
"""Guess of what starting a filter's process takes, used until it is measured: it loads no model."""


@dataclass(frozen=True)
class ToDo:
    """What a run has to do for its tools."""

    tools: list[str]
    """The tools that have work."""
    filter_shards: list[str]
    """The shards of each of their filters, as `I/N`."""


def plan_shards(settings: Settings, run_id: str, tool_name: str) -> list[str]:
    """The shards of a tool's sampling, execution and scoring, as `I/N`.

    There is always one at least: a task that finds nothing to do ends in seconds, and says so.
    """
    engine, run = open_run_tool(settings, run_id, tool_name)
    if run.choices.until_kept is not None:  # how many texts that takes is not known
        return [f"{index}/{UNTIL_KEPT_SHARDS}" for index in range(UNTIL_KEPT_SHARDS)]
    with database.transaction(engine) as connection:
        work = database.fetch_one(
            connection,
            queries.planning.remaining_work,
            **run.ids,
            members=members_beyond_finished(connection, run, run.scoring_recipe_id),
        )
        start_up = _start_up_seconds(connection, START_UP_SECONDS, run.model_identity)
        measured = work.seconds_per_token
        if measured is None:  # nothing was done under its recipes yet
            [model_seconds] = database.fetch_all(
                connection,
                queries.planning.seconds_of_model,
                tool=run.tool,
                model_identity=run.model_identity,
            )
            measured = model_seconds.seconds_per_token
    seconds = work.documents * SECONDS_PER_DOCUMENT if measured is None else work.tokens * measured
    shard_seconds = max(SHARD_SECONDS, start_up / START_UP_SHARE)
    count = shard_count(work.documents, seconds, shard_seconds, settings.max_shards)
    logger.info(
        "plan: %d documents of %s, %d tokens, in %d shards", work.documents, run.tool, work.tokens, count
    )
    return [f"{index}/{count}" for index in range(count)]


def tools_to_do(settings: Settings, run_id: str) -> ToDo:
    """The tools of a run that have work: documents without all of their rows, or rows that no check has passed as they are.

    Raises:
        UsageError: there is no such run.
    """
    tools: list[str] = []
    filtering: list[float] = []  # seconds, a tool with work
    documents = 0
    with database.transaction(database.connect(settings)) as connection:
        asked_for = require_run(connection, run_id).tools
        checked = {
            row.tool for row in database.fetch_all(connection, queries.planning.tools_checked, run_id=run_id)
        }
        for tool in asked_for:
            run = load_run_tool(connection, run_id, tool)
            if tool in checked and not has_work_left(connection, run):
                continue
            tools.append(tool)
            if run.choices.until_kept is not None:  # later processes filter what they need
                continue
            unfiltered, _, _ = unfinished_documents(connection, run)
            lately = database.fetch_one(
                connection, queries.planning.filter_seconds, filter_recipe_id=run.filter_recipe_id
            )
            filtering.append(unfiltered * (lately.seconds_per_document or FILTER_SECONDS_PER_DOCUMENT))
            documents = max(documents, unfiltered)
        start_up = _start_up_seconds(connection, FILTER_START_UP_SECONDS)
    shards = filter_shard_count(filtering, SHARD_SECONDS, settings.max_shards, start_up)
    logger.info("%d of %d tools have work: %s", len(tools), len(asked_for), ", ".join(tools) or "none")
    logger.info(
        "%d documents to filter, %.0f s of all tools together, in %d shards",
        documents,
        sum(filtering),
        shards,
    )
    return ToDo(tools, [f"{index}/{shards}" for index in range(shards)])


def shard_count(documents: int, seconds: float, shard_seconds: float, most: int) -> int:
    """How many shards hold `documents`, each of `shard_seconds` or more of the `seconds` of work.

    They are from 1 to `most`.
    """
    return min(most, max(1, min(documents, math.floor(seconds / shard_seconds))))


def filter_shard_count(
    seconds: Sequence[float],
    shard_seconds: float,
    most: int,
    start_up_seconds: float = FILTER_START_UP_SECONDS,
) -> int:
    """How many shards each filter has, from 1 to `most`; `seconds` is each filter's work.

    One number for all tools, since Airflow can map only over what a task returns, and a task for each tool's
    number would cost each night more than it saves. The slowest filter's shards are `shard_seconds` or
    longer; and starting the processes of all filters, those of the fast ones too, takes at most
    `START_UP_SHARE` of their work together.
    """
    if not seconds:
        return 1
    affordable = sum(seconds) * START_UP_SHARE / (max(start_up_seconds, 0.01) * len(seconds))
    return min(most, max(1, math.floor(min(max(seconds) / shard_seconds, affordable))))


def _start_up_seconds(connection: Connection, guess: float, model_identity: str | None = None) -> float:
    """What a process takes to start that loads this model, or that filters: the median of the newest, or the guess."""
    lately = database.fetch_one(connection, queries.planning.start_up_seconds, model_identity=model_identity)
    return guess if lately.seconds is None else float(lately.seconds)
