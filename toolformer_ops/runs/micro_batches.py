"""How a stage works through its shard: take the undone documents, compute, commit in micro-batches.

While the stage computes a micro-batch, one thread reads the next and one writes the one before, so that a
model does not wait for Postgres (`feeding.py`). Each micro-batch's rows and its `stage_ledger` rows
(`run_tools.py`) are one transaction, committed in order. A stage that is killed loses the micro-batch that it
computed and what was being written, a stage that is told to end (SIGTERM) the first alone; run again, it
starts at the first document without a ledger row. A green task proves nothing: the ledger does.

A stage may work in rounds of some minutes, so that the stages after it need not wait for all of its shard
(`stages/annotating.py`). A text that is longer than a micro-batch, or at which a process died, begins a
round: the stages after have done all before it by then.

Where losses are verified in float32 though the device may lack room for both weights (`verify_in_float32` on
or all), a shard is one round, and the stages that ask for float32 have micro-batches as large as most shards:
weights take turns once in each.

Writes the rows that a stage hands over; `claims.py` is about runs with equal recipes at the same time, and
about what kills a process.
"""

import contextlib
import logging
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

import psutil
from sqlalchemy import Connection, Engine, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import DeviceMemoryError, TerminationRequest
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, device_kind
from toolformer_ops.language_model.throughput import WORK, NetworkWork, Throughput, cards_of
from toolformer_ops.records import Document
from toolformer_ops.runs.claims import (
    OUT_OF_MEMORY,
    PROCESS_KILLED,
    Claims,
    PlannedBatch,
    Tries,
    plan_batches,
)
from toolformer_ops.runs.feeding import FeedingTimes, feed
from toolformer_ops.runs.run_tools import (
    DocumentOutcome,
    RunTool,
    Shard,
    documents_after,
    kept_tokens,
    write_ledger,
)
from toolformer_ops.storage.postgres import database, partitions, queries
from toolformer_ops.storage.postgres.database import TableRow

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

POLL_SECONDS = 2.0
"""Between two looks at documents that another run computes."""
PARTS_OF_A_SHARD = 8
LEAST_SHARE_OF_A_PASS = 0.25
"""Where a model on a CPU reads the documents of a shard, a micro-batch is at most such a part of them, so that a
person who waits for a small run sees it move; but not less than fills such a share of a pass. Measured with
texts of 35 tokens: micro-batches of 2 take 40 % more time than one of 14, those of 4 take 10 %, of 7 nothing. A
GPU is given what fills it."""
ROUND_SECONDS = 300.0
"""A round takes so long at least: to ask what is undone takes each stage 1.4 CPU s a round with 1,000,000
documents."""


@dataclass(frozen=True)
class MicroBatch:
    """What a stage computed for some documents."""

    outcomes: list[DocumentOutcome]
    rows: list[TableRow]
    """What the stage writes. A row whose key is in its table already changes nothing."""
    counts_on: frozenset[uuid.UUID] = frozenset()
    """Keys of rows that other micro-batches wrote, and without which this one is wrong."""


class StartUp:
    """The seconds that this process took before it could work: from its start, with all imports, to the end of loading its model.

    They are stored once, with its first micro-batch: `stages/planning.py` makes shards of which the start-up
    is a small part.
    """

    def __init__(self, *, loads_model: bool = True) -> None:
        self._seconds = max(0.0, time.time() - psutil.Process().create_time())
        self._is_over = not loads_model
        self._to_store = [self._seconds] if self._is_over else []

    def has_loaded(self, seconds: float) -> None:
        """Add the seconds that the model took to load: the start-up is over.

        The numbers of a second model do not count.
        """
        if not self._is_over:
            self._is_over = True
            self._to_store.append(self._seconds + seconds)

    def take(self) -> float | None:
        """The seconds, once: None before the start-up is over, and to all who ask after the first."""
        return self._to_store.pop() if self._to_store else None


