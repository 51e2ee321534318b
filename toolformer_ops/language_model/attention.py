"""Attention of one pass over a group of texts.

Each new token sees the prompt, its text up to a place, and its own sequence. What costs time in a decode step
is reading the weights, once a pass, for any number of rows. So the new tokens of all texts go through norms,
projections and feed-forward layers together, as one sequence of N tokens. Only attention looks beyond a row.
It is computed for a group of texts (`columns.Group`) over three kinds of columns, none of which is copied for
a row:

    prompt    keys and values of start token and prompt: one set for all texts
    text      those of the text: one set for all sequences of the text
    own       those that a sequence itself has added: its call so far

A group is one text on a CPU, where nothing is padded, so that a row has the same bits in every batch. On
other devices it is all texts of a prompt, in one set of operations, whose number does not depend on how many
there are:

- in bfloat16 and float16 prompt and text are one kernel each (`packing.variable_lengths`), which reads the
  columns where they are: the prompt's for all tokens at once, the text's for each run of tokens that see the
  same of it. The own columns are one batched matrix product over the rows, since the kernel computes 128
  queries at a time, and a row has one. The three results are merged by the log-sum-exp of their scores. With
  a sliding window a token's ranges begin later;
- in float32, and in networks that cap their scores, by matrix products with texts that are padded to the
  longest.

On a GPU a row's numbers may differ by rounding in another batch: matrix products round by the shape of the
batch, and own columns are padded to the row with the most. The kernel splits no keys, so that its result for
a sequence of queries does not depend on the others.
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, device_kind
from toolformer_ops.language_model.columns import Group, Layout
from toolformer_ops.language_model.compiled import compiled
from toolformer_ops.language_model.packing import Heads, Ranges, takes_variable_lengths, variable_lengths

logger = logging.getLogger(__name__)


class GroupPass:
    """What one pass adds to a group, and what each of the new tokens sees of it; an `AttentionPart`."""

    def __init__(self, group: Group, rows: np.ndarray, counts: np.ndarray, *, compiles: bool = False) -> None:
        """`counts[n]` new tokens for row `rows[n]`, as `Layout.of` has them.

        `compiles` is an attribute of `CausalModel`.
        """
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
        )
        self.tokens, self.positions = self.layout.tokens, self.layout.positions
        self._joint_weights: Callable[..., Tensor] = compiled(joint_weights) if compiles else joint_weights
        self._weighted_sum: Callable[..., Tensor] = compiled(weighted_sum) if compiles else weighted_sum
        self._copies: dict[torch.device, _OnDevice] = {}
        """The layout's copy on each device. They follow the keys: layers may be on several devices."""

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
        for columns, new in zip(
            (group.own if group.branches else group.text)[layer], (heads.keys, heads.values), strict=True
        ):
            if group.branches and layout.is_single and layout.in_step:
                columns[: group.rows, :, layout.own_columns - 1] = new
            elif group.branches:
                columns[copy.row_of, :, copy.columns] = new
            elif layout.is_single:
                first = int(layout.positions[0]) - group.prompt.length
                columns[:, 0, first : first + layout.tokens] = new.transpose(0, 1)
            else:
                columns[:, copy.text_of, copy.columns] = new.transpose(0, 1)
        # 3. Attend to what is written.
        queries = heads.queries
        if takes_variable_lengths(device, queries.dtype, queries.shape[-1], softcap):
            if window is not None and layout.positions.max() < window:
                window = None  # nothing is out of sight yet
            if group.branches:
                return self._of_rows(copy, layer, queries, window, scale)
            return self._of_texts(copy, layer, queries, window, scale)
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
        """Attention to what is written, by matrix products over all columns.

        What a token does not see is masked.
        """
        layout = self.layout
        text_keys, text_values = (  # (key heads, texts, columns, width)
            cached[:, :, : layout.text_columns] for cached in self.group.text[layer]
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
            rows = self.group.rows
            own_keys, own_values = (  # (tokens, key heads, columns, width)
                (cached[:rows] if layout.in_place else cached.index_select(0, copy.row_of))[
                    :, :, : layout.own_columns
                ]
                for cached in self.group.own[layer]
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
            text_weights = weights[..., prompt:end].index_select(
                1, copy.padded_tokens
            )  # (key heads, texts * padded tokens, group, columns)
            padded = text_weights.view(key_heads * texts, -1, text_columns) @ flat_values
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
        """Attend by torch's attention over prompt and text in one; texts are padded to the longest."""
        layout = self.layout
        keys, values = (cached[:, :, : layout.text_columns] for cached in self.group.text[layer])
        heads, width = queries.shape[1:]
        key_heads, texts = keys.shape[:2]
        hidden = copy.hidden(window, all_columns=True)  # (tokens, columns)
        asking = queries
        if not layout.is_single:
            padded = copy.padded_tokens
            asking, hidden = queries.index_select(0, padded), hidden.index_select(0, padded)
        both: list[Tensor] = []
        for kind, text_columns in enumerate((keys, values)):
            columns = text_columns.transpose(0, 1)  # (texts, key heads, columns, width)
            if self.group.prompt.length:
                shared = self.group.prompt.columns[layer][kind]
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

    def _of_texts(
        self, copy: "_OnDevice", layer: int, queries: Tensor, window: int | None, scale: float
    ) -> Tensor:
        """Attend for texts that grow, by a kernel for prompt and texts each.

        Their results are merged by the log-sum-exp of the scores.
        """
        ranges, some_empty = copy.ranges(window, self.group.text[0][0].shape[2])
        mixed: list[Tensor] = []
        log_sums: list[Tensor] = []  # (heads, tokens) each
        for (keys, values), seen_ranges in zip(self._shared_columns(layer), ranges, strict=True):
            is_text = seen_ranges is ranges[-1]
            mixed.append(queries.new_empty(queries.shape))
            log_sums.append(
                variable_lengths(
                    mixed[-1],
                    queries,
                    keys,
                    values,
                    seen_ranges,
                    scale,
                    window if is_text else None,
                    causal=is_text,
                )
            )
        if len(mixed) == 1:
            return mixed[0]
        scores = torch.stack(log_sums)
        if some_empty:
            scores.nan_to_num_(posinf=-torch.inf, neginf=-torch.inf)
        shares = scores.softmax(dim=0).transpose(1, 2)[..., None]  # (2, tokens, heads, 1)
        return (mixed[0] * shares[0]).addcmul_(mixed[1], shares[1]).to(queries.dtype)

    def _of_rows(
        self, copy: "_OnDevice", layer: int, queries: Tensor, window: int | None, scale: float
    ) -> Tensor:
        """Attend for rows: a kernel for prompt and texts each, a batched matrix product for own columns.

        A kernel would read a row's few columns by tiles of 128 queries, for one.
        """
        layout = self.layout
        tokens, heads, width = queries.shape
        # 1. The prompt for all tokens; the texts in the order in which those that see the same are together.
        ranges, some_empty = copy.ranges(window, self.group.text[0][0].shape[2])
        *prompt, text = self._shared_columns(layer)
        mixed_prompt: Mixed | None = None
        if prompt:
            mixed_prompt = self._mixed(queries, prompt[0], ranges[0], scale)
        mixed_text = self._mixed(queries.index_select(0, copy.by_text), text, ranges[-1], scale)
        # 2. Scores of the rows' own columns.
        own_keys, own_values = (  # (tokens * key heads, own columns, width), views if rows are neighbours
            columns[:, :, : layout.own_columns].flatten(0, 1)
            for columns in copy.of_rows(self.group.own[layer], layout.first_row)
        )
        grouped = queries.reshape(len(own_keys), -1, width)  # (tokens * key heads, group, width)
        scores = product_in_float32(grouped, own_keys.transpose(1, 2))
        # 3. One softmax in float32: the log-sum-exp of another kind of columns counts as one column.
        weights = self._joint_weights(
            scores.view(tokens, heads, -1),
            copy.hidden_own_columns(window),
            None if mixed_prompt is None else mixed_prompt.log_sums,
            mixed_text.log_sums,
            copy.place_by_text,
            scale,
            some_empty,
        )
        own_weights = weights[..., -layout.own_columns :].to(queries.dtype)
        own = product_in_float32(own_weights.view(len(own_keys), -1, layout.own_columns), own_values)
        return self._weighted_sum(
            own.view(tokens, heads, width),
            None if mixed_prompt is None else mixed_prompt.values,
            mixed_text.values,
            copy.place_by_text,
            weights,
        )

    def _mixed(
        self, queries: Tensor, columns: tuple[Tensor, Tensor], ranges: Ranges, scale: float
    ) -> "Mixed":
        """Attention to one kind of columns by the kernel: each run of queries sees the same range."""
        values = queries.new_empty(queries.shape)
        return Mixed(values, variable_lengths(values, queries, *columns, ranges, scale, None, causal=False))

    def _shared_columns(self, layer: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the prompt, if the group has one, and of the texts, without a copy.

        The shape of each is (tokens, key heads, width).
        """
        text_keys, text_values = (columns.flatten(1, 2).transpose(0, 1) for columns in self.group.text[layer])
        if not self.group.prompt.length:
            return [(text_keys, text_values)]
        keys, values = (columns.transpose(0, 1) for columns in self.group.prompt.columns[layer])
        return [(keys, values), (text_keys, text_values)]


@dataclass(frozen=True)
class Mixed:
    """What attention to one kind of columns alone gives."""

    values: Tensor
    """(tokens, heads, width)."""
    log_sums: Tensor
    """(heads, tokens) float32: the log-sum-exp of the scores."""


def joint_weights(
    scores: Tensor,
    hidden: Tensor,
    prompt_log_sums: Tensor | None,
    text_log_sums: Tensor,
    place_by_text: Tensor,
    scale: float,
    some_empty: bool,
) -> Tensor:
    """Weights in float32, (tokens, heads, kinds + own columns).

    They are those of prompt and text as wholes, then of own columns. `scores`, (tokens, heads, own columns),
    are those of own columns, to which `hidden`, (tokens, 1, own columns), adds minus infinity where one is
    not seen. The log-sum-exps, (heads, tokens) each, are of the prompt, if there is one, and of the text, in
    the order of which `place_by_text` is the inverse; with `some_empty` one may be infinite, where a token
    sees no column of the kind.
    """
    kinds = [] if prompt_log_sums is None else [prompt_log_sums]
    kinds.append(text_log_sums.index_select(1, place_by_text))
    own = torch.add(hidden, scores, alpha=scale)
    joint = torch.cat([*(log_sums.transpose(0, 1)[..., None] for log_sums in kinds), own], dim=-1)
    if some_empty:
        joint = joint.nan_to_num(posinf=-torch.inf, neginf=-torch.inf)
    return joint.softmax(dim=-1)


def weighted_sum(
    own: Tensor, prompt_values: Tensor | None, text_values: Tensor, place_by_text: Tensor, weights: Tensor
) -> Tensor:
    """Attention, (tokens, heads, width), of all kinds of columns together.

    `own` is weighted already, in float32; the values of prompt and text are weighted by their `weights`.
    """
    kinds = [] if prompt_values is None else [prompt_values]
    kinds.append(text_values.index_select(0, place_by_text))
    for number, values in enumerate(kinds):
        own = torch.addcmul(own, values, weights[..., number, None])
    return own.to(text_values.dtype)


class _OnDevice:
    """What attention needs of a layout on one device.

    It is sent once, and masks and ranges are made once, for all layers.
    """

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
                layout.by_text,
                np.argsort(layout.by_text),
            ]
        )
        numbers = torch.from_numpy(np.concatenate([fields.reshape(-1), layout.padded_tokens])).to(device)
        token_fields = numbers[: fields.size].view(len(fields), layout.tokens).unbind(0)
        self._positions, self._seen, self.columns, self.text_of, self.row_of = token_fields[:5]
        self.padded_place, self.by_text, self.place_by_text = token_fields[5:]
        self.padded_tokens = numbers[fields.size :]
        self._masks: dict[tuple[int | None, bool], Tensor] = {}
        self._hidden_own: dict[int | None, Tensor] = {}
        self._ranges: dict[int | None, tuple[list[Ranges], bool]] = {}

    def of_rows(self, columns: Tensor, first: int | None) -> tuple[Tensor, ...]:
        """Keys and values of the rows that grow, from (2, places, ...).

        They are no copy if the rows are neighbours from `first` on.
        """
        if first is None:
            return columns.index_select(1, self.row_of).unbind(0)
        return columns[:, first : first + self._layout.tokens].unbind(0)

    def hidden_own_columns(self, window: int | None) -> Tensor:
        """(tokens, 1, own columns) float32: 0 where a token sees a column of its row, else minus infinity."""
        if window not in self._hidden_own:
            hidden = self._layout.hidden_own_columns(window)
            added = np.where(hidden, -np.inf, 0.0).astype(np.float32)
            self._hidden_own[window] = torch.from_numpy(added[:, None]).to(self._device)
        return self._hidden_own[window]

    def ranges(self, window: int | None, text_capacity: int) -> tuple[list[Ranges], bool]:
        """`Layout.ranges`, and whether one of them is empty."""
        if window not in self._ranges:
            kinds = self._layout.ranges(window, text_capacity)
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


def product_in_float32(one: Tensor, other: Tensor) -> Tensor:
    """The batched product of matrices in 16 bits, (batch, rows, columns), in float32.

    It is added up in float32, too.
    """
    if has_mixed_products(one.device, one.dtype):
        return torch.bmm(one, other, out_dtype=torch.float32)
    return torch.bmm(one.float(), other.float())


@functools.lru_cache
def has_mixed_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device multiplies matrices of this format into float32 itself.

    Else copies in float32 are multiplied.
    """
    probe = torch.ones((2, 8, 8), device=device, dtype=dtype)
    try:
        torch.bmm(probe, probe.transpose(1, 2), out_dtype=torch.float32)
    except (RuntimeError, TypeError) as error:
        logger.warning("own columns are multiplied in float32, which takes longer: %s", error)
        return False
    return True
