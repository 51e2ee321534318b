"""How a stage works through its shard: read a run from Postgres, take its undone documents, commit in micro-batches.

While the stage computes a micro-batch, one thread reads the next and one writes the one before, so that a model does not wait for
Postgres (`feed`). Each micro-batch's rows and its `stage_ledger` rows are one transaction, committed in order. A stage that is
killed loses the micro-batch that it computed and the one that was being written, a stage that is told to end (SIGTERM) the first
alone; run again, it starts at the first document without a ledger row. A green task proves nothing: the ledger does.

What is undone is looked for among the documents that no finished work covers (`finished_work`, written by `stages/checking.py`), so
that a night over a million documents that are done reads the new ones alone.
Writes `stage_ledger`, `micro_batches`, and the rows that a stage hands over; what kills its process is the matter of `tries.py`.
"""

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, TypeVar

from sqlalchemy import Connection, Engine

from toolformer_ops.config import MAX_SHARDS, Settings
from toolformer_ops.errors import DeviceMemoryError, ParameterError, TerminationRequest, ToolError
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.start_up import StartUp
from toolformer_ops.runs.tries import OUT_OF_MEMORY, PROCESS_KILLED, PlannedBatch, Tries, plan_batches
from toolformer_ops.storage import database
from toolformer_ops.storage.database import TableRow

logger = logging.getLogger(__name__)

Batch = TypeVar("Batch")
Loaded = TypeVar("Loaded")
Done = TypeVar("Done")

ALL_ORDINALS = 2**31 - 1
"""The exclusive bound of a run without a document limit; no ordinal reaches it."""

MICRO_BATCH_TOKENS = {"cpu": 4_096, "cuda": 32_768}
"""Tokens of a micro-batch by kind of device. The sampler's KV cache holds a text twice, and its calls: so many tokens fill a CPU's
budget (`language_model/memory.py`), and about half of a GPU's, where a kill would else lose more than some minutes of work."""
CHARACTERS_A_TOKEN = 4
"""Of English prose, about."""

Activity = Literal["computing", "reading", "writing", "waiting_for_reading", "waiting_for_writing"]


@dataclass(frozen=True)
class RunTool:
    """One tool in one run, as `start-run` registered it."""

    run_id: str
    tool: str
    corpus_id: str
    corpus_version: int
    """The version of the corpus that the run annotates."""
    ordinal_limit: int
    """Its documents are those of the version with an ordinal below it."""
    choices: RunChoices
    model_identity: str
    tool_version: str
    keep_threshold: float
    reads_record: bool
    """Whether it reads the url and date of a record: its rows are then those of the variant."""
    filter_recipe_id: str
    sampling_recipe_id: str
    execution_recipe_id: str
    scoring_recipe_id: str
    placebo_recipe_id: str | None = None
    """None where the run asks for no placebos, and before their pool is drawn (`stages/placebo.py`)."""
    tau_information: float | None = None
    """Nats of information that a kept call carries at least; None: the paper's keep rule alone."""

    @property
    def recipe_ids(self) -> tuple[str, ...]:
        """The recipes of its stages, in their order; that of the placebos where it has one."""
        four = self.filter_recipe_id, self.sampling_recipe_id, self.execution_recipe_id, self.scoring_recipe_id
        return four if self.placebo_recipe_id is None else (*four, self.placebo_recipe_id)

    @property
    def keep_rule(self) -> dict[str, object]:
        """The parameters of the keep rule in SQL, beside the recipes."""
        return {
            "keep_threshold": self.keep_threshold,
            "tau_information": self.tau_information,
            "placebo_recipe_id": self.placebo_recipe_id,
        }

    def recipe_of(self, stage: str) -> str:
        """The recipe of the stage of that name; of placebos once their pool is drawn."""
        if stage == "placebo":
            if self.placebo_recipe_id is None:
                raise ValueError(f"run {self.run_id}, {self.tool}: expected a pool of placebos, found none")
            return self.placebo_recipe_id
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
    """What a stage did for one document; becomes its ledger row."""

    document_id: uuid.UUID
    rows_written: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass(frozen=True)
