"""Build the search index over Wikipedia that the tools WikiSearch and QA use.

**How to trigger.** Give the Wikipedia pages as a KILT knowledge source (JSON Lines, optionally `.gz` or
`.zst`): a path, `file://` or `s3://` address. Needed once, and again for another Wikipedia. After a new index the
next annotation run executes and scores WikiSearch and QA calls anew; it does not sample anew.

**What it makes.** The folder of `TOOLFORMER_WIKI_INDEX` (by default `wiki_index` in the state folder), and
the same index on S3, which pods fetch; the event of the asset `wiki_index` names its address. A
published index of the same Wikipedia is neither built nor published again.

**What it costs.** No GPU. All of KILT (5.9 million pages, 35 GiB) takes about an hour with 40 threads and 11
GB of disk; 10,000 summaries take seconds.

**When it is red.** The last line of the log says what was looked for. The index in use is replaced only by a
whole new one, so a red run changes nothing; clear the task when its cause is mended.
"""

from airflow.sdk import DAG

from toolformer_ops.airflow_tasks.defaults import DEFAULT_ARGS, WIKI_INDEX, newest_index
from toolformer_ops.airflow_tasks.forms import index_form
from toolformer_ops.airflow_tasks.requests import check_before_first_task
from toolformer_ops.airflow_tasks.run_ends.run_outcome import note_why_not_started
from toolformer_ops.airflow_tasks.stage_tasks import stage

with DAG(
    "build_wiki_index",
    description="Build the search index of WikiSearch and QA",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    default_args=DEFAULT_ARGS,
    params=index_form(),
    tags=["toolformer", "index"],
):
    stage(
        "build-index",
        arguments=("--source", "{{ params.source }}", "--publish"),
        outlets=[WIKI_INDEX],
        asset_extra={"source": "{{ params.source }}", "dag_run": "{{ run_id }}"},
        asset_facts=newest_index,
        pre_execute=check_before_first_task,
        on_failure_callback=note_why_not_started,
    )
