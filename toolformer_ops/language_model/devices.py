"""The devices that a network computes on: GPUs, their free memory, and how much may be in flight.

Asks the CUDA driver itself (`libcuda.so.1`) for what torch does not say of a GPU that it cannot use: which
CUDA the driver knows, and why it shows no device.

`DeviceMemory` divides what is free once the weights are there by what the network's shape says that a token
takes:

    cached tokens   keys and values of all layers
    pass tokens     activations of the widest layer, while a pass is under way
    logits rows     the vocabulary in the network's format, and what drawing a token holds beside it

No more than a device can use: from some number on, more tokens at once make nothing faster
(`batch_sizes.py`). These budgets bound batches, so they decide no number if a row's bits do not depend on its
batch (on a CPU).

`DeviceMemory.halving` runs a batch that does not fit in two halves, and so on down to a single item. Where
even that does not fit, it raises `DeviceMemoryError`; a stage then gives up that one text and continues.
"""

import ctypes
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from toolformer_ops.errors import ConfigurationError, DeviceMemoryError, InfrastructureError
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, DeviceKind, free_main_memory

logger = logging.getLogger(__name__)

GIB = 2**30
DRIVER_BRANCHES = {"12": 525, "13": 580}
"""Oldest branch of NVIDIA's driver by major version of CUDA: programs of one major version run with each of
its drivers (NVIDIA, CUDA Compatibility, minor version compatibility)."""
CUDA_12 = "--build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 --build-arg DEEPSPEED=yes"
"""Arguments of the Dockerfile."""
LARGEST_CONTEXT = 2 * GIB
"""More than CUDA keeps on a GPU for a process in addition to its tensors."""
MAKE_ROOM = (
    "End the other processes (`nvidia-smi` on the node lists them), or keep them away: no process outside of "
    "Kubernetes, and no time slicing."
)
SHARE_OF_OTHERS = 0.1
"""The share of a GPU's memory that other processes may hold before they are named; those of one training have
contexts on each GPU."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG slice of a GPU, at a moment."""

    number: int
    name: str
    """The name that the driver gives: "NVIDIA A100-SXM4-80GB", with "MIG 3g.40gb" for a slice."""
    total_bytes: int
    free_bytes: int
    own_bytes: int
    """What torch holds there for this process, used or not."""

    @property
    def held_by_others(self) -> int:
        """Bytes that other processes hold; 0 if so little is missing that it may be CUDA's own."""
        missing = self.total_bytes - self.free_bytes - self.own_bytes
        return missing if missing > max(LARGEST_CONTEXT, SHARE_OF_OTHERS * self.total_bytes) else 0

    def __str__(self) -> str:
        kind = "a MIG slice, " if " MIG " in self.name else ""
        others = (
            f", {self.held_by_others / GIB:.1f} GiB held by other processes" if self.held_by_others else ""
        )
        return f"{self.number}: {self.name} ({kind}{self.free_bytes / GIB:.1f} of {self.total_bytes / GIB:.1f} GiB free{others})"


def require_gpu(device: str) -> None:
    """Raise unless torch can use GPUs.

    The message says which part is lacking: torch's CUDA, a driver, a newer one, or the GPU.

    Raises:
        ConfigurationError: torch was built without CUDA, or for a newer CUDA than the driver knows: no retry
        mends that.
        InfrastructureError: no driver, or no GPU that it shows.
    """
    if torch.cuda.is_available():
        return
    built_for = torch.version.cuda
    if built_for is None:
        raise ConfigurationError(
            f"expected torch with CUDA for device {device!r}, found torch {torch.__version__}. Use an image "
            "with CUDA (--build-arg TORCH_INDEX= --build-arg DEEPSPEED=yes), or set TOOLFORMER_DEVICE=cpu."
        )
    library = _driver_library()
    if library is None:
        raise InfrastructureError(
            f"expected a GPU for device {device!r}, found no NVIDIA driver (libcuda.so.1). In a pod: does "
            "its template ask for a GPU, and does the cluster need a runtimeClassName for it? On a machine: "
            "install the driver, or set TOOLFORMER_DEVICE=cpu."
        )
    driver = _driver_cuda(library)
    major = built_for.partition(".")[0]
    if driver and driver[0] < int(major):
        branch = f" (branch {DRIVER_BRANCHES[major]})" if major in DRIVER_BRANCHES else ""
        raise ConfigurationError(
            f"expected a driver for CUDA {major}{branch} or newer, since torch {torch.__version__} is built "
            f"for CUDA {built_for}, found one for CUDA {driver[0]}.{driver[1]}: the driver is too old. "
            "Install a newer one on the node, or use an image with torch for CUDA 12 (branch "
            f"{DRIVER_BRANCHES['12']} or newer), built with {CUDA_12}."
        )
    version = f" for CUDA {driver[0]}.{driver[1]}" if driver else ""
    code, name = library.cuInit(0), ctypes.c_char_p()
    said = f"error {code}"
    if library.cuGetErrorName(code, ctypes.byref(name)) == 0 and name.value:
        said = name.value.decode("ascii")  # such as CUDA_ERROR_NO_DEVICE
    raise InfrastructureError(
        f"expected a GPU for device {device!r}, found none: the driver{version} says {said}. Does the pod's "
        "template ask for a GPU, and does `nvidia-smi` on the node show a healthy one? Else set "
        "TOOLFORMER_DEVICE=cpu."
    )


