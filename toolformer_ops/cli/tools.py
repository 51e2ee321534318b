"""`toolformer-ops new-tool` and `refresh-tool`: tool files of databases, functions and servers (docs/own_tools.md)."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolError, UsageError

if TYPE_CHECKING:
    from toolformer_ops.on_a_file.new_tool.first_version import NewTool

app = typer.Typer()


def camel_case(name: str) -> str:
    """The name of a tool in calls, from another: `ConvertTime` of `convert_time`."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name))


_Examples = Annotated[
    Path | None,
    typer.Option(help="A text on each line, five best, with calls where they help. A database needs none."),
]
_Texts = Annotated[
    str,
    typer.Option(help="Of a database without --examples: a corpus, in which the first calls are shown."),
]
_Sql = Annotated[
    str,
    typer.Option(help="A database: sqlite:///shop.db, or postgresql://reader:{SHOP_PASSWORD}@host/shop."),
]
_Connection = Annotated[
    str, typer.Option(help="A database by its Airflow Connection, whose variable is AIRFLOW_CONN_ID.")
]
_Tables = Annotated[
    list[str] | None,
    typer.Option(help="Of a database: what a query may name; none: all tables. May be repeated."),
]
_Python = Annotated[
    str, typer.Option(help="A function of a Python file: height.py:height. The file is copied.")
]
_Mcp = Annotated[
    str, typer.Option(help="MCP server: the command that starts it, in quotes, or its http address.")
]
_OpenApi = Annotated[str, typer.Option(help="OpenAPI 3 document, a JSON or YAML file; with --url.")]
_Url = Annotated[str, typer.Option(help="With --openapi: the service's address before the paths.")]
_ServerTools = Annotated[
    list[str] | None,
    typer.Option(
        help="What a server calls it; of an OpenAPI document the operationId. May be repeated: a file for each, whose "
        "calls are in the same examples."
    ),
]
_Fixed = Annotated[
    list[str] | None,
    typer.Option(help="An argument of every call of a server: repo_path=/srv/repo; may be repeated."),
]
_Terms = Annotated[
    str,
    typer.Option(
        help="Of a server, for the proposer tool: a file with a possible value of its argument in each line. "
        "It is copied."
    ),
]
_ListedBy = Annotated[
    str,
    typer.Option(
        help="Instead of --terms: a tool of the same server that lists them, or TOOL:FIELD of its answer."
    ),
]
_Name = Annotated[
    str, typer.Option(help="In calls; by default the server's, as in ConvertTime, or the database's.")
]
_Secrets = Annotated[
    list[str] | None,
    typer.Option(
        help="Environment variable that the server or function gets, or the address names. May be repeated."
    ),
]
_Headers = Annotated[
    list[str] | None,
    typer.Option(help="Such as 'Authorization: Bearer {API_KEY}', with --secret API_KEY; may be repeated."),
]
_AllowWrites = Annotated[
    bool, typer.Option("--allow-writes", help="Even if the server marks the tool as not read-only.")
]
_Replace = Annotated[bool, typer.Option("--replace", help="Write the files of this name anew.")]


