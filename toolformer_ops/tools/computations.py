"""Computations in a text: a number that follows from two others that stand shortly before it.

What the Calculator's filter looks for by its rule `sharp` (`tools/calculator.py`). The paper's rule takes
every number for an operand, so that the list numbers 1, 2 and 3, a date or a clock make a sum, and knows no
percentage. Here, in this order:

1. `operands`: the numbers that people compute with, in digits or in words, each with its kind: an amount of
   money, a percentage, a year, or a plain number. Ordinals, dates, clocks, versions, addresses, ranges and
   the numbers of lists, pages, sections, verses and named things are none.
2. `computations`: the operands that follow from two of the few before them, by an operation that their kinds
   allow: money and money is money, money by a number of things is money, a share of two plain numbers is a
   percentage.
3. Small numbers meet by chance. So a relation counts if its numbers have many digits, if words around it say
   that something is computed, such as `total` or `twice`, or if most numbers around it follow from others, as
   in a worked problem.

Reads English. The time is linear in the length of the text. Does not compute what a call asks.
"""

import functools
import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Literal, NamedTuple

from toolformer_ops.tools.number_words import said_number_places

Kind = Literal["plain", "money", "percent", "year"]
How = Literal["sum", "product", "years", "share", "change"]
"""How a number follows: as a sum or difference, a product or quotient, the difference of two years, a part of
a whole, or what a change of so many per cent makes."""

WINDOW_TOKENS = 100
OPERANDS_BEFORE = 8
"""Operands before a number of which two may give it."""
OPERANDS_BEFORE_PERCENT = 3
"""How many operands may stand before a percentage: its result has few digits, so that more pairs meet it by
chance."""
UNSURE_TOGETHER = 2
"""So many numbers that may follow by chance are no chance, if they are half of the numbers among them."""
NEAREST_TOKENS = 25
NEAR_TOKENS = 40
WORDS_TOKENS = 60
"""How far from each other, in tokens, the numbers of a computation are whose words or few digits decide."""
WINDOWS_REMEMBERED = 2**12
FIRST_PLAIN_YEAR = 1900
"""From this year on four digits are a year without a word that says so."""
MAX_DECIMALS = 6
MAX_DIGITS = 15
"""Longer numbers (account and telephone numbers, hashes) are no operands."""

UNIT = 10**6
"""Values are whole millionths, so that arithmetic on them is exact."""
HUNDRED = 100 * UNIT
SMALL = 10 * UNIT
"""Numbers below this meet in every text."""

