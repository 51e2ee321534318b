"""Work "roofline": predicted texts an hour on GPUs that are not here, from operations and bytes.

A pass is its kernels: the matrix products of a layer and attention by formula, the others by bytes that were
counted once. A kernel takes the longer of its arithmetic at a share of the peak and its bytes at a share of
the bandwidth. The shares are assumptions, named below; nothing here was measured on a GPU. Launches are left
out: at 5 microseconds each they took less than the kernels.

Every tool has its own numbers (the paper's k and m) and the lengths of the calls that its prompt shows.
Phases, a text:

    positions   the text twice behind the tool's prompt (`context.py`), a row of the vocabulary for each word
    sampling    a decode step a token of a call, with the samples of all texts that grow together
    scoring     the text alone, and each call without and with its result, packed (`packing.py`), nothing
    pruned verifying   `NEAR_A_THRESHOLD` of the calls once more in float32, if a GPU has room for these weights,
    too

A model that is too large for one GPU has its layers on several, which work one after the other: an hour of
the model is an hour of each of them.
"""

import itertools
import math
import re
import statistics
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.engine import STAGES
from benchmarks.works import FIXED_RESULTS
from toolformer_ops.language_model.losses import SCORED_TOKENS
from toolformer_ops.language_model.memory import DeviceMemory
from toolformer_ops.records import CHARACTERS_A_TOKEN
from toolformer_ops.tools.registry import PAPER_TOOLS, get_tool

TEXT_TOKENS = 200
TEXTS_TOGETHER = 16
"""Of a micro-batch, if the KV cache has room for them."""
NEAR_A_THRESHOLD, NEAR_IN_TF32 = 0.169, 0.019
"""Of the calls, those within 0.18 nats of a threshold, which bfloat16's rounding may decide, and those within 0.02,
which TF32's may: of the demo's 420 calls."""
OTHER_WIDTHS_A_LAYER, OTHER_WIDTHS_OUTSIDE = 75, 20
"""Numbers a token, over the hidden size, that all other kernels of a Llama layer and those outside of the
layers move."""
MATRIX_SHARE, ATTENTION_SHARE, BANDWIDTH_SHARE = 0.75, 0.4, 0.85
"""Assumed of the peak: what large matrix products and flash attention reach, and reading and writing of the
bandwidth."""
WEIGHTS_SHARE = 0.8
"""Of a GPU's memory, at most, for weights: the rest is for keys, values and activations."""
RESULTS = FIXED_RESULTS | {"Calculator": "0.29", "Calendar": "Today is Thursday, March 9, 2017."}
"""A result of usual length of each tool."""


@dataclass(frozen=True)
class Device:
    """A GPU as its maker describes it."""

    name: str
    memory_bytes: float
    bandwidth: float
    """Bytes a second."""
    peak: dict[torch.dtype, float]
    """Operations a second of matrix products; float32 without TF32."""


