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
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from toolformer_ops.language_model.out_of_memory import halving

ROW_MULTIPLE = 16
"""Rows of a pass are filled up to a multiple of this."""
_CAPACITY_STEP = 8
_NAME = "toolformer_ops_trees"

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
    """Keys and values a layer, (rows, key-value heads, capacity, width) each."""
    steps: int = 0
    """How many own columns are filled."""

    @property
    def rows(self) -> int:
        """How many rows grow."""
        return len(self.lengths)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows, in this order; a row may be taken several times."""
        if list(rows) != list(range(self.rows)):
            index = torch.tensor(list(rows), device=self.lengths.device)
            self.lengths = self.lengths[index]
            self.own = [(keys[index], values[index]) for keys, values in self.own]

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
        old_keys[:, :, self.steps] = keys
        old_values[:, :, self.steps] = values
        return old_keys[:, :, : self.steps + 1], old_values[:, :, : self.steps + 1]


class _Steps:
    """A pass that takes in one token a row: the trees, where their rows stand in it, and their masks."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        ends = torch.tensor([tree.rows for tree in trees]).cumsum(0).tolist()
        self.spans = [(tree, end - tree.rows, end) for tree, end in zip(trees, ends, strict=True)]
        self._hidden: dict[tuple[int, int | None], Tensor] = {}

    def hidden(self, number: int, window: int | None) -> Tensor:
        """Which columns the rows of a tree do not see, (rows, columns) bool; once a pass for all layers of one kind."""
        if (number, window) not in self._hidden:
            tree = self.spans[number][0]
            shared = tree.prompt[0][0].shape[1] + tree.text[0][0].shape[1]
            device = tree.lengths.device
            columns = torch.arange(shared, device=device)[None, :].expand(tree.rows, -1)
            hidden = columns >= tree.lengths[:, None]  # (rows, shared)
            own = tree.lengths[:, None] + torch.arange(tree.steps + 1, device=device)[None, :]  # (rows, own)
            hidden = torch.cat([hidden, torch.zeros_like(own, dtype=torch.bool)], dim=1)
            if window is not None:
                distance = tree.lengths[:, None] + tree.steps - torch.cat([columns, own], dim=1)
                hidden = hidden | (distance >= window)
            self._hidden[number, window] = hidden
        return self._hidden[number, window]

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
            own = tree.append(layer, keys[first:last], values[first:last])
            mixed[first:last] = _attend_tree(
                tree.prompt[layer],
                tree.text[layer],
                own,
                queries[first:last],
                self.hidden(number, window),
                scale,
                softcap,
            )
        return mixed


class _Extensions:
    """A pass that takes in several tokens of each tree, which has a single row and no own columns."""

    def __init__(self, trees: Sequence[Tree], tokens: Sequence[Sequence[int]]) -> None:
        ends = torch.tensor([len(row) for row in tokens]).cumsum(0).tolist()
        self.spans = [(tree, end - len(row), end) for tree, row, end in zip(trees, tokens, ends, strict=True)]
        self.columns: list[Columns] = [[] for _ in trees]
        """The text's columns with the new ones, layer by layer."""

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
        """Attention of all new tokens, (tokens, heads, width)."""
        mixed = queries.new_zeros((*queries.shape[:2], values.shape[-1]))
        for number, (tree, first, last) in enumerate(self.spans):
            old_keys, old_values = tree.text[layer]
            text = (
                torch.cat([old_keys, keys[first:last].transpose(0, 1)], 1),
                torch.cat([old_values, values[first:last].transpose(0, 1)], 1),
            )
            self.columns[number].append(text)
            none = keys[first:last, :, None][:, :, :0]
            no_values = values[first:last, :, None][:, :, :0]
            mixed[first:last] = _attend_tree(
                tree.prompt[layer],
                text,
                (none, no_values),
                queries[first:last],
                self._hidden(number, window),
                scale,
                softcap,
            )
        return mixed

    def _hidden(self, number: int, window: int | None) -> Tensor:
        """Which columns the new tokens of a tree do not see, (tokens, columns) bool."""
        tree, first, last = self.spans[number]
        places = int(tree.lengths[0]) + torch.arange(last - first, device=tree.lengths.device)  # (tokens,)
        distance = places[:, None] - torch.arange(int(tree.lengths[0]) + last - first, device=places.device)[None, :]
        return distance < 0 if window is None else (distance < 0) | (distance >= window)


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
        self._running: _Steps | _Extensions | None = None

    def step(self, trees: Sequence[Tree], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """Append `tokens[n][r]` to row r of tree n; returns their last hidden states, (rows, hidden) a tree."""

        def run(numbers: Sequence[int]) -> list[Tensor]:
            return self._step([trees[number] for number in numbers], [tokens[number] for number in numbers])

        return halving(run, range(len(trees)), "texts")

    def _step(self, trees: Sequence[Tree], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """One pass; what it has added to a tree counts only once it is through."""
        steps = _Steps(trees)
        hidden = self._pass(steps, tokens, [tree.lengths + tree.steps for tree in trees])
        for tree in trees:
            tree.steps += 1
        return [hidden[first:last] for _, first, last in steps.spans]

    def extend(self, trees: Sequence[Tree], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """Append all of `tokens[n]`, at least one, to the single row of tree n; its last hidden states, (hidden,) a tree."""
        for tree in trees:
            tree.fold()

        def run(numbers: Sequence[int]) -> list[Tensor]:
            return self._extend([trees[number] for number in numbers], [tokens[number] for number in numbers])

        return halving(run, range(len(trees)), "texts")

    def _extend(self, trees: Sequence[Tree], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        extensions = _Extensions(trees, tokens)
        positions = [
            tree.lengths + torch.arange(len(row), device=tree.lengths.device)
            for tree, row in zip(trees, tokens, strict=True)
        ]
        hidden = self._pass(extensions, tokens, positions)
        for (tree, first, last), columns in zip(extensions.spans, extensions.columns, strict=True):
            tree.text = columns
            tree.lengths = tree.lengths + (last - first)
        return [hidden[last - 1] for _, _, last in extensions.spans]

    def _pass(
        self, running: "_Steps | _Extensions", tokens: Sequence[Sequence[int]], positions: Sequence[Tensor]
    ) -> Tensor:
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


def _attend_tree(
    prompt: tuple[Tensor, Tensor],
    text: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    queries: Tensor,
    hidden: Tensor,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attention of one text's rows, (rows, heads, width), over a layer's prompt, text and own columns; softmax in float32."""
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
    scores = scores * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    shaped = scores.view(shared_heads, rows, -1, scores.shape[-1])
    shaped = shaped.masked_fill(hidden[None, :, None, :], torch.finfo(torch.float32).min)
    weights = shaped.softmax(dim=-1).to(queries.dtype)  # (key heads, rows, group, columns)
    flat = weights.view(shared_heads, -1, weights.shape[-1])
    prompt_end = prompt_keys.shape[1]
    text_end = prompt_end + text_keys.shape[1]
    mixed = flat[..., :prompt_end] @ prompt_values + flat[..., prompt_end:text_end] @ text_values
    from_own = weights[..., text_end:].transpose(0, 1) @ own[1]  # (rows, key heads, group, width)
    return (mixed.view(shared_heads, rows, -1, mixed.shape[-1]).transpose(0, 1) + from_own).reshape(rows, heads, -1)
