"""Cutting a text that is longer than the model's window into overlapping windows of its one encoding.

Every token position is owned by exactly one window. The owner has at least half a window of text before the position and
at least the five scored tokens from it on, wherever the text itself has them. Nothing is cut away: a position far into the text
only sees less of what is far behind it. The windows depend on the text's length and on the window's size alone.
"""

from dataclasses import dataclass

from toolformer_ops.language_model.losses import SCORED_TOKENS

MIN_WINDOW = 4 * SCORED_TOKENS
"""Tokens; below this a window would be all overlap."""


@dataclass(frozen=True)
class Window:
    """Tokens `start` to `end` of a text, and the positions in it that are this window's own."""

    start: int
    end: int
    """Exclusive."""
    owned_start: int
    owned_end: int
    """Exclusive."""


def plan_windows(tokens: int, size: int) -> list[Window]:
    """Windows of at most `size` tokens for a text of `tokens` tokens, ascending; one where the text fits.

    Raises:
        ValueError: `size` is below `MIN_WINDOW` and the text does not fit.
    """
    if tokens <= size:
        return [Window(0, tokens, 0, tokens)]
    if size < MIN_WINDOW:
        raise ValueError(f"expected windows of at least {MIN_WINDOW} tokens, found {size}")
    windows: list[Window] = []
    owned_start = 0
    while owned_start < tokens:
        start = min(max(0, owned_start - size // 2), tokens - size)
        end = start + size
        owned_end = tokens if end == tokens else end - SCORED_TOKENS + 1
        windows.append(Window(start, end, owned_start, owned_end))
        owned_start = owned_end
    return windows


def owner(windows: list[Window], token: int) -> Window:
    """The one window that owns `token`."""
    return next(window for window in windows if window.owned_start <= token < window.owned_end)
