"""Compute again what can be proved of all rows, releases and models, and list what is lost, doubled, changed or orphaned.

**How to trigger.** It starts by itself every Sunday at six (UTC): the setting `TOOLFORMER_AUDIT_SCHEDULE` has
the cron expression; `off` means by hand only. The form can have the engine compute calls again. At a terminal,
`toolformer-ops audit` does the same, also for one corpus, run, release or model.

**What it costs.** No GPU. Every row and every object on S3 is read once; `docs/audit.md` has the figures. It
runs beside stages.

**When it is red.** Something is wrong: the note of the run names it, with its remedy, and the table
`audit_findings` holds all of it. `toolformer-ops audit --repair` says what can be derived again, and with
`--yes` does it. If the note is empty, Postgres or S3 did not answer: clear the task, and the audit continues
after its last page.
"""

from airflow.sdk import DAG

from toolformer_ops.airflow_tasks.defaults import DEFAULT_ARGS
from toolformer_ops.airflow_tasks.forms import audit_form
from toolformer_ops.airflow_tasks.nights.timetables import weekly_timetable
from toolformer_ops.airflow_tasks.run_notes import set_report
from toolformer_ops.airflow_tasks.stage_tasks import stage
from toolformer_ops.config import load_settings

with DAG(
    "audit",
    description="Prove that nothing is lost, doubled or changed",
    doc_md=__doc__,
    schedule=weekly_timetable(load_settings(), "audit_schedule"),
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    default_args=DEFAULT_ARGS,
    params=audit_form(),
    tags=["toolformer", "audit"],
):
    stage("audit", arguments=("--sample", "{{ params.sample }}", "--seed", "{{ run_id }}"), tells=set_report)
