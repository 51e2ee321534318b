"""`toolformer-ops history write`: finished runs as Parquet files on S3, which `toolformer-ops sql --history` asks."""

from typing import Annotated

import typer

from toolformer_ops.config import load_settings
from toolformer_ops.errors import UsageError

app = typer.Typer(no_args_is_help=True)


@app.callback()
def history() -> None:
    """Finished runs as Parquet files on S3, for DuckDB and other engines that read columns."""


@app.command("write")
def write_command(
    run: Annotated[str, typer.Option(help="Id of a finished run.")] = "",
    all_runs: Annotated[
        bool, typer.Option("--all", help="Every finished run that the history lacks.")
    ] = False,
) -> None:
    """Write finished runs into the history, with what is missing of it on S3; the end of a run does it by itself.

    What exists already is not written again. May be interrupted and started again.

    Example: toolformer-ops history write --all
    """
    from toolformer_ops.storage.history import write

    if bool(run) == all_runs:
        raise UsageError(f"expected --run or --all, found {'both' if run else 'neither'}.")
    written = write(load_settings(), run or None)
    for key in written.lost:
        typer.echo(f"was not there as it was written: {key}")
    typer.echo(
        f"{len(written.runs):,} runs written: {written.rows:,} rows in {written.files:,} files, "
        f"{written.bytes:,} bytes"
    )
