"""Attention of one pass over a group of texts: each new token sees the prompt, its text up to a place, and its own sequence.

What costs time in a decode step is reading the weights, once a pass, for any number of rows. So the new tokens of all texts go
through norms, projections and feed-forward layers together, as one sequence of N tokens. Only attention looks beyond a row. It is
computed for a group of texts (`kv_cache.Group`) over three kinds of columns, none of which is copied for a row:

    prompt    keys and values of start token and prompt: one set for all texts
    text      those of the text: one set for all sequences of the text
    own       those that a sequence itself has added: its call so far

A group is one text on a CPU, where nothing is padded, so that a row has the same bits in every batch. On other devices it
is all texts of a prompt, the texts padded to the longest: the number of operations does not depend on how many there are.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from toolformer_ops.language_model.kv_cache import Group

LONG_TOKENS = {"cpu": 256, "cuda": 2}
"""From so many new tokens of a text on, torch's fused attention takes over, which does not hold all scores; below, on a CPU, it is
the slower one."""


class GroupPass:
    """What one pass adds to a group, and what each of the new tokens sees of it."""

    def __init__(self, group: "Group", rows: np.ndarray, counts: np.ndarray) -> None:
        """`counts[n]` new tokens for row `rows[n]`; one each where the group's sequences have columns of their own."""
        self.group = group
        of_row = np.repeat(rows, counts)  # (tokens,)
        nth = np.arange(len(of_row)) - np.repeat(counts.cumsum() - counts, counts)  # (tokens,): of its row's new ones
        self.positions = group.seen[of_row] + group.steps[of_row] + nth
        text = group.text_of[of_row]
        prompt = group.prompt.length
        seen = group.seen[of_row] if group.branches else self.positions + 1
        column = group.steps[of_row] if group.branches else self.positions - prompt  # where the new key is written
        self._text_columns = int(group.lengths.max(initial=0)) if group.branches else int(column.max()) + 1
        self._own_columns = int(group.steps[rows].max()) + 1 if group.branches else 0
        self._single = len(group.lengths) == 1
        self._whole = len(rows) == group.rows
        self._width = len(text)
        unpad, pad = np.arange(len(text)), np.zeros(0, dtype=np.int64)
        if not self._single:  # tokens by text, padded to the text with the most
            per_text = np.bincount(text, minlength=len(group.lengths))
            self._width = int(per_text.max())
            by_text = np.argsort(text, kind="stable")
            place = np.empty_like(by_text)
            place[by_text] = np.arange(len(text)) - (per_text.cumsum() - per_text)[text[by_text]]
            unpad = text * self._width + place
            pad = np.zeros(len(group.lengths) * self._width, dtype=np.int64)
            pad[unpad] = np.arange(len(text))
        fields = (self.positions, seen, column, text, of_row, unpad)
        self._numbers = np.concatenate([np.stack(fields).reshape(-1), pad])
        self._on_device: dict[torch.device, tuple[Tensor, ...]] = {}
        self._masks: dict[tuple[torch.device, int | None, bool], Tensor] = {}

    def __len__(self) -> int:
        return len(self.positions)

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
        """Attention of the new tokens, (tokens, heads, width), whose keys and values, (tokens, key heads, width), are added."""
        text_keys, text_values = self._written_text(layer, keys, values)  # (key heads, texts, columns, width)
        kind = "cpu" if queries.device.type == "cpu" else "cuda"
        if not self.group.branches and not softcap and self._width >= LONG_TOKENS[kind]:
            return self._fused(layer, queries, text_keys, text_values, window, scale)
        tokens, heads, width = queries.shape
        key_heads, texts, text_columns = text_keys.shape[:3]
        *_, unpad, pad = self._indices(queries.device)

        # 1. Scores of the prompt's, the text's and the sequence's own columns, by the key head that query heads share.
        grouped = queries.view(tokens, key_heads, heads // key_heads, width)
        by_head = grouped.transpose(0, 1).reshape(key_heads, -1, width)  # (key heads, tokens * group, width)
        per_token = by_head.shape[1] // tokens
        asking = by_head
        if not self._single:
            asking = by_head.view(key_heads, tokens, -1).index_select(1, pad)
        flat_keys = text_keys.reshape(key_heads * texts, text_columns, width)
        to_text = asking.view(key_heads * texts, -1, width) @ flat_keys.transpose(1, 2)
        if not self._single:
            to_text = to_text.view(key_heads, texts * self._width, -1).index_select(1, unpad)
        pieces = [to_text.view(key_heads, by_head.shape[1], text_columns)]
        prompt = self.group.prompt.length
        if prompt:
            prompt_keys, prompt_values = self.group.prompt.columns[layer]  # (key heads, columns, width)
            pieces.insert(0, by_head @ prompt_keys.transpose(1, 2))
        if self.group.branches:
            own_keys, own_values = self._written_own(layer, keys, values)  # (tokens, key heads, columns, width)
            to_own = grouped @ own_keys.transpose(2, 3)  # (tokens, key heads, group, own columns)
            pieces.append(to_own.transpose(0, 1).reshape(key_heads, by_head.shape[1], self._own_columns))
        scores = torch.cat(pieces, dim=-1).float()  # (key heads, tokens * group, columns)

        # 2. Softmax in float32 over what a token sees. The mask may leave out the first columns, which all see.
        scores.mul_(scale)
        if softcap:
            scores.div_(softcap).tanh_().mul_(softcap)
        hidden = self._hidden(queries.device, window)
        shaped = scores.view(key_heads, tokens, per_token, scores.shape[-1])
        shaped[..., scores.shape[-1] - hidden.shape[-1] :].masked_fill_(
            hidden[None, :, None], torch.finfo(torch.float32).min
        )
        weights = shaped.softmax(dim=-1).to(queries.dtype)  # (key heads, tokens, group, columns)

        # 3. The values, mixed by these weights.
        flat = weights.view(key_heads, -1, weights.shape[-1])
        end = prompt + text_columns
        flat_values = text_values.reshape(key_heads * texts, text_columns, -1)
        if self._single:
            mixed = flat[..., prompt:end] @ flat_values
        else:
            of_text = weights[..., prompt:end].index_select(
                1, pad
            )  # (key heads, texts * padded tokens, group, columns)
            padded = of_text.view(key_heads * texts, -1, text_columns) @ flat_values
            mixed = padded.view(key_heads, texts * self._width, -1).index_select(1, unpad)
            mixed = mixed.view(key_heads, by_head.shape[1], -1)
        if prompt:
            mixed = flat[..., :prompt] @ prompt_values + mixed
        mixed = mixed.view(key_heads, tokens, per_token, -1).transpose(0, 1)
        if self.group.branches:
            mixed = mixed + weights[..., end:].transpose(0, 1) @ own_values  # (tokens, key heads, group, width)
        return mixed.reshape(tokens, heads, -1)

    def _fused(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, window: int | None, scale: float
    ) -> Tensor:
        """Torch's attention over prompt and text in one, of texts that are padded to the longest."""
        heads, width = queries.shape[1:]
        key_heads, texts = keys.shape[:2]
        *_, unpad, pad = self._indices(queries.device)
        hidden = self._hidden(queries.device, window, all_columns=True)  # (tokens, columns)
        asking = queries
        if not self._single:
            asking, hidden = queries.index_select(0, pad), hidden.index_select(0, pad)
        both: list[Tensor] = []
        for of_prompt, of_text in zip((0, 1), (keys, values), strict=True):
            columns = of_text.transpose(0, 1)  # (texts, key heads, columns, width)
            if self.group.prompt.length:
                shared = self.group.prompt.columns[layer][of_prompt]
                columns = torch.cat([shared[None].expand(texts, -1, -1, -1), columns], dim=2)
            shape = (texts, key_heads, heads // key_heads, *columns.shape[2:])
            both.append(columns[:, :, None].expand(shape).reshape(texts, heads, *columns.shape[2:]))
        mask = torch.zeros(hidden.shape, dtype=queries.dtype, device=queries.device)
        mask = mask.masked_fill_(hidden, torch.finfo(queries.dtype).min).view(texts, 1, -1, hidden.shape[-1])
        mixed = functional.scaled_dot_product_attention(
            asking.view(texts, -1, heads, width).transpose(1, 2), both[0], both[1], attn_mask=mask, scale=scale
        )  # (texts, heads, padded tokens, width)
        mixed = mixed.transpose(1, 2).reshape(texts * self._width, heads, -1)
        return mixed if self._single else mixed.index_select(0, unpad)

    def _written_text(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The texts' columns of a layer, with the new ones where the sequences have none of their own."""
        group, found = self.group, []
        if not group.branches:
            group.make_text_room(layer, self._text_columns, keys, values)
            _, _, column, text, *_ = self._indices(keys.device)
            first = int(self.positions[0]) - group.prompt.length
            for held, new in zip(group.text[layer], (keys, values), strict=True):
                if self._single:
                    held[:, 0, first : first + len(self)] = new.transpose(0, 1)
                else:
                    held[:, text, column] = new.transpose(0, 1)
        for held in group.text[layer]:
            found.append(held[:, :, : self._text_columns])
        return found[0], found[1]

    def _written_own(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The own columns of the sequences of the pass, with the new ones, (tokens, key heads, columns, width)."""
        group, found = self.group, []
        group.make_own_room(layer, self._own_columns, keys, values)
        _, _, column, _, of_row, *_ = self._indices(keys.device)
        for held, new in zip(group.own[layer], (keys, values), strict=True):
            if self._single and self._whole:
                held[: group.rows, :, self._own_columns - 1] = new
            else:
                held[of_row, :, column] = new
            rows = held[: group.rows] if self._whole else held.index_select(0, of_row)
            found.append(rows[:, :, : self._own_columns])
        return found[0], found[1]

    def _hidden(self, device: torch.device, window: int | None, *, all_columns: bool = False) -> Tensor:
        """Which columns the new tokens do not see, (tokens, columns) bool, once a pass for all layers of one kind.

        Without a sliding window the prompt, which all see, is left out unless `all_columns`.
        """
        if (device, window, all_columns) not in self._masks:
            positions, seen, own_column, *_ = self._indices(device)
            prompt = self.group.prompt.length
            first = prompt if window is None and not all_columns else 0
            columns = torch.arange(first, prompt + self._text_columns, device=device)[None]  # (1, columns)
            hidden = columns >= seen[:, None]  # (tokens, columns)
            if self.group.branches:
                own = torch.arange(self._own_columns, device=device)[None]  # (1, own columns)
                hidden = torch.cat([hidden, own > own_column[:, None]], dim=1)
                if window is not None:
                    columns = torch.cat([columns.expand(len(self), -1), seen[:, None] + own], dim=1)
            if window is not None:
                hidden = hidden | (positions[:, None] - columns >= window)
            self._masks[device, window, all_columns] = hidden
        return self._masks[device, window, all_columns]

    def _indices(self, device: torch.device) -> tuple[Tensor, ...]:
        """Of each token position, columns seen, column to write, text, row, padded place; then the token at each padded place.

        They follow the keys: layers may be on several devices.
        """
        if device not in self._on_device:
            numbers = torch.from_numpy(self._numbers).to(device)
            fields = numbers[: 6 * len(self)].view(6, len(self)).unbind(0)
            self._on_device[device] = (*fields, numbers[6 * len(self) :])
        return self._on_device[device]
