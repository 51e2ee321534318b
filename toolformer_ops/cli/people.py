"""Subcommands for people: call a tool, try a filter, explain a call, annotate a file, estimate, export a release, compare runs.

Results go to stdout, what is said about them to stderr.
"""

import functools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from toolformer_ops.config import load_settings
from toolformer_ops.errors import EXIT_NO_RESULT, UsageError
from toolformer_ops.shown_text import json_to_show, visible
from toolformer_ops.tools.base import FilterRule

if TYPE_CHECKING:
    from toolformer_ops.on_a_file.annotation_progress import AnnotationProgress
    from toolformer_ops.on_a_file.checking import Observation
    from toolformer_ops.on_a_file.partial_file import PartialFile
    from toolformer_ops.runs.choices import RunChoices

EXPORT_FORMATS = ("chat", "sharegpt", "preference", "preference-text", "preference-sharegpt", "environment")

app = typer.Typer()

Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="Folder, id@revision or s3://bucket/models/NAME; demo: the demo's model; empty: the setting default_model.",
    ),
]
ToolOption = Annotated[str, typer.Option("--tool", help="Name of a tool, such as Calculator.")]
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
        "whose names are known: c4, ccnet, dolma, fineweb, oscar, the_stack. near_duplicates=0.8 leaves out a text that shares "
        "four fifths of its passages with another. May be repeated.",
    ),
]
RunParametersJson = Annotated[
    str,
    typer.Option(
        "--parameters",
        help="Run parameters as JSON, over those of the preset small_model; see `toolformer-ops parameters`.",
    ),
]


def model_name(model: str) -> str:
    """The model that was named, or that of the setting; raises as `named_model`."""
    from toolformer_ops.local.demo.model import named_model

    return named_model(load_settings(), model, "--model")


def corpus_address(corpus: str, field: Sequence[str] | None) -> str:
    """The address of a corpus with the names of its fields; raises `UsageError` if these are no mapping."""
    from toolformer_ops.storage.corpus_addresses import CorpusAddress

    return str(CorpusAddress.of(corpus, field or ()))


def with_fields(values: dict[str, Any], field: Sequence[str] | None) -> dict[str, Any]:
    """The parameters of a run with the names of fields that were given apart from them."""
    return {**values, "fields": tuple(field)} if field else values


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
    from toolformer_ops.on_a_file.annotator import run_one

    output = run_one(load_settings(), tool, call_input, date or None, functools.partial(model_name, model))
    if output.reason is not None:
        typer.echo(f"no result: {output.reason}", err=True)
        raise typer.Exit(EXIT_NO_RESULT)
    typer.echo(visible(output.results[0]))


@app.command("filter")
def filter_file(
    corpus: Corpus,
    tool: ToolOption,
    field: FieldOption = None,
    filter_rule: Annotated[
        FilterRule,
        typer.Option(help="paper, or sharp: only texts in which the Calculator finds a computation."),
    ] = "paper",
) -> None:
    """Print a tool's filter decisions, one JSON line a document, or one a paragraph if the tool judges paragraphs.

    Example: toolformer-ops filter --tool Calculator docs.jsonl
    """
    from toolformer_ops.on_a_file.annotator import filter_lines
    from toolformer_ops.runs.choices import FilterChoices

    choices = FilterChoices(filter_rule=filter_rule)
    for line in filter_lines(load_settings(), tool, corpus_address(corpus, field), choices):
        typer.echo(json_to_show(line))