@app.command("new-tool")
def new_tool(
    examples: _Examples = None,
    texts: _Texts = "",
    sql: _Sql = "",
    connection: _Connection = "",
    table: _Tables = None,
    python: _Python = "",
    mcp: _Mcp = "",
    openapi: _OpenApi = "",
    url: _Url = "",
    tool: _ServerTools = None,
    fixed: _Fixed = None,
    terms: _Terms = "",
    listed_by: _ListedBy = "",
    name: _Name = "",
    secret: _Secrets = None,
    header: _Headers = None,
    allow_writes: _AllowWrites = False,
    replace: _Replace = False,
) -> None:
    """Write a tool file and its prompt from a database, or from a function or a server and your examples.

    Example: toolformer-ops new-tool --sql sqlite:///shop.db --texts texts.jsonl
    """
    from toolformer_ops.on_a_file.new_tool import first_version, proposing_tool, server_tools

    sources = {
        "--sql": sql,
        "--connection": connection,
        "--python": python,
        "--mcp": mcp,
        "--openapi": openapi,
    }
    named = [option for option, value in sources.items() if value]
    if len(named) != 1:
        raise UsageError(
            f"expected one of {', '.join(sources)}, found {' and '.join(named) or 'none'}. Name what answers."
        )
    settings = load_settings()
    if texts and (examples is not None or not (sql or connection)):
        raise UsageError(
            "--texts: expected a database (--sql or --connection) without --examples, found another tool or "
            "examples. Look at your texts with preview instead."
        )
    if (terms or listed_by) and (not (mcp or openapi) or (terms and listed_by) or len(tool or ()) != 1):
        raise UsageError(
            "--terms, --listed-by: expected one of them, with one tool of a server (--mcp or --openapi, and "
            "--tool), found another choice. A database proposes its own cells, and a Python file has a function propose."
        )
    if sql or connection:
        database = first_version.database_part(sql, connection, table or (), secret or ())
        chosen = name or camel_case(database.name)
        if examples is None:
            new = proposing_tool.write_proposing_tool(settings, database, chosen, texts, replaces=replace)
        else:
            new = first_version.write_database_tool(settings, database, chosen, examples, replaces=replace)
        written = [new]
    elif examples is None:
        raise UsageError(
            "--examples: expected a text file with calls of the tool, found none. Only a database does "
            "without: write five texts, one a line, each with a call where it helps."
        )
    elif python:
        file, _, function = python.rpartition(":")
        if not file or not function.isidentifier():
            raise UsageError(f"--python: expected FILE.py:FUNCTION, found {python!r:.80}.")
        chosen = name or camel_case(function)
        written = [
            first_version.write_function_tool(
                settings, Path(file), function, chosen, examples, secret or (), replaces=replace
            )
        ]
    else:
        server = server_tools.server_part(mcp, openapi, url, header or (), secret or ())
        arguments = server_tools.fixed_arguments(fixed or ())
        choices = [
            server_tools.ServerToolChoice(
                tool=called,
                name=chosen,
                fixed=arguments,
                allow_writes=allow_writes,
                terms=terms,
                listed_by=listed_by,
            )
            for called, chosen in _names_of_server_tools(tool or (), name).items()
        ]
        written = server_tools.write_server_tools(settings, server, choices, examples, replaces=replace)
    for new in written:
        _show_new_tool(new)
    tools = ",".join(new.tool.spec.name for new in written)
    proposer = " --proposer tool" if all(new.tool.can_propose for new in written) else ""
    typer.echo(f"to try it: toolformer-ops preview {texts or 'TEXTS'} --tools {tools}{proposer}", err=True)


def _names_of_server_tools(tools: Sequence[str], name: str) -> dict[str, str]:
    """The name in calls of each tool of a server, by what the server calls it."""
    if not tools or (name and len(tools) > 1):
        how_many = "one with --name" if name else "or several"
        raise UsageError(
            f"--tool: expected what the server calls its tool, {how_many}, found {len(tools) or 'none'}."
        )
    return {tool: name or camel_case(tool) for tool in tools}


def _show_new_tool(new: "NewTool") -> None:
    """Say what was written, what of an answer is the result, and what the tool answers to the examples."""
    from toolformer_ops.on_a_file.new_tool.examples import call_form

    chosen = new.tool.spec.name
    typer.echo(f"{new.path}\n{new.prompt_path}")
    for warning in new.warnings:
        typer.echo(f"{chosen}: {warning}", err=True)
    typer.echo(f"calls: {call_form(new.tool)}", err=True)
    if new.proposal is not None:
        typer.echo(
            f"result = {new.proposal[0]}: what {new.proposal[1]} of {len(new.answers)} texts continue with; "
            "see the file",
            err=True,
        )
    for line in new.first_calls:
        typer.echo(line)
    for call, result in new.answers:
        typer.echo(f"[{chosen}({call.input}) -> {result}]")


@app.command("refresh-tool")
def refresh_tool(file: Annotated[Path, typer.Argument(help="A tool file.")]) -> None:
    """Record what the server, database or function of a tool file is today: a new version, whose calls run anew.

    Example: toolformer-ops refresh-tool .toolformer/tools/convert_time.toml
    """
    from toolformer_ops.tools.files.kinds import refresh_terms
    from toolformer_ops.tools.files.kinds import refresh_tool as refresh

    if file.suffix != ".toml":
        raise ToolError(f"{file}: expected a tool file, NAME.toml, found another name.")
    before, now = refresh(file)
    was = ", as recorded" if before == now else f"; was: {before.words if before else 'nothing'}"
    typer.echo(f"{file}: {now.words}{was}")
    if listed := refresh_terms(file):
        typer.echo(f"{listed[0]}: {listed[1]:,} terms")
