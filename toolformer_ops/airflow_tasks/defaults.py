"""What all DAGs and stage tasks share: default arguments, pools, time limits, assets.

Does not create the pools: `pools.json` in this folder does, by `airflow pools import`.
"""

from datetime import timedelta
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias

from toolformer_ops.airflow_tasks.retrying import (
    INFRASTRUCTURE_RETRIES,
    MAX_RETRY_DELAY,
    OWN_RETRIES,
    RETRY_DELAY,
    StageRetries,
)
from toolformer_ops.config import load_settings
from toolformer_ops.storage.corpus_addresses import corpus_id_of, corpus_uri_of

CPU_POOL = "cpu"
GPU_POOL = "gpu"
POOLS = (CPU_POOL, GPU_POOL)

DEFAULT_ARGS: dict[str, Any] = {
    "owner": "toolformer",
    # The policy ends a task after fewer tries than Airflow would. The delays count when a worker dies, and
    # no one asks the policy.
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
        "approve": timedelta(minutes=10),  # to ask; how long an answer is waited for is a setting
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

# Assets. Their addresses name the things, not where they are: an event's `extra` says which run or release it
# was.

WIKI_INDEX = Asset(
    name="wiki_index",
    uri="toolformer://wiki-index",
    group="toolformer",
    extra={"made_by": "build_wiki_index"},
)
"""The BM25 index over Wikipedia that WikiSearch and QA search."""


def newest_index() -> dict[str, str]:
    """The address of the newest published index, for the events of `WIKI_INDEX`: pods fetch it there."""
    from toolformer_ops.storage import artifacts

    return {"address": artifacts.newest(load_settings(), "index") or ""}


RELEASES = AssetAlias(name="releases", group="toolformer")
"""Means the release of the corpus that a run started by hand annotates; which that is, only the run
knows."""


def release_asset(*, schedule: str = "", corpus: str = "") -> Asset:
    """The asset of a checked release on S3: of the nights of a schedule, or of every run over a corpus, by its address.

    A DAG that is scheduled on it starts with each new release; the event's `extra` has `release_id` and
    `run_id`. Names hold no more than the schedule's name, or the address as it is stored in
    `annotation_runs.corpus_uri`.
    """
    if schedule:
        return Asset(
            name=f"release of schedule {schedule}",
            uri=f"toolformer://release/schedule/{schedule}",
            group="toolformer",
        )
    address = quote(corpus_uri_of(corpus), safe="/:")
    return Asset(
        name=f"release of {address}"[:1500],
        uri=f"toolformer://release/corpus/{corpus_id_of(corpus)}",
        group="toolformer",
    )
