"""The KV cache: a prompt that all texts share, texts that their sequences share, and each sequence's own tokens.

`KVCache` holds the sequences of a batch (prefill: `join`, `extend`; share, step, keep, cut), in the columns of `columns.py`.

A sequence is a row. Either each text is one row, which grows in the text's columns (`join`), or many rows share a text: each sees
it up to one of its tokens and adds its own columns (`share`). Prompts, texts, sampled calls, answers, translations and texts
that are written with tools all use this one class.

A row's numbers depend on its own tokens alone: bit for bit on a CPU, where every operation but attention treats rows one by one
and attention is computed text by text (`attention.py`). This needs matrix products that give a row the same bits for any number of
rows. Measured in float32 and bfloat16, they do so from four rows on; therefore a CPU's passes are padded to a multiple of
`ROW_MULTIPLE` rows. On other devices numbers differ by rounding. Chooses no token: `decode_loop.py` does.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.language_model.attention import GroupPass
from toolformer_ops.language_model.columns import CachedPrompt, CachedText, Group
from toolformer_ops.language_model.network import Network
from toolformer_ops.language_model.packing import ROW_MULTIPLE

_HALVED_TO = 8
"""Parts of the rows of one group that a pass can be cut into."""


def read_prompt(model: Network, ids: Sequence[int]) -> CachedPrompt:
    """The keys and values of a prompt, computed."""
    if not ids:
        return CachedPrompt()
    cache = KVCache(model)
    cache.join([CachedText(CachedPrompt())])
    cache.extend([0], [ids])
    [text] = cache.texts()
    return CachedPrompt(tuple(ids), [(keys[:, 0], values[:, 0]) for keys, values in text.columns])


class KVCache:
    """Rows of one network that grow side by side. Not for use by several threads at once."""

    def __init__(self, model: Network) -> None:
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
