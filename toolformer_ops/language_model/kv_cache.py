"""The KV cache: a prompt that all texts share, texts that sequences share, and each sequence's own tokens.

`KVCache` holds the sequences of a batch (prefill: `join`, `extend`; share, step, keep, cut), in the columns
of `columns.py`.

A sequence is a row. Either each text is one row, which grows in the text's columns (`join`), or many rows
share a text: each sees it up to one of its tokens and adds its own columns (`share`). Prompts, texts, sampled
calls, answers, translations and texts that are written with tools all use this one class.

A row's numbers depend on its own tokens alone: bit for bit on a CPU, where every operation but attention
treats rows one by one and attention is computed text by text (`attention.py`). This needs matrix products
that give a row the same bits for any number of rows; they do so for multiples of `packing.ROW_MULTIPLE`,
measured in float32 and bfloat16, to which a CPU's passes are padded. On other devices numbers differ by
rounding, and so do those of mixtures of experts, whose matrix products take the tokens of one expert
together. Chooses no token: `decode_loop.py` does.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.language_model.attention import GroupPass
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.columns import CachedPrompt, CachedText, Group
from toolformer_ops.language_model.packing import consecutive_parts

MAX_PROMPTS = 16
"""Prompts whose keys and values are kept."""


def read_prompt(model: CausalModel, ids: Sequence[int]) -> CachedPrompt:
    """The keys and values of a prompt, computed."""
    if not ids:
        return CachedPrompt()
    cache = KVCache(model)
    cache.join([CachedText(CachedPrompt())])
    cache.extend([0], [ids])
    [text] = cache.texts()
    return CachedPrompt(tuple(ids), [(keys[:, 0], values[:, 0]) for keys, values in text.columns])


class PromptCache:
    """The prompts that one network has read: the tools' prompts, or heads that several texts share."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._prompts: dict[tuple[int, ...], CachedPrompt] = {}  # oldest first

    def read(self, ids: tuple[int, ...]) -> CachedPrompt:
        """The keys and values of a prompt's first tokens, computed once; the last `MAX_PROMPTS` are kept."""
        if ids not in self._prompts:
            if len(self._prompts) >= MAX_PROMPTS:
                self._prompts.pop(next(iter(self._prompts)))
            self._prompts[ids] = read_prompt(self._model, ids)
        return self._prompts[ids]

    def clear(self) -> None:
        """Forget all."""
        self._prompts.clear()


class KVCache:
    """Rows of one network that grow side by side. Not for use by several threads at once."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._groups: list[Group] = []

    @property
    def labels(self) -> np.ndarray:
        """(rows,) the caller's numbers of the rows, in their order here.

        The order may change with `join`, `share` and `keep`.
        """
        return np.concatenate([np.zeros(0, dtype=np.int64), *(group.labels for group in self._groups)])

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) how many tokens each row holds, the prompt's included."""
        return np.concatenate(
            [np.zeros(0, dtype=np.int64), *(group.seen + group.steps for group in self._groups)]
        )

    def join(self, texts: Sequence[CachedText], labels: Sequence[int] | None = None) -> None:
        """Add texts, each a row that grows; one without tokens takes them in by `extend`."""
        numbers = range(len(texts)) if labels is None else labels
        self._add(
            [
                (text, [text.prompt.length + text.length], [label])
                for text, label in zip(texts, numbers, strict=True)
            ]
        )

    def share(self, rows: Sequence[tuple[CachedText, Sequence[int], Sequence[int]]]) -> None:
        """Add rows that share texts.

        For each text it takes how many tokens of prompt and text each row sees, and the rows' labels.
        """
        self._add(rows, branches=True)

    def step(self, tokens: np.ndarray, rows: np.ndarray | None = None) -> Tensor:
        """Append one token to each of these rows, ascending, or to all.

        Returns the last hidden states, (rows, hidden).
        """
        rows = np.arange(len(tokens)) if rows is None else rows
        return self._append(rows, np.ones(len(rows), dtype=np.int64), tokens)

    def extend(self, labels: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """Append all of `tokens[n]`, at least one, to the text labelled `labels[n]`.

        Returns their hidden states, (tokens, hidden) each.
        """
        row_of = {int(label): row for row, label in enumerate(self.labels)}
        states_by_number: dict[int, Tensor] = {}
        for part in consecutive_parts([len(ids) for ids in tokens], self._model.memory.pass_tokens):
            order = sorted(part, key=lambda number: row_of[labels[number]])
            counts = [len(tokens[number]) for number in order]
            rows = np.array([row_of[labels[number]] for number in order])
            ids = np.concatenate([tokens[number] for number in order])
            states = self._append(rows, np.array(counts), ids)
            states_by_number.update(zip(order, states.split(counts), strict=True))  # type: ignore[no-untyped-call]
        return [states_by_number[number] for number in range(len(tokens))]

    def keep(self, parents: np.ndarray, labels: np.ndarray) -> None:
        """Continue with these rows, ascending, under these labels.

        A row that is taken several times becomes several rows.
        """
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
        texts_by_label: dict[int, CachedText] = {}
        for group in self._groups:
            for text, label in zip(group.text_of, group.labels, strict=True):
                length = int(group.lengths[text])
                columns = [
                    (keys[:, text : text + 1, :length], values[:, text : text + 1, :length])
                    for keys, values in group.text
                ]
                texts_by_label[int(label)] = CachedText(group.prompt, length, columns)
        return [texts_by_label[label] for label in sorted(texts_by_label)]

    def _add(
        self, rows: Sequence[tuple[CachedText, Sequence[int], Sequence[int]]], *, branches: bool = False
    ) -> None:
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

    def _append(self, rows: np.ndarray, counts: np.ndarray, ids: np.ndarray) -> Tensor:
        """Append the next `counts[n]` of the tokens to row `rows[n]`, ascending.

        Returns the tokens' hidden states, (tokens, hidden).
        """
        ends = counts.cumsum()
        firsts = ends - counts

        def run(part: Sequence[int]) -> list[Tensor]:
            """One pass over the cached columns, for some of the rows; a pass that fails adds nothing."""
            passes: list[GroupPass] = []
            new: list[np.ndarray] = []  # the tokens of each pass
            first = 0
            for group in self._groups:
                begin, end = (
                    np.searchsorted(rows[part[0] : part[-1] + 1], (first, first + group.rows)) + part[0]
                )
                if end > begin:
                    passes.append(
                        GroupPass(
                            group,
                            rows[begin:end] - first,
                            counts[begin:end],
                            compiles=self._model.compiles,
                        )
                    )
                    new.append(ids[firsts[begin] : ends[end - 1]])
                first += group.rows
            hidden = self._model.run(np.concatenate(new), passes)  # (tokens, hidden)
            for group_pass in passes:
                if group_pass.group.branches:
                    group_pass.group.steps[group_pass.rows] += 1
                else:
                    group_pass.group.seen[group_pass.rows] += group_pass.counts
                    group_pass.group.lengths[group_pass.group.text_of[group_pass.rows]] += group_pass.counts
            return [hidden]

        # Where memory is short, for half of the rows and then for the others.
        return torch.cat(self._model.memory.halving(run, range(len(rows)), "sequences"))
