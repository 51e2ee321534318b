"""`toolformer-ops publish-model | push | download`: what leaves the factory, and a model that comes into it.

A model on S3, where every machine finds it; a release or model on a hub, or in a folder.
"""

from pathlib import Path
from typing import Annotated

import typer

from toolformer_ops.config import load_settings

app = typer.Typer()

_Licence = Annotated[
    str, typer.Option("--license", help="Licence of the texts, as the hub names it: cc-by-sa-4.0.")
]
_Languages = Annotated[
    list[str] | None,
    typer.Option(
        "--language", help="Language, as en; may be repeated. None: identified in the release's texts."
    ),
]
_Sources = Annotated[
    list[str] | None,
    typer.Option("--source", help="Where the texts come from, in words; none: the address of the corpus."),
]


@app.command("publish-model")
def publish_model(
    model: Annotated[
        str, typer.Argument(help="A folder with safetensors, or a hub id with its commit as id@revision.")
    ],
    name: Annotated[
        str,
        typer.Option(
            help="The last part of the address; empty: the folder's name, or the hub id's last part."
        ),
    ] = "",
) -> None:
    """Publish a model on S3 and print its address, which is taken wherever a model is named; doing so again changes nothing.

    Example: toolformer-ops publish-model HuggingFaceTB/SmolLM2-135M@12fd25f77366fa6b3b4b768ec3050bf629380bac
    """
    from toolformer_ops.language_model.models.identity import split_revision
    from toolformer_ops.language_model.models.publishing import publish_model as publish

    typer.echo(publish(load_settings(), *split_revision(model), name or None).address)


@app.command("push")
def push(
    name: Annotated[
        str, typer.Argument(help="Id or s3:// address of a release or a model.", metavar="RELEASE-or-MODEL")
    ],
    repository: Annotated[str, typer.Argument(help="On the hub: owner/name.", metavar="OWNER/NAME")],
    public: Annotated[
        bool,
        typer.Option("--public", help="Make a new repository public; without it, only its owner reads it."),
    ] = False,
    licence: _Licence = "",
    language: _Languages = None,
    source: _Sources = None,
) -> None:
    """Put a release or model into a repository of the Hugging Face Hub, and print its page and revision; private by default.

    All files become visible at once. A push that broke off continues when it is started again. The token is
    in HF_TOKEN or from `hf auth login`; HF_ENDPOINT names another hub.

    Example: toolformer-ops push 0123456789abcdef my-team/sums-with-calls --license cc-by-sa-4.0
    """
    from toolformer_ops.release import hub

    described = hub.Described(licence=licence, languages=tuple(language or ()), sources=tuple(source or ()))
    pushed = hub.push(load_settings(), name, repository, described, public=public)
    typer.echo(f"{pushed.address}\nrevision {pushed.revision}")


@app.command("download")
def download(
    name: Annotated[
        str, typer.Argument(help="Id or s3:// address of a release or a model.", metavar="RELEASE-or-MODEL")
    ],
    folder: Annotated[Path, typer.Argument(help="Where to; a new folder.")],
    licence: _Licence = "",
    language: _Languages = None,
    source: _Sources = None,
) -> None:
    """Copy a release or model from S3 into a folder, with every file's hash checked; started again, it continues.

    The card, README.md, says licence, languages, sources and date, as in `push`.

    Example: toolformer-ops download 0123456789abcdef my-release --license cc-by-sa-4.0
    """
    from toolformer_ops.release import hub

    described = hub.Described(licence=licence, languages=tuple(language or ()), sources=tuple(source or ()))
    manifest = hub.download(load_settings(), name, folder, described)
    typer.echo(f"{folder}: {len(manifest.files)} files, {manifest.size:,} bytes")
