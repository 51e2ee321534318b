"""Options and arguments that several subcommands have, and what follows from them."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolformer_ops.config import load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.shown_text import visible

if TYPE_CHECKING:
    from toolformer_ops.on_a_file.look.checking import Observation
    from toolformer_ops.runs.choices import RunChoices

Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="Folder, id@revision or s3://bucket/models/NAME, or demo, the demo's model; "
        "empty: the setting default_model, else the demo's.",
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="Only the first texts; by default all.")
]
ThresholdOption = Annotated[
    list[str] | None,
    typer.Option(
        "--threshold",
        "--thresholds",
        help="Keep thresholds in nats, as Calculator=0.3,QA=0.7, or given again.",
    ),
]
UntilKeptOption = Annotated[
    int | None,
    typer.Option(min=1, help="End a tool's work when so many of its calls are kept."),
]
ToolsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tool", "--tools", help="Names of tools with commas between them, or given again; none: all."
    ),
]
Corpus = Annotated[
    str,
    typer.Argument(help="Path or s3:// address of JSON Lines, also packed, or Parquet, with a field `text`."),
]
FieldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        help="If records name a field otherwise: text=raw_content; also date=, crawled=, url=, title=, id=. Or the corpus, "
        "whose names are known: c4, ccnet, dolma, fineweb, oscar, the_stack. near_duplicates=0.8 leaves out "
        "a text that shares four fifths of its passages with another. May be repeated.",
    ),
]
RunParametersJson = Annotated[
    str,
    typer.Option(
        "--parameters",
        help="Run parameters as JSON; they override the preset small_model (`toolformer-ops parameters`).",
    ),
]
ProposerOption = Annotated[
    str,
    typer.Option(
        "--proposer",
        help="Who proposes calls: model (the default), tool (the tools themselves, without a model), tool-or-model "
        "(the model for the tools that cannot), tool+model (both), or endpoint:NAME.",
    ),
]


def model_name(model: str) -> str:
    """The model that was named, or the default; raises as `named_model`."""
    from toolformer_ops.local.demo.model import named_model

    return named_model(load_settings(), model)


def corpus_address(corpus: str, field: Sequence[str] | None) -> str:
    """The address of a corpus with the names of its fields; raises `UsageError` if these are no mapping."""
    from toolformer_ops.storage.corpora.addresses import CorpusAddress

    return str(CorpusAddress.of(corpus, field or ()))


def choices_without_services(corpus: str, model: str, **options: Any) -> "RunChoices":
    """The choices of a command that works in this process, from the options of `typed_choices`; raises as it.

    The model comes last, since the demo's may have to be converted.
    """
    from toolformer_ops.local.demo.model import DEMO
    from toolformer_ops.runs.typed_choices import typed_choices

    choices = typed_choices(corpus, DEMO, **options)
    return choices.model_copy(update={"model": model_name(model)})


def print_observations(lines: "Iterable[Observation]", *, err: bool = False) -> None:
    """Print what `check` sees, line by line; raises `UsageError` if a run would end with one of them."""
    wrong = []
    for line in lines:
        typer.echo(visible(str(line)), err=err)
        if line.state == "wrong":
            wrong.append(line.subject)
    if wrong:
        raise UsageError(
            f"expected a corpus, tools and a model that a run can use, found {', '.join(wrong)} wrong."
        )
