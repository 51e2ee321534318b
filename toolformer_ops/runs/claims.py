"""Claims: if runs with equal recipes work at the same time, only one computes a document (owns `claimers`, `document_claims`).

A process claims the documents of a micro-batch before it reads what it needs to compute them. Documents that
a process of another run has claimed are left to that process, and the next micro-batch is taken. The claim
goes away with the commit of the micro-batch.

A claim decides who computes and no row: rows follow from the recipe, and the ledger takes each document once.
So nothing depends on a claim that is lost or held twice but the time on the device.

A process puts off the end of its claims every few seconds, from a thread. If it is killed, frozen or cut off,
they end by themselves after `lock_seconds`, and whoever waits for its documents computes them; the next try
of the same run takes them at once.
"""

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError

from toolformer_ops.errors import DatabaseError
from toolformer_ops.runs.run_tools import RunTool
from toolformer_ops.storage.postgres import database, queries, sessions

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
                    self._tell()
                    is_told = True
                threading.Event().wait(poll_seconds)
        return []

    def _tell(self) -> None:
        rows = database.fetch_all(
            self.engine,
            queries.claims.claimers_of,
            **self.of_stage,
            document_ids=list(self.left_to_others),
        )
        logger.info(
            "%s: %d documents are computed by another run at this moment (%s): waiting for its commit",
            self.stage,
            len(self.left_to_others),
            "; ".join(row.name for row in rows),
        )
