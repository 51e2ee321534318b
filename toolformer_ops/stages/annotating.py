"""Sample, execute and score a shard in one process, so that the language model is loaded once.

The three stages run one after the other, each with its own recipe, micro-batches and ledger rows: the rows are those of the three
commands, and a process that is killed in one stage does not repeat the stages before it. A shard without work loads no model.

Runs in the GPU pool, so a tool that needs no GPU holds one while it executes. That costs less than a second task: to load even
a model of 135 million parameters again takes longer than to execute a shard's calls of the Calculator, the Calendar or a search
(docs/operations.md has the figures). A tool for which that is wrong says `executes_apart` in its spec, and has three tasks.
"""

from toolformer_ops.config import Settings
from toolformer_ops.runs.models import RunModel
from toolformer_ops.runs.start_up import StartUp
from toolformer_ops.stages.execution import execute_stage
from toolformer_ops.stages.sampling import sample_stage
from toolformer_ops.stages.scoring import score_stage


def annotate_stage(
    settings: Settings, run_id: str, tool_name: str, shard: str, start_up: StartUp | None = None
) -> None:
    """Sample a tool's calls for one shard, execute them and score them.

    `start_up` is what the process took to start, where that is measured.

    Raises:
        As `sample_stage`, `execute_stage` and `score_stage`.
    """
    model = RunModel(settings, start_up)
    for stage in (sample_stage, execute_stage, score_stage):
        stage(settings, run_id, tool_name, shard, model)
