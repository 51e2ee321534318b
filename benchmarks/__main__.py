"""`python -m benchmarks`: measure the engine and write the tables."""

import logging
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.command_line import run_app
from benchmarks.engine import disagreements, measure_jobs
from benchmarks.launches import measure_launches
from benchmarks.predictions import predict
from benchmarks.random_models import saved_gpt2
from benchmarks.report import write_report
from benchmarks.works import random_text_job, real_text_jobs
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import EXIT_NO_RESULT, UsageError
from toolformer_ops.language_model.models.loading import DTYPES
from toolformer_ops.local.demo.model import prepare_demo_model

logger = logging.getLogger("benchmarks")

TITLES = {
    "A": "Work A: GPT-2 shape, random weights",
    "B": "Work B: SmolLM2 on real text",
    "launches": "Operations and device reads of a decode step on a device twin",
    "roofline": "Reckoned, not measured: milliseconds a text on GPUs and what limits each phase, texts an hour, hours",
}
TABLES = {
    "times": "CPU seconds of one thread a text",
    "agreement": "against the reference, given the same calls",
}

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def bench(
    work: Annotated[str, typer.Option(help=f"One of {', '.join(TITLES)}, or all.")] = "all",
    texts: Annotated[int, typer.Option(help="Texts of work A, and of each tool of work B.", min=1)] = 1,
    runs: Annotated[int, typer.Option(help="Runs of the engine, of which the median counts.", min=1)] = 2,
    dtype: Annotated[
        str, typer.Option(help="Number formats, with commas between them.")
    ] = "float32,bfloat16",
    out: Annotated[Path, typer.Option(help="Folder for bench.json and bench.md.")] = Path(
        ".toolformer/bench"
    ),
    model: Annotated[
        str, typer.Option(help="SmolLM2 as safetensors; empty: the demo's, converted where needed.")
    ] = "",
) -> None:
    """Measure the engine against the reference; exit 3 if they keep other calls."""
    wanted = tuple(TITLES) if work == "all" else tuple(work.split(","))
    formats = tuple(dtype.split(","))
    for found, known, option in ((wanted, tuple(TITLES), "--work"), (formats, tuple(DTYPES), "--dtype")):
        if unknown := set(found) - set(known):
            raise UsageError(
                f"{option}: expected some of {', '.join(known)}, found {', '.join(sorted(unknown))}."
            )
    settings = load_settings()
    torch.set_num_threads(1)
    sections: dict[str, list[dict[str, Any]]] = {}
    lines: list[str] = []
    text = ""
    for name in wanted:
        logger.info("work %s", name)
        if name in ("launches", "roofline"):  # nothing is timed
            sections[TITLES[name]] = measure_launches() if name == "launches" else predict()
        else:
            with tempfile.TemporaryDirectory() as folder:
                if name == "A":
                    jobs, network = [random_text_job(texts)], saved_gpt2(Path(folder))
                else:
                    jobs, network = real_text_jobs(texts), _smollm2(settings, model)
                measured = measure_jobs(settings, network, jobs, formats, runs)
            sections |= {f"{TITLES[name]}: {title}": measured[kind] for kind, title in TABLES.items()}
            lines += [f"work {name}, {line}" for line in disagreements(measured["agreement"])]
        text = write_report(
            out, "bench", sections
        )  # after each work: what is measured is not lost when the next fails
    typer.echo(text)
    typer.echo(f"{out / 'bench.json'}\n{out / 'bench.md'}", err=True)
    for line in lines:
        typer.echo(f"DIFFERENT: {line}", err=True)
    if lines:
        raise typer.Exit(EXIT_NO_RESULT)


def _smollm2(settings: Settings, model: str) -> Path:
    if not model:
        return prepare_demo_model(settings.state_dir)
    if not (Path(model) / "config.json").is_file():
        raise UsageError(
            f"--model: expected a folder with SmolLM2 as safetensors, found none at {model}. Without it the demo's is converted."
        )
    return Path(model)


if __name__ == "__main__":
    run_app(app)
