"""Where the new tokens of a pass write, and what each of them sees: numbers alone, the same for every layer and device.

A `Layout` is made once a pass, of the numbers of a group (`columns.Group`). `attention.py` copies it to the
devices. Imports no torch.
"""

import functools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SeenRanges:
    """Of one kind of columns: runs of tokens, one behind the other, and the range of columns that each run sees."""

    tokens: np.ndarray
    """(runs,) how many tokens each has."""
    starts: np.ndarray
    """(runs,) the first column of its range."""
    lengths: np.ndarray
    """(runs,) columns of its range; may be 0."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The new tokens of one pass over a group, in the order in which the pass has them."""

    prompt: int
    """Tokens of the prompt, which all see."""
    branches: bool
    """Whether rows have their own columns; else a row is a text, which grows itself."""
    texts: int
    """How many the group has."""
    order: np.ndarray
    """(tokens,) which of the tokens that are given is the pass's n-th."""
    counts: np.ndarray
    """(growing rows,) new tokens of each."""
    positions: np.ndarray
    """(tokens,) of each in its sequence, the prompt's counted."""
    seen: np.ndarray
    """(tokens,) how many tokens of prompt and text each sees; without branches itself is the last."""
    columns: np.ndarray
    """(tokens,) where the new key and value are written, in the text's columns or in the row's own."""
    text_of: np.ndarray
    """(tokens,) index of the text."""
    row_of: np.ndarray
    """(tokens,) index of the row."""
    text_columns: int
    """Of the text with the most, after the pass."""
    own_columns: int
    """Of the row with the most, after the pass; 0 without branches."""
    in_place: bool
    """Whether token n is of row n, and each row has one."""

    @classmethod
    def of(
        cls,
        rows: np.ndarray,
        counts: np.ndarray,
        *,
        prompt: int,
        branches: bool,
        lengths: np.ndarray,
        text_of: np.ndarray,
        seen: np.ndarray,
        steps: np.ndarray,
        by_range: bool,
    ) -> "Layout":
        """Of `counts[n]` new tokens for row `rows[n]`; one each with `branches`. The others are the group's numbers.

        `by_range`: rows that see the same columns of a text are put next to each other.
        """
        row_of = np.repeat(rows, counts)
        nth = np.arange(len(row_of)) - np.repeat(counts.cumsum() - counts, counts)  # of its row's new ones
        order = np.arange(len(row_of))
        if by_range and branches:
            order = np.lexsort((seen[row_of], text_of[row_of]))
            row_of = row_of[order]
        positions = seen[row_of] + steps[row_of] + nth
        columns = steps[row_of] if branches else positions - prompt
        return cls(
            prompt=prompt,
            branches=branches,
            texts=len(lengths),
            order=order,
            counts=counts,
            positions=positions,
            seen=seen[row_of] if branches else positions + 1,
            columns=columns,
            text_of=text_of[row_of],
            row_of=row_of,
            text_columns=int(lengths.max(initial=0)) if branches else int(columns.max()) + 1,
            own_columns=int(steps[rows].max()) + 1 if branches else 0,
            in_place=np.array_equal(row_of, np.arange(len(seen))),
        )

    @property
    def tokens(self) -> int:
        """How many there are."""
        return len(self.positions)

    @property
    def is_single(self) -> bool:
        """Whether the group has one text, so that nothing is padded."""
        return self.texts == 1

    @functools.cached_property
    def width(self) -> int:
        """Tokens of the text with the most: what the others are padded to."""
        return self.tokens if self.is_single else int(self._tokens_of_texts.max())

    @functools.cached_property
    def padded_place(self) -> np.ndarray:
        """(tokens,) where each token is if the tokens of all texts are padded to `width`, text behind text."""
        if self.is_single:
            return np.arange(self.tokens)
        by_text = np.argsort(self.text_of, kind="stable")
        place = np.empty_like(by_text)
        before = self._tokens_of_texts.cumsum() - self._tokens_of_texts
        place[by_text] = np.arange(self.tokens) - before[self.text_of[by_text]]
        return self.text_of * self.width + place

    @functools.cached_property
    def padded_tokens(self) -> np.ndarray:
        """(texts * width,) the token at each padded place, the first one where there is none; empty for one text."""
        if self.is_single:
            return np.zeros(0, dtype=np.int64)
        tokens = np.zeros(self.texts * self.width, dtype=np.int64)
        tokens[self.padded_place] = np.arange(self.tokens)
        return tokens

    @functools.cached_property
    def _tokens_of_texts(self) -> np.ndarray:
        return np.bincount(self.text_of, minlength=self.texts)

    def ranges(self, window: int | None, text_capacity: int, row_stride: int) -> list[SeenRanges]:
        """What the tokens see of prompt, text and own columns, those that are there, each kind's columns counted through.

        Texts begin `text_capacity` columns apart, rows' own columns `row_stride`. With a `window` a token sees
        that many tokens back, itself included.
        """
        tokens, ones = np.arange(self.tokens), np.ones(self.tokens, dtype=np.int64)
        in_sight = (  # (tokens,) the first position that each sees
            np.zeros_like(tokens) if window is None else np.maximum(0, self.positions - window + 1)
        )
        kinds: list[SeenRanges] = []
        # 1. The prompt: all tokens see the same of it unless there is a window.
        if self.prompt and window is None:
            kinds.append(SeenRanges(np.array([self.tokens]), np.array([0]), np.array([self.prompt])))
        elif self.prompt:
            first = np.minimum(in_sight, self.prompt)
            kinds.append(SeenRanges(ones, first, np.maximum(0, self.prompt - in_sight)))
        if self.branches:
            # 2. The texts: tokens that see the same of one are a run.
            start = np.clip(in_sight - self.prompt, 0, self.seen - self.prompt)
            differs = np.diff(np.stack([self.text_of, self.seen, start]), prepend=-1).any(axis=0)
            begins = tokens[differs]
            kinds.append(
                SeenRanges(
                    tokens=np.diff(begins, append=self.tokens),
                    starts=(self.text_of * text_capacity + start)[begins],
                    lengths=(self.seen - self.prompt - start)[begins],
                )
            )
            # 3. The rows' own columns.
            own = np.maximum(0, in_sight - self.seen)
            kinds.append(SeenRanges(ones, self.row_of * row_stride + own, self.columns + 1 - own))
        else:  # the tokens of a row, whose last one sees all
            last = self.counts.cumsum() - 1
            kinds.append(SeenRanges(self.counts, self.text_of[last] * text_capacity, self.columns[last] + 1))
        return kinds
