"""Annotate a corpus with tool calls after Toolformer, release the texts whose calls help, and finetune the model on them.

**How to trigger.** The form needs the corpus and the language model. An empty field holds what its preset says:
the paper's number, or the demo's for a small model. *To only look* takes 20 documents without finetuning; *a
preview* takes 20 documents with a small model's numbers, without placebos and finetuning. Other parameters are
keys of the form's "Configuration JSON" (`toolformer-ops parameters`). A run that cannot start is red at its first
task within seconds, and its note says why: an unknown field, a threshold below what is pruned, suites without
data, an address with nothing at it, records whose text has another name. The note also has what
`toolformer-ops check` says. The run ingests the corpus. Nightly runs: a schedule file (`docs/nightly.md`).

**What it costs.** Sampling and scoring (pool `gpu`) are nearly all of it: per text and tool about k x m sampled
calls with up to three losses each, 25 calls for most tools, 200 for Calculator and MT at the paper's numbers. A
model of 135M parameters takes a few seconds a text and tool on one CPU core; `toolformer-ops check CORPUS --model
MODEL --measure` estimates yours. Work under the same recipe is not repeated: a second run is over in a minute.

**What you get.** Every candidate call with its losses in Postgres (`scored_calls`), kept or not; a release
(Parquet with a manifest) and the finetuned model on S3; checks in `quality_results`; progress in
`annotation_progress`; losses of calls by reason in `yield_by_stage`. If suites are chosen, scores in
`evaluation_scores` and a page under the run's tab "Annotation"; `finetune_release` does that part alone.

**A person's yes.** With `approve` the run waits, before it finetunes or before it publishes the model, for an
answer on the page that its note links to. After a no it ends green, and the release stays (`docs/nightly.md`).

Pink tasks (`skipped`) are not needed: tools, models and suites that were not chosen, and tools that have nothing
to do. The log of the task before them says which it is.

**When it is red.** A tool that fails does not stop the others. The release is made without it, and the last task,
`finish_run`, is red and lists what failed: a run is green only if nothing is lacking. A run without a kept call is
green and releases nothing: its note says how many calls were sampled, which come nearest, and which thresholds
would keep how many.

1. Open the log of the first failed task; its last line says what was expected, what was found, and the remedy.
2. Exit status 2 is a wrong request (parameter, corpus, model, index), 3 a failed quality check, with rows named in
   `quality_results`; neither is retried. All else was retried, as often as docs/operations.md says ("What a red
   task says").
3. Mend the cause and clear the failed task with what follows. Nothing that was committed is done again. A cleared
   run keeps its parameters: for another corpus or another number trigger a new one.
"""

from airflow.sdk import DAG

from toolformer_ops.airflow_tasks.annotation_dag import annotation_tasks
from toolformer_ops.airflow_tasks.bundles.dag_tools import tools_beside
from toolformer_ops.airflow_tasks.defaults import DEFAULT_ARGS
from toolformer_ops.airflow_tasks.forms import annotation_form
from toolformer_ops.config import MOST_SHARDS, load_settings

TOOLS = tools_beside(__file__)

with DAG(
    "annotate_corpus",
    description="Corpus to scored tool calls, release and finetuned model",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=4,
    max_active_tasks=MOST_SHARDS,  # the pools are the limit
    default_args=DEFAULT_ARGS,
    params=annotation_form(load_settings(), TOOLS),
    tags=["toolformer", "annotation"],
):
    annotation_tasks(TOOLS)
