"""What all DAGs and stage tasks share: default arguments, pools, time limits, assets, and what a task does besides its stage.

Does not create the pools: `pools.json` in this folder does, by `airflow pools import`.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

from toolformer_ops.airflow_tasks.retrying import (
    INFRASTRUCTURE_RETRIES,
    MAX_RETRY_DELAY,
    OWN_RETRIES,
    RETRY_DELAY,
    StageRetries,
)
from toolformer_ops.airflow_tasks.run_ids import ANNOTATE
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolformerError

if TYPE_CHECKING:
    from airflow.sdk import Context

logger = logging.getLogger(__name__)

CPU_POOL = "cpu"
GPU_POOL = "gpu"
POOLS = (CPU_POOL, GPU_POOL)

DEFAULT_ARGS: dict[str, Any] = {
    "owner": "toolformer",
    # The policy ends a task after fewer tries than Airflow would. The delays count where a worker dies, and nobody asks the policy.
    "retries": OWN_RETRIES + INFRASTRUCTURE_RETRIES,
    "retry_policy": StageRetries(),
    "retry_delay": RETRY_DELAY,
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": MAX_RETRY_DELAY,
    "depends_on_past": False,
}

TIME_LIMITS = MappingProxyType(
    {
        "ingest": timedelta(hours=12),
        "build-index": timedelta(hours=24),
        "start-run": timedelta(hours=1),
        "start-finetuning": timedelta(minutes=20),
        "filter": timedelta(hours=4),
        "tools-to-do": timedelta(minutes=20),
        "plan": timedelta(minutes=20),
        "annotate": timedelta(hours=24),
        "sample": timedelta(hours=12),
        "execute": timedelta(hours=12),
        "score": timedelta(hours=12),
        "placebo": timedelta(hours=12),
        "check": timedelta(hours=2),
        "gather-tools": timedelta(minutes=10),
        "release": timedelta(hours=6),
        "check-release": timedelta(hours=2),
        "finetune": timedelta(hours=48),
        "publish": timedelta(hours=2),
        "evaluate": timedelta(hours=24),
        "report-evaluation": timedelta(minutes=30),
        "finish-run": timedelta(minutes=20),
        "audit": timedelta(hours=24),
        "send-notifications": timedelta(minutes=10),
    }
)
"""Longest time of one try, by stage. A try that was cut off loses one micro-batch; the next starts there."""

# Assets. Their addresses name the things, not where they are: an event's `extra` says which run or release it was.

WIKI_INDEX = Asset(
    name="wiki_index", uri="toolformer://wiki-index", group="toolformer", extra={"made_by": "build_wiki_index"}
)
"""The BM25 index over Wikipedia that WikiSearch and QA search."""

DATASET_RELEASE = Asset(
    name="dataset_release", uri="toolformer://dataset-release", group="toolformer", extra={"made_by": ANNOTATE}
)
"""A checked release on S3."""


# What a stage task does besides starting its stage, whether as a process or as a pod


def with_shard(arguments: Sequence[str], shard: str | None) -> list[str]:
    """The arguments, with `--shard I/N` added for a mapped task."""
    return [*arguments, "--shard", shard] if shard else [*arguments]


def why_not_started(arguments: Sequence[str], shard: str | None) -> str | None:
    """Return why this stage need not start, if Postgres shows that it would find nothing to do: a sentence for the log.

    Asked of `placebo` alone, whose work the task before it mostly does. What hinders the question hinders the stage as well, which
    then says so, and waits for what is away: so it starts.
    """
    if tuple(arguments[:2]) != ("stage", "placebo"):
        return None
    from toolformer_ops.stages.placebo import why_nothing_to_do

    options = dict(zip(arguments[2::2], arguments[3::2], strict=True))
    try:
        reason = why_nothing_to_do(load_settings(), options["--run"], options["--tool"], shard or "0/1")
    except ToolformerError as error:
        logger.warning("it is not known whether the stage has work, so it starts: %s", error)
        return None
    return f"the stage has nothing to do and is not started: {reason}" if reason else None


def describe_assets(context: "Context", outlets: Sequence["Asset"], extra: Mapping[str, str] | None) -> None:
    """Attach ids to the asset events of this task, for the DAGs that are scheduled by them; of an index also its address on S3."""
    for asset in outlets:
        context["outlet_events"][asset].extra.update(extra or {})
        if asset.name == WIKI_INDEX.name:
            from toolformer_ops.storage import artifacts

            context["outlet_events"][asset].extra["address"] = artifacts.newest(load_settings(), "index") or ""