@app.command("explain")
def explain(
    marked_text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="The text with its call in brackets: '400 of 1400 is [Calculator(400 / 1400)] 0.29 of all.'",
        ),
    ] = "",
    text: Annotated[str, typer.Option(help="The text around the call, without calls.")] = "",
    at: Annotated[
        int | None, typer.Option(help="Offset in the text, in characters, before which the call is.", min=0)
    ] = None,
    call_text: Annotated[
        str, typer.Option("--call", help="The call, such as 'Calculator(400 / 1400)'.")
    ] = "",
    date: Annotated[str, typer.Option(help="Date of the document, for the Calendar: 2023-01-30.")] = "",
    model: Model = "",
    context_tokens: Annotated[
        int, typer.Option(help="Tokens of text before the call to score with; 0 means all.", min=0)
    ] = 0,
    placebos: Annotated[
        Path | None,
        typer.Option(
            help="Calls that `annotate --all` printed: others' results are scored in the call's place, too."
        ),
    ] = None,
    call_id: Annotated[str, typer.Option(help="A stored call, by its id.")] = "",
    document: Annotated[
        str, typer.Option(help="With --at: the stored calls at that offset of a document, by its id.")
    ] = "",
    run: Annotated[
        str, typer.Option(help="The run of the stored calls; by default the one that was finished last.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print a call's losses, token by token: of a call that you write, by its tool and the model, or of one that a run stored.

    Example: toolformer-ops explain "400 of 1400 is [Calculator(400 / 1400)] 0.29 of all."

    With the call apart: toolformer-ops explain --text "400 of 1400 is 0.29 of all." --at 14 --call "Calculator(400 / 1400)"

    A stored call needs no model: toolformer-ops explain --run RUN --document DOCUMENT --at 14
    """
    from toolformer_ops.on_a_file.explanation import call_in_text, explain_call, explanation_table

    if marked_text:
        if text or call_text or at is not None:
            raise UsageError(
                "expected the call in the brackets of TEXT, or --text, --at and --call, found both."
            )
        text, at, call_text = call_in_text(marked_text)
    if call_id or document or run:
        if any((text, call_text, date, model, context_tokens, placebos)):
            raise UsageError(
                "expected a stored call (--call-id, --run, --document with --at) or one that you write (TEXT), "
                "found both. Leave out one of them."
            )
        from toolformer_ops.runs.explaining import explain_stored
        from toolformer_ops.storage import database

        with database.transaction(database.connect(load_settings(), writes=False)) as connection:
            explanations = explain_stored(connection, run, call_id, document, at)
    elif not text or not call_text or at is None:
        raise UsageError(
            "expected a text with its call in brackets, or a stored call: --call-id, or --document with --at. "
            "--text, --at and --call give the call apart from its text."
        )
    else:
        explanations = [
            explain_call(
                load_settings(),
                text=text,
                at=at,
                call_text=call_text,
                date=date or None,
                model_name=model_name(model),
                context_tokens=context_tokens or None,
                pool_file=placebos,
            )
        ]
    if as_json:
        typer.echo(json_to_show(explanations if call_id or document else explanations[0], indent=2))
    else:
        for explanation in explanations:
            explanation_table(explanation)
    if len(explanations) == 1 and explanations[0]["reason"] is not None:
        raise typer.Exit(EXIT_NO_RESULT)


def run_choices(
    corpus: str,
    tools: Sequence[str] | None,
    model: str,
    limit: int,
    parameters: str,
    field: Sequence[str] | None,
) -> "RunChoices":
    """The parameters of a run that a command's options ask for; raises `UsageError` if they are none."""
    from toolformer_ops.runs.choices import RunChoices, typed_values
    from toolformer_ops.tools.registry import typed_tools

    values = {**with_fields(typed_values(parameters), field), "corpus": corpus, "model": model_name(model)}
    if names := typed_tools(tools or ()):
        values["tools"] = names
    if limit:
        values["document_limit"] = limit
    choices = RunChoices.parse(values)
    choices.kept_from()
    return choices


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


@app.command("check")
def check(
    corpus: Corpus,
    tools: ToolsOption = None,
    model: Model = "",
    limit: Annotated[int, typer.Option(help="Only the first documents; 0 means all.", min=0)] = 0,
    parameters: RunParametersJson = "{}",
    field: FieldOption = None,
    measure: Annotated[
        bool,
        typer.Option(help="Load the model and annotate a few texts a tool, to say how long all take."),
    ] = True,
) -> None:
    """Look at corpus, fields, tools, model and memory, and say what to mend and how long it takes; starts nothing.

    Example: toolformer-ops check posts.jsonl --tools Calculator,Calendar
    """
    from toolformer_ops.on_a_file.checking import CorpusLook, observations

    choices = run_choices(corpus, tools, model, limit, parameters, field)
    print_observations(observations(load_settings(), choices, CorpusLook(), measures_time=measure))


@app.command("preview")
def preview(
    corpus: Corpus,
    tools: ToolsOption = None,
    texts: Annotated[int, typer.Option("--texts", "-n", help="How many texts.", min=1, max=100)] = 5,
    model: Model = "",
    parameters: RunParametersJson = "{}",
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

    from toolformer_ops.on_a_file.checking import CorpusLook, observations

    if out is not None and (out.suffix.lower() not in (".html", ".htm") or not out.parent.is_dir()):
        raise UsageError(
            f"--html: expected a name that ends in .html, in a folder that is there, found {out}."
        )
    # 1. What there is.
    choices = run_choices(corpus, tools, model, 0, parameters, field)
    look = CorpusLook()
    print_observations(observations(load_settings(), choices, look))
    # 2. The texts.
    from toolformer_ops.on_a_file import calls_page
    from toolformer_ops.on_a_file.preview import Preview, shown_text

    console = Console(soft_wrap=True, highlight=False)
    chosen = Preview.of(load_settings(), choices, look, texts)
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
    limit: Annotated[int, typer.Option(help="Annotate only the first documents; 0 means all.", min=0)] = 0,
    parameters: RunParametersJson = "{}",
    all_calls: Annotated[bool, typer.Option("--all", help="Print also calls that are not kept.")] = False,
    field: FieldOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the calls to this file, as JSON Lines. If this is stopped, the same command continues."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on a terminal, too; a pipe gets JSON anyway.")
    ] = False,
) -> None:
    """Do the whole method in this process, with one or several tools, and print the kept calls with their losses.

    How far it is goes to stderr, at the end with the reasons why texts gave nothing. The calls of all texts are
    the pool of placebos, so that none is printed before the last text is annotated; with
    --parameters '{"placebos": 0, "placebo_sample": 0}' each text's calls follow at once, without their
    information. With --out FILE what is done is in FILE.partial meanwhile.

    Example: toolformer-ops annotate docs.jsonl --tools Calculator,Calendar --limit 10

    Example: toolformer-ops annotate docs.jsonl --tool Calculator --out calls.jsonl
    """
    from toolformer_ops.runs.choices import typed_values
    from toolformer_ops.tools.registry import typed_tools

    # 1. What is asked for, said before anything that takes long is imported.
    settings, name = load_settings(), model_name(model)
    values = with_fields(typed_values(parameters), field)
    names = typed_tools(tools or ())
    if not names:
        raise UsageError("--tools: expected tools such as Calculator,Calendar, found none.")
    typer.echo(
        f"annotating {corpus} with {', '.join(names)}; {Path(name).name} on {settings.device} in {settings.dtype}",
        err=True,
    )
    from toolformer_ops.on_a_file.annotation import Annotation

    # 2. The work, and what came of it.
    annotation = Annotation.of_corpus(settings, corpus, names, name, limit or None, values)
    _print_rows(annotation, annotation.progress, out, as_json=as_json, only_kept=not all_calls)


