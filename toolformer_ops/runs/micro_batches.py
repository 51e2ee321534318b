"""How a stage works off its shard: read a run from Postgres, take its undone documents, commit in micro-batches.

Each micro-batch's rows and its `stage_ledger` rows are one transaction, committed in order while the stage works on the next
(`feeding.py`). A stage that is killed loses the micro-batch it was at and the one being written, and nothing else; run again, it
starts at the first document without a ledger row. A green task proves nothing: the ledger does.
Writes `stage_ledger`; what else a stage writes is its own.
"""

import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine

from toolformer_ops.config import MAX_SHARDS, Settings
from toolformer_ops.errors import ParameterError, ToolError
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.feeding import feed
from toolformer_ops.storage import database

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

LEDGER_COLUMNS = ("stage", "recipe_id", "document_id", "rows_written", "counts", "seconds")


@dataclass(frozen=True)
class RunTool:
    """One tool in one run, as `start-run` registered it."""

    run_id: str
    tool: str
    choices: RunChoices
    model_identity: str
    tool_version: str
    keep_threshold: float
    filter_recipe_id: str
    sampling_recipe_id: str
    execution_recipe_id: str
    scoring_recipe_id: str

    def recipe_of(self, stage: str) -> str:
        """The recipe of the stage of that name."""
        return {
            "filter": self.filter_recipe_id,
            "sample": self.sampling_recipe_id,
            "execute": self.execution_recipe_id,
            "score": self.scoring_recipe_id,
        }[stage]


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count` equal parts of a run's documents, by a hash of their ids."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read `I/N`.

        Raises:
            ParameterError: not two whole numbers with 0 <= I < N <= 256.
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(index) < int(count) <= MAX_SHARDS):
            raise ParameterError(f"--shard: expected I/N with 0 <= I < N <= {MAX_SHARDS}, found {text!r}.")
        return cls(int(index), int(count))


@dataclass
class DocumentOutcome:
    """What one document gave in a stage; becomes its ledger row."""

    document_id: uuid.UUID
    rows_written: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def load_run_tool(connection: Connection, run_id: str, tool: str) -> RunTool:
    """The registered run.

    Raises:
        ParameterError: there is no such run.
        ToolError: the run was started without this tool.
    """
    runs = database.fetch_all(connection, "run_by_id", run_id=run_id)
    if not runs:
        raise ParameterError(f"--run: expected a started run, found {run_id!r}. Run `toolformer-ops stage start-run`.")
    rows = database.fetch_all(connection, "run_tool_by_id", run_id=run_id, tool=tool)
    if not rows:
        raise ToolError(f"run {run_id} was started with {', '.join(runs[0].tools)}, not with {tool!r}.")
    row = rows[0]
    return RunTool(
        run_id,
        tool,
        RunChoices.parse(runs[0].parameters),
        runs[0].model_identity,
        row.tool_version,
        row.keep_threshold,
        row.filter_recipe_id,
        row.sampling_recipe_id,
        row.execution_recipe_id,
        row.scoring_recipe_id,
    )


def documents_after(
    connection: Connection, run: RunTool, shard: Shard, stage: str, previous_stage: str
) -> list[uuid.UUID]:
    """A shard's documents with a kept paragraph that the previous stage has finished and this one has not, in their order."""
    rows = database.fetch_all(
        connection,
        "documents_after_stage",
        run_id=run.run_id,
        filter_recipe_id=run.filter_recipe_id,
        stage=stage,
        recipe_id=run.recipe_of(stage),
        previous_stage=previous_stage,
        previous_recipe_id=run.recipe_of(previous_stage),
        shard_index=shard.index,
        shard_count=shard.count,
    )
    return [row.document_id for row in rows]


class StageWork(Protocol[Loaded]):
    """What one stage does with a micro-batch of documents, in three steps of which only the first and last hold a transaction.

    Each step has a thread of its own. `load` may run before the two micro-batches that precede it are written.
    """

    @property
    def stage(self) -> str:
        """Name in `stage_ledger`."""
        ...

    @property
    def recipe_id(self) -> str:
        """The stage's recipe."""
        ...

    def undone(self, connection: Connection) -> Sequence[uuid.UUID]:
        """Documents of the shard without a ledger row under the recipe, in the order they are to be done."""
        ...

    def load(self, connection: Connection, documents: Sequence[Document]) -> Loaded:
        """Read what else the documents need."""
        ...

    def compute(self, loaded: Loaded) -> "MicroBatch":
        """Do the work; touches no database."""
        ...


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one micro-batch and what each document gave."""

    outcomes: list[DocumentOutcome]
    write: Callable[[Connection], None]
    """Inserts the rows; writing what is there already changes nothing."""


def work_off(settings: Settings, engine: Engine, work: StageWork[Loaded]) -> Counter[str]:
    """Do all undone documents of a shard, micro-batch by micro-batch, each committed with its ledger rows.

    What is undone is asked again before each micro-batch, so that a second run on the same documents repeats little.
    Returns the sums of the documents' counts.
    """
    totals: Counter[str] = Counter()
    started = time.monotonic()
    with database.transaction(engine) as connection:
        pending = list(work.undone(connection))
    logger.info("%s: %d documents to do", work.stage, len(pending))

    def read(batch: Sequence[uuid.UUID]) -> Loaded | None:
        with database.transaction(engine) as connection:
            documents = _still_undone(connection, work, batch)
            return work.load(connection, documents) if documents else None

    def write(done: MicroBatch) -> None:
        with database.transaction(engine) as connection:
            done.write(connection)
            _write_ledger(connection, work, done.outcomes)
        for outcome in done.outcomes:
            totals.update(outcome.counts)
            totals["documents"] += 1
        elapsed = time.monotonic() - started
        logger.info("%s: %d of %d documents, %.0f s", work.stage, totals["documents"], len(pending), elapsed)

    times = feed(_batches(pending, settings.micro_batch_documents), read, work.compute, write)
    logger.info("%s feeding: %s", work.stage, times)
    counted = ", ".join(f"{name} {count}" for name, count in sorted(totals.items()))
    logger.info("%s done: %s", work.stage, counted or "nothing was left to do")
    return totals


def _batches(ids: Sequence[uuid.UUID], size: int) -> Iterator[Sequence[uuid.UUID]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def _still_undone(connection: Connection, work: StageWork[Any], ids: Sequence[uuid.UUID]) -> list[Document]:
    rows = database.fetch_all(
        connection, "documents_without_ledger", stage=work.stage, recipe_id=work.recipe_id, document_ids=list(ids)
    )
    return [Document(row.document_id, row.text, row.url, row.document_date) for row in rows]


def _write_ledger(connection: Connection, work: StageWork[Any], outcomes: Sequence[DocumentOutcome]) -> None:
    rows: list[tuple[Any, ...]] = [
        (work.stage, work.recipe_id, item.document_id, item.rows_written, json.dumps(item.counts), item.seconds)
        for item in outcomes
    ]
    database.copy_insert(connection, "stage_ledger", LEDGER_COLUMNS, rows)
