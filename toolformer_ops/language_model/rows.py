"""Texts that are written side by side: each row has a cache of its own, takes in tokens, may forget its last ones, and goes on.

    begin     start token and prompt; the head that prompts share is computed once
    step      one token more for each of some rows, in one pass (`tree_decoding.py`)
    insert    several tokens at once for one row, such as a tool's result
    cut       forget the last tokens of a row, such as a call that came to nothing

A row's numbers follow from its own tokens and from the pieces in which they came, never from the rows beside it: steps treat
rows one by one, and all else is computed a row at a time. Networks that cannot decode in trees are run row by row.
Chooses no token: `decoding/` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toolformer_ops.language_model.branches import Branches, CachedBranches
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.tree_decoding import ROW_MULTIPLE, Columns, Tree

MAX_HEADS = 8
"""Shared heads that are kept."""


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

    def begin(self, ids: Sequence[int], shared: int = 0) -> tuple[Row, Tensor]:
        """A new row that holds `ids`, and the logits of what follows, (vocabulary,), float32.

        The first `shared` of them are computed once for all rows that begin with the same; at least one is the row's own.
        """
        shared = min(shared, len(ids) - 1)
        head = self._head(tuple(ids[:shared]))
        branch = head.fork([0])
        hidden = branch.extend([list(ids[shared:])])[0][-1]
        columns = head.views() if isinstance(head, CachedBranches) and shared else None
        return Row(self._as_state(branch, columns), len(ids)), self._logits(hidden[None])[0]

    def step(self, rows: Sequence[Row], tokens: Sequence[int]) -> Tensor:
        """Append `tokens[n]` to row n; the logits of what follows, (rows, vocabulary), float32."""
        trees = [row.state for row in rows if isinstance(row.state, Tree)]
        if self._model.trees is not None and len(trees) == len(rows):
            states = self._model.trees.step(trees, [[token] for token in tokens])
        else:
            states = [self._branch(row).extend([[token]])[0] for row, token in zip(rows, tokens, strict=True)]
        for row in rows:
            row.length += 1
        return self._logits(torch.cat(states))

    def insert(self, row: Row, tokens: Sequence[int]) -> Tensor:
        """Append all of `tokens`, at least one, to one row; the logits of what follows, (vocabulary,), float32."""
        if isinstance(row.state, Tree):
            branch: Branches = CachedBranches.empty(self._model).continued(row.state.columns())
            hidden = branch.extend([list(tokens)])[0][-1]
            row.state = self._as_state(branch, row.state.prompt)
        else:
            hidden = self._branch(row).extend([list(tokens)])[0][-1]
        row.length += len(tokens)
        return self._logits(hidden[None])[0]

    def cut(self, row: Row, length: int) -> None:
        """Forget all but the first `length` tokens of a row."""
        if isinstance(row.state, Tree):
            row.state.cut(length)
        else:
            row.state = self._branch(row).fork([0], [length])
        row.length = length

    def _head(self, ids: tuple[int, ...]) -> Branches:
        if not ids:
            return self._model.branches()
        if ids not in self._heads:
            if len(self._heads) >= MAX_HEADS:
                self._heads.pop(next(iter(self._heads)))
            head = self._model.branches()
            head.extend([ids])
            self._heads[ids] = head
        return self._heads[ids]

    def _as_state(self, branch: Branches, head: Columns | None) -> Tree | Branches:
        """The row as a tree that shares the columns of its head, if it has one, and holds the others by itself."""
        if self._model.trees is None or not isinstance(branch, CachedBranches):
            return branch
        prompt = head or [(keys[:, :0], values[:, :0]) for keys, values in branch.views()]
        own = branch.columns(prompt[0][0].shape[1])
        length = branch.views()[0][0].shape[1]
        return Tree(prompt, own, torch.tensor([length], device=self._model.device))

    def _branch(self, row: Row) -> Branches:
        if isinstance(row.state, Tree):
            raise TypeError("expected rows that are all trees or all branches")
        return row.state

    def _logits(self, hidden: Tensor) -> Tensor:
        """For (rows, hidden); filled up to a multiple of rows, so that a row has the same bits whatever its company."""
        padding = hidden.new_zeros((-len(hidden) % ROW_MULTIPLE, hidden.shape[1]))
        return self._model.log_probabilities(torch.cat([hidden, padding]))[: len(hidden)]
