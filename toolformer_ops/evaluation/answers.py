"""Whether a continuation holds a right answer: among its first words, or as its first number.

See section 4.2 of the paper. What counts as a word among the first 5, 10 or 20 (sections 4.2.1, 4.2.3 and
4.2.4): a run of characters without white space that holds a letter or a digit, as `don't`, `U.S.`,
`twenty-one` or `1,461`. Scripts that are written without spaces (Chinese, Japanese, Thai, Lao, Burmese,
Khmer) have no such runs: there each letter is a word, so that ten words of Chinese are ten characters.

How words are compared: an answer is right if its pieces follow one another among the pieces of those first
words. Pieces are what is left of a text when

- compatible forms are made equal (NFKC: full-width digits, ligatures), accents are taken off Latin, Greek and
  Cyrillic letters, and case is folded: `Beyoncé` is `beyonce`;
- separators of thousands are taken out of a number (`1,461` is `1461`), its decimal point is kept, and so is
  a minus sign right before it (`-5` is not `5`; `1914-1918` is two numbers);
- `%` is the word percent, and an `'s` at the end of a word is a separate piece, as if written `s`;
- other apostrophes and the dots of abbreviations are taken out (`don't` is `dont`, `U.S.` is `us`), and all
  else that is no letter, digit or combining mark parts two pieces: `twenty-one` is two.

An article at the start of an answer need not be written (`The Beatles`). A piece is matched whole: `art` is
not in `party`, nor `1920` in `1920s`.

A number (section 4.2.2 and footnote 7) is written in digits: with a sign right before it or before its
currency (`-5`, `-$5`), with separators of thousands (`1,461`), a decimal point (`3.75`, `.5`), as a fraction
(`3/4`) or a whole number and a fraction (`1 1/2`, also `1½`). A percent sign or a unit after it does not
change it: `50%` is 50. Numbers in words are not read, nor digits inside a word (`B52`). "First" is the first
of the text, except if the text holds an equation: then the first after its first `=`. (`<=`,
`>=`, `!=`, `=>` are no equations, nor is a `=` without a number after it.) A whole right number must be met
exactly. Another is met to within half a hundredth, since the calculator rounds to two decimals.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from toolformer_ops.writing_systems import is_unspaced

TOLERANCE = Fraction(5, 1000)
"""Largest distance from a right number that is not whole."""

_ACCENTS = re.compile("[\u0300-\u036f]")
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'", "\u2212": "-", "%": " percent "})
_POSSESSIVE = re.compile(r"'s\b")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_ABBREVIATION = re.compile(r"(?<!\w)(?:[^\W\d_]\.){2,}")
_ARTICLES = {"a", "an", "the"}
_NUMBER = re.compile(
    r"(?<![\w.,])"  # not inside a word or another number
    r"(?:(?<![)\]])(?P<sign>-))?[$€£₹]?"
    r"(?P<whole>\d{1,3}(?:,\d{3}){1,30}(?!\d)(?:\.\d{1,100})?|\d{1,100}(?:\.\d{1,100})?|\.\d{1,100})"
    r"(?: ?/ ?(?P<under>\d{1,100})(?![\d/])| (?P<part>\d{1,100})/(?P<parts>\d{1,100})(?![\d/]))?"
)
_SIGNED_CURRENCY = re.compile(r"([$€£₹])\s?(-?)\s?(?=[\d.])")
_EQUATION = re.compile(r"(?<![<>!=:])=(?![=>])")
_FRACTION_SLASH = "\u2044"


@dataclass(frozen=True)
class Metric:
    """How a continuation is judged."""

    name: str
    """What it asks, in words."""
    words: int
    """How many words of the continuation are read."""
    number: bool = False
    """The first number counts; otherwise the answer must be among the words."""

    def judge(self, text: str, answers: Sequence[str]) -> tuple[str, bool]:
        """What the text predicts, and whether that is right. `text` is a continuation without calls."""
        read = first_words(text, self.words)
        if not self.number:
            return read, stands_among_first_words(text, answers, self.words)
        predicted = first_number(read)
        return "" if predicted is None else str(predicted), first_number_is_right(read, answers)


def first_words(text: str, count: int) -> str:
    """The text up to the end of its first `count` words, without white space around it."""
    words = 0
    within = False  # a run that was counted
    for index, character in enumerate(text):
        if character.isspace():
            within = False
        elif character.isalnum() and (not within or is_unspaced(character)):
            if words == count:
                return text[:index].strip()
            words += 1
            within = not is_unspaced(character)
    return text.strip()


def pieces(text: str) -> tuple[str, ...]:
    """The text as compared: see the module's description."""
    plain = unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text))).casefold()
    plain = _POSSESSIVE.sub(" s", plain.translate(_APOSTROPHES)).replace("'", "")
    plain = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), plain)
    plain = _ABBREVIATION.sub(lambda letters: letters.group().replace(".", ""), plain)
    # A space wherever two pieces part.
    marked: list[str] = []
    for index, character in enumerate(plain):
        before, after = plain[index - 1 : index], plain[index + 1 : index + 2]
        if is_unspaced(character) and character.isalnum():
            marked += [" ", character]
        elif character.isalnum() or unicodedata.category(character).startswith("M"):
            marked += (
                [" ", character] if before and is_unspaced(before) and character.isalnum() else [character]
            )
        elif character == "." and before.isdigit() and after.isdigit():
            marked.append(character)
        elif character == "-" and after.isdigit() and not before.isalnum() and before not in {".", ")", "-"}:
            marked += [" ", character]
        else:
            marked.append(" ")
    return tuple("".join(marked).split())


def stands_among_first_words(text: str, answers: Sequence[str], count: int) -> bool:
    """Whether one of `answers` is within the first `count` words of `text`.

    An answer without pieces never is.
    """
    written = pieces(first_words(text, count))
    for answer in map(pieces, answers):
        named = answer[1:] if len(answer) > 1 and answer[0] in _ARTICLES else answer
        size = len(named)
        if size > 0 and any(
            written[start : start + size] == named for start in range(len(written) - size + 1)
        ):
            return True
    return False


def first_number(text: str) -> Fraction | None:
    """The number that the text predicts, or None if it holds none."""
    plain = _plain(text)
    equation = _EQUATION.search(plain)
    after = _first(plain[equation.end() :]) if equation else None
    return _first(plain) if after is None else after


def first_number_is_right(text: str, answers: Sequence[str]) -> bool:
    """Whether the number that the text predicts is that of one of `answers`.

    An answer without a number is never right.
    """
    written = first_number(text)
    numbers = [_first(_plain(answer)) for answer in answers]
    rights = [number for number in numbers if number is not None]
    return written is not None and any(
        written == right if right.denominator == 1 else abs(written - right) <= TOLERANCE for right in rights
    )


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
    plain = ""
    for character in text:
        if character == "\u2212":
            plain += "-"
        elif character.isdecimal():
            plain += str(unicodedata.decimal(character))
        elif _FRACTION_SLASH in (spelled := unicodedata.normalize("NFKC", character)):
            plain += f" {spelled.replace(_FRACTION_SLASH, '/')} "
        else:
            plain += character
    return _SIGNED_CURRENCY.sub(lambda match: match[2] + match[1], plain)
