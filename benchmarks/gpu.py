"""`make bench-gpu`: what `roofline.py` predicts, measured on the first GPU, in ten minutes at most.

For each shape, with random weights in bfloat16: wall seconds a text by phase over the texts of work A, the share of the rate that
the GPU reaches with the same weight matrices, the most memory, and the decode step beside transformers' `generate` with as many
rows over the same prompt. Then the demo on this GPU, if the time allows. A shape that does not fit is left out with the reason.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.engine import TEXTS_TOGETHER, sample_job, score_job
from benchmarks.floor import Shape, matrix_rate, needs
from benchmarks.random_models import llama_config, prompt_tokenizer, random_network
from benchmarks.report import write_report
from benchmarks.works import Job, place_calls, random_text_job
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import InfrastructureError
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.tokenization import Tokenization

SHAPES = {
    "1B": {"layers": 22, "width": 2048, "inner": 5632, "heads": 32, "key_heads": 4},
    "7B": {"layers": 32, "width": 4096, "inner": 11_008, "heads": 32, "key_heads": 32},
}
FIRST_TEXTS = 2
"""Of a job of their own, before anything is timed: kernels are loaded and chosen with them."""

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def bench(
    texts: Annotated[int, typer.Option(help="Texts of 200 tokens.", min=1)] = 64,
    minutes: Annotated[float, typer.Option(help="In all; the demo is ended after that.", min=0)] = 10.0,
    out: Annotated[Path, typer.Option(help="Folder for gpu.json and gpu.md.")] = Path(".toolformer/bench"),
) -> None:
    """Measure the engine, transformers' generate and the demo on the first GPU."""
    if not torch.cuda.is_available():
        raise InfrastructureError("expected a GPU, found none. Run it on a machine with one.")
    started = time.monotonic()
    device, rows = torch.cuda.get_device_name(), []
    for name, shape in SHAPES.items():
        try:
            rows.append({"shape": name, **measure_engine(load_settings(), shape, texts, "cuda")})
        except torch.OutOfMemoryError as error:
            typer.echo(f"{name} is left out: {str(error).splitlines()[0]}", err=True)
        torch.cuda.empty_cache()
    demo = measure_demo(minutes * 60 - (time.monotonic() - started))
    typer.echo(write_report(out, "gpu", {f"{device}, {texts} texts": rows, "Demo": [{"device": device, "demo": demo}]}))


def measure_engine(settings: Settings, shape: dict[str, int], texts: int, device: str) -> dict[str, Any]:
    """The engine, and transformers' `generate`, with one shape."""
    # 1. The network.
    tokenizer = prompt_tokenizer()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            network = random_network(llama_config(tokenizer, **shape))
    finally:
        torch.set_default_dtype(torch.float32)
    words, matrices = Tokenization(tokenizer), Shape.of(network)
    model = LanguageModel(CausalModel(network, 4096), words, "random")

    # 2. The engine, phase by phase.
    def annotated(job: Job) -> tuple[dict[str, float], float]:
        """Seconds a text by phase, and the operations of all."""
        outcome = sample_job(model, job, 0.0, clock)
        calls = [
            place_calls(settings, job, text, found, [])
            for text, found in zip(job.texts, outcome.positions, strict=True)
        ]
        score_job(model, job, 0.0, outcome, calls, clock)
        needed = needs(words, job, outcome.positions, outcome.sampled, calls)
        a_text = {f"ms a text, {phase}": 1000 * s / len(job.texts) for phase, s in outcome.seconds.items()}
        return a_text, sum(need.operations(matrices) for need in needed.values())

    def clock() -> float:
        """Seconds of wall clock, once all that was launched is done."""
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    annotated(random_text_job(FIRST_TEXTS))
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    job = random_text_job(texts)
    a_text, operations = annotated(job)
    total = sum(a_text.values()) * texts / 1000
    rate = matrix_rate(matrices, torch.bfloat16, device)

    # 3. As many rows at once by `generate`, behind one text of the same length.
    before, after = job.prompt.before_text, job.prompt.after_text
    ids = words.ids(before + job.texts[0].text + after + job.texts[0].text)
    rows = min(texts, TEXTS_TOGETHER) * job.at_most * job.samples
    given = {"input_ids": torch.tensor([ids], device=device), "do_sample": True, "pad_token_id": 0}
    begun = clock()
    network.generate(
        **given, num_return_sequences=rows, min_new_tokens=job.max_new_tokens, max_new_tokens=job.max_new_tokens
    )
    generated = clock() - begun
    return {
        **a_text,
        "texts an hour": 3600 * texts / total,
        "share of the matrix rate": operations / total / rate,
        "matrix TFLOP/s": rate / 1e12,
        "most GB": torch.cuda.max_memory_allocated() / 1e9 if device != "cpu" else 0.0,
        "ms a row, engine": a_text["ms a text, sampling"] / (job.at_most * job.samples),
        "ms a row, generate": 1000 * generated / rows,
    }  # fmt: skip


def measure_demo(seconds: float) -> str:
    """How long `toolformer-ops demo` takes on the GPU in a state folder of its own; ended after so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "TOOLFORMER_STATE_DIR": folder,
            "TOOLFORMER_DEVICE": "cuda",
            "TOOLFORMER_DTYPE": "bfloat16",
        }
        operations = [sys.executable, "-m", "toolformer_ops"]
        started = time.monotonic()
        try:
            ended = subprocess.run([*operations, "demo"], env=environment, timeout=max(1.0, seconds), check=False)
            return f"exit status {ended.returncode} after {time.monotonic() - started:.0f} s"
        except subprocess.TimeoutExpired:
            return f"not done after {seconds:.0f} s"
        finally:
            subprocess.run([*operations, "down"], env=environment, check=False)


if __name__ == "__main__":
    app()
