"""The factory of stage tasks: one call in a DAG file makes a local process or a pod with the same arguments.

Stages that write or read a few rows, such as the plan with its list of shards, always run on the Airflow
worker; they need Postgres and S3, little memory, and no GPU. The others run where `TOOLFORMER_RUNNER` says.
"""

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.definitions.mappedoperator import MappedOperator

from toolformer_ops.airflow_tasks.defaults import CPU_POOL, TIME_LIMITS
from toolformer_ops.airflow_tasks.local_process import StageProcess
from toolformer_ops.airflow_tasks.run_ends.run_outcome import note_why_failed
from toolformer_ops.airflow_tasks.run_ids import RUN_ID
from toolformer_ops.airflow_tasks.stage_task import StageTask
from toolformer_ops.config import load_settings

OF_RUN = ("--run", RUN_ID)
"""What follows the name of most stages."""
OF_CORPUS = ("--corpus", "{{ params.corpus }}", "--field", "{{ (params.fields or []) | join('\n') }}")
"""Which corpus a form names, for the stage that reads it; templated. An item of `--field` may have several
lines."""
RUN_PARAMETERS = "{{ params | tojson }}"
"""What the form holds, as JSON; templated."""
ON_THE_WORKER = frozenset({"start-run", "start-finetuning", "tools-to-do", "plan", "finish-run", "retention"})
"""Stages whose memory does not grow with the data: less than a pod's start costs. `retention` sees Airflow's
logs here."""

FINETUNE = "finetune"
"""The stage with its own pod template; the others have that of their pool."""


def stage(
    name: str,
    *,
    task_id: str | None = None,
    tool: str | None = None,
    arguments: Sequence[str] = OF_RUN,
    pool: str = CPU_POOL,
    **options: Any,
) -> BaseOperator:
    """The task that runs the stage `name` once.

    Args:
        name: stage of `python -m toolformer_ops stage`.
        task_id: the task's name, if a stage is in the graph more than once; by default the stage's.
        tool: for stages that work for one tool.
        arguments: what follows the stage's name; templated.
        pool: `gpu` if the stage loads a model, else `cpu`.
        options: of `StageTask`, and of Airflow's BaseOperator, such as `outlets`: the assets that the stage
        makes.
    """
    operator, common = stage_operator(name, tool=tool, arguments=arguments, pool=pool)
    if task_id:
        common["task_id"] = task_id
    return operator(**(common | options))


def mapped_stage(
    name: str, *, shards: XComArg, tool: str, pool: str = CPU_POOL, priority_weight: int = 1
) -> MappedOperator:
    """The tasks that run the stage `name` once a shard, `--shard I/N`; `shards` is what the plan returned."""
    operator, common = stage_operator(name, tool=tool, pool=pool)
    common |= {"priority_weight": priority_weight, "map_index_template": "{{ task.shard }}"}
    return operator.partial(**common).expand(shard=shards)


def stage_operator(
    name: str, *, tool: str | None = None, arguments: Sequence[str] = OF_RUN, pool: str = CPU_POOL
) -> tuple[type[StageTask], dict[str, Any]]:
    """The operator class of a stage, `StageProcess` or `StagePod`, and the arguments that its task and its mapped task share."""
    common: dict[str, Any] = {
        "task_id": name.replace("-", "_"),
        "arguments": ["stage", name, *arguments, *(("--tool", tool) if tool else ())],
        "pool": pool,
        "execution_timeout": TIME_LIMITS[name],
        "on_failure_callback": note_why_failed,
    }
    settings = load_settings()
    if settings.runner == "local" or name in ON_THE_WORKER:
        return StageProcess, common
    from toolformer_ops.airflow_tasks.kubernetes.pods import StagePod, pod_arguments

    return StagePod, pod_arguments(settings, template=FINETUNE if name == FINETUNE else pool) | common
