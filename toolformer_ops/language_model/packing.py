"""Passes in parts: the tokens that attend together, and sequences that share a pass without padding.

The tokens of a part attend to keys that only this part knows: a part is what one group of a KV cache adds
(`attention.py`), or sequences without a cache (`PackedSequences`). `PartedAttention` takes the place of
attention in a network's layers, once for each network: transformers calls it through its attention interface,
GPT-J's layers in the place of their method `_attn`.

Packed sequences are one after the other in one row of tokens, each seen by itself alone.

Every operation of a network but attention treats tokens one by one, so sequences of any lengths share a pass.
Attention is computed

- on a CPU sequence by sequence, and tokens with which several sequences begin are in the pass once: those of
  a call whose result differs, and the start token. A sequence's numbers depend on its own tokens alone, bit
  for bit. This needs operations that give a row the same bits in every company. Measured: matrix products do
  so from four rows on, so passes are padded to a multiple of
  `ROW_MULTIPLE` tokens; torch's attention does so for sequences of multiples of 16 tokens up to 191, of which
  it takes 32 at a time, so that sequences are padded to such multiples there, and longer ones share nothing;
- on a GPU in bfloat16 and float16 by one kernel for all sequences of any lengths (`variable_lengths`); in
  float32, and in networks that cap their scores, for which there is no such kernel, sequences of similar
  lengths together, padded at their ends (`_Bucket`). Attention is causal, so that no token sees the padding;
  there are as many sets of operations as lengths have powers of two, however many sequences there are.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

_NAME = "toolformer_ops"
"""Of the engine's attention, for transformers."""
ROW_MULTIPLE = 16
"""A CPU's passes are padded to a multiple of so many rows, or tokens of packed sequences."""
LARGEST_WIDTH = 256
"""The width of a head up to which there is a kernel of attention over sequences of any lengths."""
MOST_SCORES = 2**26
"""Scores of sequences that are held together where they are capped: 256 MiB in float32."""
LONGEST_SHARED = 176
"""Sequences of so many tokens, or fewer, share the tokens with which they begin."""


@dataclass(frozen=True)
class Heads:
    """What a layer's projections give for the new tokens."""

    queries: Tensor
    """(tokens, heads, width)."""
    keys: Tensor
    """(tokens, key heads, width)."""
    values: Tensor
    """(tokens, key heads, width)."""

    def of(self, tokens: slice) -> "Heads":
        """The queries, keys and values of some tokens."""
        return Heads(self.queries[tokens], self.keys[tokens], self.values[tokens])