AMPERE = {torch.bfloat16: 312e12, torch.float32: 19.5e12}
HOPPER = {torch.bfloat16: 989e12, torch.float32: 67e12}
DEVICES = (
    Device("A100 40 GB", 40e9, 1.555e12, AMPERE),
    Device("A100 80 GB", 80e9, 2.039e12, AMPERE),
    Device("H100 80 GB", 80e9, 3.35e12, HOPPER),
    Device("H200 141 GB", 141e9, 4.8e12, HOPPER),
)
SHAPES = {
    "7B": {
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "70B": {
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
}
SHAPES["7B"] |= {"num_key_value_heads": 32, "vocab_size": 32_000}
SHAPES["70B"] |= {"num_key_value_heads": 8, "vocab_size": 32_000}
"""Llama 2 7B and 70B."""


@dataclass(frozen=True)
class ToolWork:
    """What one text takes with a tool, in tokens."""

    tool: str
    positions: int
    samples: int
    prompt: int
    call: int
    """Of a call, in the mean over those that the prompt shows."""
    result: int

    @classmethod
    def of(cls, tool: str) -> "ToolWork":
        """With the tool's own numbers, and texts of English prose."""
        spec, prompt = get_tool(tool).spec, get_tool(tool).prompt
        calls = re.findall(rf"\[{tool}\([^\[\]]*\]", prompt)
        return cls(
            tool=tool,
            positions=spec.max_positions,
            samples=spec.samples_per_position,
            prompt=len(prompt) // CHARACTERS_A_TOKEN,
            call=math.ceil(statistics.fmean(map(len, calls)) / CHARACTERS_A_TOKEN),
            result=math.ceil(len(RESULTS[tool]) / CHARACTERS_A_TOKEN),
        )

    @property
    def calls(self) -> int:
        """Scored calls, if every sample is another."""
        return self.positions * self.samples


Kernels = list[tuple[float, float]]
"""Arithmetic and bytes of each kernel."""
Cost = NDArray[np.float64]
"""Of a part of the work on one device: seconds of kernels that arithmetic limits, and of those that bytes
limit."""


def cost_of(kernels: Kernels, device: Device, dtype: torch.dtype, share: float = MATRIX_SHARE) -> Cost:
    """Each kernel takes the longer of its arithmetic and its bytes."""
    operations, moved = np.array(kernels).T  # (kernels,) each
    computing = operations / (share * device.peak[dtype])
    moving = moved / (BANDWIDTH_SHARE * device.bandwidth)
    return np.array([computing[computing > moving].sum(), moving[computing <= moving].sum()])


class Prediction:
    """One shape on GPUs of one kind."""

    def __init__(self, shape: dict[str, int], device: Device) -> None:
        self.shape, self.device = shape, device
        self.layers = shape["num_hidden_layers"]
        self.width = shape["hidden_size"]
        self.kept_width = self.width * shape["num_key_value_heads"] // shape["num_attention_heads"]
        self.weights = (
            self.layers
            * (2 * self.width * (self.width + self.kept_width) + 3 * self.width * shape["intermediate_size"])
            + 2 * self.width * shape["vocab_size"]
        )
        self.devices = math.ceil(self.weights * 2 / (WEIGHTS_SHARE * device.memory_bytes))
        """GPUs that hold the model in bfloat16."""
        self.has_room_for_float32 = (
            self.weights * (2 + 4) <= WEIGHTS_SHARE * device.memory_bytes * self.devices
        )

    def memory(self, dtype: torch.dtype) -> DeviceMemory:
        """The engine's budgets, with the weights of this format on the GPUs."""
        from transformers import LlamaConfig

        free = self.devices * self.device.memory_bytes - self.weights * dtype.itemsize
        network = SimpleNamespace(
            config=LlamaConfig(**self.shape), dtype=dtype, parameters=list
        )  # no weights
        return DeviceMemory(network, free_bytes=int(free), like="cuda")

    def through(self, tokens: int, dtype: torch.dtype, attention: Kernels) -> Cost:
        """One pass of tokens through all layers; `attention` is that of one layer."""
        inner, a_width = self.shape["intermediate_size"], float(tokens * self.width * dtype.itemsize)
        columns = [
            self.width,
            self.width,
            self.kept_width,
            self.kept_width,
            inner,
            inner,
            inner,
        ]  # q, o, k, v, gate, up, down
        layer = [
            (
                2.0 * tokens * self.width * c,
                float(dtype.itemsize * (self.width * c + tokens * (self.width + c))),
            )
            for c in columns
        ]
        cost: Cost = cost_of([*layer, (0, a_width * OTHER_WIDTHS_A_LAYER)], self.device, dtype)
        cost += cost_of(attention, self.device, dtype, ATTENTION_SHARE)
        return cost * self.layers + cost_of([(0, a_width * OTHER_WIDTHS_OUTSIDE)], self.device, dtype)

    def vocabulary(self, rows: int, dtype: torch.dtype) -> Cost:
        """Log probabilities of rows: the projection, then float32, the maximum's and the sum's passes, and a choice."""
        size = self.shape["vocab_size"]
        matrix = dtype.itemsize * (self.width * size + rows * (size + self.width))
        kernels = [(2.0 * rows * self.width * size, matrix), (0, rows * size * (dtype.itemsize + 4.0))]
        return cost_of([*kernels, (0, rows * size * 12.0), (0, rows * 8.0)], self.device, dtype)

    def attention(
        self, queries: int, seen: float, columns: float, dtype: torch.dtype, parts: int = 1
    ) -> Kernels:
        """Of a layer: queries that see so many columns in the mean, and `columns` are read; merged, if it is in several parts."""
        moved = dtype.itemsize * (2.0 * queries * self.width + 2.0 * columns / parts * self.kept_width)
        kernels: Kernels = [(4.0 * queries * seen / parts * self.width, moved)] * parts
        kernels += [
            (0, 2.0 * dtype.itemsize * queries * self.width)
        ] * 3  # queries, keys and values are laid out
        if parts > 1:  # the parts in float32, weighed and added
            kernels.append((0, parts * queries * self.width * (dtype.itemsize + 4.0)))
            kernels.append((0, (parts + 1) * queries * self.width * 4.0))
        return kernels

    def texts_together(self, work: ToolWork) -> int:
        """As many texts as there is room for, with their samples."""
        a_text = 2 * TEXT_TOKENS + work.calls * work.call
        return max(1, min(TEXTS_TOGETHER, self.memory(torch.bfloat16).cached_tokens // a_text))

    def positions(self, work: ToolWork) -> Cost:
        """Seconds a text."""
        dtype, tokens = torch.bfloat16, 2 * TEXT_TOKENS
        batch = min(TEXTS_TOGETHER * tokens, self.memory(dtype).pass_tokens)
        columns = batch / tokens * (work.prompt + tokens)
        one = self.through(batch, dtype, self.attention(batch, work.prompt + tokens / 2, columns, dtype))
        return one * (tokens / batch) + self.vocabulary(TEXTS_TOGETHER * TEXT_TOKENS, dtype) * (
            1 / TEXTS_TOGETHER
        )

    def sampling(self, work: ToolWork) -> Cost:
        """Seconds a text: the prompt is read once, a text once a position, a sample's own columns by itself."""
        dtype, texts = torch.bfloat16, self.texts_together(work)
        rows = texts * work.calls
        columns = work.prompt + texts * work.positions * 1.5 * TEXT_TOKENS + rows * work.call / 2
        attention = self.attention(
            rows, work.prompt + 1.5 * TEXT_TOKENS + work.call / 2, columns, dtype, parts=3
        )
        return (self.through(rows, dtype, attention) + self.vocabulary(rows, dtype)) * (work.call / texts)

    def scoring(self, work: ToolWork, dtype: torch.dtype = torch.bfloat16, share: float = 1.0) -> Cost:
        """Seconds a text, for a share of its calls: prefix and text up to the last token that is scored."""
        calls = work.calls * share
        own = 1 + work.call + work.result / 2 + TEXT_TOKENS / 2 + SCORED_TOKENS  # calls stand all over a text
        tokens = (1 + TEXT_TOKENS) * share + 2 * calls * own
        batch = min(int(TEXTS_TOGETHER * tokens), self.memory(dtype).pass_tokens)
        one = self.through(batch, dtype, self.attention(batch, own / 2, batch, dtype))
        rows = max(1, round(3 * calls * SCORED_TOKENS * TEXTS_TOGETHER))
        return one * (tokens / batch) + self.vocabulary(rows, dtype) * (1 / TEXTS_TOGETHER)


def predict() -> list[dict[str, Any]]:
    """One entry for each device, shape and tool; milliseconds a text."""
    found: list[dict[str, Any]] = []
    for device, name in itertools.product(DEVICES, SHAPES):
        prediction = Prediction(SHAPES[name], device)
        for work in map(ToolWork.of, PAPER_TOOLS):
            phases = [prediction.positions(work), prediction.sampling(work), prediction.scoring(work)]
            seconds = sum(float(cost.sum()) for cost in phases)
            row: dict[str, Any] = {"device": device.name, "shape": name, "predicted GPUs": prediction.devices}
            row["tool"] = f"{work.tool}, {work.positions} x {work.samples}"
            for phase, cost in zip(STAGES, phases, strict=True):
                row[f"predicted ms, {phase}"] = (
                    f"{cost.sum() * 1000:.3g}, {'operations' if cost[0] >= cost[1] else 'bytes'}"
                )
            row["predicted texts an hour"] = round(3600 / seconds)
            verified = seconds + prediction.scoring(work, torch.float32, NEAR_A_THRESHOLD).sum()
            row["predicted with verifying"] = (
                round(3600 / verified) if prediction.has_room_for_float32 else "no room"
            )
            row["predicted GPU hours for 1,000,000 texts"] = round(seconds * prediction.devices * 1e6 / 3600)
            found.append(row)
    return found
