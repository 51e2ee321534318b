"""Numbers that an English text says in words: `forty-two`, `two dozen`, `twice`, `half`, `3 million`, `1.5k`.

For the question whether a number of a call comes before it. A word may say several numbers, one for each way
in which people compute with it: `half` is 0.5, 2 (a division) and 50 (a percentage). Knows English alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from toolformer_ops.tools.written_numbers import POINT

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_UNITS = {word: number for number, word in enumerate(_ONES)} | {
    word: 10 * number for number, word in enumerate(_TENS, start=2)
}
_SCALES = {
    "dozen": 12, "dozens": 12, "score": 20, "hundred": 100, "hundreds": 100, "thousand": 10**3, "thousands": 10**3,
    "million": 10**6, "millions": 10**6, "billion": 10**9, "billions": 10**9, "trillion": 10**12,
    "k": 10**3, "m": 10**6, "bn": 10**9,
}  # fmt: skip
"""What a number before the word is multiplied by; the last three only behind digits."""
_MOST = 10**24
"""No number reaches this: so many digits are a code, and `hundred hundred hundred ...` is no number."""
_LARGE = 1000
"""From this scale on, what was said before ends a part: two thousand five hundred."""
_SAID = {
    "once": ("1",), "single": ("1",), "both": ("2",), "twice": ("2",), "double": ("2",), "doubled": ("2",), "doubles": ("2",),
    "pair": ("2",), "pairs": ("2",), "couple": ("2",), "thrice": ("3",), "triple": ("3",), "tripled": ("3",), "triples": ("3",),
    "quadruple": ("4",), "quadrupled": ("4",),
    "half": ("0.5", "2", "50"), "halves": ("0.5", "2", "50"), "halved": ("0.5", "2"), "half's": ("0.5", "2"),
    "third": ("3",), "thirds": ("3",), "quarter": ("0.25", "4", "25"), "quarters": ("0.25", "4", "25"),
    "fourth": ("0.25", "4", "25"), "fourths": ("0.25", "4", "25"), "fifth": ("0.2", "5", "20"), "fifths": ("0.2", "5", "20"),
    "sixth": ("6",), "sixths": ("6",), "seventh": ("7",), "sevenths": ("7",), "eighth": ("0.125", "8"), "eighths": ("0.125", "8"),
    "ninth": ("9",), "ninths": ("9",), "tenth": ("0.1", "10"), "tenths": ("0.1", "10"),
    "½": ("0.5", "2", "50"), "¼": ("0.25", "4", "25"), "¾": ("0.75", "3", "4", "75"), "⅓": ("3",), "⅔": ("2", "3"),
}  # fmt: skip
"""What other words and signs say."""
_WORD = re.compile(rf"{POINT.unsigned}|[a-z]+|[½¼¾⅓⅔]", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class SaidNumber:
    """A number that a text says in words, or in digits with a word: `forty-two`, `3 million`."""

    values: tuple[str, ...]
    """As decimals without trailing zeros; several for a word such as `half`."""
    start_char: int
    """Offset in the text of the first word or digit."""
    end_char: int
    """Offset of the end of the last word, exclusive."""


def said_numbers(text: str) -> set[str]:
    """Return the numbers that a text says in words, as decimals without trailing zeros: `{"42", "0.5"}`.

    A number of several words is one: `two hundred and five` says 205, and not 2.
    """
    return set().union(*(number.values for number in said_number_places(text)))


def said_number_places(text: str) -> Iterator[SaidNumber]:
    """The numbers of `said_numbers` with their places, in the order of the text."""
    total = part = Decimal(0)
    is_open = False  # whether a number is being read
    is_said = False  # whether a word of it is no digits
    start = end = 0  # of the number that is being read
    last = ""
    for match in _WORD.finditer(text):
        word = match[0].lower()
        unit, scale = _UNITS.get(word), _SCALES.get(word)
        is_scale = scale is not None and (is_open or word not in ("k", "m", "bn"))
        continues = is_open and (
            (unit is not None and (part % 100 == 0 or (unit < 10 and part % 10 == 0 and part % 100 >= 20)))
            or (scale is not None and total + part * scale < _MOST)
            or (word == "and" and last in _SCALES)
        )
        if not continues:
            if is_open and is_said:
                yield SaidNumber((written(total + part),), start, end)
            total = part = Decimal(0)
            is_open = is_said = False
            start = match.start()
        if word in _SAID:
            yield SaidNumber(_SAID[word], match.start(), match.end())
        elif unit is not None:
            part += unit
            is_open = is_said = True
        elif scale is not None and is_scale:
            part = (part or Decimal(1)) * scale
            if scale >= _LARGE:
                total, part = total + part, Decimal(0)
            is_open = is_said = True
        elif (word[0].isdigit() or word[0] == ".") and (number := Decimal(POINT.plain(word))) < _MOST:
            part, is_open = number, True
        if word != "and":
            end = match.end()
        last = word
    if is_open and is_said:
        yield SaidNumber((written(total + part),), start, end)


def written(number: Decimal) -> str:
    """Return a number's one spelling: `42`, `0.5`."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
