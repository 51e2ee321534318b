"""Texts as token sequences for training: windows, and passes over them in a seeded order.

A text longer than a sequence is divided into consecutive windows, so that every token of it is trained on
once a pass; a border never falls into a call. Each sequence begins with the model's own start token, which is
not scored. Of a development document only the first window is taken: as many examples as documents (appendix
B). `batches.py` makes the forward passes of them.

The loss counts every token but start tokens (the paper), or leaves out what the tools wrote, too: a model
that stops at the arrow never writes it. These are the tokens of which a character is between the arrow and
the bracket, also of a call that a border cuts.
"""

import bisect
import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.release.format import CallSpan, ReleasedText

MIN_LENGTH = 16
NOT_SCORED = -100
"""The label that the loss passes over."""


def window_bounds(
    starts: Sequence[int], spans: Sequence[tuple[int, int]], room: int
) -> list[tuple[int, int]]:
    """Consecutive windows of at most `room` tokens that together are the text: (first token, end).

    `starts` are the characters at which the tokens start. A border inside one of the `spans` is moved to the
    span's start, unless the span alone fills a window.
    """
    bounds: list[tuple[int, int]] = []
    first = 0
    while first < len(starts):
        end = min(first + room, len(starts))
        if end < len(starts):
            for span_start, span_end in spans:
                if span_start < starts[end] < span_end:
                    before_call = bisect.bisect_left(starts, span_start)
                    end = before_call if before_call > first else end
                    break
        bounds.append((first, end))
        first = end
    return bounds


def without_results(ids: Sequence[int], starts: Sequence[int], spans: Iterable[CallSpan]) -> list[int]:
    """The ids, with the complement (`~id`) instead of each token that holds a character of a result.

    `starts` are the characters at which the tokens start, ascending; a token ends where the next one starts.
    """
    marked = list(ids)
    for span in spans:
        covering = starts[bisect.bisect_right(starts, span.result_start_char) - 1]
        # The bytes of one character are tokens with the same start.
        first, end = bisect.bisect_left(starts, covering), bisect.bisect_left(starts, span.result_end_char)
        marked[first:end] = [~token for token in ids[first:end]]
    return marked


class TokenSequences:
    """Token sequences in one flat array, which holds the complement of a token that the loss leaves out."""

    def __init__(self) -> None:
        self._ids = array("i")
        self._ends = array("q", [0])

    @classmethod
    def of(
        cls,
        texts: Iterable[ReleasedText],
        tokenization: Tokenization,
        length: int,
        *,
        without_calls: bool = False,
        mask_results: bool = False,
    ) -> "TokenSequences":
        """The sequences of all texts, with or without their calls.

        Each has at most `length` tokens with its start token. With `mask_results` the loss leaves out what
        the tools wrote.

        Raises:
            ModelError: `length` leaves no room for text.
        """
        if length < MIN_LENGTH:
            raise ModelError(
                f"expected sequences of at least {MIN_LENGTH} tokens, found a length of {length}."
            )
        sequences = cls()
        room = length - len(tokenization.start_ids)
        for text in texts:
            tokenized = tokenization.tokenize(text.all_calls()[0] if without_calls else text.text)
            spans = [] if without_calls else text.call_spans()
            ids = without_results(tokenized.ids, tokenized.starts, spans) if mask_results else tokenized.ids
            unbroken = [(span.start_char, span.end_char) for span in spans]
            for first, end in window_bounds(tokenized.starts, unbroken, room):
                sequences.append((*tokenization.start_ids, *ids[first:end]))
        return sequences

    @classmethod
    def of_beginnings(cls, texts: Iterable[str], tokenization: Tokenization, length: int) -> "TokenSequences":
        """The first `length` tokens of each text with its start token, texts of no scored token left out."""
        sequences = cls()
        room = length - len(tokenization.start_ids)
        for text in texts:
            ids = (*tokenization.start_ids, *tokenization.ids(text)[:room])
            if len(ids) > 1:
                sequences.append(ids)
        return sequences

    def append(self, ids: Iterable[int]) -> None:
        """Add one sequence, with the complements of tokens that the loss leaves out."""
        self._ids.extend(ids)
        self._ends.append(len(self._ids))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Mapping[str, list[int]]:
        """`input_ids`, and `labels`: the same with NOT_SCORED where the loss passes over a token."""
        stored = self._ids[self._ends[index] : self._ends[index + 1]]
        return {
            "input_ids": [token if token >= 0 else ~token for token in stored],
            "labels": [token if token >= 0 else NOT_SCORED for token in stored],
        }

    def length(self, index: int) -> int:
        """Tokens of one sequence."""
        return self._ends[index + 1] - self._ends[index]

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, start tokens included."""
        return len(self._ids)

    @property
    def masked_tokens(self) -> int:
        """Tokens that the loss leaves out, start tokens not counted."""
        return int((np.array(self._ids) < 0).sum())

    @property
    def sha256(self) -> str:
        """Hash of all tokens and borders, and of which tokens the loss leaves out."""
        return hashlib.sha256(self._ids.tobytes() + self._ends.tobytes()).hexdigest()


class ShuffledPasses:
    """`count` examples, pass after pass over the sequences.

    Each pass has another order, which follows from the seed. The i-th example is the same whoever asks, so
    that a resumed training sees what the undisturbed one would have seen.
    """

    def __init__(self, sequences: TokenSequences, count: int, seed: int) -> None:
        self._sequences = sequences
        self._count = count
        self._seed = seed
        self._order: tuple[int, NDArray[np.int64]] | None = None
        self._counted = (0, 0)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Mapping[str, list[int]]:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._sequences[self._place(index)]

    def tokens_until(self, count: int) -> int:
        """Tokens of the first `count` examples, start tokens included."""
        if count < self._counted[0]:
            self._counted = (0, 0)
        first, tokens = self._counted
        tokens += sum(self._sequences.length(self._place(index)) for index in range(first, count))
        self._counted = (count, tokens)
        return tokens

    def _place(self, index: int) -> int:
        number, place = divmod(index, len(self._sequences))
        if self._order is None or self._order[0] != number:
            shuffled = np.random.default_rng([self._seed, number]).permutation(len(self._sequences))
            self._order = (number, shuffled)
        return int(self._order[1][place])
