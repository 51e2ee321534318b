"""`python -m benchmarks.gpu`: measure what the engine and a training do on the GPU at hand."""

import logging
import os
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.command_line import run_app
from benchmarks.gpu.correctness import correctness
from benchmarks.gpu.session import Rows, Session
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.sizes import FULL, SMALL, Size
from benchmarks.gpu.speed import (
    PEAK,
    VERIFICATION,
    WITH_VERIFICATION,
    measure_annotation,
    peaks,
    rungs_of,
    verification,
    with_verification,
)
from benchmarks.gpu.varlen import NONE, STAND_IN, provide_varlen
from toolformer_ops.errors import EXIT_NO_RESULT, UsageError
from toolformer_ops.language_model.devices import cuda_versions, gpus, require_gpu
from toolformer_ops.language_model.models.loading import DTYPES

logger = logging.getLogger("benchmarks.gpu")

MACHINE = "The device"
CORRECTNESS = "Tiny models against the CPU in float32"
FINETUNING = "Finetuning of all weights"
KERNEL = "attention over sequences of any lengths"


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="cuda, cuda:N, or cpu for a look at the small form.")] = "cuda",
    shapes: Annotated[
        str,
        typer.Option(
            help=f"Shapes to annotate with, with commas between them: {', '.join(SHAPES)}. Those that do not fit are left out."
        ),
    ] = "",
    seconds: Annotated[
        float, typer.Option(help="After so many no further measurement is begun.", min=1)
    ] = 270,
    out: Annotated[Path, typer.Option(help="Folder for gpu.json and gpu.md.")] = Path(".toolformer/bench"),
    small: Annotated[
        bool, typer.Option("--small", help="Tiny models and a few tokens: whether it runs, not how fast.")
    ] = False,
) -> None:
    """Measure correctness, speed, memory and finetuning on a GPU in five minutes; exit 3 if something is wrong.

    Prints as it goes and writes the tables after each row, so that what was measured is never lost. What does not fit,
    is not there or is done in another way stands in a table of its own, with the reason.

    Example: python -m benchmarks.gpu --shapes 1.5B,8B --out /tmp/bench
    """
    size = SMALL if small else FULL
    names = tuple(shapes.split(",")) if shapes else size.shapes
    if unknown := sorted(set(names) - set(SHAPES)):
        raise UsageError(f"--shapes: expected some of {', '.join(SHAPES)}, found {', '.join(unknown)}.")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"--device: expected cuda, cuda:N or cpu, found {device!r}.") from error
    if place.type == "cuda":
        show_one_gpu(place.index or 0)
        place = torch.device("cuda:0")
        require_gpu(device)
    session = Session(place, out, seconds)
    with session.noting_warnings():
        measure(session, size, names)
    typer.echo(session.save())
    typer.echo(f"{out / 'gpu.json'}\n{out / 'gpu.md'}", err=True)
    for problem in session.problems:
        typer.echo(f"WRONG: {problem}", err=True)
    if session.problems:
        raise typer.Exit(EXIT_NO_RESULT)


def measure(session: Session, size: Size, shapes: tuple[str, ...]) -> None:
    """All parts, one after the other."""
    torch.set_float32_matmul_precision("highest")  # as the engine loads its networks: float32 is no TF32
    formats = describe(session)
    narrow = next((one for one in ("bfloat16", "float16") if one in formats), "float32")
    session.part(CORRECTNESS, correctness(session, size.architectures, formats))
    session.part(PEAK, peaks(session, size.work, rungs_of(session, formats)))
    for name in shapes:
        measure_annotation(session, SHAPES[name], size.work, narrow)
        session.free()
    for name in shapes:
        session.part(VERIFICATION, verification(session, SHAPES[name], size.work, formats))
    session.part(WITH_VERIFICATION, with_verification(session))
    session.part(FINETUNING, _finetuning(session, size))


def _finetuning(session: Session, size: Size) -> Rows:
    # Imported here: a training needs more packages than all other parts, which do without them.
    from benchmarks.gpu.training import finetuning

    yield from finetuning(session, SHAPES[size.trained], size.training)


def show_one_gpu(number: int) -> None:
    """Let this process see one GPU alone, before it asks for any: transformers' Trainer takes all that it sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else []
    os.environ["CUDA_VISIBLE_DEVICES"] = names[number] if number < len(names) else str(number)


def describe(session: Session) -> list[str]:
    """Write down what the device is and note what it lacks; the number formats that it computes in itself."""
    kernel = provide_varlen()
    rows = {"torch": torch.__version__, KERNEL: kernel if session.is_gpu else "not used on a CPU"}
    formats = list(DTYPES)
    if session.is_gpu:
        major, minor = capability = torch.cuda.get_device_capability(session.device)
        rows |= {
            "card": torch.cuda.get_device_name(session.device),
            "all GPUs": "; ".join(map(str, gpus())),
            "CUDA": cuda_versions(),
            "compute capability": f"{major}.{minor}",
        }
        if kernel in (STAND_IN, NONE):
            session.leave_out(KERNEL, kernel)
        if capability < (8, 0):
            formats.remove("bfloat16")
            session.leave_out("bfloat16 and TF32", f"compute capability {major}.{minor}; they come with 8.0")
        for gpu in gpus():
            if gpu.held_by_others:
                session.leave_out(f"a part of GPU {gpu.number}", f"other processes hold it: {gpu}")
    session.sections[MACHINE] = [{"what": name, "value": value} for name, value in rows.items()]
    session.save()
    return formats


if __name__ == "__main__":
    run_app(app)
