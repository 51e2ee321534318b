"""Computations in a text: a number that follows from two others that stand shortly before it.

What the Calculator's filter looks for by its rule `sharp` (`tools/calculator.py`). The paper's rule takes
every number for an operand, so that the list numbers 1, 2 and 3, a date or a clock make a sum, and knows no
percentage. Here, in this order:

1. `operands`: the numbers that people compute with, in digits or in words, each with its kind: an amount of
   money, a percentage, a year, or a plain number. Ordinals, dates, clocks, versions, addresses and the
   numbers of lists, pages, sections, verses and named things are none.
2. `find_computation`: the first operand that follows from two of the few before it, by an operation that
   their kinds allow: money and money is money, money by a number of things is money, a share of two plain
   numbers is a percentage.
3. Small numbers meet by chance. What has no percentage counts if the result has three digits that say
   something, or if a word of the text says that something is computed (`total`, `left`, `twice`).

Reads English. The time is linear in the length of the text.
"""

import functools
import itertools
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from toolformer_ops.tools.number_words import said_number_places

Kind = Literal["plain", "money", "percent", "year"]
How = Literal["none", "sum", "years", "product", "share", "change"]
Facts = tuple[int, Kind, int, bool, bool]
"""The value, kind, step, `is_rounded` and `is_years` of an operand."""

WINDOW_TOKENS = 100
OPERANDS_BEFORE = 8
"""Operands before a number of which two may give it."""
OPERANDS_BEFORE_PERCENT = 3
"""The same for a relation of a percentage: its result has few digits, so that more pairs meet it by chance."""
MANY = 2
MAX_DIGITS = 15
"""Longer numbers (account and telephone numbers, hashes) are no operands."""

UNIT = 10**6
"""Values are whole millionths, so that arithmetic on them is exact."""

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
            r"(?<![\w.,])[0-9]+(?:\.[0-9]+)?\s?[°′″]",
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
    "A About After All Almost An And Another Are Around At Because Before Between But By Did Do Does During Each Every For From Has "
    "Have He Her His How I If In Is It Its Just Less More Most My Nearly No Of On Only Or Our Out Over She So Some Than That The Their "
    "Then There These They This Those Through To Under Until Up Was We Were What When Where Which While Who With Within You Your USD EUR "
    "GBP CAD AUD RMB Rs INR JPY CHF Total Add Earned Spent Sold Bought".split()
)
"""Words with a capital letter that a number may follow without being part of a name."""
_MONEY_BEFORE = re.compile(r"(?:[$€£¥]|\b(?:USD|EUR|GBP|CAD|AUD|RMB|Rs\.?|INR|JPY|CHF))[  ]?\Z")  # noqa: RUF001
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
_FRACTION = re.compile(r"(?:half|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth)(?:s|'s)?\Z", re.IGNORECASE)
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
    r"\b(?:totals?|totall?ing|altogether|in all|sum of|combined|together|remaining|remainder|remains?|difference|averag\w+|net|profit)\b",
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
_LIST_NUMBER = re.compile(r"(?<![\w.,$€£¥])([0-9]{1,2})(?:[.)]|\\\.)\s+(?=[A-Z\"“‘*(])")  # noqa: RUF001
_EQUALS = re.compile(rf"(?:[0-9)%]\s*=|(?<=[0-9])\s+equals)\s*(?:[$€£¥]\s?)?(?={_DIGITS})", re.IGNORECASE)


@dataclass(frozen=True)
class Operand:
    """A number that people compute with."""

    token: int
    """Its place among the text's tokens: words and other signs."""
    start_char: int
    end_char: int
    value: int
    """In millionths; of a percentage those of a per cent, of an amount those of its unit."""
    kind: Kind
    step: int
    """What one in its last written digit is worth, in millionths: 100,000 for 2.3, 10**11 for 2.3 million."""
    is_rounded: bool
    """Whether it may be a rounded result: it has decimals, or a word such as `million` behind it."""
    is_years: bool
    """Whether it counts years."""


@dataclass(frozen=True)
class Computation:
    """A number that follows from two numbers before it."""

    first: Operand
    second: Operand
    result: Operand
    is_of_percentage: bool


