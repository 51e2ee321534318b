"""The KV cache: a prompt that all texts share, texts that their sequences share, and each sequence's own tokens.

    CachedPrompt   keys and values of start token and prompt, computed once
    CachedText     keys and values of one text behind a prompt; any number of sequences continue it
    KVCache        the sequences of a batch: prefill (`join`, `extend`), share, step, keep, cut

A sequence is a row. Either each text is one row, which grows in the text's columns (`join`), or many rows share a text: each sees
it up to one of its tokens and adds columns of its own (`share`). Prompts, texts, sampled calls, answers, translations and texts
that are written with tools all use this one class.

A row's numbers depend on its own tokens alone: bit for bit on a CPU, where every operation but attention treats rows one by one
and attention is computed text by text (`attention.py`). This needs matrix products that give a row the same bits for any number of
rows. Measured in float32 and bfloat16, they do so from four rows on; therefore a CPU's passes are padded to a multiple of
`ROW_MULTIPLE` rows. On other devices numbers differ by rounding. Chooses no token: `decode_loop.py` does.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.language_model.attention import GroupPass
from toolformer_ops.language_model.packing import ROW_MULTIPLE

if TYPE_CHECKING:
    from toolformer_ops.language_model.causal_model import CausalModel

_HALVED_TO = 8
"""Parts of the rows of one group that a pass can be cut into."""
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

    @classmethod
    def read(cls, model: "CausalModel", ids: Sequence[int]) -> "CachedPrompt":
        """Compute it."""
        if not ids:
            return cls()
        cache = KVCache(model)
        cache.join([CachedText(cls())])
        cache.extend([0], [ids])
        [text] = cache.texts()
        return cls(tuple(ids), [(keys[:, 0], values[:, 0]) for keys, values in text.columns])


@dataclass(frozen=True, eq=False)
class CachedText:
    """A text behind a prompt."""

    prompt: CachedPrompt
    length: int = 0
    """Tokens, without the prompt's."""
    columns: Columns = field(default_factory=list)
    """(key heads, 1, columns, width) each."""


