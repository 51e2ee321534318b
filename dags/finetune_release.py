"""Finetune a language model on an existing release, and evaluate what it learned.

**How to trigger.** Give the id or the address of a release (table `dataset_releases`). Language model and seed are
those of the run that made the release; the form asks for the finetuning and the evaluation, with the paper's
defaults. For the paper's tables choose suites, say where their data are (`docs/evaluation.md` says where to get
them; pods read them from S3 alone), and finetune the baseline too. `toolformer-ops evaluate` evaluates a model
that is trained already.

**What it costs.** Training is nearly all of it. The paper's 2,000 steps of 128 sequences of 1,024 tokens are 262
million tokens, each about 6 floating point operations a parameter: at 40 % of an A100's peak a day for 6.7 billion
parameters (whose memory needs several A100s), half an hour for 135 million. The baseline costs the same again. A
suite costs one answer an input and model, for up to four models; the number of inputs can be limited.

**What you get.** The model on S3, with its curves; rows in `evaluation_scores`; and a page with tables, bars,
curves and examples under the run's tab "Annotation", at `s3://BUCKET/reports/RUN/index.html`.

**When it is red.** A suite that fails does not stop the others: the report is made without it and names it, and
the last task, `finish_run`, is red and lists what failed.

1. Open the log of the first failed task; its last line says what was expected, what was found, and the remedy: a
   data set that is missing or of another format, a tool that is down, a model whose vocabulary lacks the markers of
   calls.
2. Exit status 2 is a wrong request, 3 a release without texts (no model is published); neither is retried. All else
   was retried, as often as docs/operations.md says ("What a red task says"); a training starts at its last
   checkpoint.
3. Mend the cause and clear the failed task with what follows. Trainings and scores are not repeated. A cleared run
   keeps its parameters: for another release trigger a new one.
"""

from airflow.sdk import DAG

from toolformer_ops.airflow_tasks.defaults import DEFAULT_ARGS
from toolformer_ops.airflow_tasks.forms import FINETUNING_PARAMETERS, finetuning_form
from toolformer_ops.airflow_tasks.model_tasks import model_tasks, not_needed_on_release
from toolformer_ops.airflow_tasks.requests import check_before_first_task
from toolformer_ops.airflow_tasks.run_ends.run_outcome import FinishRun, note_why_not_started
from toolformer_ops.airflow_tasks.run_ids import OF_DAG_RUN, RUN_ID
from toolformer_ops.airflow_tasks.stage_tasks import stage

with DAG(
    "finetune_release",
    description="Release to finetuned model and evaluations",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=4,
    default_args=DEFAULT_ARGS,
    params=finetuning_form(),
    tags=["toolformer", "finetuning"],
):
    start = stage(
        "start-finetuning",
        arguments=(
            "--run",
            RUN_ID,
            "--release",
            "{{ params.release }}",
            "--parameters",
            FINETUNING_PARAMETERS,
            *OF_DAG_RUN,
        ),
        not_needed=not_needed_on_release,
        pre_execute=check_before_first_task,
        on_failure_callback=note_why_not_started,
    )
    published, report = model_tasks(start, chosen_by=start)
    finish = FinishRun(opened_by=start.task_id, made_by=published[0].task_id, product="model")
    [*published, report] >> finish