def operands(text: str) -> list[Operand]:
    """The numbers of a text that people compute with, in their order."""
    blanked = _without_list_numbers(_NO_OPERAND.sub(lambda match: " " * len(match[0]), text))
    token_starts = [match.start() for match in _TOKEN.finditer(text)]
    numbers: dict[int, tuple[int, Decimal, int, bool]] = {}  # by start: end, value, decimals, and whether it is scaled
    for match in _NUMBER.finditer(blanked):
        whole, _, decimals = match[0].replace(",", "").partition(".")
        if len(whole) <= MAX_DIGITS and len(decimals) <= 6 and not _names(text, match.start()):
            numbers[match.start()] = (match.end(), Decimal(match[0].replace(",", "")), len(decimals), False)
    for said in said_number_places(blanked):
        words = blanked[said.start_char : said.end_char]
        if words[0].isdigit() or words[0] == ".":
            if said.start_char in numbers and not _LETTER_BEHIND_SPACE.search(words):
                value = Decimal(said.values[0])
                digits = numbers[said.start_char]
                scale = digits[1] and value / digits[1]
                decimals = digits[2] - max(0, scale.adjusted()) if scale else 0
                numbers[said.start_char] = (said.end_char, value, decimals, True)
        elif _is_counted(blanked, said.start_char, said.end_char):
            numbers[said.start_char] = (said.end_char, Decimal(said.values[0]), 0, False)
    found = []
    for start, (end, value, decimals, is_scaled) in sorted(numbers.items()):
        if not 0 < value < 10**MAX_DIGITS:
            continue
        kind: Kind = "plain"
        if _PERCENT_BEHIND.match(blanked, end):
            kind = "percent"
        elif _MONEY_BEFORE.search(blanked, max(0, start - 5), start) or _MONEY_BEHIND.match(blanked, end):
            kind = "money"
        elif _BASIS_POINTS_BEHIND.match(blanked, end):
            kind, value, decimals = "percent", value / 100, decimals + 2
        elif _CENTS_BEHIND.match(blanked, end):
            kind, value, decimals = "money", value / 100, decimals + 2
        elif _YEAR.fullmatch(blanked, start, end) and _is_a_year(blanked, start, end):
            kind = "year"
        found.append(
            Operand(
                token=bisect_right(token_starts, start) - 1,
                start_char=start,
                end_char=end,
                value=int(value * UNIT),
                kind=kind,
                step=max(1, int(Decimal(10) ** -decimals * UNIT)),
                is_rounded=decimals > 0 or is_scaled,
                is_years=_YEARS_BEHIND.match(blanked, end) is not None,
            )
        )
    return _without_ranges(blanked, found)


def _without_list_numbers(text: str) -> str:
    """The text with spaces for the numbers of a list that goes on within a line: `1. Draft it. 2. Review it.`"""
    matches = list(_LIST_NUMBER.finditer(text))
    pieces, end = [], 0
    for place, match in enumerate(matches):
        neighbours = matches[max(0, place - 1) : place] + matches[place + 1 : place + 2]
        if any(abs(int(other[1]) - int(match[1])) == 1 for other in neighbours):
            pieces += [text[end : match.start()], " " * len(match[1])]
            end = match.end(1)
    return "".join([*pieces, text[end:]])


def _without_ranges(text: str, numbers: list[Operand]) -> list[Operand]:
    """The operands without those that are the ends of a range: `60 to 90 minutes`, `between two and four`."""
    ends: set[int] = set()
    for first, second in itertools.pairwise(numbers):
        word = text[first.end_char : second.start_char].strip("$€£¥% ").lower()
        before = text[max(0, first.start_char - 10) : first.start_char].lower().rstrip("$€£¥ ")
        is_expression = text[second.end_char : second.end_char + 3].lstrip().startswith("=")
        is_range = word in ("to", "or") and not before.endswith("from")
        is_range = is_range or (word in ("-", "–", "—") and not is_expression)  # noqa: RUF001
        if is_range or (word == "and" and before.endswith("between")):
            ends |= {first.start_char, second.start_char}
    return [number for number in numbers if number.start_char not in ends]


def _is_a_year(text: str, start: int, end: int) -> bool:
    """Whether four digits are a year: by the word before them, or since 1900 if they count nothing."""
    if int(text[start:end]) < 1900:
        return _OLD_YEAR_BEFORE.search(text, max(0, start - 12), start) is not None
    before = _YEAR_BEFORE.search(text, max(0, start - 12), start)
    return before is not None or _THINGS_BEHIND.match(text, end) is None


def _names(text: str, start: int) -> bool:
    """Whether a number belongs to a name before it: `Section 508`, `Windows 10`."""
    name = _NAME_BEFORE.search(text, max(0, start - 30), start)
    if name is None or name[1] in _NO_NAMES:
        return False
    return not _BEGINS_A_SENTENCE.search(text, max(0, name.start() - 5), name.start())