class _GivesRows(Protocol):
    def rows(self, partial: "PartialFile") -> "Iterator[dict[str, Any]]": ...


def _print_rows(
    work: _GivesRows, progress: "AnnotationProgress", out: Path | None, *, as_json: bool, only_kept: bool
) -> None:
    """Print the rows of a work that is shown meanwhile, or write them to `out`, and then what came of it."""
    from rich.console import Console

    from toolformer_ops.on_a_file.annotation_progress import shown
    from toolformer_ops.on_a_file.partial_file import PartialFile, finish
    from toolformer_ops.on_a_file.shown_calls import call_in_its_text, verdict
    from toolformer_ops.runs.durations import duration

    console, stdout = Console(stderr=True), Console(soft_wrap=True, highlight=False)
    try:
        with PartialFile.beside(out) as partial, shown(progress, console):
            rows = (row for row in work.rows(partial) if row["kept"] or not only_kept)
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
        if out is not None and progress.done:
            typer.echo(f"stopped; the same command continues, from {out}.partial", err=True)
        raise
    speed = "" if progress.tokens_per_second is None else f", {progress.tokens_per_second:,.0f} tokens/s"
    typer.echo(f"{progress.texts:,} {progress.noun} in {duration(progress.seconds)}{speed}", err=True)
    console.print(progress.summary())


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
    """Judge calls that another program or model proposed: what does each one's result save of the loss?

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
    from toolformer_ops.on_a_file.annotation_progress import reasons_in_words
    from toolformer_ops.on_a_file.judging import Judging
    from toolformer_ops.on_a_file.proposed_calls import ProposalFields
    from toolformer_ops.runs.choices import typed_values

    without = {} if placebos else {"placebos": 0, "placebo_sample": 0}
    values = {"prune_below": 0.0, **without, **typed_values(parameters)}
    # 2. The work, and what came of it.
    judging = Judging(settings, calls, name, ProposalFields.of(field or ()), values)
    _print_rows(judging, judging.progress, out, as_json=as_json, only_kept=kept)
    if judging.refused:
        typer.echo(f"refused: {reasons_in_words(judging.refused)}", err=True)


@app.command("estimate")
def estimate(
    corpus: Annotated[str, typer.Argument(help="As a run takes it: a path, file:// or s3:// address.")],
    tools: ToolsOption = None,
    model: Model = "",
    limit: Annotated[int, typer.Option(help="Only the first documents; 0 means all.", min=0)] = 0,
    parameters: RunParametersJson = "{}",
    probe: Annotated[
        int, typer.Option(help="Texts a tool that are annotated to measure.", min=1, max=100)
    ] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    store: Annotated[
        str, typer.Option(help="Id of a started run: keep the estimate in annotation_runs.")
    ] = "",
    field: FieldOption = None,
) -> None:
    """Say what a run would take: texts, calls, rows and device hours, from the filters and a short measured probe.

    Example: toolformer-ops estimate docs.jsonl --tool Calculator,Calendar --limit 1000
    """
    from toolformer_ops.on_a_file import estimation

    settings = load_settings()
    choices = run_choices(corpus, tools, model, limit, parameters, field)
    estimates = estimation.estimate_run(settings, choices, probe)
    if store:
        estimation.store_estimate(settings, store, estimation.as_json(settings, estimates))
    if as_json:
        typer.echo(json.dumps(estimation.as_json(settings, estimates), indent=2))
    else:
        estimation.print_table(settings, estimates, choices.preset)


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
    release: Annotated[str, typer.Argument(help="A release: its folder, or its s3:// address.")],
    out: Annotated[str, typer.Argument(help="Where to write: a .jsonl file or a folder, local or s3://.")],
    export_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="chat: messages with tools and tool results; sharegpt: the same for LLaMA-Factory. preference: pairs of a chosen "
            "and a rejected call, as messages; preference-text: as plain text; preference-sharegpt: for LLaMA-Factory. "
            "environment: tasks with a reward, for TRL and verifiers. All are JSON Lines.",
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
    """
    if export_format not in EXPORT_FORMATS:
        raise UsageError(f"--format: expected one of {', '.join(EXPORT_FORMATS)}, found {export_format!r}.")
    from toolformer_ops.release.chat_export import Refusals, export_chat
    from toolformer_ops.release.conversations import FORMS
    from toolformer_ops.release.environment_export import export_environment
    from toolformer_ops.release.preference_export import PAIR_FORMS, export_preferences
    from toolformer_ops.stages.release import compared_with_evaluation_data

    settings = load_settings()
    found: Any
    if form := FORMS.get(export_format):
        compare = functools.partial(compared_with_evaluation_data, settings)
        refusals = Refusals(with_refusals, compare) if with_refusals else None
        found = export_chat(settings, release, out, seed, model, refusals, form=form)
    elif with_refusals:
        raise UsageError("--with-refusals: expected --format chat or sharegpt with it, found another format.")
    elif export_format == "environment":
        found = export_environment(settings, release, out, model)
    else:
        found = export_preferences(
            settings,
            release,
            out,
            seed,
            model,
            form=PAIR_FORMS[export_format],
            takes_lossy_template=lossy_template,
        )
    typer.echo(json.dumps(asdict(found), indent=2))


