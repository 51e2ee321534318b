"""`toolformer-ops history`: finished runs as Parquet files on S3, which `toolformer-ops sql --history` asks."""

from typing import Annotated

import typer

from toolformer_ops.config import load_settings
from toolformer_ops.errors import EXIT_FAILED, UsageError

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
    give_up_lost: Annotated[
        bool,
        typer.Option(
            "--give-up-lost",
            help="Give up files that are not in the bucket although Postgres has their rows no more.",
        ),
    ] = False,
) -> None:
    """Write finished runs into the history, with what is missing of it on S3; the end of a run does it by itself.

    What exists already is not written again. May be interrupted and started again.

    Example: toolformer-ops history write --all
    """
    from toolformer_ops.storage.history.history import write

    if bool(run) == all_runs:
        raise UsageError(f"expected --run or --all, found {'both' if run else 'neither'}.")
    written = write(load_settings(), run or None, gives_up_lost=give_up_lost)
    for key in written.lost:
        typer.echo(f"was not there as it was written: {key}")
    for key in written.only_copies:
        typer.echo(f"is not there, and Postgres has not all of its rows: {key}")
    typer.echo(
        f"{len(written.runs):,} runs written: {written.rows:,} rows in {written.files:,} files, "
        f"{written.bytes:,} bytes"
    )
    if written.only_copies:
        raise typer.Exit(EXIT_FAILED)


@app.command("merge")
def merge_command() -> None:
    """Merge the small files that nights have written, since a question opens each of them.

    Example: toolformer-ops history merge
    """
    from toolformer_ops.storage.history.merging import merge

    typer.echo(f"{merge(load_settings()):,} fewer files")


@app.command("register")
def register_command() -> None:
    """Register files of the bucket again that Postgres no longer knows, such as after a restored backup.

    Each is compared with its name, which is its content. Small tables, corpora and releases are written anew
    by `history write --all` instead.

    Example: toolformer-ops history register
    """
    from toolformer_ops.storage.history.registering import register

    registered = register(load_settings())
    for key in registered.files:
        typer.echo(f"registered: {key}")
    for key, reason in registered.refused.items():
        typer.echo(f"not registered: {key}: {reason}")
    typer.echo(f"{len(registered.files):,} files registered; `history write --all` adds their runs")
    if registered.refused:
        raise typer.Exit(EXIT_FAILED)
