"""`toolformer-ops demo` and `toolformer-ops run`: whole runs through Airflow, with progress and a report.

Imports nothing heavy: the command line that every stage starts with holds this module.
"""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()

INTERRUPTED = 130


@app.command("demo")
def demo(
    documents: Annotated[
        int | None,
        typer.Option(help="Take the first documents of the demo corpus; more than the default takes longer."),
    ] = None,
    deployed: Annotated[
        bool,
        typer.Option(
            "--deployed",
            help="Through the Postgres, S3 and Airflow that the settings name, in containers or on Kubernetes: model and Wikipedia "
            "are published on S3 first.",
        ),
    ] = False,
) -> None:
    """Annotate the demo corpus with all five tools, release it and finetune the demo model on it.

    Example: toolformer-ops demo
    """
    from rich.console import Console

    from toolformer_ops.config import load_settings
    from toolformer_ops.demo.choices import demo_document_count
    from toolformer_ops.demo.driver import run_demo

    count = demo_document_count(documents)
    try:
        run_demo(Console(), load_settings(), count, deployed=deployed)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@app.command("run")
def run_corpus(
    corpus: Annotated[
        str, typer.Argument(help="Path or s3:// address of JSON Lines or Parquet with a field `text`.")
    ] = "",
    tools: Annotated[
        list[str] | None,
        typer.Option("--tool", "--tools", help="Names with commas between them, or given again; none: all."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Annotate only the first documents.")] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Folder, id@revision or s3://bucket/models/NAME; empty means the default model, else the demo's."
        ),
    ] = "",
    parameters: Annotated[
        str, typer.Option(help="Other run parameters as JSON; see `toolformer-ops parameters`.")
    ] = "",
    thresholds: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold", "--thresholds", help="Keep thresholds in nats, as Calculator=0.3,QA=0.7, or given again."
        ),
    ] = None,
    attach: Annotated[
        str,
        typer.Option(metavar="RUN", help="Start nothing: watch this run of annotate_corpus to its end, and report it."),
    ] = "",
) -> None:
    """Annotate your own text on this machine, with the demo's numbers unless you give others; exit 3 where no call is kept.

    Example: toolformer-ops run posts.jsonl --tools Calculator,Calendar --limit 100 --thresholds Calculator=0.7
    Example: toolformer-ops run --attach run-20261123-081500
    """
    from rich.console import Console

    from toolformer_ops.config import load_settings
    from toolformer_ops.demo import driver
    from toolformer_ops.demo.choices import corpus_choices
    from toolformer_ops.errors import ParameterError

    if attach and (corpus or tools or limit or model or parameters or thresholds):
        raise ParameterError("--attach: expected nothing else, found what only a new run takes.")
    settings = load_settings()
    try:
        if attach:
            driver.attach(Console(), settings, attach)
        else:
            chosen = corpus_choices(settings, corpus, tools or (), limit, model, parameters, thresholds or ())
            driver.run_corpus(Console(), settings, chosen)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@app.command("study")
def study(
    tool: Annotated[str, typer.Argument(help="Calculator or Calendar.")],
    out: Annotated[Path, typer.Option(help="Folder of the study; a study that was killed continues there.")],
    model: Annotated[
        str, typer.Option(help="Folder, id@revision or s3://bucket/models/NAME; empty means the demo's model.")
    ] = "",
    texts: Annotated[int, typer.Option(min=16, help="Sentences to annotate.")] = 448,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 160,
    batch: Annotated[int, typer.Option(min=1, help="Texts a step.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of each training.")] = 5e-5,
    test: Annotated[int, typer.Option(min=2, help="Fresh sentences to test with.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws other sentences.")] = 0,
    arms: Annotated[
        str, typer.Option(help="What is trained on, with commas: paper, information, random, without_calls.")
    ] = "paper,information,random,without_calls",
) -> None:
    """Teach a model a tool on sentences of one kind, with calls chosen in four ways, and test it with fresh ones; no services.

    A training at the defaults takes half a CPU hour, so a study with four arms takes more than two.

    Example: toolformer-ops study calendar --out .toolformer/calendar-study
    """
    from rich.console import Console

    from toolformer_ops.config import load_settings
    from toolformer_ops.demo.model import prepare_demo_model
    from toolformer_ops.demo.study.study import StudyPlan, run_study, study_tables
    from toolformer_ops.runs.choices import registered_name

    settings = load_settings()
    plan = StudyPlan(
        tool=registered_name(tool),
        texts=texts,
        test=test,
        seed=seed,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        arms=tuple(arms.split(",")),
    )
    found = run_study(settings, model or str(prepare_demo_model(settings.state_dir)), plan, out)
    Console().print(*study_tables(found))
