"""Store a run's numbers when it finishes. Later runs and later versions of the corpus do not change them.

The views `threshold_counts`, `reduction_histogram`, `annotation_progress`, `yield_by_stage` and `run_work` show the stored rows
of finished runs and compute those of the others. All numbers are sums over documents. So those of a run are those of an earlier
one with the same recipes and threshold (its base), plus the documents that joined, minus those that left: what this costs follows
what changed.
Without a base the views count once over all documents.

Owns the tables `finished_run_thresholds`, `finished_run_reductions`, `finished_run_progress`, `finished_run_yield` and
`finished_run_work`.
"""

import logging

from sqlalchemy import Connection

from toolformer_ops.runs.changes import previous_run
from toolformer_ops.runs.run_tools import below_ordinal
from toolformer_ops.storage import database, queries

logger = logging.getLogger(__name__)


def store_numbers(connection: Connection, run_id: str) -> None:
    """Store the numbers of a run that has finished, in place of those of an earlier end.

    Only the end of the run itself stores them. A run that is repaired ends again: what its repaired tools have done by then was not
    there at its first end, and the release may be another.
    """
    # Another run may end now, and find this one without numbers.
    database.execute(connection, queries.locks.name, name=f"numbers {run_id}")
    [run] = database.fetch_all(connection, queries.runs.by_id, run_id=run_id)
    previous_run_id = previous_run(connection, run_id)
    database.execute(connection, queries.numbers.forget, run_id=run_id)
    for tool in database.fetch_all(connection, queries.numbers.tools, run_id=run_id):
        bases = database.fetch_all(connection, queries.numbers.base, run_id=run_id, tool=tool.tool)
        if not bases:
            database.execute(connection, queries.numbers.compute, run_id=run_id, tool=tool.tool)
            database.execute(connection, queries.numbers.compute_reductions, run_id=run_id, tool=tool.tool)
            logger.info("numbers of run %s, %s: counted over all documents", run_id, tool.tool)
            continue
        [base] = bases
        database.execute(
            connection,
            queries.numbers.count_documents,
            corpus_id=run.corpus_id,
            version=run.corpus_version,
            ordinal_limit=below_ordinal(run.ordinal_limit),
            base_version=base.corpus_version,
            base_ordinal_limit=below_ordinal(base.ordinal_limit),
            reads_record=tool.reads_record,
        )
        places = {"run_id": run_id, "base_run_id": base.run_id, "tool": tool.tool}
        recipes = {
            "filter_recipe_id": tool.filter_recipe_id,
            "sampling_recipe_id": tool.sampling_recipe_id,
            "execution_recipe_id": tool.execution_recipe_id,
            "scoring_recipe_id": tool.scoring_recipe_id,
            "placebo_recipe_id": tool.placebo_recipe_id,
        }
        kept = {name: recipes[name] for name in ("sampling_recipe_id", "scoring_recipe_id", "placebo_recipe_id")}
        kept["tau_information"] = tool.tau_information
        database.execute(connection, queries.numbers.add_thresholds, **places, **kept)
        database.execute(connection, queries.numbers.add_reductions, **places, **kept, prune_below=tool.prune_below)
        database.execute(connection, queries.numbers.add_progress, **places, **recipes)
        database.execute(connection, queries.numbers.add_yield, **places, **recipes, keep_threshold=tool.keep_threshold)
        logger.info("numbers of run %s, %s: those of run %s and what changed", run_id, tool.tool, base.run_id)
    database.execute(connection, queries.numbers.store, run_id=run_id, previous_run_id=previous_run_id)