@dataclass
class StageWork(ABC, Generic[Loaded]):
    """What one stage does for one shard of a run's documents. Only `undone` and `load` read Postgres.

    `load` and `compute` run in different threads, and `load` may run before the
    `feeding.UNWRITTEN_BATCHES` that precede it are written.
    """

    stage: ClassVar[str]
    """Name in `stage_ledger`."""
    after: ClassVar[str] = ""
    """Name of the stage that has finished a document before; empty for the first one."""
    counts_tokens: ClassVar[bool] = False
    """Whether a model reads the kept paragraphs: micro-batches are then cut by their tokens, too, else by
    documents alone."""
    asks_float32: ClassVar[bool] = False
    """Whether it computes losses in float32 as well if the run verifies them."""
    run: RunTool
    shard: Shard

    @property
    def recipe_id(self) -> str:
        """The stage's recipe."""
        return self.run.recipe_of(self.stage)

    @property
    def claims_documents(self) -> bool:
        """Whether processes claim documents, and so share them: not where a claim costs more."""
        return True

    def undone(self, connection: Connection) -> Sequence[uuid.UUID]:
        """Documents of the shard without a ledger row under the recipe, in the order in which they are to be done."""
        return documents_after(connection, self.run, self.shard, self.stage, self.after)

    def rows_of(
        self, connection: Connection, statement: queries.Statement, documents: Sequence[Document]
    ) -> dict[uuid.UUID, list[Row[Any]]]:
        """The rows that a statement returns for these documents and the run's ids, by document and in their order."""
        rows_by_document: dict[uuid.UUID, list[Row[Any]]] = {
            document.document_id: [] for document in documents
        }
        for row in database.fetch_all(
            connection, statement, **self.run.ids, document_ids=list(rows_by_document)
        ):
            rows_by_document[row.document_id].append(row)
        return rows_by_document

    @abstractmethod
    def load(self, connection: Connection, documents: Sequence[Document]) -> Loaded:
        """Read what else the documents need."""

    def prepare(self, loaded: Loaded) -> None:
        """Load what computing needs, such as the model.

        A process that dies here is not counted against the documents.
        """

    @abstractmethod
    def compute(self, loaded: Loaded) -> MicroBatch:
        """Do the work."""

    @abstractmethod
    def give_up(self, loaded: Loaded, reason: str) -> MicroBatch:
        """What is written for documents that cannot be done: the reason, wherever a later stage or a check expects a row."""

    def is_current(self, connection: Connection, batch: MicroBatch) -> bool:
        """Whether the rows that a micro-batch counts on are there until the transaction ends, which commits it."""
        return True

    def begin_again(self) -> None:
        """Called before the documents of dropped micro-batches are done again; all others are committed."""


