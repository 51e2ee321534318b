"""A text's rows while they are decoded: shared columns of prompt and text, and those that each row has added. Computes nothing."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_CAPACITY_STEP = 8

Columns = list[tuple[Tensor, Tensor]]
"""Keys and values a layer, (key-value heads, columns, width) each."""


@dataclass
class Tree:
    """The rows of one text."""

    prompt: Columns
    text: Columns
    lengths: Tensor
    """(rows,) how many prompt and text columns each row sees: the position of its first own token."""
    own: Columns = field(default_factory=list)
    """Keys and values a layer, (places, key-value heads, capacity, width) each; places beyond the rows are empty."""
    steps: int = 0
    """How many own columns are filled."""

    @property
    def rows(self) -> int:
        """How many rows grow."""
        return len(self.lengths)

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Go on with these rows; one that is taken several times becomes several rows. Returns where each row now stands in `rows`.

        A row stays in its place where it can, since moving it means copying its columns: the first continuation of a row stands
        where the row stood, and the others fill the places that are free.
        """
        staying: dict[int, int] = {}  # row to where it stands in `rows`
        for index, row in enumerate(rows):
            if row < len(rows):
                staying.setdefault(row, index)
        stay = set(staying.values())
        moving = iter([index for index in range(len(rows)) if index not in stay])
        order = [staying[place] if place in staying else next(moving) for place in range(len(rows))]
        moved = [(place, rows[index]) for place, index in enumerate(order) if rows[index] != place]
        if self._places < len(rows):
            self._resize(len(rows))
        if moved:  # No place that is written to is read from: its own row does not go on, or it is new.
            to, source = torch.tensor(moved, device=self.lengths.device).T
            for kept in itertools.chain.from_iterable(self.own):
                kept[to, :, : self.steps] = kept[source, :, : self.steps]
        if self._places > 2 * len(rows):
            self._resize(len(rows))
        self.lengths = self.lengths[torch.tensor([rows[index] for index in order], device=self.lengths.device)]
        return order

    @property
    def _places(self) -> int:
        return self.own[0][0].shape[0] if self.own else self.rows

    def _resize(self, places: int) -> None:
        self.own = [(self._resized(keys, places), self._resized(values, places)) for keys, values in self.own]

    def _resized(self, columns: Tensor, places: int) -> Tensor:
        resized = columns.new_empty((places, *columns.shape[1:]))
        kept = min(places, len(columns))
        resized[:kept, :, : self.steps] = columns[:kept, :, : self.steps]
        return resized

    def columns(self) -> Columns:
        """All that its row sees, of a tree with a single row."""
        own: Sequence[tuple[Tensor, Tensor]] = self.own or [
            (keys[None, :, :0], values[None, :, :0]) for keys, values in self.text
        ]
        return [
            (torch.cat([pk, tk, ok[0, :, : self.steps]], 1), torch.cat([pv, tv, ov[0, :, : self.steps]], 1))
            for (pk, pv), (tk, tv), (ok, ov) in zip(self.prompt, self.text, own, strict=True)
        ]

    def fold(self) -> None:
        """Take what a single row has added into the text's columns."""
        if self.steps:
            prompt = self.prompt[0][0].shape[1]
            self.text = [(keys[:, prompt:], values[:, prompt:]) for keys, values in self.columns()]
            self.lengths = self.lengths + self.steps
            self.own, self.steps = [], 0

    def cut(self, length: int) -> None:
        """Forget all but the first `length` columns of a single row, of which the prompt's all stay."""
        first_own = int(self.lengths[0])
        if length < first_own:
            kept = length - self.prompt[0][0].shape[1]
            if kept < 0:
                raise ValueError(f"expected to keep the prompt's {length - kept} columns, found {length}")
            self.text = [(keys[:, :kept], values[:, :kept]) for keys, values in self.text]
            self.lengths = torch.full_like(self.lengths, length)
        self.steps = max(0, length - first_own)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add one own column, (rows, heads, width) each; returns all own columns of the layer."""
        if layer == len(self.own):
            shape = (keys.shape[0], keys.shape[1], _CAPACITY_STEP, keys.shape[2])
            self.own.append((keys.new_empty(shape), values.new_empty((*shape[:3], values.shape[2]))))
        old_keys, old_values = self.own[layer]
        if old_keys.shape[2] == self.steps:
            more = old_keys.new_empty((*old_keys.shape[:2], _CAPACITY_STEP, old_keys.shape[3]))
            more_values = old_values.new_empty((*old_values.shape[:2], _CAPACITY_STEP, old_values.shape[3]))
            old_keys, old_values = torch.cat([old_keys, more], 2), torch.cat([old_values, more_values], 2)
            self.own[layer] = (old_keys, old_values)
        rows = len(keys)  # there may be more places than rows
        old_keys[:rows, :, self.steps] = keys
        old_values[:rows, :, self.steps] = values
        return old_keys[:rows, :, : self.steps + 1], old_values[:rows, :, : self.steps + 1]
