"""`toolformer-ops thresholds`: ask which thresholds of a run hold a false-discovery rate."""

from typing import Annotated

import typer

from toolformer_ops.config import load_settings
from toolformer_ops.errors import EXIT_NO_RESULT

app = typer.Typer()

RunId = Annotated[str, typer.Argument(help="Id of a run, as in annotation_runs.")]


@app.command("thresholds")
def thresholds(
    run: RunId,
    false_discovery_rate: Annotated[
        float,
        typer.Option(
            help="The largest share of the kept calls that may be kept by chance.", min=0.0, max=1.0
        ),
    ] = 0.1,
) -> None:
    """Print for each tool of a run the lowest threshold that holds a false-discovery rate, with the calls that it keeps.

    The rate holds on average over all tools that ask, tools without a threshold counted as 0. If few
    calls are good, a threshold is rare, and most calls above it may be kept by chance (docs/placebo.md, "What
    a threshold promises").

    Exit 3 if there is no such threshold for any tool.

    Example: toolformer-ops thresholds night-1 --false-discovery-rate 0.1
    """
    from toolformer_ops.runs.placebo_rates import lowest_threshold
    from toolformer_ops.runs.run_tools import load_run_tool, require_run
    from toolformer_ops.storage.postgres import database, queries

    with database.transaction(database.connect(load_settings(), writes=False)) as connection:
        require_run(connection, run)
        tools = [row.tool for row in database.fetch_all(connection, queries.numbers.tools, run_id=run)]
        thresholds = [
            lowest_threshold(connection, load_run_tool(connection, run, tool), false_discovery_rate)
            for tool in tools
        ]
    for lowest in thresholds:
        if lowest.threshold is None or lowest.rate is None:
            typer.echo(f"{lowest.tool}: none ({lowest.why_not})")
        else:
            typer.echo(
                f"{lowest.tool}: {lowest.threshold:g} nats, {lowest.calls} calls, by chance {lowest.rate}"
            )
    if all(lowest.threshold is None for lowest in thresholds):
        raise typer.Exit(EXIT_NO_RESULT)
