"""Attention within the sequences of packed rows, by torch's kernel for sequences of any lengths.

transformers masks the sequences of a row from one another by a dense mask: in a row of 1,024 tokens that holds four
texts each token attends to 1,024 columns, by a slower kernel. The kernel for sequences of any lengths computes a
token's own text alone. It is told where sequences begin, by the names that flash attention has in transformers
(`cu_seq_lens_q`, `max_length_q`), and takes neither dropout nor capped scores. Whether a network gives the
same by it is tried out (`attends_by_lengths`), and batches name their lengths only then (`batches.py`).
"""

import inspect
import itertools
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from toolformer_ops.finetuning.probe import TOLERANCE, Probe, bfloat16_on_gpu, probe

logger = logging.getLogger(__name__)

NAME = "packed_sequences"
"""Under which transformers' layers look the function up."""


LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""What a batch has more that names the lengths of its sequences."""
_REFUSALS = (
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a network or the kernel raises that does not take sequences of any lengths."""


def attends_by_lengths(network: Any, batch: Mapping[str, Any]) -> bool:
    """Whether a network gives the same if its layers attend by lengths instead of a mask; they do so from then on.

    Compared are the loss of a packed batch, which names its lengths, and its gradients. The log says why a network cannot.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    masked = {name: value for name, value in batch.items() if name not in LENGTHS}
    expected = probe(network, masked)
    own_implementation = network.config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention)
    network.config._attn_implementation = NAME
    reason = _why_not(network, batch, expected)
    if not reason:
        return True
    network.config._attn_implementation = own_implementation
    logger.warning("packed sequences attend by a dense mask, which is slower: %s", reason)
    return False


def _why_not(network: Any, batch: Mapping[str, Any], expected: Probe) -> str:
    """Why a network cannot attend by lengths; empty if it can."""
    is_training = network.training
    try:
        difference = probe(network, batch).largest_difference(expected)
        with torch.no_grad(), bfloat16_on_gpu(network):
            network.train()  # with dropout, if it has any
            network(**{name: value for name, value in batch.items() if name != "labels"})
    except torch.OutOfMemoryError:
        raise
    except _REFUSALS as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    finally:
        network.train(is_training)
    if difference <= TOLERANCE:
        return ""
    return f"a loss or a gradient differs by {difference:.2g} of its size, at most {TOLERANCE:g} is rounding"


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function of a layer's attention: (rows, heads, tokens, width) in, (rows, tokens, heads, width) out.

    Raises:
        NotImplementedError: the layer wants what the kernel cannot do.
    """
    wanted = {
        "dropout": dropout,
        "capped scores": softcap,
        "sinks": s_aux is not None,
        "a mask": attention_mask is not None,
        "attention in both directions": not getattr(module, "is_causal", True),
    }
    if lacking := [name for name, is_wanted in wanted.items() if is_wanted]:
        raise NotImplementedError(f"the kernel for sequences of any lengths has no {', '.join(lacking)}")
    rows, _heads, tokens, _width = query.shape
    if cu_seq_lens_q is None or max_length_q is None:
        cu_seq_lens_q = torch.arange(rows + 1, dtype=torch.int32, device=query.device) * tokens
        max_length_q = tokens
    # 1. Tokens of all rows, one after the other: (token, heads, width). Rotary positions are float32 under autocast.
    queries, keys, values = (
        part.transpose(1, 2).flatten(0, 1).to(value.dtype) for part in (query, key, value)
    )
    # 2. The kernel; where it does not compute in a number format, each sequence by itself.
    window = -1 if sliding_window is None else sliding_window - 1
    if query.device.type == "cuda" and value.dtype in (torch.bfloat16, torch.float16):
        attended = _by_kernel(queries, keys, values, cu_seq_lens_q, max_length_q, scaling, window)
    else:
        attended = _one_by_one(queries, keys, values, cu_seq_lens_q, scaling, window)
    return attended.view(rows, tokens, *attended.shape[1:]), None


def _by_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    begins: Tensor,
    longest: int,
    scaling: float | None,
    window: int,
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {"scale": scaling, "window_size": (window, 0)}
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:  # before torch 2.13 it needs no word
        options["enable_gqa"] = query.shape[1] != key.shape[1]
    attended = varlen_attn(query, key, value, begins, begins, longest, longest, **options)
    assert isinstance(attended, Tensor)  # noqa: S101 - a pair where log-sums are asked for
    return attended


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, begins: Tensor, scaling: float | None, window: int
) -> Tensor:
    """What the kernel gives, by scaled_dot_product_attention of each sequence: (token, heads, width) in and out."""
    attended = []
    places = begins.tolist()
    shares_keys = query.shape[1] != key.shape[1]
    for first, end in itertools.pairwise(places):
        queries, keys, values = (part[first:end].transpose(0, 1)[None] for part in (query, key, value))
        tokens = torch.arange(end - first, device=query.device)
        distances = tokens[:, None] - tokens[None, :]
        is_seen = distances >= 0
        if window >= 0:
            is_seen &= distances <= window
        one = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=is_seen, scale=scaling, enable_gqa=shares_keys
        )
        attended.append(one[0].transpose(0, 1))
    return torch.cat(attended)
