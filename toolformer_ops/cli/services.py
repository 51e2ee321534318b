"""`toolformer-ops up | down | status | logs | sql | clean | migrate | dags-folder`: the services, for people.

`sql` and `migrate` work with any Postgres, `dags-folder` is for any Airflow; the others are about the
embedded services of this machine. Most are also targets of the Makefile.
"""

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
from enum import StrEnum
from typing import Annotated

import typer

from toolformer_ops.config import SHIPPED, load_settings, state_dir
from toolformer_ops.errors import (
    EXIT_FAILED,
    EXIT_USAGE,
    ConfigurationError,
    DatabaseError,
    ObjectStoreError,
    UsageError,
)

app = typer.Typer()

_BYTES_PER_MB = 1_000_000
_STATEMENT_FAILED = 3  # psql's own exit status


class Service(StrEnum):
    """What `--only` takes."""

    POSTGRES = "postgres"
    OBJECT_STORE = "object_store"
    AIRFLOW = "airflow"


@app.command("up")
def up_command(
    only: Annotated[
        list[Service] | None, typer.Option(help="Start only this service; may be given twice.")
    ] = None,
) -> None:
    """Start Postgres, S3 and Airflow on this machine, and repair what a crash left.

    Example: toolformer-ops up --only postgres --only object_store
    """
    from toolformer_ops.local.lifecycle import up

    settings = up(load_settings(), only or None)
    status_command()
    if not only or Service.AIRFLOW in only:
        typer.echo(
            f"\nAirflow: {settings.airflow_url}  user {settings.airflow_username}, password in "
            f"{state_dir() / 'environment'}"
        )


@app.command("down")
def down_command() -> None:
    """Stop all of them; Postgres stops last. Nothing is lost.

    Example: toolformer-ops down
    """
    from toolformer_ops.local.lifecycle import down

    typer.echo("stopped" if down(load_settings()) else "nothing was running")


@app.command("status")
def status_command() -> None:
    """Show what runs, where it listens, since when, and how much memory it takes.

    Ends with 1 if nothing runs.

    Example: toolformer-ops status
    """
    from rich.console import Console
    from rich.table import Table

    from toolformer_ops.local.lifecycle import status

    services = status(load_settings())
    if not services:
        typer.echo("nothing is running; `toolformer-ops up` starts Postgres, S3 and Airflow")
        raise typer.Exit(1)
    table = Table(box=None, header_style="bold")
    for column in ("service", "state", "address", "pid", "since", "memory"):
        table.add_column(column)
    for report, address in services:
        minutes, rest = divmod(report.uptime_seconds, 60)
        hours, minutes = divmod(minutes, 60)
        since = f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
        memory = f"{report.memory_bytes / _BYTES_PER_MB:.0f} MB"
        running = (address, str(report.process_id), since, memory)
        table.add_row(report.name, report.state.lower(), *(running if report.process_id else ()))
    # As wide as its content, even if the terminal is narrower: an address that is cut off cannot be used.
    console = Console()
    console.width = max(
        console.width, console.measure(table, options=console.options.update(width=1000)).maximum
    )
    console.print(table, soft_wrap=True)


@app.command("logs")
def logs_command(
    services: Annotated[
        list[str] | None, typer.Argument(help="Names as `status` shows them; all if none.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines of each.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines too, until Ctrl-C.")
    ] = False,
) -> None:
    """Show the last lines of what the services printed. The logs of Airflow's tasks are in its UI.

    Example: toolformer-ops logs postgres --follow
    """
    folder = state_dir() / "logs"
    logs = {path.stem: path for path in sorted(folder.glob("*.log"))}
    unknown = sorted(set(services or []) - set(logs))
    if unknown or not logs:
        raise ConfigurationError(
            f"expected logs among {', '.join(logs) or '(none yet)'} in {folder}, found "
            f"{', '.join(unknown) or 'none'}. They are written once `toolformer-ops up` has run."
        )
    chosen = [str(logs[name]) for name in services or logs]
    command = ["tail", f"--lines={lines}", *(["--follow=name", "--retry"] if follow else []), "--", *chosen]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


