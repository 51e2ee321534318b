"""The first number in a text, and whether it is the right one (section 4.2.2 of the paper and its footnote 7).

A number is written in digits: with a sign right before it or before its currency (`-5`, `-$5`), with separators of thousands
(`1,461`), a decimal point (`3.75`, `.5`), as a fraction (`3/4`) or a whole number and a fraction (`1 1/2`, also `1½`). A percent
sign or a unit after it does not change it: `50%` is 50. Numbers in words are not read, nor digits inside a word (`B52`).

"First" is the first of the text, except if the text holds an equation: then the first after its first `=`. (`<=`, `>=`, `!=`,
`=>` are no equations, nor is a `=` without a number after it.)

A whole right number must be met exactly. Another is met to within half a hundredth, since the calculator rounds to two decimals.
"""

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

TOLERANCE = Fraction(5, 1000)
"""Largest distance from a right number that is not whole."""

_NUMBER = re.compile(
    r"(?<![\w.,])"  # not inside a word or another number
    r"(?:(?<![)\]])(?P<sign>-))?[$€£₹]?"
    r"(?P<whole>\d{1,3}(?:,\d{3}){1,30}(?!\d)(?:\.\d{1,100})?|\d{1,100}(?:\.\d{1,100})?|\.\d{1,100})"
    r"(?: ?/ ?(?P<under>\d{1,100})(?![\d/])| (?P<part>\d{1,100})/(?P<parts>\d{1,100})(?![\d/]))?"
)
_SIGNED_CURRENCY = re.compile(r"([$€£₹])\s?(-?)\s?(?=[\d.])")
_EQUATION = re.compile(r"(?<![<>!=:])=(?![=>])")
_FRACTION_SLASH = "\u2044"


def first_number(text: str) -> Fraction | None:
    """The number that the text predicts, or None if it holds none."""
    plain = _plain(text)
    equation = _EQUATION.search(plain)
    after = _first(plain[equation.end() :]) if equation else None
    return _first(plain) if after is None else after


def is_right_number(written: Fraction, right: Fraction) -> bool:
    """Whether a number is the right one: exactly if that is whole, else to within `TOLERANCE`."""
    return written == right if right.denominator == 1 else abs(written - right) <= TOLERANCE


def first_number_is_right(text: str, answers: Sequence[str]) -> bool:
    """Whether the number that the text predicts is that of one of `answers`; an answer without a number is never right."""
    written = first_number(text)
    rights = [right for right in (_first(_plain(answer)) for answer in answers) if right is not None]
    return written is not None and any(is_right_number(written, right) for right in rights)


def _first(plain: str) -> Fraction | None:
    match = _NUMBER.search(plain)
    if match is None:
        return None
    value = Fraction(match["whole"].replace(",", ""))
    if match["under"] and int(match["under"]):
        value /= int(match["under"])
    if match["part"] and int(match["parts"]):
        value += Fraction(int(match["part"]), int(match["parts"]))
    return -value if match["sign"] else value


def _plain(text: str) -> str:
    """The text with its digits, minus signs and fractions in ASCII, and a sign before its currency."""
    plain = "".join(map(_plain_character, text))
    return _SIGNED_CURRENCY.sub(lambda match: match[2] + match[1], plain)


def _plain_character(character: str) -> str:
    if character == "\u2212":
        return "-"
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    spelled = unicodedata.normalize("NFKC", character)
    return f" {spelled.replace(_FRACTION_SLASH, '/')} " if _FRACTION_SLASH in spelled else character
