"""`toolformer-ops new-tool` and `refresh-tool`: tool files of MCP servers and OpenAPI services (docs/mcp_tools.md)."""

from pathlib import Path
from typing import Annotated

import typer

from toolformer_ops.cli.people import FieldOption, with_fields
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolError

TEXTS = 10
"""On how many texts a new tool is tried."""

app = typer.Typer()


@app.command("new-tool")
def new_tool(
    tool: Annotated[
        str, typer.Option(help="What the server calls it; of an OpenAPI document the operationId.")
    ],
    examples: Annotated[
        Path, typer.Option(help="A text on each line, five best, with calls where they help.")
    ],
    mcp: Annotated[
        str, typer.Option(help="MCP server: the command that starts it, in quotes, or its http address.")
    ] = "",
    openapi: Annotated[str, typer.Option(help="OpenAPI 3 document, a JSON or YAML file; with --url.")] = "",
    url: Annotated[str, typer.Option(help="With --openapi: the service's address before the paths.")] = "",
    name: Annotated[str, typer.Option(help="In calls; by default the server's, as in ConvertTime.")] = "",
    secret: Annotated[
        list[str] | None, typer.Option(help="Environment variable that the server gets; may be repeated.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="Such as 'Authorization: Bearer {API_KEY}', with --secret API_KEY; may be repeated."
        ),
    ] = None,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Even if the server marks the tool as not read-only.")
    ] = False,
    texts: Annotated[
        str | None, typer.Option(help=f"Corpus whose first {TEXTS} texts the new tool is tried on.")
    ] = None,
    field: FieldOption = None,
    model: Annotated[str, typer.Option(help="For --texts; empty means the setting default_model.")] = "",
    parameters: Annotated[
        str, typer.Option(help="For --texts: run parameters as JSON, over the default preset's.")
    ] = "{}",
) -> None:
    """Write a tool file and its prompt from a server's tool and your examples, and try it.

    Example: toolformer-ops new-tool --mcp mcp-server-time --tool convert_time --examples examples.txt --texts
    docs.jsonl
    """
    from toolformer_ops.on_a_file import new_tool as making
    from toolformer_ops.runs.choices import typed_values

    # 1. The file and its prompt.
    server = making.server_part(mcp, openapi, url, header or (), secret or ())
    settings = load_settings()
    chosen = name or "".join(part[:1].upper() + part[1:] for part in tool.replace("-", "_").split("_"))
    new = making.write_new_tool(settings, server, tool, chosen, examples, allow_writes=allow_writes)
    recorded = new.tool.file.recorded
    typer.echo(f"{new.path}\n{new.prompt_path}")
    if recorded is not None and recorded.read_only is None:
        typer.echo(
            f"{chosen}: the server does not say whether the tool only reads. Be sure that it does.", err=True
        )
    typer.echo(f"calls: {making.call_form(new.tool)}", err=True)
    # 2. What it answers.
    for call_input, output in making.run_examples(settings, new):
        typer.echo(f"[{chosen}({call_input}) -> {output.results[0] if output.results else output.reason}]")
    # 3. What a model does with it.
    model_name = model or settings.default_model
    if texts is None or not model_name:
        typer.echo(
            f"to try it on {TEXTS} texts: toolformer-ops annotate TEXTS --tool {chosen} --limit {TEXTS} --all",
            err=True,
        )
        return
    values = with_fields(typed_values(parameters), field)
    for line in making.try_tool(settings, chosen, texts, model_name, TEXTS, values):
        typer.echo(line)


@app.command("refresh-tool")
def refresh_tool(file: Annotated[Path, typer.Argument(help="A tool file.")]) -> None:
    """Ask the server of a tool file what it is today, and record it: another version of the tool, whose calls run anew.

    Example: toolformer-ops refresh-tool .toolformer/tools/convert_time.toml
    """
    from toolformer_ops.on_a_file.new_tool import refresh_tool as refresh

    if file.suffix != ".toml":
        raise ToolError(f"{file}: expected a tool file, NAME.toml, found another name.")
    before, now = refresh(file)
    if before == now:
        typer.echo(f"{file}: {now.server} {now.version} as recorded")
        return
    was = f"{before.server} {before.version}, schema {before.schema_hash}" if before else "nothing"
    typer.echo(f"{file}: {now.server} {now.version}, schema {now.schema_hash}; was: {was}")
