"""Work "roofline": predicted seconds a text on GPUs that are not here, from operations, bytes and launches.

The shapes run without weights or data (torch's meta device), one and two layers of them, so that every kernel of a layer is
counted as transformers dispatches it: its arithmetic, the bytes that it reads and writes, and one launch. Attention, which the
engine computes itself, is added by formula. A kernel takes the longer of its arithmetic at a share of the peak and its bytes at a
share of the bandwidth; a pass takes the longer of its kernels together and of its launches. The shares are assumptions, named
below; nothing here was measured on a GPU.

Phases, for `TEXTS` texts of a micro-batch together: positions (each text twice behind the tool's prompt, `context.py`), sampling
(`NEW_TOKENS` steps with all samples), scoring without pruning (`packing.py`), and scoring with some calls again in float32.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from toolformer_ops.language_model.losses import SCORED_TOKENS
from toolformer_ops.language_model.memory import DeviceMemory

TEXTS, TEXT_TOKENS, PROMPT_TOKENS = 16, 200, 450
POSITIONS, SAMPLES, NEW_TOKENS = 5, 5, 20
CALLS = POSITIONS * SAMPLES
CALL_TOKENS, RESULT_TOKENS = 13, 4
"""Of a call's prefix with its newline, and of its result."""
FLOAT32_SHARE = 0.05
"""Of the calls, assumed to lie within rounding of a threshold."""
LAUNCH_SECONDS = 5e-6
STEP_LAUNCHES_A_LAYER, STEP_LAUNCHES_OUTSIDE = 60, 60
"""Of a decode step with any number of texts, at most: what the engine aims at."""
MATRIX_SHARE, ATTENTION_SHARE, BANDWIDTH_SHARE = 0.75, 0.4, 0.85
"""Assumed of the peak: what large matrix products and flash attention reach, and reading and writing of the bandwidth."""


@dataclass(frozen=True)
class Device:
    """A GPU as its maker describes it."""

    name: str
    memory_bytes: float
    bandwidth: float
    """Bytes a second."""
    peak: dict[torch.dtype, float]
    """Operations a second of matrix products; float32 without TF32."""


DEVICES = (
    Device("A100 80 GB SXM", 80e9, 2.04e12, {torch.bfloat16: 312e12, torch.float32: 19.5e12}),
    Device("H100 80 GB SXM", 80e9, 3.35e12, {torch.bfloat16: 989e12, torch.float32: 67e12}),
)
SHAPES = {
    "1B": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128_256,
    },
    "7B": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 32_000,
    },
}  # fmt: skip
"""Llama 3.2 1B and Llama 2 7B."""


@dataclass
class Kernels:
    """What was dispatched: arithmetic and bytes of each kernel."""

    operations: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)

    def add(self, operations: float, moved: float) -> None:
        """One launch."""
        self.operations.append(operations)
        self.moved.append(moved)


@dataclass(frozen=True)
class Cost:
    """What a part of the work takes on one device."""

    arithmetic: float = 0.0
    """Seconds of kernels that arithmetic limits."""
    moving: float = 0.0
    """Seconds of those that bytes limit."""
    launches: float = 0.0
    operations: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            *(one + more for one, more in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))
        )

    def __mul__(self, times: float) -> "Cost":
        return Cost(*(times * one for one in dataclasses.astuple(self)))

    @property
    def seconds(self) -> float:
        """The kernels one after the other, or their launches where these take longer."""
        return max(self.arithmetic + self.moving, self.launches * LAUNCH_SECONDS)

    @property
    def limit(self) -> str:
        """Which of the three limits it."""
        if self.launches * LAUNCH_SECONDS >= self.arithmetic + self.moving:
            return "launches"
        return "operations" if self.arithmetic >= self.moving else "bytes"


