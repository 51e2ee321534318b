"""Texts that are written side by side: each row has a cache of its own, takes in tokens, may forget its last ones, and goes on.

    begin     start token and prompt; the head that prompts share is computed once
    insert    several tokens at once for each of some rows, such as tools' results
    step      one token more for each of some rows, in one pass (`tree_decoding.py`)
    cut       forget the last tokens of a row, such as a call that came to nothing

A row's numbers follow from its own tokens and from the pieces in which they came, never from the rows beside it. Networks that
cannot decode in trees are run row by row. Chooses no token: `decoding/` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toolformer_ops.language_model.branches import Branches, CachedBranches
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.trees import Tree

MAX_HEADS = 8
"""Shared heads that are kept."""
PASS_TOKENS = 1024
"""Most tokens that rows take in together in one pass; more of a single row are one pass, too."""


@dataclass
class Row:
    """One text's cache."""

    state: Tree | Branches
    length: int
    """How many tokens it holds."""


class Rows:
    """Rows of one model. Not for use by several threads at once."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._heads: dict[tuple[int, ...], Branches] = {}

    def begin(self, prompts: Sequence[tuple[Sequence[int], int]]) -> list[tuple[Row, Tensor]]:
        """A new row for each (ids, shared), and the logits of what follows, (vocabulary,), float32.

        The first `shared` ids are computed once for all rows that begin with the same; at least the last one is the row's own.
        A prompt may be the start token alone.
        """
        rows = []
        for ids, shared in prompts:
            length = min(max(shared, 1), len(ids) - 1)
            rows.append(Row(self._begun(tuple(ids), length), length))
        return list(
            zip(
                rows,
                self.insert(rows, [ids[row.length :] for row, (ids, _) in zip(rows, prompts, strict=True)]),
                strict=True,
            )
        )

    def step(self, rows: Sequence[Row], tokens: Sequence[int]) -> Tensor:
        """Append `tokens[n]` to row n; the logits of what follows, (rows, vocabulary), float32."""
        trees = [row.state for row in rows if isinstance(row.state, Tree)]
        if self._model.trees is not None and len(trees) == len(rows):
            states = self._model.trees.step(trees, [[token] for token in tokens])
        else:
            states = [self._branch(row).extend([[token]])[0] for row, token in zip(rows, tokens, strict=True)]
        for row in rows:
            row.length += 1
        return self._model.log_probabilities(torch.cat(states))

    def insert(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Append all of `tokens[n]`, at least one, to row n; the logits of what follows, (rows, vocabulary), float32."""
        states: list[Tensor] = []
        for group in _groups([len(row) for row in tokens]):
            states += self._extend([rows[number] for number in group], [tokens[number] for number in group])
        for row, added in zip(rows, tokens, strict=True):
            row.length += len(added)
        return self._model.log_probabilities(torch.stack(states))

    def _extend(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        trees = [row.state for row in rows if isinstance(row.state, Tree)]
        if self._model.trees is not None and len(trees) == len(rows):
            return [states[-1] for states in self._model.trees.extend(trees, tokens)]
        return [self._branch(row).extend([list(added)])[0][-1] for row, added in zip(rows, tokens, strict=True)]

    def cut(self, row: Row, length: int) -> None:
        """Forget all but the first `length` tokens of a row."""
        if isinstance(row.state, Tree):
            row.state.cut(length)
        else:
            row.state = self._branch(row).fork([0], [length])
        row.length = length

    def _head(self, ids: tuple[int, ...]) -> Branches:
        if ids not in self._heads:
            if len(self._heads) >= MAX_HEADS:
                self._heads.pop(next(iter(self._heads)))
            head = self._model.branches()
            head.extend([ids])
            self._heads[ids] = head
        return self._heads[ids]

    def _begun(self, ids: tuple[int, ...], length: int) -> Tree | Branches:
        """A row that holds the first `length` tokens of `ids`."""
        head = self._head(ids[: max(length, 1)])
        if self._model.trees is None or not isinstance(head, CachedBranches):
            return head.fork([0]) if length else self._model.branches()
        # With length 0 the head serves only for the shapes of its columns: rows of one model are all trees or all branches.
        columns = [(keys[:, :length], values[:, :length]) for keys, values in head.views()]
        none = [(keys[:, :0], values[:, :0]) for keys, values in columns]
        return Tree(columns, none, torch.tensor([length], device=self._model.device))

    def _branch(self, row: Row) -> Branches:
        if isinstance(row.state, Tree):
            raise TypeError("expected rows that are all trees or all branches")
        return row.state


def _groups(lengths: Sequence[int]) -> list[list[int]]:
    """Consecutive numbers in groups of at most `PASS_TOKENS` tokens, or of one."""
    groups: list[list[int]] = []
    tokens = 0
    for number, length in enumerate(lengths):
        if not groups or tokens + length > PASS_TOKENS:
            groups.append([])
            tokens = 0
        groups[-1].append(number)
        tokens += length
    return groups
