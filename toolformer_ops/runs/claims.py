"""Which process computes a document, and what happens if that kills it.

Owns `claimers`, `document_claims` and `micro_batch_tries`.

Claims: if runs with equal recipes work at the same time, only one computes a document.

A process claims the documents of a micro-batch before it reads what it needs to compute them. Documents that
a process of another run has claimed are left to that process, and the next micro-batch is taken. The claim
goes away with the commit of the micro-batch.

A claim decides who computes and no row: rows follow from the recipe, and the ledger takes each document once.
So nothing depends on a claim that is lost or held twice but the time on the device.

A process puts off the end of its claims every few seconds, from a thread. If it is killed, frozen or cut off,
they end by themselves after `lock_seconds`, and whoever waits for its documents computes them; the next try
of the same run takes them at once.

Tries: a text that kills the process which works on it, by an out-of-memory killer or by a fault in a library,
is set apart. Such a process can say nothing. So before a stage works on a micro-batch it commits a row in
`micro_batch_tries`, which goes away with the commit of the micro-batch, or with a process that ends in order:
by an error, or by SIGTERM. A row that is left is a death. What the next process does with the micro-batch of
such a row:

    fewer than three deaths  works on it again, as it was: a node may have failed, or an operator killed the
                             process
    three or more            halves it; each half is a micro-batch, and one more death halves it again
    one document, alone      gives it up

Such micro-batches come last and one at a time, each after the commit of the one before, so that no other work
is lost or suspected. A document that is given up has its ledger row like any other, and a row in
`failed_documents` with the reason.

A text is at fault only if others pass. If a stage has done no document at all under its recipe, the machine
is too small for the model: that is an error. The process's memory while it loads its model is not the text's
fault, either: a try begins after that.
"""

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError

from toolformer_ops import termination
from toolformer_ops.config import Settings
from toolformer_ops.errors import DatabaseError, DeviceMemoryError, ToolformerError, UsageError
from toolformer_ops.runs.run_tools import RunTool
from toolformer_ops.storage.history import history
from toolformer_ops.storage.postgres import database, queries, sessions
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.storage.postgres.in_use import take_results

logger = logging.getLogger(__name__)

GOES_ON = 4
"""So often within `seconds` a process puts off the end of its claims."""


@dataclass
class Claims:
    """The claims of one stage in one process."""

    engine: Engine
    run: RunTool
    stage: str
    seconds: float
    """After which claims of a process that says nothing end."""
    claimer_id: uuid.UUID | None = None
    """None before anything is claimed."""
    left_to_others: set[uuid.UUID] = field(default_factory=set)
    """Documents that processes of other runs had claimed when this one wanted them."""

    @property
    def own_run(self) -> str:
        """The run whose claims do not count, so that a process takes over from an earlier try at its shard.

        Empty with `until_kept`: then all processes have the same texts, and each claim counts until it ends.
        """
        return self.run.run_id if self.run.last_document_id is None else ""

    @property
    def of_stage(self) -> dict[str, str]:
        """The stage and its recipe, as columns."""
        return {"stage": self.stage, "recipe_id": self.run.recipe_of(self.stage)}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep claims within the block; those that are left are given back after it."""
        claimer = database.fetch_one(
            self.engine,
            queries.claims.begin,
            run_id=self.run.run_id,
            name=sessions.session_name(),
            seconds=self.seconds,
        )
        self.claimer_id = claimer.claimer_id
        is_over = threading.Event()
        thread = threading.Thread(target=self._go_on, args=(is_over,), daemon=True, name="claims")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            try:
                database.execute(self.engine, queries.claims.end, claimer_id=self.claimer_id)
            except DatabaseError as error:
                logger.warning("%s: claims end in %.0f s: %s", self.stage, self.seconds, error)

    def _go_on(self, is_over: threading.Event) -> None:
        while not is_over.wait(self.seconds / GOES_ON):
            # Who computes says that Postgres is away, or that all connections are in use.
            with contextlib.suppress(DatabaseError, NoConnectionFreeError):
                database.execute(
                    self.engine, queries.claims.go_on, claimer_id=self.claimer_id, seconds=self.seconds
                )

    def take(self, document_ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
        """Claim documents; returns those that are this process's now. The others are `left_to_others`."""
        rows = database.fetch_all(
            self.engine,
            queries.claims.take,
            **self.of_stage,
            run_id=self.own_run,
            claimer_id=self.claimer_id,
            document_ids=list(document_ids),
        )
        own = {row.document_id for row in rows}
        self.left_to_others.update(set(document_ids) - own)
        return [document_id for document_id in document_ids if document_id in own]

    def release(self, connection: Connection, document_ids: Sequence[uuid.UUID]) -> None:
        """Give back the claims of documents, with the commit of the connection."""
        if document_ids and self.claimer_id:
            database.execute(
                connection, queries.claims.release, **self.of_stage, document_ids=list(document_ids)
            )

    def wait_for_others(self, poll_seconds: float) -> list[uuid.UUID]:
        """Wait until the documents that were left to others are done.

        Returns those that are neither done nor claimed any more. Returns as soon as there are some of these;
        none: all are done.
        """
        is_told = False
        while self.left_to_others:
            rows = database.fetch_all(
                self.engine,
                queries.claims.undone,
                **self.of_stage,
                run_id=self.own_run,
                document_ids=list(self.left_to_others),
            )
            free = [row.document_id for row in rows if not row.is_claimed]
            self.left_to_others = {row.document_id for row in rows if row.is_claimed}
            if free:
                return free
            if self.left_to_others:
                if not is_told:
                    claimers = database.fetch_all(
                        self.engine,
                        queries.claims.claimers_of,
                        **self.of_stage,
                        document_ids=list(self.left_to_others),
                    )
                    logger.info(
                        "%s: %d documents are computed by another run at this moment (%s): waiting for "
                        "its commit",
                        self.stage,
                        len(self.left_to_others),
                        "; ".join(row.name for row in claimers),
                    )
                    is_told = True
                threading.Event().wait(poll_seconds)
        return []