def cuda_versions() -> str:
    """Which CUDA torch was built for, and which the driver knows, in words."""
    library = _driver_library()
    driver = library and _driver_cuda(library)
    return f"torch for CUDA {torch.version.cuda}, driver for CUDA {'{}.{}'.format(*driver) if driver else 'not said'}"


def gpus() -> list[Gpu]:
    """All that this process sees; a process sees one MIG slice at most.

    Raises:
        InfrastructureError: a GPU cannot be used, such as a GPU that another process has for itself alone.
    """
    return [_gpu(number) for number in range(torch.cuda.device_count())]


def free_memory(device: torch.device) -> int:
    """Bytes that this process may take of a device's memory, with what torch holds there unused.

    No more than the share that the process was limited to, if it was (`torch.cuda.set_per_process_memory_fraction`).
    """
    if device.type != "cuda":
        return free_main_memory()
    number = device.index or 0
    free, total = torch.cuda.mem_get_info(number)
    allocated = torch.cuda.memory_allocated(number)
    share = int(total * torch.cuda.get_per_process_memory_fraction(number))
    return int(min(free + torch.cuda.memory_reserved(number), share) - allocated)


def require_own_memory(what: str) -> None:
    """Raise where memory was short for `what`, and other processes hold much of the GPUs that this one uses.

    Then this process is not to blame.

    Raises:
        InfrastructureError: the message has the free and all bytes of such a GPU, and what others hold.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    for number in range(torch.cuda.device_count()):
        if number != torch.cuda.current_device() and not torch.cuda.memory_reserved(number):
            continue  # another process's of the same training
        if (gpu := _gpu(number)).held_by_others:
            raise InfrastructureError(f"expected memory for {what}, found GPU {gpu}. {MAKE_ROOM}")


def _gpu(number: int) -> Gpu:
    try:
        name = torch.cuda.get_device_name(number)
        free, total = torch.cuda.mem_get_info(number)
        return Gpu(number, name, total, free, torch.cuda.memory_reserved(number))
    except RuntimeError as error:
        raise InfrastructureError(
            f"expected GPU {number}, found that it cannot be used: {str(error).splitlines()[0]}. Does "
            "another process have it for itself, or does `nvidia-smi` on the node show an error?"
        ) from error


def _driver_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _driver_cuda(library: ctypes.CDLL) -> tuple[int, int] | None:
    """The newest CUDA that the driver knows, such as (12, 4); needs no device. None if it does not say."""
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


_MALLOC_TRIM: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)

Item = TypeVar("Item")
Result = TypeVar("Result")

USABLE_SHARE = {"cpu": 0.4, "cuda": 0.85}
"""The share of the free memory that is used, by kind of device: a CPU's is shared with other processes; on a
GPU the rest is for the kernels and for pieces that are too small to use."""
CACHE_SHARE, PASS_SHARE, LOGITS_SHARE = 0.6, 0.3, 0.1
"""Shares of the usable memory that caches, passes and logits may take."""


HELD_TO_DRAW = 32
"""Bytes an entry of a row over the vocabulary beside the projection: log probabilities (4), probabilities
(4), sorted (4) with their places (8), and as much again (12) while CUDA sorts for top_p. Measured on a CPU:
25 with top_p, 16 without."""


@dataclass(frozen=True)
class TokenBytes:
    """What a network takes on its devices for a token, in bytes."""

    cached: int
    """Keys and values, all layers."""
    in_pass: int
    """Activations of one layer; the layer that takes most is like the others."""
    logits: int
    """One row over the vocabulary, if most is held: while a token is drawn (`HELD_TO_DRAW`)."""

    @classmethod
    def of(cls, config: Any, dtype: torch.dtype) -> "TokenBytes":
        """By the configuration of a network's decoder."""
        size = dtype.itemsize
        heads = int(config.num_attention_heads)
        width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        shared = int(getattr(config, "num_key_value_heads", None) or heads)
        hidden = int(config.hidden_size)
        inner = int(
            getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden
        )
        return cls(
            cached=2 * int(config.num_hidden_layers) * shared * width * size,
            # The residual and two copies of it, one of them in float32; queries, keys, values and what
            # attention gives; three matrices of the feed-forward layer (gate, up, their product).
            in_pass=size * (2 * hidden + 2 * (heads + shared) * width + 3 * inner) + 4 * hidden,
            logits=int(config.vocab_size) * (size + HELD_TO_DRAW),
        )


FEWEST_KEPT_TOKENS = 2_048
"""So many tokens of texts are kept, however little memory there seems to be."""
FEWEST_CACHED_TOKENS, FEWEST_PASS_TOKENS, FEWEST_LOGITS_ROWS = 512, 64, 16
"""So many are tried however little memory there seems to be. Rows of logits are a multiple of theirs."""


