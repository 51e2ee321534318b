"""Cut a long text into pieces that are annotated each by itself. Pure functions.

The work on a text grows faster than its length, since a call near its end is sampled and scored with all that comes before it. So a
text of more than `max_text_tokens` is cut at the end of a paragraph; where a paragraph is longer than that, at the end of a line,
of a sentence, or of a word. Pieces are about equally long. A token counts as four characters (`records.py`), so that no tokenizer
is loaded, and another model has the same pieces.
"""

import re
from collections.abc import Sequence

_BREAKS = (re.compile(r"\n[^\S\n]*\n"), re.compile(r"\n"), re.compile(r"(?<=[.!?])\s"), re.compile(r"\s"))
"""Ends of paragraphs, lines, sentences and words."""
_SPACE = re.compile(r"\s*")

Span = tuple[int, int]
"""The first character and the end, exclusive."""


def cut(text: str, span: Span, most: int, unbroken: Sequence[Span] = ()) -> list[Span]:
    """Pieces of a part of a text, each of at most `most` characters, in order; the white space between two is in neither.

    No piece begins or ends within one of the spans `unbroken`, which may make it longer.
    """
    start, end = span
    pieces: list[Span] = []
    while end - start > most:
        even = (end - start) / -(-(end - start) // most)
        at = start + most
        for pattern in _BREAKS:
            found = [
                match.start()
                for match in pattern.finditer(text, start + int(even / 2), start + most + 1)
                if not any(first < match.start() < last for first, last in unbroken)
            ]
            if found:
                at = min(found, key=lambda place: abs(place - start - even))
                break
        at = min(end, next((last for first, last in unbroken if first < at < last), at))
        pieces.append((start, start + len(text[start:at].rstrip()) or at))
        match = _SPACE.match(text, at, end)
        start = match.end() if match else at
    return [*pieces, (start, end)] if start < end else pieces
