"""The numbers of a text that people compute with, in digits or in words, each with its kind.

A kind is an amount of money, a percentage, a year, or a plain number. Ordinals, dates, clocks, versions,
addresses, ranges and the numbers of lists, pages, sections, verses and named things are none.

Reads English. The time is linear in the length of the text. `computations.py` says which of them follow from
others.
"""

import itertools
import re
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple

from toolformer_ops.tools.written_numbers import POINT, said_number_places, with_plain_digits, writing_of

Kind = Literal["plain", "money", "percent", "year"]
FIRST_PLAIN_YEAR = 1900
"""From this year on four digits are a year without a word that says so."""
MAX_DECIMALS = 6
MAX_DIGITS = 15
"""Longer numbers (account and telephone numbers, hashes) are no operands."""
UNIT = 10**6
"""Values are whole millionths, so that arithmetic on them is exact."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?"
    r"|Dec(?:ember)?)\b"
)
_DAY = r"(?:3[01]|[12][0-9]|0?[1-9])(?:st|nd|rd|th)?"
_TO = r"(?:\s?[-–—/&]\s?|\s+(?:and|or|to|through)\s+|,\s)"  # noqa: RUF001
_LABEL = (
    r"(?:pages?|pp?\.|chapters?|ch\.|sections?|sec\.|verses?|paragraphs?|lines?|tables?|figures?|figs?\.|exhibits?|steps?|items?"
    r"|parts?|volumes?|vol\.|issues?|articles?|titles?|rules?|notes?|appendix|rooms?|suites?|levels?|phases?|rounds?|grades?"
    r"|questions?|tips?|lessons?|number|nos?\.|episodes?|seasons?|psalms?|route|highway|building|box|version|release|top)"
)
_NO_OPERAND = re.compile(
    "|".join(
        (
            # Addresses and telephone numbers.
            r"(?:https?://|www\.)\S+",
            r"(?<![\w.+-])[\w.+-]+@[\w.-]+",
            r"(?<![\w-])(?:1-)?\(?[0-9]{3}\)?[-. ][0-9]{3}[-. ][0-9]{4}(?![\w-])",
            # Dates.
            rf"\b{_MONTH}\.?\s+{_DAY}(?:{_TO}{_DAY})?\b(?![,.]?[0-9])(?:,?\s+[0-9]{{4}}\b)?",
            rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+[0-9]{{4}}\b)?",
            rf"\b{_MONTH}\.?,?\s+(?:of\s+)?[0-9]{{4}}\b",
            r"\b[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}(?:T[0-9:.]+Z?)?\b",
            r"\b[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{2,4}\b",
            r"\b(?:1[5-9]|20)[0-9]{2}[-–/](?:[0-9]{2}|[0-9]{4})\b",  # noqa: RUF001
            # Clocks, with an offset from UTC; verses, ratios and scores.
            r"\b[0-9]+(?::[0-9]+)+(?:[-–,][0-9]+)*(?:\s?[AaPp]\.?[Mm]\b)?(?:\s[+-][0-9]{4}\b)?",  # noqa: RUF001
            r"\b[0-9]{1,2}(?:\s?[-–]\s?[0-9]{1,2})?\s?[AaPp]\.?[Mm]\b",  # noqa: RUF001
            r"\b[0-9]{1,2}\s+o['’]clock\b",  # noqa: RUF001
            # Versions.
            r"\b[vV]\.?\s?[0-9]+(?:\.[0-9]+)*(?:-[0-9]+)?\b",
            r"\b[0-9]+(?:\.[0-9]+){2,}(?:-[0-9]+)?\b",
            r"\b[0-9]+\.[0-9]+-[0-9]+\b",
            # Sizes of numbers in a computer, and spans of time up to or from now.
            r"\b[0-9]+[- ]?bits?\b",
            r"\b(?i:last|past|next|coming|previous)\s+[0-9]+\s+(?:days|weeks|months|years|decades)\b",
            # Numbers of lists, of notes, and of labelled or named things.
            r"^[^\S\n]*(?:[-*•]\s*)?\(?[0-9]{1,3}(?:\.[0-9]+)*(?:[.)]|\\\.)(?=\s|$)",
            r"\([0-9]{1,2}\)|\[[0-9]+\]|(?<=\s)[1-9]\)(?=\s)|#\s?[0-9]+|§+\s?[0-9.]+",
            rf"\b(?i:{_LABEL})\s+[0-9]+(?:\.[0-9]+)*(?:{_TO}[0-9]+)*\b(?!,?[0-9])",
            r"(?<=[A-Za-z])-[0-9]+(?:[-.][0-9]+)*",
            r"\b[A-Z][a-z]+\s[0-9]{1,3}(?=\s?[:–—])",  # noqa: RUF001
            r"\b(?:[Hh]alf a dozen|[Aa]ge[sd]?\s[0-9]+)\b",
            r"(?<![\w.,])[0-9][0-9.,]*\s?(?:[KMGT]i?B|px|pt|dpi)\b",
            r"(?<![\w.,])[0-9]+(?:\.[0-9]+)?\s?[°′″]",  # noqa: RUF001
            r"(?<=,\s)[0-9]+\s(?:pages?|slides?|tabs?)(?=[,)])",
            # Ranges and fractions, which are no single number.
            r"(?<![\w.,])[$€£¥]?[0-9][0-9,.]*[-–/][$€£¥]?[0-9][0-9,.]*\b(?!\s*=)",  # noqa: RUF001
        )
    ),
    re.MULTILINE,
)
_NAME_BEFORE = re.compile(r"(?<![\w’'])([A-Z][\w’'&]*)[  ]\Z")  # noqa: RUF001
_BEGINS_A_SENTENCE = re.compile(r"(?:\A|[.!?:;\n\"“”(•|*-])\s*\Z")
_NO_NAMES = frozenset(
    [
        "A", "AUD", "About", "Add", "After", "All", "Almost", "An", "And", "Another", "Are", "Around", "At",
        "Because", "Before", "Between", "Bought", "But", "By", "CAD", "CHF", "Did", "Do", "Does", "During",
        "EUR", "Each", "Earned", "Every", "For", "From", "GBP", "Has", "Have", "He", "Her", "His", "How",
        "I", "INR", "If", "In", "Is", "It", "Its", "JPY", "Just", "Less", "More", "Most", "My", "Nearly",
        "No", "Of", "On", "Only", "Or", "Our", "Out", "Over", "RMB", "Rs", "She", "So", "Sold", "Some",
        "Spent", "Than", "That", "The", "Their", "Then", "There", "These", "They", "This", "Those",
        "Through", "To", "Total", "USD", "Under", "Until", "Up", "Was", "We", "Were", "What", "When",
        "Where", "Which", "While", "Who", "With", "Within", "You", "Your",
    ]
)  # fmt: skip
"""Words with a capital letter that a number may follow without being part of a name."""
_MONEY_BEFORE = re.compile(r"(?:[$€£¥]|\b(?:USD|EUR|GBP|CAD|AUD|RMB|Rs\.?|INR|JPY|CHF))[  ]?\Z")
_MONEY_BEHIND = re.compile(r"\s?(?:dollars?|euros?|bucks)\b", re.IGNORECASE)
_CENTS_BEHIND = re.compile(r"\s?(?:¢|cents?\b)", re.IGNORECASE)
_PERCENT_BEHIND = re.compile(r"[\s-]?(?:%|per\s?cent\b|percentage\s+points?\b)", re.IGNORECASE)
_BASIS_POINTS_BEHIND = re.compile(r"\s(?:basis\s+points?|bps)\b", re.IGNORECASE)
_YEARS_BEHIND = re.compile(r"[\s-]?years?\b", re.IGNORECASE)
_YEAR = re.compile(r"(?:1[0-9]|20)[0-9]{2}")
_OLD_YEAR_BEFORE = re.compile(r"\b(?:in|since|by|until|till|during|year|circa|of|from)\s\Z", re.IGNORECASE)
_YEAR_BEFORE = re.compile(
    r"(?:\b(?:in|of|since|by|from|to|until|till|during|fiscal|for|and|year|years|early|late|FY|before|after|through|between|than|vs\.?"
    r"|circa|around|spring|summer|fall|autumn|winter)|[(,–-])\s*\Z",  # noqa: RUF001
    re.IGNORECASE,
)
_THINGS_BEHIND = re.compile(r"\s[a-z]+s\b")
_ORDINAL = re.compile(r"(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth)s?\Z", re.IGNORECASE)
_SHARE_BEFORE = re.compile(r"\b(?:a|one|two|three|four|five|six|seven|eight|nine)[\s-]\Z", re.IGNORECASE)
_SHARE_BEHIND = re.compile(r"\s(?:of|as|the|less|more)\b", re.IGNORECASE)
_NOT_COUNTED = re.compile(
    r"(?:once|single|both|pairs?|couple|one|zero|score|m|k|bn|dozens|hundreds|thousands|millions|thousand|million|billion|trillion)\Z",
    re.IGNORECASE,
)
"""Words that say a number and seldom mean one."""
_LETTER_BEHIND_SPACE = re.compile(r"\s(?:k|m|bn)\Z", re.IGNORECASE)
_LIST_NUMBER = re.compile(r"(?<![\w.,$€£¥])([0-9]{1,2})(?:[.)]|\\\.)\s+(?=[A-Z\"“‘*(])")  # noqa: RUF001


class Value(NamedTuple):
    """What decides whether a number follows from others."""

    millionths: int
    """Millionths of a per cent for a percentage, for an amount of its unit."""
    kind: Kind
    step: int
    """What one in its last written digit is worth, in millionths: 100,000 for 2.3, 10**11 for 2.3 million."""
    is_rounded: bool
    """Whether it may be a rounded result: it has decimals, or a word such as `million` after it."""
    counts_years: bool

    def equals(self, numerator: int, denominator: int, *, rounds: bool) -> bool:
        """Whether it is the quotient, or that quotient rounded to its last digit."""
        distance = abs(numerator - self.millionths * denominator)
        return distance == 0 or (rounds and 2 * distance <= self.step * denominator)


@dataclass(frozen=True)
class Operand:
    """A number that people compute with."""

    token: int
    """Its place among the text's tokens: words and other signs."""
    start_char: int
    end_char: int
    value: Value