@dataclass
class Group:
    """Texts behind one prompt that are attended to in one set of operations, and the rows that continue them.

    The numpy arrays say where a pass writes and what it sees; they are sent to the device once a pass.
    """

    prompt: CachedPrompt
    branches: bool
    """Whether rows have columns of their own; else each text is one row and grows itself."""
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
    """(2, places, key heads, capacity, width) a layer, keys and values in one; row r has place r, further places are free."""

    @property
    def rows(self) -> int:
        """How many rows grow."""
        return len(self.labels)

    def keep(self, parents: np.ndarray) -> np.ndarray:
        """Continue with these rows; one that is taken several times becomes several. Returns which of `parents` each row is now.

        Moving a row means copying its columns. So the first continuation of a row takes the row's place, and the others take free
        places.
        """
        # 1. Assign a continuation to each place.
        count = len(parents)
        first = np.zeros(count, dtype=bool)
        first[np.unique(parents, return_index=True)[1]] = True
        stays = first & (parents < count)
        order = np.full(count, -1)
        order[parents[stays]] = np.flatnonzero(stays)
        order[order < 0] = np.flatnonzero(~stays)
        source = parents[order]
        # 2. Copy the rows that move. No place is both read and written: a place that is written was free, or its row has ended.
        filled = int(self.steps.max(initial=0))
        if self.own and len(self.own[0][0]) < count:
            self._give_places(count)
        to = np.flatnonzero(source != np.arange(count))
        if len(to) and filled:
            moved = torch.from_numpy(np.stack([to, source[to]]))
            on_device = {device: moved.to(device) for device in {held.device for held in self.own}}
            for held in self.own:
                target, origin = on_device[held.device]
                held[:, target, :, :filled] = held[:, origin, :, :filled]
        if self.own and len(self.own[0][0]) > 2 * count:
            self._give_places(count)
        # 3. The rows' numbers.
        self.labels, self.text_of, self.seen, self.steps = (
            numbers[source] for numbers in (self.labels, self.text_of, self.seen, self.steps)
        )
        # 4. Texts without rows leave once they are half of all.
        alive = np.unique(self.text_of)
        if 2 * len(alive) <= len(self.lengths):
            self._leave(alive)
        return order

    def cut(self, row: int, length: int) -> None:
        """Forget all but the first `length` tokens of a row that is a text; those of the prompt stay.

        Raises:
            ValueError: tokens of the prompt would be cut.
        """
        if length < self.prompt.length or self.branches:
            raise ValueError(f"expected to keep the prompt's {self.prompt.length} tokens of a text, found {length}")
        self.seen[row] = length
        self.lengths[self.text_of[row]] = length - self.prompt.length

    @classmethod
    def merged(cls, groups: "Sequence[Group]") -> "Group":
        """One group of the texts and rows of several, which have the same prompt and are of one kind."""
        if len(groups) == 1:
            return groups[0]
        before = np.cumsum([0, *(len(group.lengths) for group in groups)])
        together = [np.concatenate([getattr(group, name) for group in groups]) for name in ("seen", "labels", "steps")]
        return cls(
            prompt=groups[0].prompt,
            branches=groups[0].branches,
            text=_side_by_side([group.text for group in groups], [len(group.lengths) for group in groups]),
            lengths=np.concatenate([group.lengths for group in groups]),
            text_of=np.concatenate([group.text_of + first for group, first in zip(groups, before, strict=False)]),
            seen=together[0],
            labels=together[1],
            steps=together[2],
            own=[
                _stacked(
                    [group.own[layer] if group.own else None for group in groups], [group.rows for group in groups]
                )
                for layer in range(max(len(group.own) for group in groups))
            ],
        )

    def make_text_room(self, layer: int, columns: int, keys: Tensor, values: Tensor) -> None:
        """Capacity for so many columns of each text in a layer; new keys and values, (tokens, key heads, width), say its shape."""
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
        """The same for own columns; values have the shape of keys."""
        if layer == len(self.own):
            self.own.append(keys.new_zeros(2, self.rows, keys.shape[1], _OWN_STEP, keys.shape[2]))
        if self.own[layer].shape[3] < columns:
            self.own[layer] = _resized(self.own[layer], 3, columns - 1 + _OWN_STEP)

    def _give_places(self, count: int) -> None:
        self.own = [_resized(held, 1, count) for held in self.own]

    def _leave(self, alive: np.ndarray) -> None:
        number_of = np.zeros(len(self.lengths), dtype=np.int64)
        number_of[alive] = np.arange(len(alive))
        self.text_of, self.lengths = number_of[self.text_of], self.lengths[alive]
        longest, index = int(self.lengths.max(initial=0)), torch.from_numpy(alive)
        self.text = [
            (
                keys[:, :, :longest].index_select(1, index.to(keys.device)),
                values[:, :, :longest].index_select(1, index.to(values.device)),
            )
            for keys, values in self.text
        ]