class LedgerRow(TableRow):
    """A document that a stage has finished under a recipe."""

    table = "stage_ledger"

    stage: str
    recipe_id: str
    document_id: uuid.UUID
    rows_written: int
    counts: Counter[str]
    seconds: float
    batch_id: int
    rows_hash: uuid.UUID
    """Of the rows that the stage has for the document, as they are in Postgres (sql/queries/rows_hash_*.sql)."""


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
        run_id=run_id,
        tool=tool,
        corpus_id=runs[0].corpus_id,
        corpus_version=runs[0].corpus_version,
        ordinal_limit=ALL_ORDINALS if runs[0].ordinal_limit is None else runs[0].ordinal_limit,
        choices=RunChoices.parse(runs[0].parameters),
        model_identity=runs[0].model_identity,
        tool_version=row.tool_version,
        keep_threshold=row.keep_threshold,
        reads_record=row.reads_record,
        filter_recipe_id=row.filter_recipe_id,
        sampling_recipe_id=row.sampling_recipe_id,
        execution_recipe_id=row.execution_recipe_id,
        scoring_recipe_id=row.scoring_recipe_id,
        placebo_recipe_id=row.placebo_recipe_id,
        tau_information=row.tau_information,
    )


def members_of_run(run: RunTool) -> dict[str, object]:
    """The arguments of the SQL function `members_beyond` for all documents of the run."""
    return {
        "corpus_id": run.corpus_id,
        "at_version": run.corpus_version,
        "below_ordinal": run.ordinal_limit,
        "base_version": 0,
        "base_ordinal": 0,
        "reads_record": run.reads_record,
    }


def members_beyond_finished(
    connection: Connection, run: RunTool, *recipe_ids: str, own_work_too: bool = False
) -> dict[str, object]:
    """The same for the documents of the run that are not finished under all these recipes.

    The finished work of an earlier version of the corpus, or of a run with a document limit, spares what both have in common.
    `own_work_too`: also those that this very run has finished.
    """
    members = members_of_run(run)
    bases = database.fetch_all(
        connection,
        "finished_base",
        recipe_ids=recipe_ids,
        corpus_id=run.corpus_id,
        at_version=run.corpus_version,
        below_ordinal=run.ordinal_limit,
        but_of_run=run.run_id if own_work_too else None,
    )
    return {**members, "base_version": bases[0].version, "base_ordinal": bases[0].ordinal_limit} if bases else members


def unfinished_documents(connection: Connection, run: RunTool) -> tuple[int, int, int]:
    """How many documents of the run are not filtered, how many a filter kept that are not scored, and that lack placebos.

    The last is 0 for a run without a recipe of placebos.
    """
    [found] = database.fetch_all(
        connection,
        "unfinished_documents",
        **members_beyond_finished(connection, run, *run.recipe_ids),
        filter_recipe_id=run.filter_recipe_id,
        scoring_recipe_id=run.scoring_recipe_id,
        placebo_recipe_id=run.placebo_recipe_id,
    )
    return found.unfiltered, found.unscored, found.without_placebos


def documents_after(
    connection: Connection, run: RunTool, shard: Shard, stage: str, previous_stage: str
) -> list[uuid.UUID]:
    """A shard's documents with a kept paragraph that the previous stage has finished and this one has not, in their order."""
    rows = database.fetch_all(
        connection,
        "documents_after_stage",
        **members_beyond_finished(connection, run, run.recipe_of(stage)),
        filter_recipe_id=run.filter_recipe_id,
        stage=stage,
        recipe_id=run.recipe_of(stage),
        previous_stage=previous_stage,
        previous_recipe_id=run.recipe_of(previous_stage),
        shard_index=shard.index,
        shard_count=shard.count,
    )
    return [row.document_id for row in rows]


