"""Subcommands that need no service: call a tool, look at a file and annotate it, judge and explain calls.

Results go to stdout, what is said about them to stderr.
"""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from toolformer_ops.config import load_settings
from toolformer_ops.errors import EXIT_NO_RESULT, UsageError
from toolformer_ops.shown_text import json_to_show, visible

if TYPE_CHECKING:
    from toolformer_ops.config import Settings
    from toolformer_ops.on_a_file.annotate.annotation_counts import AnnotationCounts
    from toolformer_ops.runs.choices import RunChoices
    from toolformer_ops.storage.objects.parts import Parts

from toolformer_ops.cli.options import (
    Corpus,
    FieldOption,
    LimitOption,
    Model,
    ProposerOption,
    RunParametersJson,
    ThresholdOption,
    ToolsOption,
    UntilKeptOption,
    choices_without_services,
    model_name,
    print_observations,
)

app = typer.Typer()


# An input may begin with a minus sign, which must not be read as an option.
@app.command("call", context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
def call(
    tool: Annotated[str, typer.Argument(help="Name of a tool, such as Calculator.")],
    call_input: Annotated[str, typer.Argument(help="What is between the brackets of the call.")] = "",
    date: Annotated[str, typer.Option(help="Date of the document, for the Calendar: 2023-01-30.")] = "",
    model: Model = "",
) -> None:
    """Run a tool on one input and print its result; exit 3 if there is none.

    Example: toolformer-ops call Calculator "27 + 4 * 2"
    """
    if re.match("--[a-z]", call_input):
        raise UsageError(f"expected an option of `call` (--date, --model) or an input, found {call_input}.")
    from toolformer_ops.on_a_file.annotate.annotator import run_one
    from toolformer_ops.runs.reasons import title

    output = run_one(load_settings(), tool, call_input, date or None, functools.partial(model_name, model))
    if output.reason is not None:
        said = f": {visible(output.message)}" if output.message else ""
        typer.echo(f"no result: {output.reason}, {title(output.reason)}{said}", err=True)
        raise typer.Exit(EXIT_NO_RESULT)
    typer.echo(visible(output.results[0]))


@app.command("explain")
def explain(
    marked_text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="The text with its call in brackets: '400 of 1400 is [Calculator(400 / 1400)] 0.29 of all.'",
        ),
    ] = "",
    date: Annotated[str, typer.Option(help="Date of the document, for the Calendar: 2023-01-30.")] = "",
    model: Model = "",
    context_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of text before the call to score with; by default as many as in annotate, 0: all.",
            min=0,
        ),
    ] = None,
    call_id: Annotated[str, typer.Option(help="A stored call, by its id.")] = "",
    document: Annotated[str, typer.Option(help="The stored calls of a document, by its id.")] = "",
    at: Annotated[
        int | None, typer.Option(help="Of these the calls before this offset, in characters.", min=0)
    ] = None,
    run: Annotated[
        str, typer.Option(help="The run of the stored calls; by default the run that was finished last.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print a call's losses token by token: of a call that you write, or of one that a run stored.

    Example: toolformer-ops explain "400 of 1400 is [Calculator(400 / 1400)] 0.29 of all."

    A stored call needs no model: toolformer-ops explain --run RUN --document DOCUMENT --at 14
    """
    from toolformer_ops.on_a_file.look.explanation import (
        CONTEXT_TOKENS,
        call_in_text,
        explain_call,
        explanation_table,
    )

    is_stored = bool(call_id or document or run)
    if is_stored == bool(marked_text):
        raise UsageError(
            "expected a text with its call in brackets (TEXT) or a stored call (--call-id, or --document with "
            "--at), found both or neither."
        )
    if is_stored and (date or model or context_tokens is not None):
        raise UsageError("expected no --date, --model and --context-tokens beside a stored call, found some.")
    if is_stored:
        explanations = _explain_stored(run, call_id, document, at)
    else:
        text, at, call_text = call_in_text(marked_text)
        tokens = CONTEXT_TOKENS if context_tokens is None else context_tokens
        explanation = explain_call(
            load_settings(),
            text=text,
            at=at,
            call_text=call_text,
            date=date or None,
            model_name=model_name(model),
            context_tokens=tokens or None,
        )
        explanations = [explanation]
    if as_json:
        typer.echo(json_to_show(explanations if call_id or document else explanations[0], indent=2))
    else:
        for explanation in explanations:
            explanation_table(explanation)
    if len(explanations) == 1 and explanations[0]["reason"] is not None:
        raise typer.Exit(EXIT_NO_RESULT)


def _explain_stored(run: str, call_id: str, document: str, at: int | None) -> list[dict[str, Any]]:
    from toolformer_ops.runs.explaining import explain_stored
    from toolformer_ops.storage.postgres import database

    with database.transaction(database.connect(load_settings(), writes=False)) as connection:
        return explain_stored(connection, run, call_id, document, at)


@app.command("check")
def check(
    corpus: Corpus,
    tools: ToolsOption = None,
    model: Model = "",
    limit: LimitOption = None,
    thresholds: ThresholdOption = None,
    parameters: RunParametersJson = "{}",
    proposer: ProposerOption = "",
    field: FieldOption = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Annotate three texts a tool with a clock, and say what a run takes: calls, rows, hours.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --measure: print the figures as JSON, all else to stderr.")
    ] = False,
    store: Annotated[
        str, typer.Option(help="With --measure: a started run, whose page shows the figures.")
    ] = "",
) -> None:
    """Look at corpus, fields, tools, model and memory, and say what to mend; starts no run.

    For a schedule file it also prints the next five starts, and looks at the corpus of its runs.

    Example: toolformer-ops check posts.jsonl --tools Calculator,Calendar

    Example: toolformer-ops check posts.jsonl --limit 10000 --measure
    """
    from toolformer_ops.on_a_file.look import estimation
    from toolformer_ops.on_a_file.look.checking import MOST_MEASURED_TEXTS, CorpusLook, observations

    if (as_json or store) and not measure:
        raise UsageError("--json, --store: expected --measure, too, found it missing. Add it.")
    settings = load_settings()

    if corpus.endswith(".toml"):
        choices = _choices_of_schedule(
            corpus,
            ignored=bool(tools or model or limit or thresholds or field or proposer) or parameters != "{}",
        )
    else:
        choices = choices_without_services(
            corpus,
            model,
            tools=tools,
            limit=limit,
            thresholds=thresholds,
            fields=field,
            proposer=proposer,
            parameters=parameters,
        )
    look = CorpusLook()
    if measure:
        look.most_texts = MOST_MEASURED_TEXTS
    print_observations(observations(settings, choices, look), err=as_json)
    if not measure:
        return
    estimates = estimation.estimate_run(settings, choices, look.kept, look.share_read)
    figures = estimation.as_json(settings, estimates)
    if store:
        estimation.store_estimate(settings, store, figures)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
    else:
        estimation.print_table(settings, estimates, choices)


def _choices_of_schedule(path: str, *, ignored: bool) -> "RunChoices":
    """Print when a schedule file starts its runs, and return their parameters.

    Raises:
        UsageError: `ignored`: parameters were typed that the file has; or the file is no schedule.
    """
    import datetime

    from toolformer_ops.airflow_tasks.nights.schedules import load_schedule

    if ignored:
        raise UsageError(
            f"{path}: expected no other option beside a schedule file, found some. Write them into the file."
        )
    schedule = load_schedule(Path(path))
    typer.echo(f"next starts: {schedule.starts_after(datetime.datetime.now(datetime.UTC))}")
    return schedule.run


@app.command("preview")
def preview(
    corpus: Corpus,
    tools: ToolsOption = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, max=100, help="Only the first texts that a tool is asked about."
        ),
    ] = 5,
    model: Model = "",
    thresholds: ThresholdOption = None,
    parameters: RunParametersJson = "{}",
    proposer: ProposerOption = "",
    field: FieldOption = None,
    out: Annotated[
        Path | None, typer.Option("--html", help="Write the texts with their calls to this page, too.")
    ] = None,
) -> None:
    """Show the calls that a run would find in the first texts of a corpus, kept or not and by how many nats, or why there is none.

    Takes the first texts that a tool is asked about. Calls are judged by their loss alone, without placebos.

    Example: toolformer-ops preview posts.jsonl --tools Calculator,Calendar -n 5 --html preview.html
    """
    from rich.console import Console

    from toolformer_ops.on_a_file.look.checking import CorpusLook, observations

    if out is not None and (out.suffix.lower() not in (".html", ".htm") or not out.parent.is_dir()):
        raise UsageError(
            f"--html: expected a name that ends in .html, in a folder that is there, found {out}."
        )
    # 1. What there is.
    choices = choices_without_services(
        corpus,
        model,
        tools=tools,
        thresholds=thresholds,
        fields=field,
        proposer=proposer,
        parameters=parameters,
    )
    look = CorpusLook()
    print_observations(observations(load_settings(), choices, look))
    # 2. The texts.
    from toolformer_ops.on_a_file.look import calls_page
    from toolformer_ops.on_a_file.look.preview import Preview, shown_text

    console = Console(soft_wrap=True, highlight=False)
    chosen = Preview.of(load_settings(), choices, look, limit)
    articles = []
    for previewed in chosen.texts():
        for line in shown_text(previewed):
            console.print(line)
        articles.append(previewed.article)
    # 3. What came of it.
    console.print(chosen.summary, markup=False)
    if out is not None:
        out.write_text(calls_page.page(f"{corpus}, a preview", [chosen.summary], articles), encoding="utf-8")
        typer.echo(f"{out}")


@app.command("annotate")
def annotate(
    corpus: Corpus,
    tools: ToolsOption = None,
    model: Model = "",
    limit: LimitOption = None,
    until_kept: UntilKeptOption = None,
    thresholds: ThresholdOption = None,
    parameters: RunParametersJson = "{}",
    all_calls: Annotated[bool, typer.Option("--all", help="Print also calls that are not kept.")] = False,
    proposer: ProposerOption = "",
    field: FieldOption = None,
    out: Annotated[
        str,
        typer.Option(
            help="Write the calls to this file, as JSON Lines; or all calls as Parquet into a folder (calls/) "
            "or below s3://bucket/prefix/, for several workers. If this is stopped, the same command continues."
        ),
    ] = "",
    shards: Annotated[
        int, typer.Option(help="With a folder: into how many parts the corpus is divided.", min=1, max=9999)
    ] = 1,
    shard: Annotated[
        int | None,
        typer.Option(
            help="Work off this part alone, from 0; by default all that others have not begun.", min=0
        ),
    ] = None,
    texts_a_file: Annotated[
        int, typer.Option(help="With a folder: texts of a file; a kill loses no more.", min=1, max=100_000)
    ] = 256,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on a terminal, too; a pipe gets JSON anyway.")
    ] = False,
) -> None:
    """Do the whole method in this process, with one or several tools, and print the kept calls with their losses.

    Progress goes to stderr, at the end with the reasons why texts gave nothing. Placebos are drawn from
    the calls of the first texts, some 2,000, so that no call is printed before; with
    --parameters '{"placebos": 0, "placebo_sample": 0}' calls follow after every 16 texts, without their
    information. With --out FILE, finished work is in the folder FILE.partial until the end.

    Example: toolformer-ops annotate docs.jsonl --tools Calculator,Calendar --limit 10

    Example: toolformer-ops annotate docs.jsonl --tool Calculator --out calls.jsonl

    Example: toolformer-ops annotate s3://bucket/texts/ --tool Calculator --out s3://bucket/calls/ --shards 9
    """
    # 1. What is asked for, said before anything that takes long is imported.
    settings = load_settings()
    if not tools:
        raise UsageError("--tools: expected tools such as Calculator,Calendar, found none.")
    is_shared = out.startswith("s3://") or out.endswith("/") or (out != "" and Path(out).is_dir())
    if not is_shared and (shards > 1 or shard is not None):
        raise UsageError(
            "--shards, --shard: expected --out with a folder (calls/) or an s3:// prefix beside them, found "
            f"{out or 'none'}. Name one."
        )
    if shard is not None and shard >= shards:
        raise UsageError(
            f"--shard: expected a number from 0 to {shards - 1} (--shards {shards}), found {shard}."
        )

    choices = choices_without_services(
        corpus,
        model,
        tools=tools,
        limit=limit,
        until_kept=until_kept,
        thresholds=thresholds,
        fields=field,
        proposer=proposer,
        parameters=parameters,
    )
    typer.echo(
        f"annotating {corpus} with {', '.join(choices.tools)}; {Path(choices.model).name} on "
        f"{settings.device} in {settings.dtype}",
        err=True,
    )
    from toolformer_ops.on_a_file.annotate.annotation import Annotation

    # 2. The work, and what came of it.
    if is_shared:
        _work_on_folder(settings, choices, out, shards, shard, texts_a_file)
        return
    annotation = Annotation.of(settings, choices)
    file = Path(out) if out else None
    _print_rows(annotation, annotation.counts, file, as_json=as_json, only_kept=not all_calls)


def _work_on_folder(
    settings: "Settings", choices: "RunChoices", out: str, shards: int, shard: int | None, texts_a_file: int
) -> None:
    """Work as one of the workers on a folder, and say what is finished in it."""
    from rich.console import Console

    from toolformer_ops.on_a_file.annotate.workers import Worker, finished_shards
    from toolformer_ops.runs.shown_progress import shown

    console = Console(stderr=True)
    worker = Worker.of(settings, choices, out, shards, texts_a_file)
    try:
        with shown(worker.progress, console):
            worker.work(shard)
    except BaseException:
        typer.echo(f"stopped; the same command continues, from {out}", err=True)
        raise
    finished, counts = finished_shards(worker.annotation.parts, choices.tools)
    typer.echo(f"{out}: {finished:,} of {shards:,} shards are finished, {counts.texts:,} texts", err=True)
    console.print(counts.summary())


@app.command("load")
def load(
    prefix: Annotated[
        str,
        typer.Argument(help="The folder or s3:// prefix that `annotate --out` wrote, all shards finished."),
    ],
    only_kept: Annotated[
        bool,
        typer.Option(
            "--kept",
            help="Only the texts with a kept call, and those that the share kept by chance is measured on.",
        ),
    ] = False,
    run: Annotated[str, typer.Option(help="The id of the run; by default one that the files decide.")] = "",
    corpus: Annotated[
        str, typer.Option(help="Where the texts are, if not where the workers read them.")
    ] = "",
) -> None:
    """Load the rows of workers into Postgres, as a run, check and release it; its page, reviews and nights see it then.

    A load may be repeated: it passes over the rows that Postgres has already. It needs the model and the tools
    of the workers, and loads no weights.

    Example: toolformer-ops load s3://bucket/calls/ --kept
    """
    from toolformer_ops.audit.checking import check_release, check_tools
    from toolformer_ops.on_a_file.loading import load_prefix
    from toolformer_ops.stages.release import release_of_run
    from toolformer_ops.stages.run_setup import finish_run

    settings = load_settings()
    loaded = load_prefix(settings, prefix, run, corpus, only_kept=only_kept)
    check_tools(settings, loaded.run_id)
    if release_of_run(settings, loaded.run_id).release_id is not None:
        check_release(settings, loaded.run_id)
    typer.echo(finish_run(settings, loaded.run_id, "success"))
    typer.echo(
        f"{loaded.calls:,} calls in {loaded.texts:,} texts loaded as run {loaded.run_id}; "
        f"{loaded.left_out:,} texts were there already, or are not in the run",
        err=True,
    )


class _GivesRows(Protocol):
    parts: "Parts"

    def rows(self) -> "Iterator[dict[str, Any]]": ...


def _print_rows(
    work: _GivesRows, counts: "AnnotationCounts", out: Path | None, *, as_json: bool, only_kept: bool
) -> None:
    """Print the rows of a work that is shown meanwhile, or write them to `out`, and then what came of it."""
    from rich.console import Console

    from toolformer_ops.on_a_file.annotate.partial_folder import finish, parts_beside
    from toolformer_ops.on_a_file.annotate.shown_calls import call_in_its_text, verdict
    from toolformer_ops.runs.durations import duration
    from toolformer_ops.runs.shown_progress import shown

    console, stdout = Console(stderr=True), Console(soft_wrap=True, highlight=False)
    try:
        with parts_beside(out) as parts, shown(counts.progress, console):
            work.parts = parts
            rows = (row for row in work.rows() if row["kept"] or not only_kept)
            if out is not None:
                finish(out, map(json_to_show, rows))
            elif as_json or not stdout.is_terminal:
                for row in rows:
                    typer.echo(json_to_show(row))
            else:
                for row in rows:
                    stdout.print(f"{visible(row['id'])}  {verdict(row)}", markup=False, style="dim")
                    if row.get("result") is not None:
                        stdout.print(call_in_its_text(row))
    except BaseException:
        if out is not None and counts.done:
            typer.echo(f"stopped; the same command continues, from {out}.partial", err=True)
        raise
    speed = "" if counts.tokens_per_second is None else f", {counts.tokens_per_second:,.0f} tokens/s"
    typer.echo(f"{counts.texts:,} {counts.noun} in {duration(counts.seconds)}{speed}", err=True)
    console.print(counts.summary())


@app.command("judge")
def judge(
    calls: Annotated[
        str,
        typer.Argument(help="Path or s3:// address of JSON Lines or Parquet with texts and calls in them."),
    ],
    model: Model = "",
    placebos: Annotated[
        bool, typer.Option("--placebos", help="Score other calls' results in the place of each call, too.")
    ] = False,
    parameters: RunParametersJson = "{}",
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="If records name a field otherwise: text=generation; also at=, call=, tool=, input=, result=, id=, url=, date=."
        ),
    ] = None,
    kept: Annotated[bool, typer.Option("--kept", help="Print kept calls alone.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the rows to this file, as JSON Lines. If this is stopped, the same command continues."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on a terminal, too; a pipe gets JSON anyway.")
    ] = False,
) -> None:
    """Judge calls that another program or model proposed: how much does each result reduce the loss?

    A record has a text with its calls in brackets, `It is [Calculator(1 + 1) -> 2] 2.`, or a text, the place of the
    call (`at`, in characters), `tool` and `input`, and perhaps a `result`. Without a result the tool is asked, if
    it is known. Each call gives a row; a record that cannot be judged gives one with the reason.

    Example: toolformer-ops judge calls.jsonl --field text=generation --placebos
    """
    # 1. What is asked for, said before anything that takes long is imported.
    settings, name = load_settings(), model_name(model)
    typer.echo(
        f"judging the calls of {calls}; {Path(name).name} on {settings.device} in {settings.dtype}", err=True
    )
    from toolformer_ops.on_a_file.annotate.annotation_counts import reasons_in_words
    from toolformer_ops.on_a_file.judge.judging import Judging
    from toolformer_ops.on_a_file.judge.proposed_calls import ProposalFields
    from toolformer_ops.runs.choices import typed_values

    without = {} if placebos else {"placebos": 0, "placebo_sample": 0}
    values = {"prune_below": 0.0, **without, **typed_values(parameters)}
    # 2. The work, and what came of it.
    judging = Judging(settings, calls, name, ProposalFields.of(field or ()), values)
    _print_rows(judging, judging.counts, out, as_json=as_json, only_kept=kept)
    if judging.refused:
        typer.echo(f"refused: {reasons_in_words(judging.refused)}", err=True)
    if judging.likely_text:
        typer.echo(
            f"{visible(judging.likely_text)} holds calls: --field text={visible(judging.likely_text)}",
            err=True,
        )
