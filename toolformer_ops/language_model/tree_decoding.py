"""Decode samples of many texts in one pass: each row is one sample's next token, each text keeps its own attention.

What costs time in a decoding step is reading the weights, once a pass, whatever the number of rows. So the rows of all texts that
grow at the moment go through norms, projections and feed-forward layers together, as a sequence of N tokens. Only attention looks
beyond a row: it is computed text by text over three kinds of columns, none of which is ever copied for a row.

    prompt    keys and values of start token and prompt: one set for all texts
    text      those of the text (in the prompt's slot, and again): one set for all rows of the text
    own       those that a row itself has added: its call so far

A row sees the prompt, the text up to its position, and its own columns. Layers with a sliding window also look at the distance.

`extend` takes in several tokens of each text at once, such as a prompt, in the same way: for texts of one row, whose new tokens see
what is there and those of them that come before.

A row's numbers do not depend on the other texts: attention has the shapes of its own text alone, and every other operation treats
rows one by one. For that the matrix products must give a row the same bits whatever the number of rows. Here they were seen to do
so, in float32 and bfloat16, from four rows on; therefore passes are filled up to a multiple of `ROW_MULTIPLE` rows.

transformers calls `attend` in place of a network's attention while a `TreeDecoder` is at work (its attention interface; the method
`_attn` for GPT-J, which has none). Networks that cannot be entered so are found at load by comparison with plain passes.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from toolformer_ops.language_model.memory import halving
from toolformer_ops.language_model.tree_attention import Extensions, Steps, TreePass
from toolformer_ops.language_model.trees import Tree

ROW_MULTIPLE = 16
"""Rows of a pass are filled up to a multiple of this."""
_NAME = "toolformer_ops_trees"


class TreeDecoder:
    """Decoding steps of one network."""

    def __init__(self, network: Any, config: Any, sliding_window: int | None) -> None:
        self._decoder = network.base_model
        self._config = config
        self._sliding_window = sliding_window
        self._device = torch.device(network.device)
        self._plain_attention = [
            module for module in network.modules() if hasattr(module, "_attn") and hasattr(module, "scale_attn")
        ]
        self._running: TreePass | None = None

    def step(self, trees: Sequence[Tree], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """Append `tokens[n][r]` to row r of tree n; returns their last hidden states, (rows, hidden) a tree."""
        return halving(self._step, list(zip(trees, tokens, strict=True)), "texts")

    def _step(self, rows: Sequence[tuple[Tree, Sequence[int]]]) -> list[Tensor]:
        """One pass over trees, each with its rows' tokens; what it has added to a tree counts only once it is through."""
        trees, tokens = [tree for tree, _ in rows], [of_tree for _, of_tree in rows]
        steps = Steps(trees)
        hidden = self._pass(steps, tokens, [tree.lengths + tree.steps for tree in trees])
        for tree in trees:
            tree.steps += 1
        return [hidden[first:last] for _, first, last in steps.spans]

    def extend(self, trees: Sequence[Tree], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """Append all of `tokens[n]`, at least one, to the single row of tree n; their hidden states, (tokens, hidden) a tree."""
        for tree in trees:
            tree.fold()
        return halving(self._extend, list(zip(trees, tokens, strict=True)), "texts")

    def _extend(self, rows: Sequence[tuple[Tree, Sequence[int]]]) -> list[Tensor]:
        trees, tokens = [tree for tree, _ in rows], [of_tree for _, of_tree in rows]
        extensions = Extensions(trees, tokens)
        positions = [
            tree.lengths + torch.arange(len(row), device=tree.lengths.device)
            for tree, row in zip(trees, tokens, strict=True)
        ]
        hidden = self._pass(extensions, tokens, positions)
        for (tree, first, last), columns in zip(extensions.spans, extensions.columns, strict=True):
            tree.text = columns
            tree.lengths = tree.lengths + (last - first)
        return [hidden[first:last] for _, first, last in extensions.spans]

    def _pass(self, running: TreePass, tokens: Sequence[Sequence[int]], positions: Sequence[Tensor]) -> Tensor:
        """One pass through the network; last hidden states of its rows, filled up, (rows, hidden)."""
        ids = [token for row in tokens for token in row]
        padding = -len(ids) % ROW_MULTIPLE
        places = torch.cat(list(positions))
        places = torch.cat([places, places.new_zeros(padding)])  # (rows of the pass,)
        self._running = running
        try:
            with self._attention():
                hidden: Tensor = self._decoder(
                    input_ids=torch.tensor([ids + ids[:1] * padding], device=self._device),
                    position_ids=places[None],
                    use_cache=False,
                ).last_hidden_state[0]  # (rows of the pass, hidden)
        finally:
            self._running = None
        return hidden

    @contextlib.contextmanager
    def _attention(self) -> Iterator[None]:
        """The network's layers call `_attend` while this lasts."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        before = self._config._attn_implementation
        ALL_ATTENTION_FUNCTIONS.register(_NAME, self._attend)
        self._config._attn_implementation = _NAME
        for module in self._plain_attention:
            module._attn = _bound(self, module)
        try:
            yield
        finally:
            self._config._attn_implementation = before
            for module in self._plain_attention:
                del module._attn

    def _attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        sliding_window: int | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Attention as transformers' interface has it: from (1, heads, rows, width) to (1, rows, heads, width)."""
        running = self._running
        if running is None:
            raise RuntimeError("expected attention over trees only inside a TreeDecoder's pass")
        window = sliding_window if self._sliding_window is not None else None
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        rows, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # (rows, heads, width)
        mixed = running.attend(module.layer_idx, rows, keys, values, window, scale, softcap)
        return mixed[None], None


def _bound(decoder: TreeDecoder, module: Any) -> Any:
    """GPT-J's own attention method, over trees: from and to (1, heads, rows, width)."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        mixed, _ = decoder._attend(module, query, key, value, mask, scaling=1.0 / float(module.scale_attn))
        return mixed.transpose(1, 2), None

    return attend
