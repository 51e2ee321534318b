"""The columns that a KV cache holds: keys and values of a prompt, of texts, and of rows that continue them.

    CachedPrompt   keys and values of start token and prompt, computed once
    CachedText     keys and values of one text after a prompt; any number of sequences continue it
    Group          texts after one prompt, with the rows that continue them: room for new columns, keep, cut,
                   merge

Computes nothing: `kv_cache.py` fills the columns, `attention.py` reads them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

_OWN_STEP = 8
_TEXT_STEP = 32
"""Columns by which capacity grows."""

Columns = list[tuple[Tensor, Tensor]]
"""Keys and values a layer."""


@dataclass(frozen=True, eq=False)
class CachedPrompt:
    """Start token and prompt."""

    ids: tuple[int, ...] = ()
    columns: Columns = field(default_factory=list)
    """(key heads, columns, width) each."""

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class CachedText:
    """A text after a prompt."""

    prompt: CachedPrompt
    length: int = 0
    """Tokens, without the prompt's."""
    columns: Columns = field(default_factory=list)
    """(key heads, 1, columns, width) each."""

    def compact(self) -> "CachedText":
        """Return the text with columns of its own.

        They are no view that holds those of all texts of a pass, padded to the longest.
        """
        own = [(keys.clone(), values.clone()) for keys, values in self.columns]
        return CachedText(self.prompt, self.length, own)


@dataclass
class Group:
    """Texts after one prompt that are attended to in one set of operations, and the rows that continue them.

    The numpy arrays say where a pass writes and what it sees; they are sent to the device once a pass.
    """

    prompt: CachedPrompt
    branches: bool
    """Whether rows have their own columns; else each text is one row and grows itself."""
    text: Columns
    """(key heads, texts, capacity, width) each."""
    lengths: np.ndarray
    """(texts,) filled columns."""
    text_of: np.ndarray
    """(rows,) index of a row's text."""
    seen: np.ndarray
    """(rows,) how many tokens of prompt and text a row sees."""
    labels: np.ndarray
    """(rows,) the caller's numbers of the rows."""
    steps: np.ndarray
    """(rows,) own tokens."""
    own: list[Tensor] = field(default_factory=list)
    """(2, places, key heads, capacity, width) a layer, keys and values in one; row r has place r, further
    places are free."""

    @property
    def rows(self) -> int:
        """How many rows grow."""
        return len(self.labels)

    def keep(self, parents: np.ndarray) -> np.ndarray:
        """Continue with these rows; a row that is taken several times becomes several.

        Returns which of `parents` each row is now.

        Moving a row means copying its columns. So the first continuation of a row takes the row's place, and
        the others take free places.
        """
        # 1. Assign a continuation to each place.
        order = _continuation_of_place(parents)
        # 2. Copy the rows that move.
        source = parents[order]
        self._move_rows(source)
        # 3. The rows' numbers.
        self.labels, self.text_of, self.seen, self.steps = (
            numbers[source] for numbers in (self.labels, self.text_of, self.seen, self.steps)
        )
        # 4. Texts without rows leave once they are half of all.
        alive = np.unique(self.text_of)
        if 2 * len(alive) <= len(self.lengths):
            self._keep_texts(alive)
        return order

    def _move_rows(self, source: np.ndarray) -> None:
        """Copy the columns of row `source[place]` to each place.

        No place is both read and written: a place that is written was free, or its row has ended.
        """
        count = len(source)
        filled = int(self.steps.max(initial=0))
        places = len(self.own[0][0]) if self.own else 0
        if self.own and places < count:
            self.own = [_resized(columns, 1, count) for columns in self.own]
        to = np.flatnonzero(source != np.arange(count))
        if len(to) and filled:
            moved = torch.from_numpy(np.stack([to, source[to]]))
            devices = {columns.device for columns in self.own}
            on_device = {device: moved.to(device) for device in devices}
            for columns in self.own:
                target, origin = on_device[columns.device]
                columns[:, target, :, :filled] = columns[:, origin, :, :filled]
        if places > 2 * count:
            self.own = [_resized(columns, 1, count) for columns in self.own]

    def _keep_texts(self, kept: np.ndarray) -> None:
        """Continue with these texts alone, ascending; every row is of one of them."""
        number_of = np.zeros(len(self.lengths), dtype=np.int64)
        number_of[kept] = np.arange(len(kept))
        self.text_of, self.lengths = number_of[self.text_of], self.lengths[kept]
        longest, index = int(self.lengths.max(initial=0)), torch.from_numpy(kept)
        self.text = [
            (
                keys[:, :, :longest].index_select(1, index.to(keys.device)),
                values[:, :, :longest].index_select(1, index.to(values.device)),
            )
            for keys, values in self.text
        ]

    def cut(self, row: int, length: int) -> None:
        """Forget all but the first `length` tokens of a row that is a text; those of the prompt stay.

        Raises:
            ValueError: tokens of the prompt would be cut.
        """
        if length < self.prompt.length or self.branches:
            raise ValueError(
                f"expected to keep the prompt's {self.prompt.length} tokens of a text, found {length}"
            )
        self.seen[row] = length
        self.lengths[self.text_of[row]] = length - self.prompt.length

    @classmethod
    def merged(cls, groups: "Sequence[Group]") -> "Group":
        """One group of the texts and rows of several, which have the same prompt and are of one kind."""
        if len(groups) == 1:
            return groups[0]
        before = np.cumsum([0, *(len(group.lengths) for group in groups)])
        return cls(
            prompt=groups[0].prompt,
            branches=groups[0].branches,
            text=_text_columns(groups),
            lengths=np.concatenate([group.lengths for group in groups]),
            text_of=np.concatenate(
                [group.text_of + first for group, first in zip(groups, before, strict=False)]
            ),
            seen=np.concatenate([group.seen for group in groups]),
            labels=np.concatenate([group.labels for group in groups]),
            steps=np.concatenate([group.steps for group in groups]),
            own=_own_columns(groups),
        )

    def make_text_room(self, layer: int, columns: int, keys: Tensor, values: Tensor) -> None:
        """Capacity for so many columns of each text in a layer.

        New keys and values, (tokens, key heads, width), say its shape.
        """
        if layer == len(self.text):
            texts = len(self.lengths)
            self.text.append(
                (
                    keys.new_zeros(keys.shape[1], texts, columns, keys.shape[2]),
                    values.new_zeros(values.shape[1], texts, columns, values.shape[2]),
                )
            )
        old_keys, old_values = self.text[layer]
        if old_keys.shape[2] < columns:
            capacity = columns + _TEXT_STEP
            self.text[layer] = (_resized(old_keys, 2, capacity), _resized(old_values, 2, capacity))

    def make_own_room(self, layer: int, columns: int, keys: Tensor) -> None:
        """Make room for own columns; values have the shape of keys."""
        if layer == len(self.own):
            self.own.append(keys.new_zeros(2, self.rows, keys.shape[1], _OWN_STEP, keys.shape[2]))
        if self.own[layer].shape[3] < columns:
            self.own[layer] = _resized(self.own[layer], 3, columns - 1 + _OWN_STEP)


