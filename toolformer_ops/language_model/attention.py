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

from toolformer_ops.language_model.columns import Group
from toolformer_ops.language_model.packing import Ranges, takes_variable_lengths, variable_lengths

LONG_TOKENS = {"cpu": 256, "cuda": 2}
"""From so many new tokens of a text on, torch's fused attention takes over, which does not hold all scores;
below, on a CPU, it is the slower one."""


class GroupPass:
    """What one pass adds to a group, and what each of the new tokens sees of it."""

    def __init__(self, group: Group, rows: np.ndarray, counts: np.ndarray, *, by_range: bool) -> None:
        """`counts[n]` new tokens for row `rows[n]`; one each if the group's sequences have their own columns.

        `by_range`: rows that see the same columns of a text are put next to each other.
        """
        self.group = group
        of_row = np.repeat(rows, counts)  # (tokens,)
        nth = np.arange(len(of_row)) - np.repeat(
            counts.cumsum() - counts, counts
        )  # (tokens,): of its row's new ones
        self.order = np.arange(len(of_row))
        """(tokens,) which of the tokens that are given is the pass's n-th."""
        if by_range and group.branches:
            self.order = np.lexsort((group.seen[of_row], group.text_of[of_row]))
            of_row = of_row[self.order]
        self._in_place = np.array_equal(
            of_row, np.arange(group.rows)
        )  # token n is of row n, and each row has one
        self.positions = group.seen[of_row] + group.steps[of_row] + nth
        self.tokens = len(self.positions)
        text = group.text_of[of_row]
        prompt = group.prompt.length
        seen = group.seen[of_row] if group.branches else self.positions + 1
        column = (
            group.steps[of_row] if group.branches else self.positions - prompt
        )  # where the new key is written
        self._text_columns = int(group.lengths.max(initial=0)) if group.branches else int(column.max()) + 1
        self._own_columns = int(group.steps[rows].max()) + 1 if group.branches else 0
        self._single = len(group.lengths) == 1
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
        """Of each token position, columns seen, column to write, text, row, padded place; then the token at
        each padded place. They follow the keys: layers may be on several devices."""
        self._masks: dict[tuple[torch.device, int | None, bool], Tensor] = {}
        self._ranges: dict[tuple[torch.device, int | None], tuple[list[Ranges], bool]] = {}
        self.rows, self.counts, self._prompt = rows, counts, prompt
        self._of_row, self._column, self._seen, self._text = of_row, column, seen, text

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
        group, device = self.group, queries.device
        # 1. Where the tokens write and what they see, sent to the device once a pass.
        if device not in self._on_device:
            numbers = torch.from_numpy(self._numbers).to(device)
            fields = numbers[: 6 * self.tokens].view(6, self.tokens).unbind(0)
            self._on_device[device] = (*fields, numbers[6 * self.tokens :])
        _, _, column, text, of_row, *_ = self._on_device[device]
        # 2. Add keys and values: to the sequences' own columns if they have some, else to the texts'.
        if group.branches:
            group.make_own_room(layer, self._own_columns, keys)
        else:
            group.make_text_room(layer, self._text_columns, keys, values)
        for held, new in zip(
            (group.own if group.branches else group.text)[layer], (keys, values), strict=True
        ):
            if group.branches and self._single and self._in_place:
                held[: group.rows, :, self._own_columns - 1] = new
            elif group.branches:
                held[of_row, :, column] = new
            elif self._single:
                first = int(self.positions[0]) - group.prompt.length
                held[:, 0, first : first + self.tokens] = new.transpose(0, 1)
            else:
                held[:, text, column] = new.transpose(0, 1)
        # 3. Attend to what is written.
        if takes_variable_lengths(device, queries.dtype, queries.shape[-1], softcap):
            return self._by_ranges(layer, queries, window, scale)
        kind = "cpu" if device.type == "cpu" else "cuda"
        if not group.branches and not softcap and self._width >= LONG_TOKENS[kind]:
            return self._fused(layer, queries, window, scale)
        return self._by_products(layer, queries, window, scale, softcap)

    def _by_products(
        self, layer: int, queries: Tensor, window: int | None, scale: float, softcap: float | None
    ) -> Tensor:
        """Attention to what is written, by matrix products over all columns; what a token does not see is masked."""
        text_keys, text_values = (  # (key heads, texts, columns, width)
            held[:, :, : self._text_columns] for held in self.group.text[layer]
        )
        tokens, heads, width = queries.shape
        key_heads, texts, text_columns = text_keys.shape[:3]
        *_, of_row, unpad, pad = self._on_device[queries.device]

        # 1. Scores of the prompt's, the text's and the sequence's own columns, by the key head that query
        #    heads share.
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
            own_keys, own_values = (  # (tokens, key heads, columns, width)
                (held[: self.group.rows] if self._in_place else held.index_select(0, of_row))[
                    :, :, : self._own_columns
                ]
                for held in self.group.own[layer]
            )
            to_own = grouped @ own_keys.transpose(2, 3)  # (tokens, key heads, group, own columns)
            pieces.append(to_own.transpose(0, 1).reshape(key_heads, by_head.shape[1], self._own_columns))
        scores = torch.cat(pieces, dim=-1).float()  # (key heads, tokens * group, columns)

        # 2. Softmax in float32 over what a token sees. The mask may leave out the first columns, which all
        #    see.
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
            mixed = (
                mixed + weights[..., end:].transpose(0, 1) @ own_values
            )  # (tokens, key heads, group, width)
        return mixed.reshape(tokens, heads, -1)

    def _fused(self, layer: int, queries: Tensor, window: int | None, scale: float) -> Tensor:
        """The same by torch's attention over prompt and text in one, of texts that are padded to the longest."""
        keys, values = (held[:, :, : self._text_columns] for held in self.group.text[layer])
        heads, width = queries.shape[1:]
        key_heads, texts = keys.shape[:2]
        *_, unpad, pad = self._on_device[queries.device]
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
            asking.view(texts, -1, heads, width).transpose(1, 2),
            both[0],
            both[1],
            attn_mask=mask,
            scale=scale,
        )  # (texts, heads, padded tokens, width)
        mixed = mixed.transpose(1, 2).reshape(texts * self._width, heads, -1)
        return mixed if self._single else mixed.index_select(0, unpad)

    def _by_ranges(self, layer: int, queries: Tensor, window: int | None, scale: float) -> Tensor:
        """The same by a kernel for each kind of columns, merged by the log-sum-exp of the scores."""
        group = self.group
        if window is not None and self.positions.max() < window:
            window = None  # nothing is out of sight yet
        # 1. Columns as (tokens, key heads, width), without a copy.
        columns = [[held.flatten(1, 2).transpose(0, 1) for held in group.text[layer]]]
        if group.prompt.length:
            columns.insert(0, [held.transpose(0, 1) for held in group.prompt.columns[layer]])
        if group.branches:
            # Column c of place p is token p * key heads * capacity + c. Between them are other heads'
            # columns, in no range.
            places, heads, capacity, width = group.own[layer][0].shape
            shape = ((places - 1) * heads + 1) * capacity, heads, width
            columns.append(
                [held.as_strided(shape, (width, capacity * width, 1)) for held in group.own[layer]]
            )
        # 2. Attention to each kind.
        ranges, some_empty = self._ranges_on(queries.device, window)
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

    def _ranges_on(self, device: torch.device, window: int | None) -> tuple[list[Ranges], bool]:
        """What the tokens see of prompt, text and own columns, those that are there; whether one of these ranges is empty.

        Made and sent to the device once a pass.
        """
        if (device, window) in self._ranges:
            return self._ranges[device, window]
        group, prompt = self.group, self.group.prompt.length
        tokens = np.arange(self.tokens)
        ones = np.ones_like(tokens)
        first = (
            np.zeros_like(tokens) if window is None else np.maximum(0, self.positions - window + 1)
        )  # in sight
        # 1. Of each kind: (sequences,) tokens of each sequence of queries, start and length of the range of
        #    columns that it sees.
        kinds: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        if prompt and window is None:
            kinds.append((np.array([self.tokens]), np.array([0]), np.array([prompt])))
        elif prompt:
            kinds.append((ones, np.minimum(first, prompt), np.maximum(0, prompt - first)))
        capacity = group.text[0][0].shape[2]
        if group.branches:
            start = np.clip(first - prompt, 0, self._seen - prompt)
            differs = np.diff(np.stack([self._text, self._seen, start]), prepend=-1).any(axis=0)
            begins = tokens[differs]  # of equal ranges
            runs = np.diff(begins, append=self.tokens)
            kinds.append(
                (runs, (self._text * capacity + start)[begins], (self._seen - prompt - start)[begins])
            )
            _, key_heads, capacity, _ = group.own[0][0].shape
            own = np.maximum(0, first - self._seen)
            kinds.append((ones, self._of_row * key_heads * capacity + own, self._column + 1 - own))
        else:  # the tokens of a row, whose last one sees all
            last = self.counts.cumsum() - 1
            kinds.append((self.counts, self._text[last] * capacity, self._column[last] + 1))
        # 2. All of them in one copy to the device.
        numbers = [
            np.concatenate([[0], queries.cumsum(), starts, [0], lengths])
            for queries, starts, lengths in kinds
        ]
        on_device = torch.from_numpy(np.concatenate(numbers).astype(np.int32)).to(device)
        found = []
        lengths_on_device = [len(some) for some in numbers]
        parts = on_device.split(lengths_on_device)  # type: ignore[no-untyped-call]
        for (queries, _, seen), part in zip(kinds, parts, strict=True):
            ends, starts, lengths = part.split([len(queries) + 1, len(queries) + 1, len(queries)])
            found.append(Ranges(ends, starts, lengths, int(queries.max()), int(seen.max())))
        self._ranges[device, window] = found, any((seen == 0).any() for _, _, seen in kinds)
        return self._ranges[device, window]

    def _hidden(self, device: torch.device, window: int | None, *, all_columns: bool = False) -> Tensor:
        """Which columns the new tokens do not see, (tokens, columns) bool, once a pass for all layers of one kind.

        Without a sliding window the prompt, which all see, is left out unless `all_columns`.
        """
        if (device, window, all_columns) not in self._masks:
            positions, seen, own_column, *_ = self._on_device[device]
            first = self._prompt if window is None and not all_columns else 0
            columns = torch.arange(first, self._prompt + self._text_columns, device=device)[
                None
            ]  # (1, columns)
            hidden = columns >= seen[:, None]  # (tokens, columns)
            if self.group.branches:
                own = torch.arange(self._own_columns, device=device)[None]  # (1, own columns)
                hidden = torch.cat([hidden, own > own_column[:, None]], dim=1)
                if window is not None:
                    columns = torch.cat([columns.expand(self.tokens, -1), seen[:, None] + own], dim=1)
            if window is not None:
                hidden = hidden | (positions[:, None] - columns >= window)
            self._masks[device, window, all_columns] = hidden
        return self._masks[device, window, all_columns]
