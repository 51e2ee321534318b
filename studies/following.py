"""Whether a text goes on with a call's result: `result_follows` of the database, in Python.

A study has no database. `sql/functions/05_kept_calls.sql` says what the answers mean; a test compares both.
`SIGN` and `CURRENCY` are also what other parts of a study read before a number.
"""

import re
from decimal import ROUND_HALF_UP, Decimal

SEEN_CHARACTERS = 120
MINUS = "\N{MINUS SIGN}"
EN_DASH = "\N{EN DASH}"
_NUMBER = re.compile(rf"\s*[-{MINUS}]?[0-9][0-9,]{{0,40}}(\.[0-9]{{1,40}})?\s*%?\s*")
DASH = rf"(?<![^\W_]|%|\))[-{MINUS}{EN_DASH}]"
"""A dash that makes the number behind it negative: no hyphen between numbers or behind a letter."""
SIGN = rf"(?:{DASH}|(?<![0-9]\s)\b(?:[Mm]inus|[Nn]egative)\s+)"
"""What makes the number behind it negative; in "10 minus 5" nothing does."""
CURRENCY = "[$€£¥]"
_WRITTEN = re.compile(
    rf"(\(|{SIGN})?{CURRENCY}?((?:[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)(?:\.[0-9]+)?)(\s*%?\)?%?)"
)
_DAY = re.compile(r"today is ([a-z]+), ([a-z]+) ([0-9]{1,2}), ([0-9]{4})\.")
_FIVE_WORDS = re.compile(r"\s*(?:\S+\s*){1,5}")
_FIVE_WORDS_AND_PERCENT = re.compile(r"\s*(?:\S+\s*){1,5}%?")
_NO_WORD = re.compile(r"[\W_]+")
MOST_WORDS = 5


def result_follows(result: str, text_after: str) -> str | None:
    """`equal`, `nearly`, `other_sign` or `no`; None for a result that cannot stand in a text."""
    after = text_after[:SEEN_CHARACTERS]
    if _NUMBER.fullmatch(result):
        return _number_follows(result, after)
    day = _DAY.fullmatch(result.lower())
    if day is not None:
        return _day_follows(day, after)
    words = _NO_WORD.sub(" ", result.lower()).strip()
    if not words or len(words.split(" ")) > MOST_WORDS:
        return None
    behind = _NO_WORD.sub(" ", after.lower()).strip() + " "
    return "equal" if re.match(rf"(\S+ ){{0,4}}{re.escape(words)} ", behind) else "no"


def _number_follows(result: str, after: str) -> str:
    near = _FIVE_WORDS_AND_PERCENT.match(after)
    if near is None:
        return "no"
    value = Decimal(re.sub("[, %\\s]", "", result).replace(MINUS, "-"))
    if "%" in result:
        value /= 100
    numbers: list[Decimal] = []
    for written in _WRITTEN.finditer(near.group()):
        numbers += _values(written)
    if value in numbers:
        return "equal"
    resembling = [number for number in numbers if _resembles(number, value)]
    if any(number * value >= 0 for number in resembling):
        return "nearly"
    return "other_sign" if resembling else "no"


def _values(written: re.Match[str]) -> list[Decimal]:
    """The values that a written number can have: a percentage also a hundredth, one in round brackets both signs."""
    sign, digits, ending = written.groups()
    number = Decimal(digits.replace(",", ""))
    values = [number if sign in (None, "(") else -number]
    if sign == "(" and ")" in ending:
        values.append(-number)
    return [*values, *(value / 100 for value in values)] if "%" in ending else values


def _resembles(number: Decimal, value: Decimal) -> bool:
    """Whether one of them is the other but for its sign, or rounded to the other's places."""
    number, value = abs(number), abs(value)
    return number in (value, _rounded(value, number)) or _rounded(number, value) == value


def _rounded(number: Decimal, like: Decimal) -> Decimal:
    """The number with as many places as the other has without zeros at its end."""
    places = min(0, int(like.normalize().as_tuple().exponent))
    return number.quantize(Decimal(1).scaleb(places), rounding=ROUND_HALF_UP)


def _day_follows(day: re.Match[str], after: str) -> str:
    weekday, month, number, year = day.groups()
    near = _FIVE_WORDS.match(after.lower())
    words = near.group() if near else ""
    ending = r"(st|nd|rd|th)?"
    equal = (
        rf"\b{weekday}\b",
        rf"\b{month}\W+{number}{ending}\b",
        rf"\b{number}{ending}\W+(of\W+)?{month}\b",
    )
    if any(re.search(pattern, words) for pattern in equal):
        return "equal"
    return "nearly" if re.search(rf"\b({month}|{year})\b", words) else "no"
