"""`python -m studies`: what a model learns from calls that were chosen in different ways, as `make study` runs it."""

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from benchmarks.gpu.varlen import provide_varlen
from studies.answers import gather
from studies.devices import load_to_score, share_device, study_settings
from studies.evidence import tables, write_page
from studies.hours import MEASURED_ON, model_parameters, study_hours
from studies.judging import chosen_calls, read_verdicts, write_judged, write_sheets
from studies.keep_rules import labelled_tables
from studies.labelled_scores import HALVES, MOST_TEXTS, Half, pack, score_sets
from studies.plan import MAIN_ARMS, PLAN, STUDIES, TRAINED, StudyPlan, study_of
from studies.rows import RowPlan, gather_rows, run_rows
from studies.side_by_side import Seed, run_side_by_side
from studies.study import refuse_unreadable, run_seed
from toolformer_ops.config import load_settings
from toolformer_ops.errors import NoResultError, ToolformerError, exit_code
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
        str, typer.Argument(help=f"Studies with commas, the most wanted first: {', '.join(STUDIES)}.")
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
        typer.Option(
            help="What is trained on, with commas; studies/arms.py has them all. Empty: annotate, and train nothing."
        ),
    ] = ",".join(MAIN_ARMS),
    gsm8k: Annotated[
        Path | None, typer.Option(help="File of GSM8K's problems, for the studies gsm8k and problems.")
    ] = None,
    posts: Annotated[Path | None, typer.Option(help="File of dated posts, for the study posts.")] = None,
    passages: Annotated[
        Path | None, typer.Option(help="Wikipedia's articles in KILT's format, for the study facts.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="How many seeds side by side.")] = 1,
) -> None:
    """Teach a model a tool with calls chosen in different ways, test it with fresh sentences, and write raw answers and tables.

    A training at the defaults takes a quarter of an hour on two cores; a seed has six. On a GPU
    `--processes` seeds run side by side, and the log says first how long all may take. No services are needed.
    The calls of gsm8k and posts are annotated alone.

    Example: make study NAME=calculator SEEDS=3 OUT=.toolformer/models/calculator-study
    """
    settings = study_settings(load_settings())
    refuse_unreadable(settings, out)
    address = model or str(prepare_demo_model(settings.state_dir))
    numbers = StudyPlan(
        model=Path(address).name if Path(address).exists() else address,
        test=test,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
    )
    # 1. The plan of each seed.
    files = {"gsm8k": gsm8k, "posts": posts, "passages": passages}
    seeds_to_run = []
    for name in names.lower().split(","):
        study = study_of(name)
        file = files.get(study.option)
        plan = replace(
            numbers,
            study=name,
            file="" if file is None else str(file.resolve()),
            texts=texts or study.texts,
            arms=tuple(arms.split(",")) if arms and name in TRAINED else (),
        )
        for number in range(first_seed, first_seed + seeds):
            seeds_to_run.append(Seed(replace(plan, seed=number), out / name / f"seed-{number}"))
    # 2. How long they take.
    if settings.device != "cpu":
        parameters = model_parameters(settings, address)
        hours = study_hours([item.plan for item in seeds_to_run], parameters, processes)
        logger.info(
            "estimate: %s for %d seeds of a model of %.2g billion parameters, reckoned from what was measured on %s",
            hours, len(seeds_to_run), parameters / 1e9, MEASURED_ON,
        )  # fmt: skip
    # 3. All of them; a folder of another plan is refused before anything begins.
    for item in seeds_to_run:
        item.plan.write(item.folder)
    unfinished = run_side_by_side(address, processes, seeds_to_run)
    # 4. What they found.
    for name in dict.fromkeys(item.plan.study for item in seeds_to_run):
        try:
            answers, calls = gather(out / name, out / "answers")
        except NoResultError as error:
            logger.warning("%s", error)
            continue
        Console().print(Markdown(tables(answers, calls)))
        logger.info("raw answers are in %s", answers)
    if unfinished:
        names_left = "; ".join(item.name for item in unfinished)
        logger.error(
            "not finished: %s. Their logs are in their folders; the same command continues them.", names_left
        )
        sys.exit(1)


@app.command()
def seed(
    folder: Annotated[Path, typer.Argument(help="Folder of the seed, with its plan.json.")],
    model: Annotated[str, typer.Option(help="As of `run`.")],
    share: Annotated[int, typer.Option(min=1, help="How many processes share the GPU's memory.")] = 1,
) -> None:
    """One seed of a study, as `run` starts it in a process."""
    # On a torch before 2.13: the engine's kernel for sequences of any lengths, as `make bench-gpu` provides it.
    provide_varlen()
    settings = study_settings(load_settings())
    share_device(settings, share)
    run_seed(settings, model, StudyPlan.read(folder / PLAN), folder)


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
    study: Annotated[str, typer.Argument(help=f"One of {', '.join(STUDIES)}.")],
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
    study: Annotated[str, typer.Argument(help=f"One of {', '.join(STUDIES)}.")],
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
    for half in HALVES:
        score_sets(scorer, files, out, half=half, at_most=texts)
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


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    try:
        app()
    except ToolformerError as error:
        logger.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 - the message is the remedy
        sys.exit(exit_code(error))