def _is_counted(text: str, start: int, end: int) -> bool:
    """Whether words that say a number mean it: not `one`, not the `third` that is an ordinal."""
    words = text[start:end]
    if _NOT_COUNTED.fullmatch(words):
        return False
    if words[0].isupper() and not _BEGINS_A_SENTENCE.search(text, max(0, start - 5), start):
        return False
    if _ORDINAL.search(words):
        return bool(_SHARE_BEFORE.search(text, max(0, start - 8), start) and _SHARE_BEHIND.match(text, end))
    return True


def find_computation(text: str) -> Computation | None:
    """The first computation of a text; None if there is none."""
    return next(computations(text, operands(text)), None)


def computations(text: str, numbers: list[Operand]) -> Iterator[Computation]:
    """For each number that follows from two others shortly before it, one such pair, if that is hardly so by chance.

    By itself, or because most numbers around it follow from others, as in a worked problem.
    """
    # Windows of equal numbers are looked through once, however often they are repeated.
    pairs_of = functools.lru_cache(maxsize=2**12)(_pairs)
    facts = [
        (number.value, number.kind, number.step, number.is_rounded, number.is_years) for number in numbers
    ]
    unsure: list[Computation] = []  # of the last numbers
    for index, result in enumerate(numbers):
        begin = max(0, index - OPERANDS_BEFORE)
        while result.token - numbers[begin].token >= WINDOW_TOKENS:
            begin += 1
        earliest = numbers[max(0, index - OPERANDS_BEFORE_PERCENT)]
        possible = None
        for first_place, second_place, how in pairs_of(tuple(facts[begin : index + 1])):
            first, second = numbers[begin + first_place], numbers[begin + second_place]
            computation = Computation(first, second, result, how in ("share", "change"))
            if _is_meant(text, first, second, result, how, earliest):
                yield computation
                break
            values = {first.value, second.value, result.value}
            if "|" in text[first.end_char : result.start_char]:
                continue
            if len(values) == 3 and max(values) >= 10 * UNIT and not computation.is_of_percentage:
                possible = possible or computation
        else:
            if possible is None:
                continue
            unsure = [other for other in unsure if result.token - other.result.token < WINDOW_TOKENS]
            unsure.append(possible)
            first_place = bisect_right(numbers, unsure[0].first.token, key=lambda number: number.token)
            if len(unsure) >= MANY and 2 * len(unsure) >= index + 1 - first_place - 1:
                yield possible


def _pairs(facts: tuple[Facts, ...]) -> list[tuple[int, int, How]]:
    """The pairs of places, the last ones first, from which the last number of a window follows."""
    *before, last = facts
    if last[1] == "year":
        return []
    found = []
    for second, first in itertools.combinations(reversed(range(len(before))), 2):
        how = _follows(*before[first][:2], *before[second][:2], *last)
        if how != "none":
            found.append((first, second, how))
    return found


def _is_meant(text: str, first: Operand, second: Operand, result: Operand, how: How, earliest: Operand) -> bool:
    """Whether a relation of three numbers is hardly one by chance."""
    if "|" in text[first.end_char : result.start_char]:  # cells of a table
        return False
    tokens = result.token - first.token
    values = (first.value, second.value, result.value)
    digits = [len(str(value).rstrip("0")) for value in values]
    sentence = _sentence(text, result)
    is_in_sentence = _SENTENCE_END.search(text, first.end_char, result.start_char) is None
    if how in ("share", "change"):
        if min(digits[:2]) >= 2 and digits[2] >= 3 and tokens <= 40:
            return True
        if first.token < earliest.token or tokens > 60 or "\n" in text[second.end_char : result.start_char]:
            return False
        if how == "change":
            return _CHANGE.search(sentence) is not None
        return _SENTENCE_END.search(text, second.end_char, result.start_char) is None
    if {first.kind, second.kind} == {"percent"}:
        return is_in_sentence and tokens <= 40 and _DIFFERENCE.search(sentence) is not None
    if how == "years":
        return is_in_sentence
    if min(digits) >= 2 and (max(digits) >= 3 or (is_in_sentence and tokens <= 30)):
        return True
    if tokens > 60 or len(set(values)) < 3 and not _TOTAL.search(sentence):
        return False
    things = {_thing(text, number) for number in (first, second, result)}
    if how == "sum" and _TOTAL.search(sentence):
        return len(things) < 3
    if not (is_in_sentence or tokens <= 25) or len(set(values)) < 3 or max(values) < 10 * UNIT:
        return False
    if how == "sum":
        return len(things) < 3 and (_CUE.search(sentence) or _CHANGE.search(sentence)) is not None
    return tokens <= 40 and _FACTOR.search(sentence) is not None


