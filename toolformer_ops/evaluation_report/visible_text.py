"""Text from outside made visible: characters that do not show, or that turn the direction of a line, as their code points."""

import re

# Control characters, marks and overrides of direction, line separators, and half surrogates, which UTF-8 cannot write.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """`text` with each such character as `⟨U+202E⟩`; line breaks and tabs stay. Does not escape."""
    return _UNSEEN.sub(lambda match: f"\u27e8U+{ord(match.group()):04X}\u27e9", text)