@app.command("runs")
def runs(
    at_most: Annotated[int, typer.Option("--limit", help="How many, the newest first.", min=1)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the runs, the newest first: state, schedule, corpus version, documents, kept calls, release and own work.

    Then come those that ended before they started, with the tasks that failed.

    Example: toolformer-ops runs --limit 7
    """
    from toolformer_ops.runs.summary import list_runs
    from toolformer_ops.storage import database, queries

    with database.transaction(database.connect(load_settings(), writes=False)) as connection:
        found = list_runs(connection, at_most)
        not_started = database.fetch_all(connection, queries.runs.not_started, run_id="", at_most=at_most)
    if as_json:
        listed = [asdict(run) for run in found]
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
            for run in found
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
    from toolformer_ops.storage import database

    with database.transaction(database.connect(load_settings(), writes=False)) as connection:
        summary = summarise(connection, run, other or None)
        counts = change_counts(connection)
        listed = changed_calls(connection, calls)
    if as_json:
        found = {
            "summary": summary.as_dict(),
            "changes": [asdict(count) for count in counts],
            "calls": [asdict(call) for call in listed],
        }
        typer.echo(json_to_show(found, default=str, indent=2))
        return
    typer.echo(summary.as_text())
    if counts:
        typer.echo()
        _print_table(
            ("tool", "calls", "reason", "in texts"),
            [
                (
                    count.tool,
                    f"{'+' if count.is_added else '-'}{count.calls:,}",
                    count.reason,
                    f"{count.texts:,}",
                )
                for count in counts
            ],
        )
    if listed:
        _print_table(
            ("document", "at", "call", "reason", "detail"),
            [
                (
                    str(call.document_id),
                    "" if call.position_char is None else str(call.position_char),
                    f"{'+' if call.is_added else '-'} {call.call_text or call.tool} -> {call.result or ''}",
                    call.reason,
                    call.detail or "",
                )
                for call in listed
            ],
        )


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
