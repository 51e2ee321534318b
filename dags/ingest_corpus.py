"""Read what has changed in a corpus into Postgres, and make its next version.

**How to trigger.** Give the corpus: JSON Lines, optionally `.gz` or `.zst`, or Parquet, one record a line or
row with `text`, and optionally `url`, `date`, `title` and `id`; if they have other names, say so in *Fields*.
A path, `file://` or `s3://` address of a file or of a folder. `annotate_corpus` does this too, so run this
one alone only to see what a corpus holds before annotating it.

**What it costs.** No GPU. A few thousand new texts a second; disk in Postgres of about one and a half times
the text. Files that have not changed are not read again.

**When it is red.** The last line of the task's log says what was looked for and where. A bad record never
makes it red: it is counted by file and reason in `rejected_records`, and records in = documents + duplicates
+ rejected. A file that breaks off, or that lost more than half of its records since the newest version, makes
it red and no version: look at what wrote the file, or accept it in the form (*Accept shrink*). A cleared task
reads the changed files again, and writes nothing twice.
"""

from airflow.sdk import DAG

from toolformer_ops.airflow_tasks.defaults import DEFAULT_ARGS
from toolformer_ops.airflow_tasks.forms import corpus_form
from toolformer_ops.airflow_tasks.requests import check_before_first_task
from toolformer_ops.airflow_tasks.run_ends.run_outcome import note_why_not_started
from toolformer_ops.airflow_tasks.stage_tasks import OF_CORPUS, stage
from toolformer_ops.config import load_settings

with DAG(
    "ingest_corpus",
    description="Read a corpus into Postgres",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=4,
    default_args=DEFAULT_ARGS,
    params=corpus_form(load_settings()),
    tags=["toolformer", "corpus"],
):
    stage(
        "ingest",
        arguments=(
            *OF_CORPUS,
            "{{ '--accept-shrink' if params.accept_shrink else '--no-accept-shrink' }}",
        ),
        pre_execute=check_before_first_task,
        on_failure_callback=note_why_not_started,
    )
