"""Tell people of the nights that have ended, by mail and webhooks, as the schedule files say.

**How to trigger.** It starts by itself: at the end of each run of a schedule, and every ten minutes if there
is a schedule, for what was not told then. By hand it does the same.

**What it costs.** About a CPU second; no GPU.

**When it is red.** A mail server or a webhook did not take a message. The note of the night says which, and
why. Mend the Connection (Admin, Connections; `docs/nightly.md`): the message is sent within ten minutes, for
three days.
"""

from airflow.sdk import DAG, CronTriggerTimetable

from toolformer_ops.airflow_tasks.defaults import CPU_POOL, DEFAULT_ARGS, TIME_LIMITS
from toolformer_ops.airflow_tasks.notifying import SEND, SendNotifications
from toolformer_ops.airflow_tasks.schedules import schedule_files
from toolformer_ops.config import load_settings

with DAG(
    SEND,
    description="Mails and webhooks about the nights that have ended",
    doc_md=__doc__,
    # Most ends of runs start it at once (`airflow_tasks/stopped_runs.py`).
    schedule=CronTriggerTimetable("*/10 * * * *", timezone="UTC")
    if schedule_files(load_settings().schedules_dir)
    else None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    default_args=DEFAULT_ARGS,
    tags=["toolformer", "nightly"],
):
    SendNotifications(task_id=SEND, pool=CPU_POOL, execution_timeout=TIME_LIMITS["send-notifications"])
