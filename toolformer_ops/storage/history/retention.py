"""Drop the rows of recipes that nothing uses any more: recipe by recipe, each one transaction.

A recipe is used by a run that is unfinished, whose numbers are not stored, that has a release which was not
withdrawn, that ended a short time ago, or that is the newest successful one of its corpus, model and
schedule, since the next night continues it; unless a person is done with its model or one of its recipes
(`say_done_with`). What is dropped can be computed again. Runs, stored numbers, recipes' definitions,
documents, micro-batches and releases stay. Owns the table `done_with`.

Calls, losses and placebos may go earlier (`drop_written`): those of releases, too, if the history has all of
their rows, in files that are compared with their hashes. What the history lacks stays: the ledger, filter
decisions, pruned positions and results.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.storage.history import history
from toolformer_ops.storage.history.files import OF_STAGE
from toolformer_ops.storage.postgres import database, partitions, queries
from toolformer_ops.storage.postgres.in_use import take_results

logger = logging.getLogger(__name__)

LOCK_SECONDS = 10
"""Longest wait to drop a partition; who asks for its table waits behind it."""


@dataclass(frozen=True)
class UnusedRecipe:
    """A recipe with rows that no run uses."""

    stage: str
    tool: str
    recipe_id: str
    documents: int
    """Documents in its ledger."""
    bytes: int
    """Bytes of its partitions, which the file system has back at once."""


@dataclass(frozen=True)
class UnusedResults:
    """The results of a version of a tool that no run uses."""

    tool: str
    tool_version: str
    results: int
    bytes: int
    """About; Postgres writes later rows into this space."""


@dataclass(frozen=True)
class UnusedAnswers:
    """The stored answers of a proposer behind an endpoint that sampled for no run in use."""

    proposer: str
    answers: int
    bytes: int
    """About; Postgres writes later rows into this space."""


@dataclass(frozen=True)
class Unused:
    """What no run uses."""

    recipes: list[UnusedRecipe]
    results: list[UnusedResults]
    answers: list[UnusedAnswers]


@dataclass(frozen=True)
class Uses:
    """What counts as a use of a recipe, besides releases and unfinished runs."""

    older_than_days: int = 0
    """Runs that ended within so many days."""
    schedules: Sequence[str] | None = None
    """Names of the schedules that there are; None if that is not known, and every schedule counts."""
    withdrawn: Sequence[str] = ()
    """Releases that count as withdrawn, since they are about to be."""


def say_done_with(settings: Settings, name: str) -> list[str]:
    """Note that no next night needs a model or a recipe; returns the models or the recipe.

    A model is named by its identity, or by the name before its revision: all of its revisions.

    Raises:
        UsageError: no run has such a model, and there is no such recipe.
    """
    with database.transaction(database.connect(settings)) as connection:
        rows = database.fetch_all(connection, queries.retention.models_and_recipes, name=name)
        if not rows:
            models = [row.name for row in database.fetch_all(connection, queries.retention.models)]
            raise UsageError(
                f"expected a model of a run or the id of a recipe, found {name!r}. Models are "
                f"{', '.join(models[:20]) or 'none'}; the table recipes lists recipes."
            )
        for row in rows:
            database.execute(connection, queries.retention.done_with, name=row.name)
    return [row.name for row in rows]


def unused(settings: Settings, uses: Uses) -> Unused:
    """What `drop_unused` would drop."""
    with database.transaction(database.connect(settings)) as connection:
        return Unused(
            recipes=_unused_recipes(connection, uses),
            results=_unused_results(connection, uses),
            answers=_unused_answers(connection, uses),
        )


def drop_unused(settings: Settings, uses: Uses) -> Unused:
    """Drop it; returns what was dropped.

    May be killed and run again; fails if a partition stays locked by another session. Waits while another
    process writes the history, which may be reading these rows.
    """
    engine = database.connect(settings)
    with history.writing(engine):
        recipes: list[UnusedRecipe] = []
        for recipe in unused(settings, uses).recipes:
            with database.transaction(engine, lock_seconds=LOCK_SECONDS) as connection:
                # 1. A run that starts now waits here for the partition, or holds it and is seen as a use of the
                #    recipe.
                tables = partitions.TABLES_OF_STAGE[recipe.stage]
                for table in tables:
                    partitions.lock_partition(connection, table, recipe.recipe_id)
                if not _unused_recipes(connection, uses, recipe.recipe_id):
                    continue
                # 2. Rows first: dropping a partition locks its table, which should be for a short time.
                database.execute(connection, queries.retention.drop_rows, recipe_id=recipe.recipe_id)
                for table in tables:
                    partitions.drop_partition(connection, table, recipe.recipe_id)
            recipes.append(recipe)
            logger.info("dropped recipe %s (%s of %s)", recipe.recipe_id, recipe.stage, recipe.tool)
        with database.transaction(engine) as connection:
            # A run that starts now waits here, or is seen as a use of its tools' results.
            take_results(connection)
            results = _unused_results(connection, uses)
            for result in results:
                key = {"tool": result.tool, "tool_version": result.tool_version}
                database.execute(connection, queries.retention.drop_results, **key)
            answers = _unused_answers(connection, uses)
            for answer in answers:
                database.execute(connection, queries.retention.drop_answers, proposer=answer.proposer)
    return Unused(recipes=recipes, results=results, answers=answers)


def written(settings: Settings, uses: Uses) -> list[UnusedRecipe]:
    """The recipes whose calls, losses or placebos `drop_written` would drop.

    It drops them if the files of the history are whole.
    """
    with database.transaction(database.connect(settings)) as connection:
        return _recipes_in_history(connection, uses)


def drop_written(settings: Settings, uses: Uses) -> list[UnusedRecipe]:
    """Drop the calls, losses and placebos that the history has, unless the next night needs them.

    Returns their recipes. A recipe of which a file is not as it was written keeps its rows, with a warning.
    May be killed and run again.

    Raises:
        HistoryError: there is no manifest, or it is damaged.
        ObjectStoreError: S3 refuses, or does not answer.
    """
    engine = database.connect(settings)
    dropped: list[UnusedRecipe] = []
    with history.writing(engine):  # so that no file changes
        for recipe in written(settings, uses):
            # 1. The files, outside of a transaction: it may take long to read them.
            if lacks := history.lacks_of_recipe(settings, engine, recipe.stage, recipe.recipe_id):
                logger.warning(
                    "recipe %s (%s of %s) stays: %s", recipe.recipe_id, recipe.stage, recipe.tool, lacks
                )
                continue
            # 2. The rows, unless a run has begun to use them.
            table = OF_STAGE[recipe.stage]
            with database.transaction(engine, lock_seconds=LOCK_SECONDS) as connection:
                partitions.lock_partition(connection, table, recipe.recipe_id)
                if not _recipes_in_history(connection, uses, recipe.recipe_id):
                    continue
                database.execute(
                    connection, queries.retention.drop_rows_in_history, recipe_id=recipe.recipe_id
                )
                partitions.drop_partition(connection, table, recipe.recipe_id)
            dropped.append(recipe)
            logger.info("%s of recipe %s are in the history alone", table, recipe.recipe_id)
    return dropped


def _runs_in_use(connection: Connection, uses: Uses, *, with_releases: bool = True) -> list[str]:
    rows = database.fetch_all(
        connection,
        queries.retention.runs_in_use,
        older_than_days=uses.older_than_days,
        schedules=None if uses.schedules is None else list(uses.schedules),
        with_releases=with_releases,
        withdrawn=list(uses.withdrawn),
    )
    return [row.run_id for row in rows]


def _recipes_in_history(
    connection: Connection, uses: Uses, recipe_id: str | None = None
) -> list[UnusedRecipe]:
    """All recipes whose rows the history has and no next night needs, or this one if it is such a recipe."""
    rows = database.fetch_all(
        connection,
        queries.retention.recipes_in_history,
        run_ids=_runs_in_use(connection, uses, with_releases=False),
        recipe_id=recipe_id,
        table_of_stage=dict(OF_STAGE),
    )
    return [UnusedRecipe(**row._mapping) for row in rows]


def _unused_recipes(connection: Connection, uses: Uses, recipe_id: str | None = None) -> list[UnusedRecipe]:
    """All unused recipes, or this one if it is unused."""
    run_ids = _runs_in_use(connection, uses)
    rows = database.fetch_all(
        connection,
        queries.retention.unused_recipes,
        run_ids=run_ids,
        recipe_id=recipe_id,
        tables=list(partitions.PARTITIONED_TABLES),
    )
    return [UnusedRecipe(**row._mapping) for row in rows]


def _unused_results(connection: Connection, uses: Uses) -> list[UnusedResults]:
    run_ids = _runs_in_use(connection, uses)
    rows = database.fetch_all(connection, queries.retention.unused_results, run_ids=run_ids)
    return [UnusedResults(**row._mapping) for row in rows]


def _unused_answers(connection: Connection, uses: Uses) -> list[UnusedAnswers]:
    run_ids = _runs_in_use(connection, uses)
    rows = database.fetch_all(connection, queries.retention.unused_answers, run_ids=run_ids)
    return [UnusedAnswers(**row._mapping) for row in rows]
