"""How long a language model should take on a GPU, reckoned from operations and bytes, not measured.

A pass is its kernels: the matrix products of a layer and attention by formula, the others by bytes that were
counted once. A kernel takes the longer of its arithmetic at a share of the peak and its bytes at a share of
the bandwidth. The shares were measured on an H200 with 7B (2026-11-26 and 27, docs/gpu.md), so that its sampling
and scoring come out as measured (`tests/unit/test_roofline.py`); for other cards and models they are
assumptions.

A tool's work on a text, phase by phase:

    positions   the text twice behind the tool's prompt (`context.py`), a row of the vocabulary for each word
    sampling    a decode step a token of a call, with the samples of all texts that grow together
    scoring     the text alone, and each call without and with its result, packed (`packing.py`)
    verifying   calls near a threshold once more in TF32, and in float32 those that TF32 cannot decide, if a
                GPU has room for float32 weights, too

A model that is too large for one GPU has its layers on several, which work one after the other: an hour of
the model is an hour of each of them. `predictions.py` reckons whole cards.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from toolformer_ops.language_model.losses import SCORED_TOKENS

if TYPE_CHECKING:
    from toolformer_ops.language_model.devices import DeviceMemory

TEXT_TOKENS = 200.0
TEXTS_TOGETHER = 64
"""So many texts of a micro-batch are computed together if the KV cache has room for them."""
OTHER_WIDTHS_A_LAYER = {"bfloat16": 35, "TF32": 75, "float32": 75}
"""Numbers a token, over the hidden size, that all other kernels of a Llama layer move. In 16 bits they are compiled, so
that few of them are between matrix products (`language_model/compiled.py`)."""
OTHER_WIDTHS_OUTSIDE = 20
"""Those of the kernels outside of the layers."""
MATRIX_SHARE = 0.75
"""The share of the maker's peak that matrix products of a pass reach. Measured: scoring of 7B reaches 462
TFLOP/s, and 64 % of its kernels' time are products, with the GPU busy for 96 % of the time, so products reach
0.76 of 989. A cube of 8,192 alone reaches 797."""
ATTENTION_SHARE = 0.4
"""The share of the peak that flash attention reaches, tiles that are filled with nothing counted. Measured: a
layer's step with 3,200 rows of 7B takes 2.20 ms for own columns and 0.71 for texts; by this share 2.17 and
0.65."""
QUERY_TILE, KEY_TILE = 128, 128
"""Flash attention computes tiles of so many queries and columns, however few there are."""
OWN_COLUMNS_SHARE = 0.55
"""The share of the bandwidth that a batched product over the sequences' own columns reaches. Measured: a
layer's step with 3,200 rows of 7B takes 0.54 ms; their room for 27 tokens is 1.4 GB."""
BANDWIDTH_SHARE = 0.85
"""The share of the bandwidth that reading and writing reach in large kernels; assumed."""
ELEMENTWISE_SHARE = 0.45
"""The share of the bandwidth that is reached in a layer's norms, rotary positions and activations, a third of
scoring. Measured."""
BUSY = {"positions": 0.96, "sampling": 0.83, "scoring": 0.96}
"""Share of a phase in which the GPU works and does not wait for launches. Measured with 7B; with 1.5B it is
0.66 in sampling and 0.82 in scoring."""
WEIGHTS_SHARE = 0.8
"""Weights take at most this share of a GPU's memory: the rest is for keys, values and activations."""


@dataclass(frozen=True)
class Device:
    """A GPU as its maker describes it."""

    name: str
    memory_bytes: float
    bandwidth: float
    """Bytes a second."""
    peak: dict[str, float]
    """Operations a second of matrix products by number format."""


NUMBER_BYTES = {"bfloat16": 2, "TF32": 4, "float32": 4}
"""Bytes of a number that is multiplied in each format; float16 is as bfloat16."""
AMPERE = {"bfloat16": 312e12, "TF32": 156e12, "float32": 19.5e12}
HOPPER = {"bfloat16": 989e12, "TF32": 494e12, "float32": 67e12}
DEVICES = (
    Device("A100 40 GB", 40e9, 1.555e12, AMPERE),
    Device("A100 80 GB", 80e9, 2.039e12, AMPERE),
    Device("H100 80 GB", 80e9, 3.35e12, HOPPER),
    Device("H200 141 GB", 141e9, 4.8e12, HOPPER),
)


@dataclass(frozen=True)
class Shape:
    """The sizes of a network as Llama's."""

    width: int
    inner: int
    """The width of the feed-forward layer, which has three matrices."""
    layers: int
    heads: int
    key_heads: int
    vocabulary: int


SHAPES = {
    "7B": Shape(width=4096, inner=11_008, layers=32, heads=32, key_heads=32, vocabulary=32_000),
    "70B": Shape(width=8192, inner=28_672, layers=80, heads=64, key_heads=8, vocabulary=32_000),
}
"""Llama 2 7B and 70B."""


