"""The DAG of a schedule file: the tasks of `annotate_corpus`, started by a clock or by assets, with the parameters of the file.

`schedules.py` reads the file. What goes wrong in one file is a separate import error, since
`bundles/schedule_bundle.py` makes one DAG file of each.
"""

import datetime
from collections.abc import Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetOrTimeSchedule, CronTriggerTimetable

from toolformer_ops.airflow_tasks.annotation_dag import annotation_tasks
from toolformer_ops.airflow_tasks.bundles.dag_tools import DagTool
from toolformer_ops.airflow_tasks.defaults import DEFAULT_ARGS
from toolformer_ops.airflow_tasks.forms import annotation_form
from toolformer_ops.airflow_tasks.nights.schedules import load_schedule
from toolformer_ops.config import MOST_SHARDS, load_settings

_EXAMPLE_DAY = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

DOC = """Nightly runs of `annotate_corpus` over one corpus, as the file `{path}` says. docs/nightly.md is the guide.

**How to trigger.** It starts by itself: {starts}. {example}By hand, the form is filled in from the file. One run at a time; of
missed nights, the last one is caught up.

**What it costs.** What is new: texts that are in the corpus since the last run, and what another model, index or parameter asks for
anew. A night with nothing new takes a minute, and no GPU.

**When it is red.** The run's note and the notification say what failed. Open the log of the first failed task, mend its cause, and
clear it together with what follows: what is done stays done. A night without a kept call is green, with a warning.

```toml
{text}
```
"""


def nightly_dag(path: str, content: bytes | None, tools: Sequence[DagTool]) -> DAG:
    """The DAG of a schedule file with this content.

    None means the file as it is, or the reason why it may not be read. It has tasks for these tools.

    Raises:
        ConfigurationError: the file is no schedule; the message names the file, the key and the remedy.
    """
    schedule = load_schedule(Path(path), content, [tool.name for tool in tools])
    # What starts a run. The clock makes one run for each local time that `cron` names, also on the days on
    # which clocks change.
    assets: list[Any] = []
    for name in schedule.after:  # the name or the URI of what another DAG declares
        if "://" in name:
            assets.append(Asset.ref(uri=Asset(uri=name).uri))
        else:
            assets.append(Asset.ref(name=name))
    starts: Any = reduce(or_, assets) if assets else None
    if schedule.cron:
        timetable = CronTriggerTimetable(schedule.cron, timezone=schedule.time_zone)
        starts = AssetOrTimeSchedule(timetable=timetable, assets=starts) if assets else timetable
    settings = load_settings()
    # A person who does not answer must not make the night red: the time for an answer is not the night's.
    hours = schedule.hours + (settings.approval_hours if schedule.run.approve != "none" else 0.0)
    words = [f"`{schedule.cron}` in the time zone {schedule.time_zone}"] if schedule.cron else []
    if assets:
        words.append(f"after a new version of {' or '.join(f'`{asset}`' for asset in schedule.after)}")
    described = ", and ".join(words)
    # Of a fixed day: the page of a DAG must not change with the clock, since each change is a version of the DAG.
    example = f"Counted from 2026-01-01: {schedule.starts_after(_EXAMPLE_DAY)}. " if schedule.cron else ""
    with DAG(
        schedule.dag_id,
        description=f"{schedule.corpus}, {described}".replace("`", ""),
        doc_md=DOC.format(
            path=path, starts=described, example=example, text=(content or b"").decode().strip()
        ),
        schedule=starts,
        catchup=False,
        is_paused_upon_creation=False,  # who puts a file into the folder wants its runs
        max_active_runs=1,
        max_active_tasks=MOST_SHARDS,  # the pools are the limit
        dagrun_timeout=datetime.timedelta(hours=hours),
        default_args=DEFAULT_ARGS | {"owner": schedule.owner},
        params=annotation_form(settings, tools, schedule.run),
        tags=["toolformer", "annotation", "nightly"],
    ) as dag:
        annotation_tasks(tools, schedule)
    return dag
