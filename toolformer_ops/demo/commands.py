"""`toolformer-ops demo` and `toolformer-ops run-corpus`: whole runs through Airflow, with progress and a report.

Imports nothing heavy: the command line that every stage starts with holds this module.
"""

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
        run_demo(Console(), load_settings(), count)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@app.command("run-corpus")
def run_corpus(
    corpus: Annotated[str, typer.Argument(help="Path or s3:// address of JSON Lines with a field `text`.")],
    tools: Annotated[
        list[str] | None,
        typer.Option("--tool", "--tools", help="Names with commas between them, or given again; none: all."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Annotate only the first documents.")] = None,
    model: Annotated[
        str, typer.Option(help="Folder or id@revision; empty means the default model, else the demo's.")
    ] = "",
    parameters: Annotated[
        str, typer.Option(help="Other run parameters as JSON; see `toolformer-ops parameters`.")
    ] = "",
) -> None:
    """Annotate your own text on this machine, with the demo's numbers unless you give others.

    Example: toolformer-ops run-corpus posts.jsonl --tools Calculator,Calendar --limit 100
    """
    from rich.console import Console

    from toolformer_ops.config import load_settings
    from toolformer_ops.demo.choices import corpus_parameters
    from toolformer_ops.demo.driver import run_corpus as run

    settings = load_settings()
    chosen = corpus_parameters(settings, corpus, tools or (), limit, model, parameters)
    try:
        run(Console(), settings, chosen)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
