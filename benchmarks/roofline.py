"""Work "roofline": predicted texts an hour on GPUs that are not here, from operations, bytes and launches.

Layers run without weights or data (torch's meta device), so that every kernel is counted as transformers dispatches it: its
arithmetic, the bytes that it reads and writes, and one launch. Attention, which the engine computes itself, is added by formula. A
kernel takes the longer of its arithmetic at a share of the peak and its bytes at a share of the bandwidth; a pass takes the longer
of its kernels together and of its launches. The shares are assumptions, named below; nothing here was measured on a GPU.

Every tool has its own numbers (the paper's k and m) and the lengths of the calls that its prompt shows. Phases, a text:

    positions   the text twice behind the tool's prompt (`context.py`), a row of the vocabulary for each word
    sampling    a decode step a token of a call, with the samples of all texts that grow together
    scoring     the text alone, and each call without and with its result, packed (`packing.py`), nothing pruned
    verifying   `FLOAT32_SHARE` of the calls once more in float32, if a GPU has room for these weights, too

A model that is too large for one GPU has its layers on several, which work one after the other: an hour of the model is an hour of
each of them.
"""

import math
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.engine import STAGES
from benchmarks.works import FIXED_RESULTS
from toolformer_ops.language_model.losses import SCORED_TOKENS
from toolformer_ops.language_model.memory import DeviceMemory
from toolformer_ops.records import CHARACTERS_A_TOKEN
from toolformer_ops.tools.registry import PAPER_TOOLS, get_tool

TEXT_TOKENS = 200
TEXTS_TOGETHER = 16
"""Of a micro-batch, if the KV cache has room for them."""
FLOAT32_SHARE = 0.05
"""Of the calls, assumed to be within rounding of a threshold."""
LAUNCH_SECONDS = 5e-6
STEP_LAUNCHES_A_LAYER, STEP_LAUNCHES_OUTSIDE = 49, 38
"""Of a decode step of Llama in bfloat16 with any number of texts (`launches.py` counts them)."""
MATRIX_SHARE, ATTENTION_SHARE, BANDWIDTH_SHARE = 0.75, 0.4, 0.85
"""Assumed of the peak: what large matrix products and flash attention reach, and reading and writing of the bandwidth."""
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
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 32_000,
    },
    "70B": {
        "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "vocab_size": 32_000,
    },
}  # fmt: skip
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
"""Arithmetic and bytes of each kernel that was dispatched."""
Cost = NDArray[np.float64]
"""Of a part of the work on one device: seconds of kernels that arithmetic limits, of those that bytes limit, and launches."""


def seconds_of(cost: Cost) -> float:
    """The kernels one after the other, or their launches if these take longer."""
    return float(max(cost[0] + cost[1], cost[2] * LAUNCH_SECONDS))


def limit_of(cost: Cost) -> str:
    """Which of the three limits it."""
    if cost[2] * LAUNCH_SECONDS >= cost[0] + cost[1]:
        return "launches"
    return "operations" if cost[0] >= cost[1] else "bytes"


def cost_of(kernels: Kernels, device: Device, dtype: torch.dtype, share: float = MATRIX_SHARE) -> Cost:
    """Each kernel takes the longer of its arithmetic and its bytes."""
    operations, moved = np.array(kernels).T  # (kernels,) each
    computing = operations / (share * device.peak[dtype])
    moving = moved / (BANDWIDTH_SHARE * device.bandwidth)
    return np.array([computing[computing > moving].sum(), moving[computing <= moving].sum(), len(kernels)])


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects kernels; views launch nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: Kernels = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and name not in ("empty", "empty_like", "new_empty", "detach", "_unsafe_view"):
            tensors = [one for one in tree_leaves((args, found)) if isinstance(one, Tensor)]
            operations = 0.0
            if name in ("mm", "addmm", "bmm"):
                left = args[1] if name == "addmm" else args[0]
                operations = 2.0 * left.numel() * found.shape[-1]
            if name == "embedding":  # reads the rows that are asked for
                tensors = [found, found]
            self.kernels.append((operations, float(sum(one.numel() * one.itemsize for one in tensors))))
        return found


