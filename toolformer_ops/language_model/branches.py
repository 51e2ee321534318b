"""Key-value caches that branch: rows that continue one shared row, each from where it likes.

`CachedBranches` keeps one row of cached columns, and rows (branches) that each see a subset of them; one at position i sees the
columns before i and its own. Nothing is padded. Each query gets its mask and its position; layers with a sliding window get a
mask that also looks at the distance, and all layers keep all columns, since a cropped cache would forget what an earlier
branch still sees.

`RecomputedBranches` computes every row from its first token, for networks whose cache cannot be shared: slower, same numbers.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from toolformer_ops.language_model.trees import Columns

if TYPE_CHECKING:
    from toolformer_ops.language_model.causal_model import CausalModel


class Branches(Protocol):
    """Rows that share cached columns; see the module's docstring."""

    def extend(self, tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """Append `tokens[r]` to row r, at least one each; returns their hidden states, (tokens, hidden) a row."""
        ...

    def kept(self, rows: Sequence[int]) -> "Branches":
        """Branches that continue `rows` in that order, for a caller who needs the original no more; itself where those are all."""
        ...

    def fork(self, rows: Sequence[int], lengths: Sequence[int] | None = None) -> "Branches":
        """New branches, the n-th continuing row `rows[n]`, of which it keeps the first `lengths[n]` tokens (or all).

        The original stays as it is. `lengths` may be given only while there is a single row.
        """
        ...


class CachedBranches:
    """Branches over one shared key-value cache, with one mask row a query."""

    def __init__(
        self, model: "CausalModel", cache: Any, visible: Tensor, columns: Tensor, next_positions: Tensor
    ) -> None:
        self._model = model
        self._cache = cache
        self._visible = visible  # (rows, columns) bool: which cached tokens a row continues
        self._columns = columns  # (columns,) position of each cached token in its own sequence
        self._next = next_positions  # (rows,) position of a row's next token

    @classmethod
    def empty(cls, model: "CausalModel") -> "CachedBranches":
        """One row without tokens."""
        from transformers import DynamicCache

        device = model.device
        none = torch.zeros(0, dtype=torch.long, device=device)
        visible = torch.zeros(1, 0, dtype=torch.bool, device=device)
        return cls(model, DynamicCache(), visible, none, torch.zeros(1, dtype=torch.long, device=device))

    def extend(self, tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """See `Branches.extend`."""
        device = self._model.device
        lengths = [len(row) for row in tokens]
        ids = torch.tensor([[token for row in tokens for token in row]], device=device)  # (1, queries)
        rows = torch.repeat_interleave(torch.arange(len(tokens), device=device), torch.tensor(lengths, device=device))
        steps = torch.cat([torch.arange(length, device=device) for length in lengths])  # (queries,)
        positions = self._next[rows] + steps  # (queries,)
        same_row = rows[:, None] == rows[None, :]
        seen_new = same_row & (steps[None, :] <= steps[:, None])  # (queries, queries)
        seen = torch.cat([self._visible[rows], seen_new], dim=1)  # (queries, columns + queries)
        self._columns = torch.cat([self._columns, positions])
        hidden = self._model._decoder(
            input_ids=ids,
            attention_mask=self._masks(seen, positions),
            position_ids=positions[None],
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state[0]  # (queries, hidden)
        own = torch.arange(len(tokens), device=device)[:, None] == rows[None, :]  # (rows, queries)
        self._visible = torch.cat([self._visible, own], dim=1)
        self._next = self._next + torch.tensor(lengths, device=device)
        return list(hidden.split(lengths))

    def kept(self, rows: Sequence[int]) -> "CachedBranches":
        """See `Branches.kept`."""
        return self if list(rows) == list(range(self._visible.shape[0])) else self.fork(rows)

    def fork(self, rows: Sequence[int], lengths: Sequence[int] | None = None) -> "CachedBranches":
        """See `Branches.fork`. Columns that no branch sees are left behind."""
        from transformers import DynamicCache

        index = torch.tensor(list(rows), device=self._model.device)
        visible, following = self._visible[index], self._next[index]
        if lengths is not None:
            if self._visible.shape[0] != 1:
                raise ValueError(f"expected a single row to cut at lengths, found {self._visible.shape[0]} rows")
            following = torch.tensor(list(lengths), device=self._model.device)
            visible = visible & (self._columns[None, :] < following[:, None])
        wanted = visible.any(dim=0).nonzero()[:, 0]  # (kept columns,)
        complete = len(wanted) == visible.shape[1]
        cache = DynamicCache()
        for layer, cached in enumerate(self._cache.layers):
            keys, values = cached.keys, cached.values  # (1, heads, columns, width)
            if not complete:
                keys, values = keys.index_select(2, wanted), values.index_select(2, wanted)
            cache.update(keys, values, layer)
        return CachedBranches(self._model, cache, visible[:, wanted], self._columns[wanted], following)

    def columns(self, first: int, end: int | None = None) -> Columns:
        """Copies of the cached columns from `first` to `end` (exclusive)."""
        return [
            (layer.keys[0][:, first:end].clone(), layer.values[0][:, first:end].clone()) for layer in self._cache.layers
        ]

    def views(self) -> Columns:
        """All cached columns, not copied."""
        return [(layer.keys[0], layer.values[0]) for layer in self._cache.layers]

    def continued(self, columns: Columns) -> "CachedBranches":
        """A single row, with columns that were copied from one that had been extended from here."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, ((keys, values), more) in enumerate(
            zip(columns, self._cache.layers or [None] * len(columns), strict=True)
        ):
            before = [] if more is None else [(more.keys, more.values)]
            pieces = [*before, (keys[None], values[None])]
            cache.update(torch.cat([k for k, _ in pieces], 2), torch.cat([v for _, v in pieces], 2), layer)
        added = columns[0][0].shape[1]
        device = self._model.device
        positions = torch.cat([self._columns, self._next[:1] + torch.arange(added, device=device)])
        visible = torch.cat([self._visible, torch.ones(1, added, dtype=torch.bool, device=device)], dim=1)
        return CachedBranches(self._model, cache, visible, positions, self._next + added)

    def _masks(self, seen: Tensor, positions: Tensor) -> Any:
        """What to add to attention scores, (1, 1, queries, columns): 0 where a query may look; by layer kind if there are two."""
        full = self._additive(seen)
        window = self._model.sliding_window
        if window is None:
            return full
        near = positions[:, None] - self._columns[None, :] < window  # (queries, columns)
        sliding = self._additive(seen & near)
        if getattr(self._model.config, "layer_types", None):
            return {"full_attention": full, "sliding_attention": sliding}
        return sliding

    def _additive(self, seen: Tensor) -> Tensor:
        mask = torch.zeros(seen.shape, dtype=self._model.dtype, device=seen.device)
        return mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)[None, None]


class RecomputedBranches:
    """Branches that run each row from its first token at every step: slow, for architectures whose cache cannot be shared."""

    def __init__(self, model: "CausalModel", sequences: list[list[int]]) -> None:
        self._model = model
        self._sequences = sequences

    def extend(self, tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """See `Branches.extend`."""
        for sequence, row in zip(self._sequences, tokens, strict=True):
            sequence.extend(row)
        hidden = self._model.hidden_states(self._sequences)
        return [states[-len(row) :] for states, row in zip(hidden, tokens, strict=True)]

    def kept(self, rows: Sequence[int]) -> "RecomputedBranches":
        """See `Branches.kept`."""
        return self if list(rows) == list(range(len(self._sequences))) else self.fork(rows)

    def fork(self, rows: Sequence[int], lengths: Sequence[int] | None = None) -> "RecomputedBranches":
        """See `Branches.fork`."""
        kept = [None] * len(rows) if lengths is None else list(lengths)
        return RecomputedBranches(
            self._model, [self._sequences[row][:length] for row, length in zip(rows, kept, strict=True)]
        )
