"""How texts write numbers, in digits and words: one definition for the Calculator's filter, guard, operands and sums.

A number is a whole run of digits with the signs that group them and a decimal part. It may touch a letter of
a script without capitals (`共有120本`, `845권`) or a unit after it (`12kg`, `$5m`), but not be part of a name
(`MP3`, `3D`, `covid19`), an ordinal (`12th`), a code (`3fa9`) or a version (`1.2.3`).

Two writings differ in the decimal sign: `1,250.50` and `1.250,50`. Groups may also be divided by apostrophes
or no-break spaces, and as in India (`12,50,000`). Digits of any script are read. `1.250` is a decimal in one
writing and grouped in the other: other numbers of the text decide (`writing_of`), or nothing does.

Number words of English (`forty-two`, `two dozen`, `twice`, `half`, `3 million`, `1.5k`) are read for the
question whether a number of a call comes before it. A word may say several numbers, one for each way in
which people compute with it: `half` is 0.5, 2 (a division) and 50 (a percentage).
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from toolformer_ops.writing_systems import CASED_LETTERS

_GROUPED = r"[0-9]{1,3}(?:['’][0-9]{3}){1,6}|[0-9]{1,3}(?:[\u00a0\u2009\u202f][0-9]{3}){1,6}"  # noqa: RUF001
_GROUPED_BY_COMMAS = r"[0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,2}(?:,[0-9]{2}){1,6},[0-9]{3}"
_GROUPED_BY_POINTS = r"[0-9]{1,3}(?:\.[0-9]{3}){1,6}"
_STARTS = (
    rf"(?:(?<![0-9_{CASED_LETTERS}])(?<![0-9_{CASED_LETTERS}]\.)|(?<=[0-9][xX])"
    r"|(?<=\b(?:USD|EUR|GBP|CHF|CAD|AUD|RMB|INR|JPY))|(?<=\bRs)(?!\.)|(?<=\bRs\.)|(?<=\bRM))"
)
_ENDS = (
    r"(?![0-9_])(?!\.[0-9]|,[0-9]{3}(?![0-9]))"
    rf"(?!(?:st|nd|rd|th|s|D|G)(?![{CASED_LETTERS}]))"
    rf"(?!(?![xX][0-9]|[kcm]?m[23](?![0-9{CASED_LETTERS}]))[{CASED_LETTERS}]+[0-9])"
)
_GROUP_SIGNS = "'’\u00a0\u2009\u202f"  # noqa: RUF001
_ARABIC_SIGNS = str.maketrans("\u066b\u066c", ".,")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
_ONLY_WITH_POINT = re.compile(
    r"(?<![\w.,])(?:[0-9]+\.(?:[0-9]{1,2}|[0-9]{4,})|0?\.[0-9]{3}|[0-9]{4,}\.[0-9]{3}"
    rf"|(?:{_GROUPED_BY_COMMAS})\.[0-9]+|[0-9]{{1,3}}(?:,[0-9]{{3}}){{2,6}}"
    r"|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3})"
    r"(?![0-9.]|,[0-9])"
)
"""A number that is one with a decimal point alone; not `30.01.`, a German date."""
_ONLY_WITH_COMMA = re.compile(
    r"(?<![\w.,(\[])(?:[0-9]+,(?:[0-9]{1,2}|[0-9]{5,})|0,[0-9]{3}|[0-9]{4,},[0-9]{3}"
    rf"|{_GROUPED_BY_POINTS},[0-9]+|[0-9]{{1,3}}(?:\.[0-9]{{3}}){{2}})"
    r"(?![0-9)\]]|[.,][0-9])"
)
"""A number that is one with a decimal comma alone; not the pair `(3,5)`, nor `May 3,2021`."""
_POINT_BEFORE_THREE = re.compile(r"(?<![\w.,])[1-9][0-9]{0,2}\.[0-9]{3}(?![0-9.,])")
_COMMA_BEFORE_THREE = re.compile(r"(?<![\w.,])[1-9][0-9]{0,2},[0-9]{3}(?![0-9.,])")


@dataclass(frozen=True)
class NumberWriting:
    """How a text writes numbers."""

    decimal_sign: str
    group_signs: str
    unsigned: str
    """Regular expression of a number, without what may be around it."""
    number: str
    """Regular expression of a whole number in running text, with digits 0 to 9."""

    def plain(self, number: str) -> str:
        """The number with a decimal point, without signs for groups: `1250.50`."""
        for sign in self.group_signs:
            number = number.replace(sign, "")
        return number.replace(self.decimal_sign, ".")


_BY_POINT = rf"(?:(?:{_GROUPED_BY_COMMAS}|{_GROUPED}|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_BY_COMMA = rf"(?:(?:{_GROUPED_BY_POINTS}|{_GROUPED}|[0-9]+)(?:,[0-9]+)?)"
POINT = NumberWriting(
    decimal_sign=".",
    group_signs=f",{_GROUP_SIGNS}",
    unsigned=_BY_POINT,
    number=f"{_STARTS}{_BY_POINT}{_ENDS}",
)
COMMA = NumberWriting(
    decimal_sign=",",
    group_signs=f".{_GROUP_SIGNS}",
    unsigned=_BY_COMMA,
    number=f"(?<![0-9],){_STARTS}{_BY_COMMA}(?!,[0-9]){_ENDS}",
)


def with_plain_digits(text: str) -> str:
    """The text with digits 0 to 9 for those of every script, and as long as before."""
    if text.isascii():
        return text
    return _OTHER_DIGIT.sub(lambda match: str(int(match[0])), text.translate(_ARABIC_SIGNS))


@functools.lru_cache(maxsize=64)
def writing_of(text: str) -> NumberWriting | None:
    """The writing of which a text has numbers, if it has none of the other."""
    plain = with_plain_digits(text)
    has_points = _ONLY_WITH_POINT.search(plain) is not None
    has_commas = _ONLY_WITH_COMMA.search(plain) is not None
    if has_points == has_commas:
        return None
    return POINT if has_points else COMMA


def writing_of_sum(sum_of_numbers: str) -> NumberWriting | None:
    """The writing of a sum's numbers, which brackets may touch."""
    return writing_of(sum_of_numbers.replace("(", " ").replace(")", " "))


