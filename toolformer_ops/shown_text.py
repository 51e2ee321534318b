"""How untrusted text is shown to a person: on a page, in a note, a log or a terminal.

Texts are stored and released with their control characters. Where one is shown, a character that does not
show, turns the direction of a line, or is an order to a terminal (escape, and U+0080 to U+009F), is written
out. Does not escape HTML or Markdown.
"""

import json
import math
import re
from typing import Any

# Control characters but tab and line break, marks and overrides of direction, line separators, and half
# surrogates, which UTF-8 cannot write.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_RAW_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029]")
"""What JSON leaves as it is, and a terminal obeys or takes for the end of a line."""


_ESCAPES = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([\\/\"']))")
MOST_DIGITS = 7
SAME_NATS, SAME_SHARE = 0.02, 0.15
"""Two rounded probabilities tell a gain to so many nats, or to such a share of it."""
PIECE_CHARACTERS = 8
"""So many characters of a secret in a row are taken for a piece of it."""


def visible(text: str) -> str:
    """`text` with each character that does not show, or that turns the direction of a line, as `⟨U+202E⟩`."""
    return _UNSEEN.sub(lambda match: f"\u27e8U+{ord(match.group()):04X}\u27e9", text)


def without_secret(text: str, secret: str, name: str) -> str:
    """`text` with `name` for a secret, also where it was cut or has the escapes of JSON.

    A piece of the secret counts from `PIECE_CHARACTERS` on.
    """
    if not secret:
        return text
    plain = _ESCAPES.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else escape[2], text)
    text = plain if secret in plain else text
    kept: list[str] = []
    at = 0
    shortest = min(PIECE_CHARACTERS, len(secret))
    while at < len(text):
        length = shortest
        if text[at : at + length] not in secret or at + length > len(text):
            kept.append(text[at])
            at += 1
            continue
        while at + length < len(text) and text[at : at + length + 1] in secret:
            length += 1
        kept.append(name)
        at += length
    return "".join(kept)


def json_to_show(value: Any, **options: Any) -> str:
    """JSON with letters of all scripts as they are, and nothing in it that a terminal obeys.

    It reads back as `value`. `options` are those of `json.dumps`.
    """
    written = json.dumps(value, ensure_ascii=False, **options)
    return _RAW_IN_JSON.sub(lambda match: f"\\u{ord(match.group()):04x}", written)


def gain_in_figures(
    gain: float, probability_with: float | None, threshold: float = -math.inf, arrow: str = "->"
) -> str:
    """What a call gains: `1.21 nats`, or the probability of the next tokens before and after, `0.21 -> 0.64`.

    The second is of the rule `probability`: the probability of the next tokens without the result, or with
    a placebo, and with the result, `probability_with`. Both have two digits, or as many more as tell by
    which factor the second is larger, and whether it reaches the threshold.
    """
    if probability_with is None:
        return in_unit_of_rule(gain, False, threshold)
    before = probability_with / math.exp(gain)
    for digits in range(2, MOST_DIGITS):
        shown = round(before, digits), round(probability_with, digits)
        if min(shown) > 0:
            shown_gain = math.log(shown[1] / shown[0])
            is_near = gain <= 0 or abs(shown_gain - gain) <= max(SAME_NATS, SAME_SHARE * gain)
            if is_near and (shown_gain >= threshold) == (gain >= threshold):
                break
    return f"{before:.{digits}f} {arrow} {probability_with:.{digits}f}"


def in_unit_of_rule(nats: float, by_probability: bool, threshold: float = -math.inf) -> str:
    """A threshold, or the most that a call gains, as its keep rule counts: `0.25 nats`, or `1.28 times`."""
    if by_probability:
        return f"{beside_threshold(math.exp(nats), math.exp(threshold), digits=2)} times"
    return f"{beside_threshold(nats, threshold, digits=2)} nats"


def gained(gain: float, probability_with: float | None, threshold: float = -math.inf) -> str:
    """What a call gains: `saves 1.21 nats`, or `probability of the next tokens 0.21 -> 0.64`."""
    words = "saves" if probability_with is None else "probability of the next tokens"
    return f"{words} {gain_in_figures(gain, probability_with, threshold)}"


def at_most_gained(bound: float, by_probability: bool, threshold: float) -> str:
    """The most that a call gains: `gains at most 0.25 nats`, or of a probability by how many times."""
    most = in_unit_of_rule(bound, by_probability, threshold)
    return f"makes the next tokens at most {most} as probable" if by_probability else f"gains at most {most}"


def needed(threshold: float, by_probability: bool) -> str:
    """What a keep threshold in nats asks for: `0.5 are needed`, or `1.25 times is needed` of a probability."""
    return f"{math.exp(threshold):.2f} times is needed" if by_probability else f"{threshold:g} are needed"


def count_of(number: int, what: str) -> str:
    """Such as `1 text`, `1,200 new calls`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def threshold_in_words(threshold: float, keep_rule: str) -> str:
    """A keep threshold in the unit of its rule: `0.5 nats`, or `1.25 times the probability`."""
    return (
        f"{threshold:g} nats" if keep_rule == "paper" else f"{math.exp(threshold):.2f} times the probability"
    )


def beside_threshold(number: float, threshold: float, digits: int) -> str:
    """The number with so many digits, or with more where it would look like a threshold that it does not reach."""
    while number < threshold <= round(number, digits):
        digits += 1
    return f"{number:.{digits}f}"