class KVCache:
    """Rows of one network that grow side by side. Not for use by several threads at once."""

    def __init__(self, model: "CausalModel") -> None:
        self._model = model
        self._groups: list[Group] = []

    @property
    def labels(self) -> np.ndarray:
        """(rows,) the caller's numbers of the rows, in their order here, which may change with `join`, `share` and `keep`."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(group.labels for group in self._groups)])

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) how many tokens each row holds, the prompt's included."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(group.seen + group.steps for group in self._groups)])

    def join(self, texts: Sequence[CachedText], labels: Sequence[int] | None = None) -> None:
        """Add texts, each a row that grows; one without tokens takes them in by `extend`."""
        numbers = range(len(texts)) if labels is None else labels
        self._add(
            [(text, [text.prompt.length + text.length], [label]) for text, label in zip(texts, numbers, strict=True)]
        )

    def share(self, rows: Sequence[tuple[CachedText, Sequence[int], Sequence[int]]]) -> None:
        """Add rows that share texts: of each text, how many tokens of prompt and text each row sees, and the rows' labels."""
        self._add(rows, branches=True)

    def step(self, tokens: np.ndarray, rows: np.ndarray | None = None) -> Tensor:
        """Append one token to each of these rows, ascending, or to all; the last hidden states, (rows, hidden)."""
        asked, first, done = [], 0, 0
        rows = np.arange(len(tokens)) if rows is None else rows
        for group in self._groups:
            end = int(np.searchsorted(rows, first + group.rows))
            if end > done:
                ones = np.ones(end - done, dtype=np.int64)
                asked.append(_NewTokens(group, rows[done:end] - first, ones, tokens[done:end]))
            first, done = first + group.rows, end
        return torch.cat(self._run(asked))

    def extend(self, labels: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """Append all of `tokens[n]`, at least one, to the text labelled `labels[n]`; their hidden states, (tokens, hidden) each."""
        place = {int(label): (group, row) for group in self._groups for row, label in enumerate(group.labels)}
        found: dict[int, Tensor] = {}
        for part in _parts([len(ids) for ids in tokens], self._model.memory.pass_tokens):
            by_group: dict[int, list[int]] = {}
            for number in part:
                by_group.setdefault(id(place[labels[number]][0]), []).append(number)
            asked = [
                _NewTokens(
                    place[labels[numbers[0]]][0],
                    np.array([place[labels[number]][1] for number in numbers]),
                    np.array([len(tokens[number]) for number in numbers]),
                    np.array([token for number in numbers for token in tokens[number]]),
                )
                for numbers in by_group.values()
            ]
            states = torch.cat(self._run(asked))
            order = [number for numbers in by_group.values() for number in numbers]
            found.update(zip(order, states.split([len(tokens[number]) for number in order]), strict=True))  # type: ignore[no-untyped-call]
        return [found[number] for number in range(len(tokens))]

    def keep(self, parents: np.ndarray, labels: np.ndarray) -> None:
        """Continue with these rows, ascending, under these labels; one that is taken several times becomes several rows."""
        first = 0
        for group in self._groups:
            begin, end = np.searchsorted(parents, (first, first + group.rows))
            rows, first = parents[begin:end] - first, first + group.rows
            if len(rows) == group.rows and (rows == np.arange(group.rows)).all():
                group.labels = labels[begin:end]
            elif len(rows):
                group.labels = labels[begin:end][group.keep(rows)]
            else:
                group.labels = group.labels[:0]
        self._groups = [group for group in self._groups if group.rows]

    def cut(self, label: int, length: int) -> None:
        """Forget all but the first `length` tokens of a text; those of the prompt stay."""
        for group in self._groups:
            for row in np.flatnonzero(group.labels == label):
                group.cut(int(row), length)

    def texts(self) -> list[CachedText]:
        """The texts as they are now, by label, to be kept and shared. The columns are views."""
        found: dict[int, CachedText] = {}
        for group in self._groups:
            for text, label in zip(group.text_of, group.labels, strict=True):
                length = int(group.lengths[text])
                columns = [
                    (keys[:, text : text + 1, :length], values[:, text : text + 1, :length])
                    for keys, values in group.text
                ]
                found[int(label)] = CachedText(group.prompt, length, columns)
        return [found[label] for label in sorted(found)]

    def _add(self, rows: Sequence[tuple[CachedText, Sequence[int], Sequence[int]]], *, branches: bool = False) -> None:
        for text, seen, labels in rows:
            count = len(labels)
            self._groups.append(
                Group(
                    prompt=text.prompt,
                    branches=branches,
                    text=list(text.columns),
                    lengths=np.array([text.length]),
                    text_of=np.zeros(count, dtype=np.int64),
                    seen=np.array(seen, dtype=np.int64),
                    labels=np.array(labels, dtype=np.int64),
                    steps=np.zeros(count, dtype=np.int64),
                )
            )
        if self._model.texts_together:
            alike: dict[tuple[int, bool], list[Group]] = {}
            for group in self._groups:
                alike.setdefault((id(group.prompt), group.branches), []).append(group)
            self._groups = [Group.merged(groups) for groups in alike.values()]

    def _run(self, asked: Sequence["_NewTokens"]) -> list[Tensor]:
        """One pass over all that is asked, halved where memory is short; hidden states, in parts."""
        if len(asked) == 1 and self._model.texts_together:
            asked = asked[0].parts()
        return self._model.memory.halving(self._pass, list(asked), "texts")

    def _pass(self, asked: Sequence["_NewTokens"]) -> list[Tensor]:
        """Hidden states, (tokens, hidden), of each that is asked; lengths change after the pass: one that fails adds nothing."""
        counts = [len(one.ids) for one in asked]
        whole = _NewTokens.merged(asked)
        states = self._over_cache(whole)
        for one in whole:
            if one.group.branches:
                one.group.steps[one.rows] += 1
            else:
                one.group.seen[one.rows] += one.counts
                one.group.lengths[one.group.text_of[one.rows]] += one.counts
        return list(states.split(counts))  # type: ignore[no-untyped-call]

    def _over_cache(self, asked: Sequence["_NewTokens"]) -> Tensor:
        """Hidden states of new tokens, (tokens, hidden), in one pass over the cached columns."""
        passes = [GroupPass(one.group, one.rows, one.counts, by_range=self._model.texts_together) for one in asked]
        ends = np.cumsum([len(one) for one in passes]).tolist()
        ids = np.concatenate([new.ids[one.order] for new, one in zip(asked, passes, strict=True)])
        padding = 0 if self._model.texts_together else -len(ids) % ROW_MULTIPLE

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, *how: Any) -> Tensor:
            if len(passes) == 1 and not padding:
                return passes[0].attend(layer, queries, keys, values, *how)
            mixed = queries.new_zeros((*queries.shape[:2], values.shape[-1]))
            for one, last in zip(passes, ends, strict=True):
                span = slice(last - len(one), last)
                mixed[span] = one.attend(layer, queries[span], keys[span], values[span], *how)
            return mixed

        positions = np.concatenate([one.positions for one in passes])
        hidden = self._model.run(
            np.pad(ids, (0, padding), constant_values=int(ids[0])), np.pad(positions, (0, padding)), attend
        )[: len(ids)]  # (tokens, hidden)
        order = np.concatenate([one.order + end - len(one) for one, end in zip(passes, ends, strict=True)])
        if (order == np.arange(len(order))).all():
            return hidden
        return hidden[torch.from_numpy(np.argsort(order)).to(hidden.device)]