@dataclass(frozen=True)
class _Written:
    """A number as it is written."""

    end_char: int
    number: Decimal
    decimals: int
    """After the point, of the number with its scale: -5 for 2.3 million."""
    is_scaled: bool = False


def operands(text: str) -> list[Operand]:
    """The numbers of a text that people compute with, in their order."""
    text = with_plain_digits(text)
    blanked = _without_list_numbers(_NO_OPERAND.sub(lambda match: " " * len(match[0]), text))
    token_starts = [match.start() for match in _TOKEN.finditer(text)]
    numbers = []
    for start, written in sorted(_written_numbers(text, blanked).items()):
        if 0 < written.number < 10**MAX_DIGITS:
            token = bisect_right(token_starts, start) - 1
            value = _value(blanked, start, written)
            numbers.append(Operand(token=token, start_char=start, end_char=written.end_char, value=value))
    # The operands without those that are the ends of a range: `60 to 90 minutes`, `between two and four`.
    ends: set[int] = set()
    for first, second in itertools.pairwise(numbers):
        word = blanked[first.end_char : second.start_char].strip("$€£¥% ").lower()
        before = blanked[max(0, first.start_char - 10) : first.start_char].lower().rstrip("$€£¥ ")
        is_sum = blanked[second.end_char : second.end_char + 3].lstrip().startswith("=")
        is_range = (
            (word in ("to", "or") and not before.endswith("from"))
            or (word in ("-", "–", "—") and not is_sum)  # noqa: RUF001
            or (word == "and" and before.endswith("between"))
        )
        if is_range:
            ends |= {first.start_char, second.start_char}
    return [number for number in numbers if number.start_char not in ends]


