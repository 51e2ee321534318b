"""The place of a call that a tool proposes for a stretch of a text: before the signs that open it."""

import re

_OPENING = re.compile(r"[\[({<\"'“‘«„‚¡¿*_~≈=+−–$€£¥-]*\Z")  # noqa: RUF001
LONGEST_OPENING = 8
"""Characters before a stretch that are looked at for signs that open it."""


def place_before(text: str, char: int) -> int:
    """The offset before the signs that open what begins at `char`: of `($48` that of the bracket."""
    opening = _OPENING.search(text, max(0, char - LONGEST_OPENING), char)
    return char if opening is None else opening.start()
