"""Passes without padding: sequences one behind the other as one row of tokens, each attending to itself alone.

Every operation of a network but attention treats tokens one by one, so sequences of any lengths share a pass. Attention is
computed

- on a CPU sequence by sequence: a sequence's numbers depend on its own tokens alone, bit for bit. This needs matrix products that
  give a row the same bits for any number of rows; measured, they do so from four rows on, so passes are padded to a multiple of
  `ROW_MULTIPLE` tokens;
- on a GPU by one kernel for all sequences of any lengths (flash attention, `torch.nn.attention.varlen`), without split keys, so
  that its result for a sequence does not depend on the others either. Matrix products there may still round differently in another
  batch. This was written without a GPU and has not been run. At load the kernel is compared with torch's plain attention; where it
  differs, passes are padded instead.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from toolformer_ops.language_model.kv_cache import ROW_MULTIPLE


def fill_passes(lengths: Sequence[int], at_most: int) -> Iterator[list[int]]:
    """Indices of the sequences of each pass of at most `at_most` tokens: passes of about equal size, like lengths together."""
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    passes = -(-sum(lengths) // at_most)
    even = sum(lengths) / max(1, passes)
    batch: list[int] = []
    tokens = 0
    for index in order:
        if batch and (tokens + lengths[index] > at_most or tokens >= even):
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch


class PackedSequences:
    """Sequences of one pass."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.lengths = [len(sequence) for sequence in sequences]
        self.starts = [0, *itertools.accumulate(self.lengths)][:-1]
        """Token of the pass with which each sequence begins."""
        ids = [token for sequence in sequences for token in sequence]
        filler = -len(ids) % ROW_MULTIPLE  # a further sequence, of any token
        if filler:
            self.lengths.append(filler)
        self.ids = torch.tensor([*ids, *ids[:1] * filler])  # (tokens,)
        self.positions = torch.cat([torch.arange(length) for length in self.lengths])  # (tokens,)
        self._ends = list(itertools.accumulate(self.lengths))
        self._ends_on_device: dict[torch.device, Tensor] = {}  # layers may be on several

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        window: int | None,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """Causal attention of each sequence, (tokens, heads, width): what `CausalModel.run` calls in every layer."""
        if takes_variable_lengths(queries.device, queries.dtype, softcap):
            device = queries.device
            if device not in self._ends_on_device:
                self._ends_on_device[device] = torch.tensor([0, *self._ends], dtype=torch.int32, device=device)
            ends = self._ends_on_device[device]
            return _variable_lengths(queries, keys, values, ends, max(self.lengths), window, scale)
        return torch.cat(
            [
                _one_sequence(queries[first:end], keys[first:end], values[first:end], window, scale, softcap)
                for first, end in itertools.pairwise([0, *self._ends])
            ]
        )


def takes_variable_lengths(device: torch.device, dtype: torch.dtype, softcap: float | None) -> bool:
    """Whether one kernel attends to sequences of any lengths."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and not softcap


def variable_lengths_agree(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether that kernel gives what torch's attention gives, sequence by sequence, but for rounding."""
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(40, heads, 64, generator=generator).to(device, dtype) for heads in (4, 2, 2))
    ends = torch.tensor([0, 25, 40], dtype=torch.int32, device=device)
    for window in (None, 8):
        together = _variable_lengths(queries, keys, values, ends, 25, window, 0.125)
        alone = [
            _one_sequence(queries[part], keys[part], values[part], window, 0.125, None)
            for part in (slice(0, 25), slice(25, 40))
        ]
        if float((together - torch.cat(alone)).abs().max()) > 0.05:
            return False
    return True


def _variable_lengths(
    queries: Tensor, keys: Tensor, values: Tensor, ends: Tensor, longest: int, window: int | None, scale: float
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    mixed = varlen_attn(
        queries.contiguous(),
        keys.contiguous(),
        values.contiguous(),
        ends,
        ends,
        longest,
        longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=queries.shape[1] != keys.shape[1],
        num_splits=1,
    )
    return cast(Tensor, mixed)


def _one_sequence(
    queries: Tensor, keys: Tensor, values: Tensor, window: int | None, scale: float, softcap: float | None
) -> Tensor:
    """Causal attention of one sequence, (tokens, heads, width)."""
    tokens = len(queries)
    asked, known, mixed_in = (
        tensor.transpose(0, 1)[None] for tensor in (queries, keys, values)
    )  # (1, heads, tokens, width)
    grouped = queries.shape[1] != keys.shape[1]
    if not softcap and (window is None or tokens <= window):
        plain = functional.scaled_dot_product_attention(
            asked, known, mixed_in, is_causal=True, scale=scale, enable_gqa=grouped
        )
        return plain[0].transpose(0, 1)
    places = torch.arange(tokens, device=queries.device)
    distance = places[:, None] - places[None, :]  # (tokens, tokens)
    seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    if not softcap:
        near = functional.scaled_dot_product_attention(
            asked, known, mixed_in, attn_mask=seen, scale=scale, enable_gqa=grouped
        )
        return near[0].transpose(0, 1)
    shared = queries.shape[1] // keys.shape[1]
    known, mixed_in = (
        tensor[0].repeat_interleave(shared, dim=0) for tensor in (known, mixed_in)
    )  # (heads, tokens, width)
    scores = (asked[0] @ known.transpose(1, 2)).float() * scale  # (heads, tokens, tokens)
    scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, torch.finfo(torch.float32).min)
    return (scores.softmax(dim=-1).to(queries.dtype) @ mixed_in).transpose(0, 1)
