"""Retention as a policy: how many releases and models stay, and what of Postgres and the history goes.

The settings `retention_*` are the policy, the DAG `retention` and the command of that name follow it. Without
`drops` it changes nothing and says what it would do. A release stays that is one of the newest of its
corpus and schedule, that a run made lately, that a run at work, a later run of chains or a model in use
needs, or that people have judged; a model stays that is one of the newest of its corpus, schedule and kind,
that was published lately, or that a run names as its own. What goes is withdrawn as by `forget --release`
and `forget --model`: its files go from S3, its row stays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from toolformer_ops.config import Settings
from toolformer_ops.storage.history import forgetting, retention
from toolformer_ops.storage.history import merging as history_merging
from toolformer_ops.storage.postgres import database, queries


@dataclass(frozen=True)
class Policy:
    """What stays."""

    older_than_days: int
    """What was made or used within so many days stays."""
    releases: int
    """The newest releases that stay, of each corpus and schedule; 0: all."""
    models: int
    """The newest models that stay, likewise, of each kind (with calls, and without)."""
    in_history: bool
    """Whether calls of releases go from Postgres that the history holds."""
    schedules: Sequence[str] | None
    """Names of the schedules that there are; None if that is not known."""


@dataclass(frozen=True)
class Outdated:
    """A release or model that the policy lets go."""

    kind: forgetting.Kind
    publication_id: str
    uri: str


def outdated(connection: Connection, policy: Policy) -> list[Outdated]:
    """The models and releases that the policy lets go, models first."""
    models = database.fetch_all(
        connection,
        queries.retention.old_models,
        newest=policy.models,
        older_than_days=policy.older_than_days,
    )
    releases = database.fetch_all(
        connection,
        queries.retention.old_releases,
        newest=policy.releases,
        older_than_days=policy.older_than_days,
        model_ids=[row.model_id for row in models],
    )
    lapsed = [Outdated("model", row.model_id, row.uri) for row in models]
    return lapsed + [Outdated("release", row.release_id, row.uri) for row in releases]


def follow(settings: Settings, policy: Policy, *, drops: bool) -> Iterator[str]:
    """Do what the policy says, or only say it; a line for each thing, as it comes.

    May be killed and run again.

    Raises:
        HistoryError: with `in_history`, there is no manifest, or it is damaged.
        ObjectStoreError, DatabaseError: what is done stays done.
    """
    # 1. Models and releases.
    with database.transaction(database.connect(settings)) as connection:
        publications = outdated(connection, policy)
    for item in publications:
        if drops:
            forgetting.withdraw(settings, item.kind, item.publication_id)
        yield f"{item.kind} {item.publication_id}: {item.uri}"
    # 2. Recipes, results and answers that nothing uses, such as those of these releases.
    uses = retention.Uses(
        older_than_days=policy.older_than_days,
        schedules=policy.schedules,
        withdrawn=[item.publication_id for item in publications if item.kind == "release"],
    )
    unused = (retention.drop_unused if drops else retention.unused)(settings, uses)
    recipes = list(unused.recipes)
    if policy.in_history:
        names = {recipe.recipe_id for recipe in recipes}
        written = (retention.drop_written if drops else retention.written)(settings, uses)
        recipes += [recipe for recipe in written if recipe.recipe_id not in names]
    yield from _lines(replace(unused, recipes=recipes))
    # 3. The small files of the history.
    fewer = sum(len(group) - 1 for group in history_merging.small_files(settings))
    files = history_merging.merge(settings) if drops else fewer
    on_disk = sum(recipe.bytes for recipe in recipes)
    reused = sum(result.bytes for result in unused.results)
    reused += sum(answer.bytes for answer in unused.answers)
    done = "dropped" if drops else "would be dropped (--yes does it)"
    if publications:
        models = sum(item.kind == "model" for item in publications)
        yield f"{models} models and {len(publications) - models} releases {done}"
    if files:
        yield f"history: {files} small files {'merged' if drops else 'would be merged'}"
    yield f"{len(recipes)} recipes {done}: {on_disk:,} bytes on disk, {reused:,} to be reused by later rows"


def _lines(unused: retention.Unused) -> Iterator[str]:
    for recipe in unused.recipes:
        yield (
            f"{recipe.stage} {recipe.tool} {recipe.recipe_id}: {recipe.documents:,} documents, "
            f"{recipe.bytes:,} bytes on disk"
        )
    for result in unused.results:
        yield (
            f"results {result.tool} {result.tool_version}: {result.results:,}, {result.bytes:,} bytes to be "
            "reused"
        )
    for answer in unused.answers:
        yield f"answers of {answer.proposer}: {answer.answers:,}, {answer.bytes:,} bytes to be reused"