def cost_of(kernels: Kernels, device: Device, dtype: torch.dtype, share: float = MATRIX_SHARE) -> Cost:
    """Each kernel takes the longer of its arithmetic and its bytes."""
    found = Cost()
    for operations, moved in zip(kernels.operations, kernels.moved, strict=True):
        computing = operations / (share * device.peak[dtype])
        moving = moved / (BANDWIDTH_SHARE * device.bandwidth)
        longer = {"arithmetic": computing} if computing > moving else {"moving": moving}
        found += Cost(launches=1, operations=operations, **longer)
    return found


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects kernels; views launch nothing."""

    def __init__(self, kernels: Kernels) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels = kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and name not in ("empty", "empty_like", "new_empty", "detach", "_unsafe_view"):
            tensors = [one for one in (*_flat(args), *_flat([found])) if isinstance(one, Tensor)]
            operations = 0.0
            if name in ("mm", "addmm", "bmm"):
                left = args[1] if name == "addmm" else args[0]
                operations = 2.0 * left.numel() * found.shape[-1]
            if name == "embedding":  # reads the rows that are asked for
                tensors = [found, found]
            self._kernels.add(operations, float(sum(one.numel() * one.itemsize for one in tensors)))
        return found


def _flat(values: Any) -> list[Any]:
    return [item for value in values for item in (_flat(value) if isinstance(value, list | tuple) else [value])]


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
        with torch.device("meta"):
            network = LlamaModel(config).to(dtype)
            ids, places = torch.zeros(1, tokens, dtype=torch.long), torch.zeros(1, tokens, dtype=torch.long)
            kernels = Kernels()
            with torch.inference_mode(), _Counting(kernels):
                network(input_ids=ids, position_ids=places, use_cache=False)
        by_depth.append(kernels)
    one, two = by_depth
    # The kernels come in order: those of the first layer are what two layers have more, from where they begin to differ.
    more = len(two.operations) - len(one.operations)
    rest = sorted(zip(two.operations, two.moved, strict=True))
    for kernel in zip(one.operations, one.moved, strict=True):
        rest.remove(kernel)
    if len(rest) != more:
        raise ValueError(
            f"expected the kernels of one layer to be among those of two, found {len(rest)} of {more} more"
        )
    layer, outside = Kernels(), Kernels()
    for operations, moved in rest:
        layer.add(operations, moved)
    left = sorted(zip(one.operations, one.moved, strict=True))
    for kernel in rest:
        left.remove(kernel)
    for operations, moved in left:
        outside.add(operations, moved)
    return layer, outside


class Prediction:
    """One shape in one format on one device."""

    def __init__(self, shape: dict[str, int], device: Device) -> None:
        self.shape, self.device = shape, device
        self.layers = shape["num_hidden_layers"]
        self.width = shape["hidden_size"]
        self.kept_width = self.width * shape["num_key_value_heads"] // shape["num_attention_heads"]
        self.weights = (
            self.layers
            * (2 * self.width * (self.width + self.kept_width) + 3 * self.width * shape["intermediate_size"])
            + self.width * shape["vocab_size"]
        )

    def pass_tokens(self, dtype: torch.dtype) -> int:
        """What `DeviceMemory` allows."""
        from transformers import LlamaConfig

        stand_in = _Network(LlamaConfig(**self.shape), dtype)
        free = self.device.memory_bytes - self.weights * dtype.itemsize
        return DeviceMemory(stand_in, free_bytes=int(free), like="cuda").pass_tokens

    def through(self, tokens: int, dtype: torch.dtype, attention: Callable[[], Kernels]) -> Cost:
        """One pass of tokens through all layers; `attention` is that of one layer."""
        layer, outside = layer_and_rest(self.shape, tokens, dtype)
        cost = cost_of(layer, self.device, dtype) + cost_of(attention(), self.device, dtype, ATTENTION_SHARE)
        return cost * self.layers + cost_of(outside, self.device, dtype)

    def vocabulary(self, rows: int, dtype: torch.dtype) -> Cost:
        """Log probabilities of rows: the projection, then float32, the maximum's and the sum's passes, and a choice."""
        size = self.shape["vocab_size"]
        kernels = Kernels()
        kernels.add(2.0 * rows * self.width * size, dtype.itemsize * (self.width * size + rows * (size + self.width)))
        kernels.add(0, rows * size * (dtype.itemsize + 4.0))
        kernels.add(0, rows * size * 12.0)
        kernels.add(0, rows * 8.0)
        return cost_of(kernels, self.device, dtype)

    def flash(self, queries: int, seen: float, columns: float, dtype: torch.dtype) -> Kernels:
        """Flash attention of a layer: queries that see so many columns in the mean; `columns` are read."""
        kernels = Kernels()
        moved = dtype.itemsize * (2.0 * queries * self.width + 2.0 * columns * self.kept_width)
        kernels.add(4.0 * queries * seen * self.width, moved)
        for _ in range(3):  # queries, keys and values are laid out one after the other
            kernels.add(0, 2.0 * dtype.itemsize * queries * self.width)
        return kernels

    def positions(self) -> Cost:
        """Each text twice, behind a prompt that is there; a row for each of its words."""
        dtype = torch.bfloat16
        tokens = 2 * TEXT_TOKENS
        batch = min(TEXTS * tokens, self.pass_tokens(dtype))
        columns = batch / tokens * (PROMPT_TOKENS + tokens)
        one = self.through(batch, dtype, lambda: self.flash(batch, PROMPT_TOKENS + tokens / 2, columns, dtype))
        return one * (tokens / batch) + self.vocabulary(TEXTS * TEXT_TOKENS, dtype) * (1 / TEXTS)

    def sampling(self) -> Cost:
        """Steps of all samples; attention over prompt, text and own columns keeps its scores in float32 (`attention.py`)."""
        dtype = torch.bfloat16
        rows = TEXTS * POSITIONS * SAMPLES
        columns = PROMPT_TOKENS + 2 * TEXT_TOKENS + NEW_TOKENS / 2
        read = PROMPT_TOKENS + TEXTS * 2 * TEXT_TOKENS + rows * NEW_TOKENS / 2

        def attention() -> Kernels:
            kernels = Kernels()
            scores = 4.0 * rows * self.shape["num_attention_heads"] * columns
            kernels.add(4.0 * rows * columns * self.width, dtype.itemsize * 2.0 * read * self.kept_width)
            for _ in range(4):  # scale, mask, softmax, its result in the network's format
                kernels.add(0, 2.0 * scores)
            return kernels

        step = self.through(rows, dtype, attention) + self.vocabulary(rows, dtype)
        launches = self.layers * STEP_LAUNCHES_A_LAYER + STEP_LAUNCHES_OUTSIDE
        return dataclasses.replace(step, launches=launches) * (NEW_TOKENS / TEXTS)

    def scoring(self, dtype: torch.dtype = torch.bfloat16, calls: float = CALLS) -> Cost:
        """The text alone, and each call without and with its result, up to the last token that is scored."""
        half = TEXT_TOKENS / 2 + SCORED_TOKENS  # calls stand all over a text
        own = 1 + CALL_TOKENS + RESULT_TOKENS / 2 + half
        text = (1 + TEXT_TOKENS) * (calls / CALLS)
        tokens = text + 2 * calls * own
        batch = min(int(TEXTS * tokens), self.pass_tokens(dtype))
        one = self.through(batch, dtype, lambda: self.flash(batch, own / 2, batch, dtype))
        rows = round(3 * calls * SCORED_TOKENS * TEXTS)
        return one * (tokens / batch) + self.vocabulary(rows, dtype) * (1 / TEXTS)


@dataclass(frozen=True)
class _Network:
    """As much of a network as its budgets need."""

    config: Any
    dtype: torch.dtype

    def parameters(self) -> list[Tensor]:
        """None: the free memory is given."""
        return []


def predict() -> list[dict[str, Any]]:
    """One entry for each device, shape and phase."""
    found: list[dict[str, Any]] = []
    for device in DEVICES:
        for name, shape in SHAPES.items():
            prediction = Prediction(shape, device)
            scoring = prediction.scoring()
            again = prediction.scoring(torch.float32, CALLS * FLOAT32_SHARE)
            phases = {
                "positions": prediction.positions(),
                "sampling": prediction.sampling(),
                "scoring": scoring,
                f"scoring, {FLOAT32_SHARE:.0%} of the calls again in float32": scoring + again,
            }
            reading = prediction.weights * 2 / (BANDWIDTH_SHARE * device.bandwidth) * NEW_TOKENS / TEXTS
            found += [
                {
                    "device": device.name,
                    "shape": name,
                    "phase": phase,
                    "predicted seconds a text": cost.seconds,
                    "predicted limit": cost.limit,
                    "predicted share of the bfloat16 peak": cost.operations
                    / cost.seconds
                    / device.peak[torch.bfloat16],
                    "predicted times reading the weights": cost.seconds / reading if phase == "sampling" else "-",
                }
                for phase, cost in phases.items()
            ]
    return found
