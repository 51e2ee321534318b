"""Where the new tokens of a pass write, and what each of them sees.

These are numbers alone, the same for every layer and device. A `Layout` is made once a pass, of the numbers
of a group (`columns.Group`). `attention.py` copies it to the devices. Imports no torch.
"""

import functools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SeenRanges:
    """What is seen of one kind of columns.

    It is runs of tokens, one after the other, and the range of columns that each run sees.
    """

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
    """Columns of the text with the most, after the pass."""
    own_columns: int
    """Columns of the row with the most, after the pass; 0 without branches."""
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
    ) -> "Layout":
        """Lay out `counts[n]` new tokens for row `rows[n]`, ascending; one each with `branches`.

        The other numbers are the group's.
        """
        row_of = np.repeat(rows, counts)
        nth = np.arange(len(row_of)) - np.repeat(counts.cumsum() - counts, counts)  # of its row's new ones
        positions = seen[row_of] + steps[row_of] + nth
        columns = steps[row_of] if branches else positions - prompt
        return cls(
            prompt=prompt,
            branches=branches,
            texts=len(lengths),
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
    def in_step(self) -> bool:
        """Whether token n is of row n, each row has one, and all write the same column."""
        return self.in_place and bool((self.columns == self.columns[0]).all())

    @functools.cached_property
    def first_row(self) -> int | None:
        """The first of the rows that grow if they are next to each other; else None."""
        first = int(self.row_of[0])
        return first if np.array_equal(self.row_of, first + np.arange(self.tokens)) else None

    @functools.cached_property
    def by_text(self) -> np.ndarray:
        """(tokens,) the tokens in an order in which neighbours see the same columns of a text."""
        return np.lexsort((self.seen, self.text_of))

    @functools.cached_property
    def width(self) -> int:
        """Tokens of the text with the most: what the others are padded to."""
        return self.tokens if self.is_single else int(self._tokens_of_texts.max())

    @functools.cached_property
    def padded_place(self) -> np.ndarray:
        """(tokens,) where each token is if the tokens of all texts are padded to `width`.

        The padded texts are one after the other.
        """
        if self.is_single:
            return np.arange(self.tokens)
        by_text = np.argsort(self.text_of, kind="stable")
        place = np.empty_like(by_text)
        before = self._tokens_of_texts.cumsum() - self._tokens_of_texts
        place[by_text] = np.arange(self.tokens) - before[self.text_of[by_text]]
        return self.text_of * self.width + place

    @functools.cached_property
    def padded_tokens(self) -> np.ndarray:
        """(texts * width,) the token at each padded place, the first one where there is none.

        It is empty for one text.
        """
        if self.is_single:
            return np.zeros(0, dtype=np.int64)
        tokens = np.zeros(self.texts * self.width, dtype=np.int64)
        tokens[self.padded_place] = np.arange(self.tokens)
        return tokens

    @functools.cached_property
    def _tokens_of_texts(self) -> np.ndarray:
        return np.bincount(self.text_of, minlength=self.texts)

    def ranges(self, window: int | None, text_capacity: int) -> list[SeenRanges]:
        """What the tokens see of the prompt, if the pass has one, and of the texts.

        The columns of the texts are counted through. With branches the runs over the texts are of tokens in
        the order `by_text`. Texts begin `text_capacity` columns apart. With a `window` a token sees that many
        tokens back, itself included.
        """
        tokens = np.arange(self.tokens)
        in_sight = self._in_sight(window)
        kinds: list[SeenRanges] = []
        # 1. The prompt: all tokens see the same of it unless there is a window.
        if self.prompt and window is None:
            kinds.append(SeenRanges(np.array([self.tokens]), np.array([0]), np.array([self.prompt])))
        elif self.prompt:
            first = np.minimum(in_sight, self.prompt)
            kinds.append(SeenRanges(np.ones_like(tokens), first, np.maximum(0, self.prompt - in_sight)))
        if self.branches:
            # 2. The texts: tokens that see the same of one are a run.
            start = np.clip(in_sight - self.prompt, 0, self.seen - self.prompt)
            starts = (self.text_of * text_capacity + start)[self.by_text]
            lengths = (self.seen - self.prompt - start)[self.by_text]
            texts = self.text_of[self.by_text]
            differs = np.diff(np.stack([texts, starts, lengths]), prepend=-1).any(axis=0)
            begins = tokens[differs]
            kinds.append(
                SeenRanges(
                    tokens=np.diff(begins, append=self.tokens),
                    starts=starts[begins],
                    lengths=lengths[begins],
                )
            )
        else:  # the tokens of a row, whose last one sees all
            last = self.counts.cumsum() - 1
            kinds.append(SeenRanges(self.counts, self.text_of[last] * text_capacity, self.columns[last] + 1))
        return kinds

    def hidden_own_columns(self, window: int | None) -> np.ndarray:
        """(tokens, own columns) whether a token does not see a column of its row."""
        columns = np.arange(self.own_columns)[None]
        first = np.maximum(0, self._in_sight(window) - self.seen)  # (tokens,)
        hidden: np.ndarray = (columns > self.columns[:, None]) | (columns < first[:, None])
        return hidden

    def _in_sight(self, window: int | None) -> np.ndarray:
        """(tokens,) the first position that each sees."""
        if window is None:
            return np.zeros_like(self.positions)
        first: np.ndarray = np.maximum(0, self.positions - window + 1)
        return first