class DeviceMemory:
    """The budgets of one network, made when its weights are on their devices.

    `free_bytes` says what is free there, and `like` which kind the devices are.
    """

    def __init__(self, network: Any, free_bytes: int | None = None, like: DeviceKind | None = None) -> None:
        self.token_bytes = TokenBytes.of(network.config.get_text_config(decoder=True), network.dtype)
        weights: Counter[torch.device] = Counter()
        for parameter in network.parameters():
            weights[parameter.device] += parameter.nbytes
        kind: DeviceKind = "cuda" if any(device.type == "cuda" for device in weights) else "cpu"
        self._devices = list(weights) if kind == "cuda" else []
        self._weight_bytes = weights.total()
        if free_bytes is None:
            # Each device holds its share of the layers, so of their keys and values: the fullest decides.
            free_bytes = min(
                int(free_memory(device) * weights.total() / weights[device]) for device in weights
            )
        self._usable = free_bytes * USABLE_SHARE[like or kind]
        self.sizes = BATCH_SIZES[like or kind]
        """The most that is worth computing together."""

    @property
    def cached_tokens(self) -> int:
        """Most tokens whose keys and values are kept at once."""
        wanted = self._usable * CACHE_SHARE / self.token_bytes.cached
        return max(FEWEST_CACHED_TOKENS, min(self.sizes.cached_tokens, int(wanted)))

    @property
    def pass_tokens(self) -> int:
        """Most tokens in one pass through the network; a single sequence may be longer."""
        wanted = self._usable * PASS_SHARE / self.token_bytes.in_pass
        return max(FEWEST_PASS_TOKENS, min(self.sizes.pass_tokens, int(wanted)))

    @property
    def logits_rows(self) -> int:
        """Most rows over the whole vocabulary at once."""
        wanted = self._usable * LOGITS_SHARE / self.token_bytes.logits
        rows = max(FEWEST_LOGITS_ROWS, min(self.sizes.logits_rows, int(wanted)))
        return rows - rows % FEWEST_LOGITS_ROWS

    @property
    def kept_text_tokens(self) -> int:
        """Most tokens of texts whose contexts are kept, both copies counted.

        It is what the passes leave of their share.
        """
        left = self._usable * PASS_SHARE - self.pass_tokens * self.token_bytes.in_pass
        room = max(FEWEST_KEPT_TOKENS, int(left / self.token_bytes.cached))
        return min(self.sizes.kept_text_tokens, room)

    @property
    def read_tokens(self) -> int:
        """Most tokens of texts whose positions are found together, so that the contexts of all are kept."""
        return min(self.sizes.read_tokens, self.kept_text_tokens * 1_000 // 2_048)

    def has_room_for(self, weight_bytes: int) -> bool:
        """Whether other weights fit beside these and leave a third of what is free.

        On a CPU they are mapped from their file.
        """
        return not self._devices or weight_bytes < self._free() * 2 / 3

    def could_hold(self, weight_bytes: int) -> bool:
        """Whether other weights fit in the place of these, with a tenth for the passes."""
        return not self._devices or weight_bytes < (self._free() + self._weight_bytes) * 0.9

    def _free(self) -> int:
        return sum(free_memory(device) for device in self._devices)

    def halving(
        self, run: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item], what: str
    ) -> list[Result]:
        """`run(items)`; where memory is short, of the first half and then of the second, and so on.

        The results, in order.

        `run` must leave nothing behind when it fails. `what` names the items in the log. Where memory was
        short, the budgets are half as large from then on.

        Raises:
            DeviceMemoryError: not even one item fits.
            InfrastructureError: nor could it, since other processes hold much of the GPU.
        """
        results: list[Result] = []
        left = [items]
        while left:
            part = left.pop()
            try:
                results += run(part)
            except (
                RuntimeError
            ) as error:  # torch.OutOfMemoryError is one; the CPU allocator raises a plain one
                if not isinstance(error, torch.OutOfMemoryError) and "not enough memory" not in str(error):
                    raise
                if len(part) == 1:
                    require_own_memory(f"one of {what}")
                    raise DeviceMemoryError(
                        f"expected memory for one of {what}, found too little: {str(error).splitlines()[0]}. "
                        "Choose a device with more memory, TOOLFORMER_DTYPE=bfloat16, or a smaller model."
                    ) from error
            else:
                continue
            # Not within the handler, whose traceback holds what fills the memory.
            if part is items:
                self._usable /= 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            half = len(part) // 2
            logger.warning("out of memory with %d %s at once: going on with %d", len(part), what, half)
            left += [part[half:], part[:half]]
        return results


def give_back() -> None:
    """Return what is free to the system; nothing happens if the C library cannot.

    glibc keeps freed memory, in pieces, where blocks of many sizes come and go. Measured with a SmolLM2
    worker in float32: 100 texts take 1,343 MiB at most, and 1,686 without this.
    """
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)
