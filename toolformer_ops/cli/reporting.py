"""`toolformer-ops report`: the page of a run's evaluations, from S3 to this machine."""

from pathlib import Path
from typing import Annotated

import typer

from toolformer_ops.config import load_settings

app = typer.Typer()


@app.command("report")
def report(
    run: Annotated[str, typer.Option(help="Id of the run, as in the DAG.")],
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("evaluation-report.html"),
    show: Annotated[bool, typer.Option("--open", help="Also show it in this machine's browser.")] = False,
) -> None:
    """Fetch the page of a run's evaluations; it needs no network and no other file. Prints its path.

    Example: toolformer-ops report --run manual__2026-11-21T16:30:00+00:00 --out report.html
    """
    from toolformer_ops.stages.evaluation_report import fetch_report, open_report

    page = fetch_report(load_settings(), run, out)
    typer.echo(str(page))
    if show and not open_report(page):
        typer.echo("no browser was found: open the file yourself", err=True)
