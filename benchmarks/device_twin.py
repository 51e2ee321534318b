"""A stand-in for a GPU: tensors that say they are on `cuda:0`, hold their data in main memory, and count what a GPU would do.

A CPU forgives what a GPU does not: tensors of two devices in one operation, numbers that the host reads in
the midst of a pass. A `Twin` refuses the first as CUDA does and counts the second, so the engine's path on
a GPU runs, and is counted, without one:

    launches   operations but views and allocations; a kernel of attention over sequences of any lengths,
               `varlen_attn`, is one
    copies     from the host to the device, an index on the CPU that CUDA accepts among them
    reads      from the device to the host, each of which waits for all launches before it

`torch.nn.attention.varlen` has kernels for a GPU alone. Its stand-in first asks for what the kernel of torch
2.13 asks for (flash attention 2, `flash_api.cpp`), then computes in float32 and rounds the result once.

`torch.compile` has a stand-in, too: the function itself, of which all operations between two matrix products
count as one launch, `compiled`.

What it does not say: how long anything takes, which kernels CUDA chooses, and how these round.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from toolformer_ops.language_model import compiled

DEVICE = torch.device("cuda:0")
GIBIBYTE = 2**30
ALLOCATIONS = (
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "detach",
    "lift_fresh",
)
NOT_LAUNCHED = (*ALLOCATIONS, "_unsafe_view", "_fused_sdp_choice", "_has_compatible_shallow_copy_type")
READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "equal", "is_nonzero")
KERNEL_FORMATS: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
"""Of the kernel of variable-length attention; a test may let its stand-in take float32, to compare without
rounding."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")


@dataclass
class Counts:
    """What the device was asked for since the twin's block began, or since `clear`."""

    launches: collections.Counter[str] = field(default_factory=collections.Counter)
    copies: int = 0
    reads: int = 0
    fuses: bool = False
    """Whether a compiled function is under way."""
    _in_kernel: bool = False
    """Whether its last operation belongs to a kernel that takes in the next one."""

    def clear(self) -> None:
        """Begin anew."""
        self.launches.clear()
        self.copies = self.reads = 0

    def launch(self, name: str) -> None:
        """Count an operation; of a compiled function those between two matrix products are one."""
        if not self.fuses or name in PRODUCTS:
            self.launches[name] += 1
            self._in_kernel = False
        elif not self._in_kernel:
            self.launches["compiled"] += 1
            self._in_kernel = True

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """A compiled function is under way."""
        self.fuses, self._in_kernel = True, False
        try:
            yield
        finally:
            self.fuses = False


_counts = Counts()


class Twin(Tensor):
    """A tensor on the device that is not there.

    Torch's own code takes it for one on the CPU, so only what is dispatched counts.
    """

    held: Tensor

    @staticmethod
    def __new__(cls: type["Twin"], held: Tensor) -> "Twin":
        """Of what it holds."""
        twin = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype
        )
        twin.held = held
        return twin

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    device = property(lambda _: DEVICE)
    is_cuda = property(lambda _: True)
    is_cpu = property(lambda _: False)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Twin({self.held!r})"

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """To another number format, or to the CPU."""
        device, dtype = _asked(args, kwargs)
        if device is not None and device.type == "cpu":
            return self.cpu().to(dtype or self.dtype)
        return self if dtype in (None, self.dtype) else super().to(dtype)

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        """A copy in main memory."""
        _counts.reads += 1
        return self.held.clone()

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        """Itself."""
        return self

    def tolist(self) -> list[Any]:
        """The numbers."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        # What is only a name for other operations, such as a reshape that copies, is counted as those.
        parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        name = func.overloadpacket.__name__
        _refuse_other_devices(func, name, args, kwargs)
        if func is torch.ops.aten.bmm.dtype:
            found = _product_in_float32(*tree_map(_held, args))
        else:
            found = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        if name in READS or (
            name in INDEXING and any(one.dtype == torch.bool for one in args[1] if one is not None)
        ):
            _counts.reads += 1
        if not func.is_view and name not in NOT_LAUNCHED:
            _counts.launch(name)
        if func._schema.is_mutable:  # in place
            return kwargs.get("out", args[0])
        return tree_map(lambda one: Twin(one) if isinstance(one, Tensor) else one, found)


def _product_in_float32(one: Tensor, other: Tensor, out_dtype: torch.dtype) -> Tensor:
    """What CUDA alone has: a batched product of 16 bits with results in float32.

    Raises:
        RuntimeError: CUDA would refuse it.
    """
    if one.dtype not in KERNEL_FORMATS or one.dtype != other.dtype or out_dtype != torch.float32:
        raise RuntimeError("bmm with out_dtype: expected two of bfloat16 or float16, and float32")
    return one.float() @ other.float()


def _held(one: Any) -> Any:
    return one.held if isinstance(one, Twin) else one


def _refuse_other_devices(func: Any, name: str, args: Any, kwargs: Any) -> None:
    """CUDA's rule: all on one device, but for numbers (tensors without dimensions) and for copies and indices, which are copied."""
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)]
    elsewhere = [one for one in tensors if not isinstance(one, Twin)]
    if not elsewhere:
        return
    if name == "copy_":
        if isinstance(args[0], Twin):
            _counts.copies += 1
        else:
            _counts.reads += 1
        return
    if name in INDEXING and isinstance(args[0], Twin):
        indices = [one for one in args[1] if one is not None and not isinstance(one, Twin)]
        _counts.copies += len(indices)
        elsewhere = [one for one in elsewhere if not any(one is index for index in indices) and one.dim()]
    elif torch.Tag.pointwise in func.tags or name == "fill_":
        elsewhere = [one for one in elsewhere if one.dim()]
    if elsewhere:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({name})"
        )


