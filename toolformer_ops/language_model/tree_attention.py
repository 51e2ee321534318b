"""Attention in one pass over many texts: each tree's rows look at its prompt, its text and their own columns, and at no other tree.

    Steps        one token more a row
    Extensions   several tokens more of texts with a single row

Called layer by layer while the network runs (`tree_decoding.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from toolformer_ops.language_model.trees import Columns, Tree

KeysValues = tuple[Tensor, Tensor]


class TreePass(ABC):
    """The trees of one pass through the network, and where their rows stand in it."""

    def __init__(self, trees: Sequence[Tree], rows: Sequence[int]) -> None:
        ends = torch.tensor(list(rows)).cumsum(0).tolist()
        self.spans = [(tree, end - count, end) for tree, count, end in zip(trees, rows, ends, strict=True)]
        """A tree, its first row and the end of its rows."""

    @abstractmethod
    def take_in(self, number: int, layer: int, keys: Tensor, values: Tensor) -> tuple[KeysValues, KeysValues]:
        """Add the new keys and values of a tree, (rows, heads, width) each; its text columns and its own ones."""

    @abstractmethod
    def hidden(self, number: int, window: int | None) -> Tensor:
        """Which columns the rows of a tree do not see, (rows, columns) bool; the first ones, if all see them, may be left out."""

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
        """Attention of all rows of the pass, (rows, heads, width)."""
        mixed = queries.new_zeros((*queries.shape[:2], values.shape[-1]))
        for number, (tree, first, last) in enumerate(self.spans):
            text, own = self.take_in(number, layer, keys[first:last], values[first:last])
            mixed[first:last] = _attend_tree(
                tree.prompt[layer], text, own, queries[first:last], self.hidden(number, window), scale, softcap
            )
        return mixed


class Steps(TreePass):
    """A pass that takes in one token a row."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        super().__init__(trees, [tree.rows for tree in trees])
        self._hidden: dict[tuple[int, int | None], Tensor] = {}

    def take_in(self, number: int, layer: int, keys: Tensor, values: Tensor) -> tuple[KeysValues, KeysValues]:
        """One own column more a row."""
        tree = self.spans[number][0]
        return tree.text[layer], tree.append(layer, keys, values)

    def hidden(self, number: int, window: int | None) -> Tensor:
        """See `TreePass.hidden`; once a pass for all layers of one kind. All rows see the prompt, unless a window slides."""
        if (number, window) not in self._hidden:
            tree = self.spans[number][0]
            prompt = tree.prompt[0][0].shape[1]
            shared = prompt + tree.text[0][0].shape[1]
            first = prompt if window is None else 0
            device = tree.lengths.device
            columns = torch.arange(first, shared, device=device)[None, :].expand(tree.rows, -1)
            hidden = columns >= tree.lengths[:, None]  # (rows, shared)
            own = tree.lengths[:, None] + torch.arange(tree.steps + 1, device=device)[None, :]  # (rows, own)
            hidden = torch.cat([hidden, torch.zeros_like(own, dtype=torch.bool)], dim=1)
            if window is not None:
                distance = tree.lengths[:, None] + tree.steps - torch.cat([columns, own], dim=1)
                hidden = hidden | (distance >= window)
            self._hidden[number, window] = hidden
        return self._hidden[number, window]


class Extensions(TreePass):
    """A pass that takes in several tokens of each tree, which has a single row and no own columns."""

    def __init__(self, trees: Sequence[Tree], tokens: Sequence[Sequence[int]]) -> None:
        super().__init__(trees, [len(row) for row in tokens])
        self.columns: list[Columns] = [[] for _ in trees]
        """The text's columns with the new ones, layer by layer."""

    def take_in(self, number: int, layer: int, keys: Tensor, values: Tensor) -> tuple[KeysValues, KeysValues]:
        """The text with the new columns; no own ones."""
        old_keys, old_values = self.spans[number][0].text[layer]
        text = (torch.cat([old_keys, keys.transpose(0, 1)], 1), torch.cat([old_values, values.transpose(0, 1)], 1))
        self.columns[number].append(text)
        return text, (keys[:, :, None][:, :, :0], values[:, :, None][:, :, :0])

    def hidden(self, number: int, window: int | None) -> Tensor:
        """Which columns the new tokens of a tree do not see, (tokens, columns) bool."""
        tree, first, last = self.spans[number]
        places = int(tree.lengths[0]) + torch.arange(last - first, device=tree.lengths.device)  # (tokens,)
        distance = places[:, None] - torch.arange(int(tree.lengths[0]) + last - first, device=places.device)[None, :]
        return distance < 0 if window is None else (distance < 0) | (distance >= window)


def _attend_tree(
    prompt: tuple[Tensor, Tensor],
    text: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    queries: Tensor,
    hidden: Tensor,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attention of one text's rows, (rows, heads, width), over a layer's prompt, text and own columns; softmax in float32.

    `hidden`, (rows, columns) bool, may leave out the first columns, which all rows see then.
    """
    rows, heads, width = queries.shape
    shared_heads = own[0].shape[1]
    grouped = queries.view(rows, shared_heads, heads // shared_heads, width)  # query heads by the key head they use
    by_head = grouped.transpose(0, 1).reshape(shared_heads, -1, width)  # (key heads, rows * group, width)
    (prompt_keys, prompt_values), (text_keys, text_values) = prompt, text
    own_scores = grouped @ own[0].transpose(2, 3)  # (rows, key heads, group, own columns)
    scores = torch.cat(
        [
            by_head @ prompt_keys.transpose(1, 2),
            by_head @ text_keys.transpose(1, 2),
            own_scores.transpose(0, 1).reshape(shared_heads, by_head.shape[1], own_scores.shape[-1]),
        ],
        dim=-1,
    ).float()  # (key heads, rows * group, columns)
    scores.mul_(scale)
    if softcap:
        scores.div_(softcap).tanh_().mul_(softcap)
    shaped = scores.view(shared_heads, rows, -1, scores.shape[-1])
    shaped[..., scores.shape[-1] - hidden.shape[-1] :].masked_fill_(
        hidden[None, :, None], torch.finfo(torch.float32).min
    )
    weights = shaped.softmax(dim=-1).to(queries.dtype)  # (key heads, rows, group, columns)
    flat = weights.view(shared_heads, -1, weights.shape[-1])
    prompt_end = prompt_keys.shape[1]
    text_end = prompt_end + text_keys.shape[1]
    mixed = flat[..., :prompt_end] @ prompt_values + flat[..., prompt_end:text_end] @ text_values
    from_own = weights[..., text_end:].transpose(0, 1) @ own[1]  # (rows, key heads, group, width)
    return (mixed.view(shared_heads, rows, -1, mixed.shape[-1]).transpose(0, 1) + from_own).reshape(rows, heads, -1)
