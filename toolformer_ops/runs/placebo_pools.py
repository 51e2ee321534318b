"""Which results a run's placebos are drawn from (owns the tables `placebo_pools` and `placebo_pool_results`).

A pool is known once all calls of a tool are scored: the calls with a result that have the smallest ids, at
most `POOL_CALLS`. Ids are hashes, so this is a sample of the calls, in any order, batches and shards. Each
call counts, and not each distinct result: what a tool answers often is drawn often.

A pool does not follow the corpus night by night. A run draws from the newest pool of its scoring recipe over
its corpus, as long as the corpus has at most twice the documents that it had when the pool was drawn. So
placebos of an earlier night stay as they are and are not scored again, those of a new text are drawn from the
same pool, and drawing anew costs little over the life of a corpus that grows. The recipe of placebos holds
the hash of its pool, and a run its recipe: the rows that a finished run was counted from are not touched by a
pool that is drawn later. The share of the calls that is sampled for the false-discovery rate is decided with
the pool, for the same reason.

What a forgotten text gave to a pool is deleted. Placebos that were drawn stay, without the text of their
result.
"""

import hashlib
import json
import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from toolformer_ops.errors import NoResultError
from toolformer_ops.runs.choices import PlaceboChoices
from toolformer_ops.runs.recipes import Recipe, placebo_recipe, store_recipe
from toolformer_ops.runs.run_tools import RunTool, members_of_run, unfinished_documents
from toolformer_ops.storage.postgres import database, partitions, queries
from toolformer_ops.storage.postgres.database import TableRow

logger = logging.getLogger(__name__)

POOL_CALLS = 1000
"""Calls of a pool at most; part of `PLACEBO_VERSION`."""


@dataclass(frozen=True)
class PooledResult:
    """A call of a pool, with its result."""

    source: int
    """Number in the pool, from 0."""
    call_id: uuid.UUID
    document_id: uuid.UUID
    """The hash of its text, also of a variant."""
    result: str


@dataclass(frozen=True)
class Pool:
    """A pool with its numbers."""

    placebos: int
    """K."""
    sample_share: float
    results: Sequence[PooledResult]
    """By their numbers; without forgotten texts."""

    @classmethod
    def of_calls(cls, calls: Iterable[tuple[uuid.UUID, uuid.UUID, str]], choices: PlaceboChoices) -> "Pool":
        """The pool of all calls of a tool that have a result: their ids, their documents and results, in any order."""
        every = sorted(calls)
        drawn = [PooledResult(source, *call) for source, call in enumerate(every[:POOL_CALLS])]
        return cls(choices.placebos, sample_share(choices, len(every)), drawn)

    def recipe(self, scoring_recipe_id: str, tool: str, choices: PlaceboChoices) -> Recipe:
        """The recipe of a tool's placebos that are drawn from it, while it is whole."""
        content = [[str(item.call_id), str(item.document_id), item.result] for item in self.results]
        pool_hash = hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()
        return placebo_recipe(scoring_recipe_id, tool, choices, self.sample_share, pool_hash)


def sample_share(choices: PlaceboChoices, calls: int) -> float:
    """Which share of so many calls is sampled for the false-discovery rate."""
    return min(1.0, choices.placebo_sample / calls) if calls else float(choices.placebo_sample > 0)


def known_pool(connection: Connection, run: RunTool, choices: PlaceboChoices) -> str | None:
    """Take the pool of an earlier run, if one fits; returns the recipe of its placebos."""
    rows = database.fetch_all(
        connection,
        queries.placebo_pools.known,
        members=members_of_run(run),
        corpus_id=run.corpus_id,
        **_numbers(choices),
        scoring_recipe_id=run.scoring_recipe_id,
    )
    if not rows:
        return None
    recipe_id = str(rows[0].placebo_recipe_id)
    # Retention may drop the pool until the partition of its rows is locked.
    for table in partitions.TABLES_OF_STAGE["placebo"]:
        partitions.lock_partition(connection, table, recipe_id)
    if not database.fetch_all(connection, queries.placebo_pools.by_id, placebo_recipe_id=recipe_id):
        return None
    partitions.ensure_partitions(connection, "placebo", recipe_id)
    database.execute(connection, queries.placebo_pools.use, **{**run.ids, "placebo_recipe_id": recipe_id})
    return recipe_id


