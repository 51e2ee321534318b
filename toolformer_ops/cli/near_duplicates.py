"""`toolformer-ops near-duplicates`: which texts of a corpus nearly repeat another one."""

from typing import Annotated

import typer

from toolformer_ops.cli.people import Corpus, FieldOption, corpus_address
from toolformer_ops.config import load_settings
from toolformer_ops.shown_text import visible

app = typer.Typer()


@app.command("near-duplicates")
def near_duplicates_command(
    corpus: Corpus,
    field: FieldOption = None,
    share: Annotated[
        float, typer.Option(min=0.5, max=1.0, help="How much of their passages two texts share.")
    ] = 0.8,
    show: Annotated[int, typer.Option(min=0, help="So many of the pairs are printed.")] = 5,
) -> None:
    """Count the texts of a corpus that nearly repeat another one; reads the files alone.

    A passage is five words in a row. A run with --field near_duplicates=0.8 leaves these texts out.

    Example: toolformer-ops near-duplicates posts.jsonl --share 0.8
    """
    from toolformer_ops.on_a_file.near_duplicates import near_duplicates, sketched_texts

    texts = sketched_texts(load_settings(), corpus_address(corpus, field))
    repeated = list(near_duplicates(texts, share))
    part = f" ({100 * len(repeated) / len(texts):.1f} %)" if repeated else ""
    typer.echo(
        f"{len(texts):,} different texts; {len(repeated):,}{part} share {share:g} or more with another one."
    )
    for pair in repeated[:show]:
        typer.echo(f"\n{pair.share:.2f}")
        for kind, text in (("stays   ", pair.original), ("left out", pair.repeats)):
            beginning = " ".join(visible(text.beginning).split())
            typer.echo(f"  {kind}  {visible(text.name)}  {beginning}")
