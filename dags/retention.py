"""Let go of what nothing uses any more: old releases and models, rows, and what Airflow keeps of old runs.

**How to trigger.** It starts by itself every Sunday at five (UTC): the setting `TOOLFORMER_RETENTION_SCHEDULE`
has the cron expression; `off` means by hand only. It drops nothing unless `TOOLFORMER_RETENTION_DROPS` is
true, or the form says so: its note names what it would drop. The settings `TOOLFORMER_RETENTION_...` are the
policy (`docs/operations.md`). At a terminal, `toolformer-ops retention --airflow 90` does the same.

**What it costs.** No GPU. It reads each file of the history that it merges, or whose rows it drops.

**When it is red.** Postgres or S3 did not answer, or a file of the history is not as it was written: the last
line of the log says which. What was dropped stays dropped; clear the task, and it continues.
"""

from airflow.sdk import DAG

from toolformer_ops.airflow_tasks.defaults import DEFAULT_ARGS
from toolformer_ops.airflow_tasks.forms import retention_form
from toolformer_ops.airflow_tasks.nights.timetables import weekly_timetable
from toolformer_ops.airflow_tasks.run_notes import set_report
from toolformer_ops.airflow_tasks.stage_tasks import stage
from toolformer_ops.config import load_settings

with DAG(
    "retention",
    description="Let go of what nothing uses any more",
    doc_md=__doc__,
    schedule=weekly_timetable(load_settings(), "retention_schedule"),
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    default_args=DEFAULT_ARGS,
    params=retention_form(load_settings()),
    tags=["toolformer", "retention"],
):
    stage("retention", arguments=("{{ '--drop' if params.drop else '--no-drop' }}",), tells=set_report)
