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
"""

from toolformer_ops.config import Settings
from toolformer_ops.runs.models import RunModel
from toolformer_ops.stages.execution import execute_stage
from toolformer_ops.stages.placebo import placebo_stage, placebos_of_last_shard
from toolformer_ops.stages.sampling import sample_stage
from toolformer_ops.stages.scoring import score_stage


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