def kept_tokens(connection: Connection, run: RunTool, document_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    """About how many tokens the filter kept of each document, by its characters: no tokenizer is loaded for it."""
    rows = database.fetch_all(
        connection, "kept_characters", filter_recipe_id=run.filter_recipe_id, document_ids=list(document_ids)
    )
    return {row.document_id: -(-row.characters // CHARACTERS_A_TOKEN) for row in rows}


@dataclass(frozen=True)
class MicroBatch:
    """What a stage computed for some documents."""

    outcomes: list[DocumentOutcome]
    rows: list[TableRow]
    """What the stage writes. A row whose key is in its table already changes nothing."""


@dataclass
class StageWork(ABC, Generic[Loaded]):
    """What one stage does for one shard of a run's documents. Only `undone`, `tokens` and `load` read Postgres.

    `load` and `compute` run in different threads, and `load` may run before the two micro-batches that precede it are written.
    """

    stage: ClassVar[str]
    """Name in `stage_ledger`."""
    run: RunTool
    shard: Shard

    @property
    def recipe_id(self) -> str:
        """The stage's recipe."""
        return self.run.recipe_of(self.stage)

    @abstractmethod
    def undone(self, connection: Connection) -> Sequence[uuid.UUID]:
        """Documents of the shard without a ledger row under the recipe, in the order in which they are to be done."""

    def tokens(self, connection: Connection, document_ids: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, int]:
        """About how many tokens of each document a model reads; none for a stage without one, which counts documents alone."""
        return {}

    @abstractmethod
    def load(self, connection: Connection, documents: Sequence[Document]) -> Loaded:
        """Read what else the documents need."""

    def prepare(self, loaded: Loaded) -> None:
        """Load the model or whatever else computing needs; what happens meanwhile is not put down to the documents."""

    @abstractmethod
    def compute(self, loaded: Loaded) -> MicroBatch:
        """Do the work."""

    @abstractmethod
    def give_up(self, loaded: Loaded, reason: str) -> MicroBatch:
        """What is written for documents that cannot be done: the reason, wherever a later stage or a check expects a row."""


def work_off(
    settings: Settings, engine: Engine, work: StageWork[Loaded], start_up: StartUp | None = None
) -> Counter[str]:
    """Do all undone documents of a shard, micro-batch by micro-batch, each committed with its ledger rows.

    What is undone is asked again before each micro-batch, so that a second run on the same documents repeats little. A text that
    kills its process, or that alone does not fit into memory, is set apart and given up (`tries.py`).
    `start_up` is stored with the first micro-batch after it. Returns the sums of the documents' counts.

    Raises:
        DeviceMemoryError: no text fits into memory.
    """
    run = work.run
    tries = Tries(engine, run_id=run.run_id, tool=run.tool, stage=work.stage, recipe_id=work.recipe_id)
    # 1. What is to be done, and in which micro-batches.
    with database.transaction(engine) as connection:
        pending = list(work.undone(connection))
        batches = plan_batches(
            pending,
            tries.left(connection) if pending else [],
            settings.micro_batch_documents,
            work.tokens(connection, pending),
            settings.micro_batch_tokens or MICRO_BATCH_TOKENS["cpu" if settings.device == "cpu" else "cuda"],
        )
    suspect = sum(len(batch.document_ids) for batch in batches if batch.deaths)
    suspected = f", {suspect} of them in micro-batches at which a process died, which come last" if suspect else ""
    logger.info("%s: %d documents to do%s", work.stage, len(pending), suspected)

    # 2. Do it. Before a micro-batch at which a process died, all is committed that another death would lose, or throw suspicion on.
    shard = _ShardAtWork(engine, work, tries, start_up, documents=len(pending))
    try:
        times = feed(batches, shard.read, shard.compute, shard.write, alone=lambda given: given.planned.deaths > 0)
        shard.give_up_too_large()
        if suspect:
            tries.forget_done()
    except TerminationRequest:
        done = f"{shard.totals['documents']} of {len(pending)} documents are committed"
        logger.info("%s: told to end (SIGTERM): %s, and the micro-batch at work is dropped", work.stage, done)
        raise

    # 3. Say what was done.
    logger.info("%s feeding: %s", work.stage, times)
    counted = ", ".join(f"{name} {count}" for name, count in sorted(shard.totals.items()))
    logger.info("%s done: %s", work.stage, counted or "nothing was left to do")
    if shard.totals["documents"]:
        database.analyze_grown(engine)
    return shard.totals


@dataclass(frozen=True)
class _ReadBatch(Generic[Loaded]):
    """A micro-batch that was read."""

    planned: PlannedBatch
    documents: Sequence[Document]
    """Those that are not done yet."""
    loaded: Loaded


@dataclass
class _ShardAtWork(Generic[Loaded]):
    """The three steps of a micro-batch, each in a thread of its own: `read`, `compute` and `write`."""

    engine: Engine
    work: StageWork[Loaded]
    tries: Tries
    start_up: StartUp | None
    documents: int
    """How many there are to do."""
    totals: Counter[str] = field(default_factory=Counter)
    """Sums of the counts that are committed."""
    started: float = field(default_factory=time.monotonic)
    too_large: list[Document] = field(default_factory=list)
    """Documents that alone do not fit into memory."""

    def read(self, planned: PlannedBatch) -> _ReadBatch[Loaded] | None:
        """The documents of a micro-batch that are not done yet, and what their work needs; None where all are done."""
        with database.transaction(self.engine) as connection:
            rows = database.fetch_all(
                connection,
                "documents_without_ledger",
                stage=self.work.stage,
                recipe_id=self.work.recipe_id,
                document_ids=list(planned.document_ids),
            )
            documents = [
                Document(document_id=row.document_id, text=row.text, url=row.url, document_date=row.document_date)
                for row in rows
            ]
            return _ReadBatch(planned, documents, self.work.load(connection, documents)) if documents else None

    def compute(self, given: _ReadBatch[Loaded]) -> tuple[MicroBatch, int | None]:
        """The micro-batch, with the number of its try; a try begins when the model is loaded."""
        if given.planned.is_given_up:
            return self._given_up(given.documents[0], given.loaded, PROCESS_KILLED, given.planned.deaths), None
        self.work.prepare(given.loaded)
        with self.tries.begun([document.document_id for document in given.documents]) as try_id:
            return self._within_memory(given.documents, given.loaded), try_id

    def write(self, computed: tuple[MicroBatch, int | None]) -> None:
        """Commit a micro-batch, which ends its try."""
        done, try_id = computed
        try:
            with database.transaction(self.engine) as connection:
                database.insert_rows(connection, done.rows)
                if done.outcomes:
                    start_up_seconds = self.start_up.take() if self.start_up else None
                    write_ledger(connection, self.work.run, self.work.stage, done.outcomes, start_up_seconds)
                if try_id is not None:
                    self.tries.end(connection, try_id)
        except BaseException:
            if try_id is not None:
                self.tries.withdraw(try_id)
            raise
        for outcome in done.outcomes:
            self.totals.update(outcome.counts)
            self.totals["documents"] += 1
        elapsed = time.monotonic() - self.started
        logger.info(
            "%s: %d of %d documents, %.0f s", self.work.stage, self.totals["documents"], self.documents, elapsed
        )

    def give_up_too_large(self) -> None:
        """Give up the documents that do not fit into memory: at the end, when it is known whether others do."""
        for document in self.too_large:
            with database.transaction(self.engine) as connection:
                loaded = self.work.load(connection, [document])
            self.write((self._given_up(document, loaded, OUT_OF_MEMORY), None))

    def _within_memory(self, documents: Sequence[Document], loaded: Loaded) -> MicroBatch:
        """The work on the documents; where memory is short on the first half and then on the second, and so on."""
        try:
            return self.work.compute(loaded)
        except (DeviceMemoryError, MemoryError) as error:
            reason = str(error) or type(error).__name__
        # Not within the handler, whose traceback holds what fills the memory.
        if len(documents) == 1:
            self.too_large.extend(documents)
            return MicroBatch([], [])
        logger.warning("%s: out of memory with %d documents, halving: %s", self.work.stage, len(documents), reason)
        half, whole = len(documents) // 2, MicroBatch([], [])
        for part in (documents[:half], documents[half:]):
            with database.transaction(self.engine) as connection:
                loaded = self.work.load(connection, part)
            done = self._within_memory(part, loaded)
            whole = MicroBatch([*whole.outcomes, *done.outcomes], [*whole.rows, *done.rows])
        return whole

    def _given_up(self, document: Document, loaded: Loaded, reason: str, deaths: int = 0) -> MicroBatch:
        self.tries.require_others_done(document.document_id, reason, here=self.totals["documents"])
        done = self.work.give_up(loaded, reason)
        return MicroBatch(done.outcomes, [*done.rows, self.tries.failed(document.document_id, reason, deaths)])


def write_ledger(
    connection: Connection,
    run: RunTool,
    stage: str,
    outcomes: Sequence[DocumentOutcome],
    start_up_seconds: float | None = None,
) -> None:
    """Write the ledger rows of a micro-batch, and what it did by its run; both count a document that is finished already once.

    The stage's own rows are there by now, in the same transaction: the ledger keeps their hash.
    """
    stage_of_run = {"run_id": run.run_id, "tool": run.tool, "stage": stage, "recipe_id": run.recipe_of(stage)}
    [batch] = database.fetch_all(
        connection, "insert_micro_batch", **stage_of_run, **sums_of(outcomes), start_up_seconds=start_up_seconds
    )
    hashes = {
        row.document_id: row.rows_hash
        for row in database.fetch_all(
            connection,
            f"rows_hash_{stage}",
            document_ids=[outcome.document_id for outcome in outcomes],
            filter_recipe_id=run.filter_recipe_id,
            sampling_recipe_id=run.sampling_recipe_id,
            scoring_recipe_id=run.scoring_recipe_id,
            placebo_recipe_id=run.placebo_recipe_id,
            tool=run.tool,
            tool_version=run.tool_version,
        )
    }
    ledger = [
        LedgerRow(
            stage=stage,
            recipe_id=run.recipe_of(stage),
            document_id=outcome.document_id,
            rows_written=outcome.rows_written,
            counts=outcome.counts,
            seconds=outcome.seconds,
            batch_id=batch.batch_id,
            rows_hash=hashes[outcome.document_id],
        )
        for outcome in outcomes
    ]
    if database.insert_rows(connection, ledger) < len(ledger):
        rows = database.fetch_all(
            connection,
            "ledger_of_micro_batch",
            stage=stage,
            recipe_id=run.recipe_of(stage),
            document_ids=[outcome.document_id for outcome in outcomes],
            batch_id=batch.batch_id,
        )
        own = {row.document_id for row in rows}
        sums = sums_of([outcome for outcome in outcomes if outcome.document_id in own])
        database.execute(connection, "correct_micro_batch", batch_id=batch.batch_id, **sums)


def sums_of(outcomes: Sequence[DocumentOutcome]) -> dict[str, object]:
    """The columns of `micro_batches` that are sums over ledger rows."""
    return {
        "documents": len(outcomes),
        "rows_written": sum(outcome.rows_written for outcome in outcomes),
        "counts": sum((outcome.counts for outcome in outcomes), Counter[str]()),
        "seconds": sum(outcome.seconds for outcome in outcomes),
    }


@dataclass
class FeedingTimes:
    """Where the seconds went. Reading and writing happen while something is computed; only waiting for them costs time."""

    computing: float = 0.0
    reading: float = 0.0
    writing: float = 0.0
    waiting_for_reading: float = 0.0
    waiting_for_writing: float = 0.0

    @property
    def share_waited(self) -> float:
        """Share of the time, 0 to 1, in which nothing could be computed."""
        waited = self.waiting_for_reading + self.waiting_for_writing
        return waited / (waited + self.computing) if waited else 0.0

    @contextmanager
    def spent(self, activity: Activity) -> Iterator[None]:
        """Add the block's seconds to an activity; each activity belongs to one thread."""
        started = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, activity, getattr(self, activity) + time.perf_counter() - started)

    def __str__(self) -> str:
        """One line for a log."""
        return (
            f"computed {self.computing:.1f} s, waited {self.waiting_for_reading:.2f} s for reading and "
            f"{self.waiting_for_writing:.2f} s for writing, {self.share_waited:.1%} of the time "
            f"(reading took {self.reading:.2f} s, writing {self.writing:.2f} s)"
        )


def feed(
    batches: Iterable[Batch],
    read: Callable[[Batch], Loaded | None],
    compute: Callable[[Loaded], Done],
    write: Callable[[Done], object],
    alone: Callable[[Loaded], bool] = lambda _: False,
) -> FeedingTimes:
    """Read, compute and write each batch; one that is read as None is passed over. Returns where the time went.

    A batch is read before the two that precede it are written, and computed while the one before is, but for a batch that is to be
    `alone`: all before are written then. An error of any thread ends it all and is raised as it is; what was
    computed until then is written, unless writing is what failed.
    """
    times = FeedingTimes()
    behind: Future[None] | None = None

    def timed_write(done: Done) -> None:
        with times.spent("writing"):
            write(done)

    def wait_for_write() -> None:
        if behind is not None:
            with times.spent("waiting_for_writing"):
                behind.result()

    with ThreadPoolExecutor(1, "reading") as reader, ThreadPoolExecutor(1, "writing") as writer:
        try:
            for loaded in _read_ahead(reader, batches, read, times):
                if alone(loaded):
                    wait_for_write()
                with times.spent("computing"):
                    done = compute(loaded)
                wait_for_write()
                behind = writer.submit(timed_write, done)
        finally:
            wait_for_write()
    return times


def _read_ahead(
    reader: Executor, batches: Iterable[Batch], read: Callable[[Batch], Loaded | None], times: FeedingTimes
) -> Iterator[Loaded]:
    """What is read for each batch, in their order; the next is read while the caller works on one."""

    def timed_read(batch: Batch) -> Loaded | None:
        with times.spent("reading"):
            return read(batch)

    coming = (reader.submit(timed_read, batch) for batch in batches)
    ahead = next(coming, None)
    while ahead is not None:
        with times.spent("waiting_for_reading"):
            loaded = ahead.result()
        ahead = next(coming, None)
        if loaded is not None:
            yield loaded