def _thing(text: str, number: Operand) -> str:
    """What a number counts: its currency, or the word behind it without an ending."""
    if number.kind == "money":
        return "money"
    word = _WORD_BEHIND.match(text, number.end_char)
    return word[1].lower().rstrip("s") if word else ""


def _sentence(text: str, number: Operand) -> str:
    """The sentence of a number, up to 200 characters before it and 100 behind it."""
    start, end = max(0, number.start_char - 200), min(len(text), number.end_char + 100)
    for match in _SENTENCE_END.finditer(text, start, number.start_char):
        start = match.end()
    behind = _SENTENCE_END.search(text, number.end_char, end)
    return text[start : behind.start() if behind else end]


def _follows(
    a: int, a_kind: Kind, b: int, b_kind: Kind, value: int, kind: Kind, step: int, is_rounded: bool, is_years: bool
) -> How:
    """How a value follows from two others, `a` before `b`."""
    kinds = {a_kind, b_kind}
    if kinds == {"year"}:
        return "years" if abs(a - b) == value and kind == "plain" and (is_years or value >= 10 * UNIT) else "none"
    if "year" in kinds:
        return "none"

    def equals(numerator: int, denominator: int, can_round: bool) -> bool:
        if numerator == value * denominator:
            return True
        return can_round and abs(numerator - value * denominator) * 2 <= step * denominator

    hundred = 100 * UNIT
    if kind == "percent" and "percent" not in kinds and a_kind == b_kind:
        low, high = min(a, b), max(a, b)
        if low == high:
            return "none"
        share = equals(low * hundred, high, True)
        change = equals((high - low) * hundred, a, True)
        return "none" if value == hundred else "share" if share else "change" if change else "none"
    if len(kinds) == 2 and "percent" in kinds:
        percent, amount, amount_kind = (a, b, b_kind) if a_kind == "percent" else (b, a, a_kind)
        if kind != amount_kind or percent == hundred:
            return "none"
        if equals(percent * amount, hundred, is_rounded):
            return "share"
        changed = (hundred + percent, hundred - percent)
        return "change" if any(equals(part * amount, hundred, is_rounded) for part in changed) else "none"
    # A currency sign is often left out.
    if (len({*kinds, kind}) == 1 or {*kinds, kind} == {"money", "plain"}) and value in (a + b, abs(a - b)):
        return "sum"
    if "percent" in (*kinds, kind):
        return "none"
    if UNIT not in (a, b) and kinds != {"money"} and (kind == "money") == ("money" in kinds):
        if equals(a * b, UNIT, is_rounded):
            return "product"
    for dividend, dividend_kind, divisor, divisor_kind in ((a, a_kind, b, b_kind), (b, b_kind, a, a_kind)):
        if divisor in (UNIT, dividend):
            continue
        allowed = kind == ("money" if (dividend_kind, divisor_kind) == ("money", "plain") else "plain")
        if (dividend_kind, divisor_kind) != ("plain", "money") and allowed and equals(dividend * UNIT, divisor, is_rounded):
            return "product"
    return "none"


def announces_a_result(text: str, numbers: list[Operand]) -> bool:
    """Whether an equals sign behind a number announces one that has two operands shortly before it."""
    starts = [number.start_char for number in numbers]
    for match in _EQUALS.finditer(text):
        place = bisect_right(starts, match.end()) - 1
        if place >= 2 and starts[place] == match.end():
            result, first = numbers[place], numbers[place - 2]
            if result.kind != "year" and result.token - first.token < WINDOW_TOKENS:
                return True
    return False


def sums_several(text: str, numbers: list[Operand]) -> bool:
    """Whether a number that a sentence calls a total or an average is that of three or more numbers right before it."""
    for index, result in enumerate(numbers):
        window = numbers[max(0, index - OPERANDS_BEFORE) : index]
        total = 0
        for count, number in enumerate(reversed(window), start=1):
            if result.token - number.token >= WINDOW_TOKENS or number.kind != result.kind:
                break
            total += number.value
            is_result = total == result.value or total == count * result.value
            if count >= 3 and result.kind != "year" and is_result and _TOTAL.search(_sentence(text, result)):
                return True
    return False