def work_off(
    settings: Settings,
    engine: Engine,
    work: StageWork[Loaded],
    start_up: StartUp | None = None,
    *,
    most_documents: int | None = None,
    after_round: Callable[[bool], object] | None = None,
    waits_for_others: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Counter[str]:
    """Do all undone documents of a shard, micro-batch by micro-batch, each committed with its ledger rows.

    Documents that a process of another run computes at this moment are left to it (`claims.py`). A text that
    kills its process, or that alone does not fit into memory, is set apart and given up.

    Args:
        settings: of the deployment.
        engine: of its database.
        work: what the stage does.
        start_up: what the process took to start; it is stored with the first micro-batch after it.
        most_documents: the most documents of a micro-batch; None: as the settings say.
        after_round: called whenever a round is committed, with whether it was the last; without it all is one
            round.
        waits_for_others: whether to return only when the documents that were left to others are done, too.
        clock: seconds.

    Returns:
        the sums of the documents' counts.

    Raises:
        DeviceMemoryError: no text fits into memory.
    """
    tries = Tries(engine, work.run, work.stage)
    claims = Claims(engine, work.run, work.stage, settings.lock_seconds)
    limits = _Limits.of(settings, work, most_documents)
    shard = _ShardAtWork(
        engine=engine,
        work=work,
        tries=tries,
        claims=claims,
        start_up=start_up,
        clock=clock,
        limits=limits,
        settings=settings,
    )
    times = FeedingTimes()
    round_seconds = limits.round_seconds if after_round else math.inf
    finish_round = after_round or (lambda _: None)
    # 1. What is to be done, and in which micro-batches.
    left = shard.plan()
    # 2. Do it. Before a micro-batch at which a process died, all is committed that another death would lose,
    #    or throw suspicion on.
    with claims.held() if left and work.claims_documents else contextlib.nullcontext():
        try:
            while True:
                feed(
                    _round(left, round_seconds, clock),
                    shard.read,
                    shard.compute,
                    shard.write,
                    alone=lambda batch: batch.planned.deaths > 0,
                    times=times,
                )
                if left:
                    finish_round(False)
                    continue
                shard.give_up_too_large()
                if shard.dropped:
                    left = shard.plan(shard.take_dropped())
                    continue
                if shard.suspect:
                    tries.forget_done()
                if not (claims.left_to_others and waits_for_others):
                    break
                # 3. What others have claimed is theirs, unless they end without having done it.
                finish_round(False)
                left = shard.plan(claims.wait_for_others(POLL_SECONDS))
        except TerminationRequest:
            done = f"{shard.totals['documents']} of {shard.documents} documents are committed"
            logger.info(
                "%s: told to end (SIGTERM): %s, and the micro-batch at work is dropped", work.stage, done
            )
            raise
        finally:
            for try_id in shard.unwritten:
                tries.withdraw(try_id)
    finish_round(True)

    shard.say_what_was_done(times)
    if shard.totals["documents"]:
        partitions.analyze_grown(engine)
    return shard.totals


@dataclass(frozen=True)
class _Limits:
    """How much a micro-batch may hold, and how long a round lasts."""

    documents: int
    """The most documents of a micro-batch."""
    tokens: int
    """The most tokens of a micro-batch of several documents."""
    least_tokens: float | None
    """Documents of so many tokens at least are a micro-batch of a small shard; None: however small the shard, a
    micro-batch is as large as can be."""
    round_seconds: float
    """A round takes so long at least."""

    @classmethod
    def of(cls, settings: Settings, work: StageWork[Any], most_documents: int | None) -> "_Limits":
        """As the settings and the device say, or at most so many documents.

        A micro-batch that gathers losses in float32 is as large as several of the others.
        """
        takes_turns = settings.dtype != "float32" and work.run.choices.verify_in_float32 in ("on", "all")
        sizes = BATCH_SIZES[device_kind(settings.device)]
        gathered = sizes.gathered if takes_turns and work.asks_float32 else 1
        is_shown = work.counts_tokens and not takes_turns and device_kind(settings.device) == "cpu"
        return cls(
            documents=gathered * (most_documents or settings.micro_batch_documents),
            tokens=gathered * (settings.micro_batch_tokens or sizes.micro_batch_tokens),
            least_tokens=LEAST_SHARE_OF_A_PASS * sizes.pass_tokens if is_shown else None,
            round_seconds=math.inf if takes_turns else ROUND_SECONDS,
        )


def _round(left: deque[PlannedBatch], seconds: float, clock: Callable[[], float]) -> Iterator[PlannedBatch]:
    """Take the micro-batches of a round: until it has lasted `seconds`, or up to a micro-batch that begins a round."""
    started = clock()
    while left:
        yield left.popleft()
        if (
            seconds < math.inf
            and left
            and (left[0].is_long or left[0].deaths or clock() - started >= seconds)
        ):
            return


@dataclass(frozen=True)
class _ReadBatch(Generic[Loaded]):
    """A micro-batch that was read."""

    planned: PlannedBatch
    documents: Sequence[Document]
    """The documents that are not done yet."""
    loaded: Loaded


@dataclass(frozen=True)
class _ComputedBatch:
    """A micro-batch that was computed."""

    done: MicroBatch
    try_id: int | None = None
    """The number of the try at it; None for what was given up."""
    network: Throughput | None = None
    """What language models did; None if none worked."""


@dataclass(kw_only=True)
class _ShardAtWork(Generic[Loaded]):
    """The three steps of a micro-batch, each in a separate thread: `read`, `compute` and `write`."""

    engine: Engine
    work: StageWork[Loaded]
    tries: Tries
    claims: Claims
    start_up: StartUp | None
    clock: Callable[[], float]
    limits: _Limits
    documents: int = 0
    """How many there are to do."""
    suspect: int = 0
    """How many of them are in micro-batches at which a process died."""
    tokens: dict[uuid.UUID, int] = field(default_factory=dict)
    """About how many tokens each has, if a model reads them."""
    totals: Counter[str] = field(default_factory=Counter)
    """Sums of the counts that are committed."""
    tokens_done: int = 0
    too_large: list[Document] = field(default_factory=list)
    """Documents that alone do not fit into memory."""
    settings: Settings
    network: NetworkWork = field(default_factory=NetworkWork)
    """What language models have computed."""
    network_seconds: float = 0.0
    """How long that took, with what is not theirs."""
    dropped: list[uuid.UUID] = field(default_factory=list)
    """Documents of micro-batches that were computed from rows that were deleted before the commit."""
    unwritten: set[int] = field(default_factory=set)
    """Tries of micro-batches that are computed and not committed."""

    def __post_init__(self) -> None:
        self.started = self.clock()

    def say_what_was_done(self, times: FeedingTimes) -> None:
        """Log where the time went, how fast models read, and the sums of the counts."""
        stage = self.work.stage
        logger.info("%s feeding: %s", stage, times)
        if self.network.tokens:
            throughput = self.network.in_seconds(self.network_seconds, cards_of(self.settings))
            logger.info("%s network: read %d tokens, %s", stage, self.network.tokens, throughput)
        counted = ", ".join(f"{name} {count}" for name, count in sorted(self.totals.items()))
        logger.info("%s done: %s", stage, counted or "nothing was left to do")

    def plan(self, documents: Sequence[uuid.UUID] | None = None) -> deque[PlannedBatch]:
        """The micro-batches of these documents; None: of all that are undone."""
        with database.transaction(self.engine) as connection:
            pending = list(self.work.undone(connection) if documents is None else documents)
            tokens = kept_tokens(connection, self.work.run, pending) if self.work.counts_tokens else {}
            left_tries = self.tries.left(connection) if pending else []
        size = self.limits.documents
        if self.limits.least_tokens is not None and tokens:
            part = len(pending) / PARTS_OF_A_SHARD
            fills_pass = self.limits.least_tokens * len(pending) / max(1, sum(tokens.values()))
            size = min(size, math.ceil(max(part, fills_pass)))
        batches = plan_batches(pending, left_tries, size, tokens, self.limits.tokens)
        suspect = sum(len(batch.document_ids) for batch in batches if batch.deaths)
        self.documents += len(pending)
        self.suspect += suspect
        self.tokens.update(tokens)
        if pending or documents is None:
            suspected = (
                f", {suspect} of them in micro-batches at which a process died, which come last"
                if suspect
                else ""
            )
            logger.info("%s: %d documents to do%s", self.work.stage, len(pending), suspected)
        return deque(batches)

    def read(self, planned: PlannedBatch) -> _ReadBatch[Loaded] | None:
        """The documents of a micro-batch that are to be done here, and what their work needs.

        It is None if there are none.
        """
        document_ids = list(planned.document_ids)
        if self.work.claims_documents:
            document_ids = self.claims.take(document_ids)
        # In a transaction of its own: what another process has finished before the claim is seen.
        with database.transaction(self.engine) as connection:
            rows = database.fetch_all(
                connection,
                queries.undone.without_ledger,
                stage=self.work.stage,
                recipe_id=self.work.recipe_id,
                document_ids=document_ids,
            )
            documents = [Document(**row._asdict()) for row in rows]
            undone = {document.document_id for document in documents}
            self.claims.release(connection, [item for item in document_ids if item not in undone])
            return (
                _ReadBatch(planned, documents, self.work.load(connection, documents)) if documents else None
            )

    def compute(self, batch: _ReadBatch[Loaded]) -> "_ComputedBatch":
        """The micro-batch, with the number of its try; a try begins when the model is loaded."""
        if batch.planned.is_given_up:
            given_up = self._given_up(batch.documents[0], batch.loaded, PROCESS_KILLED, batch.planned.deaths)
            return _ComputedBatch(given_up)
        self.work.prepare(batch.loaded)
        with self.tries.begun([document.document_id for document in batch.documents]) as try_id:
            before, started = replace(WORK), time.perf_counter()
            # If memory is short, the first half and then the second, and so on.
            done = MicroBatch([], [])
            parts: list[Sequence[Document]] = [batch.documents]
            while parts:
                part = parts.pop()
                loaded = batch.loaded
                if part is not batch.documents:
                    with database.transaction(self.engine) as connection:
                        loaded = self.work.load(connection, part)
                try:
                    own = self.work.compute(loaded)
                except (DeviceMemoryError, MemoryError) as error:
                    reason = str(error) or type(error).__name__
                else:
                    done = MicroBatch(
                        [*done.outcomes, *own.outcomes],
                        [*done.rows, *own.rows],
                        done.counts_on | own.counts_on,
                    )
                    continue
                # Not within the handler, whose traceback holds what fills the memory.
                if len(part) == 1:
                    self.too_large.extend(part)
                    continue
                logger.warning(
                    "%s: out of memory with %d documents, halving: %s", self.work.stage, len(part), reason
                )
                half = len(part) // 2
                parts += [part[half:], part[:half]]
            network, seconds = WORK.since(before), time.perf_counter() - started
            self.network.add(network)
            self.network_seconds += seconds
            self.unwritten.add(try_id)
        throughput = network.in_seconds(seconds, cards_of(self.settings)) if network.tokens else None
        return _ComputedBatch(done, try_id, throughput)

    def write(self, computed: "_ComputedBatch") -> None:
        """Commit a micro-batch, which ends its try."""
        done, try_id = computed.done, computed.try_id
        with database.transaction(self.engine) as connection:
            is_current = self.work.is_current(connection, done)
            if is_current:
                database.insert_rows(connection, done.rows)
            if is_current and done.outcomes:
                start_up_seconds = self.start_up.take() if self.start_up else None
                write_ledger(
                    connection,
                    self.work.run,
                    self.work.stage,
                    done.outcomes,
                    start_up_seconds,
                    network=computed.network,
                )
            self.claims.release(connection, [outcome.document_id for outcome in done.outcomes])
            if try_id is not None:
                self.tries.end(connection, try_id)
        self.unwritten.discard(try_id)
        if not is_current:
            self.dropped.extend(outcome.document_id for outcome in done.outcomes)
            logger.warning(
                "%s: %d documents are done again: rows that they count on were deleted meanwhile",
                self.work.stage, len(done.outcomes),
            )  # fmt: skip
            return
        for outcome in done.outcomes:
            self.totals.update(outcome.counts)
            self.totals["documents"] += 1
            self.tokens_done += self.tokens.get(outcome.document_id, 0)
        token_progress = f", {self.tokens_done} of {sum(self.tokens.values())} tokens" if self.tokens else ""
        logger.info(
            "%s: %d of %d documents%s, %.0f s",
            self.work.stage, self.totals["documents"], self.documents, token_progress, self.clock() - self.started,
        )  # fmt: skip

    def take_dropped(self) -> list[uuid.UUID]:
        """The documents that are to be done again; asked while nothing is under way."""
        dropped, self.dropped = self.dropped, []
        self.documents -= len(dropped)  # they are planned again
        self.work.begin_again()
        return dropped

    def give_up_too_large(self) -> None:
        """Give up the documents that do not fit into memory: at the end, when it is known whether others do."""
        too_large, self.too_large = self.too_large, []
        for document in too_large:
            with database.transaction(self.engine) as connection:
                loaded = self.work.load(connection, [document])
            self.write(_ComputedBatch(self._given_up(document, loaded, OUT_OF_MEMORY)))

    def _given_up(self, document: Document, loaded: Loaded, reason: str, deaths: int = 0) -> MicroBatch:
        self.tries.require_others_done(document.document_id, reason, here=self.totals["documents"])
        done = self.work.give_up(loaded, reason)
        failed = self.tries.failed(document.document_id, reason, deaths)
        return replace(done, rows=[*done.rows, failed])
