"""How a text that anybody wrote is shown to a person: on a page, in a note, a log or a terminal.

Texts are stored and released with their control characters. Where one is shown, a character that does not
show, turns the direction of a line, or is an order to a terminal (escape, and U+0080 to U+009F), is written
out. Does not escape HTML or Markdown.
"""

import json
import re
from typing import Any

# Control characters but tab and line break, marks and overrides of direction, line separators, and half
# surrogates, which UTF-8 cannot write.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_RAW_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029]")
"""What JSON leaves as it is, and a terminal obeys or takes for the end of a line."""


def visible(text: str) -> str:
    """`text` with each character that does not show, or that turns the direction of a line, as `⟨U+202E⟩`."""
    return _UNSEEN.sub(lambda match: f"\u27e8U+{ord(match.group()):04X}\u27e9", text)


def json_to_show(value: Any, **options: Any) -> str:
    """JSON with letters of all scripts as they are, and nothing in it that a terminal obeys.

    It reads back as `value`. `options` are those of `json.dumps`.
    """
    written = json.dumps(value, ensure_ascii=False, **options)
    return _RAW_IN_JSON.sub(lambda match: f"\\u{ord(match.group()):04x}", written)


def beside_threshold(number: float, threshold: float, digits: int) -> str:
    """The number with so many digits, or with more where it would look like a threshold that it does not reach."""
    while number < threshold <= round(number, digits):
        digits += 1
    return f"{number:.{digits}f}"