DEATHS = 3
"""After so many a micro-batch is halved."""
PROCESS_KILLED = "process_killed"
OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True)
class FailedDocument:
    """A document that was given up and is tried again."""

    tool: str
    stage: str
    document_id: uuid.UUID
    reason: str


@dataclass(frozen=True)
class PlannedBatch:
    """Documents that are worked on together."""

    document_ids: Sequence[uuid.UUID]
    deaths: int = 0
    """Processes that died while they worked on these documents."""
    is_given_up: bool = False
    """Whether its one document killed its process alone, too."""
    is_long: bool = False
    """Whether its one document has more tokens than a micro-batch should."""


@dataclass(frozen=True)
class Try:
    """A try whose row was left behind."""

    try_id: int
    document_ids: Sequence[uuid.UUID]


def plan_batches(
    pending: Sequence[uuid.UUID],
    tries: Sequence[Try],
    size: int,
    tokens: Mapping[uuid.UUID, int] = MappingProxyType({}),
    most_tokens: int = 0,
) -> list[PlannedBatch]:
    """Cut documents into micro-batches.

    Long ones come after the others, and last those at which a process died, cut as above.

    Args:
        pending: the documents to be done, in their order.
        tries: those of the stage under the recipe that were left behind, oldest first.
        size: most documents of a micro-batch.
        tokens: of each document, how many tokens it counts for; a document that is not named counts for none.
        most_tokens: most tokens of a micro-batch; a document with more is one alone.
    """
    # 1. The tries of each document. Documents with the same last try were at work together.
    tries_of: dict[uuid.UUID, list[Try]] = {document_id: [] for document_id in pending}
    for left in tries:
        for document_id in tries_of.keys() & left.document_ids:
            tries_of[document_id].append(left)

    # 2. Micro-batches of the documents without one.
    parts: list[list[uuid.UUID]] = []
    batch_tokens = 0
    long: list[PlannedBatch] = []
    together: dict[int, list[uuid.UUID]] = {}
    for document_id in pending:
        own = tokens.get(document_id, 0)
        if tries_of[document_id]:
            together.setdefault(tries_of[document_id][-1].try_id, []).append(document_id)
        elif own > most_tokens > 0:
            long.append(PlannedBatch([document_id], is_long=True))
        else:
            if not parts or len(parts[-1]) == size or batch_tokens + own > most_tokens > 0:
                parts.append([])
                batch_tokens = 0
            parts[-1].append(document_id)
            batch_tokens += own
    batches = [*map(PlannedBatch, parts), *long]

    # 3. Those at which a process died.
    for _, documents in sorted(together.items()):
        deaths = max(len(tries_of[document_id]) for document_id in documents)
        last = tries_of[documents[0]][-1]
        if deaths < DEATHS:
            batches.append(PlannedBatch(documents, deaths))
        elif len(documents) == 1:
            batches.append(PlannedBatch(documents, deaths, is_given_up=len(last.document_ids) == 1))
        else:
            half = len(documents) // 2
            batches += [PlannedBatch(documents[:half], deaths), PlannedBatch(documents[half:], deaths)]
    return batches