_QUOTIENTS: Mapping[tuple[Kind, Kind], Kind] = MappingProxyType(
    {("plain", "plain"): "plain", ("money", "plain"): "money", ("money", "money"): "plain"}
)
"""The kind of the quotient of two kinds."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?"
_NUMBER = re.compile(rf"(?<![\w.,])(?:{_DIGITS}|\.[0-9]+)(?![\w]|[.,][0-9])")
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
_TOTAL = re.compile(
    r"\b(?:totals?|totall?ing|altogether|in all|sum of|combined|together|remaining|remainder|remains?|difference|averag\w+|net"
    r"|profit)\b",
    re.IGNORECASE,
)
"""Words with which people say that a number is a result."""
_CHANGE = re.compile(
    r"\b(?:increas\w+|decreas\w+|rose|ris(?:e|es|ing)|rais\w+|grew|grow\w*|fell|fall\w*|drop\w*|declin\w+|gain\w*|reduc\w+|up|down|from"
    r"|chang\w+|more|less|fewer|higher|lower|off|discount\w*|jump\w*|climb\w*|sav\w+|cut|percentage\s+points?)\b",
    re.IGNORECASE,
)
"""Words of one number that became another."""
_CUE = re.compile(
    r"\b(?:plus|minus|add(?:s|ed|ing)?|subtract\w*|left|leav(?:es|ing)|times|twice|thrice|double[ds]?|triple[ds]?|half|each|every|per"
    r"|apiece|spen[dt]s?|paid|pays?|costs?|earn(?:s|ed)?|sold|another|extra|multipl\w+|divid\w+|so|then|means|makes?|needs?|uses?)\b",
    re.IGNORECASE,
)
"""Words of people who compute, and of others."""
_FACTOR = re.compile(
    r"\b(?:times|each|every|per|apiece|twice|thrice|double[ds]?|triple[ds]?|half|halves|third|quarter|multipl\w+|divid\w+|split|average)\b",
    re.IGNORECASE,
)
_DIFFERENCE = re.compile(
    r"\b(?:increas\w+|decreas\w+|rose|ris(?:e|es|ing)|grew|growth|fell|drop\w*|declin\w+|gain\w*|difference|points?|jump\w*|climb\w*)\b",
    re.IGNORECASE,
)
_WORD_BEHIND = re.compile(r"[\s-]([A-Za-z]+)")
_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")
_LINE_END = re.compile(r"\n")
_CELL = re.compile(r"\|")
_LIST_NUMBER = re.compile(r"(?<![\w.,$€£¥])([0-9]{1,2})(?:[.)]|\\\.)\s+(?=[A-Z\"“‘*(])")  # noqa: RUF001
_EQUALS = re.compile(rf"(?:[0-9)%]\s*=|(?<=[0-9])\s+equals)\s*(?:[$€£¥]\s?)?(?={_DIGITS})", re.IGNORECASE)


class Value(NamedTuple):
    """What decides whether a number follows from others."""

    millionths: int
    """Millionths of a per cent for a percentage, for an amount of its unit."""
    kind: Kind
    step: int
    """What one in its last written digit is worth, in millionths: 100,000 for 2.3, 10**11 for 2.3 million."""
    is_rounded: bool
    """Whether it may be a rounded result: it has decimals, or a word such as `million` behind it."""
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
class Computation:
    """A number that follows from two numbers before it."""

    first: Operand
    second: Operand
    result: Operand
    how: How


@dataclass(frozen=True)
class _Written:
    """A number as it is written."""

    end_char: int
    number: Decimal
    decimals: int
    """After the point, of the number with its scale: -5 for 2.3 million."""
    is_scaled: bool = False


def judge_computations(text: str) -> tuple[bool, str]:
    """Whether a computation is found in a text, and which kind of it, or why not."""
    numbers = operands(text)
    computation = next(computations(text, numbers), None)
    if computation is not None:
        is_of_percentage = computation.how in ("share", "change")
        return True, "percentage_of_two_others" if is_of_percentage else "number_of_two_others"
    if sums_several(text, numbers):
        return True, "total_of_several"
    if announces_a_result(text, numbers):
        return True, "equals_sign_before_number"
    return False, "fewer_than_three_numbers" if len(numbers) < 3 else "no_computation"


# Operands


def operands(text: str) -> list[Operand]:
    """The numbers of a text that people compute with, in their order."""
    blanked = _without_list_numbers(_NO_OPERAND.sub(lambda match: " " * len(match[0]), text))
    token_starts = [match.start() for match in _TOKEN.finditer(text)]
    numbers = []
    for start, written in sorted(_written_numbers(text, blanked).items()):
        if 0 < written.number < 10**MAX_DIGITS:
            token = bisect_right(token_starts, start) - 1
            value = _value(blanked, start, written)
            numbers.append(Operand(token=token, start_char=start, end_char=written.end_char, value=value))
    return _without_ranges(blanked, numbers)


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
    for match in _NUMBER.finditer(blanked):
        whole, _, decimals = match[0].replace(",", "").partition(".")
        is_short = len(whole) <= MAX_DIGITS and len(decimals) <= MAX_DECIMALS
        if is_short and not _is_of_a_name(text, match.start()):
            number = Decimal(match[0].replace(",", ""))
            numbers[match.start()] = _Written(match.end(), number, len(decimals))
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


def _without_ranges(text: str, numbers: list[Operand]) -> list[Operand]:
    """The operands without those that are the ends of a range: `60 to 90 minutes`, `between two and four`."""
    ends: set[int] = set()
    for first, second in itertools.pairwise(numbers):
        word = text[first.end_char : second.start_char].strip("$€£¥% ").lower()
        before = text[max(0, first.start_char - 10) : first.start_char].lower().rstrip("$€£¥ ")
        is_sum = text[second.end_char : second.end_char + 3].lstrip().startswith("=")
        is_range = (
            (word in ("to", "or") and not before.endswith("from"))
            or (word in ("-", "–", "—") and not is_sum)  # noqa: RUF001
            or (word == "and" and before.endswith("between"))
        )
        if is_range:
            ends |= {first.start_char, second.start_char}
    return [number for number in numbers if number.start_char not in ends]


# Computations


def computations(text: str, numbers: list[Operand]) -> Iterator[Computation]:
    """For each number that follows from two others shortly before it, hardly by chance, one such pair."""
    # Windows of equal numbers are looked through once, however often they are repeated.
    names: dict[Value, int] = {}  # integers for the values, which are hashed faster
    values = [names.setdefault(number.value, len(names)) for number in numbers]
    distinct = list(names)
    pairs_of = functools.lru_cache(maxsize=WINDOWS_REMEMBERED)(
        lambda window: _pairs([distinct[name] for name in window])
    )
    places = [number.token for number in numbers]
    words = _Words(text)
    unsure: list[Computation] = []  # of the last numbers
    for index, result in enumerate(numbers):
        begin = max(0, index - OPERANDS_BEFORE)
        while result.token - places[begin] >= WINDOW_TOKENS:
            begin += 1
        pairs = pairs_of(tuple(values[begin : index + 1]))
        if not pairs:
            continue
        surroundings = _Surroundings(words, numbers, index)
        possible: Computation | None = None
        for first, second, how in pairs:
            computation = Computation(numbers[begin + first], numbers[begin + second], result, how)
            if surroundings.mean(computation):
                yield computation
                break
            possible = possible or (computation if surroundings.allow(computation) else None)
        else:
            if possible is None:
                continue
            unsure = [other for other in unsure if result.token - other.result.token < WINDOW_TOKENS]
            unsure.append(possible)
            numbers_among = index - bisect_right(places, unsure[0].first.token)
            if len(unsure) >= UNSURE_TOGETHER and 2 * len(unsure) >= numbers_among:
                yield possible


def _pairs(window: Sequence[Value]) -> list[tuple[int, int, How]]:
    """The pairs of places from which the last value of a window follows, the nearest first, and how."""
    *before, result = window
    pairs = []
    for second, first in itertools.combinations(reversed(range(len(before))), 2):
        how = _follows(before[first], before[second], result)
        if how is not None:
            pairs.append((first, second, how))
    return pairs


def _follows(first: Value, second: Value, result: Value) -> How | None:
    """How a value follows from two others; None if it does not."""
    kinds = {first.kind, second.kind}
    if result.kind == "year" or "year" in kinds:
        return _follows_from_years(first, second, result)
    if result.kind == "percent" and "percent" not in kinds:
        return _follows_as_percentage(first, second, result) if len(kinds) == 1 else None
    if len(kinds) == 2 and "percent" in kinds:
        percentage, amount = (first, second) if first.kind == "percent" else (second, first)
        return _follows_by_percentage(percentage, amount, result)
    alike = {*kinds, result.kind}
    # A currency sign is often left out, of one of the amounts.
    is_of_kind = len(alike) == 1 or (alike == {"money", "plain"} and result.kind == "money")
    a, b = first.millionths, second.millionths
    if is_of_kind and result.millionths in (a + b, abs(a - b)):
        return "sum"
    return None if "percent" in alike else _follows_as_product(first, second, result)


def _follows_from_years(first: Value, second: Value, result: Value) -> How | None:
    """Whether a value is the number of years between two."""
    if first.kind != "year" or second.kind != "year" or result.kind != "plain":
        return None
    is_between = abs(first.millionths - second.millionths) == result.millionths
    return "years" if is_between and (result.counts_years or result.millionths >= SMALL) else None


def _follows_as_percentage(first: Value, second: Value, result: Value) -> How | None:
    """Whether a percentage is the smaller's share in the larger, or the change from first to second."""
    low, high = sorted((first.millionths, second.millionths))
    if low == high or result.millionths == HUNDRED:
        return None
    if result.equals(low * HUNDRED, high, rounds=True):
        return "share"
    return "change" if result.equals((high - low) * HUNDRED, first.millionths, rounds=True) else None


