"""Subcommands about stored runs and releases: their parameters, which runs there are, what changed between two; exports.

Results go to stdout, what is said about them to stderr.
"""

import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.shown_text import json_to_show, visible

JUDGEMENTS = "judgements"
EXPORT_FORMATS = ("chat", "sharegpt", "preference", "preference-sharegpt", "environment", JUDGEMENTS)

app = typer.Typer()


@app.command("parameters")
def parameters() -> None:
    """Print every run parameter as JSON Schema: name, bounds, default, description.

    Example: toolformer-ops parameters
    """
    from toolformer_ops.runs.choices import RunChoices

    schema: dict[str, Any] = RunChoices.model_json_schema()
    typer.echo(json.dumps(schema, indent=2))


@app.command("export")
def export(
    release: Annotated[
        str, typer.Argument(help="A release: its id, its s3:// address, or a folder with its files.")
    ],
    out: Annotated[
        str,
        typer.Argument(
            help="Where to write: a .jsonl file or a folder, local or s3://. Judgements go to a local folder, or "
            "to S3 without one."
        ),
    ] = "",
    export_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="chat: messages with tools and results; sharegpt: the same for LLaMA-Factory. preference: pairs "
            "of a chosen and a rejected call, as messages; preference-sharegpt: for LLaMA-Factory. environment: "
            "tasks with a reward, for TRL and verifiers. judgements: what reviewers said of the calls. All are "
            "JSON Lines.",
        ),
    ] = "chat",
    seed: Annotated[
        int,
        typer.Option(
            help="Another seed chooses other openings of the texts, and other refusals and pairs.", min=0
        ),
    ] = 0,
    with_refusals: Annotated[
        float,
        typer.Option(
            help="With chat and sharegpt: the share of conversations that call no tool, of texts in which calls were tried "
            "and none helped."
        ),
    ] = 0.0,
    model: Annotated[
        str,
        typer.Option(
            help="Folder, id@revision or s3:// address of the chat model to be trained: a warning says what its template loses; "
            "empty: the setting default_model."
        ),
    ] = "",
    lossy_template: Annotated[
        bool,
        typer.Option(
            "--lossy-template",
            help="With preference: write pairs though the model's chat template drops calls.",
        ),
    ] = False,
) -> None:
    """Write a release as conversations or pairs of calls, for TRL, LLaMA-Factory and others; print what was written as JSON.

    Example: toolformer-ops export --format chat s3://toolformer/releases/0123456789abcdef chat/
    Example: toolformer-ops export --format judgements 0123456789abcdef
    """
    if export_format not in EXPORT_FORMATS:
        raise UsageError(f"--format: expected one of {', '.join(EXPORT_FORMATS)}, found {export_format!r}.")
    if export_format == JUDGEMENTS:
        typer.echo(_export_judgements(load_settings(), release, out))
        return
    if not out:
        raise UsageError("OUT: expected a .jsonl file or a folder to write to, found none.")
    from toolformer_ops.release.chat_export import export_chat
    from toolformer_ops.release.conversations import FORMS
    from toolformer_ops.release.environment_export import export_environment
    from toolformer_ops.release.opened_release import address_of_release
    from toolformer_ops.release.preference_export import PAIR_FORMS, export_preferences
    from toolformer_ops.release.refusals import Refusals
    from toolformer_ops.stages.release import compared_with_evaluation_data

    settings = load_settings()
    release = address_of_release(settings, release)
    export: Any
    if form := FORMS.get(export_format):
        compare = functools.partial(compared_with_evaluation_data, settings)
        refusals = Refusals(with_refusals, compare) if with_refusals else None
        export = export_chat(settings, release, out, seed, model, refusals, form=form)
    elif with_refusals:
        raise UsageError("--with-refusals: expected --format chat or sharegpt with it, found another format.")
    elif export_format == "environment":
        export = export_environment(settings, release, out, model)
    else:
        export = export_preferences(
            settings,
            release,
            out,
            seed,
            model,
            form=PAIR_FORMS[export_format],
            takes_lossy_template=lossy_template,
        )
    typer.echo(json.dumps(asdict(export), indent=2))