@dataclass(frozen=True)
class _NewTokens:
    """What rows of a group take in."""

    group: Group
    rows: np.ndarray
    counts: np.ndarray
    """(rows,) new tokens of each."""
    ids: np.ndarray
    """(sum of counts,) the tokens, row by row."""

    def parts(self) -> "list[_NewTokens]":
        """The same in a few parts, of which fewer may be done at once where memory is short."""
        ends = self.counts.cumsum()
        borders = np.unique(np.linspace(0, len(self.rows), _HALVED_TO + 1).astype(int))
        return [
            _NewTokens(self.group, self.rows[first:last], self.counts[first:last], self.ids[begin : ends[last - 1]])
            for first, last in itertools.pairwise(borders)
            for begin in [ends[first - 1] if first else 0]
        ]

    @classmethod
    def merged(cls, parts: "Sequence[_NewTokens]") -> "list[_NewTokens]":
        """Parts of the same group, which follow each other, as one."""
        by_group = [list(some) for _, some in itertools.groupby(parts, key=lambda part: id(part.group))]
        return [
            some[0]
            if len(some) == 1
            else cls(
                some[0].group,
                np.concatenate([one.rows for one in some]),
                np.concatenate([one.counts for one in some]),
                np.concatenate([one.ids for one in some]),
            )
            for some in by_group
        ]


def _resized(columns: Tensor, dim: int, size: int) -> Tensor:
    """The same with another size of a dimension, zeros where it is longer."""
    shape = list(columns.shape)
    kept, shape[dim] = min(size, shape[dim]), size
    resized = columns.new_zeros(shape)
    resized.narrow(dim, 0, kept).copy_(columns.narrow(dim, 0, kept))
    return resized


def _side_by_side(parts: Sequence[Columns], sizes: Sequence[int]) -> Columns:
    """Columns of several groups in one, where part n takes `sizes[n]` places; padded to the largest capacity."""
    layers = max(map(len, parts))
    return [
        (
            _stacked([part[layer][0] if part else None for part in parts], sizes),
            _stacked([part[layer][1] if part else None for part in parts], sizes),
        )
        for layer in range(layers)
    ]


def _stacked(parts: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor:
    """Side by side in the second dimension, padded to the longest of the last but one."""
    there = [part for part in parts if part is not None]
    shape = list(there[0].shape)
    shape[1], shape[-2] = sum(sizes), max(part.shape[-2] for part in there)
    stacked = there[0].new_zeros(shape)
    for part, size, end in zip(parts, sizes, itertools.accumulate(sizes), strict=True):
        if part is not None:
            stacked.narrow(1, end - size, size).narrow(-2, 0, part.shape[-2]).copy_(part.narrow(1, 0, size))
    return stacked


def _parts(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Consecutive numbers in parts of at most `most` tokens, or of one."""
    parts: list[list[int]] = []
    tokens = 0
    for number, length in enumerate(lengths):
        if not parts or tokens + length > most:
            parts.append([])
            tokens = 0
        parts[-1].append(number)
        tokens += length
    return parts