def _follows_by_percentage(percentage: Value, amount: Value, result: Value) -> How | None:
    """Whether a value is so many per cent of an amount, or the amount changed by so many per cent."""
    if result.kind != amount.kind or percentage.millionths == HUNDRED:
        return None

    def is_part(per_cent: int) -> bool:
        return result.equals(per_cent * amount.millionths, HUNDRED, rounds=result.is_rounded)

    if is_part(percentage.millionths):
        return "share"
    changes = (HUNDRED + percentage.millionths, HUNDRED - percentage.millionths)
    return "change" if any(map(is_part, changes)) else None


def _follows_as_product(first: Value, second: Value, result: Value) -> How | None:
    """Whether a value is the product or the quotient of two others; not by 1, and not a number by itself."""
    a, b = first.millionths, second.millionths
    amounts = [first.kind, second.kind].count("money")
    is_amount = result.kind == "money"
    if (
        UNIT not in (a, b)
        and amounts == int(is_amount)
        and result.equals(a * b, UNIT, rounds=result.is_rounded)
    ):
        return "product"
    for dividend, divisor in ((first, second), (second, first)):
        kind_of_quotient = _QUOTIENTS.get((dividend.kind, divisor.kind))
        if kind_of_quotient != result.kind or divisor.millionths in (UNIT, dividend.millionths):
            continue
        if result.equals(dividend.millionths * UNIT, divisor.millionths, rounds=result.is_rounded):
            return "product"
    return None


