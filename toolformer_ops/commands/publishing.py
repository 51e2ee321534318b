"""`toolformer-ops publish-model`: put a model on S3, where every machine and pod finds it."""

from typing import Annotated

import typer

from toolformer_ops.config import load_settings

app = typer.Typer()


@app.command("publish-model")
def publish_model(
    model: Annotated[
        str, typer.Argument(help="A folder with safetensors, or a hub id with its commit as id@revision.")
    ],
    name: Annotated[
        str,
        typer.Option(
            "--name", help="The last part of the address; empty: the folder's name, or the hub id's last part."
        ),
    ] = "",
) -> None:
    """Publish a model on S3 and print its address, which is taken wherever a model is named; doing so again changes nothing.

    Example: toolformer-ops publish-model HuggingFaceTB/SmolLM2-135M@12fd25f77366fa6b3b4b768ec3050bf629380bac
    """
    from toolformer_ops.language_model.publishing import publish_model as publish
    from toolformer_ops.runs.models import split_revision

    typer.echo(publish(load_settings(), *split_revision(model), name or None).address)