# A statement may begin with a comment, which must not be read as an option.
@app.command("sql", context_settings={"ignore_unknown_options": True})
def sql_command(
    query: Annotated[str, typer.Argument(help="A statement, or - for standard input; none opens psql.")] = "",
    run: Annotated[
        str, typer.Option(help="The run that questions of sql/examples are about if they name none.")
    ] = "",
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="Ask the history of finished runs on S3, by DuckDB on this machine; what it cannot answer, Postgres is asked.",
        ),
    ] = False,
) -> None:
    """Ask the database as its read-only role: one statement of SQL, or psql, whose own commands run as you.

    The answer to a statement has six digits of a number; psql, and `set extra_float_digits = 1;` before a
    statement, show all.

    Example: toolformer-ops sql "select tool, count(*) from scored_calls group by tool"
    Example: toolformer-ops sql --run night-1 "select * from where_do_calls_get_lost()"
    Example: toolformer-ops sql --history "select tool, count(*) from kept_calls group by tool"
    """
    if re.match("--?[a-z]", query):
        raise UsageError(f"expected --run or a statement, found {query[:40]!r}. A comment begins with `-- `.")
    from toolformer_ops.local.postgres import psql

    statement = sys.stdin.read() if query == "-" else query
    if history and _answered_from_history(statement, run):
        return
    command, environment = psql(load_settings(), run)
    variables = ["--set=ON_ERROR_STOP=1"]
    if query:
        # A statement is SQL alone: psql runs none of its own commands (\!, \copy) until it is told this word
        # again.
        restricted = f"\\restrict {secrets.token_hex(16)}\n{statement}"
        # Six digits of a number are shown, as the pages show them; psql without a statement shows all.
        environment["PGOPTIONS"] = f"{environment.get('PGOPTIONS', '')} -c extra_float_digits=-9".strip()
        finished = subprocess.run(
            [*command, "--no-psqlrc", "--pset=pager=off", *variables, "--file=-"],
            input=restricted,
            text=True,
            env=environment,
            check=False,
        )
        if not finished.returncode:
            _say_where_older_rows_are(statement, run)
        raise typer.Exit(
            EXIT_USAGE if finished.returncode == _STATEMENT_FAILED else finished.returncode and EXIT_FAILED
        )
    os.execve(command[0], [*command, *variables], environment)  # noqa: S606 - an argument list, no shell


def _say_where_older_rows_are(query: str, run: str) -> None:
    from toolformer_ops.storage.history import history_queries
    from toolformer_ops.storage.postgres import database

    # A database of another version may lack the tables of the history; the query is answered all the same.
    with contextlib.suppress(DatabaseError):
        engine = database.connect_dsn(load_settings().reader_dsn.get_secret_value(), "TOOLFORMER_READER_DSN")
        if said := history_queries.where_older_rows_are(engine, query, run):
            typer.echo(said, err=True)
        engine.dispose()


def _answered_from_history(query: str, run: str) -> bool:
    """Print the answer of the history; False, with the reason on standard error, if Postgres has to be asked."""
    from toolformer_ops.storage.history import history_queries

    if not query:
        raise UsageError("expected a query with --history, found none: psql opens Postgres alone.")
    settings = load_settings()
    try:
        answer = history_queries.ask(settings, query, run)
    except (ObjectStoreError, history_queries.UnknownNameError) as error:
        if not settings.reader_dsn.get_secret_value():
            raise
        typer.echo(f"{error} Postgres is asked instead.", err=True)
        return False
    typer.echo(history_queries.as_text(answer))
    return True


@app.command("migrate")
def migrate_command(
    statement_seconds: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Longest statement, 600 by default; 0: no limit."),
    ] = None,
) -> None:
    """Bring the database of TOOLFORMER_DATABASE_DSN to this version's tables and views.

    `up` does it by itself.

    Example: TOOLFORMER_DATABASE_DSN=postgresql://owner:password@host/toolformer toolformer-ops migrate
    """
    from toolformer_ops.storage.postgres import database, schema

    settings = load_settings()
    engine = database.connect(settings)
    longest = schema.STATEMENT_SECONDS if statement_seconds is None else statement_seconds
    applied = schema.migrate(engine, statement_seconds=longest)
    engine.dispose()
    typer.echo("\n".join(applied) if applied else "nothing to do")


@app.command("dags-folder")
def dags_folder_command() -> None:
    """Print the folder of the DAG files, for an Airflow of your own; on stderr what else it needs.

    `up` sets all of it.

    Example: export AIRFLOW__CORE__DAGS_FOLDER="$(toolformer-ops dags-folder)"
    """
    from toolformer_ops.airflow_tasks.run_ids import RUN_ID_PATTERN
    from toolformer_ops.local.airflow import BUNDLES, POOLS_FILE

    typer.echo(SHIPPED / "dags")
    typer.echo(f"Airflow's pools, once: airflow pools import {POOLS_FILE}", err=True)
    typer.echo(
        "Runs that keep the tools that they started with, and a DAG for each schedule file: the two bundles "
        f"in AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST='{json.dumps(BUNDLES)}'",
        err=True,
    )
    typer.echo(
        "No run whose id is too long for a folder of logs: "
        f"AIRFLOW__SCHEDULER__ALLOWED_RUN_ID_PATTERN='{RUN_ID_PATTERN}'",
        err=True,
    )


@app.command("clean")
def clean_command(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Stop everything and delete the state folder: databases, objects, models, indices, logs, passwords.

    Example: toolformer-ops clean --yes
    """
    from toolformer_ops.local.lifecycle import delete_state

    folder = state_dir()
    if not folder.exists():
        typer.echo(f"nothing to delete: {folder} is not there")
        return
    if not (folder / "secrets.json").exists() and any(folder.iterdir()):
        raise ConfigurationError(
            f"expected the state folder of the embedded services in {folder}, found other files. Delete it "
            "yourself if you mean it."
        )
    if not yes:
        typer.confirm(f"delete {folder} with all databases, releases and models in it?", abort=True)
    delete_state(load_settings())
    typer.echo(f"deleted {folder}")