def _asked(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.device | None, torch.dtype | None]:
    """Device and number format that are asked for in a call of `Tensor.to`."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    for one in args:
        if isinstance(one, Tensor):
            device, dtype = one.device, one.dtype
        elif isinstance(one, torch.dtype):
            dtype = one
        elif isinstance(one, str | torch.device):
            device = one
    return (None if device is None else torch.device(device)), dtype


class _OnTheDevice(TorchFunctionMode):
    """Makes twins of what is made on the device or moved there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("to", "cuda") and args and isinstance(args[0], Tensor) and not isinstance(args[0], Twin):
            device, dtype = (DEVICE, None) if name == "cuda" else _asked(args[1:], kwargs)
            if device is not None and device.type == "cuda":
                _counts.copies += 1
                return Twin(args[0].detach().clone().to(dtype or args[0].dtype))
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return func(*args, **kwargs)
        if name in ("tensor", "as_tensor", "asarray"):
            _counts.copies += 1
        elif name not in ALLOCATIONS:
            _counts.launch(name)
        made = func(*tree_map(_held, args), **{**kwargs, "device": "cpu"})
        return Twin(made)


def varlen_attn_out(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    num_splits: int | None = None,
) -> Any:
    """As torch's function of this name: attention of each sequence of queries to its range of keys; the log-sum-exp.

    The shape of the log-sum-exp is (heads, tokens), as the kernel gives it; torch's documentation has it the
    other way round.

    Raises:
        RuntimeError: the kernel would refuse it, or read what is not there.
    """
    tokens, heads, width = query.shape
    key_heads, sequences = key.shape[1], len(cu_seq_q) - 1
    every, lengths = (
        [query, key, value, out],
        [cu_seq_q, cu_seq_k, *([] if seqused_k is None else [seqused_k])],
    )
    ends, starts = (one.held.long() for one in (cu_seq_q, cu_seq_k))  # type: ignore[attr-defined]
    asking = ends.diff()  # (sequences,) queries of each
    known = starts.diff() if seqused_k is None else seqused_k.held.long()  # type: ignore[attr-defined] # (sequences,)
    starts = starts[:-1]
    required = {
        "all tensors on the device": all(isinstance(one, Twin) for one in [*every, *lengths]),
        "one number format": all(one.dtype == query.dtype for one in every),
        "bfloat16 or float16": query.dtype in KERNEL_FORMATS,
        "contiguous int32 lengths": all(one.dtype == torch.int32 and one.is_contiguous() for one in lengths),
        "a contiguous last dimension": all(one.stride(-1) == 1 for one in every),
        "rows that begin at 16 bytes": all(stride % 8 == 0 for one in every for stride in one.stride()[:2]),
        "a width that is a multiple of 8 and at most 256": width % 8 == 0 and width <= 256,
        "enable_gqa where heads share keys": heads % key_heads == 0 and (enable_gqa or heads == key_heads),
        "equal shapes": out.shape == query.shape and value.shape == key.shape and key.shape[2] == width,
        "as many sequences of keys as of queries": len(cu_seq_k) == sequences + 1 and sequences > 0,
        # With one query a sequence and shared keys torch 2.13 works on a reordered copy of `out`, which it
        # does not write back.
        "max_q above 1 where heads share keys and `out` is given": max_q > 1 or heads == key_heads,
        "each query in one sequence": int(ends[0]) == 0
        and int(ends[-1]) == tokens
        and bool((asking >= 0).all()),
        "no sequence longer than max_q and max_k": int(asking.max()) <= max_q and int(known.max()) <= max_k,
        "keys that are there": bool(
            (known >= 0).all() and (starts >= 0).all() and (starts + known <= len(key)).all()
        ),
    }
    if refused := [what for what, holds in required.items() if not holds]:
        raise RuntimeError(f"variable-length attention: expected {', '.join(refused)}")
    _counts.launches["varlen_attn"] += 1

    queries, keys, values = (one.held.float() for one in (query, key, value))  # type: ignore[attr-defined]
    lse = torch.full((heads, tokens), torch.inf)
    left, right = (side if side >= 0 else tokens + len(key) for side in window_size)
    for first, last, start, there in zip(
        ends[:-1].tolist(), ends[1:].tolist(), starts.tolist(), known.tolist(), strict=True
    ):
        if first == last or not there:
            out.held[first:last] = 0.0  # type: ignore[attr-defined]
            continue
        own = slice(start, start + there)
        some_keys, some_values = (
            one[own].repeat_interleave(heads // key_heads, dim=1) for one in (keys, values)
        )
        scores = torch.einsum("qhw,khw->qkh", queries[first:last], some_keys) * (
            width**-0.5 if scale is None else scale
        )
        # Distance of a key from the place of the query, both of which end alike.
        distance = (
            torch.arange(there)[None] - torch.arange(there - (last - first), there)[:, None]
        )  # (queries, keys)
        scores = scores.masked_fill(((distance < -left) | (distance > right))[:, :, None], -torch.inf)
        weights = scores.softmax(dim=1).nan_to_num(0.0)  # all zero for a query that sees nothing
        out.held[first:last] = torch.einsum("qkh,khw->qhw", weights, some_values).to(query.dtype)  # type: ignore[attr-defined]
        found = scores.logsumexp(dim=1).T
        lse[:, first:last] = found.where(found != -torch.inf, torch.inf)
    return (out, Twin(lse)) if return_aux is not None and return_aux.lse else out


def _compile(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """As `torch.compile`, for a function without another one in it: what is between products counts as one launch."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _counts.compiled():
            return function(*args, **kwargs)

    return run


@contextmanager
def device_twin(free_bytes: int = 8 * GIBIBYTE, capability: tuple[int, int] = (8, 0)) -> Iterator[Counts]:
    """Within this block a device `cuda` is there, with so much free memory; yields what it is asked for.

    One block at a time.
    """
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "mem_get_info": lambda *_: (free_bytes, free_bytes),
        "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "get_per_process_memory_fraction": lambda *_: 1.0,
        "empty_cache": lambda: None,
        "get_device_capability": lambda *_: capability,
        "get_device_name": lambda *_: "device twin",
        "synchronize": lambda *_: None,
        "reset_peak_memory_stats": lambda *_: None,
        "max_memory_allocated": lambda *_: 0,
    }
    _counts.clear()
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch("torch.compile", _compile))
        stack.enter_context(mock.patch.object(compiled, "why_not", return_value=""))
        stack.enter_context(mock.patch.dict("os.environ"))
        for cached in (compiled.compiled, compiled.with_globals):
            cached.cache_clear()
            stack.callback(cached.cache_clear)
        stack.enter_context(mock.patch("torch.nn.attention.varlen.varlen_attn_out", varlen_attn_out))
        # A module that moves gets new parameters, not the old ones with another tensor's memory.
        overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwrites)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.enter_context(_OnTheDevice())
        yield _counts