def _without_list_numbers(text: str) -> str:
    """The text with spaces for the numbers of a list within a line, such as `1. Draft. 2. Review.`."""
    matches = list(_LIST_NUMBER.finditer(text))
    pieces, end = [], 0
    for place, match in enumerate(matches):
        neighbours = matches[max(0, place - 1) : place] + matches[place + 1 : place + 2]
        if any(abs(int(other[1]) - int(match[1])) == 1 for other in neighbours):
            pieces += [text[end : match.start()], " " * len(match[1])]
            end = match.end(1)
    return "".join([*pieces, text[end:]])


def _written_numbers(text: str, blanked: str) -> dict[int, _Written]:
    """The numbers by the character where they start.

    They are in digits, in words, or in digits with a word for the scale.
    """
    numbers: dict[int, _Written] = {}
    writing = writing_of(text) or POINT
    for match in re.finditer(writing.number, blanked):
        written = writing.plain(match[0])
        whole, _, decimals = written.partition(".")
        is_short = len(whole) <= MAX_DIGITS and len(decimals) <= MAX_DECIMALS
        if is_short and not _is_of_a_name(text, match.start()):
            numbers[match.start()] = _Written(match.end(), Decimal(written), len(decimals))
    for said in said_number_places(blanked):
        start, end, number = said.start_char, said.end_char, Decimal(said.values[0])
        if blanked[start].isdigit() or blanked[start] == ".":
            digits = numbers.get(start)
            if digits and digits.number and not _LETTER_BEHIND_SPACE.search(blanked, start, end):
                scale = (number / digits.number).adjusted()
                numbers[start] = _Written(end, number, digits.decimals - max(0, scale), is_scaled=True)
        elif _is_counted(blanked, start, end):
            numbers[start] = _Written(end, number, 0)
    return numbers


