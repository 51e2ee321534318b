"""The floor: needed tokens times the arithmetic of a token, over the matrix rate that this machine reaches in the same run.

Needed are, for positions: the text twice, behind a prompt that all texts share; for sampling: each new token once; for scoring:
each distinct prefix of a text once, with the text up to the last token that is scored. Vocabulary rows count where a probability
is asked for, attention by what each token sees. The rate is that of the model's own weight matrices with `ROWS` tokens, the best of
several tries. Reading weights for a few tokens at a time is slower than that by nature, so sampling cannot come near its floor.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.works import Job
from toolformer_ops.language_model.losses import SCORED_TOKENS
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import CallPosition, PlacedCall, SampledContinuation

ROWS = 512
"""Tokens in the products that the rate is measured with."""
TRIES = 5


@dataclass(frozen=True)
class Shape:
    """What of a network decides the arithmetic of a token."""

    matrices: Counter[tuple[int, int]]
    """Weight matrices of all layers, (inputs, outputs), without the projection onto the vocabulary."""
    layers: int
    attention_width: int
    """All heads together."""
    hidden: int
    vocabulary: int

    @classmethod
    def of(cls, network: Any) -> "Shape":
        """The shape of a network of transformers."""
        matrices: Counter[tuple[int, int]] = Counter()
        for module in network.modules():
            if module is network.get_output_embeddings():
                continue
            if isinstance(module, nn.Linear):
                matrices[module.in_features, module.out_features] += 1
            elif type(module).__name__ == "Conv1D":  # GPT-2's linear layer, inputs first
                matrices[tuple(module.weight.shape)] += 1
        config = network.config.get_text_config(decoder=True)
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            matrices,
            config.num_hidden_layers,
            head * config.num_attention_heads,
            config.hidden_size,
            config.vocab_size,
        )


@dataclass
class Need:
    """What a stage needs for some texts."""

    tokens: int = 0
    seen: int = 0
    """Tokens that each token sees, itself included, summed."""
    rows: int = 0
    """Distributions over the vocabulary."""

    def add(self, first: int, end: int, rows: int) -> None:
        """Tokens `first` to `end` (exclusive) of a sequence, of which `rows` predict."""
        self.tokens += end - first
        self.seen += (end * (end + 1) - first * (first + 1)) // 2
        self.rows += rows

    def operations(self, shape: Shape) -> float:
        """Floating point operations, two a multiplication with addition."""
        weights = sum(inputs * outputs * count for (inputs, outputs), count in shape.matrices.items())
        attention = 2 * shape.layers * shape.attention_width * self.seen
        return 2.0 * (weights * self.tokens + attention + shape.hidden * shape.vocabulary * self.rows)


def needs(
    words: Tokenization,
    job: Job,
    positions: Sequence[Sequence[CallPosition]],
    sampled: Sequence[dict[int, list[SampledContinuation]]],
    calls: Sequence[Sequence[PlacedCall]],
) -> dict[str, Need]:
    """What each stage needs for a job's texts without pruning, behind a prompt that was computed before."""
    found = {"positions": Need(), "sampling": Need(), "scoring": Need()}
    prompt = len(words.start_ids) + len(words.ids(job.prompt.before_text))
    between = len(words.continuation(job.prompt.after_text, after="."))
    start = len(words.call_start(job.call_start).ids)
    for text, places, samples, placed in zip(job.texts, positions, sampled, calls, strict=True):
        tokenized = words.tokenize(text.text)
        twice = prompt + 2 * len(tokenized) + between
        found["positions"].add(prompt, twice, sum(token >= 1 for token in tokenized.word_starts))
        for place in places:
            before = twice - len(tokenized) + place.token
            found["sampling"].add(before, before + start, 1)
            for sample in samples.get(place.token, []):
                new = (
                    min(job.max_new_tokens, len(words.ids(sample.text)) + 1) if sample.finished else job.max_new_tokens
                )
                found["sampling"].add(before + start, before + start + new - 1, new - 1)
        _add_scoring(found["scoring"], words, len(tokenized), placed)
    return found


def _add_scoring(need: Need, words: Tokenization, text_tokens: int, calls: Sequence[PlacedCall]) -> None:
    scored: dict[tuple[int, ...], set[int]] = {}
    for call in calls:
        rows = range(call.token, min(call.token + SCORED_TOKENS, text_tokens))
        scored.setdefault((), set()).update(rows)
        for z in (call.without_result, call.with_result):
            scored.setdefault((*words.ids(z), *words.newline_ids), set()).update(rows)
    for prefix, tokens in scored.items():
        need.add(0, len(words.start_ids) + len(prefix) + max(tokens), len(tokens))


def matrix_rate(shape: Shape, dtype: torch.dtype, device: str = "cpu") -> float:
    """Operations a second over the products of one token row with every weight matrix, at `ROWS` rows."""
    operations = seconds = 0.0
    for (inputs, outputs), count in shape.matrices.items():
        left = torch.randn(ROWS, inputs, device=device).to(dtype)
        right = torch.randn(outputs, inputs, device=device).to(dtype)
        seconds += count * min(_seconds(left, right) for _ in range(TRIES))
        operations += count * 2.0 * ROWS * inputs * outputs
    return operations / seconds


def _seconds(left: Tensor, right: Tensor) -> float:
    gpu = left.device.type == "cuda"
    clock = time.perf_counter if gpu else time.process_time
    repeat = 20 if gpu else 1
    if gpu:
        torch.cuda.synchronize()
    started = clock()
    for _ in range(repeat):
        torch.nn.functional.linear(left, right)
    if gpu:
        torch.cuda.synchronize()
    return (clock() - started) / repeat
