"""One tool in one run: its recipes, its keep rule, and the ledger of the documents that are finished.

A document is done if it has a row in `stage_ledger`, in the transaction of its other rows. Beside it
`micro_batches` says what each run did itself, in sums. Owns both tables.

What is not finished is looked for among the documents that no finished work covers (`finished_work`,
written by `audit/checking.py`), so that a night over a million documents that are done reads the new ones
alone. Reads `annotation_runs`, `run_tools`, `finished_work`.
"""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Engine, Row

from toolformer_ops.config import MOST_SHARDS, Settings
from toolformer_ops.errors import ToolError, UsageError
from toolformer_ops.language_model.throughput import Throughput
from toolformer_ops.runs.choices import RunChoices, registered_name
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.tools.registry import get_tool

NO_LIMIT = 2**31 - 1
"""The exclusive bound of a run without a document limit; no ordinal reaches it."""
RECIPE_OF_STAGE: Mapping[str, str] = MappingProxyType(
    {
        "filter": "filter_recipe_id",
        "sample": "sampling_recipe_id",
        "execute": "execution_recipe_id",
        "score": "scoring_recipe_id",
        "placebo": "placebo_recipe_id",
    }
)
"""The stages with recipes, in their order, each with the column of `run_tools` that holds its recipe."""


