"""Store a run's numbers when it finishes. Later runs and later versions of the corpus do not change them.

The views `threshold_counts`, `gain_histogram`, `annotation_progress`, `yield_by_stage` and `run_work`
show the stored rows of finished runs and compute those of the others, by the functions of
`sql/functions/07_numbers.sql`. All numbers are sums over documents. So those of a run are stored as those of
an earlier one with the same recipes and threshold (its base), plus the documents that joined, minus those
that left: what this costs follows what changed. Without a base all documents are counted once.

Owns the tables `finished_run_thresholds`, `finished_run_gains`, `finished_run_progress`,
`finished_run_yield` and `finished_run_work`.
"""

import logging
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection

from toolformer_ops.runs.changes import previous_run
from toolformer_ops.runs.run_tools import RunTool
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)


def what_to_count(
    connection: Connection,
    run_id: str,
    tool: str,
    kind: Literal["finished_run", "placebo_counts", "checked_yields"],
) -> dict[str, Any]:
    """What the functions that count take: `rt`, `run` and `base`, rows as text, so that Postgres plans for just these documents.

    Beside them `run_id`, `tool`, `base_run_id` (None if nothing is counted that the numbers of this kind
    follow from) and the `thresholds` of the tool.
    """
    row = database.fetch_one(connection, queries.numbers.counted, run_id=run_id, tool=tool, kind=kind)
    return {"run_id": run_id, "tool": tool, **row._asdict()}


@dataclass(frozen=True)
class KeptCounts:
    """How much of a tool's work in a run was kept; columns of `checked_yields`."""

    judged_calls: int
    kept_calls: int
    releasable_calls: int
    kept_texts: int


def count_kept(connection: Connection, run: RunTool) -> KeptCounts:
    """The counts of a tool in a run.

    They are those of the newest passed check, with what joined and left the corpus since.
    """
    parameters = what_to_count(connection, run.run_id, run.tool, "checked_yields")
    counted = database.fetch_one(connection, queries.choosing.kept_counts, **parameters)
    return KeptCounts(**counted._asdict())


def store_numbers(connection: Connection, run_id: str) -> None:
    """Store the numbers of a run that has finished, instead of those of an earlier end.

    Only the end of the run itself stores them. A run that is repaired ends again: what its repaired tools
    have done by then was not there at its first end, and the release may be another.
    """
    # Another run may end now, and find this one without numbers.
    database.execute(connection, queries.locks.name, name=f"numbers {run_id}")
    # Rows that are deleted now are either not counted, or later than the numbers.
    database.fetch_all(connection, queries.runs.locked_recipes, run_id=run_id, tool=None)
    previous_run_id = previous_run(connection, run_id)
    database.execute(connection, queries.numbers.forget, run_id=run_id)
    for row in database.fetch_all(connection, queries.numbers.tools, run_id=run_id):
        counted = what_to_count(connection, run_id, row.tool, "finished_run")
        database.execute(connection, queries.numbers.count, **counted)
        base = counted["base_run_id"]
        logger.info(
            "numbers of run %s, %s: %s", run_id, row.tool,
            "counted over all documents" if base is None else f"the numbers of run {base} and what changed",
        )  # fmt: skip
    database.execute(connection, queries.numbers.store, run_id=run_id, previous_run_id=previous_run_id)
