"""`python -m studies`: what a model learns from calls that were chosen in different ways, as `make study` runs it."""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from studies.evidence import evidence, markdown
from studies.study import MAIN_ARMS, StudyPlan, run_seed, with_wiki_index
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolformerError, exit_code
from toolformer_ops.local.demo.model import prepare_demo_model
from toolformer_ops.runs.choices import registered_name
from toolformer_ops.tools.registry import get_tool

logger = logging.getLogger("studies")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def study(
    tool: Annotated[str, typer.Argument(help="Calculator, Calendar or WikiSearch.")],
    out: Annotated[Path, typer.Option(help="Folder of the study; a study that was killed continues there.")],
    model: Annotated[
        str,
        typer.Option(help="Folder, id@revision or s3://bucket/models/NAME; empty means the demo's model."),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds: 0, 1, 2 ...")] = 5,
    texts: Annotated[int, typer.Option(min=16, help="Sentences to annotate, of each seed.")] = 160,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 48,
    batch: Annotated[int, typer.Option(min=1, help="Texts a step.")] = 8,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of each training.")] = 1e-4,
    test: Annotated[int, typer.Option(min=2, help="Fresh sentences to test with, of each seed.")] = 100,
    arms: Annotated[
        str,
        typer.Option(
            help="What is trained on, with commas; `paper` among them. studies/arms.py has them all."
        ),
    ] = ",".join(MAIN_ARMS),
    proposals: Annotated[
        bool,
        typer.Option(
            help="Also count what the trained models propose as calls, up to the bracket and to the arrow."
        ),
    ] = False,
    word_problems: Annotated[
        str,
        typer.Option(help="File of GSM8K, whose texts and questions take the place of the made sentences."),
    ] = "",
) -> None:
    """Teach a model a tool with calls chosen in different ways, test it with fresh sentences, and say what the seeds say together.

    A training at the defaults takes four minutes on two cores; a seed has up to eight. No services are
    needed.

    Example: make study NAME=calendar SEEDS=3 OUT=.toolformer/calendar-study
    """
    settings = load_settings()
    name = registered_name(tool)
    address = model or str(prepare_demo_model(settings.state_dir))
    plans = [
        StudyPlan(
            tool=name,
            texts=texts,
            test=test,
            seed=seed,
            steps=steps,
            batch=batch,
            learning_rate=learning_rate,
            arms=tuple(arms.split(",")),
            proposals=proposals,
            word_problems=word_problems,
        )
        for seed in range(seeds)
    ]
    out.mkdir(parents=True, exist_ok=True)
    if get_tool(name).spec.needs_index:
        settings = with_wiki_index(settings, out)
    found = evidence([run_seed(settings, address, plan, out / f"seed-{plan.seed}") for plan in plans])
    (out / "evidence.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (out / "evidence.md").write_text(markdown(found), encoding="utf-8")
    Console().print(Markdown(markdown(found)))


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    try:
        app()
    except ToolformerError as error:
        logger.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 - the message is the remedy
        sys.exit(exit_code(error))
