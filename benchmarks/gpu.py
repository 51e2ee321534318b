"""Work D: a 1B- and a 7B-shaped model with random weights in bfloat16 on one GPU: texts a second, share of the matrix peak, memory.

Texts and numbers are those of work A. Times are seconds of wall clock around everything, the device included.
"""

import time
from typing import Any

import torch

from benchmarks.floor import Shape, matrix_rate, needs
from benchmarks.random_models import llama_config, prompt_tokenizer, random_network
from benchmarks.variants import NO_PRUNING, sample_job, score_job
from benchmarks.works import place_calls, random_text_job
from toolformer_ops.config import Settings
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.tokenization import Tokenization

SHAPES = {
    "1B": {"layers": 22, "width": 2048, "inner": 5632, "heads": 32, "key_heads": 4},
    "7B": {"layers": 32, "width": 4096, "inner": 11_008, "heads": 32, "key_heads": 32},
}


def measure_gpu(settings: Settings, texts: int) -> list[dict[str, Any]]:
    """One entry a shape; none where there is no GPU."""
    if not torch.cuda.is_available():
        return []
    return [_measure_shape(settings, name, texts) for name in SHAPES]


def _measure_shape(settings: Settings, name: str, texts: int) -> dict[str, Any]:
    tokenizer = prompt_tokenizer()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        network = random_network(llama_config(tokenizer, **SHAPES[name]))
    torch.set_default_dtype(torch.float32)
    shape = Shape.of(network)
    words = Tokenization(tokenizer)
    model = LanguageModel(CausalModel(network, 4096), words, f"random-{name}")
    job = random_text_job(texts)
    model.find_positions(job.prompt, ["one text before the first"], at_most=1, threshold=0.0)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    started = time.perf_counter()
    outcome = sample_job(model, job, NO_PRUNING)
    calls = [
        place_calls(settings, job, text, found, []) for text, found in zip(job.texts, outcome.positions, strict=True)
    ]
    score_job(model, job, NO_PRUNING, outcome, calls)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = matrix_rate(shape, torch.bfloat16, "cuda")
    needed = needs(words, job, outcome.positions, outcome.sampled, calls)
    operations = sum(need.operations(shape) for need in needed.values())
    return {
        "shape": name,
        "device": torch.cuda.get_device_name(),
        "texts_a_second": texts / seconds,
        "matrix_tflop_a_second": peak / 1e12,
        "share_of_matrix_rate": operations / seconds / peak,
        "peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9,
    }
