"""Subcommands that evaluate models on the paper's suites, write DATESET, and fetch the page of a run's evaluations.

Results go to stdout, progress to stderr.
"""

import dataclasses
import datetime
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolformer_ops.cli.options import ToolsOption
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import EXIT_FAILED, UsageError
from toolformer_ops.shown_text import json_to_show

if TYPE_CHECKING:
    from toolformer_ops.evaluation.records import Variant
    from toolformer_ops.evaluation.session import Entrant

app = typer.Typer()


@app.command("evaluate")
def evaluate(
    model: Annotated[
        str, typer.Option(help="The finetuned model: folder, id@revision or s3://bucket/models/ID.")
    ],
    suite: Annotated[str, typer.Option(help="Suites with commas between; math:gsm8k is one data set alone.")],
    data: Annotated[str, typer.Option(help="Folder or s3:// address that holds one folder a data set.")],
    sample: Annotated[
        int | None,
        typer.Option(help="Only so many inputs of each data set, from all its parts; by default all.", min=1),
    ] = None,
    k: Annotated[
        str,
        typer.Option(help="A call starts if it is among the k most likely tokens; commas between several."),
    ] = "10",
    tools: ToolsOption = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Also M, M finetuned without calls, and Toolformer with calls disabled."
        ),
    ] = False,
    base: Annotated[str, typer.Option(help="With --compare: the model M before finetuning.")] = "",
    without_calls: Annotated[
        str, typer.Option(help="With --compare: M finetuned on the same texts without calls.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write every input as a JSON line: prompt, what was written, calls, answers, verdict."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Evaluate a model on suites of the paper: lama, math, qa, mlqa, temporal, perplexity.

    Example: toolformer-ops evaluate --model models/tuned --suite math,qa --data data --sample 200 --tool
    Calculator
    """
    from toolformer_ops.evaluation.comparing import compare as compare_evaluations
    from toolformer_ops.evaluation.data_files import DataFolder
    from toolformer_ops.evaluation.session import Outcome, load_suites
    from toolformer_ops.evaluation.session import evaluate as run
    from toolformer_ops.evaluation.store import input_lines
    from toolformer_ops.evaluation.tables import print_tables
    from toolformer_ops.tools.registry import typed_tools

    # 1. What was typed.
    settings = load_settings()
    ranks = _ranks(k)
    if not compare and (base or without_calls):
        raise UsageError("--base, --without-calls: expected --compare with them, found none. Add --compare.")
    if compare and not base:
        raise UsageError("--compare: expected the model before finetuning as --base, found none.")
    if out is not None:
        _require_writable(out)  # before hours of work
    # 2. Each model on each suite.
    outcome = Outcome()
    suites = load_suites(DataFolder(settings, data), suite.split(","), sample, outcome)
    if compare:
        ranks.add(0)
    # Each k once, 0 first.
    variants: list[tuple[Variant, int]] = []
    for rank in sorted(ranks):
        variants.append(("with_tools" if rank > 0 else "disabled", rank))
    entrants = [_entrant(settings, model, variants, typed_tools(tools or ()) or None)]
    if base:
        entrants.append(_entrant(settings, base, [("base", 0)], ()))
    if without_calls:
        entrants.append(_entrant(settings, without_calls, [("without_calls", 0)], ()))
    run(entrants, suites, outcome)
    # 3. Inputs, and scores.
    if out is not None:
        inputs = (evaluation.inputs for evaluation in outcome.evaluations)
        out.write_bytes(input_lines(itertools.chain.from_iterable(inputs)))
    comparisons = compare_evaluations(outcome.evaluations)
    if as_json:
        report = {
            "scores": [dataclasses.asdict(score) for score in outcome.scores],
            "differences": [dataclasses.asdict(compared) for compared in comparisons],
            "left_out": outcome.left_out,
            "failures": outcome.failures,
        }
        typer.echo(json_to_show(report, indent=2, default=datetime.date.isoformat))
    else:
        print_tables(outcome.scores, comparisons)
    if outcome.failures:
        raise typer.Exit(EXIT_FAILED)


def _require_writable(file: Path) -> None:
    """Make an empty file there; raises `UsageError` if that cannot be."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    except OSError as error:
        raise UsageError(
            f"--out: expected a file that can be written, found {file}: {error.strerror}."
        ) from error


def _ranks(k: str) -> set[int]:
    try:
        ranks = {int(part) for part in k.split(",")}
    except ValueError:
        ranks = set()
    if not ranks or min(ranks) < 0:
        raise UsageError(f"--k: expected whole numbers from 0 with commas between, found {k!r}.")
    return ranks


def _entrant(settings: Settings, model: str, variants: "list[tuple[Variant, int]]", tools: Any) -> "Entrant":
    from toolformer_ops.evaluation.session import Entrant

    def load() -> Any:
        from toolformer_ops.decoding.model import WritingModel

        return WritingModel.load(settings, model, tools=tools)

    return Entrant(load, tuple(variants))
