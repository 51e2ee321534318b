"""`toolformer-ops stage NAME`: the contract between a DAG and the work.

A run's parameters are in Postgres, so that the arguments are ids only. Logs go to stderr. `start-run`,
`start-finetuning`, `tools-to-do`, `plan`, `release`, `finetune` and `finish-run` print one JSON value on the
last line of stdout, for the DAG.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from toolformer_ops.cli.options import FieldOption, corpus_address
from toolformer_ops.config import load_settings
from toolformer_ops.errors import NoKeptCallError, NoResultError

if TYPE_CHECKING:
    from toolformer_ops.runs.owners import DagRun

app = typer.Typer(help="One stage of a run, as an Airflow task starts it.", no_args_is_help=True)


class _Stage(typer.core.TyperCommand):
    """A stage, whose sessions of Postgres say which it is."""

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        from toolformer_ops.storage.postgres import sessions

        tool, shard, run = (str(ctx.params.get(name) or "") for name in ("tool", "shard", "run"))
        sessions.introduce(f"{ctx.info_name} {tool[:16]} {shard}", run)
        return super().invoke(ctx)


stage = functools.partial(app.command, cls=_Stage)

Run = Annotated[str, typer.Option("--run", help="Id of the annotation run.")]
Tool = Annotated[str, typer.Option("--tool", help="Name of a tool, such as Calculator.")]
Shard = Annotated[str, typer.Option("--shard", help="Which part of the documents: I/N, with I from 0.")]
WithoutCalls = Annotated[
    bool, typer.Option("--without-calls", help="The baseline: the same texts without their calls.")
]
DagRunKey = Annotated[
    str,
    typer.Option(
        "--dag-run",
        metavar="DAG@TIME",
        help="The DAG run that asks, with the time after which Airflow may start it (run_after); empty for a person.",
    ),
]


def _print_result(value: Any) -> None:
    typer.echo(json.dumps(value))


def _dag_run(text: str) -> "DagRun | None":
    from toolformer_ops.runs.owners import DagRun

    return DagRun.parse(text) if text else None


@stage("ingest")
def ingest(
    corpus: Annotated[str, typer.Option(help="Path, file:// or s3:// of JSON Lines or Parquet.")],
    field: FieldOption = None,
    accept_shrink: Annotated[
        bool,
        typer.Option(
            "--accept-shrink/--no-accept-shrink",
            help="Take a file that breaks off, holds too much, or lost more than half, as it is.",
        ),
    ] = False,
) -> None:
    """Read what has changed in a corpus into `documents`, and make its next version.

    Example: toolformer-ops stage ingest --corpus s3://toolformer/corpora/posts.jsonl.gz
    """
    from toolformer_ops.stages.ingestion import ingest_corpus

    ingest_corpus(load_settings(), corpus_address(corpus, field), accept_shrink=accept_shrink)


@stage("build-index")
def build_index(
    source: Annotated[str, typer.Option(help="KILT knowledge source, JSON Lines.")],
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish it on S3 as well, as the newest, which pods search.")
    ] = False,
) -> None:
    """Build the BM25 index of WikiSearch and QA from KILT records.

    Example: toolformer-ops stage build-index --source s3://wiki/kilt_knowledgesource.json
    """
    from toolformer_ops.stages import index_building

    index_building.build_index(load_settings(), source, publish=publish)


@stage("start-run")
def start_run(
    run: Run,
    parameters: Annotated[str, typer.Option(help="Run parameters as JSON; see `toolformer-ops parameters`.")],
    schedule: Annotated[
        str, typer.Option(help="Name of the schedule that starts it; empty for a run by hand.")
    ] = "",
    dag_run: DagRunKey = "",
) -> None:
    """Register a run: validate its parameters, and work out every tool's recipes.

    Example: toolformer-ops stage start-run --run night-1 --parameters '{"corpus": "posts.jsonl", "model":
    "models/m"}'
    """
    from toolformer_ops.runs.choices import RunChoices
    from toolformer_ops.runs.summary import documents_taken
    from toolformer_ops.stages.run_setup import start_run as start
    from toolformer_ops.storage.postgres import database

    settings, choices = load_settings(), RunChoices.parse_json(parameters)
    tools = start(settings, run, choices, schedule or None, _dag_run(dag_run))
    with database.transaction(database.connect(settings)) as connection:
        _print_result({"tools": tools, "takes": str(documents_taken(connection, run))})


@stage("filter")
def filter_documents(run: Run, tool: Tool, shard: Shard = "0/1") -> None:
    """Decide by the tool's heuristic which paragraphs or documents are worth sampling.

    Example: toolformer-ops stage filter --run night-1 --tool Calculator --shard 0/4
    """
    from toolformer_ops.runs.micro_batches import StartUp
    from toolformer_ops.runs.models import RunModel
    from toolformer_ops.stages.filtering import filter_stage

    settings = load_settings()
    filter_stage(settings, run, tool, shard, RunModel(settings, StartUp(loads_model=False)))


@stage("tools-to-do")
def tools_to_do(run: Run) -> None:
    """Print which tools of the run have work and in how many shards to filter, as JSON; the tasks of other tools need not start.

    Example of the line: {"tools": ["Calculator"], "filter_shards": ["0/1"]}.

    Example: toolformer-ops stage tools-to-do --run night-1
    """
    from toolformer_ops.stages import planning

    _print_result(asdict(planning.tools_to_do(load_settings(), run)))


@stage("plan")
def plan(run: Run, tool: Tool) -> None:
    """Print the shards that the rest of this tool's work is split into, as JSON, such as ["0/2", "1/2"].

    Example: toolformer-ops stage plan --run night-1 --tool Calculator
    """
    from toolformer_ops.stages.planning import plan_shards

    _print_result(plan_shards(load_settings(), run, tool))


@stage("annotate")
def annotate(run: Run, tool: Tool, shard: Shard = "0/1") -> None:
    """Do `sample`, `execute` and `score` in rounds, and `placebo` if it can be drawn by then; the model is loaded once.

    Example: toolformer-ops stage annotate --run night-1 --tool Calculator --shard 0/4
    """
    from toolformer_ops.stages.annotating import annotate_stage

    _with_model(annotate_stage, run, tool, shard)


def _with_model(stage: Callable[..., object], run: str, tool: str, shard: str) -> None:
    """Run a stage with the run's model; what the process took to start is measured.

    In a run with `until_kept` all stages are run instead, text by text, and each shard is one more process.
    """
    from toolformer_ops.runs.micro_batches import StartUp
    from toolformer_ops.runs.models import RunModel
    from toolformer_ops.stages.annotating import annotate_until_kept

    settings = load_settings()
    model = RunModel(settings, StartUp())
    if model.run_tool(run, tool).choices.until_kept is None:
        stage(settings, run, tool, shard, model)
    else:
        annotate_until_kept(settings, run, tool, model)


@stage("sample")
def sample(run: Run, tool: Tool, shard: Shard = "0/1") -> None:
    """Find call positions and sample calls from the language model.

    Example: toolformer-ops stage sample --run night-1 --tool Calculator --shard 0/4
    """
    from toolformer_ops.stages.sampling import sample_stage

    _with_model(sample_stage, run, tool, shard)


@stage("execute")
def execute(run: Run, tool: Tool, shard: Shard = "0/1") -> None:
    """Run the tool on every input that has no result yet.

    Example: toolformer-ops stage execute --run night-1 --tool WikiSearch --shard 0/4
    """
    from toolformer_ops.stages.execution import execute_stage

    _with_model(execute_stage, run, tool, shard)


@stage("score")
def score(run: Run, tool: Tool, shard: Shard = "0/1") -> None:
    """Compute the three losses of every executed call.

    Example: toolformer-ops stage score --run night-1 --tool Calculator --shard 0/4
    """
    from toolformer_ops.stages.scoring import score_stage

    _with_model(score_stage, run, tool, shard)


@stage("placebo")
def placebo(run: Run, tool: Tool, shard: Shard = "0/1") -> None:
    """Score results of other calls in the calls' places, once all calls of the tool are scored.

    Example: toolformer-ops stage placebo --run night-1 --tool Calculator --shard 0/4
    """
    from toolformer_ops.stages.placebo import placebo_stage

    _with_model(placebo_stage, run, tool, shard)


@stage("check")
def check(run: Run) -> None:
    """Test the rows of each complete tool, and print as JSON which passed; exit 3 if none did.

    A tool is refused if a check with severity `fail` does not pass.

    Example: toolformer-ops stage check --run night-1
    """
    from toolformer_ops.audit.checking import check_tools

    checked = check_tools(load_settings(), run)
    _print_result(asdict(checked))
    if not checked.passed:
        reasons = "; ".join(checked.refused.values()) or "none is complete"
        raise NoResultError(
            f"expected at least one tool to come through, found none: nothing to release. {reasons}. What is "
            "done stays done."
        )


@stage("release")
def release(
    run: Run,
    accept_none: Annotated[
        bool,
        typer.Option("--accept-none", help="Exit 0, not 3, if no call was kept: an outcome, as in the DAG."),
    ] = False,
) -> None:
    """Weave the kept calls of all tools into their texts, publish them as a release on S3, and print its id as JSON.

    Prints how many examples changed since the schedule's last finetuning, too. Without a kept call the id is
    null, and the exit status 3.

    Example: toolformer-ops stage release --run night-1
    """
    from toolformer_ops.stages import release as releasing

    released = releasing.release_of_run(load_settings(), run)
    _print_result(asdict(released))
    if released.release_id is None and not accept_none:
        raise NoKeptCallError(released.reason)


@stage("check-release")
def check_release(run: Run) -> None:
    """Test the run's release; exit 3 if a check with severity `fail` does not pass.

    Example: toolformer-ops stage check-release --run night-1
    """
    from toolformer_ops.audit import checking

    checking.check_release(load_settings(), run)


@stage("start-finetuning")
def start_finetuning(
    run: Run,
    release: Annotated[str, typer.Option(help="Id or s3:// address of a release that exists.")],
    parameters: Annotated[
        str, typer.Option(help="finetune_* and evaluation_* parameters to choose anew, as JSON.")
    ],
    dag_run: DagRunKey = "",
) -> None:
    """Register a run that finetunes and evaluates on a release that exists already.

    Example: toolformer-ops stage start-finetuning --run tuned-1 --release 4f0c91b2d4a7e633 --parameters
    '{"finetune_steps": 500}'
    """
    from toolformer_ops.stages.run_setup import start_finetuning as start

    chosen = start(load_settings(), run, release, parameters, _dag_run(dag_run))
    _print_result({"release": release, "baseline": chosen.finetune_baseline})


@stage("finetune")
def finetune(run: Run, without_calls: WithoutCalls = False) -> None:
    """Finetune the language model on the run's release, on all GPUs there are, from the last checkpoint on.

    Example: toolformer-ops stage finetune --run night-1
    """
    from toolformer_ops.stages import finetuning

    _print_result(finetuning.finetune(load_settings(), run, without_calls=without_calls))


@stage("publish")
def publish(run: Run, without_calls: WithoutCalls = False) -> None:
    """Publish the finetuned model on S3, its manifest last.

    Example: toolformer-ops stage publish --run night-1
    """
    from toolformer_ops.stages import finetuning

    finetuning.publish(load_settings(), run, without_calls=without_calls)


@stage("report-evaluation")
def report_evaluation(run: Run) -> None:
    """Publish the page of the run's evaluations on S3, and print its address as JSON.

    Example: toolformer-ops stage report-evaluation --run night-1
    """
    from toolformer_ops.stages import evaluation_report

    _print_result({"uri": evaluation_report.report_evaluation(load_settings(), run)})


@stage("evaluate")
def evaluate(
    run: Run, suite: Annotated[str, typer.Option(help="lama, math, qa, mlqa, temporal or perplexity.")]
) -> None:
    """Evaluate the run's models on one suite of the paper, and the language model for comparison, into `evaluation_scores`.

    Example: toolformer-ops stage evaluate --run night-1 --suite math
    """
    from toolformer_ops.stages import evaluation

    evaluation.evaluate_stage(load_settings(), run, suite)


@stage("audit")
def audit_all(
    sample: Annotated[int, typer.Option(min=0, help="Compute about so many calls again, by the engine.")] = 0,
    seed: Annotated[str, typer.Option(help="Chooses these calls, together with their content.")] = "",
) -> None:
    """Audit everything, and print what was found as JSON; see `toolformer-ops audit`.

    Example: toolformer-ops stage audit --sample 20
    """
    from toolformer_ops.audit.running import audit, require_sound

    lines: list[str] = []
    outcome = audit(load_settings(), sample=sample, seed=seed, say=lines.append)
    report = "\n".join(f"- {line.removeprefix('- ')}" for line in lines)
    _print_result({"report": report})
    require_sound(outcome)


@stage("retention")
def retention(
    drop: Annotated[
        bool, typer.Option("--drop/--no-drop", help="Drop what the policy lets go; else only say it.")
    ] = False,
) -> None:
    """Follow the policy of retention, and print what it did as JSON; see `toolformer-ops retention`.

    Example: toolformer-ops stage retention --no-drop
    """
    from toolformer_ops.airflow_tasks.nights.retention import AIRFLOW_DAYS, clean_airflow, policy_of
    from toolformer_ops.storage.history.retention_policy import follow

    settings = load_settings()
    lines = list(follow(settings, policy_of(settings, {}), drops=drop))
    lines += clean_airflow(settings, AIRFLOW_DAYS, drops=drop)
    lines.reverse()  # sums first: a note may be cut
    _print_result({"report": "\n".join(f"- {line}" for line in lines)})


@stage("finish-run")
def finish_run(
    run: Run,
    state: Annotated[str, typer.Option(help="success or failed.")] = "success",
    problem: Annotated[str, typer.Option(help="What failed.")] = "",
    dag_run: DagRunKey = "",
    not_opened: Annotated[
        bool,
        typer.Option(
            "--not-opened", help="The run was not opened this time: a run that has ended stays as it is."
        ),
    ] = False,
) -> None:
    """Record how a run ended, store its numbers, and print its summary as JSON, if it annotates.

    A DAG run ends the run that it opened, and no other. Then the history on S3 is written; the run has
    ended by then, whatever becomes of it.

    Example: toolformer-ops stage finish-run --run night-1 --state success
    """
    from toolformer_ops.stages.run_setup import finish_run as finish
    from toolformer_ops.storage.history.history import write_at_end

    settings = load_settings()
    summary = finish(settings, run, state, problem, dag_run=_dag_run(dag_run), was_opened=not not_opened)
    if summary:
        _print_result({"summary": summary})
        write_at_end(settings, run)
