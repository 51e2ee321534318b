"""Attention of one pass over a group of texts: each new token sees the prompt, its text up to a place, and its own sequence.

What costs time in a decode step is reading the weights, once a pass, for any number of rows. So the new
tokens of all texts go through norms, projections and feed-forward layers together, as one sequence of N
tokens. Only attention looks beyond a row. It is computed for a group of texts (`columns.Group`) over three
kinds of columns, none of which is copied for a row:

    prompt    keys and values of start token and prompt: one set for all texts
    text      those of the text: one set for all sequences of the text
    own       those that a sequence itself has added: its call so far

A group is one text on a CPU, where nothing is padded, so that a row has the same bits in every batch. On
other devices it is all texts of a prompt, in one set of operations, whose number does not depend on how many
there are:

- in bfloat16 and float16 each kind of columns is one kernel (`packing.variable_lengths`), which reads the
  columns where they are: the prompt's for all tokens at once, the text's for each run of tokens that see the
  same of it, the own ones for each row. The three results are merged by the log-sum-exp of their scores. With
  a sliding window a token's ranges begin later;
- in float32, and in networks that cap their scores, by matrix products with texts that are padded to the
  longest.

On a GPU a row's numbers may differ by rounding in another batch: matrix products round by the shape of the
batch. The kernel splits no keys, so that its result for a sequence of queries does not depend on the others.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from toolformer_ops.language_model.attention_parts import Heads
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, device_kind
from toolformer_ops.language_model.columns import Group
from toolformer_ops.language_model.layout import Layout
from toolformer_ops.language_model.packing import Ranges, takes_variable_lengths, variable_lengths


class GroupPass:
    """What one pass adds to a group, and what each of the new tokens sees of it; an `AttentionPart`."""

    def __init__(self, group: Group, rows: np.ndarray, counts: np.ndarray, *, by_range: bool) -> None:
        """`counts[n]` new tokens for row `rows[n]`, as `Layout.of` has them."""
        self.group, self.rows, self.counts = group, rows, counts
        self.layout = Layout.of(
            rows,
            counts,
            prompt=group.prompt.length,
            branches=group.branches,
            lengths=group.lengths,
            text_of=group.text_of,
            seen=group.seen,
            steps=group.steps,
            by_range=by_range,
        )
        self._copies: dict[torch.device, _OnDevice] = {}
        """Of the layout. They follow the keys: layers may be on several devices."""

    @property
    def tokens(self) -> int:
        """How many are new."""
        return self.layout.tokens

    @property
    def positions(self) -> np.ndarray:
        """(tokens,) of each in its sequence."""
        return self.layout.positions

    def attend(
        self, layer: int, heads: Heads, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Attention of the new tokens, (tokens, heads, width), whose keys and values are added."""
        group, layout, device = self.group, self.layout, heads.queries.device
        # 1. Where the tokens write and what they see, sent to the device once a pass.
        if device not in self._copies:
            self._copies[device] = _OnDevice(layout, device)
        copy = self._copies[device]
        # 2. Add keys and values: to the sequences' own columns if they have some, else to the texts'.
        if group.branches:
            group.make_own_room(layer, layout.own_columns, heads.keys)
        else:
            group.make_text_room(layer, layout.text_columns, heads.keys, heads.values)
        for held, new in zip(
            (group.own if group.branches else group.text)[layer], (heads.keys, heads.values), strict=True
        ):
            if group.branches and layout.is_single and layout.in_place:
                held[: group.rows, :, layout.own_columns - 1] = new
            elif group.branches:
                held[copy.row_of, :, copy.columns] = new
            elif layout.is_single:
                first = int(layout.positions[0]) - group.prompt.length
                held[:, 0, first : first + layout.tokens] = new.transpose(0, 1)
            else:
                held[:, copy.text_of, copy.columns] = new.transpose(0, 1)
        # 3. Attend to what is written.
        queries = heads.queries
        if takes_variable_lengths(device, queries.dtype, queries.shape[-1], softcap):
            return self._by_ranges(copy, layer, queries, window, scale)
        sizes = BATCH_SIZES[device_kind(device.type)]
        if not group.branches and not softcap and layout.width >= sizes.fused_attention_tokens:
            return self._fused(copy, layer, queries, window, scale)
        return self._by_products(copy, layer, queries, window, scale, softcap)

    def _by_products(
        self,
        copy: "_OnDevice",
        layer: int,
        queries: Tensor,
        window: int | None,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """Attention to what is written, by matrix products over all columns; what a token does not see is masked."""
        layout = self.layout
        text_keys, text_values = (  # (key heads, texts, columns, width)
            held[:, :, : layout.text_columns] for held in self.group.text[layer]
        )
        tokens, heads, width = queries.shape
        key_heads, texts, text_columns = text_keys.shape[:3]

        # 1. Scores of the prompt's, the text's and the sequence's own columns, by the key head that query
        #    heads share.
        grouped = queries.view(tokens, key_heads, heads // key_heads, width)
        by_head = grouped.transpose(0, 1).reshape(key_heads, -1, width)  # (key heads, tokens * group, width)
        per_token = by_head.shape[1] // tokens
        asking = by_head
        if not layout.is_single:
            asking = by_head.view(key_heads, tokens, -1).index_select(1, copy.padded_tokens)
        flat_keys = text_keys.reshape(key_heads * texts, text_columns, width)
        to_text = asking.view(key_heads * texts, -1, width) @ flat_keys.transpose(1, 2)
        if not layout.is_single:
            to_text = to_text.view(key_heads, texts * layout.width, -1).index_select(1, copy.padded_place)
        pieces = [to_text.view(key_heads, by_head.shape[1], text_columns)]
        prompt = self.group.prompt.length
        if prompt:
            prompt_keys, prompt_values = self.group.prompt.columns[layer]  # (key heads, columns, width)
            pieces.insert(0, by_head @ prompt_keys.transpose(1, 2))
        if self.group.branches:
            own_keys, own_values = (  # (tokens, key heads, columns, width)
                (held[: self.group.rows] if layout.in_place else held.index_select(0, copy.row_of))[
                    :, :, : layout.own_columns
                ]
                for held in self.group.own[layer]
            )
            to_own = grouped @ own_keys.transpose(2, 3)  # (tokens, key heads, group, own columns)
            pieces.append(to_own.transpose(0, 1).reshape(key_heads, by_head.shape[1], layout.own_columns))
        scores = torch.cat(pieces, dim=-1).float()  # (key heads, tokens * group, columns)

        # 2. Softmax in float32 over what a token sees. The mask may leave out the first columns, which all
        #    see.
        scores.mul_(scale)
        if softcap:
            scores.div_(softcap).tanh_().mul_(softcap)
        hidden = copy.hidden(window)
        shaped = scores.view(key_heads, tokens, per_token, scores.shape[-1])
        shaped[..., scores.shape[-1] - hidden.shape[-1] :].masked_fill_(
            hidden[None, :, None], torch.finfo(torch.float32).min
        )
        weights = shaped.softmax(dim=-1).to(queries.dtype)  # (key heads, tokens, group, columns)

        # 3. The values, mixed by these weights.
        flat = weights.view(key_heads, -1, weights.shape[-1])
        end = prompt + text_columns
        flat_values = text_values.reshape(key_heads * texts, text_columns, -1)
        if layout.is_single:
            mixed = flat[..., prompt:end] @ flat_values
        else:
            of_text = weights[..., prompt:end].index_select(
                1, copy.padded_tokens
            )  # (key heads, texts * padded tokens, group, columns)
            padded = of_text.view(key_heads * texts, -1, text_columns) @ flat_values
            mixed = padded.view(key_heads, texts * layout.width, -1).index_select(1, copy.padded_place)
            mixed = mixed.view(key_heads, by_head.shape[1], -1)
        if prompt:
            mixed = flat[..., :prompt] @ prompt_values + mixed
        mixed = mixed.view(key_heads, tokens, per_token, -1).transpose(0, 1)
        if self.group.branches:
            mixed = (
                mixed + weights[..., end:].transpose(0, 1) @ own_values
            )  # (tokens, key heads, group, width)
        return mixed.reshape(tokens, heads, -1)

    def _fused(
        self, copy: "_OnDevice", layer: int, queries: Tensor, window: int | None, scale: float
    ) -> Tensor:
        """The same by torch's attention over prompt and text in one, of texts that are padded to the longest."""
        layout = self.layout
        keys, values = (held[:, :, : layout.text_columns] for held in self.group.text[layer])
        heads, width = queries.shape[1:]
        key_heads, texts = keys.shape[:2]
        hidden = copy.hidden(window, all_columns=True)  # (tokens, columns)
        asking = queries
        if not layout.is_single:
            padded = copy.padded_tokens
            asking, hidden = queries.index_select(0, padded), hidden.index_select(0, padded)
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
            asking.view(texts, -1, heads, width).transpose(1, 2),
            both[0],
            both[1],
            attn_mask=mask,
            scale=scale,
        )  # (texts, heads, padded tokens, width)
        mixed = mixed.transpose(1, 2).reshape(texts * layout.width, heads, -1)
        return mixed if layout.is_single else mixed.index_select(0, copy.padded_place)

    def _by_ranges(
        self, copy: "_OnDevice", layer: int, queries: Tensor, window: int | None, scale: float
    ) -> Tensor:
        """The same by a kernel for each kind of columns, merged by the log-sum-exp of the scores."""
        group = self.group
        if window is not None and self.layout.positions.max() < window:
            window = None  # nothing is out of sight yet
        # 1. Columns as (tokens, key heads, width), without a copy.
        columns = [[held.flatten(1, 2).transpose(0, 1) for held in group.text[layer]]]
        row_stride = 0
        if group.prompt.length:
            columns.insert(0, [held.transpose(0, 1) for held in group.prompt.columns[layer]])
        if group.branches:
            # Column c of place p is token p * key heads * capacity + c. Between them are other heads'
            # columns, in no range.
            places, heads, capacity, width = group.own[layer][0].shape
            row_stride = heads * capacity
            shape = ((places - 1) * heads + 1) * capacity, heads, width
            columns.append(
                [held.as_strided(shape, (width, capacity * width, 1)) for held in group.own[layer]]
            )
        # 2. Attention to each kind.
        ranges, some_empty = copy.ranges(window, group.text[0][0].shape[2], row_stride)
        mixed = queries.new_empty((len(columns), *queries.shape))  # (kinds, tokens, heads, width)
        grows = (
            len(columns) - 1 if not group.branches else None
        )  # the kind that the tokens of a row are added to
        lse = []
        for kind, (known, mixed_in) in enumerate(columns):
            back = window if kind == grows else None
            into = mixed[kind]
            lse.append(
                variable_lengths(
                    into, queries, known, mixed_in, ranges[kind], scale, back, causal=kind == grows
                )
            )  # (heads, tokens)
        if len(columns) == 1:
            return mixed[0]
        # 3. Merge.
        scores = torch.stack(lse)
        if some_empty:
            scores.nan_to_num_(posinf=-torch.inf, neginf=-torch.inf)
        shares = scores.softmax(dim=0).transpose(1, 2)[..., None]  # (kinds, tokens, heads, 1)
        return (mixed * shares).sum(dim=0).to(queries.dtype)


class _OnDevice:
    """What attention needs of a layout on one device: sent once, and masks and ranges made once, for all layers."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout, self._device = layout, device
        fields = np.stack(
            [
                layout.positions,
                layout.seen,
                layout.columns,
                layout.text_of,
                layout.row_of,
                layout.padded_place,
            ]
        )
        numbers = torch.from_numpy(np.concatenate([fields.reshape(-1), layout.padded_tokens])).to(device)
        of_tokens = numbers[: fields.size].view(len(fields), layout.tokens).unbind(0)
        self._positions, self._seen, self.columns, self.text_of, self.row_of, self.padded_place = of_tokens
        self.padded_tokens = numbers[fields.size :]
        self._masks: dict[tuple[int | None, bool], Tensor] = {}
        self._ranges: dict[int | None, tuple[list[Ranges], bool]] = {}

    def ranges(self, window: int | None, text_capacity: int, row_stride: int) -> tuple[list[Ranges], bool]:
        """`Layout.ranges`, and whether one of them is empty."""
        if window not in self._ranges:
            kinds = self._layout.ranges(window, text_capacity, row_stride)
            # All in one copy to the device: of each kind the ends of the runs, starts and lengths.
            numbers = [
                np.concatenate([[0], kind.tokens.cumsum(), kind.starts, [0], kind.lengths]) for kind in kinds
            ]
            on_device = torch.from_numpy(np.concatenate(numbers).astype(np.int32)).to(self._device)
            parts = on_device.split([len(kind) for kind in numbers])  # type: ignore[no-untyped-call]
            ranges: list[Ranges] = []
            for kind, part in zip(kinds, parts, strict=True):
                runs = len(kind.tokens)
                ends, starts, lengths = part.split([runs + 1, runs + 1, runs])
                ranges.append(Ranges(ends, starts, lengths, int(kind.tokens.max()), int(kind.lengths.max())))
            self._ranges[window] = ranges, any((kind.lengths == 0).any() for kind in kinds)
        return self._ranges[window]

    def hidden(self, window: int | None, *, all_columns: bool = False) -> Tensor:
        """Which columns the new tokens do not see, (tokens, columns) bool.

        Without a sliding window the prompt, which all see, is left out unless `all_columns`.
        """
        layout = self._layout
        if (window, all_columns) not in self._masks:
            first = layout.prompt if window is None and not all_columns else 0
            columns = torch.arange(first, layout.prompt + layout.text_columns, device=self._device)[
                None
            ]  # (1, columns)
            hidden = columns >= self._seen[:, None]  # (tokens, columns)
            if layout.branches:
                own = torch.arange(layout.own_columns, device=self._device)[None]  # (1, own columns)
                hidden = torch.cat([hidden, own > self.columns[:, None]], dim=1)
                if window is not None:
                    columns = torch.cat([columns.expand(layout.tokens, -1), self._seen[:, None] + own], dim=1)
            if window is not None:
                hidden = hidden | (self._positions[:, None] - columns >= window)
            self._masks[window, all_columns] = hidden
        return self._masks[window, all_columns]
