"""`python -m studies`: what a model learns from calls that were chosen in different ways, as `make study` runs it."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from studies.study import StudyPlan, run_study, study_tables
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolformerError, exit_code
from toolformer_ops.local.demo.model import prepare_demo_model
from toolformer_ops.runs.choices import registered_name

logger = logging.getLogger("studies")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def study(
    tool: Annotated[str, typer.Argument(help="Calculator or Calendar.")],
    out: Annotated[Path, typer.Option(help="Folder of the study; a study that was killed continues there.")],
    model: Annotated[
        str, typer.Option(help="Folder, id@revision or s3://bucket/models/NAME; empty means the demo's model.")
    ] = "",
    texts: Annotated[int, typer.Option(min=16, help="Sentences to annotate.")] = 448,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 160,
    batch: Annotated[int, typer.Option(min=1, help="Texts a step.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of each training.")] = 5e-5,
    test: Annotated[int, typer.Option(min=2, help="Fresh sentences to test with.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws other sentences.")] = 0,
    arms: Annotated[
        str, typer.Option(help="What is trained on, with commas: paper, information, random, without_calls.")
    ] = "paper,information,random,without_calls",
) -> None:
    """Teach a model a tool on sentences of one kind, with calls chosen in four ways, and test it with fresh ones; no services.

    A training at the defaults takes half a CPU hour, so a study with four arms takes more than two.

    Example: make study NAME=calendar OUT=.toolformer/calendar-study
    """
    settings = load_settings()
    plan = StudyPlan(
        tool=registered_name(tool),
        texts=texts,
        test=test,
        seed=seed,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        arms=tuple(arms.split(",")),
    )
    found = run_study(settings, model or str(prepare_demo_model(settings.state_dir)), plan, out)
    Console().print(*study_tables(found))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    try:
        app()
    except ToolformerError as error:
        logger.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 - the message is the remedy
        sys.exit(exit_code(error))