@dataclass(frozen=True)
class ToolWork:
    """What one text takes with a tool, in the mean; tokens where nothing else is said."""

    positions: float
    """How many are sampled."""
    samples: float
    """How many samples each position gets."""
    prompt: float
    call: float
    result: float
    text: float = TEXT_TOKENS

    @property
    def calls(self) -> float:
        """Samples of all positions: each is another call, and scored."""
        return self.positions * self.samples


@dataclass(frozen=True)
class Runs:
    """Sequences of queries that one kernel of attention takes together."""

    number: float
    queries: float
    """Queries of each sequence."""
    seen: float
    """Columns that a query sees, in the mean."""

    @property
    def pairs(self) -> float:
        """Queries times columns that the kernel computes, tiles filled up."""
        tiles = math.ceil(self.queries / QUERY_TILE) * math.ceil(self.seen / KEY_TILE)
        return self.number * tiles * QUERY_TILE * KEY_TILE


Kernels = list[tuple[float, float]]
"""Arithmetic and bytes of each kernel."""
Cost = NDArray[np.float64]
"""What a part of the work on one device costs: seconds of kernels that arithmetic limits, and of those that
bytes limit."""


def cost_of(
    kernels: Kernels,
    device: Device,
    number_format: str,
    share: float = MATRIX_SHARE,
    bandwidth_share: float = BANDWIDTH_SHARE,
) -> Cost:
    """Each kernel takes the longer of its arithmetic and its bytes."""
    operations, moved = np.array(kernels).T  # (kernels,) each
    computing = operations / (share * device.peak[number_format])
    moving = moved / (bandwidth_share * device.bandwidth)
    return np.array([computing[computing > moving].sum(), moving[computing <= moving].sum()])


