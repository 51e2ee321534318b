"""The tokens that are written after a prompt, and their text.

Knows which of them the KV cache lacks. Does not choose tokens (`writer.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from toolformer_ops.language_model.tokenization import Tokenization

BORDER_TOKENS = 4
"""Tokens of the prompt that are decoded with the continuation, so that the white space at its beginning is
kept."""


@dataclass
class Continuation:
    """The continuation of one prompt."""

    prompt_ids: tuple[int, ...]
    tokenization: Tokenization
    window: int
    """The model's window, tokens."""
    ids: list[int] = field(default_factory=list)
    _fed: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self.ids[length:]
        self._fed = min(self._fed, length)

    def feed(self) -> tuple[int, tuple[int, ...]]:
        """Return how many tokens of the continuation its KV cache holds, and the tokens that the cache lacks.

        These count as fed from now on. At least one token is returned, since the next one is computed from
        it: after a cut the last that is left; of an empty continuation the prompt's last, and the number is
        -1.
        """
        valid, self._fed = min(self._fed, len(self.ids) - 1), len(self.ids)
        return valid, tuple(self.ids[valid:]) if valid >= 0 else self.prompt_ids[-1:]

    def fits(self, tokens: int) -> bool:
        """Whether a continuation of so many tokens, and one more, has room in the model's window."""
        return len(self.prompt_ids) + tokens < self.window

    def text(self, first: int = 0, end: int | None = None) -> str:
        """The text of tokens `first` to `end` (exclusive).

        It begins with the white space that these tokens have after the tokens before them.
        """
        return self._behind(
            [*self.prompt_ids[-BORDER_TOKENS:], *self.ids[:first]][-BORDER_TOKENS:], self.ids[first:end]
        )

    def text_without(self, spans: Sequence[tuple[int, int]]) -> str:
        """The text of all tokens outside these spans, (first, end)."""
        starts = [0, *(end for _, end in spans)]
        ends = [*(first for first, _ in spans), len(self.ids)]
        outside: list[int] = []
        for first, end in zip(starts, ends, strict=True):
            outside += self.ids[first:end]
        return self._behind(self.prompt_ids[-BORDER_TOKENS:], outside)

    def _behind(self, before: Sequence[int], ids: Sequence[int]) -> str:
        return self.tokenization.decode([*before, *ids])[len(self.tokenization.decode(before)) :]
