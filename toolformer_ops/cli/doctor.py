"""`toolformer-ops doctor`: whether a stage could run here, or on the cluster."""

import contextlib
import sys
from typing import Annotated

import typer

from toolformer_ops.config import load_settings
from toolformer_ops.errors import EXIT_FAILED

app = typer.Typer()


@app.command("doctor")
def doctor(
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Look at the cluster that the settings name, before the first run.")
    ] = False,
    pods: Annotated[
        bool, typer.Option("--pods/--no-pods", help="With --kubernetes: start a short pod by each template.")
    ] = True,
    wait_seconds: Annotated[
        float, typer.Option(min=1, help="Longest wait for such a pod; adding a node takes minutes.")
    ] = 900.0,
) -> None:
    """Say what a stage needs and what of it is missing, a line each: ok, missing with the remedy, or unknown.

    Ends with 1 if something is missing. `unknown` is what cannot be seen with the rights that there are.

    Example: toolformer-ops doctor --kubernetes
    """
    settings = load_settings()
    missing, stdout = 0, sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # Airflow logs to stdout, on which belong the findings alone
        if kubernetes:
            from toolformer_ops.airflow_tasks.doctor import findings_of_cluster

            found = findings_of_cluster(settings, pods=pods, wait_seconds=wait_seconds)
        else:
            from toolformer_ops.runs.self_check import findings

            found = findings(settings)
        for finding in found:
            typer.echo(str(finding), file=stdout)
            missing += finding.state == "missing"
    if missing:
        raise typer.Exit(EXIT_FAILED)