def layer_and_rest(shape: dict[str, int], tokens: int, dtype: torch.dtype) -> tuple[Kernels, Kernels]:
    """The kernels of one layer, and those outside of all layers, of a pass over `tokens` tokens; attention is left out."""
    from transformers import LlamaConfig, LlamaModel
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def nothing(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any) -> tuple[Tensor, None]:
        return query.transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("left_out", nothing)
    by_depth = []
    for depth in (1, 2):
        config = LlamaConfig(**{**shape, "num_hidden_layers": depth}, attn_implementation="left_out", dtype=dtype)
        with torch.device("meta"), torch.inference_mode():
            network, ids = LlamaModel(config).to(dtype), torch.zeros(1, tokens, dtype=torch.long)
            with _Counting() as counting:
                network(input_ids=ids, position_ids=ids, use_cache=False)
        by_depth.append(Counter(counting.kernels))
    one, two = by_depth
    layer = two - one
    if others := layer - one:
        raise ValueError(f"expected the kernels of a second layer to be among those of one, found others: {others}")
    return list(layer.elements()), list((one - layer).elements())


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
        self.has_room_for_float32 = self.weights * (2 + 4) <= WEIGHTS_SHARE * device.memory_bytes * self.devices

    def memory(self, dtype: torch.dtype) -> DeviceMemory:
        """The engine's budgets, with the weights of this format on the GPUs."""
        from transformers import LlamaConfig

        free = self.devices * self.device.memory_bytes - self.weights * dtype.itemsize
        network = SimpleNamespace(config=LlamaConfig(**self.shape), dtype=dtype, parameters=list)  # no weights
        return DeviceMemory(network, free_bytes=int(free), like="cuda")

    def through(self, tokens: int, dtype: torch.dtype, attention: Kernels) -> Cost:
        """One pass of tokens through all layers; `attention` is that of one layer."""
        layer, outside = layer_and_rest(self.shape, tokens, dtype)
        cost: Cost = cost_of(layer, self.device, dtype) + cost_of(attention, self.device, dtype, ATTENTION_SHARE)
        return cost * self.layers + cost_of(outside, self.device, dtype)

    def vocabulary(self, rows: int, dtype: torch.dtype) -> Cost:
        """Log probabilities of rows: the projection, then float32, the maximum's and the sum's passes, and a choice."""
        size = self.shape["vocab_size"]
        matrix = dtype.itemsize * (self.width * size + rows * (size + self.width))
        kernels = [(2.0 * rows * self.width * size, matrix), (0, rows * size * (dtype.itemsize + 4.0))]
        return cost_of([*kernels, (0, rows * size * 12.0), (0, rows * 8.0)], self.device, dtype)

    def attention(self, queries: int, seen: float, columns: float, dtype: torch.dtype, parts: int = 1) -> Kernels:
        """Of a layer: queries that see so many columns in the mean, and `columns` are read; merged, if it is in several parts."""
        moved = dtype.itemsize * (2.0 * queries * self.width + 2.0 * columns / parts * self.kept_width)
        kernels: Kernels = [(4.0 * queries * seen / parts * self.width, moved)] * parts
        kernels += [(0, 2.0 * dtype.itemsize * queries * self.width)] * 3  # queries, keys and values are laid out
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
        return one * (tokens / batch) + self.vocabulary(TEXTS_TOGETHER * TEXT_TOKENS, dtype) * (1 / TEXTS_TOGETHER)

    def sampling(self, work: ToolWork) -> Cost:
        """Seconds a text: the prompt is read once, a text once a position, a sample's own columns by itself."""
        dtype, texts = torch.bfloat16, self.texts_together(work)
        rows = texts * work.calls
        columns = work.prompt + texts * work.positions * 1.5 * TEXT_TOKENS + rows * work.call / 2
        attention = self.attention(rows, work.prompt + 1.5 * TEXT_TOKENS + work.call / 2, columns, dtype, parts=3)
        step = self.through(rows, dtype, attention) + self.vocabulary(rows, dtype)
        launches = self.layers * STEP_LAUNCHES_A_LAYER + STEP_LAUNCHES_OUTSIDE
        return np.array([*step[:2], launches]) * (work.call / texts)

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
    for device in DEVICES:
        for name, shape in SHAPES.items():
            prediction = Prediction(shape, device)
            for work in map(ToolWork.of, PAPER_TOOLS):
                phases = [prediction.positions(work), prediction.sampling(work), prediction.scoring(work)]
                seconds = sum(map(seconds_of, phases))
                verifying = seconds_of(prediction.scoring(work, torch.float32, FLOAT32_SHARE))
                verified = seconds + verifying if prediction.has_room_for_float32 else None
                found.append(
                    {
                        "device": device.name,
                        "shape": name,
                        "predicted GPUs": prediction.devices,
                        "tool": f"{work.tool}, {work.positions} x {work.samples}",
                        **{
                            f"predicted ms, {phase}": f"{seconds_of(cost) * 1000:.3g}, {limit_of(cost)}"
                            for phase, cost in zip(STAGES, phases, strict=True)
                        },
                        "predicted ms, verifying": verifying * 1000 if verified else "no room",
                        "predicted texts an hour": round(3600 / seconds),
                        "predicted with verifying": round(3600 / verified) if verified else "-",
                        "predicted GPU hours for 1,000,000 texts": round(seconds * prediction.devices * 1e6 / 3600),
                    }
                )
    return found