def _continuation_of_place(parents: np.ndarray) -> np.ndarray:
    """Which of `parents` each place holds.

    The first continuation of a row stays at the row's place, the others take free places.
    """
    count = len(parents)
    first = np.zeros(count, dtype=bool)
    first[np.unique(parents, return_index=True)[1]] = True
    stays = first & (parents < count)
    order = np.full(count, -1)
    order[parents[stays]] = np.flatnonzero(stays)
    order[order < 0] = np.flatnonzero(~stays)
    return order


def _text_columns(groups: Sequence[Group]) -> Columns:
    """The texts' columns of several groups, joined."""
    sizes = [len(group.lengths) for group in groups]
    columns = []
    for layer in range(max(len(group.text) for group in groups)):
        keys = [group.text[layer][0] if group.text else None for group in groups]
        values = [group.text[layer][1] if group.text else None for group in groups]
        columns.append((_stacked(keys, sizes), _stacked(values, sizes)))
    return columns


def _own_columns(groups: Sequence[Group]) -> list[Tensor]:
    """The rows' own columns of several groups, joined."""
    sizes = [group.rows for group in groups]
    columns = []
    for layer in range(max(len(group.own) for group in groups)):
        parts = [group.own[layer] if group.own else None for group in groups]
        columns.append(_stacked(parts, sizes))
    return columns


def _resized(columns: Tensor, dim: int, size: int) -> Tensor:
    """Return the columns with another size of a dimension, zeros if it is longer."""
    shape = list(columns.shape)
    kept, shape[dim] = min(size, shape[dim]), size
    resized = columns.new_zeros(shape)
    resized.narrow(dim, 0, kept).copy_(columns.narrow(dim, 0, kept))
    return resized


def _stacked(parts: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor:
    """Side by side in the second dimension, padded to the longest of the last but one."""
    filled = [part for part in parts if part is not None]
    shape = list(filled[0].shape)
    shape[1], shape[-2] = sum(sizes), max(part.shape[-2] for part in filled)
    stacked = filled[0].new_zeros(shape)
    for part, size, end in zip(parts, sizes, itertools.accumulate(sizes), strict=True):
        if part is not None:
            stacked.narrow(1, end - size, size).narrow(-2, 0, part.shape[-2]).copy_(part.narrow(1, 0, size))
    return stacked
