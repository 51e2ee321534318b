"""`make bench-gpu`: what `roofline.py` predicts, measured on the first GPU.

For each shape, with random weights in bfloat16: wall time a text by phase over the texts of work A, the most memory, and the
decode step beside transformers' `generate` with as many rows over the same prompt. A shape that does not fit is left out with the
reason.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.engine import TEXTS_TOGETHER, sample_job, score_job
from benchmarks.random_models import llama_config, prompt_tokenizer, random_network
from benchmarks.report import write_report
from benchmarks.roofline import SHAPES
from benchmarks.works import Job, place_calls, random_text_job
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import InfrastructureError
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.tokenization import Tokenization

SMALL = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
    "num_key_value_heads": 4, "vocab_size": 32_000,
}  # fmt: skip
MEASURED = {"1B": SMALL, "7B": SHAPES["7B"]}
FIRST_TEXTS = 2
"""Of a job of their own, before anything is timed: kernels are loaded and chosen with them."""

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def bench(
    texts: Annotated[int, typer.Option(help="Texts of 200 tokens.", min=1)] = 64,
    out: Annotated[Path, typer.Option(help="Folder for gpu.json and gpu.md.")] = Path(".toolformer/bench"),
) -> None:
    """Measure the engine and transformers' generate on the first GPU."""
    if not torch.cuda.is_available():
        raise InfrastructureError("expected a GPU, found none. Run it on a machine with one.")
    rows = []
    for name, shape in MEASURED.items():
        try:
            rows.append({"shape": name, **measure_engine(load_settings(), shape, texts, "cuda")})
        except torch.OutOfMemoryError as error:
            typer.echo(f"{name} is left out: {str(error).splitlines()[0]}", err=True)
        torch.cuda.empty_cache()
    typer.echo(write_report(out, "gpu", {f"{torch.cuda.get_device_name()}, {texts} texts": rows}))


def measure_engine(settings: Settings, shape: dict[str, int], texts: int, device: str) -> dict[str, Any]:
    """The engine, and transformers' `generate`, with one shape."""
    # 1. The network.
    tokenizer = prompt_tokenizer()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            network = random_network(llama_config(tokenizer, shape))
    finally:
        torch.set_default_dtype(torch.float32)
    words = Tokenization(tokenizer)
    model = LanguageModel(CausalModel(network, 4096), words, "random")

    # 2. The engine, phase by phase.
    def annotated(job: Job) -> dict[str, float]:
        """Milliseconds a text by phase."""
        outcome = sample_job(model, job, 0.0, clock)
        texts_and_positions = zip(job.texts, outcome.positions, strict=True)
        calls = [place_calls(settings, job, text, found, []) for text, found in texts_and_positions]
        score_job(model, job, 0.0, outcome, calls, clock)
        return {f"ms a text, {phase}": 1000 * s / len(job.texts) for phase, s in outcome.seconds.items()}

    def clock() -> float:
        """Seconds of wall clock, once all that was launched is done."""
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    annotated(random_text_job(FIRST_TEXTS))
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    job = random_text_job(texts)
    a_text, numbers = annotated(job), job.choices

    # 3. As many rows at once by `generate`, behind one text of the same length.
    before, after = job.prompt.before_text, job.prompt.after_text
    ids = words.ids(before + job.texts[0].text + after + job.texts[0].text)
    rows = min(texts, TEXTS_TOGETHER) * numbers.max_positions * numbers.samples_per_position
    given = {"input_ids": torch.tensor([ids], device=device), "do_sample": True, "pad_token_id": 0}
    begun = clock()
    new_tokens = numbers.max_call_tokens
    network.generate(**given, num_return_sequences=rows, min_new_tokens=new_tokens, max_new_tokens=new_tokens)
    generated = clock() - begun
    return {
        **a_text,
        "texts an hour": 3.6e6 / sum(a_text.values()),
        "most GB": torch.cuda.max_memory_allocated() / 1e9 if device != "cpu" else 0.0,
        "ms a row, engine": a_text["ms a text, sampling"] / (numbers.max_positions * numbers.samples_per_position),
        "ms a row, generate": 1000 * generated / rows,
    }


if __name__ == "__main__":
    app()
