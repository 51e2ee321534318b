"""`toolformer-ops export`: a release in the formats of other programs."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from toolformer_ops.config import load_settings
from toolformer_ops.errors import ParameterError

FORMATS = ("chat",)

app = typer.Typer()


@app.command("export")
def export(
    release: Annotated[str, typer.Argument(help="A release: its folder, or its s3:// address.")],
    out: Annotated[str, typer.Argument(help="Where to write: a .jsonl file or a folder, local or s3://.")],
    export_format: Annotated[
        str, typer.Option("--format", help="chat: messages with tools and tool results, as JSON Lines.")
    ] = "chat",
    seed: Annotated[int, typer.Option(help="Another seed gives other openings to the user.", min=0)] = 0,
) -> None:
    """Write a release as chat messages with tools, as chat templates and TRL take them; print what was written as JSON.

    Example: toolformer-ops export --format chat s3://toolformer/releases/0123456789abcdef chat/
    """
    if export_format not in FORMATS:
        raise ParameterError(f"--format: expected one of {', '.join(FORMATS)}, found {export_format!r}.")
    from toolformer_ops.release.chat_export import export_chat

    typer.echo(json.dumps(asdict(export_chat(load_settings(), release, out, seed)), indent=2))
