"""`toolformer-ops demo` and `toolformer-ops run`: whole runs through Airflow, with progress and a report.

Imports nothing heavy: the command line that every stage starts with holds this module.
"""

from typing import Annotated, Any

import typer

from toolformer_ops.cli.options import (
    FieldOption,
    LimitOption,
    Model,
    ProposerOption,
    RunParametersJson,
    ThresholdOption,
    ToolsOption,
    UntilKeptOption,
    print_observations,
)

app = typer.Typer()

INTERRUPTED = 130


@app.command("demo")
def demo(
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", help="Only the first texts of the demo corpus; by default 64 of them."),
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
    """Annotate the demo corpus with the five tools and a database, release it and finetune the demo model on it.

    Example: toolformer-ops demo
    """
    from toolformer_ops.local.accounts import require_linux

    if not deployed:
        require_linux()
    from rich.console import Console

    from toolformer_ops.config import load_settings
    from toolformer_ops.local.demo.choices import demo_document_count
    from toolformer_ops.local.demo.driver import run_demo

    count = demo_document_count(limit)
    try:
        run_demo(Console(), load_settings(), count, deployed=deployed)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


_Corpus = Annotated[
    str, typer.Argument(help="Path or s3:// address of JSON Lines or Parquet with a field `text`.")
]
_Finetune = Annotated[
    bool,
    typer.Option("--finetune/--no-finetune", help="Train the model on the release, or end with the release."),
]
_Attach = Annotated[
    str,
    typer.Option(
        metavar="RUN", help="Start nothing: watch this run of annotate_corpus to its end, and report it."
    ),
]
_AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one line of JSON on stdout, how the run ended with its release, model and counts; all else on stderr.",
    ),
]


@app.command("run")
def run_corpus(
    corpus: _Corpus = "",
    tools: ToolsOption = None,
    limit: LimitOption = None,
    until_kept: UntilKeptOption = None,
    field: FieldOption = None,
    model: Model = "",
    parameters: RunParametersJson = "",
    thresholds: ThresholdOption = None,
    proposer: ProposerOption = "",
    finetune: _Finetune = True,
    attach: _Attach = "",
    as_json: _AsJson = False,
) -> None:
    """Annotate your own text on this machine, with the demo's numbers unless you give others; exit 3 if no call is kept.

    Example: toolformer-ops run posts.jsonl --tool Calculator,Calendar --limit 100 --threshold
    Calculator=0.7
    Example: toolformer-ops run posts.jsonl --until-kept 1000
    Example: toolformer-ops run --attach run-20261123-081500
    Example: toolformer-ops run posts.jsonl --json | tail -n 1 | jq -r .release.uri
    """
    from toolformer_ops.local.accounts import require_linux

    require_linux()
    from rich.console import Console

    from toolformer_ops.config import load_settings
    from toolformer_ops.errors import ToolformerError, UsageError, exit_code
    from toolformer_ops.local.demo import driver
    from toolformer_ops.local.demo.choices import corpus_uri, model_name
    from toolformer_ops.local.demo.outcome import outcome_line
    from toolformer_ops.on_a_file.look.checking import CorpusLook, observations
    from toolformer_ops.runs.typed_choices import typed_choices

    new_run_options = (
        corpus,
        tools,
        limit,
        until_kept,
        field,
        model,
        parameters,
        thresholds,
        proposer,
        not finetune,
    )
    if attach and any(new_run_options):
        raise UsageError("--attach: expected nothing else, found what only a new run takes.")
    console = Console(stderr=as_json)
    settings = load_settings()
    run_id = attach or driver.new_run_id("run")

    def print_outcome(exit_status: int, reason: str | None = None) -> None:
        if as_json:  # `up` has told the settings where the services are
            typer.echo(outcome_line(load_settings(), run_id, exit_status, reason))

    try:
        if attach:
            driver.attach(console, settings, attach)
        else:
            further: dict[str, Any] = {} if finetune else {"finetune": False}
            chosen = typed_choices(
                corpus_uri(settings, corpus),
                model_name(settings, model or settings.default_model),
                tools=tools,
                limit=limit,
                until_kept=until_kept,
                thresholds=thresholds,
                fields=field,
                proposer=proposer,
                parameters=parameters,
                **further,
            )
            if not chosen.corpus.startswith("s3://"):  # which is looked at once S3 is up
                lines = observations(settings, chosen, CorpusLook(), is_here=False)
                print_observations(lines, err=as_json)
            driver.run_corpus(console, settings, chosen, run_id)
    except KeyboardInterrupt:
        print_outcome(INTERRUPTED, "interrupted: the run continues")
        raise typer.Exit(INTERRUPTED) from None
    except ToolformerError as error:
        print_outcome(exit_code(error), str(error))
        raise
    print_outcome(0)