def is_read_in_two_ways(sum_of_numbers: str) -> bool:
    """Whether a number of a sum is a decimal or grouped, such as `1.250`, and no other number says which."""
    return (
        writing_of_sum(sum_of_numbers) is None
        and _POINT_BEFORE_THREE.search(with_plain_digits(sum_of_numbers)) is not None
    )


def read_as_in(text: str, sum_of_numbers: str) -> str:
    """A sum whose numbers are read in one way alone: as the text writes numbers.

    The sum itself decides if it can. Three decimals become five. In a text with decimal commas a sum of whole
    numbers gets one, so that its answer has one, too.
    """
    writing = writing_of(text)
    if writing is None or writing_of_sum(sum_of_numbers) is not None:
        return sum_of_numbers
    if writing is POINT:
        return _POINT_BEFORE_THREE.sub(r"\g<0>00", sum_of_numbers)
    grouped = _POINT_BEFORE_THREE.sub(lambda match: match[0].replace(".", ""), sum_of_numbers)
    read = _COMMA_BEFORE_THREE.sub(r"\g<0>00", grouped)
    return re.sub(r"(?<![\w.,])[0-9]+(?![\w.,])", r"\g<0>,0", read, count=1) if "," not in read else read


def written_as_in(sum_of_numbers: str, result: str) -> str:
    """A result with the decimal sign and the digits of the sum that it answers."""
    if writing_of_sum(sum_of_numbers) is COMMA:
        result = result.replace(".", ",")
    zeros = {ord(character) - int(character) for character in sum_of_numbers if character.isdecimal()}
    if len(zeros) != 1 or zeros == {ord("0")}:
        return result
    [zero] = zeros
    return result.translate({ord("0") + digit: chr(zero + digit) for digit in range(10)})


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
"""What a number before the word is multiplied by; the last three only after digits."""
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