def _export_judgements(settings: Settings, release_id: str, folder: str) -> str:
    """Write what reviewers said into the folder, or on S3 below judgements/; returns where."""
    from toolformer_ops.run_page.judgements import export
    from toolformer_ops.storage.objects.publication import ObjectStore
    from toolformer_ops.storage.postgres import database

    with database.transaction(database.connect(settings, writes=False)) as connection:
        name, content = export(connection, release_id)
    if not folder:
        store = ObjectStore(settings)
        store.require_bucket()
        store.put_if_absent(f"judgements/{name}", content)
        return store.uri(f"judgements/{name}")
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


@app.command("runs")
def runs(
    at_most: Annotated[int, typer.Option("--limit", help="How many, the newest first.", min=1)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the runs, the newest first: state, schedule, corpus version, documents, kept calls, release and own work.

    Runs that failed before they started are listed last, with their failed tasks.

    Example: toolformer-ops runs --limit 7
    """
    from toolformer_ops.runs.summary import list_runs
    from toolformer_ops.storage.postgres import database, queries

    with database.transaction(database.connect(load_settings(), writes=False)) as connection:
        runs = list_runs(connection, at_most)
        not_started = database.fetch_all(connection, queries.runs.not_started, run_id="", at_most=at_most)
    if as_json:
        listed = [asdict(run) for run in runs]
        listed += [
            {"run_id": run.run_id, "state": "not started", "problem": run.problem} for run in not_started
        ]
        typer.echo(json.dumps(listed, default=str, indent=2))
        return
    _print_table(
        (
            "run",
            "state",
            "schedule",
            "corpus",
            "documents",
            "kept calls",
            "release",
            "texts",
            "own work",
            "device s",
        ),
        [
            (
                run.run_id,
                run.state,
                run.schedule or "by hand",
                f"{run.corpus_uri.rsplit('/', 1)[-1]} version {run.corpus_version}",
                f"{run.documents:,}",
                f"{run.kept_calls:,}",
                run.release_id or "none",
                f"{run.examples:,}",
                f"{run.own_documents:,}",
                f"{run.device_seconds:,.1f}",
            )
            for run in runs
        ],
    )
    for run in not_started:
        typer.echo(f"{run.run_id} never started ({run.ended_at:%Y-%m-%d %H:%M} UTC); {run.problem}")


@app.command("changes")
def changes(
    run: Annotated[str, typer.Argument(help="A run, or a release.")],
    other: Annotated[
        str, typer.Argument(help="Another one, to compare with; the run before by default.")
    ] = "",
    calls: Annotated[int, typer.Option(help="List so many of the calls that differ.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text and tables.")] = False,
) -> None:
    """Say what changed since the run before, or between two runs: a summary, and why calls joined or left the release.

    Example: toolformer-ops changes night-2 --calls 20
    """
    from toolformer_ops.runs.changes import change_counts, changed_calls
    from toolformer_ops.runs.summary import summarise
    from toolformer_ops.storage.postgres import database

    with database.transaction(database.connect(load_settings(), writes=False)) as connection:
        summary = summarise(connection, run, other or None)
        counts = change_counts(connection)
        listed = changed_calls(connection, calls)
    if as_json:
        report = {
            "summary": summary.as_dict(),
            "changes": [asdict(count) for count in counts],
            "calls": [asdict(call) for call in listed],
        }
        typer.echo(json_to_show(report, default=str, indent=2))
        return
    typer.echo(summary.as_text())
    if counts:
        typer.echo()
        count_rows = []
        for count in counts:
            change = f"{_sign(count)}{count.calls:,}"
            count_rows.append((count.tool, change, count.reason, f"{count.texts:,}"))
        _print_table(("tool", "calls", "reason", "in texts"), count_rows)
    if listed:
        call_rows = []
        for call in listed:
            position = "" if call.position_char is None else str(call.position_char)
            written = f"{_sign(call)} {call.call_text or call.tool} -> {call.result or ''}"
            call_rows.append((str(call.document_id), position, written, call.reason, call.detail or ""))
        _print_table(("document", "at", "call", "reason", "detail"), call_rows)


def _sign(change: Any) -> str:
    """The sign of what came or went."""
    return "+" if change.is_added else "-"


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as a table on stdout; a pipe gets lines of at most 200 characters."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(visible(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