def _value(text: str, start: int, written: _Written) -> Value:
    """The value of a number with its kind, by the words and signs around it."""
    number, decimals, end = written.number, written.decimals, written.end_char
    kind: Kind = "plain"
    if _PERCENT_BEHIND.match(text, end):
        kind = "percent"
    elif _MONEY_BEFORE.search(text, max(0, start - 5), start) or _MONEY_BEHIND.match(text, end):
        kind = "money"
    elif _BASIS_POINTS_BEHIND.match(text, end):
        kind, number, decimals = "percent", number / 100, decimals + 2
    elif _CENTS_BEHIND.match(text, end):
        kind, number, decimals = "money", number / 100, decimals + 2
    elif _YEAR.fullmatch(text, start, end) and _is_a_year(text, start, end):
        kind = "year"
    return Value(
        millionths=int(number * UNIT),
        kind=kind,
        step=max(1, int(Decimal(10) ** -decimals * UNIT)),
        is_rounded=decimals > 0 or written.is_scaled,
        counts_years=_YEARS_BEHIND.match(text, end) is not None,
    )


def _is_a_year(text: str, start: int, end: int) -> bool:
    """Whether four digits are a year: by the word before them, or from 1900 on if they count nothing."""
    if int(text[start:end]) < FIRST_PLAIN_YEAR:
        return _OLD_YEAR_BEFORE.search(text, max(0, start - 12), start) is not None
    before = _YEAR_BEFORE.search(text, max(0, start - 12), start)
    return before is not None or _THINGS_BEHIND.match(text, end) is None


def _is_of_a_name(text: str, start: int) -> bool:
    """Whether a number belongs to a name before it: `Section 508`, `Windows 10`."""
    name = _NAME_BEFORE.search(text, max(0, start - 30), start)
    if name is None or name[1] in _NO_NAMES:
        return False
    return not _BEGINS_A_SENTENCE.search(text, max(0, name.start() - 5), name.start())


def _is_counted(text: str, start: int, end: int) -> bool:
    """Whether words that say a number mean it.

    `one`, the `third` that is an ordinal and `the Big Ten` do not.
    """
    if _NOT_COUNTED.fullmatch(text, start, end):
        return False
    if text[start].isupper() and not _BEGINS_A_SENTENCE.search(text, max(0, start - 5), start):
        return False
    if _ORDINAL.search(text, start, end):
        return bool(_SHARE_BEFORE.search(text, max(0, start - 8), start) and _SHARE_BEHIND.match(text, end))
    return True
