"""The columns that a KV cache holds, where the tokens of a pass write, and what each sees.

    CachedPrompt   keys and values of start token and prompt, computed once
    CachedText     keys and values of one text after a prompt; any number of sequences continue it
    Group          texts after one prompt, with the rows that continue them: room for new columns, keep, cut,
                   merge
    Layout         for the new tokens of one pass over a group, the columns that they write and see: numbers
                   alone, the same for every layer and device

Computes nothing: `kv_cache.py` says which tokens are new, `attention.py` fills the columns and reads them.
"""

import functools
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
        first = np.zeros(len(parents), dtype=bool)
        first[np.unique(parents, return_index=True)[1]] = True
        stays = first & (parents < len(parents))
        order = np.full(len(parents), -1)
        order[parents[stays]] = np.flatnonzero(stays)
        order[order < 0] = np.flatnonzero(~stays)
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


@dataclass(frozen=True)
class SeenRanges:
    """What is seen of one kind of columns.

    It is runs of tokens, one after the other, and the range of columns that each run sees.
    """

    tokens: np.ndarray
    """(runs,) how many tokens each has."""
    starts: np.ndarray
    """(runs,) the first column of its range."""
    lengths: np.ndarray
    """(runs,) columns of its range; may be 0."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The new tokens of one pass over a group, in the order in which the pass has them."""

    prompt: int
    """Tokens of the prompt, which all see."""
    branches: bool
    """Whether rows have their own columns; else a row is a text, which grows itself."""
    tokens: int
    """How many there are."""
    texts: int
    """How many the group has."""
    is_single: bool
    """Whether the group has one text, so that nothing is padded."""
    counts: np.ndarray
    """(growing rows,) new tokens of each."""
    positions: np.ndarray
    """(tokens,) of each in its sequence, the prompt's counted."""
    seen: np.ndarray
    """(tokens,) how many tokens of prompt and text each sees; without branches itself is the last."""
    columns: np.ndarray
    """(tokens,) where the new key and value are written, in the text's columns or in the row's own."""
    text_of: np.ndarray
    """(tokens,) index of the text."""
    row_of: np.ndarray
    """(tokens,) index of the row."""
    text_columns: int
    """Columns of the text with the most, after the pass."""
    own_columns: int
    """Columns of the row with the most, after the pass; 0 without branches."""
    in_place: bool
    """Whether token n is of row n, and each row has one."""

    @classmethod
    def of(
        cls,
        rows: np.ndarray,
        counts: np.ndarray,
        *,
        prompt: int,
        branches: bool,
        lengths: np.ndarray,
        text_of: np.ndarray,
        seen: np.ndarray,
        steps: np.ndarray,
    ) -> "Layout":
        """Lay out `counts[n]` new tokens for row `rows[n]`, ascending; one each with `branches`.

        The other numbers are the group's.
        """
        row_of = np.repeat(rows, counts)
        nth = np.arange(len(row_of)) - np.repeat(counts.cumsum() - counts, counts)  # of its row's new ones
        positions = seen[row_of] + steps[row_of] + nth
        columns = steps[row_of] if branches else positions - prompt
        return cls(
            prompt=prompt,
            branches=branches,
            tokens=len(positions),
            texts=len(lengths),
            is_single=len(lengths) == 1,
            counts=counts,
            positions=positions,
            seen=seen[row_of] if branches else positions + 1,
            columns=columns,
            text_of=text_of[row_of],
            row_of=row_of,
            text_columns=int(lengths.max(initial=0)) if branches else int(columns.max()) + 1,
            own_columns=int(steps[rows].max()) + 1 if branches else 0,
            in_place=np.array_equal(row_of, np.arange(len(seen))),
        )

    @functools.cached_property
    def in_step(self) -> bool:
        """Whether token n is of row n, each row has one, and all write the same column."""
        return self.in_place and bool((self.columns == self.columns[0]).all())

    @functools.cached_property
    def first_row(self) -> int | None:
        """The first of the rows that grow if they are next to each other; else None."""
        first = int(self.row_of[0])
        return first if np.array_equal(self.row_of, first + np.arange(self.tokens)) else None

    @functools.cached_property
    def by_text(self) -> np.ndarray:
        """(tokens,) the tokens in an order in which neighbours see the same columns of a text."""
        return np.lexsort((self.seen, self.text_of))

    @functools.cached_property
    def width(self) -> int:
        """Tokens of the text with the most: what the others are padded to."""
        return self.tokens if self.is_single else int(self._tokens_of_texts.max())

    @functools.cached_property
    def padded_place(self) -> np.ndarray:
        """(tokens,) where each token is if the tokens of all texts are padded to `width`.

        The padded texts are one after the other.
        """
        if self.is_single:
            return np.arange(self.tokens)
        by_text = np.argsort(self.text_of, kind="stable")
        place = np.empty_like(by_text)
        before = self._tokens_of_texts.cumsum() - self._tokens_of_texts
        place[by_text] = np.arange(self.tokens) - before[self.text_of[by_text]]
        return self.text_of * self.width + place

    @functools.cached_property
    def padded_tokens(self) -> np.ndarray:
        """(texts * width,) the token at each padded place, the first one where there is none.

        It is empty for one text.
        """
        if self.is_single:
            return np.zeros(0, dtype=np.int64)
        tokens = np.zeros(self.texts * self.width, dtype=np.int64)
        tokens[self.padded_place] = np.arange(self.tokens)
        return tokens

    @functools.cached_property
    def _tokens_of_texts(self) -> np.ndarray:
        return np.bincount(self.text_of, minlength=self.texts)

    def ranges(self, window: int | None, text_capacity: int) -> list[SeenRanges]:
        """What the tokens see of the prompt, if the pass has one, and of the texts.

        The columns of the texts are counted through. With branches the runs over the texts are of tokens in
        the order `by_text`. Texts begin `text_capacity` columns apart. With a `window` a token sees that many
        tokens back, itself included.
        """
        tokens = np.arange(self.tokens)
        in_sight = self._in_sight(window)
        kinds: list[SeenRanges] = []
        # 1. The prompt: all tokens see the same of it unless there is a window.
        if self.prompt and window is None:
            kinds.append(SeenRanges(np.array([self.tokens]), np.array([0]), np.array([self.prompt])))
        elif self.prompt:
            first = np.minimum(in_sight, self.prompt)
            kinds.append(SeenRanges(np.ones_like(tokens), first, np.maximum(0, self.prompt - in_sight)))
        if self.branches:
            # 2. The texts: tokens that see the same of one are a run.
            start = np.clip(in_sight - self.prompt, 0, self.seen - self.prompt)
            starts = (self.text_of * text_capacity + start)[self.by_text]
            lengths = (self.seen - self.prompt - start)[self.by_text]
            texts = self.text_of[self.by_text]
            differs = np.diff(np.stack([texts, starts, lengths]), prepend=-1).any(axis=0)
            begins = tokens[differs]
            kinds.append(
                SeenRanges(
                    tokens=np.diff(begins, append=self.tokens),
                    starts=starts[begins],
                    lengths=lengths[begins],
                )
            )
        else:  # the tokens of a row, whose last one sees all
            last = self.counts.cumsum() - 1
            kinds.append(SeenRanges(self.counts, self.text_of[last] * text_capacity, self.columns[last] + 1))
        return kinds

    def hidden_own_columns(self, window: int | None) -> np.ndarray:
        """(tokens, own columns) whether a token does not see a column of its row."""
        columns = np.arange(self.own_columns)[None]
        first = np.maximum(0, self._in_sight(window) - self.seen)  # (tokens,)
        hidden: np.ndarray = (columns > self.columns[:, None]) | (columns < first[:, None])
        return hidden

    def _in_sight(self, window: int | None) -> np.ndarray:
        """(tokens,) the first position that each sees."""
        if window is None:
            return np.zeros_like(self.positions)
        first: np.ndarray = np.maximum(0, self.positions - window + 1)
        return first
