"""What all DAGs and stage tasks share: default arguments, pools, time limits, assets.

Does not create the pools: `pools.json` in this folder does, by `airflow pools import`.
"""

from collections.abc import Mapping
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
from toolformer_ops.errors import UsageError
from toolformer_ops.storage.corpora.addresses import corpus_id_of, corpus_uri_of

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

DEFAULT_HOURS = MappingProxyType(
    {
        "ingest": 12,
        "build-index": 24,
        "start-run": 1,
        "start-finetuning": 1,
        "filter": 4,
        "tools-to-do": 1,
        "plan": 1,
        "annotate": 24,
        "sample": 12,
        "execute": 12,
        "score": 12,
        "placebo": 12,
        "check": 6,
        "release": 6,
        "check-release": 6,
        "approve": 1,  # to ask; how long an answer is waited for is a setting
        "finetune": 48,
        "publish": 2,
        "evaluate": 24,
        "report-evaluation": 1,
        # The first run over 30 million calls counts them for 20 minutes.
        "finish-run": 6,
        "audit": 24,
        "retention": 12,
        "send-notifications": 1,
    }
)
"""Longest time of one try in hours, by stage: a try that hangs is ended, a slow one is not.

A try that was cut off loses one micro-batch; the next starts there.
"""


def time_limits(chosen_hours: Mapping[str, float]) -> dict[str, timedelta]:
    """Return the longest time of one try by stage: `chosen_hours` instead of the default where it has the stage.

    Raises:
        UsageError: there is no such stage.
    """
    unknown = sorted(set(chosen_hours) - set(DEFAULT_HOURS))
    if unknown:
        raise UsageError(
            f"TOOLFORMER_TASK_HOURS: expected stages ({', '.join(DEFAULT_HOURS)}), found {', '.join(unknown)}. "
            "Write a name of this list."
        )
    hours = {**DEFAULT_HOURS, **chosen_hours}
    return {stage: timedelta(hours=longest) for stage, longest in hours.items()}


TIME_LIMITS = MappingProxyType(time_limits(load_settings().task_hours))

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
    from toolformer_ops.storage.objects import artifacts

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
