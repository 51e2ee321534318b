"""The tokens that continue a prompt: appended, taken back, read as text with and without calls. Decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from toolformer_ops.language_model.tokenization import Tokenization

BORDER_TOKENS = 4
"""Tokens of the prompt that are decoded with the continuation, so that the white space at its beginning is kept."""
STOP_TAIL_TOKENS = 16
"""Tokens in which a stop text is looked for, beside one for each of its characters."""


@dataclass
class Continuation:
    """The continuation of one prompt."""

    prompt_ids: tuple[int, ...]
    tokenization: Tokenization
    max_positions: int
    """The model's window, tokens."""
    ids: list[int] = field(default_factory=list)
    calls: list[tuple[int, int]] = field(default_factory=list)
    """Spans of tokens that are calls with their results: (first, end)."""
    _fed: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, tokens: Sequence[int]) -> None:
        """More tokens."""
        self.ids.extend(tokens)

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self.ids[length:]
        self._fed = min(self._fed, length)

    def feed(self) -> tuple[int, tuple[int, ...]]:
        """How many tokens of the continuation the row that holds it may keep, and those that it lacks; counts them as taken in."""
        kept, self._fed = self._fed, len(self.ids)
        return kept, tuple(self.ids[kept:])

    def fits(self, tokens: int) -> bool:
        """Whether a continuation of so many tokens, and one more, has room in the model's window."""
        return len(self.prompt_ids) + tokens < self.max_positions

    def text(self, first: int = 0, end: int | None = None) -> str:
        """The text of tokens `first` to `end` (exclusive), as they stand behind what comes before them."""
        return self._behind(
            [*self.prompt_ids[-BORDER_TOKENS:], *self.ids[:first]][-BORDER_TOKENS:], self.ids[first:end]
        )

    def text_without_calls(self) -> str:
        """The whole text with the calls taken out."""
        starts = [0, *(end for _, end in self.calls)]
        ends = [*(first for first, _ in self.calls), len(self.ids)]
        outside = [token for first, end in zip(starts, ends, strict=True) for token in self.ids[first:end]]
        return self._behind(self.prompt_ids[-BORDER_TOKENS:], outside)

    def ends_with(self, stop: str) -> bool:
        """Whether `stop` stands in what was written last, outside calls."""
        first = max(self.calls[-1][1] if self.calls else 0, len(self.ids) - STOP_TAIL_TOKENS - len(stop))
        return stop in self.text(first)

    def _behind(self, before: Sequence[int], ids: Sequence[int]) -> str:
        return self.tokenization.decode([*before, *ids])[len(self.tokenization.decode(before)) :]