class _Words:
    """Where a text's sentences end, and where words stand that say that something is computed.

    Each is looked up once.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._places: dict[re.Pattern[str], list[int]] = {}

    def stand(self, words: re.Pattern[str], start: int, end: int) -> bool:
        """Whether a match of a pattern begins between two characters."""
        return self._next(words, start) < end

    def sentence_of(self, number: Operand) -> tuple[int, int]:
        """The first character and the end of a number's sentence.

        It reaches at most 200 characters before the number and 100 behind it.
        """
        ends = self._of(_SENTENCE_END)
        place = bisect_right(ends, number.start_char - 1)
        start = max(0, number.start_char - 200, ends[place - 1] + 1 if place else 0)
        return start, min(number.end_char + 100, self._next(_SENTENCE_END, number.end_char))

    def _next(self, words: re.Pattern[str], start: int) -> int:
        places = self._of(words)
        place = bisect_left(places, start)
        return places[place] if place < len(places) else len(self.text)

    def _of(self, words: re.Pattern[str]) -> list[int]:
        if words not in self._places:
            self._places[words] = [match.start() for match in words.finditer(self.text)]
        return self._places[words]


class _Surroundings:
    """What is around a number that follows from others, and what it says of whether that is chance."""

    def __init__(self, words: _Words, numbers: list[Operand], index: int) -> None:
        self._words = words
        self._text = words.text
        self._result = numbers[index]
        self._earliest_of_percentage = numbers[max(0, index - OPERANDS_BEFORE_PERCENT)].token

    def _says(self, *patterns: re.Pattern[str]) -> bool:
        """Whether the sentence of the result holds words of one of the patterns."""
        sentence = self._words.sentence_of(self._result)
        return any(self._words.stand(pattern, *sentence) for pattern in patterns)

    def mean(self, computation: Computation) -> bool:
        """Whether the numbers alone, or with the words around them, are no chance."""
        if self._crosses_cells(computation):
            return False
        if computation.how in ("share", "change"):
            return self._mean_percentage(computation)
        first, second, result = computation.first, computation.second, computation.result
        tokens = result.token - first.token
        if computation.how == "years":
            return self._is_in_sentence(first)
        if first.value.kind == second.value.kind == "percent":
            is_near = tokens <= NEAR_TOKENS and self._is_in_sentence(first)
            return is_near and self._says(_DIFFERENCE)
        digits = _digits(first, second, result)
        if min(digits) >= 2 and (max(digits) >= 3 or (tokens <= NEAR_TOKENS and self._is_in_sentence(first))):
            return True
        return tokens <= WORDS_TOKENS and self._mean_small_numbers(computation, tokens)

    def _mean_small_numbers(self, computation: Computation, tokens: int) -> bool:
        """Whether words say that numbers of few digits are computed."""
        first = computation.first
        counts_alike = len({_thing(self._text, number) for number in _numbers_of(computation)}) < 3
        if computation.how == "sum" and counts_alike and self._says(_TOTAL):
            return True
        is_near = tokens <= NEAR_TOKENS and (tokens <= NEAREST_TOKENS or self._is_in_sentence(first))
        if not is_near or not _are_distinct(computation):
            return False
        if computation.how == "sum":
            return counts_alike and self._says(_CHANGE, _CUE)
        return self._says(_FACTOR)

    def _mean_percentage(self, computation: Computation) -> bool:
        """Whether a percentage's relation is no chance: its numbers have many digits, or stand together."""
        first, second, result = computation.first, computation.second, computation.result
        tokens = result.token - first.token
        digits = _digits(first, second, result)
        if min(digits[:2]) >= 2 and digits[2] >= 3 and tokens <= NEAR_TOKENS:
            return True
        crosses_line = self._words.stand(_LINE_END, second.end_char, result.start_char)
        if first.token < self._earliest_of_percentage or tokens > WORDS_TOKENS or crosses_line:
            return False
        return self._says(_CHANGE) if computation.how == "change" else self._is_in_sentence(second)

    def allow(self, computation: Computation) -> bool:
        """Whether a relation that may be chance is none if others of its kind stand around it."""
        is_of_numbers = computation.how in ("sum", "product") and _are_distinct(computation)
        return is_of_numbers and not self._crosses_cells(computation)

    def _crosses_cells(self, computation: Computation) -> bool:
        """Whether a border of a table's cell is among the numbers."""
        return self._words.stand(_CELL, computation.first.end_char, computation.result.start_char)

    def _is_in_sentence(self, number: Operand) -> bool:
        """Whether no sentence ends between a number and the result."""
        return not self._words.stand(_SENTENCE_END, number.end_char, self._result.start_char)


