"""Sample, execute and score a shard in one process, and its placebos if it can: the language model is loaded once.

In rounds of some minutes: what a round has sampled is executed and scored before the next one, so that the
first scored calls do not wait for the whole shard, nor for a long text. Each stage has its own recipe, micro-batches and ledger
rows: the rows are those of the single commands, and a process that is killed in one stage does not repeat the
stages before it. A shard without work loads no model.

A run with equal recipes that works at the same time has claimed some of the documents (`runs/claims.py`):
only the last round waits for them.

Placebos are drawn from the results of all shards. If an earlier run has drawn them, they are scored in the
same rounds. Else the process that finishes the tool's last shard draws them, and scores those of its shard at
its end; the task after scores the others.

Runs in the GPU pool, so a tool that needs no GPU holds one while it executes. That costs less than a second
task: to load even a model of 135 million parameters again takes longer than to execute a shard's calls of the
Calculator, the Calendar or a search (docs/operations.md has the figures). A tool for which that is wrong says
`executes_apart` in its spec, and has three tasks.

With the choice `until_kept`, `annotate_until_kept` goes on until enough calls of a tool are kept.
The texts are taken in the order of their ids. These are hashes, so the first texts are a random sample of the
corpus. The run's texts of the tool are then the smallest prefix of that order that holds enough kept calls,
whichever processes computed it, and however often they were killed:

    Let B be the text at which the kept calls that are stored so far become enough, in the order of the ids.
    What is not computed yet can only add kept calls, so the prefix ends at B or before.
    When no text up to B is left to do, all its kept calls are stored, so the prefix ends at B.

All processes of the tool work on the first undone texts up to B, some at a time, and leave to each other
what is claimed. What they computed beyond the prefix stays in the ledger, for the next run.

A keep rule may compare a call with a placebo, and placebos need a pool of results (`runs/placebo_pools.py`).
So the texts are gone through twice. First a call counts as kept if it gains enough without a placebo: the
pool is drawn from the prefix for that, which is the same in each order of the work. Then kept is what the
rule keeps, and the texts of the first time are done but for their placebos.
"""

import dataclasses
import logging
import uuid

from toolformer_ops.config import Settings
from toolformer_ops.runs.choices import PlaceboChoices
from toolformer_ops.runs.models import RunModel
from toolformer_ops.runs.placebo_pools import choose_pool
from toolformer_ops.runs.run_tools import (
    RunTool,
    has_work_left,
    members_beyond_finished,
    members_of_run,
    open_run_tool,
)
from toolformer_ops.stages.execution import execute_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.placebo import placebo_stage, placebos_of_last_shard
from toolformer_ops.stages.sampling import sample_stage
from toolformer_ops.stages.scoring import score_stage
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)

FIRST_TEXTS = 32
"""So many texts come first, when it is not known how often calls are kept; at least so many each time."""

MICRO_BATCHES = 8
"""The least micro-batches of the texts that are done at a time: several processes share them."""


def annotate_stage(
    settings: Settings, run_id: str, tool_name: str, shard: str, model: RunModel | None = None
) -> None:
    """Sample a tool's calls for one shard, execute them and score them, and their placebos if they can be drawn by then.

    `model` keeps what the stages load. Raises as the four stages.
    """
    model = model or RunModel(settings)
    shard_arguments = (settings, run_id, tool_name, shard, model)

    def finish_round(is_last: bool) -> None:
        execute_stage(*shard_arguments, waits_for_others=is_last)
        score_stage(*shard_arguments, waits_for_others=is_last)
        placebo_stage(*shard_arguments, only_known_pool=True, waits_for_others=is_last)

    sample_stage(*shard_arguments, after_round=finish_round)
    placebos_of_last_shard(*shard_arguments)


def annotate_until_kept(settings: Settings, run_id: str, tool_name: str, model: RunModel) -> None:
    """Do all stages of a tool until its run has enough kept calls, beside other processes of the tool.

    Stores the last text in `run_tools`, unless the corpus holds too few. Raises as the stages.
    """
    run = model.run_tool(run_id, tool_name)
    # 1. Texts until enough calls may be kept, and from these the pool of placebos.
    last = _prefix(settings, model, run)
    if run.placebo_recipe_id is None and run.choices.wants_placebos:
        with database.transaction(model.engine) as connection:
            prefix = dataclasses.replace(run, last_document_id=last)
            choose_pool(connection, prefix, run.choices.part(PlaceboChoices))
        # 2. Texts until enough calls are kept.
        run = model.run_tool(run_id, tool_name)
        last = _prefix(settings, model, run)
    # 3. The run's texts are those up to there.
    with database.transaction(model.engine) as connection:
        database.execute(connection, queries.until_kept.end, **run.ids, last_document_id=last)


def why_nothing_to_do(settings: Settings, run_id: str, tool_name: str) -> str | None:
    """Return why a further process would find nothing to do, as a sentence for a log; else None.

    Raises:
        DatabaseError: Postgres does not answer.
        UsageError: there is no such run, or it was started without this tool.
    """
    engine, run = open_run_tool(settings, run_id, tool_name)
    if run.last_document_id is None:
        return None
    with database.transaction(engine) as connection:
        return None if has_work_left(connection, run) else f"{run.choices.until_kept} calls are kept"


def _prefix(settings: Settings, model: RunModel, run: RunTool) -> uuid.UUID | None:
    """Do texts until the smallest prefix is done that holds enough kept calls; a run keeps its prefix.

    Returns its last text; None if the corpus holds too few.
    """
    until_kept = run.choices.until_kept
    up_to: uuid.UUID | None = None
    while True:
        # 1. Up to which text enough calls are kept by now.
        with database.transaction(model.engine) as connection:
            kept = database.fetch_one(
                connection,
                queries.until_kept.kept,
                **run.ids,
                members=members_of_run(run),
                keep_threshold=run.keep_threshold,
                until_kept=until_kept,
                up_to=up_to,
            )
            last = run.last_document_id or kept.last_document_id
            # 2. The first undone texts up to there: as many as were done so far, or as may be needed.
            needed = (until_kept - kept.calls) * kept.texts // max(1, kept.calls)
            texts = max(FIRST_TEXTS, min(kept.texts, needed))
            prefix = dataclasses.replace(run, last_document_id=last)
            undone = database.fetch_all(
                connection,
                queries.until_kept.undone,
                **run.ids,
                members=members_beyond_finished(connection, prefix, *run.recipe_ids),
                texts=texts,
            )
        share = f"{kept.calls:,} of {until_kept:,} calls are kept in the first {kept.texts:,} texts"
        if not undone:
            logger.info("%s: %s: done", run.tool, share)
            return last
        # 3. All stages of these texts, in micro-batches that are divided among the processes.
        documents = min(settings.micro_batch_documents, texts // MICRO_BATCHES)
        shared = settings.model_copy(update={"micro_batch_documents": documents})
        up_to = undone[0].document_id
        logger.info("%s: %s: going on to text %s", run.tool, share, up_to)
        with model.works_up_to(up_to):
            for stage in (filter_stage, sample_stage, execute_stage, score_stage):
                stage(shared, run.run_id, run.tool, "0/1", model)
            if run.placebo_recipe_id is not None:
                placebo_stage(shared, run.run_id, run.tool, "0/1", model)
