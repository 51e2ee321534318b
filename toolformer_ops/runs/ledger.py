"""What says that a document is done: its row in `stage_ledger`, in the transaction of its other rows.

Beside it `micro_batches` says what each run did itself, in sums. Owns both tables.
"""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from toolformer_ops.language_model.throughput import Throughput
from toolformer_ops.runs.run_tools import RunTool, kept_tokens
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.database import TableRow


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
        **_network_columns(network),
    )
    rows = database.fetch_all(
        connection, queries.micro_batches.hashes, **run.ids, stage=stage, document_ids=document_ids
    )
    hashes = {row.document_id: row.rows_hash for row in rows}
    key["batch_id"] = batch.batch_id
    ledger = [
        TableRow.of("stage_ledger", outcome, **key, rows_hash=hashes[outcome.document_id])
        for outcome in outcomes
    ]
    if database.insert_rows(connection, ledger) < len(ledger):
        rows = database.fetch_all(connection, queries.micro_batches.ledger, **key, document_ids=document_ids)
        own = {row.document_id for row in rows}
        sums = sums_of([outcome for outcome in outcomes if outcome.document_id in own], tokens)
        database.execute(connection, queries.micro_batches.correct, batch_id=batch.batch_id, **sums)


def _network_columns(network: Throughput | None) -> dict[str, object]:
    """The columns of `micro_batches` that say what language models did; all null if none worked."""
    peak = network.cards.peak if network else None
    return {
        "network_tokens": network.tokens if network else None,
        "network_seconds": network.seconds if network else None,
        "network_operations": network.operations if network else None,
        "peak_operations": peak * network.seconds if network and peak is not None else None,
        "cards": str(network.cards) if network else None,
    }


def sums_of(outcomes: Sequence[DocumentOutcome], tokens: Mapping[uuid.UUID, int]) -> dict[str, object]:
    """The columns of `micro_batches` that are sums over documents, a document without `tokens` counting for none."""
    return {
        "documents": len(outcomes),
        "tokens": sum(tokens.get(outcome.document_id, 0) for outcome in outcomes),
        "rows_written": sum(outcome.rows_written for outcome in outcomes),
        "counts": sum((outcome.counts for outcome in outcomes), Counter[str]()),
        "seconds": sum(outcome.seconds for outcome in outcomes),
    }
