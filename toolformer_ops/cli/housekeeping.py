"""`toolformer-ops forget | retention | retry-failed | audit | doctor`: delete texts, drop unused rows, prove what exists.

And whether a stage could run here, or on the cluster.
"""

import contextlib
import itertools
import shlex
import sys
import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from toolformer_ops.audit.auditing import Scope
    from toolformer_ops.runs.self_check import Finding
    from toolformer_ops.storage.history.forgetting import Forgotten, Kind

app = typer.Typer()

MOST_RECORDS_SHOWN = 20


@app.command("forget")
def forget_command(
    document: Annotated[
        list[uuid.UUID] | None, typer.Option(help="Id of a text to forget; may be repeated.")
    ] = None,
    corpus: Annotated[
        str,
        typer.Option(
            help="Forget what only this corpus holds: a path, file:// or s3:// address, as the table corpora has it."
        ),
    ] = "",
    record: Annotated[
        list[str] | None,
        typer.Option(
            help="With --corpus: the id of a record; forget each text that it ever had, instead of the corpus. May be repeated."
        ),
    ] = None,
    release: Annotated[str, typer.Option(help="Id of a release to delete from S3.")] = "",
    model: Annotated[str, typer.Option(help="Id of a finetuned model to delete from S3.")] = "",
    reason: Annotated[str, typer.Option(help="Why, kept with the id of each text.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete texts and every row derived from them, and say which files, releases and models still hold them.

    Without an option: continue what was interrupted, and list all releases and models with forgotten texts.

    A changed record has older texts: --corpus with --record forgets all texts that it ever had.

    Example: toolformer-ops forget --document 4f0c91b2-d4a7-e633-0123-456789abcdef --dry-run
    """
    from toolformer_ops.storage.history import forgetting

    if sum(map(bool, (document, corpus, release, model))) > 1:
        raise UsageError("expected one of --document, --corpus, --release and --model, found several.")
    if record and not corpus:
        raise UsageError("--record: expected --corpus with the address of the record's corpus, found none.")
    settings = load_settings()
    if release or model:
        _withdraw(settings, "release" if release else "model", release or model, dry_run=dry_run, yes=yes)
        return
    names_texts = document or corpus
    if names_texts and not (dry_run or yes):
        _show(
            forgetting.forget(settings, document or (), corpus, record_ids=record or (), dry_run=True),
            "to forget",
        )
        typer.confirm("delete these rows for ever?", abort=True)
    forgotten = forgetting.forget(
        settings, document or (), corpus, record_ids=record or (), reason=reason, dry_run=dry_run
    )
    _show(forgotten, "to forget" if dry_run else "forgotten" if names_texts else "forgotten until now")


def _withdraw(settings: Settings, kind: "Kind", name: str, *, dry_run: bool, yes: bool) -> None:
    from toolformer_ops.storage.history import forgetting

    keys = forgetting.withdraw(settings, kind, name, dry_run=True)
    typer.echo(f"{kind} {name}: {len(keys)} files on S3")
    if dry_run:
        return
    if not yes:
        typer.confirm("delete them?", abort=True)
    forgetting.withdraw(settings, kind, name)
    typer.echo("deleted; the row stays, as the record of what was there")


@app.command("retention")
def retention_command(
    older_than: Annotated[
        int | None,
        typer.Option(
            help="What was made or used within so many days stays. Default: TOOLFORMER_RETENTION_DAYS.",
            min=0,
            metavar="DAYS",
        ),
    ] = None,
    releases: Annotated[
        int | None,
        typer.Option(
            help="The newest releases of each corpus and schedule stay; 0: all. Default: TOOLFORMER_RETENTION_RELEASES.",
            min=0,
            metavar="N",
        ),
    ] = None,
    models: Annotated[
        int | None,
        typer.Option(
            help="The newest models, likewise. Default: TOOLFORMER_RETENTION_MODELS.", min=0, metavar="N"
        ),
    ] = None,
    in_history: Annotated[
        bool,
        typer.Option(
            "--in-history",
            help="Drop those calls of releases, too, that the history holds in verified files and no next night needs.",
        ),
    ] = False,
    done: Annotated[
        list[str],
        typer.Option(
            help="A model that no next night needs any more, as `toolformer-ops runs` shows it, with or without "
            "its revision; or a recipe. A run that starts later with it counts again.",
            metavar="MODEL",
        ),
    ] = [],  # noqa: B006 - typer copies it
    airflow: Annotated[
        int | None,
        typer.Option(
            help="Also delete rows of Airflow's own tables and logs of its tasks that are older; where the scheduler runs.",
            min=1,
            metavar="DAYS",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Drop it; without, only say what would be dropped.")
    ] = False,
) -> None:
    """Let go of old releases and models, and of rows that no release, unfinished run or next night uses.

    Runs, their stored numbers, recipes' definitions, documents and newer releases stay; calls and losses of
    dropped recipes stay in the history alone. Small files of the history are merged.

    Example: toolformer-ops retention --older-than 30
    Example: toolformer-ops retention --older-than 30 --releases 10 --in-history --yes
    Example: toolformer-ops retention --done HuggingFaceTB/SmolLM2-135M --airflow 90 --yes
    """
    from toolformer_ops.airflow_tasks.nights.retention import clean_airflow, policy_of
    from toolformer_ops.storage.history.retention import say_done_with
    from toolformer_ops.storage.history.retention_policy import follow

    settings = load_settings()
    for name in done:
        for needless in say_done_with(settings, name):
            typer.echo(f"done with {needless}")
    chosen = {"older_than_days": older_than, "releases": releases, "models": models, "in_history": in_history}
    policy = policy_of(settings, {name: value for name, value in chosen.items() if value is not None})
    for line in follow(settings, policy, drops=yes):
        typer.echo(line)
    if airflow is not None:
        for line in clean_airflow(settings, airflow, drops=yes):
            typer.echo(line)


@app.command("audit")
def audit_command(
    corpus: Annotated[
        str, typer.Option(help="Only this corpus: its id, a path, file:// or s3:// address.")
    ] = "",
    run: Annotated[str, typer.Option(help="Only this run, with its corpus, release and models.")] = "",
    release: Annotated[str, typer.Option(help="Only this release.")] = "",
    model: Annotated[str, typer.Option(help="Only this finetuned model, and its release.")] = "",
    sample: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Compute about N calls again from their texts, by the engine."),
    ] = 0,
    seed: Annotated[str, typer.Option(help="Chooses these calls, together with their content.")] = "",
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Mend what can be derived again; without --yes, only say what that is."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --repair: do it.")] = False,
    accept_numbers: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Store what the rows of this run give instead of its numbers, if they alone differ.",
        ),
    ] = "",
) -> None:
    """Compute again what can be proved of rows, releases and models, and list what is lost, doubled, changed or orphaned.

    Ends with 3 if something is wrong and not repaired. An audit that was interrupted continues where it
    stopped.

    Example: toolformer-ops audit --sample 100
    """
    from toolformer_ops.audit.running import audit, require_sound

    if accept_numbers and (run or repair):
        raise UsageError("expected --accept-numbers alone, found it with --run or --repair.")
    scope_ids: dict[Scope, str] = {
        "corpus": corpus,
        "run": run or accept_numbers,
        "release": release,
        "model": model,
    }
    scopes: list[tuple[Scope, str]] = [(scope, scope_id) for scope, scope_id in scope_ids.items() if scope_id]
    if len(scopes) > 1:
        raise UsageError("expected one of --corpus, --run, --release and --model, found several.")
    if yes and not repair:
        raise UsageError("expected --yes with --repair, found it alone.")
    [(scope, scope_id)] = scopes or [("all", "")]
    outcome = audit(
        load_settings(),
        scope,
        scope_id,
        sample=sample,
        seed=seed,
        plans=repair and not yes,
        repairs=repair and yes,
        accepts=bool(accept_numbers),
        say=typer.echo,
    )
    require_sound(outcome)


@app.command("retry-failed")
def retry_failed_command(run: Annotated[str, typer.Option(help="Id of the annotation run.")]) -> None:
    """Allow another try of the documents that a run gave up, by its cleared tasks or by the next run.

    A text that killed its process again and again, or that did not fit into memory, is given up; the view
    run_failed_documents names them. Give the stage more memory first.

    Example: toolformer-ops retry-failed --run night-1
    """
    from toolformer_ops.runs.claims import retry_failed

    documents = retry_failed(load_settings(), run)
    for document in documents:
        typer.echo(f"{document.tool} {document.stage} {document.document_id}: {document.reason}")
    typer.echo(
        f"{len(documents):,} documents are tried again by the next run, or when the run's filter and "
        "annotate are cleared"
    )


@app.command("doctor")
def doctor(
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes", help="Look at the cluster that the settings name, before the first run."
        ),
    ] = False,
    pods: Annotated[
        bool, typer.Option("--pods/--no-pods", help="With --kubernetes: start a short pod by each template.")
    ] = True,
    wait_seconds: Annotated[
        float, typer.Option(min=1, help="Longest wait for such a pod; adding a node takes minutes.")
    ] = 900.0,
    end_halted: Annotated[
        bool,
        typer.Option(
            "--end-halted",
            help="End the runs that Airflow does not continue, as their DAG is deleted or paused.",
        ),
    ] = False,
) -> None:
    """Check what a stage needs, a line each: ok, missing with the remedy, or unknown.

    With an Airflow in the settings it also names the runs that Airflow no longer continues.

    Ends with 1 if something is missing. `unknown` is what the present rights do not show.

    Example: toolformer-ops doctor --kubernetes
    """
    settings = load_settings()
    missing, stdout = 0, sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # Airflow logs to stdout, on which belong the findings alone
        if kubernetes:
            from toolformer_ops.airflow_tasks.kubernetes.doctor import findings_of_cluster

            all_findings = findings_of_cluster(settings, pods=pods, wait_seconds=wait_seconds)
        else:
            from toolformer_ops.runs.self_check import findings

            all_findings = findings(settings)
        if settings.airflow_password.get_secret_value() or end_halted:
            all_findings = itertools.chain(all_findings, _findings_of_runs(settings, end=end_halted))
        for finding in all_findings:
            typer.echo(str(finding), file=stdout)
            missing += finding.state == "missing"
    if missing:
        raise typer.Exit(EXIT_FAILED)


def _findings_of_runs(settings: Settings, *, end: bool) -> "Iterator[Finding]":
    from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
    from toolformer_ops.airflow_tasks.run_ends.reconciling import findings_of_runs

    with AirflowClient.of(settings, patience_seconds=5.0) as airflow:
        yield from findings_of_runs(settings, airflow, end=end)


def _show(forgotten: "Forgotten", what: str) -> None:
    typer.echo(f"{forgotten.texts:,} texts {what}")
    for table, rows in sorted(forgotten.rows.items()):
        typer.echo(f"  {rows:>12,} rows of {table}")
    for source in forgotten.sources:
        line = f", line {source.line} for example" if source.line else ""
        typer.echo(f"still in {source.uri}: {source.texts:,} of them{line}")
    for other in forgotten.other_texts[:MOST_RECORDS_SHOWN]:
        words = shlex.join(("--corpus", other.corpus, "--record", other.record_id))
        typer.echo(
            f"not among them: {other.texts:,} other texts of the same record: toolformer-ops forget {words}"
        )
    if len(forgotten.other_texts) > MOST_RECORDS_SHOWN:
        typer.echo(f"and the texts of {len(forgotten.other_texts) - MOST_RECORDS_SHOWN:,} more records")
    for folder in forgotten.trainings:
        typer.echo(f"with the folder {folder} of a training that did not end")
    for folder in forgotten.left_folders:
        typer.echo(f"with the folder {folder} of a process that was killed")
    if forgotten.history_files:
        typer.echo(f"with them out of {forgotten.history_files:,} files of the history")
    for place in forgotten.places:
        if place.withdrawn:
            typer.echo(f"withdrawn: {place.kind} {place.uri}")
        else:
            typer.echo(f"still in {place.uri}: toolformer-ops forget --{place.kind} {place.publication_id}")
