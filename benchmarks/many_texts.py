"""Work C: time a text and peak memory of a SmolLM2 worker against the number of texts, each number in a separate process.

Texts are summaries of Wikipedia, strung together and cut to the same number of tokens, so that each is the same work. Two
positions, two samples, at most 20 tokens, the Calculator's prompt; two made calls a text are scored.
"""

import json
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.variants import EXACT_PRUNING, TEXTS_TOGETHER, sample_job, score_job
from benchmarks.works import Job, Text, place_calls, random_text_job, summaries
from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.records import Document

logger = logging.getLogger(__name__)

TEXT_TOKENS = 48
SUMMARIES = 1000
"""How many are strung together; the string starts again where texts need more."""


@dataclass(frozen=True)
class Worker:
    """What one process took."""

    texts: int
    cpu_seconds_a_text: float
    """Without loading."""
    peak_megabytes: float


def measure_workers(model: Path, number_format: str, sizes: list[int]) -> list[dict[str, Any]]:
    """One process a number of texts, one after the other.

    Raises:
        ModelError: a process ended with an error.
    """
    found: list[dict[str, Any]] = []
    for size in sizes:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.many_texts", str(model), number_format, str(size)],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if done.returncode != 0:
            raise ModelError(f"{size} texts: expected a process that ends well, found exit {done.returncode}.")
        found.append(json.loads(done.stdout.splitlines()[-1]))
        logger.info("%d texts: %s", size, done.stdout.strip())
    return found


def work(model_folder: str, number_format: str, count: int) -> Worker:
    """Annotate `count` texts, micro-batch by micro-batch as a stage does, and forget each result."""
    model = LanguageModel.load(model_folder, dtype=number_format)
    job = replace(random_text_job(0), at_most=2, samples=2, call_start=" [Calculator(")
    settings = Settings()
    pieces = text_pieces(model)
    first = next(pieces)
    model.find_positions(job.prompt, [first], at_most=1, threshold=0.0)
    spent = 0.0
    for start in range(0, count, TEXTS_TOGETHER):
        texts = tuple(
            Text(text, Document.of(text), str(start + number))
            for number, text in zip(range(min(TEXTS_TOGETHER, count - start)), pieces, strict=False)
        )
        spent += _annotate(settings, model, replace(job, texts=texts))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kilobytes on Linux
    return Worker(count, spent / count, peak)


def text_pieces(model: LanguageModel) -> Iterator[str]:
    """Texts of `TEXT_TOKENS` tokens each, without end."""
    while True:
        left = ""
        for document in summaries(SUMMARIES):
            left = f"{left} {document.text}".strip()
            tokens = model.tokenize(left)
            if len(tokens) > TEXT_TOKENS:
                yield left[: tokens.starts[TEXT_TOKENS]]
                left = left[tokens.starts[TEXT_TOKENS] :].strip()


def _annotate(settings: Settings, model: LanguageModel, job: Job) -> float:
    started = time.process_time()
    outcome = sample_job(model, job, EXACT_PRUNING)
    calls = [
        place_calls(settings, job, text, positions, [])[::5]
        for text, positions in zip(job.texts, outcome.positions, strict=True)
    ]
    score_job(model, job, EXACT_PRUNING, outcome, calls)
    return time.process_time() - started


def main() -> None:
    """One worker: model folder, number format, texts; prints its figures as JSON."""
    folder, number_format, count = sys.argv[1:]
    worker = work(folder, number_format, int(count))
    sys.stdout.write(json.dumps(worker.__dict__) + "\n")


if __name__ == "__main__":
    main()
