"""`python -m studies`: what a model learns from calls that were chosen in different ways, as `make study` runs it."""

import logging
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markdown import Markdown

from studies.answers import gather
from studies.devices import load_to_score, share_device, study_settings
from studies.evidence import tables, write_page
from studies.hours import MEASURED_ON, model_parameters, study_hours
from studies.judging import chosen_calls, read_verdicts, write_judged, write_sheets
from studies.keep_rules import labelled_tables
from studies.labelled_scores import HALVES, MOST_TEXTS, Half, pack, score_sets
from studies.plan import ANNOTATIONS, MAIN_ARMS, PLAN, TOOLS, Annotation, StudyPlan
from studies.rows import RowPlan, gather_rows, run_rows
from studies.side_by_side import Seed, SideBySide
from studies.stored_calls import place_stored_calls
from studies.study import refuse_unreadable, run_seed, with_wiki_index
from toolformer_ops.config import load_settings
from toolformer_ops.errors import NoResultError, ToolformerError, UsageError, exit_code
from toolformer_ops.local.demo.model import prepare_demo_model

logger = logging.getLogger("studies")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, no_args_is_help=True)

ANSWERS = Path(__file__).with_name("answers")
PAGE = Path("docs/evidence.md")
WIDE = 250
"""Columns of a terminal that the tables of labelled calls take."""


