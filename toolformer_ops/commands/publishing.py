"""`toolformer-ops publish-model | export-judgements`: a model on S3, where every machine finds it; what reviewers said of calls."""

from pathlib import Path
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
    from toolformer_ops.models.publishing import publish_model as publish
    from toolformer_ops.runs.models import split_revision

    typer.echo(publish(load_settings(), *split_revision(model), name or None).address)


@app.command("export-judgements")
def export_judgements(
    release: Annotated[str, typer.Argument(help="The id of a release.")],
    out: Annotated[Path | None, typer.Argument(help="A folder; without one, they go to S3.")] = None,
) -> None:
    """Write what reviewers said of a release's calls as JSON Lines, and print where: on S3 below judgements/, beside releases/.

    Each export has a name of its own, and the release does not change.

    Example: toolformer-ops export-judgements 0123456789abcdef judgements/
    """
    from toolformer_ops.evaluation.judgements import export
    from toolformer_ops.storage import database
    from toolformer_ops.storage.object_store import ObjectStore

    settings = load_settings()
    with database.transaction(database.connect(settings)) as connection:
        name, content = export(connection, release)
    if out is None:
        store = ObjectStore(settings)
        store.require_bucket()
        store.put_if_absent(f"judgements/{name}", content)
        typer.echo(store.uri(f"judgements/{name}"))
        return
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    typer.echo(path)