class Prediction:
    """One shape on GPUs of one kind, in one number format."""

    def __init__(self, shape: Shape, device: Device, number_format: str = "bfloat16") -> None:
        self.shape, self.device, self.number_format = shape, device, number_format
        self.layers, self.width = shape.layers, shape.width
        self.kept_width = self.width * shape.key_heads // shape.heads
        self.weights = (
            self.layers * (2 * self.width * (self.width + self.kept_width) + 3 * self.width * shape.inner)
            + 2 * self.width * shape.vocabulary
        )
        self.devices = math.ceil(self.weights * 2 / (WEIGHTS_SHARE * device.memory_bytes))
        """GPUs that hold the model in bfloat16."""
        self.has_room_for_float32 = (
            self.weights * (2 + 4) <= WEIGHTS_SHARE * device.memory_bytes * self.devices
        )

    def memory(self, number_format: str) -> "DeviceMemory":
        """The engine's budgets, with the weights of this format on the GPUs."""
        import torch
        from transformers import LlamaConfig

        from toolformer_ops.language_model.devices import DeviceMemory

        free = self.devices * self.device.memory_bytes - self.weights * NUMBER_BYTES[number_format]
        config = LlamaConfig(
            hidden_size=self.width,
            intermediate_size=self.shape.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.shape.heads,
            num_key_value_heads=self.shape.key_heads,
            vocab_size=self.shape.vocabulary,
        )
        dtype = torch.bfloat16 if number_format == "bfloat16" else torch.float32
        network = SimpleNamespace(config=config, dtype=dtype, parameters=list)  # no weights
        return DeviceMemory(network, free_bytes=int(free), like="cuda")

    def through(self, tokens: float, number_format: str, attention: Kernels) -> Cost:
        """One pass of tokens through all layers; `attention` is that of one layer."""
        size, inner = NUMBER_BYTES[number_format], self.shape.inner
        a_width = float(tokens * self.width * size)
        # q, o, k, v, gate, up, down
        columns = [self.width, self.width, self.kept_width, self.kept_width, inner, inner, inner]
        products = [
            (2.0 * tokens * self.width * c, float(size * (self.width * c + tokens * (self.width + c))))
            for c in columns
        ]
        cost: Cost = cost_of(products, self.device, number_format)
        others = [(0.0, a_width * OTHER_WIDTHS_A_LAYER[number_format])]
        cost += cost_of(others, self.device, number_format, bandwidth_share=ELEMENTWISE_SHARE)
        cost += cost_of(attention, self.device, number_format, ATTENTION_SHARE)
        outside = [(0.0, a_width * OTHER_WIDTHS_OUTSIDE)]
        return cost * self.layers + cost_of(outside, self.device, number_format)

    def vocabulary(self, rows: float, number_format: str) -> Cost:
        """Log probabilities of rows: the projection, then float32, the maximum's and the sum's passes, and a choice."""
        size, entries = NUMBER_BYTES[number_format], self.shape.vocabulary
        matrix = size * (self.width * entries + rows * (entries + self.width))
        kernels: Kernels = [(2.0 * rows * self.width * entries, matrix), (0, rows * entries * (size + 4.0))]
        kernels += [(0, rows * entries * 12.0), (0, rows * 8.0)]
        return cost_of(kernels, self.device, number_format)

    def attention(self, kinds: Sequence[Runs], number_format: str) -> Kernels:
        """The kernels of a layer: one for each kind of columns, whose results are merged if there are several."""
        size = NUMBER_BYTES[number_format]
        kernels: Kernels = []
        for runs in kinds:
            queries = runs.number * runs.queries
            moved = size * (2.0 * queries * self.width + 2.0 * runs.number * runs.seen * self.kept_width)
            kernels.append((4.0 * runs.pairs * self.width, moved))
        queries = kinds[0].number * kinds[0].queries
        kernels += [(0, 2.0 * size * queries * self.width)] * 3  # queries, keys and values are laid out
        if len(kinds) > 1:  # the parts in float32, weighed and added
            kernels.append((0, len(kinds) * queries * self.width * (size + 4.0)))
            kernels.append((0, (len(kinds) + 1) * queries * self.width * 4.0))
        return kernels

    def texts_together(self, work: ToolWork) -> int:
        """As many texts as there is room for, with their samples."""
        a_text = 2 * work.text + work.calls * work.call
        return max(1, min(TEXTS_TOGETHER, int(self.memory(self.number_format).cached_tokens // a_text)))

    def positions(self, work: ToolWork) -> Cost:
        """Seconds a text."""
        number_format, tokens = self.number_format, 2 * work.text
        batch = min(TEXTS_TOGETHER * tokens, self.memory(number_format).pass_tokens)
        kinds = [Runs(1, batch, work.prompt), Runs(batch / tokens, tokens, tokens / 2)]
        one = self.through(batch, number_format, self.attention(kinds, number_format))
        rows = self.vocabulary(TEXTS_TOGETHER * work.text, number_format)
        return (one * (tokens / batch) + rows * (1 / TEXTS_TOGETHER)) / BUSY["positions"]

    def sampling(self, work: ToolWork, texts: int | None = None, *, own_by_kernel: bool = False) -> Cost:
        """Seconds a text, of so many that grow together (None: as many as there is room for).

        The prompt is read once, a text once a position. A sequence's own columns are one batched product,
        which reads all the room that they have; `own_by_kernel`: by flash attention, as when it was measured.
        """
        number_format = self.number_format
        texts = texts or self.texts_together(work)
        rows = texts * work.calls
        kinds = [
            Runs(1, rows, work.prompt),
            Runs(texts * work.positions, work.samples, 1.5 * work.text),
        ]
        own = Runs(rows, 1, work.call / 2)
        if own_by_kernel:
            step = self.through(rows, number_format, self.attention([*kinds, own], number_format))
        else:
            step = self.through(rows, number_format, self.attention(kinds, number_format))
            moved = 2.0 * NUMBER_BYTES[number_format] * rows * work.call * self.kept_width
            by_product = cost_of([(0, moved)], self.device, number_format, bandwidth_share=OWN_COLUMNS_SHARE)
            step += by_product * self.layers
        return (step + self.vocabulary(rows, number_format)) * (work.call / texts) / BUSY["sampling"]

    def scored_tokens(self, work: ToolWork, share: float = 1.0) -> tuple[float, float]:
        """Tokens of the passes for a share of a text's calls, and those of one pass.

        A pass is a prefix and the text up to the last token that is scored; calls stand all over a text.
        """
        own = 1 + work.call + work.result / 2 + work.text / 2 + SCORED_TOKENS
        return (1 + work.text) * share + 2 * work.calls * share * own, own

    def scoring(self, work: ToolWork, number_format: str = "", share: float = 1.0) -> Cost:
        """Seconds a text, for a share of its calls; in the prediction's number format, or another one."""
        number_format = number_format or self.number_format
        tokens, own = self.scored_tokens(work, share)
        batch = min(int(TEXTS_TOGETHER * tokens), self.memory(number_format).pass_tokens)
        attention = self.attention([Runs(batch / own, own, own / 2)], number_format)
        one = self.through(batch, number_format, attention)
        rows = max(1, round(3 * work.calls * share * SCORED_TOKENS * TEXTS_TOGETHER))
        cost = one * (tokens / batch) + self.vocabulary(rows, number_format) * (1 / TEXTS_TOGETHER)
        return cost / BUSY["scoring"]

    def verifying(self, work: ToolWork, in_tf32: float, in_float32: float) -> float:
        """Seconds a text: these shares of the calls again, in TF32 and in float32."""
        ladder = (self.scoring(work, "TF32", in_tf32), self.scoring(work, "float32", in_float32))
        return float(sum(cost.sum() for cost in ladder))