@dataclass(frozen=True)
class Tries:
    """The tries of one stage in one process."""

    engine: Engine
    run: RunTool
    stage: str

    @property
    def of_stage(self) -> dict[str, str]:
        """The stage and its recipe, as columns."""
        return {"stage": self.stage, "recipe_id": self.run.recipe_of(self.stage)}

    def left(self, connection: Connection) -> list[Try]:
        """The tries whose rows were left behind, oldest first."""
        return [
            Try(**row._asdict())
            for row in database.fetch_all(
                connection, queries.tries.left, **self.of_stage, run_id=self.run.run_id
            )
        ]

    def forget_done(self) -> None:
        """Delete the tries whose documents are all done by now."""
        database.execute(self.engine, queries.tries.forget_done, **self.of_stage)

    @contextlib.contextmanager
    def begun(self, document_ids: Sequence[uuid.UUID]) -> Iterator[int]:
        """Commit the row of a try before the block, and delete it if the block raises; yields its number.

        After the block it is deleted by `end`, in the transaction that commits the work.
        """
        begun = database.fetch_one(
            self.engine,
            queries.tries.begin,
            **self.run.ids,
            **self.of_stage,
            document_ids=list(document_ids),
        )
        try:
            with termination.farewell(lambda: self.withdraw(begun.try_id)):
                yield begun.try_id
        except BaseException:
            self.withdraw(begun.try_id)
            raise

    def end(self, on: Engine | Connection, try_id: int) -> None:
        """Delete a try with the commit of its work."""
        database.execute(on, queries.tries.end, try_id=try_id)

    def withdraw(self, try_id: int) -> None:
        """Delete a try of this process, which ends and can say so.

        If Postgres is away, the try counts as a death.
        """
        try:
            self.end(self.engine, try_id)
        except ToolformerError as error:
            logger.warning("%s: the try %d stays recorded: %s", self.stage, try_id, error)

    def require_others_done(self, document_id: uuid.UUID, reason: str, *, here: int) -> None:
        """Do nothing if this process or an earlier one has done other documents under the recipe.

        Raises:
            DeviceMemoryError: none was ever done, so that no text is to blame.
        """
        if here or database.fetch_all(self.engine, queries.tries.recipe_has_done, **self.of_stage):
            return
        raise DeviceMemoryError(
            f"{self.stage}: expected memory for a text, found too little for document {document_id} alone "
            f"({reason}), and no other was ever done with this model and these choices. Give the stage more "
            "memory (the pod template's limits, a larger GPU), or take TOOLFORMER_DTYPE=bfloat16 or a "
            "smaller model."
        )

    def failed(self, document_id: uuid.UUID, reason: str, deaths: int) -> TableRow:
        """The row of a document that is given up."""
        logger.warning(
            "%s: document %s is given up (%s, %d processes died at it); `toolformer-ops retry-failed` has "
            "it tried again",
            self.stage, document_id, reason, deaths,
        )  # fmt: skip
        return TableRow.of(
            "failed_documents",
            **self.of_stage,
            run_id=self.run.run_id,
            tool=self.run.tool,
            document_id=document_id,
            reason=reason,
            deaths=deaths,
        )


def retry_failed(settings: Settings, run_id: str) -> list[FailedDocument]:
    """Delete what a run's documents that were given up left behind, so that its next try, or the next run, tries them again.

    Returns the documents. Waits while another process writes the history, which may be reading their rows.

    Raises:
        UsageError: there is no such run.
        DatabaseLockedError: another process has written the history for an hour.
    """
    engine = database.connect(settings)
    with history.writing(engine), database.transaction(engine) as connection:
        if not database.fetch_all(connection, queries.runs.by_id, run_id=run_id):
            raise UsageError(
                f"--run: expected a run, found {run_id!r}. The view run_failed_documents names them."
            )
        take_results(connection)
        database.fetch_all(connection, queries.tries.lock_recipes, run_id=run_id)
        rows = database.fetch_all(connection, queries.tries.retry_failed, run_id=run_id)
    return [FailedDocument(**row._asdict()) for row in rows]