@dataclass(frozen=True)
class RunTool:
    """One tool in one run, as `start-run` registered it."""

    run_id: str
    tool: str
    corpus_id: str
    corpus_version: int
    """The version of the corpus that the run annotates."""
    ordinal_limit: int
    """It takes the documents of the version with an ordinal below it."""
    choices: RunChoices
    model_identity: str
    tool_version: str
    keep_threshold: float
    reads_record: bool
    """Whether it reads the url and date of a record: its rows then belong to the variant."""
    filter_recipe_id: str
    sampling_recipe_id: str
    execution_recipe_id: str
    scoring_recipe_id: str
    placebo_recipe_id: str | None = None
    """None if the run asks for no placebos, and before their pool is drawn (`stages/placebo.py`)."""
    chained_release_id: str | None = None
    """The release over whose texts the run goes, with chains."""
    keep_rule: str = "paper"
    """In whose unit `keep_threshold` is."""
    proposer_identity: str | None = None
    """The model behind an endpoint that samples; None: the language model."""
    last_document_id: uuid.UUID | None = None
    """Only texts with an id up to this one, with `until_kept`; None: all."""

    @property
    def recipe_ids(self) -> tuple[str, ...]:
        """The recipes of its stages, in their order; that of the placebos if it has one."""
        recipe_ids = [getattr(self, column) for column in RECIPE_OF_STAGE.values()]
        return tuple(filter(None, recipe_ids))

    @property
    def ids(self) -> dict[str, object]:
        """Parameters for queries, by column; a query ignores the ones that it does not name."""
        names = ("run_id", "tool", "tool_version", "corpus_id", *RECIPE_OF_STAGE.values())
        return {name: getattr(self, name) for name in names}

    def recipe_of(self, stage: str) -> str:
        """The recipe of the stage of that name; of placebos once their pool is drawn."""
        if stage == "placebo":
            if self.placebo_recipe_id is None:
                raise ValueError(f"run {self.run_id}, {self.tool}: expected a pool of placebos, found none")
            return self.placebo_recipe_id
        recipe_id: str = getattr(self, RECIPE_OF_STAGE[stage])
        return recipe_id


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count` equal parts of a run's documents, by a hash of their ids."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read `I/N`.

        Raises:
            UsageError: not two whole numbers with 0 <= I < N <= 1024.
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(index) < int(count) <= MOST_SHARDS):
            raise UsageError(f"--shard: expected I/N with 0 <= I < N <= {MOST_SHARDS}, found {text!r}.")
        return cls(int(index), int(count))


def require_run(on: Engine | Connection, run_id: str) -> Row[Any]:
    """The row of a registered run in `annotation_runs`.

    Raises:
        UsageError: there is no such run.
    """
    runs = database.fetch_all(on, queries.runs.by_id, run_id=run_id)
    if not runs:
        raise UsageError(
            f"expected a started run, found {run_id!r}. `toolformer-ops stage start-run` starts one; the "
            "table annotation_runs lists them."
        )
    return runs[0]


def below_ordinal(limit: int | None) -> int:
    """The exclusive bound of a run's documents, by its column `ordinal_limit`."""
    return NO_LIMIT if limit is None else limit


def load_run_tool(connection: Connection, run_id: str, tool: str) -> RunTool:
    """The registered run.

    Raises:
        UsageError: there is no such run.
        ToolError: the run was started without this tool.
    """
    run = require_run(connection, run_id)
    rows = database.fetch_all(connection, queries.runs.tool, run_id=run_id, tool=tool)
    if not rows:
        raise ToolError(f"run {run_id} was started with {', '.join(run.tools)}, not with {tool!r}.")
    return RunTool(
        **rows[0]._asdict(),
        corpus_id=run.corpus_id,
        corpus_version=run.corpus_version,
        ordinal_limit=below_ordinal(run.ordinal_limit),
        choices=RunChoices.of_run(run.parameters),
        model_identity=run.model_identity,
        chained_release_id=run.chained_release_id,
    )


def open_run_tool(settings: Settings, run_id: str, tool_name: str) -> tuple[Engine, RunTool]:
    """The registered run, and an engine for what a stage does for it.

    Raises:
        UsageError, ToolError: as `load_run_tool`; also if the tool is gone since the run started.
    """
    engine = database.connect(settings)
    return engine, require_run_tool(engine, run_id, tool_name)


def require_run_tool(engine: Engine, run_id: str, tool_name: str) -> RunTool:
    """The registered run, whose tool is still there. Raises as `open_run_tool`."""
    with database.transaction(engine) as connection:
        run = load_run_tool(connection, run_id, registered_name(tool_name))
    try:
        get_tool(run.tool)
    except ToolError as error:
        raise ToolError(f"run {run_id} was started with {run.tool}, which is gone: {error}") from error
    return run


def load_run_tools(connection: Connection, run_id: str) -> list[RunTool]:
    """All registered tools of a run, by name."""
    rows = database.fetch_all(connection, queries.numbers.tools, run_id=run_id)
    return [load_run_tool(connection, run_id, row.tool) for row in rows]


def members_of_run(run: RunTool) -> dict[str, object]:
    """All documents of the run, as the SQL function `members_to_do` takes them."""
    return {
        "corpus_id": run.corpus_id,
        "at_version": run.corpus_version,
        "below_ordinal": run.ordinal_limit,
        "base_version": 0,
        "base_ordinal": 0,
        "reads_record": run.reads_record,
        "last_document_id": run.last_document_id and str(run.last_document_id),
    }


def members_beyond_finished(
    connection: Connection, run: RunTool, *recipe_ids: str, own_work_too: bool = False
) -> dict[str, object]:
    """The arguments for the documents of the run that are not finished under all these recipes.

    The finished work of an earlier version of the corpus, or of a run with a document limit, spares what both
    have in common.
    `own_work_too`: also those that this very run has finished.
    """
    members = members_of_run(run)
    bases = database.fetch_all(
        connection,
        queries.runs.finished_base,
        recipe_ids=recipe_ids,
        corpus_id=run.corpus_id,
        at_version=run.corpus_version,
        below_ordinal=run.ordinal_limit,
        but_of_run=run.run_id if own_work_too else None,
    )
    return (
        {**members, "base_version": bases[0].version, "base_ordinal": bases[0].ordinal_limit}
        if bases
        else members
    )


def unfinished_documents(connection: Connection, run: RunTool) -> tuple[int, int, int]:
    """How many documents of the run are not filtered, how many a filter kept that are not scored, and that lack placebos.

    The last is 0 for a run without a recipe of placebos.
    """
    unfinished = database.fetch_one(
        connection,
        queries.undone.unfinished,
        **run.ids,
        members=members_beyond_finished(connection, run, *run.recipe_ids),
    )
    return unfinished.unfiltered, unfinished.unscored, unfinished.without_placebos


def has_work_left(connection: Connection, run: RunTool) -> bool:
    """Whether a document lacks rows, or the pool of placebos is not drawn."""
    pool_is_missing = run.placebo_recipe_id is None and run.choices.wants_placebos
    return pool_is_missing or any(unfinished_documents(connection, run))


def documents_after(
    connection: Connection, run: RunTool, shard: Shard, stage: str, previous_stage: str
) -> list[uuid.UUID]:
    """A shard's documents with a kept paragraph that the previous stage has finished and this one has not, in their order."""
    rows = database.fetch_all(
        connection,
        queries.undone.after_stage,
        members=members_beyond_finished(connection, run, run.recipe_of(stage)),
        filter_recipe_id=run.filter_recipe_id,
        stage=stage,
        recipe_id=run.recipe_of(stage),
        previous_stage=previous_stage,
        previous_recipe_id=run.recipe_of(previous_stage),
        shard_index=shard.index,
        shard_count=shard.count,
    )
    return [row.document_id for row in rows]


def kept_tokens(
    connection: Connection, run: RunTool, document_ids: Sequence[uuid.UUID]
) -> dict[uuid.UUID, int]:
    """About how many tokens the filter kept of each document, by its characters: no tokenizer is loaded for it."""
    rows = database.fetch_all(
        connection,
        queries.undone.kept_tokens,
        filter_recipe_id=run.filter_recipe_id,
        document_ids=list(document_ids),
    )
    return {row.document_id: row.tokens for row in rows}


@dataclass
class DocumentOutcome:
    """What a stage did for one document; becomes its ledger row."""

    document_id: uuid.UUID
    rows_written: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def write_ledger(
    connection: Connection,
    run: RunTool,
    stage: str,
    outcomes: Sequence[DocumentOutcome],
    start_up_seconds: float | None = None,
    *,
    network: Throughput | None = None,
) -> None:
    """Write the ledger rows of a micro-batch, and what it did by its run.

    Both count a document that is finished already once. The stage's own rows are there by now, in the same
    transaction: the ledger keeps their hash.
    """
    # 1. The micro-batch: sums over its documents, and what language models did, null if none worked.
    peak = network.cards.peak if network else None
    network_columns = {
        "network_tokens": network.tokens if network else None,
        "network_seconds": network.seconds if network else None,
        "network_operations": network.operations if network else None,
        "peak_operations": peak * network.seconds if network and peak is not None else None,
        "cards": str(network.cards) if network else None,
    }
    document_ids = [outcome.document_id for outcome in outcomes]
    tokens = kept_tokens(connection, run, document_ids)
    key = {"stage": stage, "recipe_id": run.recipe_of(stage)}
    batch = database.fetch_one(
        connection,
        queries.micro_batches.insert,
        **run.ids,
        **key,
        **sums_of(outcomes, tokens),
        start_up_seconds=start_up_seconds,
        **network_columns,
    )
    # 2. The ledger row of each document.
    rows = database.fetch_all(
        connection, queries.micro_batches.hashes, **run.ids, stage=stage, document_ids=document_ids
    )
    hashes = {row.document_id: row.rows_hash for row in rows}
    key["batch_id"] = batch.batch_id
    ledger = [
        TableRow.of("stage_ledger", outcome, **key, rows_hash=hashes[outcome.document_id])
        for outcome in outcomes
    ]
    # 3. What was finished already counts for nothing here.
    if database.insert_rows(connection, ledger) < len(ledger):
        rows = database.fetch_all(connection, queries.micro_batches.ledger, **key, document_ids=document_ids)
        own = {row.document_id for row in rows}
        sums = sums_of([outcome for outcome in outcomes if outcome.document_id in own], tokens)
        database.execute(connection, queries.micro_batches.correct, batch_id=batch.batch_id, **sums)


def sums_of(outcomes: Sequence[DocumentOutcome], tokens: Mapping[uuid.UUID, int]) -> dict[str, object]:
    """The columns of `micro_batches` that are sums over documents, a document without `tokens` counting for none."""
    return {
        "documents": len(outcomes),
        "tokens": sum(tokens.get(outcome.document_id, 0) for outcome in outcomes),
        "rows_written": sum(outcome.rows_written for outcome in outcomes),
        "counts": sum((outcome.counts for outcome in outcomes), Counter[str]()),
        "seconds": sum(outcome.seconds for outcome in outcomes),
    }
