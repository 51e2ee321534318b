"""Attention over sequences of any lengths on a torch before 2.13, which has the kernel but not the function that the engine calls.

`torch.nn.attention.varlen.varlen_attn_out` came with torch 2.13. Older ones have the same kernel of flash attention
as `aten._flash_attention_forward`, so a stand-in over it lets the engine take its path there. It copies the result
once more than the real one. Nothing is put in place where torch has the function itself, or lacks the kernel.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

REAL = "torch's varlen_attn_out"
STAND_IN = (
    "a stand-in over aten._flash_attention_forward: torch lacks varlen_attn_out; a copy of each result more"
)
NONE = "none: torch lacks varlen_attn_out and aten._flash_attention_forward"
_UNBOUNDED = (-1, -1)
"""A window without ends."""


class LogSumExpRequest(NamedTuple):
    """What the engine asks for beside the result, as `AuxRequest` of torch 2.13 has it."""

    lse: bool = False


def provide_varlen() -> str:
    """Put the stand-in in place if torch lacks the function; says in words what the engine then calls."""
    try:
        import torch.nn.attention.varlen as module
    except ImportError:
        return NONE
    if hasattr(module, "varlen_attn_out"):
        return REAL
    if not hasattr(torch.ops.aten, "_flash_attention_forward"):
        return NONE
    module.varlen_attn_out = flash_attention_out  # type: ignore[assignment]
    if not hasattr(module, "AuxRequest"):
        module.AuxRequest = LogSumExpRequest  # type: ignore[misc, assignment]
    return STAND_IN


def flash_attention_out(
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
    window_size: tuple[int, int] = _UNBOUNDED,
    seqused_k: Tensor | None = None,
    **_: Any,
) -> Any:
    """As `varlen_attn_out` of torch 2.13, which has further arguments.

    `enable_gqa` needs no word to this kernel, whose keys may have fewer heads. `num_splits` is not handed on, since
    2.11 does not know it; that kernel splits no keys where a sequence has two queries or more, which the engine says of
    every sequence.
    """
    left, right = window_size
    window = {} if window_size == _UNBOUNDED else {"window_size_left": left, "window_size_right": right}
    result, log_sum_exp, *_rest = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        0.0,  # dropout
        window_size == (-1, 0),  # causal
        False,  # no mask to debug with
        scale=scale,
        seqused_k=seqused_k,
        **window,
    )
    out.copy_(result)
    return (out, log_sum_exp) if return_aux is not None and return_aux.lse else out
