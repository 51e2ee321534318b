"""What all DAGs share: default arguments, pools, and how long each stage may take.

Does not create the pools: `pools.json` beside this file does, by `airflow pools import`.
"""

from datetime import timedelta
from types import MappingProxyType
from typing import Any

RUN_ID = "{{ run_id }}"
"""Airflow's id of the DAG run is the id of the annotation run; templated."""

CPU_POOL = "cpu"
GPU_POOL = "gpu"
POOLS = (CPU_POOL, GPU_POOL)

RETRY_DELAY = timedelta(seconds=15)
"""Before the first retry; doubled before the second. Short, since a retry goes on at the next micro-batch."""

DEFAULT_ARGS: dict[str, Any] = {
    "owner": "toolformer",
    "retries": 2,
    "retry_delay": RETRY_DELAY,
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
    "depends_on_past": False,
}

TIME_LIMITS = MappingProxyType(
    {
        "ingest": timedelta(hours=12),
        "build-index": timedelta(hours=24),
        "start-run": timedelta(hours=1),
        "start-finetuning": timedelta(minutes=20),
        "filter": timedelta(hours=4),
        "plan": timedelta(minutes=20),
        "sample": timedelta(hours=12),
        "execute": timedelta(hours=12),
        "score": timedelta(hours=12),
        "check": timedelta(hours=2),
        "gather-tools": timedelta(minutes=10),
        "release": timedelta(hours=6),
        "check-release": timedelta(hours=2),
        "finetune": timedelta(hours=48),
        "publish": timedelta(hours=2),
        "evaluate": timedelta(hours=24),
        "report-evaluation": timedelta(minutes=30),
        "finish-run": timedelta(minutes=20),
    }
)
"""Longest time of one try, by stage. A try that was cut off loses one micro-batch, and the next goes on from there."""
