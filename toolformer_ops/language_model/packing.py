"""Passes without padding: sequences one behind the other as one row of tokens, each attending to itself alone.

Every operation of a network but attention treats tokens one by one, so sequences of any lengths share a pass. Attention is
computed

- on a CPU sequence by sequence, and tokens with which several sequences begin are in the pass once: those of a call whose result
  differs, and the start token. A sequence's numbers depend on its own tokens alone, bit for bit. This needs operations that give a
  row the same bits in every company. Measured: matrix products do so from four rows on, so passes are padded to a multiple of
  `ROW_MULTIPLE` tokens; torch's attention does so for sequences of multiples of 16 tokens up to 191, of which it takes 32 at a
  time, so that sequences are padded to such multiples there, and longer ones share nothing;
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

LONGEST_SHARED = 176
"""Sequences of so many tokens, or fewer, share the tokens with which they begin."""


def fill_passes(sequences: Sequence[Sequence[int]], at_most: int, *, share: bool) -> Iterator[list[int]]:
    """Indices of the sequences of each pass of at most `at_most` tokens: passes of about equal size.

    Sequences that begin alike are next to each other; with `share` the tokens that they share count once.
    """
    order = sorted(range(len(sequences)), key=lambda index: (tuple(sequences[index]), index))
    own = [
        len(sequences[index]) - (_shared_tokens(sequences[before], sequences[index]) if share else 0)
        for before, index in itertools.pairwise(order)
    ]
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
    """How many of a sequence's first tokens are those of the one before it, leaving at least one of its own."""
    if max(len(before), len(sequence)) > LONGEST_SHARED:
        return 0
    alike = zip(before, sequence[:-1], strict=False)
    return next(
        (place for place, (one, other) in enumerate(alike) if one != other), min(len(before), len(sequence) - 1)
    )


class PackedSequences:
    """Sequences of one pass; with `share`, tokens with which a sequence and the one before it begin are in it once."""

    def __init__(self, sequences: Sequence[Sequence[int]], *, share: bool) -> None:
        self.places: list[list[int]] = []
        """Of each sequence, which token of the pass each of its tokens is."""
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
            padded += [*self.places[-1], *[new[0]] * (-len(sequence) % ROW_MULTIPLE)]
        filler = -len(ids) % ROW_MULTIPLE  # tokens that nothing attends to
        self.ids = torch.tensor([*ids, *ids[:1] * filler])  # (tokens,)
        self.positions = torch.tensor([*positions, *[0] * filler])  # (tokens,)
        self._lengths = [len(sequence) for sequence in sequences]
        self._padded = torch.tensor(padded)
        self._added = torch.tensor([*added, *[0] * filler])
        self._filler = filler
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
        device = queries.device
        if takes_variable_lengths(device, queries.dtype, softcap):
            lengths = [*self._lengths, self._filler] if self._filler else self._lengths
            if device not in self._ends_on_device:
                ends = [0, *itertools.accumulate(lengths)]
                self._ends_on_device[device] = torch.tensor(ends, dtype=torch.int32, device=device)
            ends_there = self._ends_on_device[device]
            return _variable_lengths(queries, keys, values, ends_there, max(lengths), window, scale)
        lengths = [length + -length % ROW_MULTIPLE for length in self._lengths]
        asked, known, mixed_in = (
            tensor.index_select(0, self._padded).split(lengths)  # type: ignore[no-untyped-call]
            for tensor in (queries, keys, values)
        )
        of_sequences = [
            _one_sequence(own_queries, own_keys, own_values, window, scale, softcap)
            for own_queries, own_keys, own_values in zip(asked, known, mixed_in, strict=True)
        ]
        return torch.cat(of_sequences).index_select(0, self._added)


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