class AttentionPart(Protocol):
    """Tokens of a pass, one after the other, that attend together."""

    @property
    def tokens(self) -> int:
        """How many there are."""
        ...

    @property
    def positions(self) -> np.ndarray:
        """(tokens,) of each token in its sequence."""
        ...

    def attend(
        self, layer: int, heads: Heads, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Attention of the tokens in a layer, (tokens, heads, width); a cache takes in their keys and values.

        `scale` multiplies scores; `softcap` bounds them; with `window` a token sees so many tokens, itself
        included.
        """
        ...


class PartedAttention:
    """The attention of one network's layers: that of the parts of the pass that is under way."""

    def __init__(self, network: Any, config: Any, *, slides: bool, beat: Callable[[], None]) -> None:
        """Take the place of attention in all layers of `network`, for good; `config` is its decoder's.

        `slides`: whether a layer forgets within the model's window. `beat` is called by each layer.
        """
        self.slides = slides
        self.beat = beat
        self.parts: Sequence[AttentionPart] = ()
        """Those of the pass that is under way."""
        _register()
        config._attn_implementation = _NAME
        for module in network.modules():
            module.parted_attention = self
            if hasattr(module, "_attn") and hasattr(module, "scale_attn"):
                module._attn = functools.partial(_attend_as_gptj, module)

    @contextmanager
    def over(self, parts: Sequence[AttentionPart]) -> Iterator[None]:
        """Layers attend by these parts meanwhile."""
        self.parts = parts
        try:
            yield
        finally:
            self.parts = ()


@functools.cache
def _register() -> None:
    """Make the function known to transformers, once in a process."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_NAME, _attend_in_layer)


def _attend_in_layer(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of all tokens of the pass; those after the last part's attend to nothing.

    As transformers' interface has it: from (1, heads, tokens, width) to (1, tokens, heads, width).
    """
    attention: PartedAttention = module.parted_attention
    if not attention.parts:
        raise RuntimeError("expected a pass of the engine, found the network's own, which has no attention")
    attention.beat()
    heads = Heads(query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = sliding_window if attention.slides else None
    layer = module.layer_idx
    if attention.parts[0].tokens == len(heads.queries):
        mixed = attention.parts[0].attend(layer, heads, scale=scale, window=window, softcap=softcap)
        return mixed[None], None
    mixed, end = heads.queries.new_zeros((*heads.queries.shape[:2], heads.values.shape[-1])), 0
    for part in attention.parts:
        own = slice(end, end + part.tokens)
        mixed[own] = part.attend(layer, heads.of(own), scale=scale, window=window, softcap=softcap)
        end = own.stop
    return mixed[None], None


def _attend_as_gptj(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, None]:
    """As GPT-J's own method, from and to (1, heads, tokens, width)."""
    mixed, _ = _attend_in_layer(module, query, key, value, mask, scaling=1.0 / float(module.scale_attn))
    return mixed.transpose(1, 2), None


def fill_passes(sequences: Sequence[Sequence[int]], at_most: int, *, share: bool) -> Iterator[list[int]]:
    """Indices of the sequences of each pass of at most `at_most` tokens: passes of about equal size.

    Sequences that begin alike are next to each other; with `share` the tokens that they share count once.
    """
    order = sorted(range(len(sequences)), key=lambda index: (tuple(sequences[index]), index))
    own = []
    for before, index in itertools.pairwise(order):
        shared = _shared_tokens(sequences[before], sequences[index]) if share else 0
        own.append(len(sequences[index]) - shared)
    total = sum(own) + sum(len(sequences[index]) for index in order[:1])
    even = total / max(1, -(-total // at_most))
    batch: list[int] = []
    tokens = 0
    for index, added in zip(order, [0, *own], strict=False):
        if batch and (tokens + added > at_most or tokens >= even):
            yield batch
            batch, tokens = [], 0
        tokens += added if batch else len(sequences[index])
        batch.append(index)
    if batch:
        yield batch


def _shared_tokens(before: Sequence[int], sequence: Sequence[int]) -> int:
    """How many of a sequence's first tokens the sequence before it begins with, too.

    At least one token is left as its own.
    """
    if max(len(before), len(sequence)) > LONGEST_SHARED:
        return 0
    alike = zip(before, sequence[:-1], strict=False)
    return next(
        (place for place, (one, other) in enumerate(alike) if one != other),
        min(len(before), len(sequence) - 1),
    )


def consecutive_parts(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Consecutive numbers of items of these lengths, in parts.

    A part is at most `most` long, or a single item.
    """
    parts: list[list[int]] = []
    together = 0
    for number, length in enumerate(lengths):
        if not parts or together + length > most:
            parts.append([])
            together = 0
        parts[-1].append(number)
        together += length
    return parts


def padded_parts(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Divide items that are padded to the longest of their part.

    The number of a part's items times its longest is at most `most`.
    """
    parts: list[list[int]] = []
    longest = 0
    for number, length in enumerate(lengths):
        longest = max(longest, length)
        if not parts or (len(parts[-1]) + 1) * longest > most:
            parts.append([])
            longest = length
        parts[-1].append(number)
    return parts


class PackedSequences:
    """Sequences of one pass.

    With `share`, tokens with which a sequence and the one before it begin are in it once. An `AttentionPart`.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], *, share: bool) -> None:
        self.places: list[list[int]] = []
        """For each sequence, which token of the pass each of its tokens is."""
        multiple = ROW_MULTIPLE if share else 1
        ids: list[int] = []
        positions: list[int] = []
        padded: list[int] = []  # of each sequence, as it is attended to, the tokens of the pass
        added: list[int] = []  # of each token of the pass, where it is in them
        for number, sequence in enumerate(sequences):
            shared = _shared_tokens(sequences[number - 1], sequence) if share and number else 0
            new = range(len(ids), len(ids) + len(sequence) - shared)
            self.places.append([*(self.places[-1][:shared] if shared else ()), *new])
            ids += sequence[shared:]
            positions += range(shared, len(sequence))
            added += range(len(padded) + shared, len(padded) + len(sequence))
            padded += [*self.places[-1], *[new[0]] * (-len(sequence) % multiple)]
        self.ids, self.positions = np.array(ids), np.array(positions)  # (tokens,) each
        self._lengths = [len(sequence) + -len(sequence) % multiple for sequence in sequences]
        self._padded = torch.tensor(padded) if share else None
        self._added = torch.tensor(added)
        self._ranges: dict[torch.device, Ranges] = {}  # layers may be on several
        self._buckets: dict[torch.device, list[_Bucket]] = {}

    @property
    def tokens(self) -> int:
        """How many the pass has."""
        return len(self.ids)

    def attend(
        self, layer: int, heads: Heads, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Causal attention of each sequence, (tokens, heads, width)."""
        queries, keys, values = heads.queries, heads.keys, heads.values
        device = queries.device
        if takes_variable_lengths(device, queries.dtype, queries.shape[-1], softcap):
            if device not in self._ranges:
                ends = torch.tensor(
                    [0, *itertools.accumulate(self._lengths)], dtype=torch.int32, device=device
                )
                self._ranges[device] = Ranges(ends, ends, None, max(self._lengths), max(self._lengths))
            mixed = torch.empty_like(queries)
            variable_lengths(mixed, queries, keys, values, self._ranges[device], scale, window, causal=True)
            return mixed
        if self._padded is None:
            return self._in_buckets(heads, window, scale, softcap)
        padded_queries, padded_keys, padded_values = (
            tensor.index_select(0, self._padded).split(self._lengths)  # type: ignore[no-untyped-call]
            for tensor in (queries, keys, values)
        )
        attended = []
        for own_queries, own_keys, own_values in zip(padded_queries, padded_keys, padded_values, strict=True):
            own = _attention(own_queries[None], own_keys[None], own_values[None], window, scale, softcap)
            attended.append(own[0])
        return torch.cat(attended).index_select(0, self._added)

    def _in_buckets(self, heads: Heads, window: int | None, scale: float, softcap: float | None) -> Tensor:
        """Causal attention of each sequence, (tokens, heads, width); similar lengths together."""
        device = heads.queries.device
        if device not in self._buckets:
            self._buckets[device] = buckets_of(self._lengths, device)
        # The heads of keys, of which several heads of queries share one: kernels for float32 know no sharing.
        shared = heads.queries.shape[1] // heads.keys.shape[1]
        keys, values = (tensor.repeat_interleave(shared, dim=1) for tensor in (heads.keys, heads.values))
        mixed = torch.empty_like(heads.queries)
        for bucket in self._buckets[device]:
            together = _attention(
                heads.queries[bucket.tokens],
                keys[bucket.tokens],
                values[bucket.tokens],
                window,
                scale,
                softcap,
            )  # (sequences, longest, heads, width)
            mixed[bucket.own] = together.flatten(0, 1)[bucket.rows]
        return mixed


@dataclass(frozen=True)
class _Bucket:
    """Sequences whose lengths have the same power of two: padding less than doubles their tokens."""

    tokens: Tensor
    """(sequences, longest) of each place the token of the pass; after a sequence's end its last token
    again."""
    own: Tensor
    """(tokens,) the tokens of the pass that are in the bucket."""
    rows: Tensor
    """(tokens,) where each of them is among the places, row by row."""


def buckets_of(lengths: Sequence[int], device: torch.device) -> list[_Bucket]:
    """The buckets of sequences of these lengths that are in a pass one after the other."""
    starts = [0, *itertools.accumulate(lengths)]
    by_power: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        by_power.setdefault(length.bit_length(), []).append(number)
    buckets: list[_Bucket] = []
    for numbers in by_power.values():
        longest = max(lengths[number] for number in numbers)
        own_lengths = np.array([lengths[number] for number in numbers])[:, None]  # (sequences, 1)
        first = np.array([starts[number] for number in numbers])[:, None]
        places = np.arange(longest)[None]
        tokens = first + np.minimum(places, own_lengths - 1)  # (sequences, longest)
        is_own = places < own_lengths
        buckets.append(
            _Bucket(
                tokens=torch.from_numpy(tokens).to(device),
                own=torch.from_numpy(tokens[is_own]).to(device),
                rows=torch.from_numpy(np.flatnonzero(is_own)).to(device),
            )
        )
    return buckets


def takes_variable_lengths(
    device: torch.device, dtype: torch.dtype, width: int, softcap: float | None
) -> bool:
    """Whether a kernel attends to sequences of any lengths, with heads of this width.

    That is flash attention, from NVIDIA's Ampere on.
    """
    fits = (
        dtype in (torch.bfloat16, torch.float16) and width % 8 == 0 and width <= LARGEST_WIDTH and not softcap
    )
    return fits and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


@dataclass(frozen=True)
class Ranges:
    """Sequences of queries, one after the other, and the range of keys that each attends to.

    All tensors are int32.
    """

    ends: Tensor
    """(sequences + 1,) where each sequence of queries begins, and where the last one ends."""
    starts: Tensor
    """(sequences + 1,) where each range of keys begins; the last number is read only if `lengths` is None."""
    lengths: Tensor | None
    """(sequences,) keys of each range; None if each ends at the next one's start."""
    most_queries: int
    most_keys: int


def variable_lengths(
    mixed: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    ranges: Ranges,
    scale: float,
    window: int | None,
    *,
    causal: bool,
) -> Tensor:
    """Write the attention of each sequence, (tokens, heads, width), into `mixed`, by one kernel.

    Returns its log-sum-exp, (heads, tokens). With `causal` the last query is at the place of the last key. If
    a range is empty, `mixed` is 0 and the log-sum-exp +inf.

    Ranges may overlap, and begin in any order: torch documents starts as lengths added up, and its kernel
    (flash attention 2, torch 2.13) reads a range's start alone where lengths are given; the comparison at
    load would find another one. Keys are not split among blocks of threads (`num_splits`), so the result for
    a sequence does not depend on the others.
    """
    from torch.nn.attention.varlen import AuxRequest, varlen_attn_out

    _, lse = varlen_attn_out(
        mixed,
        queries,
        keys,
        values,
        ranges.ends,
        ranges.starts,
        # At least 2: if each sequence has one query and heads share keys, torch 2.13 writes to a copy of
        # `mixed` instead.
        max(2, ranges.most_queries),
        ranges.most_keys,
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0 if causal else -1),
        enable_gqa=queries.shape[1] != keys.shape[1],
        seqused_k=ranges.lengths,
        num_splits=1,
    )
    return cast(Tensor, lse)


def _attention(
    queries: Tensor, keys: Tensor, values: Tensor, window: int | None, scale: float, softcap: float | None
) -> Tensor:
    """Causal attention of sequences of one length, (sequences, tokens, heads, width)."""
    tokens = queries.shape[1]
    head_queries, head_keys, head_values = (
        tensor.transpose(1, 2) for tensor in (queries, keys, values)
    )  # (sequences, heads, tokens, width)
    grouped = queries.shape[2] != keys.shape[2]
    if not softcap and (window is None or tokens <= window):
        plain = functional.scaled_dot_product_attention(
            head_queries, head_keys, head_values, is_causal=True, scale=scale, enable_gqa=grouped
        )
        return plain.transpose(1, 2)
    places = torch.arange(tokens, device=queries.device)
    distance = places[:, None] - places[None, :]  # (tokens, tokens)
    seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    if not softcap:
        near = functional.scaled_dot_product_attention(
            head_queries, head_keys, head_values, attn_mask=seen, scale=scale, enable_gqa=grouped
        )
        return near.transpose(1, 2)
    shared = queries.shape[2] // keys.shape[2]
    if shared > 1:
        head_keys, head_values = (
            tensor.repeat_interleave(shared, dim=1) for tensor in (head_keys, head_values)
        )
    together = max(1, MOST_SCORES // (head_queries.shape[1] * tokens * tokens))
    parts = [slice(first, first + together) for first in range(0, len(head_queries), together)]
    return torch.cat(
        [
            _capped(head_queries[part], head_keys[part], head_values[part], seen, scale, softcap)
            for part in parts
        ]
    ).transpose(1, 2)


def _capped(
    queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float, softcap: float
) -> Tensor:
    """Attention with capped scores, (sequences, heads, tokens, width)."""
    scores = (queries @ keys.transpose(2, 3)).float() * scale  # (sequences, heads, tokens, tokens)
    scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, torch.finfo(torch.float32).min)
    return scores.softmax(dim=-1).to(queries.dtype) @ values
