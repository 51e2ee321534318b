"""The tokens that are written behind a prompt, and their text.

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
        """How many tokens of the continuation are valid in its KV cache, and those that the cache lacks.

        It counts them as fed. At least one token is lacking, from which the next one is computed: the last
        one, after a cut. It is the prompt's, and -1 tokens are valid, if the continuation is empty.
        """
        valid, self._fed = min(self._fed, len(self.ids) - 1), len(self.ids)
        return valid, tuple(self.ids[valid:]) if valid >= 0 else self.prompt_ids[-1:]

    def fits(self, tokens: int) -> bool:
        """Whether a continuation of so many tokens, and one more, has room in the model's window."""
        return len(self.prompt_ids) + tokens < self.window

    def text(self, first: int = 0, end: int | None = None) -> str:
        """The text of tokens `first` to `end` (exclusive).

        It has the white space that these tokens have after what comes before them.
        """
        return self._behind(
            [*self.prompt_ids[-BORDER_TOKENS:], *self.ids[:first]][-BORDER_TOKENS:], self.ids[first:end]
        )

    def text_without(self, spans: Sequence[tuple[int, int]]) -> str:
        """The whole text without spans of tokens, (first, end)."""
        starts = [0, *(end for _, end in spans)]
        ends = [*(first for first, _ in spans), len(self.ids)]
        outside: list[int] = []
        for first, end in zip(starts, ends, strict=True):
            outside += self.ids[first:end]
        return self._behind(self.prompt_ids[-BORDER_TOKENS:], outside)

    def _behind(self, before: Sequence[int], ids: Sequence[int]) -> str:
        return self.tokenization.decode([*before, *ids])[len(self.tokenization.decode(before)) :]