def choose_pool(connection: Connection, run: RunTool, choices: PlaceboChoices) -> str:
    """The recipe of the run's placebos: by the pool of an earlier run, if one fits, else by one of the run's own results.

    All shards of a run ask at once; the first one decides.

    Raises:
        NoResultError: documents of the run are not scored, so that the pool is not whole.
    """
    database.execute(
        connection, queries.locks.name, name=f"placebo pool {run.scoring_recipe_id} {run.corpus_id}"
    )
    now = database.fetch_one(connection, queries.runs.tool, run_id=run.run_id, tool=run.tool)
    if now.placebo_recipe_id is not None:
        return str(now.placebo_recipe_id)
    unfiltered, unscored, _ = unfinished_documents(connection, run)
    if unfiltered or unscored:
        raise NoResultError(
            f"run {run.run_id}, {run.tool}: expected all documents scored before placebos are drawn, found "
            f"{unfiltered} that are not filtered and {unscored} that are not scored. Run `toolformer-ops "
            "stage annotate` for them first."
        )
    if earlier := known_pool(connection, run, choices):
        return earlier
    run_calls = {"members": members_of_run(run), "scoring_recipe_id": run.scoring_recipe_id}
    size = database.fetch_one(connection, queries.placebo_pools.size, **run_calls)
    share = sample_share(choices, size.calls)
    rows = database.fetch_all(connection, queries.placebo_pools.draw, **run_calls, calls=POOL_CALLS)
    drawn = [PooledResult(source, **row._asdict()) for source, row in enumerate(rows)]
    pool = Pool(choices.placebos, share, drawn)
    recipe = pool.recipe(run.scoring_recipe_id, run.tool, choices)
    store_pool(connection, run, pool, recipe, calls=size.calls, documents=size.documents)
    logger.info(
        "placebos of %s are drawn from %d of %d calls with a result; %.3g of them are sampled for the "
        "false-discovery rate",
        run.tool, len(drawn), size.calls, share,
    )  # fmt: skip
    return recipe.recipe_id


def store_pool(
    connection: Connection, run: RunTool, pool: Pool, recipe: Recipe, *, calls: int, documents: int
) -> None:
    """Write a pool, unless Postgres has it, and have the run use it.

    `calls` are those of which its share is sampled, in so many `documents`.
    """
    store_recipe(connection, recipe)
    pool_key = {"placebo_recipe_id": recipe.recipe_id}
    database.execute(
        connection,
        queries.placebo_pools.insert,
        **pool_key,
        scoring_recipe_id=run.scoring_recipe_id,
        corpus_id=run.corpus_id,
        **_numbers(run.choices.part(PlaceboChoices)),
        documents=documents,
        calls=calls,
        sample_share=pool.sample_share,
    )
    database.insert_rows(
        connection, [TableRow.of("placebo_pool_results", item, **pool_key) for item in pool.results]
    )
    partitions.ensure_partitions(connection, recipe.stage, recipe.recipe_id)
    database.execute(connection, queries.placebo_pools.use, **{**run.ids, **pool_key})


def load_pool(connection: Connection, placebo_recipe_id: str) -> Pool:
    """The pool of a recipe."""
    pool = database.fetch_one(connection, queries.placebo_pools.by_id, placebo_recipe_id=placebo_recipe_id)
    rows = database.fetch_all(connection, queries.placebo_pools.results, placebo_recipe_id=placebo_recipe_id)
    return Pool(
        placebos=pool.placebos,
        sample_share=pool.sample_share,
        results=[PooledResult(**row._asdict()) for row in rows],
    )


def _numbers(choices: PlaceboChoices) -> dict[str, object]:
    return {"placebos": choices.placebos, "placebo_sample": choices.placebo_sample}
