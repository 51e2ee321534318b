"""Send mails and webhooks about the nights that have ended, as the schedule files say, and end runs that have halted.

**How to trigger.** It starts by itself: at the end of each run of a schedule, and every hour for outstanding
messages. By hand it does the same. It ends runs that Airflow no longer continues, since their DAG was deleted or
paused (`docs/nightly.md`).

**What it costs.** About a CPU second; no GPU.

**When it is red.** A mail server or a webhook did not take a message. The note of the night says which, and why.
Mend the Connection (Admin, Connections; `docs/nightly.md`): the message is sent within an hour, for three days.
"""

from airflow.sdk import DAG, CronTriggerTimetable

from toolformer_ops.airflow_tasks.defaults import CPU_POOL, DEFAULT_ARGS, TIME_LIMITS
from toolformer_ops.airflow_tasks.nights.notifying import SEND, SendNotifications

with DAG(
    SEND,
    description="Mails and webhooks about the nights that have ended",
    doc_md=__doc__,
    # Most ends of runs start it at once (`airflow_tasks/run_ends/stopped_runs.py`).
    schedule=CronTriggerTimetable("0 * * * *", timezone="UTC"),
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    default_args=DEFAULT_ARGS,
    tags=["toolformer", "nightly"],
):
    SendNotifications(task_id=SEND, pool=CPU_POOL, execution_timeout=TIME_LIMITS["send-notifications"])