def _numbers_of(computation: Computation) -> tuple[Operand, Operand, Operand]:
    return computation.first, computation.second, computation.result


def _digits(*numbers: Operand) -> list[int]:
    """How many digits of each number say something: those before its last zeros."""
    return [len(str(number.value.millionths).rstrip("0")) for number in numbers]


def _are_distinct(computation: Computation) -> bool:
    """Whether three numbers differ, and one of them is not small."""
    values = {number.value.millionths for number in _numbers_of(computation)}
    return len(values) == 3 and max(values) >= SMALL


def _thing(text: str, number: Operand) -> str:
    """What a number counts: its currency, or the word behind it without an ending."""
    if number.value.kind == "money":
        return "money"
    word = _WORD_BEHIND.match(text, number.end_char)
    return word[1].lower().rstrip("s") if word else ""


def sums_several(text: str, numbers: list[Operand]) -> bool:
    """Whether a number that a sentence calls a total or an average is that of the numbers right before it.

    They are at least three.
    """
    words = _Words(text)
    for index, result in enumerate(numbers):
        total, amount = 0, result.value.millionths
        is_result = False
        for count, number in enumerate(reversed(numbers[max(0, index - OPERANDS_BEFORE) : index]), start=1):
            if result.token - number.token >= WINDOW_TOKENS or number.value.kind != result.value.kind:
                break
            total += number.value.millionths
            is_result = is_result or (count >= 3 and total in (amount, count * amount))
        if is_result and result.value.kind != "year" and words.stand(_TOTAL, *words.sentence_of(result)):
            return True
    return False


def announces_a_result(text: str, numbers: list[Operand]) -> bool:
    """Whether an equals sign behind a number announces a number with two operands shortly before it."""
    starts = [number.start_char for number in numbers]
    for match in _EQUALS.finditer(text):
        place = bisect_right(starts, match.end()) - 1
        if place >= 2 and starts[place] == match.end():
            result, first = numbers[place], numbers[place - 2]
            if result.value.kind != "year" and result.token - first.token < WINDOW_TOKENS:
                return True
    return False
