"""Subcommands for people: run a tool, try a filter, explain one call's losses, annotate a file. No Airflow, no Postgres.

Results go to stdout, what is said about them to stderr.
"""

import functools
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from toolformer_ops.config import load_settings
from toolformer_ops.errors import EXIT_NO_RESULT, ParameterError, UsageError

app = typer.Typer()

Model = Annotated[str, typer.Option("--model", help="Folder or id@revision; empty means the setting default_model.")]
ToolOption = Annotated[str, typer.Option("--tool", help="Name of a tool, such as Calculator.")]
Corpus = Annotated[Path, typer.Argument(help="JSON Lines with a field `text`, optionally .gz or .zst.")]


def _model_name(model: str) -> str:
    name = model or load_settings().default_model
    if not name:
        raise ParameterError("--model: expected a language model, found none, and TOOLFORMER_DEFAULT_MODEL is not set.")
    return name


@app.command("call")
def call(
    tool: Annotated[str, typer.Argument(help="Name of a tool, such as Calculator.")],
    call_input: Annotated[str, typer.Argument(help="What stands between the brackets of the call.")] = "",
    date: Annotated[str, typer.Option(help="Date of the document, for the Calendar: 2023-01-30.")] = "",
    model: Model = "",
) -> None:
    """Run a tool on one input and print its result; exit 3 where there is none.

    Example: toolformer-ops call Calculator "27 + 4 * 2"
    """
    from toolformer_ops.single_process import run_one

    output = run_one(load_settings(), tool, call_input, date or None, functools.partial(_model_name, model))
    if output.reason is not None:
        typer.echo(f"no result: {output.reason}", err=True)
        raise typer.Exit(EXIT_NO_RESULT)
    typer.echo(output.results[0])


@app.command("filter")
def filter_file(corpus: Corpus, tool: ToolOption) -> None:
    """Print a tool's filter decisions, one JSON line a document, or one a paragraph where the tool judges paragraphs.

    Example: toolformer-ops filter --tool Calculator docs.jsonl
    """
    from toolformer_ops.single_process import filter_lines

    for line in filter_lines(load_settings(), tool, corpus):
        typer.echo(json.dumps(line, ensure_ascii=False))


@app.command("explain")
def explain(
    text: Annotated[str, typer.Option(help="The text around the call, without calls.")],
    at: Annotated[int, typer.Option(help="Offset in the text, in characters, at which the call stands.")],
    call_text: Annotated[str, typer.Option("--call", help="The call, such as 'Calculator(400 / 1400)'.")],
    date: Annotated[str, typer.Option(help="Date of the document, for the Calendar: 2023-01-30.")] = "",
    model: Model = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run a call's tool and print its three losses, token by token.

    Example: toolformer-ops explain --text "400 of 1400 is 0.29 of all." --at 14 --call "Calculator(400 / 1400)"
    """
    from toolformer_ops.single_process import explain_call, explanation_table

    explanation = explain_call(load_settings(), text, at, call_text, date or None, _model_name(model))
    if as_json:
        typer.echo(json.dumps(explanation, ensure_ascii=False, indent=2))
    else:
        explanation_table(explanation)
    if explanation["reason"] is not None:
        raise typer.Exit(EXIT_NO_RESULT)


@app.command("annotate")
def annotate(
    corpus: Corpus,
    tool: ToolOption,
    model: Model = "",
    limit: Annotated[int, typer.Option(help="Annotate only the first documents; 0 means all.", min=0)] = 0,
    parameters: Annotated[str, typer.Option(help="Run parameters as JSON; see `toolformer-ops parameters`.")] = "{}",
    all_calls: Annotated[bool, typer.Option("--all", help="Print also calls that are not kept.")] = False,
) -> None:
    """Do the whole method in this process and print the calls with their losses, one JSON line each.

    Example: toolformer-ops annotate docs.jsonl --tool Calculator --limit 10
    """
    from toolformer_ops.single_process import annotate_file

    try:
        values = json.loads(parameters)
    except json.JSONDecodeError as error:
        raise UsageError(f"--parameters: expected JSON, found {parameters[:80]!r} ({error}).") from error
    for line in annotate_file(load_settings(), corpus, tool, _model_name(model), limit or None, values):
        if all_calls or line["kept"]:
            typer.echo(json.dumps(line, ensure_ascii=False))


@app.command("parameters")
def parameters() -> None:
    """Print every run parameter as JSON Schema: name, bounds, default, description.

    Example: toolformer-ops parameters
    """
    from toolformer_ops.run_parameters import RunParameters

    schema: dict[str, Any] = RunParameters.model_json_schema()
    typer.echo(json.dumps(schema, indent=2))
