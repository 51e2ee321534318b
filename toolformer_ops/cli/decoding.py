"""`toolformer-ops generate`: let a model write and call tools.

The text goes to stdout, remarks about it to stderr.
"""

import datetime
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolformer_ops.cli.options import Model, ToolsOption, model_name
from toolformer_ops.config import load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.shown_text import json_to_show, visible

if TYPE_CHECKING:
    from toolformer_ops.decoding.records import WrittenText

app = typer.Typer()

_UNSEEN = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")
"""Control characters that a model may write and a terminal would obey; tab and line break stay."""


@app.command("generate")
def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Texts to continue; none: one a line of stdin.")
    ] = None,
    model: Model = "",
    file: Annotated[
        Path | None, typer.Option(help="A file with one prompt a line, instead of arguments.")
    ] = None,
    tools: ToolsOption = None,
    k: Annotated[
        int,
        typer.Option(
            min=0, help='A call starts where " [" is among the k most likely tokens; 1: greedy, 0: no calls.'
        ),
    ] = 10,
    calls: Annotated[
        int, typer.Option(min=0, help="Most calls a text; more than one may build on each other.")
    ] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of text; calls do not count.")] = 64,
    stop: Annotated[str, typer.Option(help="Text at which to stop; \\n for the end of the line.")] = "",
    date: Annotated[
        str, typer.Option(help="What the Calendar takes for today: 2023-01-30; empty: today.")
    ] = "",
    time_limit: Annotated[
        float, typer.Option(help="Seconds a tool call may take; 0: the setting.", min=0.0)
    ] = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON line a text: text, calls, results, times.")
    ] = False,
) -> None:
    """Let a model continue texts and call tools while it writes; calls are marked in the output.

    Example: toolformer-ops generate --model s3://toolformer/models/1a2b "The shop had 520 shirts and sold
    187, so it has"
    """
    from toolformer_ops.decoding.model import WritingModel
    from toolformer_ops.decoding.records import DecodingSettings, Prompt
    from toolformer_ops.tools.registry import typed_tools

    settings = load_settings()
    if time_limit:
        settings = settings.model_copy(update={"tool_time_limit_seconds": time_limit})
    try:
        day = datetime.date.fromisoformat(date) if date else None
    except ValueError as error:
        raise UsageError(f"--date: expected a date such as 2023-01-30, found {date!r}.") from error
    dated_prompts = [Prompt(text, day) for text in _prompts(prompts, file)]
    decoding = DecodingSettings(
        max_new_tokens=max_tokens,
        call_start_rank=k,
        calls_per_input=calls,
        stops=(stop.replace("\\n", "\n"),) if stop else (),
    )
    name = model_name(model)
    allowed = typed_tools(tools or ()) or None
    writer = WritingModel.load(settings, name, tools=allowed)
    for text in writer.write(dated_prompts, decoding):
        if as_json:
            typer.echo(json_to_show(_as_json(text, writer.identity)))
        else:
            print_text(text)


@app.command("serve")
def serve(
    model: Model = "",
    tools: ToolsOption = None,
    name: Annotated[str, typer.Option(help="How clients name the model.")] = "toolformer",
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.", min=1, max=65535)] = 8000,
) -> None:
    """Serve a model with its tools over HTTP, as OpenAI's completions; the key is TOOLFORMER_SERVE_KEY.

    Example: toolformer-ops serve --model s3://toolformer/models/1a2b --tools Calculator,Calendar
    """
    from toolformer_ops.config import secret_of
    from toolformer_ops.decoding import serving
    from toolformer_ops.decoding.model import WritingModel
    from toolformer_ops.tools.registry import typed_tools

    settings = load_settings()
    writing = WritingModel.load(settings, model_name(model), tools=typed_tools(tools or ()) or None)
    typer.echo(f"{writing.identity} at http://{host}:{port}/v1 as {name}", err=True)
    serving.serve(writing, name, host, port, secret_of("TOOLFORMER_SERVE_KEY"))


def _prompts(arguments: list[str] | None, file: Path | None) -> list[str]:
    """The texts to continue: the arguments, or the lines of a file or of stdin."""
    if arguments and file:
        raise UsageError("expected prompts either as arguments or with --file, found both.")
    if arguments:
        return arguments
    try:
        text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--file: expected a text file in UTF-8 at {file}, found {error}.") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(
            "expected at least one prompt, found none. Give it as an argument, in a file, or on stdin."
        )
    return lines


def _as_json(text: "WrittenText", model: str) -> dict[str, Any]:
    """A text with its calls, as `--json` prints it; `model` is the model's identity."""
    return {
        "prompt": text.prompt.text,
        "text": text.text,
        "without_calls": text.without_calls,
        "calls": [asdict(replace(call, seconds=round(call.seconds, 6))) for call in text.calls],
        "abandoned": list(text.abandoned),
        "tokens": text.tokens,
        "end": text.end,
        "model": model,
    }


def print_text(text: "WrittenText") -> None:
    """Prompt and continuation, the calls in colour where stdout is a terminal; on stderr the calls that have no result."""
    from rich.console import Console
    from rich.text import Text

    from toolformer_ops.on_a_file.annotate.shown_calls import why_no_result

    styled = Text(text.prompt.text.translate(_UNSEEN), style="dim") + Text(text.text.translate(_UNSEEN))
    offset = len(text.prompt.text)
    for call in text.calls:
        if call.result is not None:
            styled.stylize("bold cyan", offset + call.start_char, offset + call.end_char)
    Console(soft_wrap=True, highlight=False).print(styled)
    for call in text.calls:
        if call.result is None:
            why = why_no_result(call.reason or "", call.message)
            typer.echo(
                visible(f"{call.tool}({call.input}): no result, {why}; the text continues without it"),
                err=True,
            )
    for reason in text.abandoned:
        typer.echo(f"a call was given up while it was written: {reason}", err=True)
