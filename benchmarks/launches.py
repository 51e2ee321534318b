"""Work "launches": how many operations a decode step dispatches and how often it reads from the device, counted without a GPU.

On a GPU each operation is a launch, of 4 to 7 microseconds, and each read waits for all that was launched
before. Both are the same for a model of any size: models here are tiny, with random weights, in the shapes of
five architectures, in bfloat16, on a device twin (`device_twin.py`), so the engine takes its path on a GPU.
Views and allocations are not counted, they launch nothing. Counted are the steps of sampling and of writing
with tools, with 1, 8, 32 and 64 texts; nothing is timed.
"""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.device_twin import GIBIBYTE, Counts, device_twin
from benchmarks.random_models import prompt_tokenizer, random_network, text_of_tokens, tiny_config
from toolformer_ops.config import Settings
from toolformer_ops.decoding.model import WritingModel
from toolformer_ops.decoding.records import DecodingSettings, Prompt
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.tokenization import AnnotationPrompt, Tokenization

TEXTS = (1, 8, 32, 64)
ARCHITECTURES = ("llama", "qwen2", "gpt2", "gptj", "gemma2")
PROMPT = AnnotationPrompt("Calculator", "Add calls to a Calculator.\nInput: {text}\nOutput:")
TEXT_TOKENS = (9, 16)
"""Shortest and longest text: they differ, as texts do."""
POSITIONS, SAMPLES, NEW_TOKENS = 2, 4, 6
LAYERS = (2, 4)
"""Each model in two depths: what a step of the deeper one dispatches more is the layers' part."""


@dataclass
class StepCount:
    """What one pass through the network and what follows it dispatched."""

    tokens: int
    operations: int = 0
    reads: int = 0


@contextmanager
def counting(network: Any, counts: Counts) -> Iterator[list[StepCount]]:
    """Collects one count a pass through `network`, which is on the twin: the pass and what follows until the next."""
    steps: list[StepCount] = []

    def end() -> None:
        if steps:
            steps[-1].operations, steps[-1].reads = counts.launches.total(), counts.reads
        counts.clear()

    def begin(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        end()
        steps.append(StepCount(kwargs["input_ids"].numel()))

    hook = network.base_model.register_forward_pre_hook(begin, with_kwargs=True)
    try:
        yield steps
        end()
    finally:
        hook.remove()


def count_sampling(
    counts: Counts, model: CausalModel, tokenizer: Any, texts: Sequence[str]
) -> list[StepCount]:
    """The decode steps in which calls are sampled at two positions of each text."""
    engine = LanguageModel(model, Tokenization(tokenizer), "counted")
    positions = [
        [one.token for one in found]
        for found in engine.find_positions(PROMPT, texts, at_most=POSITIONS, threshold=0.0)
    ]
    sampler = engine.start_sampling(
        PROMPT, samples=SAMPLES, max_new_tokens=NEW_TOKENS, call_start=" [", temperature=1.0, top_p=1.0
    )
    for number, (text, tokens) in enumerate(zip(texts, positions, strict=True)):
        sampler.add(text, tokens, str(number))
    with counting(model.network, counts) as steps:
        sampler.finish()
    return steps


def count_writing(
    counts: Counts, model: CausalModel, tokenizer: Any, texts: Sequence[str]
) -> list[StepCount]:
    """The decode steps of writing with tools; passes in which texts take in several tokens are left out."""
    writer = WritingModel(model, tokenizer, "counted", Settings(_env_file=None), ("Calculator",))  # type: ignore[call-arg]
    with counting(model.network, counts) as steps:
        writer.write([Prompt(text) for text in texts], DecodingSettings(max_new_tokens=NEW_TOKENS))
    return [step for step in steps[1:] if len(texts) / 2 < step.tokens <= len(texts)]


def tiny_model(architecture: str, layers: int, settings: Settings) -> tuple[CausalModel, Any]:
    """A random model on the twin, and its tokenizer."""
    tokenizer = prompt_tokenizer()
    end = tokenizer.eos_token_id
    network = random_network(tiny_config(architecture, tokenizer, layers))
    with torch.no_grad():  # no text ends before it is as long as it may be
        network.get_output_embeddings().weight[end] = 0.0
    return compared_model(network.to(torch.bfloat16).to("cuda"), 1024, settings), tokenizer


def measure_launches(
    architectures: Sequence[str] = ARCHITECTURES,
    numbers: Sequence[int] = TEXTS,
    *,
    compiles: bool = True,
) -> list[dict[str, Any]]:
    """The median step of each architecture, work and number of texts; `rows` and `reads` are the most of a step.

    `a_layer` are the operations that one layer more adds to a step, `outside` those of a step that do not
    depend on the number of layers: embeddings, masks, the choice of the next tokens.
    """
    found = []
    settings = Settings(_env_file=None, compile="auto" if compiles else "off")  # type: ignore[call-arg]
    with device_twin(free_bytes=64 * GIBIBYTE) as counts:
        for architecture in architectures:
            models = [tiny_model(architecture, layers, settings) for layers in LAYERS]
            for number in numbers:
                shortest, longest = TEXT_TOKENS
                tokenizer = models[0][1]
                lengths = [shortest + nth % (longest - shortest + 1) for nth in range(number)]
                texts = [text_of_tokens(tokenizer, length, nth) for nth, length in enumerate(lengths)]
                for work, counted in (("sampling", count_sampling), ("writing with tools", count_writing)):
                    by_depth = [counted(counts, model, tokenizer, texts) for model, _ in models]
                    totals = [statistics.median(step.operations for step in steps) for steps in by_depth]
                    a_layer = (totals[1] - totals[0]) / (LAYERS[1] - LAYERS[0])
                    found.append(
                        {
                            "architecture": architecture,
                            "work": work,
                            "texts": number,
                            "rows": max(step.tokens for steps in by_depth for step in steps),
                            "a_layer": a_layer,
                            "outside": totals[0] - LAYERS[0] * a_layer,
                            "reads": max(step.reads for steps in by_depth for step in steps),
                        }
                    )
    return found