@app.command()
def run(
    names: Annotated[
        str, typer.Argument(help=f"Studies with commas, the most wanted first: {', '.join(TOOLS)}.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the studies; what was killed continues there.")],
    model: Annotated[
        str,
        typer.Option(help="Folder, id@revision or s3://bucket/models/NAME; empty means the demo's model."),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds: 0, 1, 2 ...")] = 10,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    texts: Annotated[
        int,
        typer.Option(min=0, help="Sentences to annotate, of each seed; 0: as many as studies/plan.py says."),
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = StudyPlan.steps,
    batch: Annotated[int, typer.Option(min=1, help="Texts a step.")] = StudyPlan.batch,
    learning_rate: Annotated[
        float, typer.Option(help="Peak learning rate of each training.")
    ] = StudyPlan.learning_rate,
    test: Annotated[int, typer.Option(min=2, help="Fresh sentences to test with.")] = StudyPlan.test,
    arms: Annotated[
        str,
        typer.Option(help="What is trained on, with commas, `paper` first. studies/arms.py has them all."),
    ] = ",".join(MAIN_ARMS),
    method: Annotated[
        Literal["full", "lora"], typer.Option(help="Train all weights, or adapters, for a large model.")
    ] = "full",
    gsm8k: Annotated[
        Path | None, typer.Option(help="File of GSM8K's problems, for the studies gsm8k and problems.")
    ] = None,
    posts: Annotated[Path | None, typer.Option(help="File of dated posts, for the study posts.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="How many seeds side by side.")] = 1,
    share: Annotated[
        int, typer.Option(min=0, help="How many processes share the GPU's memory; 0: these alone.")
    ] = 0,
    minutes: Annotated[
        float | None, typer.Option(help="No seed and no arm begins after so many minutes.")
    ] = None,
    annotate: Annotated[
        bool,
        typer.Option(
            help="Annotate, and train nothing: the tables of rules need no more. The same command without it continues."
        ),
    ] = False,
    annotated: Annotated[
        Path | None,
        typer.Option(help="Take calls from this NAME-calls.jsonl.bz2 of raw answers, and annotate nothing."),
    ] = None,
) -> None:
    """Teach a model a tool with calls chosen in different ways, test it with fresh sentences, and write raw answers and tables.

    A training at the defaults takes a quarter of an hour on two cores; a seed has ten. On a GPU
    `--processes` seeds run side by side, and the log says first how long all may take. No services are needed.

    Example: make study NAME=calculator SEEDS=3 OUT=.toolformer/models/calculator-study
    """
    until = None if minutes is None else time.time() + 60 * minutes
    settings = study_settings(load_settings())
    refuse_unreadable(settings, out)
    address = model or str(prepare_demo_model(settings.state_dir))
    numbers = StudyPlan(
        model=Path(address).name if Path(address).exists() else address,
        texts=texts,
        test=test,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        arms=tuple(arms.split(",")),
        method=method,
    )
    files = {"gsm8k": gsm8k, "posts": posts, "problems": gsm8k}
    plans = []
    for study in names.lower().split(","):
        plan = _plan_of_study(study, files, numbers)
        plans += [replace(plan, seed=number) for number in range(first_seed, first_seed + seeds)]
    if settings.device != "cpu":
        parameters = model_parameters(settings, address)
        logger.info(
            "estimate: %s for %d seeds of a model of %.2g billion parameters, reckoned from what was measured on %s",
            study_hours(plans, parameters, processes), len(plans), parameters / 1e9, MEASURED_ON,
        )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    with_index = with_wiki_index(settings, out, plans)
    index = Path(with_index.wiki_index) if with_index is not settings else None
    seeds_to_run = [Seed(plan, _folder(out, plan)) for plan in plans]
    for item in seeds_to_run:
        item.plan.write(item.folder)  # refuses a folder of another plan before anything is written
    if annotated is not None:
        place_stored_calls(with_index, annotated, [(item.plan, item.folder) for item in seeds_to_run])
    together = SideBySide(
        model=address,
        processes=processes,
        share=share or processes,
        until=until,
        index=index,
        only_annotate=annotate,
    )
    unfinished = together.run(seeds_to_run)
    for study in dict.fromkeys(plan.study for plan in plans):
        _print_answers(study, out)
    if unfinished:
        names_left = "; ".join(seed.name for seed in unfinished)
        logger.error(
            "not finished: %s. Their logs are in their folders; the same command continues them.", names_left
        )
        sys.exit(1)


@app.command()
def seed(
    folder: Annotated[Path, typer.Argument(help="Folder of the seed, with its plan.json.")],
    model: Annotated[str, typer.Option(help="As of `run`.")],
    share: Annotated[int, typer.Option(min=1, help="How many processes share the GPU's memory.")] = 1,
    until: Annotated[
        float | None, typer.Option(help="No arm begins after this second of the Unix clock.")
    ] = None,
    wiki_index: Annotated[str, typer.Option(help="Folder of Wikipedia's index.")] = "",
    annotate: Annotated[bool, typer.Option(help="Train nothing.")] = False,
) -> None:
    """One seed of a study, as `run` starts it in a process."""
    _provide_kernel()
    settings = study_settings(load_settings())
    if wiki_index:
        settings = settings.model_copy(update={"wiki_index": wiki_index})
    share_device(settings, share)
    run_seed(settings, model, StudyPlan.read(folder / PLAN), folder, until, only_annotate=annotate)


@app.command()
def rows(
    out: Annotated[Path, typer.Option(help="Folder of the study; a seed that is done is not done again.")],
    model: Annotated[str, typer.Option(help="As for `run`; empty means the demo's model.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the training with calls.")] = RowPlan.steps,
    learning_rate: Annotated[
        float, typer.Option(help="Peak learning rate of each training.")
    ] = RowPlan.learning_rate,
) -> None:
    """Train a model on texts with calls of a table and one on the texts alone, change and delete rows, and ask both.

    Writes rows.jsonl.bz2 into the folder `answers` of --out, after each seed anew.

    Example: python -m studies rows --out ~/rows --seeds 1
    """
    settings = study_settings(load_settings())
    refuse_unreadable(settings, out)
    address = model or str(prepare_demo_model(settings.state_dir))
    for number in range(first_seed, first_seed + seeds):
        plan = RowPlan(seed=number, steps=steps, learning_rate=learning_rate)
        run_rows(settings, address, plan, out / f"seed-{number}")
        logger.info("raw answers are in %s", gather_rows(out, out / "answers"))


@app.command()
def sheets(
    study: Annotated[str, typer.Argument(help=f"One of {', '.join(TOOLS)}.")],
    out: Annotated[Path, typer.Option(help="Folder of the studies, whose seeds are annotated.")],
) -> None:
    """Write the calls that arms chose for a reader who does not know the arm: two sheets, in two orders.

    The reader writes verdicts-1.jsonl and verdicts-2.jsonl beside them; `judged` takes these.
    """
    calls = chosen_calls(out / study)
    for sheet in write_sheets(out / study, calls):
        logger.info("%s: %d calls", sheet, len(calls))


@app.command()
def judged(
    study: Annotated[str, typer.Argument(help=f"One of {', '.join(TOOLS)}.")],
    out: Annotated[Path, typer.Option(help="Folder of the studies, with the verdicts beside the sheets.")],
) -> None:
    """Put the verdicts of both readings beside their calls and arms, in answers/NAME-judged.jsonl."""
    calls = chosen_calls(out / study)
    file = out / "answers" / f"{study}-judged.jsonl"
    write_judged(file, calls, read_verdicts(out / study, calls))
    logger.info("%s: %d calls", file, len(calls))


@app.command()
def label(
    out: Annotated[Path, typer.Option(help="Folder of what is scored; what was killed continues there.")],
    gsm8k: Annotated[Path | None, typer.Option(help="File of GSM8K's problems.")] = None,
    passages: Annotated[Path | None, typer.Option(help="Wikipedia's articles in KILT's format.")] = None,
    posts: Annotated[Path | None, typer.Option(help="File of dated posts.")] = None,
    reports: Annotated[Path | None, typer.Option(help="Passages of TAT-QA.")] = None,
    model: Annotated[str, typer.Option(help="As for `run`; empty means the demo's model.")] = "",
    texts: Annotated[
        int, typer.Option(min=1, help="At most so many right calls a half of a set.")
    ] = MOST_TEXTS,
    minutes: Annotated[float, typer.Option(help="No text is begun after so many minutes.")] = math.inf,
) -> None:
    """Make labelled calls of the files, score them, and write raw answers into the folder `answers` of --out.

    A right call with its ten wrong ones takes two seconds on two cores.
    """
    file_of_set = {
        "problems": gsm8k,
        "facts": passages,
        "posts": posts,
        "reports": reports,
    }
    files = {name: file for name, file in file_of_set.items() if file is not None}
    settings = study_settings(load_settings())
    scorer = load_to_score(settings, model or str(prepare_demo_model(settings.state_dir)))
    out.mkdir(parents=True, exist_ok=True)
    until = time.time() + 60 * minutes
    for half in HALVES:
        score_sets(scorer, files, out, half=half, until=until, at_most=texts)
    for file in pack(out, out / "answers"):
        logger.info("wrote %s", file)


@app.command()
def labelled(
    half: Annotated[Half, typer.Argument(help="`choose`, on which a rule is chosen, or `sealed`.")],
    answers: Annotated[Path, typer.Option(help="Folder of the raw answers.")] = ANSWERS,
) -> None:
    """Print how well statistics find the right ones among labelled calls, and what one threshold for all of them keeps."""
    Console(width=WIDE).print(Markdown(labelled_tables(answers, half)))


@app.command()
def evidence(
    answers: Annotated[Path, typer.Option(help="Folder of the raw answers.")] = ANSWERS,
    page: Annotated[Path, typer.Option(help="The page whose tables are written anew.")] = PAGE,
) -> None:
    """Compute the tables of docs/evidence.md from the raw answers in the repository, and write them into the page."""
    write_page(page, answers)
    logger.info("wrote %s from %s", page, answers)


def _plan_of_study(study: str, files: Mapping[str, Path | None], numbers: StudyPlan) -> StudyPlan:
    """The plan of a study's first seed: the numbers of the command, and what they leave to the study.

    Raises:
        UsageError: the study reads a file, and the command names none.
    """
    file = files.get(study)
    if study in files and file is None:
        raise UsageError(
            f"{study}: expected the option of its file, found none. `python -m studies run --help` says which."
        )
    annotation = ANNOTATIONS.get(study, Annotation(StudyPlan.texts))
    return replace(
        numbers,
        study=study,
        file="" if file is None else str(file.resolve()),
        texts=numbers.texts or annotation.texts,
        max_positions=annotation.max_positions,
        samples_per_position=annotation.samples_per_position,
    )


def _print_answers(study: str, out: Path) -> None:
    """Gather the raw answers of a study's seeds, and print their tables; a study without any is passed over."""
    try:
        answers, calls = gather(out / study, out / "answers")
    except NoResultError as error:
        logger.warning("%s", error)
        return
    Console().print(Markdown(tables(answers, calls)))
    logger.info("raw answers are in %s", answers)


def _folder(out: Path, plan: StudyPlan) -> Path:
    return out / plan.study / f"seed-{plan.seed}"


def _provide_kernel() -> None:
    """On a torch before 2.13: the engine's kernel for sequences of any lengths, as `make bench-gpu` provides it."""
    from benchmarks.gpu.varlen import provide_varlen

    provide_varlen()


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    try:
        app()
    except ToolformerError as error:
        logger.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 - the message is the remedy
        sys.exit(exit_code(error))
